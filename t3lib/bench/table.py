"""The cost tables: rows as a table or lines, the Gaussian experiments beside scikit-learn, many heads on one base."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from t3lib.bench import cost
from t3lib.bench import model as bench_model
from t3lib.bench.shapes import shape_of
from t3lib.bench.timing import COLUMNS, Rows, interleaved, row, timed, value_row
from t3lib.theory import experiments as synthetic
from t3lib.theory.logistic import fit_logistic
from t3lib.theory.mixture import GaussianMixture

HEADS = (1, 4, 16, 64)
MANY = 1000  # forget requests on one base, by arithmetic alone
CAPTION = "Cost: median seconds on this machine, the processor's own (busy), the lower bound, and busy over it."


def synthetic_rows(trials: int, seed: int = 0) -> Rows:
    """Experiments 1 and 2 of the paper, and their cells' fits beside a scikit-learn loop over the same data and λ.

    Both solvers fit the two-class data sets down to gradients of 1e-8 (ours further); lbfgs is scikit-learn's fastest
    solver here. Without scikit-learn its rows are left out.
    """
    where, problems = f"{trials} trials", []
    whole = timed(lambda: synthetic.experiments(trials=trials, seed=seed), repeats=1, warmup=0)
    for v_f, n in sorted({(v, 50) for v in synthetic.V_F} | {(1e-3, n) for n in synthetic.N}):
        one = synthetic.fit_trials(GaussianMixture(v_f=v_f), n, trials, seed)
        both = one.s.min(axis=1) != one.s.max(axis=1)
        problems.append((one.z[both], one.s[both], one.lam))
    works: dict[str, Callable[[], object]] = {"batched Newton": lambda: [fit_logistic(*each) for each in problems]}

    def one_by_one() -> None:
        for z, s, lam in problems:
            model = LogisticRegression(C=1 / (2 * z.shape[1] * lam), fit_intercept=False, tol=1e-8, max_iter=10_000)
            for z_i, s_i in zip(z, s, strict=True):
                model.fit(np.stack([np.ones_like(z_i), z_i, z_i**2], axis=1), s_i)

    with suppress(ImportError):
        from sklearn.linear_model import LogisticRegression

        works["scikit-learn loop"] = one_by_one
    fits = interleaved(works, repeats=1, warmup=0)
    rows = [row("synthetic: experiments 1 and 2", where, whole)]
    rows += [row(f"synthetic: fits, {name}", where, timing) for name, timing in fits.items()]
    if len(fits) > 1:
        ratio = fits["scikit-learn loop"].cost / fits["batched Newton"].cost
        rows.append(value_row("  scikit-learn / ours", where, ratio))
    return rows


def scale(base: PreTrainedModel, name: str, repeats: int, *, heads: Sequence[int] = HEADS) -> pd.DataFrame:
    """What many heads cost in decoding one row, as columns shape, heads, overhead, low, high (per cent), how.

    Measured on `base`, in turns with the base alone (median and quartiles); by arithmetic at its shape and at those of
    8B and 70B: bytes of weights that a step reads, the base's in bfloat16 there. A head is one forget request.
    """
    measured = bench_model.decode_timings(base, heads=heads, repeats=repeats)
    rows: list[tuple[Any, ...]] = []
    for n in heads:
        low, middle, high = (100 * (ratio - 1) for ratio in measured[n].over(measured[0]))
        rows.append((name, n, middle, low, high, "measured"))
    for shape, itemsize in ((name, base.dtype.itemsize), ("llama-3.1-8b", 2), ("llama-3.1-70b", 2)):
        alone = cost.decode_step(shape_of(shape), itemsize=itemsize).bytes
        for n in (*heads, MANY):
            added = cost.decode_step(shape_of(shape), itemsize=itemsize, heads=n).bytes / alone - 1
            rows.append((shape, n, 100 * added, None, None, "bytes of weights"))
    return pd.DataFrame(rows, columns=["shape", "heads", "overhead", "low", "high", "how"])


def frame_of(rows: Rows) -> pd.DataFrame:
    """The rows as the table `benchmarks`."""
    return pd.DataFrame(rows, columns=COLUMNS)


def line(entry: dict[str, Any]) -> str:
    """A row as one line of text."""
    value = "" if entry["median"] is None else f"{entry['median']:.4g}"
    parts = f"{entry['what']:<52} {value:>10} {entry['unit']:<8}"
    if entry["busy"] is not None:
        parts += f" {entry['low']:.4g}…{entry['high']:.4g} ({entry['repeats']}), busy {entry['busy']:.4g}"
    if entry["over_bound"]:
        parts += f", {entry['over_bound']:.1f} x the bound"
    return f"{parts}  {entry['note']}".rstrip()
