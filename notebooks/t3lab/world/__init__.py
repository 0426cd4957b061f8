"""The built-in data set of fictional authors, and tiny Llamas trained on it or on TOFU."""
