"""`python -m tools.bench`: what our server costs and how fast it tells the truth, each figure beside what it is
compared with in the same run. One module for each group of figures.
"""
