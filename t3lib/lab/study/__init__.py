"""Experiments on one forget split: methods, T3's ablations, audit, attacks, search for settings."""
