"""The tables and sliders of both notebooks 00 and of notebook 07."""
