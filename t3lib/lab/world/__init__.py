"""The built-in world and the tiny Llamas trained on it, or on real TOFU text."""
