"""The fake engine: a real program that speaks the pipe protocol and follows a script.

`engine.fake.launch` has its command line, `engine.fake.harness` drives it from tests, `engine/fake/scripts` holds a
ready script per ending. Nothing is imported here: the program starts hundreds of times in a test run.
"""
