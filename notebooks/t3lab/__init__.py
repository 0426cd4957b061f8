"""The laboratory: the code that regenerates the paper with t3lib, for the notebooks beside it.

t3lib never imports it: `t3` finds its verbs by an entry point (`t3lib.cli.Offer`).
"""
