"""Checks of arguments; each raises a UserError (a ValueError) that names the argument and the value it had."""

import numpy as np
from numpy.typing import ArrayLike

from t3lib.errors import UserError


def inside(name: str, value: float, low: float, high: float) -> None:
    """low < value < high."""
    if not low < value < high:
        raise UserError(f"{name} must lie strictly between {low:g} and {high:g}, got {value!r}")


def positive(name: str, value: float) -> None:
    """0 < value < inf."""
    if not 0.0 < value < float("inf"):
        raise UserError(f"{name} must be a positive finite number, got {value!r}")


def finite(name: str, value: ArrayLike) -> None:
    """Every element a finite number."""
    values = np.asarray(value, dtype=float)
    if not (good := np.isfinite(values)).all():
        raise UserError(f"{name} must be finite, got {_first_bad(values, good)}")


def at_least(name: str, value: ArrayLike, low: float) -> None:
    """Every element finite and ≥ low."""
    values = np.asarray(value, dtype=float)
    good = np.isfinite(values) & (values >= low)
    if values.size == 0 or not good.all():
        raise UserError(f"{name} must be finite and at least {low:g}, got {_first_bad(values, good)}")


def _first_bad(values: np.ndarray, good: np.ndarray) -> str:
    return "nothing" if values.size == 0 else f"{float(values[~good].flat[0])!r}"
