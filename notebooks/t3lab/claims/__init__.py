"""Decide every checkable sentence of the paper from tables. Imports no torch."""
