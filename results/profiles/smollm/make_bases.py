"""Teach TOFU's text to SmolLM2: the base models that profile smollm is given.

    python results/profiles/smollm/make_bases.py --data DIR
    python results/profiles/smollm/make_bases.py --data DIR full retain90

DIR has TOFU's files; without it they come from the Hub. The bases lie in .t3cache/given/smollm, 540
MB each in float32, and are never committed. On a core with AMX, five epochs of one thread took 31
minutes; with two threads, four took 16. A killed training goes on from its last whole epoch (a file
of 1.6 GB). On glibc, steps took three quarters of the time with MALLOC_MMAP_THRESHOLD_=8000000000,
MALLOC_TRIM_THRESHOLD_=16000000000 and MALLOC_TOP_PAD_=1000000000 set, because memory was not given
back after each of them. But then a process grows to 12 GB with its first base and to 19 GB with the
second, so make one base a call, one after the other. The weights differ from processor to
processor.
"""

from t3lab import make_bases

if __name__ == "__main__":
    make_bases.main("smollm", __doc__)
