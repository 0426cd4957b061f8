"""Names that tables and files share: splits, seeds, sources and verdicts. Imports nothing."""

SPLITS = ("forget05", "forget10")
RETRAINED = 3  # at most so many retrained models for each split, beside the reference
TUNING_SEEDS = (1, 2)  # the paper: "we tune hyperparameters using random seeds 1 and 2"
# Where rows can come from, beside a folder: the built-in world, the sample of customers, TOFU.
SOURCES = ("builtin", "customers", "hub")

# The possible verdicts in the table of claims.
HOLDS = "holds"
NO_ORDER = "no order"
RESTRICTED = "holds only under a condition"  # that the evidence names
FAILS = "does not hold"
NOT_RUN = "not run at this scale"
VERDICTS = (HOLDS, NO_ORDER, RESTRICTED, FAILS, NOT_RUN)
