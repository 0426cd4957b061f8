"""The code that regenerates the paper and serves the command line.

Nothing outside lab imports it.
"""
