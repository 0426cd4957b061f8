"""Claims as people read them."""

import pandas as pd

from t3lab import names
from t3lab.claims.table import COLUMNS
from t3lab.report import render


def test_claims_are_a_table_with_the_verdict_on_these_runs_beside_the_papers(tmp_path):
    claim = dict.fromkeys(COLUMNS, "") | {"where": "Section 1", "evidence": "tables/tofu"}
    rows = [
        claim | {"id": "a", "claim": "A | one.", "verdict": names.HOLDS, "numbers": "n = 1"},
        claim | {"id": "b", "claim": "B.", "verdict": names.NOT_RUN, "printed": "no"},
        claim | {"id": "b@here", "claim": "B.", "verdict": names.FAILS, "numbers": "n = 2"},
    ]
    rows[1] |= {"scale": "Llama", "numbers": "paper: 3"}
    render.write_table(tmp_path, "claims", pd.DataFrame(rows))
    text = (tmp_path / "claims.md").read_text(encoding="utf-8")
    assert f"2 in all, each with its verdict:\n{names.HOLDS} 1; {names.FAILS} 1.\n" in text
    assert "| Verdict | Claim | Evidence |\n| --- | --- | --- |\n" in text
    assert f"| 1. **{names.HOLDS}** | A \\| one.<br>Section 1. | n = 1<br>(tables/tofu) |" in text
    on_both = f"| 2. **{names.FAILS}** on these runs<br>Llama: {names.NOT_RUN} | B.<br>Section 1. "
    assert on_both + "In the paper's own tables: no. | paper: 3<br>here: n = 2<br>(tables" in text
    assert "@here" not in text


def test_a_leak_beside_the_papers_errors_is_not_the_audits():
    """Two measures have one column name; only the audit's is a ROUGE-L of samples."""
    of_errors = pd.DataFrame({"method": ["T3"], "forget_error": [0.5], "leak": [0.1234]})
    assert "| Leak |" in render.markdown(of_errors) and "0.1234" in render.markdown(of_errors)
    assert "Written best sample" in render.markdown(of_errors.drop(columns="forget_error"))
