"""Check that numbers are finite and in range."""

import numpy as np
from numpy.typing import ArrayLike

from t3lib.core.errors import UserError


def check_within(
    name: str, value: ArrayLike, low: float = -np.inf, high: float = np.inf, *, open_: bool = False
) -> None:
    """Raise UserError unless every element of `value` is finite and in [low, high].

    open_: the interval is (low, high). The message names the argument, the interval and the value.
    """
    values = np.asarray(value, dtype=float)
    within = (low < values) & (values < high) if open_ else (low <= values) & (values <= high)
    good = within & np.isfinite(values)
    if values.size and good.all():
        return
    bad = repr(float(values[~good].flat[0])) if values.size else "nothing"
    left, right = "(" if open_ or np.isinf(low) else "[", ")" if open_ or np.isinf(high) else "]"
    raise UserError(f"{name} must lie in {left}{low:g}, {high:g}{right}, got {bad}")
