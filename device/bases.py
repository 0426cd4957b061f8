"""make_bases.py of profile smollm without the state after each epoch (1.6 GB each)."""
import sys
sys.argv = ["results/smollm/make_bases.py", *sys.argv[1:]]
from t3lib.baselines import train
train.save_state = lambda *_: None
from t3lab import given
given.main("smollm", "as results/smollm/make_bases.py")
