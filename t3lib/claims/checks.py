"""Which function decides which claim of `results/paper/claims.csv`: the literal table CHECKS.

`note` is why a claim fails where it does; it is shown only with a computed failure. `scale` says what the verdict is
about; for PAPER_MODEL the same function reads the paper's tables (column `printed`) and those of our runs.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from t3lib.claims import appendix, cost, llm, theory
from t3lib.claims import gaussians as gauss
from t3lib.claims.findings import Finding, Tables, printed_tables

PAPER_MODEL = "Llama 3.1 8B"
GAUSSIAN = "the paper's Gaussians"
BOUNDS = "tables/bounds, figures/bounds; tests/test_bounds.py::"
HERE = "tests/test_bounds.py::"
MORE = "tests/test_theory.py::"
SYNTHETIC = "tables/synthetic, figures/"
STEADY = "A method whose Forget Quality is near zero for every seed is steady too."


class Check(NamedTuple):
    """How a claim is decided: its function, what a reader can look at, why it fails where it does, at which scale."""

    compute: Callable[[Tables], Finding]
    evidence: str
    note: str = ""
    scale: str = "exact (one dimension)"
    printed: Callable[[Tables], Finding] | None = None
    also_here: bool = True


def _model(compute: Callable[[Tables], Finding], evidence: str, note: str = "", also_here: bool = True) -> Check:
    """A claim about language models: one function for the paper's tables and for ours."""
    return Check(compute, evidence, note, PAPER_MODEL, compute, also_here)


def _figure(compute: Callable[[Tables], Finding], evidence: str, note: str = "") -> Check:
    return Check(compute, SYNTHETIC + evidence, note, GAUSSIAN)


CHECKS: dict[str, Check] = {
    "guidance-can-fail": _figure(gauss.guidance_can_fail, "figure2_every_n"),
    "tempering-needed-in-practice": _figure(gauss.sharp_needs_tempering, "figure2_every_n"),
    "tempering-proved-necessary": Check(
        theory.tempering_is_necessary,
        f"computed here; {HERE}test_theorem_3_5_witness_equals_formula_and_densities",
        "Theorem 3.5 exhibits one classifier that leaks; others with the same excess risk do not leak untempered, so "
        "what is proved is that a bound on the excess risk alone is not enough.",
    ),
    "better-in-both": _model(
        llm.better_in_both,
        "tables/tofu, tables/tofu_per_seed",
        "Some baseline is not below T3 in at least one of the two.",
    ),
    "small-fraction-of-time": _model(cost.small_fraction_of_full, "tables/runtime, figures/runtime"),
    "fewest-parameters": _model(cost.fewest_parameters, "tables/parameters"),
    "uld-costs-more": _model(
        cost.naive_below_uld,
        "tables/runtime",
        "T3 is cheaper than ULD once its features are stored, not when each of its 100 epochs runs the base model.",
    ),
    "bayes-tilt-exact": Check(
        theory.tilt_recovers_retain, f"{MORE}test_the_bayes_classifier_recovers_the_retain_distribution"
    ),
    "caching-saves": _model(cost.caching_saves, "tables/runtime"),
    "retain-error-insensitive": Check(
        theory.small_retain_error_hides_a_leak, f"{HERE}test_theorem_3_5_witness_equals_formula_and_densities"
    ),
    "tempered-mass": Check(appendix.when_tempering_is_defined, f"{MORE}test_remark_on_tails"),
    "thm-3.3": Check(partial(theory.bound_holds, bound="Theorem 3.3"), f"{BOUNDS}test_theorem_3_3_retain_untempered"),
    "thm-3.3-sharp": Check(theory.retain_bound_is_attained, f"{HERE}test_theorem_3_3_retain_untempered"),
    "thm-3.3-equal": Check(
        theory.retain_error_is_the_excess_risk,
        "tables/bounds, figures/bounds",
        "A fitted classifier spends most of its excess risk on forget samples, which the Retain Error does not see.",
    ),
    "thm-3.4": Check(partial(theory.bound_holds, bound="Theorem 3.4"), f"{BOUNDS}test_theorem_3_4_forget_untempered"),
    "thm-3.5": Check(
        partial(theory.bound_holds, bound="Theorem 3.5"),
        f"{BOUNDS}test_theorem_3_5_witness_equals_formula_and_densities",
    ),
    "thm-3.5-order": Check(
        theory.lower_bound_is_linear_in_peak_and_risk,
        f"{HERE}test_lower_bound_is_of_order_peak_times_delta_and_below_the_upper_bound",
    ),
    "thm-3.5-rates": Check(theory.rates_of_the_two_bounds, "computed here"),
    "sharpening": Check(
        theory.sharpening_keeps_the_slope,
        f"figures/slopes; {HERE}test_disjoint_supports_have_no_tempering_bias_and_the_slopes_of_the_paper",
    ),
    "sharpening-on-tofu": _model(llm.sharpening_is_no_substitute, "tables/ablations"),
    "thm-3.7": Check(partial(theory.bound_holds, bound="Theorem 3.7"), f"{BOUNDS}test_theorem_3_7_forget_tempered"),
    "thm-3.7-peak": Check(theory.tempered_bound_is_sublinear, "computed here"),
    "thm-3.7-risk": Check(theory.tempered_bound_is_slower_in_risk, "computed here"),
    "thm-3.7-k": Check(theory.integrability_is_mild, f"{HERE}test_theorem_3_7_forget_tempered"),
    "thm-3.7-improves": Check(theory.tempering_improves_the_guarantee, "computed here"),
    "thm-3.7-disjoint": Check(
        theory.bias_vanishes_for_disjoint_supports,
        f"{HERE}test_disjoint_supports_have_no_tempering_bias_and_the_slopes_of_the_paper",
    ),
    "witness-tempered": Check(
        theory.tempering_turns_the_slope,
        f"figures/slopes; {HERE}test_disjoint_supports_have_no_tempering_bias_and_the_slopes_of_the_paper",
    ),
    "bias-grows": Check(theory.bias_grows_with_temperature, f"{HERE}test_theorem_3_7_forget_tempered"),
    "bias-zero-at-1": Check(theory.biases_vanish_untempered, "computed here"),
    "thm-3.8": Check(partial(theory.bound_holds, bound="Theorem 3.8"), f"{BOUNDS}test_theorem_3_8_retain_tempered"),
    "thm-3.8-entropy": Check(
        theory.retain_bias_worsens_as_entropy_falls,
        f"computed here; {MORE}test_units_do_not_matter",
        "Measured in other units the same mixture has any entropy at all and the same tempering bias; the bound itself "
        "first falls and then rises with the entropy.",
    ),
    "fq-best-5": _model(partial(llm.fq_best, split="forget05"), "tables/tofu, tables/tofu_per_seed, figures/tradeoff"),
    "fq-best-10": _model(partial(llm.fq_best, split="forget10"), "tables/tofu, tables/tofu_per_seed, figures/tradeoff"),
    "words-best-5": _model(
        partial(llm.mu_rouge_best_among_competitive, split="forget05"), "tables/tofu, figures/tradeoff"
    ),
    "words-best-10": _model(
        partial(llm.mu_rouge_best_among_competitive, split="forget10"), "tables/tofu, figures/tradeoff"
    ),
    "original-fq": _model(llm.original_does_not_forget, "tables/tofu"),
    "simnpo-mu": _model(llm.simnpo_has_higher_mu, "tables/tofu, tables/tofu_per_seed"),
    "probability-lowered": _model(llm.probability_is_lowered, "tables/tofu"),
    "generation-kept": _model(
        llm.generation_is_kept,
        "tables/tofu, tables/tofu_per_seed",
        "MU-ROUGE of T3 is below that of the original model by more than its standard error.",
    ),
    "mu-exceeds": _model(llm.mu_exceeds_the_original, "tables/tofu"),
    "mu-rouge-faithful": _model(llm.mu_rouge_does_not_exceed_the_original, "tables/tofu"),
    "t3-row": Check(
        lambda tables: llm.reproduces_t3_row(tables, printed_tables()),
        "tables/tofu_vs_paper",
        scale=PAPER_MODEL,
        also_here=False,
    ),
    "count-full": Check(
        partial(cost.counted, "Full Fine-Tuning", cost.FULL_COUNT),
        "computed here from the shapes",
        scale=f"{PAPER_MODEL} (arithmetic)",
        printed=partial(cost.printed_count, "Full Fine-Tuning", cost.FULL_COUNT),
    ),
    "count-uld": Check(
        partial(cost.counted, "ULD", cost.ULD_COUNT),
        "computed here from the shapes",
        scale=f"{PAPER_MODEL} (arithmetic)",
        printed=partial(cost.printed_count, "ULD", cost.ULD_COUNT),
    ),
    "count-t3": Check(
        partial(cost.counted, "T3", cost.T3_COUNT),
        "computed here from the shapes",
        scale=f"{PAPER_MODEL} (arithmetic)",
        printed=partial(cost.printed_count, "T3", cost.T3_COUNT),
    ),
    "share-t3": Check(
        cost.share_by_shapes,
        "computed here from the shapes",
        scale=f"{PAPER_MODEL} (arithmetic)",
        printed=cost.share_is_three_hundredths_of_a_percent,
    ),
    "fastest": _model(cost.fastest, "tables/runtime, figures/runtime"),
    "naive-below-full": _model(cost.naive_below_full, "tables/runtime, figures/runtime"),
    "lemma-a.1": Check(partial(theory.bound_holds, bound="Lemma A.1"), f"{BOUNDS}test_lemma_a_1_classifier_l1"),
    "lemma-a.2": Check(partial(theory.bound_holds, bound="Lemma A.2"), f"{BOUNDS}test_lemma_a_2_partition"),
    "max-entropy": Check(
        appendix.tempering_is_maximum_entropy, f"{MORE}test_tempering_is_the_maximum_entropy_law_in_a_kl_ball"
    ),
    "prop-c.1": Check(partial(theory.bound_holds, bound="Proposition C.1"), f"{BOUNDS}test_proposition_c_1"),
    "prop-c.1-lambda": Check(appendix.tuned_lambda_minimises, f"{HERE}test_proposition_c_1"),
    "rate-n": Check(gauss.excess_risk_rate, "tables/synthetic_cells", scale=GAUSSIAN),
    "imbalance-identity": Check(appendix.imbalance_identity, f"{MORE}test_density_ratio_under_imbalance_is_exact"),
    "imbalance-none": Check(appendix.balanced_correction_does_nothing, "computed here"),
    "imbalance-iff": Check(
        appendix.estimators_agree_only_at_the_optimum,
        "computed here",
        "Optimality is sufficient; where the optimal classifier stays above zero, a whole line of other classifiers "
        "makes the two estimators agree as well.",
    ),
    "bayes-quadratic": Check(theory.bayes_is_logistic, "computed here"),
    "overlap": _figure(
        gauss.overlap_is_negligible,
        "figure2_retain_error_n50",
        "For v_f = 1 the two components lie on top of each other, and their sum over-estimates the partition function.",
    ),
    "e1-sharp-monotone": _figure(
        gauss.sharp_decreases,
        "figure2_forget_error_n50, figures/figure2_every_n",
        "With this many samples the classifier is good enough for the tempering bias to take over before T = 3.",
    ),
    "e1-sharp-bias": _figure(
        gauss.bias_is_negligible_for_sharp,
        "figure2_every_n",
        "The retain density is not small under the spike, and tempering the Bayes classifier removes it there.",
    ),
    "e1-middle-tradeoff": _figure(gauss.middle_falls_then_rises, "figure2_forget_error_n50"),
    "e1-flat-untempered": _figure(gauss.flat_is_best_untempered, "figure2_forget_error_n50"),
    "e1-hotter": _figure(gauss.sharper_wants_hotter, "figure2_forget_error_n50"),
    "e1-retain-rises": _figure(
        gauss.retain_error_increases_with_temperature,
        "figure2_retain_error_n50",
        "Just above T = 1 tempering lowers the Retain Error a little for sharp spikes: it takes away mass that the "
        "classifier left in the spike; coarse steps of T jump over the dip.",
    ),
    "e1-flat-sensitive": _figure(
        gauss.flat_is_most_sensitive,
        "figure2_retain_error_n50",
        "The extra growth for v_f = 1 comes from the over-estimated partition function, not from the Retain Error.",
    ),
    "e1-reduction": _figure(gauss.tempering_reduces_forget_error, "figure2_forget_error_n50"),
    "gauss-integral": Check(appendix.gaussian_integral, f"{HERE}test_gaussian_integral_of_the_retain_discussion"),
    "gauss-increasing": Check(
        appendix.gaussian_integral_increases, f"{HERE}test_gaussian_integral_of_the_retain_discussion"
    ),
    "functional-increasing": Check(
        appendix.mixture_functional_increases,
        f"computed here; {HERE}test_absolute_log_functional_of_one_gaussian",
        "One Gaussian does not speak for the mixture: a very narrow spike has a large |ln p| of its own, so the "
        "functional falls before it rises.",
    ),
    "e2-best-t": _figure(gauss.best_temperature_falls_with_n, "figure3_forget_error"),
    "e2-n400": _figure(
        gauss.many_samples_need_no_tempering,
        "figure3_forget_error",
        "The minimum lies a little above T = 1, between the first two points of a coarse grid.",
    ),
    "e2-retain-rises": _figure(
        gauss.retain_error_increases_for_every_n,
        "figure3_retain_error",
        "With few samples the exact Retain Error dips slightly just above T = 1; the paper's partition function adds "
        "more than the dip.",
    ),
    "e2-gain": _figure(gauss.tempering_helps_small_samples_more, "figure3_forget_error"),
    "e2-risk": Check(gauss.excess_risk_falls_with_n, "tables/synthetic_cells", scale=GAUSSIAN),
    "f4-labels": _figure(gauss.labels_of_the_spike_are_right, "figure4_classifier_n25"),
    "f4-wide": _figure(gauss.dip_is_too_wide, "figure4_classifier_n25"),
    "f5-spike": _figure(gauss.spike_is_suppressed, "figure5_densities_n25"),
    "f5-dip": _figure(gauss.density_dips_beside_the_spike, "figure5_densities_n25"),
    "f5-mismatch": _figure(gauss.mismatch_grows_away_from_the_spike, "figure5_densities_n25"),
    "fq-formula": Check(
        appendix.forget_quality_formula,
        "computed here against scipy's exact test",
        "The formula is the first term of a series, good for small p-values; for the high Forget Quality of a "
        "successful method it is too large and passes 1.",
    ),
    "uld-filter": Check(llm.never_run, "no notebook sweeps this", scale=PAPER_MODEL, also_here=False),
    "seed-means": _model(
        llm.means_of_the_seeds,
        "tables/tofu, tables/tofu_per_seed; notebook 05",
        "A mean in one table is not the mean of the seeds in the other.",
    ),
    "stable-all-5": _model(
        partial(llm.more_stable, split="forget05", among="all"), "tables/tofu_per_seed, figures/per_seed", STEADY
    ),
    "stable-all-10": _model(
        partial(llm.more_stable, split="forget10", among="all"), "tables/tofu_per_seed, figures/per_seed", STEADY
    ),
    "stable-rivals-5": _model(
        partial(llm.more_stable, split="forget05", among="competitive"), "tables/tofu_per_seed, figures/per_seed"
    ),
    "stable-rivals-10": _model(
        partial(llm.more_stable, split="forget10", among="competitive"), "tables/tofu_per_seed, figures/per_seed"
    ),
    "t5-untempered": _model(llm.untempered_fails, "tables/temperature, figures/temperature"),
    "t5-interior-5": _model(
        partial(llm.interior_temperature_is_best, split="forget05"), "tables/temperature, figures/temperature"
    ),
    "t5-interior-10": _model(
        partial(llm.interior_temperature_is_best, split="forget10"), "tables/temperature, figures/temperature"
    ),
    "t5-best": _model(partial(llm.best_temperature_is, expected=2.5), "tables/temperature"),
    "t5-too-hot": _model(llm.too_hot_degrades, "tables/temperature, figures/temperature"),
    "t5-cost": _model(llm.tempering_costs_generation, "tables/temperature"),
    "t5-table1": _model(llm.table_1_row_is_in_table_5, "tables/tofu, tables/temperature; notebook 05"),
}
