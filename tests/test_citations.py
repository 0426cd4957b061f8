"""What code, notebooks and README cite of arXiv:2602.10217 exists there under that number, and is
spelled one way.
"""

import json
import re

from conftest import ROOT

# number, as LaTeX counts | its label in the LaTeX | what it is
LABELS = """
Section 1 |  | Introduction
Section 1.1 |  | Related Work
Section 2 | sec:proposed-method | Proposed Method: T3
Section 2.1 | sec:probabilistic-model | Probabilistic Formulation
Section 2.2 |  | T3 Procedure
Section 2.3 |  | LLM Implementation
Section 3 | sec:fin-samp-theory | Theoretical Guarantees
Section 3.1 | sec:theory-unlearning-metrics | Unlearning Metrics
Section 3.2 |  | Surrogate Analysis Framework
Section 3.3 | sec:theory-guarantees-untempered | Unlearning Guarantees: Untempered Estimator
Section 3.4 | sec:theory-guarantees-tempered | Unlearning Guarantees: The Tempered Estimator
Section 4 | sec:experiments | Experiments
Section 4.1 | sec:unlearning_metrics | Unlearning Metrics
Section 4.2 | sec:tofu-performance | Empirical Results
Section 4.3 |  | Unlearning Efficiency
Section 5 |  | Conclusion
Appendix A |  | Proofs
Appendix A.1 | app:risk-to-retain-untemp-pf | proof of Theorem 3.3
Appendix A.2 | app:risk-to-forget-err-pf | proof of Theorem 3.4
Appendix A.3 |  | proof of Theorem 3.5
Appendix A.4 |  | Supporting Lemmas
Appendix A.5 | app:tempering-general-pf | proof of Theorem 3.7
Appendix A.6 | app:risk-to-retain-err-tempered-pf | proof of Theorem 3.8
Appendix B | app:tempering-as-smoothing-under-KL | Tempering as Smoothing under a KL Constraint
Appendix C | app:log-reg-risk | Logistic Regression Excess Risk
Appendix D | app:class-imbalance | Density Ratio Estimation under Class Imbalance
Appendix E | app:synthetic-data | Synthetic Data Experiments
Appendix F |  | LLM Experiment Details
Appendix F.1 | app:baseline-methods | Baseline Methods
Appendix F.2 | app:tofu-metrics | TOFU Metrics
Appendix F.3 | app:tofu-results-detailed | TOFU Experiments
Appendix F.3.1 |  | Hyperparameter Search
Appendix F.3.2 | app:tofu-results-detailed-table | Detailed Results
Appendix F.3.3 | app:tofu-temp-sensitivity | Temperature Sensitivity
Theorem 3.3 | th:risk-to-retain-err-untempered | Retain Error, untempered
Theorem 3.4 | th:risk-to-forget-err | Forget Error, untempered
Theorem 3.5 | th:forget-err-lb | Forget Error, lower bound
Theorem 3.7 | th:risk-to-forget-err-tempered | Forget Error, tempered
Theorem 3.8 | th:risk-to-retain-err-tempered | Retain Error, tempered
Lemma A.1 | lm:EV-f-minus-fstar-app | ℓ1 error of the classifier
Lemma A.2 | lm:partition-fn-lb-app | partition function from below
Proposition C.1 | prop:expected-finsamp-risk | excess risk of logistic regression
Remark 3.1 |  | discrepancies are intractable for LLMs
Remark 3.2 |  | when p^(1/T) has a finite integral
Remark 3.6 | rem:classifier-sharpening-limitation | sharpening the classifier
Remark C.2 | rem:class-imbalance-Sn | class imbalance
Eq. 1 | eq:population-data-mixture | p = (1 − γ) p_r + γ p_f
Eq. 2 | eq:fstar-is-posterior | f* is the posterior of retain
Eq. 3 | eq:fin-samp-reg-loss | regularised cross-entropy
Eq. 4 | eq:t3-dist-perturbation-gen | p̂ ∝ p^(1/T) f
Eq. 5 | eq:t3-dist-perturbation-llm | the same for the next token
Eq. 6 | eq:retain-error | Retain Error
Eq. 7 | eq:forget-error | Forget Error
Eq. 8 | eq:t3-estimator-def | p̂_T with its partition function
Eq. 9 | eq:hatf-witness-lb-def-app | witness of Theorem 3.5
Eq. 10 | eq:forget-err-lb-unsimp-app | its Forget Error
Eq. 11 | eq:NT-lb-app | partition function from below: p ≥ (1 − γ) p_r
Eq. 12 | eq:NT-lb-exponential-app | by Jensen's inequality
Eq. 13 | eq:NT-lb-log-hatf-app | E_{p_r} ln f̂ from below
Eq. 14 | eq:tempered-forget-err-bias-var-app | Forget Error = tempering bias + estimation error
Eq. 15 | eq:tempered-forget-err-var-decomp-app | estimation error in two integrals
Eq. 16 |  | N_T* from below
Eq. 17 |  | N_T from below
Eq. 18 | eq:prhatT-KL-ub-app | Retain Error, untempered part
Eq. 19 | eq:prhatOne-prhatT-disc-app | cost of tempering in log partition functions
Eq. 20 | log-partition-to-psi-app | their difference is ψ(1/T) − ψ(1)
Eq. 21 | eq:retain-err-temp-cost-app | cost of tempering at τ
Eq. 22 | eq:retain-err-temp-cost-entropy-app | its entropy part
Eq. 23 | eq:retain-err-temp-cost-abslog-app | its |ln p| part
Eq. 24 | eq:pring-max-entropy-def | entropy in a KL ball
Eq. 25 | eq:expected-finsamp-risk-tuned | excess risk at the tuned λ
Eq. 26 | eq:swapped-log-loss-app | minimiser with one sample swapped
Eq. 27 | eq:reg-log-loss-str-cvx-lb-app | strong convexity
Eq. 28 | eq:reg-log-loss-one-samp-diff-app | difference of two objectives
Eq. 29 | eq:reg-log-loss-one-samp-diff-ub-app | by Lipschitz continuity
Eq. 30 | eq:reg-log-param-swap-norm-diff-app | distance of the two minimisers
Eq. 31 | eq:swapped-loss-one-samp-diff-app | loss on the swapped sample
Eq. 32 | eq:shalev-thm13.2 | generalisation gap
Eq. 33 | eq:reg-loss-min-concentration-app | its bound
Eq. 34 | eq:fin-loss-exp-ub-app | training loss
Eq. 35 | eq:log-loss-risk-bd-unsimp | both together
Eq. 36 |  | p̂_T of Appendix E
Figure 1 | fig:arch | architecture
Figure 2 | fig:vary-v_f-app | Experiment 1
Figure 3 | fig:vary-n-app | Experiment 2
Figure 4 | fig:n-25-classifier-app | an example classifier
Figure 5 | fig:n-25-prhatT-app | its densities
Table 1 | tab:tofu-combined | TOFU
Table 2 | tab:tofu-num-params | trainable parameters
Table 3 | tab:tofu-runtimes | runtime
Table 4 | tab:tofu-detailed | TOFU, every seed
Table 5 | tab:temp-ablation | temperature
"""
KNOWN = {line.split(" | ")[0]: line.split(" | ")[1] for line in LABELS.strip().splitlines()}

NUMBER = r"(?:\d+|[A-F]\b)(?:\.\d+)*"
KINDS = "Eqs?\\.|Theorems?|Lemmas?|Propositions?|Remarks?|Tables?|Figures?|Sections?"
KINDS += "|Appendix|Appendices"
CITATION = re.compile(
    rf"\b({KINDS})[ ~\xa0]({NUMBER}[ab]?(?:(?:, and |, | and | or | to |–){NUMBER}[ab]?)*)"
)
ELSEWHERE = re.compile(
    r"\b(?:[Ee]quations?|Eqn\.?|Eqs?|eqs?\.?|App\.|Thm\.?|Fig\.|Tab\.|Sec\.)"
    r" \(?(?:\d|[A-F]\b)|[Aa]ppendix [\"“]"
)
SINGULAR = {"Eqs.": "Eq.", "Appendices": "Appendix"}


def texts() -> dict[str, str]:
    """What a person reads: modules, notebooks (cells as they are shown), README, the claims of the
    paper.
    """
    paths = [*ROOT.glob("t3lib/**/*.py"), *ROOT.glob("notebooks/*.ipynb")]
    paths += [ROOT / "README.md", ROOT / "results" / "README.md"]
    paths += sorted((ROOT / "results" / "pages").glob("*.md"))
    found = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    for name in [name for name in found if name.endswith(".ipynb")]:
        found[name] = "\n".join(
            "".join(cell["source"]) for cell in json.loads(found[name])["cells"]
        )
    return found | {"claims.csv": (ROOT / "results/paper/claims.csv").read_text(encoding="utf-8")}


def cited(text: str) -> set[str]:
    """`Theorems 3.7 and 3.8` -> {"Theorem 3.7", "Theorem 3.8"}; of a range, its ends."""
    found = set()
    for kind, numbers in CITATION.findall(text):
        kind = SINGULAR.get(kind, kind.rstrip("s"))
        found |= {f"{kind} {number}" for number in re.findall(NUMBER, numbers)}
    return found


def test_every_citation_is_a_number_of_the_paper():
    wrong = {
        f"{name}: {citation}"
        for name, text in texts().items()
        for citation in cited(text) - set(KNOWN)
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_one_spelling():
    """`Eq. 5`, `Appendix F.3`: never `equation (5)`, `App. F` or an appendix by its title."""
    wrong = {
        f"{name}: {match[0]}"
        for name, text in texts().items()
        for match in ELSEWHERE.finditer(text)
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_the_scanner_sees_what_is_written():
    text = (
        "Eqs. 3 and 8, Theorems 3.2–3.8; Figure 2b, Appendix F.3; Tables 1, 3 and 4 (Appendices B"
        " to F); Eq. 5."
    )
    assert cited(text) == {
        *(
            "Eq. 3",
            "Eq. 8",
            "Eq. 5",
            "Theorem 3.2",
            "Theorem 3.8",
            "Figure 2",
            "Appendix F.3",
            "Appendix B",
        ),
        *("Appendix F", "Table 1", "Table 3", "Table 4"),
    }
    assert "Theorem 3.2" not in KNOWN, "it is a remark"
    assert (
        ELSEWHERE.search("equation (5)")
        and ELSEWHERE.search('appendix "TOFU Metrics"')
        and not ELSEWHERE.search(text)
    )
