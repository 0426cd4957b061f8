"""Run a profile as a graph of notebooks on Dask; a run that was interrupted continues. No torch."""
