"""The checks of `tools.conform`, by group, and what they judge: recorded exchanges with a server.

They share no code with the server or the engines. None of them sends anything by itself: `bench` does, once for all.
"""
