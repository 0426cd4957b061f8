"""The vocabularies of every table and file name: methods and splits, spelled here and nowhere else. Imports nothing."""

BASELINES = ("GradAscent", "GradDiff", "WGA", "SatImp", "UnDIAL", "RMU", "ULD", "IdkDPO", "NPO", "SimNPO")
METHODS = ("Original", "Retrained", *BASELINES, "T3")  # the order of the rows in every table
SPLITS = ("forget05", "forget10")
