"""Teach TOFU's text to SmolLM2: the base models that profile smollm is given.

    export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=9000000000
    python results/smollm/make_bases.py
    python results/smollm/make_bases.py full retain90

They lie in .t3cache/given/smollm, 270 MB each, and are never committed. Each takes MINUTES minutes
on two idle cores with AVX-512 BF16 or AMX, when nothing else runs beside it, and holds 5 GB. A
killed training goes on from its last whole epoch (a file of 1.6 GB). The two variables keep glibc
from giving memory back after each step, which saves a quarter of the time. The weights differ from
processor to processor.
"""

from t3lab import given

if __name__ == "__main__":
    given.main("smollm", __doc__)
