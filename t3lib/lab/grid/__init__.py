"""A profile as a graph of notebooks on Dask, resumable; no torch."""
