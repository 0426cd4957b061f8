"""Gated tempering on the paper's Gaussians, by quadrature.

    python results/studies/gate/theory.py

Gated T3 (ours, not the paper's) tempers only where the classifier expects something to forget:

    p_hat(z) ∝ p(z)^(1/T(z)) f(z),   T(z) = T where f(z) < θ, 1 elsewhere

θ = 1 is the paper's T3, θ = 0 never tempers. The classifiers are those of Experiments 1 and 2: on
[1, z, z²], fitted to n = 50 points, with the λ of least risk. The table `gate_gaussians` has
medians over 100 data sets of the Retain Error (Eq. 6) and the Forget Error (Eq. 7) for each spike
v_f, T and θ. price: the Retain Error less that at T = 1. price_bound: an upper bound of it, see
`gated`. retain_mass: the share of p_r that is tempered. markov: a bound of that, E_r[-ln f] / -ln
θ. It takes half a minute.
"""

import argparse
from itertools import product

import numpy as np
import pandas as pd

from t3lab import script
from t3lab.report import plots_gate, render
from t3lab.theory.experiments import fit_trials
from t3lib.core.files import project_root
from t3lib.theory import quadrature
from t3lib.theory.mixture import GaussianMixture, log_probabilities
from t3lib.theory.quadrature import Array

V_F, N, TRIALS = (1e-5, 1e-3), 50, 100
TEMPERATURES, GATES = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0), (0.5, 0.9, 0.99, 1.0)
CAPTION = (
    "Gated T3 (ours, not the paper's) in the Gaussian experiments, n = 50: medians over 100 data"
    " sets. gate 1 is the paper's T3."
)


def gated(mixture: GaussianMixture, phi: Array, T: float, gate: float) -> dict[str, float]:
    """Return errors of one classifier, and what they cost beside no tempering.

    phi: (3,). With a = 1 − 1/T, G = {f < θ} and N_1 = ∫ p f the difference of the Retain Errors is
    a E_r[1_G ln p] + ln(1 + E_p[1_G f (p^(−a) − 1)] / N_1), which is exact. `price_bound` is the
    same with ln(1 + x) replaced by x.
    """
    phi = phi[None]
    level = np.inf if gate >= 1 else np.log(gate) - np.log1p(-gate)
    ends, away = quadrature.where_logit_is(level if gate < 1 else 0.0, phi)
    kinks = ends[away < 1e-9] if gate < 1 else []
    edges = np.union1d(mixture.classifier_edges(phi, T)[0], kinks)
    fine = np.unique(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))
    z, w = quadrature.nodes(fine)
    logf, log1mf = (values[0] for values in log_probabilities(phi, z[None]))
    inside = logf - log1mf < level
    logp, p_r, p_f = mixture.logp(z), np.exp(mixture.logp_r(z)), np.exp(mixture.logp_f(z))
    a = 1 - 1 / T
    weight = np.exp(logp * np.where(inside, 1 / T, 1.0) + logf)
    total, whole = (w * weight).sum(), (w * np.exp(logp + logf)).sum()
    retain = (w * p_r * (mixture.logp_r(z) - np.log(np.maximum(weight, 1e-300) / total))).sum()
    untempered = (w * p_r * (mixture.logp_r(z) - logp - logf)).sum() + np.log(whole)
    slope = a * (w * p_r * inside * logp).sum()
    added = (w * inside * np.exp(logf) * (np.exp(logp / T) - np.exp(logp))).sum() / whole
    return {
        "retain_error": retain,
        "forget_error": (w * p_f * np.abs(p_r - weight / total)).sum(),
        "price": retain - untempered,
        "price_exact": slope + np.log1p(added),
        "price_bound": slope + added,
        "retain_mass": (w * p_r * inside).sum(),
        "markov": (w * p_r * -logf).sum() / -np.log(gate) if gate < 1 else 1.0,
    }


def table() -> pd.DataFrame:
    """Build the table `gate_gaussians`."""
    rows = []
    for v_f in V_F:
        fits = fit_trials(GaussianMixture(v_f=v_f), N, TRIALS, seed=0)
        for T, gate in product(TEMPERATURES, GATES):
            if T > 1 or gate == 1:
                found = pd.DataFrame([gated(fits.mixture, phi, T, gate) for phi in fits.phi])
                rows.append({"v_f": v_f, "T": T, "gate": gate, **found.median()})
    return pd.DataFrame(rows).drop(columns="price_exact")


def make(_: argparse.Namespace) -> None:
    """Write the table and its figure below results/studies/gate."""
    folder, made = project_root() / "results" / "studies" / "gate", table()
    render.write_table(folder / "tables", "gate_gaussians", made, caption=CAPTION)
    render.save_figure(folder / "figures" / "gate_gaussians.svg", plots_gate.frontier(made))


if __name__ == "__main__":
    script.run(make, __doc__, {}, as_jobs=False)
