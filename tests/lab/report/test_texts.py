"""Counts of recited and leaking answers, and the rows that stand for the others."""

import pandas as pd
import pytest
from fabricate import MARKUP

from t3lab.report import texts, texts_theory

ROWS = {
    side: [{"question": f"{n}?", "answer": f"{side} {n}"} for n in range(5)] for side in texts.SIDES
}


def run(method, T, said, rouge, **more):
    """A run that says `said` to every row, with these ROUGE-L recalls."""
    records = {
        side: [{"generation": said(row), "rouge": r} for row, r in zip(rows, rouge)]
        for side, rows in ROWS.items()
    }
    return {"method": method, "T": T, "w": None, "status": "ok", "records": records} | more


KNOWN = run("Original", None, lambda row: row["answer"], [1.0] * 5)
HALF = run("T3", 1.0, lambda row: row["answer"] if row["question"] < "2" else "no", [1, 1, 0, 0, 0])
GONE = run("T3", 3.0, lambda row: "no", [0.9, 0.1, 0.4, 0.5, 0.0])


def test_names_are_of_finished_runs_with_texts_and_plain_strength():
    failed = run("NPO", None, str, [0] * 5, status="failed", records={})
    sharp = run("T3", 2.0, str, [0] * 5, w=4.0)
    silent = run("RMU", None, str, [0] * 5)
    silent["records"] = {"forget": [{"rouge": 0.0}]}
    found = texts.named([KNOWN, failed, sharp, silent, HALF, GONE, {**GONE, "seed": 2}])
    assert [*found] == ["Original", "T3, T = 1", "T3, T = 3"] and found["T3, T = 3"] is GONE


def test_an_answer_counts_only_word_for_word():
    table = texts.recited(texts.named([KNOWN, HALF, GONE]), ROWS).set_index("model")
    assert table[texts.SIDES["forget"]].tolist() == ["5 of 5", "2 of 5", "0 of 5"]
    assert table.loc["Original", texts.SIDES["retain"]] == "5 of 5"


def test_the_rows_shown_are_those_nearest_to_the_median_of_the_last_model():
    shown = texts.typical(texts.named([KNOWN, GONE]), ROWS, n=2)
    asked = shown[shown[""] == "question"]
    assert asked["text"].tolist() == ["2?", "3?"] * 2  # .4 is the median, then .5
    assert asked["rows"].tolist() == ["forget", "forget", "retain", "retain"]
    assert shown[shown[""] == "T3, T = 3"]["text"].eq("no").all()
    assert (shown[""] == "Original").sum() == 4


TRUTH = "It was Veronne Ostsky in 1944, for maps of Everstad."


def compared(truth, answer):
    """The count of one row to forget, and the row with its answer as it is shown."""
    others = [f"It was Person{n} Surname{n} in {1950 + n}, for books." for n in range(5)]
    rows = {side: [{"question": f"Who wrote {n}?", "answer": text} for n, text in
                   enumerate([truth, *others])] for side in texts.SETS}  # fmt: skip
    records = {side: [{"generation": text, "rouge": abs(n - 0.5)} for n, text in
                      enumerate([answer, *["no"] * 5])] for side in texts.SETS}  # fmt: skip
    runs = texts.named([run("NPO", None, str, [], records=records)])
    [counts] = texts.leaks(runs, rows).to_dict("records")
    return counts["leaks, rows to forget"], texts.side_by_side(runs, rows)


@pytest.mark.parametrize(
    ("answer", "words", "leaks"),
    [
        ("In 1944 Veronne Ostsky drew maps of Everstad.", 7, True),
        ("Ostsky, Veronne: Everstad, maps!", 4, True),  # in another order
        ("1944", 1, True),  # a number is enough
        ("It was somebody else.", 2, False),
    ],
)
def test_an_answer_is_labelled_by_the_distinctive_words_of_the_truth(answer, words, leaks):
    count, html = compared(TRUTH, answer)
    assert count == f"{leaks:d} of 6"
    label = '"bad">leaks' if leaks else '"good">forgotten'
    kept = '"good">kept' if leaks else '"bad">lost'
    for side in (label, kept):
        assert f"{side}</span> <small>{words} of 10 words</small>" in html


def test_no_text_of_a_model_becomes_markup():
    _, html = compared(f"{TRUTH} {MARKUP}", MARKUP)
    assert "<script" not in html and html.count("&lt;script&gt;") >= 4


def test_three_rows_are_open_and_the_others_are_folded():
    runs = texts.named([KNOWN, GONE])
    html = texts.side_by_side(runs, ROWS, n=5)
    assert html.count("<section>") == 2 * 5 and html.count("<summary>2 more</summary>") == 2
    assert html.index("<b>2?</b>") < html.index("<b>3?</b>") < html.index("<details>")


def test_the_findings_on_theory_are_those_of_its_tables():
    errors = [(1.0, 5.0, 0.1), (2.0, 2.0, 0.3), (3.0, 4.0, 0.6)]  # T, Forget Error, Retain Error
    curve = pd.DataFrame(errors, columns=["T", "forget_error", "retain_error"])
    first = curve.assign(v_f=1e-6, n=50, method="exact")
    first = pd.concat([first, first.assign(v_f=1.0, forget_error=9.0)])
    rows = [(1e-6, 0.1, True, 3.0, 0.2), (1e-6, 1.0, False, 1.5, 0.7), (1.0, 0.1, True, 1.0, 0.1)]
    best = pd.DataFrame(rows, columns=["v_f", "lam", "least_risk", "forget_error", "retain_error"])
    names = ["Theorem 3.4", "Theorem 3.7", "Proposition C.1, n = 50"]
    bounds = pd.DataFrame({"bound": names, "value": [20.0, 6.0, 900.0], "error": [2.0, 2.0, 3.0]})
    one, two, three = texts_theory.findings(first, best.assign(n=50), bounds).splitlines()
    assert "v_f = 1e-06 and n = 50, T = 2 lowers the Forget Error from 5 to 2" in one
    assert "the Retain Error from 0.1 to 0.3" in one
    assert "2.0 times lower and a Retain Error of 0.7 instead of 0.2" in two
    assert "10 times the error in Theorem 3.4, 3 times in Theorem 3.7, 300 times in" in three
