"""The theory of arXiv:2602.10217, executable: one place to import it from. numpy and scipy only, float64.

    p = (1 − γ) p_r + γ p_f  (Eq. 1)      p̂_T ∝ p^(1/T) f̂  (Eq. 8)      δ = L(f̂) − L(f*)
    Retain Error KL(p_r ‖ p̂_T)  (Eq. 6)      Forget Error E_{p_f} |p_r − p̂_T|  (Eq. 7)

mixture     GaussianMixture: exact errors, excess risk, partition function, both ways of Appendix E
montecarlo  the paper's Monte Carlo
bounds      Theorems 3.3, 3.4, 3.5 (with its witness), 3.7, 3.8 (with their τ*), Lemmas A.1, A.2, Proposition C.1, the
            Gaussian integral of Appendix E
identities  class imbalance (Appendix D), tempering as maximum entropy (Appendix B), when ∫ p^(1/T) exists (Remark 3.2)
logistic    the regularised logistic regression of Eq. 3 for a batch of data sets
"""

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
    correct_prior,
    density_ratio_under_imbalance,
    kl_of_temperature,
    prior_shift,
    temperature_of_kl,
    tempered_mass,
)
from t3lib.theory.logistic import fit_logistic, objective
from t3lib.theory.mixture import METHODS, GaussianMixture
from t3lib.theory.montecarlo import Estimate, monte_carlo_errors

__all__ = [
    "METHODS",
    "Estimate",
    "GaussianMixture",
    "Witness",
    "absolute_log_functional",
    "bound_classifier_l1",
    "bound_forget_tempered",
    "bound_forget_untempered",
    "bound_logistic_excess_risk",
    "bound_partition",
    "bound_retain_tempered",
    "bound_retain_untempered",
    "classifier_l1",
    "correct_prior",
    "density_ratio_under_imbalance",
    "fit_logistic",
    "forget_lower_bound",
    "gaussian_power_log_integral",
    "kl_of_temperature",
    "logistic_lambda",
    "monte_carlo_errors",
    "objective",
    "prior_shift",
    "tau_star_forget",
    "tau_star_retain",
    "temperature_of_kl",
    "tempered_mass",
    "tempering_bias_bound",
    "witness",
]
