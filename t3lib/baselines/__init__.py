"""The ten baselines of Table 1: losses, forward passes, training, and ULD's assistant model."""
