"""What the checkers share: raw requests, streams read byte by byte, what the four APIs say, and reports of it.

It shares no code with the server or the engines, so that it cannot share their mistakes.
"""
