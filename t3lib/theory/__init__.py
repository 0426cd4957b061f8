"""The theory of arXiv:2602.10217 as code. Uses numpy and scipy only, float64.

    p = (1 − γ) p_r + γ p_f  (Eq. 1)      p̂_T ∝ p^(1/T) f̂  (Eq. 8)      δ = L(f̂) − L(f*)
    Retain Error KL(p_r ‖ p̂_T)  (Eq. 6)      Forget Error E_{p_f} |p_r − p̂_T|  (Eq. 7)

mixture      GaussianMixture: exact errors, excess risk, partition function (true and the paper's)
montecarlo   the same errors by the paper's Monte Carlo
bounds       Theorems 3.3, 3.4, 3.5 (with its witness), 3.7, 3.8 (with their τ*), Lemmas A.1, A.2,
    Proposition C.1, the Gaussian integral of Appendix E
identities   tempering and sharpening, class imbalance (Appendix D), maximum entropy (Appendix B),
    tails (Remark 3.2)
logistic     the regularised logistic regression of Eq. 3 for many data sets at once
price        the exact price of tempering of a discrete distribution, such as a next token
quadrature   numerical integration that resolves narrow densities and steep classifiers

The functions of the first five and of price can be imported from here. The tables of notebook 01
are made by `t3lab.theory`.
"""

# ruff: noqa: F401 (every name imported here from theory's modules is public, see __all__)
from t3lib.theory.bounds import (
    Witness,
    absolute_log_functional,
    bound_classifier_l1,
    bound_forget_tempered,
    bound_forget_untempered,
    bound_logistic_excess_risk,
    bound_partition,
    bound_retain_tempered,
    bound_retain_untempered,
    classifier_l1,
    forget_lower_bound,
    gaussian_power_log_integral,
    logistic_lambda,
    tau_star_forget,
    tau_star_retain,
    tempering_bias_bound,
    witness,
)
from t3lib.theory.identities import (
    density_ratio_under_imbalance,
    kl_of_temperature,
    temperature_of_kl,
    tempered_mass,
    tilted,
)
from t3lib.theory.logistic import fit_logistic, objective
from t3lib.theory.mixture import METHODS, GaussianMixture
from t3lib.theory.montecarlo import Estimate, monte_carlo_errors
from t3lib.theory.price import memorised_price_bound, tail_price_bound, tempering_price

__all__ = [
    name
    for name, value in globals().items()
    if getattr(value, "__module__", "").startswith("t3lib.theory")
]
__all__ += ["METHODS"]
