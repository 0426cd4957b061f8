"""The tables and sliders of the two notebooks 00: text, next tokens, and two Gaussians."""
