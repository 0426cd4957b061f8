"""Check whether a model of a study really forgot: recognition, membership and leakage."""
