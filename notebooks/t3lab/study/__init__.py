"""Experiments on one forget split: methods, T3's ablations, audit, search for settings."""
