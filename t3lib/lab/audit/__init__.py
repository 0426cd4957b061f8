"""Did it really forget? Recognition, membership and leakage; and the same questions for a person's
own model.
"""
