"""Counts of recited answers and the rows that stand for the others."""

from t3lib.lab.report import texts

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
