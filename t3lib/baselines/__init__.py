"""The ten baselines of Table 1: losses, what they need of a model, training, ULD's assistant."""
