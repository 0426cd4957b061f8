"""Every checkable sentence of the paper with a verdict computed from tables; no torch."""
