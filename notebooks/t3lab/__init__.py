"""The laboratory: the code that regenerates the paper with t3lib, for the notebooks beside it.

t3lib never imports it, but for the verbs of `t3` that need it (t3lib/cli.py).
"""
