"""Unlearn rows of a person's own model: read the rows, choose w from evidence, give a verdict."""
