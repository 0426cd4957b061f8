"""The benchmark TOFU: its splits and files, likelihoods, written answers, metrics, the
evaluation.
"""
