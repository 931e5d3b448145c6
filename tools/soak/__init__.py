"""`python -m tools.soak`: hours of mixed load on a real engine, and a verdict. `run` does it, `judge` judges, the rest
is about one thing each.
"""
