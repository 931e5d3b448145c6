"""Puts this project's ending of a failed chat stream into the `serve/server.py` of an existing Strata checkout.

It changes nothing else of that server, and merges no other part of this project.
"""
