"""The stories of notebook 00, and the sliders of 00_explore and 07, which need no kernel."""
