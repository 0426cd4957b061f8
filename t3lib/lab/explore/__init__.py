"""The sliders of notebook 00: two Gaussians, and a small language model."""
