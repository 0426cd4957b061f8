"""The sliders of notebook 00_explore on Gaussians: change every parameter of Appendix E and watch
densities and errors.

`state` computes a picture from six numbers. `synthetic` builds the sliders and one image.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from t3lib.theory.experiments import sample
from t3lib.theory.logistic import fit_logistic, probability
from t3lib.theory.mixture import METHODS, GaussianMixture
from t3lib.theory.quadrature import Array

BLUE, YELLOW = "#2f7fc1", "#dda200"
DEFAULTS: Mapping[str, float] = {
    "T": 1.0,
    "v_f": 1e-3,
    "gamma": 0.1,
    "n": 50,
    "lam": 1e-6,
    "seed": 0,
}


@dataclass(frozen=True)
class State:
    """One picture: the grid z, the curves on it by name, the samples with their labels, the excess
    risk delta, and {method: (Retain Error, Forget Error)}.
    """

    z: Array
    curves: dict[str, Array]
    samples: Array
    labels: Array
    delta: float
    errors: dict[str, tuple[float, float]]


def state(T: float, v_f: float, gamma: float, n: int, lam: float, seed: int) -> State:
    """Compute everything that the picture shows: draw samples, fit f̂, temper and tilt (Eqs. 3 and
    8).

    T: temperature. v_f: variance of the spike to forget. gamma: its share of the mixture. n: number
    of samples. lam: weight decay λ of the classifier. seed: of the samples.
    """
    mixture = GaussianMixture(gamma=gamma, v_f=v_f)
    samples, labels = sample(mixture, n, 1, np.random.default_rng(seed))
    phi = fit_logistic(samples, labels, lam)[0]
    spike = np.sqrt(v_f) * np.linspace(-6, 6, 121)
    z = np.union1d(np.linspace(-2.5, 4.5, 281), spike[np.abs(spike) < 2.5])
    both = mixture.errors_by_method(phi, T)
    return State(
        z=z,
        curves={
            "p": np.exp(mixture.logp(z)),
            "p_r": np.exp(mixture.logp_r(z)),
            "p_f": np.exp(mixture.logp_f(z)),
            "f_hat": probability(phi, z),
            "f_star": probability(mixture.phi_star, z),
            "p_hat": mixture.density(z, phi, T),
        },
        samples=samples[0],
        labels=labels[0],
        delta=float(mixture.excess_risk(phi)),
        errors={method: (float(both[method][0]), float(both[method][1])) for method in METHODS},
    )


def synthetic(**settings: float) -> tuple[dict[str, Any], Any]:
    """Build the sliders, and return (widgets by name, the box to display).

    settings: start values that replace those of `DEFAULTS`. A move recomputes everything and
    redraws only the lines, which takes some 20 ms of one core. No browser is needed, so the
    notebook also runs headless.
    """
    import ipywidgets as widgets  # type: ignore[import-untyped]

    start = {**DEFAULTS, **settings}
    common: dict[str, Any] = {"continuous_update": True, "layout": widgets.Layout(width="330px")}
    powers = common | {"readout_format": ".0e"}  # 1e-6
    controls: dict[str, Any] = {
        "T": widgets.FloatSlider(
            start["T"], min=1.0, max=3.0, step=0.05, description="T", **common
        ),
        "v_f": widgets.FloatLogSlider(
            start["v_f"], min=-6, max=0, step=0.5, description="v_f", **powers
        ),
        "gamma": widgets.FloatSlider(
            start["gamma"], min=0.02, max=0.6, step=0.02, description="γ", **common
        ),
        "n": widgets.IntSlider(int(start["n"]), min=5, max=400, step=5, description="n", **common),
        "lam": widgets.FloatLogSlider(
            start["lam"], min=-10, max=0, step=0.5, description="λ", **powers
        ),
        "seed": widgets.IntSlider(int(start["seed"]), min=0, max=50, description="seed", **common),
    }
    image, words = widgets.Image(format="png", width=644), widgets.HTML()
    picture, lines, ticks = canvas()
    picture.draw()  # without the lines, which are `animated`
    axes_alone = picture.copy_from_bbox(picture.figure.bbox)

    def redraw(_: object = None) -> None:
        now = state(**{name: control.value for name, control in controls.items()})
        for name, line in lines.items():
            line.set_data(now.z, now.curves[name])
        for label, mark in ticks.items():
            chosen = now.samples[now.labels == label]
            mark.set_data(chosen, np.full(len(chosen), 1.04))
        picture.restore_region(axes_alone)
        for line in (*lines.values(), *ticks.values()):
            line.axes.draw_artist(line)
        image.value = _png(picture)
        words.value = _words(now)

    for control in controls.values():
        control.observe(redraw, names="value")
    redraw()
    rows = list(controls.values())
    sliders = widgets.HBox([widgets.VBox(rows[:3]), widgets.VBox(rows[3:])])
    return controls, widgets.VBox([sliders, words, image])


def canvas() -> tuple[FigureCanvasAgg, dict[str, Any], dict[float, Any]]:
    """Prepare an empty picture.

    Returns its canvas, its lines by the names of `State.curves`, and the marks of the samples by
    label (1.0 retain, 0.0 forget).
    """
    figure = Figure(figsize=(7.0, 4.4), dpi=92)
    picture = FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    figure.subplots_adjust(left=0.085, right=0.98, top=0.97, bottom=0.09, hspace=0.08)
    looks = {
        "p_r": (top, {"color": BLUE, "lw": 2.5, "alpha": 0.6, "label": "$p_r$"}),
        "p_f": (top, {"color": YELLOW, "lw": 1, "ls": ":", "label": "$p_f$"}),
        "p": (top, {"color": YELLOW, "lw": 1.2, "label": "$p$"}),
        "p_hat": (top, {"color": "black", "lw": 1.3, "label": r"$\hat p_r^{(T)}$"}),
        "f_star": (bottom, {"color": "0.55", "lw": 1, "ls": ":", "label": "$f^*$"}),
        "f_hat": (bottom, {"color": "black", "lw": 1.3, "label": r"$\hat f$"}),
    }
    lines = {
        name: axis.plot([], [], animated=True, **look)[0] for name, (axis, look) in looks.items()
    }
    shades = {1.0: (BLUE, "retain samples"), 0.0: (YELLOW, "forget samples")}
    look = {"marker": "|", "ls": "", "ms": 7, "animated": True}
    ticks = {
        s: bottom.plot([], [], color=c, label=name, **look)[0] for s, (c, name) in shades.items()
    }
    # The spike is up to 400 high, and everything else is below 1. So the axis is linear up to 1 and
    # logarithmic above.
    top.set_yscale("symlog", linthresh=1, linscale=3, base=10)
    top.set(xlim=(-2.5, 4.5), ylim=(0, 600), ylabel="density (above 1: logarithmic)")
    top.set_yticks(
        [0, 0.2, 0.4, 0.6, 0.8, 1, 10, 100], ["0", "0.2", "0.4", "0.6", "0.8", "1", "10", "100"]
    )
    top.axhline(1, color="0.85", lw=0.8)
    bottom.set(ylim=(-0.03, 1.12), ylabel="P(retain)", xlabel="$z$")
    top.legend(loc="upper right", frameon=False)
    bottom.legend(loc="lower right", frameon=False, ncols=2)
    return picture, lines, ticks


def _png(picture: FigureCanvasAgg) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(picture.buffer_rgba())).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _words(now: State) -> str:
    (retain, forget), (retain_paper, forget_paper) = (
        now.errors["exact"],
        now.errors["negligible_overlap"],
    )
    counts = f"{int(now.labels.sum())} retain and {int((1 - now.labels).sum())} forget samples"
    parts = (
        f"<b>Retain Error {retain:.4f}</b>, <b>Forget Error {forget:.4f}</b>",
        f"with the paper's partition function {retain_paper:.4f} and {forget_paper:.4f}",
        f"excess risk {now.delta:.4f}",
        counts,
    )
    return " &nbsp; ".join(parts)
