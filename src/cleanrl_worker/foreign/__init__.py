"""The code that runs inside other people's interpreters: Python 3.8 or later, stdlib, numpy, later Gymnasium."""
