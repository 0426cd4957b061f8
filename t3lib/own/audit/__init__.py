"""Check whether a model really forgot: recognition, membership and leakage.

The same questions are asked of the models of a study and of a person's own model.
"""
