"""Unlearn rows of a person's own model: read the rows, choose T and w from evidence, give a
verdict.
"""
