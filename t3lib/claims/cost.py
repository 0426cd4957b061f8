"""One function per claim about cost: Tables 2 and 3, the paper's or ours, and the arithmetic behind Table 2."""

from collections.abc import Sequence

import pandas as pd

from t3lib.claims.findings import MISSING, Finding, Tables, printed_tables
from t3lib.claims.llm import FULL, PERCENT, joined
from t3lib.names import BASELINES, SPLITS

FRACTION = 0.1  # "a small fraction"
# Llama 3.1 8B: vocabulary, width, layers, key-value width, width of the MLP; embeddings and output are not tied
V, D, LAYERS, KV, MLP = 128_256, 4096, 32, 1024, 14_336
LINEAR = ((D, D), (D, KV), (D, KV), (D, D), (D, MLP), (D, MLP), (MLP, D))  # q, k, v, o, gate, up, down of a layer
FULL_COUNT = 2 * V * D + LAYERS * (sum(a * b for a, b in LINEAR) + 2 * D) + D
ULD_COUNT = 16 * 32 * sum(a + b for a, b in LINEAR)  # rank 32 on every linear map of the first 16 layers
T3_COUNT = 20 * (D + V)


def fewest_parameters(tables: Tables) -> Finding:
    table = tables["parameters"]
    if table is None:
        return MISSING
    counts = table.set_index("method")["trainable"].dropna().astype(float)
    others = counts.drop("T3", errors="ignore")
    if "T3" not in counts or others.empty:
        return MISSING
    share = counts["T3"] / others.max()
    told = f"T3 {counts['T3']:,.0f}; next {others.idxmin()} {others.min():,.0f}; most {others.max():,.0f} ({share:.2%})"
    return Finding(bool(counts["T3"] < others.min()), told)


def fastest(tables: Tables) -> Finding:
    return _cheaper(tables, "T3 (preprocessed)", (*BASELINES, "T3 (naive)"), 1.0, needs=BASELINES)


def small_fraction_of_full(tables: Tables) -> Finding:
    return _cheaper(tables, "T3 (preprocessed)", FULL, FRACTION)


def naive_below_full(tables: Tables) -> Finding:
    return _cheaper(tables, "T3 (naive)", FULL, 1.0)


def naive_below_uld(tables: Tables) -> Finding:
    return _cheaper(tables, "T3 (naive)", ("ULD",), 1.0)


def caching_saves(tables: Tables) -> Finding:
    return _cheaper(tables, "T3 (preprocessed)", ("T3 (naive)",), 1.0)


def printed_count(method: str, count: int, tables: Tables) -> Finding:
    """The number in the paper's Table 2 is `count` rounded to three digits."""
    table = tables["parameters"]
    if table is None:
        return MISSING
    shown = table.set_index("method")["trainable"].get(method)
    if shown is None or pd.isna(shown):
        return MISSING
    return Finding(f"{count:.2e}" == f"{shown:.2e}", f"{method}: {count:,} by the shapes, {shown:.3g} in Table 2")


def counted(method: str, count: int, tables: Tables) -> Finding:
    """The same with the shapes of Llama 3.1 8B: nothing has to be run to count."""
    return printed_count(method, count, printed_tables())


def share_is_three_hundredths_of_a_percent(tables: Tables) -> Finding:
    table = tables["parameters"]
    if table is None:
        return MISSING
    counts = table.set_index("method")["trainable"].dropna().astype(float)
    if "T3" not in counts or counts.drop("T3").empty:
        return MISSING
    share = counts["T3"] / counts.max()
    return Finding(round(100 * share, 2) == 0.03, f"T3 trains {share:.4%} of {counts.max():,.0f}")


def share_by_shapes(tables: Tables) -> Finding:
    share = T3_COUNT / FULL_COUNT
    return Finding(round(100 * share, 2) == 0.03, f"{T3_COUNT:,} of {FULL_COUNT:,}: {share:.4%}")


def _cheaper(
    tables: Tables, mine: str, others: Sequence[str], fraction: float, needs: Sequence[str] | None = None
) -> Finding:
    """Training seconds of `mine` below `fraction` of the least among `others`, in every split."""
    table = tables["runtime"]
    if table is None:
        return MISSING
    parts = []
    for split in SPLITS:
        rows = table[table["split"] == split].set_index("method")
        seconds = rows["train_s"].dropna().astype(float)
        rest = seconds[seconds.index.isin(others)]
        if mine not in seconds or rest.empty:
            return MISSING
        features = rows["features_s"].get(mine)
        extra = "" if features is None or pd.isna(features) else f" after {features:.3g} s for features"
        ratio = seconds[mine] / rest.min()
        told = f"{PERCENT[split]} {mine} {seconds[mine]:.3g} s{extra}, {rest.idxmin()} {rest.min():.3g} s: {ratio:.2g}×"
        complete = set(needs or others) <= set(seconds.index)
        parts.append(Finding(False if ratio >= fraction else True if complete else None, told))
    return joined(parts)
