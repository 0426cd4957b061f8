"""Experiments 1 and 2 on Gaussians, and every bound beside its error, as tables of notebook 01."""
