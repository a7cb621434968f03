"""The code that runs inside users' own interpreters: Python 3.8 or later, stdlib, numpy, later Gymnasium."""
