"""The TOFU benchmark: splits and files, likelihoods, decoded answers, metrics, evaluation."""
