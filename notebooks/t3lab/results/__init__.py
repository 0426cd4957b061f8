"""Run files, the table of runs, and where numbers come from.

runs     write run files, and check them when they are read
table    collect runs in one table, with how near each is to retrained models
origin   the commit, the machine and the memory of the process that made numbers

The public names of all three can be imported from here.
"""

# ruff: noqa: F401 (every name imported here is public)
from t3lab.results.origin import (
    check_clean,
    folder,
    forget_peak_memory,
    made_with,
    peak_memory_bytes,
    provenance,
)
from t3lab.results.runs import (
    AUTHOR_ROWS,
    LARGEST,
    PACKED,
    RUN_KEYS,
    TOFU_FORGET,
    Run,
    all_rows,
    author_rows,
    name_of,
    paper_table,
    read_ablations,
    read_audits,
    read_runs,
    write_audit,
    write_data,
    write_packed,
    write_run,
)
from t3lab.results.table import (
    HELD_OUT,
    PROFILE,
    SECONDS,
    TINY,
    Nearness,
    against,
    code_note,
    log_ratios,
    nearness,
    of_one_profile,
    others_of,
    references,
    rescaled,
    split_labels,
    swap_p,
    tidy,
)
