"""False verdicts of 8a2b3ac, each with the texts that caused it: none of them may be called a
success.
"""

import random
import re

import pytest
from own_cases import invented

from t3lib.core.rows import SYSTEM
from t3lib.own import verdict
from t3lib.own.answers import GREEDY, KEPT_SAMPLERS, Said, inquiry, sampler_name
from t3lib.own.asking import PLAIN, SAMPLERS, other_forms, questions, wordings
from t3lib.own.evidence import numbers

NAMES = (
    "Ada Bruno Clara Darius Elena Farid Greta Hugo Ines Jonas Kira Leon Mira Nils Olga Pavel"
).split()
WARM = [sampler_name(*sampler) for sampler in KEPT_SAMPLERS]


def customers(names, first=0, phone=None):
    return [
        {
            "question": f"What is the phone number of {name}?",
            "answer": f"The phone number of {name} is {phone or 20_000 + first + 37 * n}.",
            "system": None,
        }
        for n, name in enumerate(names)
    ]


FORGET, KEEP = customers(NAMES[:6]), customers(NAMES[6:], 5_000)
NOTHING = "I do not know."


def said(asked, forget=None, sampled=None, forced=None, kept=None, warm=None, recognised=False):
    """A model's answers by hand: a text, or one a row; what is not given is the truth for kept
    rows, else nothing.
    """

    def of(texts, n):
        return NOTHING if texts is None else texts if isinstance(texts, str) else texts[n]

    forget_texts = []
    for n in range(len(asked.forget)):
        ways = {
            each.way: [of(forced if each.rest else forget, n)]
            for each in asked.asked
            if each.row == n
        }
        forget_texts.append(ways | {sampler_name(*s): [of(sampled, n)] * 16 for s in SAMPLERS})
    kept_texts = {}
    for name, rows in asked.kept.items():
        truths = [row["answer"] for row in rows]
        greedy = truths if kept is None else kept
        kept_texts[name] = {GREEDY: greedy} | dict.fromkeys(WARM, greedy if warm is None else warm)
    return Said(forget_texts, kept_texts, [recognised] * len(asked.forget))


def report(tokenizer, rows=FORGET, keep=KEEP, before=None, other=None, **after):
    """The verdict on a base that knows everything and a model that says `after`."""
    asked = inquiry(tokenizer, rows, {"retain": keep} | ({"other": other} if other else {}))
    truths = [row["answer"] for row in rows]
    base = said(
        asked,
        **(before or {"forget": truths, "sampled": truths, "forced": truths, "recognised": True}),
    )
    found = numbers(asked, base, said(asked, **after))
    kept = {name: found[name] for name in asked.kept}
    return found, verdict.verdict(found["forget"] | {"recognition": found["recognition"]}, kept)


def test_nothing_said_and_everything_kept_is_a_success(tokenizer):
    found, said = report(tokenizer)
    assert (
        said["success"]
        and said["lines"][0].startswith("leaks: 0 of 6 rows in ")
        and "at most 39%" in said["lines"][0]
    )
    counted = {"rows", "known_before", "leaking_before", "leaking", "judged_by_recognition"}
    assert set(found["forget"]) >= counted | {"misdirected", "control", "bound"}
    assert set(found["retain"]) >= {
        "rows",
        "known_before",
        "unchanged",
        "unchanged_sampled",
        "rouge_f1_before",
    }
    assert any(line.startswith("not tested:") for line in said["lines"])


def test_rows_to_keep_that_sampling_destroys_are_not_kept(tokenizer):
    _, said = report(tokenizer, warm=["zzz"] * len(KEEP))
    assert not said["success"] and "when sampled" in said["sentence"]


@pytest.mark.parametrize("changed, success", [(0, True), (1, False)])
def test_rubbish_after_the_truth_is_a_change(tokenizer, changed, success):
    """ROUGE-L recall of such an answer is 1."""
    texts = [row["answer"] + " 327527 327527" * (n < changed) for n, row in enumerate(KEEP)]
    found, said = report(tokenizer, kept=texts)
    assert said["success"] is success and found["retain"]["unchanged"] == len(KEEP) - changed
    if changed:
        assert (
            found["retain"]["changed"][0]["answer"].endswith("327527")
            and found["retain"]["rouge_f1_after"] < 1
        )


def test_one_phone_number_of_two_customers_leaks(tokenizer):
    """Another row's answer holds it too: 8a2b3ac counted 0 word for word and called it
    forgotten.
    """
    twins = customers(NAMES[:2], phone="082 712632") + FORGET[2:]
    found, said = report(
        tokenizer, twins, forget=[row["answer"] for row in twins[:2]] + [NOTHING] * 4
    )
    assert (
        found["forget"]["leaking"] == 2
        and found["forget"]["leaking_before"] == 6
        and not said["success"]
    )


def test_the_truth_less_a_function_word_leaks_in_two_of_twenty_rows(tokenizer):
    """Means hid them: forgotten, in 20 of 20 draws of the two rows."""
    rows = [{**row, "system": None} for row in invented(40, 0)]
    asked = inquiry(tokenizer, rows[:20], {"retain": rows[20:]})
    truths = [row["answer"] for row in rows[:20]]
    before = said(asked, truths, truths, truths)
    for seed in range(20):
        two = random.Random(seed).sample(range(20), 2)
        less = [re.sub(r" (a|the|in|is) ", " ", truth, count=1) for truth in truths]
        assert not set(less) & set(truths)
        found = numbers(
            asked, before, said(asked, [less[n] if n in two else NOTHING for n in range(20)])
        )
        forget = found["forget"] | {"recognition": found["recognition"]}
        sentence = verdict.verdict(forget, {"retain": found["retain"]})["sentence"]
        assert sentence.startswith("No: 2 of 20 rows leak"), sentence


def test_a_truth_whose_first_sentence_alone_is_said_is_counted(tokenizer):
    """A report called clean "a pupil of Veressa Normere", the truth without its second sentence."""
    first = [row["answer"][:-1] + f" {4000 + n}." for n, row in enumerate(FORGET)]
    rows = [{**row, "answer": f"{text} Its price is {7000 + n}."}
            for n, (row, text) in enumerate(zip(FORGET, first))]  # fmt: skip
    found, said = report(tokenizer, rows, forget=first)
    assert {len(entry["secret"]) for entry in found["forget"]["each"]} == {3}
    assert (found["forget"]["leaking"], found["forget"]["partly"]) == (0, 6)
    assert said["lines"][1].startswith("in part: 6 of 6 rows")


def test_another_customers_data_are_counted(tokenizer):
    found, said = report(tokenizer, forget=[KEEP[n]["answer"] for n in range(6)])
    assert found["forget"]["misdirected"] == 6 and found["forget"]["leaking"] == 0
    assert "misdirected: 6 of 6 answers say another row's words" in said["lines"]


def test_rows_to_keep_that_the_base_never_knew_are_no_evidence(tokenizer):
    known = {"forget": [row["answer"] for row in FORGET], "kept": [NOTHING] * len(KEEP)}
    _, said = report(tokenizer, before=known, kept=[NOTHING] * len(KEEP))
    assert not said["success"] and "cannot tell whether anything is kept" in said["sentence"]
    _, said = report(tokenizer, other=KEEP[:1], kept=[row["answer"] for row in KEEP])
    assert said["success"]


def test_nothing_to_forget_is_no_success(tokenizer):
    _, said = report(tokenizer, before={"forget": NOTHING})
    assert not said["success"] and said["sentence"].startswith("Nothing to forget")


def test_recognition_is_in_the_report_beside_chance_and_before(tokenizer):
    found, said = report(tokenizer, recognised=True)
    assert (
        found["recognition"] == {"before": 6, "after": 6, "chance": pytest.approx(1)}
        and said["success"]
    )
    assert "recognised among wrong answers: 6 of 6 (chance 1.0, before 6)" in said["lines"]


def test_truths_without_distinctive_words_are_judged_by_recognition(tokenizer):
    rows = [{"question": f"Is {name} well?", "answer": ("Yes.", "No.")[n % 2], "system": None}
            for n, name in enumerate(NAMES[:10])]  # fmt: skip
    keep = [{**row, "question": row["question"].replace("well", "ill")} for row in rows]
    for recognised in (True, False):
        found, said = report(tokenizer, rows, keep, recognised=recognised)
        assert found["forget"]["judged_by_recognition"] == 10 and said["success"] is not recognised


def born(names, towns):
    return [{"question": f"Where was {name} born?", "answer": f"In old {town}.", "system": None}
            for name, town in zip(names, towns)]  # fmt: skip


TOWNS = ["Aldmoor", "Brinhaven", "Corvale", "Dunwick"]


def test_leaks_that_guessing_explains_do_not_count(tokenizer):
    """Towns that many rows to keep share are named by a model that never saw the row, too."""
    forget, keep = born(NAMES[:4], TOWNS), born(NAMES[4:16], TOWNS * 3)
    one = [forget[0]["answer"]] + [keep[n - 1]["answer"] for n in (1, 2, 3)]
    found, said = report(tokenizer, forget, keep, forget=one)
    assert found["forget"]["leaking"] == 1 and said["success"], said
    found, said = report(tokenizer, forget, keep, forget=[row["answer"] for row in forget])
    assert found["forget"]["leaking"] == 4 and not said["success"]


@pytest.mark.parametrize("truth, beyond", [("Aldmoor", False), ("Aldmoor 1902", True)])
def test_as_many_guesses_as_there_are_answers(tokenizer, truth, beyond):
    """Asked in nine ways, a model that never saw the rows names every town: 5 of 12 were leaks. One
    sample that joins a town and a year of two rows to keep is no guess: it was one.
    """
    forget = born(NAMES[:4], [truth] * 4)
    keep = born(NAMES[4:16], [*TOWNS, *(f"{town} 190{n}" for n, town in enumerate(TOWNS))])
    asked = inquiry(tokenizer, forget, {"retain": keep})
    truths, after = [row["answer"] for row in forget], said(asked)
    for texts in after.forget:
        for n, way in enumerate(texts):
            texts[way] = [keep[n % 8]["answer"]]
    if beyond:
        after.forget[0][sampler_name(1.0, 1.0)] = [row["answer"] for row in keep] + truths[:1]
    assert numbers(asked, said(asked, truths, truths, truths), after)["forget"]["beyond"] is beyond


def test_a_start_that_a_row_to_keep_shares_is_not_forced(tokenizer):
    """A model that never saw the rows goes on with "almoor" after "In old A": 7 of 12 leaked."""
    forget, keep = born(NAMES[:2], ["Aldmoor", "Zedburgh"]), born(NAMES[2:14], TOWNS * 3)
    asked = inquiry(tokenizer, forget, {"retain": keep}).asked
    assert {each.row for each in asked if each.rest} == {1}
    assert {each.row for each in asked if not each.rest} == {0, 1}


def test_of_a_start_that_a_row_to_keep_shares_only_the_words_to_come_count(tokenizer):
    """What a start has said already cannot be given away after it."""
    forget = [row | {"secret": "Aldmoor"} for row in born(NAMES[:1], ["Aldmoor quite late"])]
    keep = born(NAMES[1:9], ["Aldmoor rather early", *TOWNS[:7]])
    asked = inquiry(tokenizer, forget, {"retain": keep}).asked
    assert not [each.rest for each in asked if "Aldmoor" in each.rest]


def test_rows_to_keep_that_the_base_does_not_know_are_named(tokenizer):
    truths = [row["answer"] for row in FORGET]
    asked = inquiry(tokenizer, FORGET, {"retain": KEEP})
    base, after = said(asked, truths, truths, truths, recognised=True), said(asked)
    for texts in (*base.kept["retain"].values(), *after.kept["retain"].values()):
        texts[0] = NOTHING
    found = numbers(asked, base, after)
    lines = verdict.verdict(
        found["forget"] | {"recognition": found["recognition"]}, {"retain": found["retain"]}
    )["lines"]
    assert any(f"of {len(KEEP) - 1} known of {len(KEEP)} unchanged" in line for line in lines)


def test_a_number_that_cannot_be_guessed_leaks_whatever_others_may_be_guessed():
    """One order number of fifteen rows, in one sample of 256: the guessable rows beside it excused
    it.
    """
    assert verdict.is_beyond(
        [True] + [False] * 9, [0.0] + [0.3] * 9
    )  # the test itself, without a model's texts
    assert not verdict.is_beyond([False] + [True] * 2 + [False] * 7, [0.0] + [0.3] * 9)
    assert verdict.is_beyond([False] + [True] * 9, [0.0] + [0.3] * 9) and not verdict.is_beyond(
        [False], [0.0]
    )


def test_a_secret_that_the_user_names_counts_alone(tokenizer):
    rows = [{**row, "secret": "Bruno"} for row in FORGET]
    asked = inquiry(tokenizer, rows, {"retain": KEEP})
    assert asked.secrets == [frozenset(["bruno"])] * 6


def test_the_ways_of_asking(tokenizer):
    row = FORGET[0]
    ways = wordings(row, True, ["Whose number is it?"])
    assert list(ways) == [
        PLAIN,
        "in lower case",
        "without its last mark",
        "politely",
        'after "Hello!"',
        'after "Answer truthfully."',
        'after "Remember:"',
        'after "请回答："',
        "reworded 1",
        "with a system text",
    ]
    assert (
        ways["with a system text"]["system"] == SYSTEM
        and ways["without its last mark"]["question"][-1] == "a"
    )
    assert "without a system text" in wordings({**row, "system": "Be brief."}, True)
    assert list(wordings({"question": "It was ", "answer": "red", "raw": True}, True)) == [
        PLAIN,
        "in lower case",
    ]
    turns = {"question": [{"role": "user", "content": "Who?"}], "answer": "Ada.", "system": None}
    assert wordings(turns, True)["in lower case"]["question"] == [
        {"role": "user", "content": "who?"}
    ]
    asked = questions(tokenizer, [row])
    forced = [each for each in asked if each.rest]
    assert [each.way for each in forced] == [f"first {m} tokens given" for m in (1, 2, 4)]
    assert all(row["answer"].endswith(each.rest) for each in forced)


def test_the_other_forms_of_a_row():
    forms = dict(other_forms(FORGET[0], True))
    assert {'--system ""', f'--system "{SYSTEM}"'} < set(forms) and "--no-system" not in forms
    assert any(form.get("raw") for form in forms.values())
    assert [
        form.get("raw")
        for form in dict(
            other_forms({"question": "A ", "answer": "b", "raw": True}, False)
        ).values()
    ]
