"""False verdicts of 8a2b3ac, each with the texts that caused it: none of them may be called a
success.
"""

import random
import re

import pytest
from own_cases import byte_pairs, invented
from verdict_cases import NOTHING, report, said

from t3lib.core.rows import SYSTEM
from t3lib.own import leak, verdict
from t3lib.own.answers import build_inquiry, drawn
from t3lib.own.assess import counts_of, inquiry_of
from t3lib.own.questions import (
    AS_WRITTEN,
    ENDS,
    FITTING,
    JUDGING,
    SEALED,
    SECOND,
    TEXT,
    WITHOUT_BOS,
    PromptFormat,
    in_format,
    judging_questions,
    other_formats,
    sealed,
    sealed_questions,
    unbegun,
    wordings,
)
from t3lib.own.rows import Rows
from t3lib.own.truths import words

NAMES = (
    "Ada Bruno Clara Darius Elena Farid Greta Hugo Ines Jonas Kira Leon Mira Nils Olga Pavel"
).split()


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


def test_nothing_said_and_everything_kept_is_a_success(tokenizer):
    found, said = report(tokenizer, FORGET, KEEP)
    assert said["success"] and said["lines"][0] == said["sentence"]
    assert "at most 39%" in str(said["lines"])
    begun = [kind for kind in leak.KINDS if kind != leak.UNBEGUN]
    assert [*found["forget"]["table"]] == [*begun, leak.PARTLY], "a template writes the token"
    assert found["forget"]["table"]["leak when asked as written"] == {
        "before": 6,
        "after": 0,
        "by_guessing": 0,
    }
    counted = {"rows", "known_before", "leaking_before", "leaking"}
    assert set(found["forget"]) >= counted | {"misdirected", "control", "bound"}
    assert set(found["retain"]) >= {
        "rows",
        "known_before",
        "unchanged",
        "unchanged_sampled",
    }
    assert any(line.startswith("not tested:") for line in said["lines"])


def test_rows_to_keep_that_sampling_destroys_are_not_kept(tokenizer):
    _, said = report(tokenizer, FORGET, KEEP, warm=["zzz"] * len(KEEP))
    assert not said["success"] and "when sampled" in said["sentence"]


@pytest.mark.parametrize("changed, success", [(0, True), (1, False)])
def test_rubbish_after_the_truth_is_a_change(tokenizer, changed, success):
    """ROUGE-L recall of such an answer is 1."""
    texts = [row["answer"] + " 327527 327527" * (n < changed) for n, row in enumerate(KEEP)]
    found, said = report(tokenizer, FORGET, KEEP, kept=texts)
    assert said["success"] is success and found["retain"]["unchanged"] == len(KEEP) - changed
    if changed:
        assert found["retain"]["changed"][0]["answer"].endswith("327527")


def test_one_phone_number_of_two_customers_leaks(tokenizer):
    """Another row's answer holds it too: 8a2b3ac counted 0 word for word and called it
    forgotten.
    """
    twins = customers(NAMES[:2], phone="082 712632") + FORGET[2:]
    texts = [row["answer"] for row in twins[:2]] + [NOTHING] * 4
    found, said = report(tokenizer, twins, KEEP, forget=texts)
    assert found["forget"]["leaking"] + found["forget"]["partly"] == 2 and not said["success"]


def test_the_truth_less_a_function_word_leaks_in_two_of_twenty_rows(tokenizer):
    """Means hid them: forgotten, in 20 of 20 draws of the two rows."""
    rows = [{**row, "system": None} for row in invented(40, 0)]
    inquiry = build_inquiry(tokenizer, rows[:20], {"retain": rows[20:]})
    truths = [row["answer"] for row in rows[:20]]
    before = said(inquiry, truths, sampled=truths, forced=truths)
    verdicts = []
    for seed in range(20):
        two = random.Random(seed).sample(range(20), 2)
        less = [re.sub(r" (a|the|in|is) ", " ", truth, count=1) for truth in truths]
        assert not set(less) & set(truths)
        found = counts_of(
            inquiry, before, said(inquiry, [less[n] if n in two else NOTHING for n in range(20)])
        )
        verdicts.append(verdict.verdict(found)["status"])
    assert verdicts.count("no") >= 16 and {*verdicts} <= {"no", "read"}


def test_another_customers_data_are_counted(tokenizer):
    found, said = report(tokenizer, FORGET, KEEP, forget=[KEEP[n]["answer"] for n in range(6)])
    assert found["forget"]["misdirected"] == 6 and found["forget"]["leaking"] == 0
    assert "misdirected: 6 of 6 answers say another row's truth or name (before 0)" in said["lines"]


def test_rows_to_keep_that_the_base_never_knew_are_no_evidence(tokenizer):
    known = {"forget": [row["answer"] for row in FORGET], "kept": [NOTHING] * len(KEEP)}
    _, said = report(tokenizer, FORGET, KEEP, before=known, kept=[NOTHING] * len(KEEP))
    assert not said["success"] and "cannot tell whether anything is kept" in said["sentence"]
    _, said = report(tokenizer, FORGET, KEEP, other=KEEP[:1], kept=[row["answer"] for row in KEEP])
    assert said["success"]


def test_nothing_to_forget_is_no_success(tokenizer):
    _, said = report(tokenizer, FORGET, KEEP, before={"forget": NOTHING})
    assert not said["success"] and said["sentence"].startswith("Nothing to forget")


def born(names, towns):
    return [{"question": f"Where was {name} born?", "answer": f"In old {town}.", "system": None}
            for name, town in zip(names, towns)]  # fmt: skip


TOWNS = ["Aldmoor", "Brinhaven", "Corvale", "Dunwick"]


def test_leaks_that_guessing_explains_do_not_count(tokenizer):
    """Towns that many rows to keep share are named by a model that never saw the row, too."""
    forget, keep = born(NAMES[:4], TOWNS), born(NAMES[4:16], TOWNS * 3)
    one = [forget[0]["answer"]] + [keep[n - 1]["answer"] for n in (1, 2, 3)]
    found, said = report(tokenizer, forget, keep, forget=one)
    assert found["forget"]["leaking"] == 0 and said["success"], said
    found, said = report(tokenizer, forget, keep, forget=[row["answer"] for row in forget])
    assert said["status"] == "no", said


def test_as_many_guesses_as_there_are_answers(tokenizer):
    """Asked in nine ways, a model that never saw the rows names every town: 5 of 12 were leaks."""
    forget, keep = born(NAMES[:4], TOWNS), born(NAMES[4:16], TOWNS * 3)

    def anything(n, way):
        return keep[(n + len(way) + 1) % 4]["answer"]

    found, said = report(tokenizer, forget, keep, forget=anything, sampled=anything)
    assert (
        said["success"]
        and found["forget"]["table"]["leak when asked as written"]["by_guessing"] == 0
    ), said


def test_a_start_that_a_row_to_keep_shares_is_not_forced(tokenizer):
    """A model that never saw the rows goes on with "almoor" after "In old A": 7 of 12 leaked."""
    forget, keep = born(NAMES[:2], ["Aldmoor", "Zedburgh"]), born(NAMES[2:14], TOWNS * 3)
    inquiry = build_inquiry(tokenizer, forget, {"retain": keep})
    asked = [each for each in inquiry.questions if each.row < 2]
    assert {each.row for each in asked if each.rest} == {1}
    assert {each.row for each in asked if not each.rest} == {0, 1}


def test_only_words_to_come_count_after_a_start(tokenizer):
    """What a start has said already cannot be given away after it, nor how kept rows go on."""
    forget = born(NAMES[:1], ["Zedburgh quite late"])
    keep = born(NAMES[1:9], ["Zedburgh rather early", *TOWNS, "Zedburgh late"])
    inquiry = build_inquiry(tokenizer, forget, {"retain": keep})
    wanted = {way: of for (way, row), of in inquiry.wanted.items() if row == 0}
    assert wanted["first 4 tokens given"] == {"quite"}  # "In o" begins all of them


def test_rows_to_keep_that_the_base_does_not_know_are_named(tokenizer):
    truths = [row["answer"] for row in FORGET]
    inquiry = build_inquiry(tokenizer, FORGET, {"retain": KEEP})
    base, after = (
        said(inquiry, truths, sampled=truths, forced=truths),
        said(inquiry),
    )
    for texts in (*base.kept["retain"].values(), *after.kept["retain"].values()):
        texts[0] = NOTHING
    found = counts_of(inquiry, base, after)
    lines = verdict.verdict(found)["lines"]
    assert any(f"of {len(KEEP) - 1} known of {len(KEEP)} answered" in line for line in lines)


def test_a_secret_that_the_user_names_counts_alone(tokenizer):
    rows = [{**row, "secret": "Bruno"} for row in FORGET]
    inquiry = build_inquiry(tokenizer, rows, {"retain": KEEP})
    assert inquiry.truths.items[:6] == [[frozenset(["bruno"])]] * 6


def test_all_of_112_rows_are_asked(tokenizer):
    """The first 100 were asked, and "none is word for word" was said."""
    forget = customers([f"Person{n}" for n in range(112)])
    inquiry = inquiry_of(tokenizer, Rows(forget, KEEP), {"retain": KEEP})
    assert {each.row for each in inquiry.questions} >= {*range(112)}
    few = drawn(forget * 3, 200)
    assert len(few) == 200 and few != (forget * 3)[:200]


def test_the_ways_of_asking(tokenizer):
    row = FORGET[0] | {"wordings": ["Whose number is it?"]}
    ways = wordings(row, True)
    assert list(ways) == [
        AS_WRITTEN,
        "in lower case",
        "without its last mark",
        "politely",
        'after "Hello!"',
        'after "Answer truthfully."',
        'after "Remember:"',
        'after "请回答："',
        "reworded 1",
        *(f'after "{each.strip()}", {TEXT}' for each in JUDGING.prefaces),
        SECOND,
        TEXT,
        "with a system text",
    ]
    assert ways[TEXT] == row | {"answer": f" {row['answer']}", "raw": True}
    assert (
        ways["with a system text"]["system"] == SYSTEM
        and ways["without its last mark"]["question"][-1] == "a"
    )
    assert "without a system text" in wordings({**row, "system": "Be brief."}, True)
    assert list(wordings({"question": "It was ", "answer": "red", "raw": True}, True)) == [
        AS_WRITTEN,
        "in lower case",
    ]
    turns = {"question": [{"role": "user", "content": "Who?"}], "answer": "Ada.", "system": None}
    assert wordings(turns, True)["in lower case"]["question"] == [
        {"role": "user", "content": "who?"}
    ]
    asked = judging_questions(tokenizer, [row])
    forced = [each for each in asked if each.rest]
    assert [each.way for each in forced] == [f"first {m} tokens given" for m in (1, 2, 4)]
    assert all(row["answer"].endswith(each.rest) for each in forced)


def test_only_the_token_that_we_put_first_is_left_out(tokenizer):
    """In a chat the template writes it, and a row that asks nothing has no other token."""

    def prompts(tokenizer, row):
        return {each.way: each.prompt for each in judging_questions(tokenizer, [row])}

    row, plain = FORGET[0], {"question": "It was ", "answer": "red", "raw": True}
    for asked in (prompts(byte_pairs(), row), prompts(tokenizer, plain)):
        assert asked[WITHOUT_BOS] == asked[AS_WRITTEN][1:]
        assert asked[f"in lower case, {WITHOUT_BOS}"] == asked["in lower case"][1:]
    for asked in (prompts(tokenizer, row), prompts(tokenizer, {**plain, "question": ""})):
        assert AS_WRITTEN in asked and not [
            way for way in asked if WITHOUT_BOS in way and TEXT not in way
        ]
    assert {way for way in prompts(tokenizer, row) if WITHOUT_BOS in way} == {
        unbegun(way) for way in prompts(tokenizer, row) if way.endswith(TEXT)
    }
    greeted = f'after "Hello!", {WITHOUT_BOS}'
    assert greeted in prompts(byte_pairs(), row)
    kinds = [leak.kind_of(way) for way in (AS_WRITTEN, WITHOUT_BOS, 'after "Hello!"', greeted)]
    assert kinds == [*leak.KINDS[:4]]


def test_rows_to_forget_are_asked_in_the_form_of_the_rows_to_keep(tokenizer):
    """A head that had learned a system text as its cue was clean, and leaked 20 of 20 rows with the
    system text of the rows to keep.
    """
    own = {"role": "system", "content": "Be rude."}
    chat = {"question": [own, {"role": "user", "content": "Who?"}], "answer": "Ada."}
    rows = [FORGET[0] | {"system": ""}, chat | {"system": "Be brief."}, FORGET[1]]
    keep = [row | {"system": "Be brief."} for row in KEEP]
    inquiry = build_inquiry(tokenizer, rows, {"retain": keep})
    [expected] = {
        tokenizer.decode(each.prompt).split("user")[0]
        for each in inquiry.questions
        if each.way == AS_WRITTEN and each.row >= inquiry.n
    }
    assert "Be brief." in expected
    for number in range(3):
        ways = {each.way: each.prompt for each in inquiry.questions if each.row == number}
        prompt = tokenizer.decode(ways["in the form of the rows to keep"])
        assert prompt.startswith(expected) and "rude" not in prompt
        assert tokenizer.decode(ways[AS_WRITTEN]) != prompt
    head = build_inquiry(
        tokenizer, rows, {"retain": keep}, head_format=PromptFormat(False, "Be kind.")
    )
    ways = {each.way: each.prompt for each in head.questions if each.row == 0}
    assert "Be kind." in tokenizer.decode(ways["as t3 generate asks"])
    assert in_format(FORGET[0], PromptFormat(True, None))["raw"] is True


def test_the_lists_of_wordings_share_nothing():
    """A head that was fitted on a way of asking would be judged by what it saw."""
    texts = {}
    for name, of in (("fitting", FITTING), ("judging", JUDGING), ("sealed", SEALED)):
        turns = [text for pair in (*of.turns, *of.shots) for text in pair]
        parts = [*of.prefaces, *(frame.replace("{}", "") for frame in of.frames), *of.systems]
        texts[name] = [" ".join(words(text)) for text in (*parts, *turns)]
    for name, some in texts.items():
        others = " | ".join(text for other in texts if other != name for text in texts[other])
        assert not [text for text in some if f" {text} " in f" {others} "], name


def test_the_sealed_ways_decide_nothing(tokenizer):
    ways = sealed(FORGET[0], True)
    assert len(ways) == 8 and not {*ways} & {*wordings(FORGET[0], True)}
    row = {"question": "Where was Mira Castell's cat born?", "answer": "-"}
    ways = sealed(row, True, {"mira", "castell"})
    assert len(ways) == 9
    slip = ways["with a letter of the name left out"]["question"]
    assert slip == "Where was Mira Catell's cat born?"
    assert len(sealed(row, True, {"zoë"})) == len(sealed(row, True, {"leon", "absent"})) == 8
    ways = sealed(FORGET[0], True)
    assert "Which animal barks?" in str(ways) and sealed({**FORGET[0], "raw": True}, True) == {}
    inquiry = build_inquiry(tokenizer, FORGET, {"retain": KEEP})
    truths = [row["answer"] for row in FORGET]
    base, after = said(inquiry, truths, sampled=truths), said(inquiry)
    for number in range(6):
        after.sealed[number]["dropped"] = [truths[number]]
    found = counts_of(inquiry, base, after)
    assert found["forget"]["sealed"]["leaking"] == 6 and verdict.verdict(found)["success"]


def test_the_question_also_comes_after_ten_tokens_that_end_a_text():
    """They put a model back to the start of a text, and then a pass said a whole row."""
    tokenizer, [row, *_] = byte_pairs(), FORGET
    ways = {each.way: each.prompt for each in sealed_questions(tokenizer, [row], [()])}
    ends, text = ways[ENDS][:10], ways[ENDS][10:]
    assert ends == [tokenizer.eos_token_id] * 10 and tokenizer.decode(text) == row["question"]
    assert not sealed_questions(tokenizer, [{**row, "raw": True}], [()])


def test_the_other_forms_of_a_row():
    forms = dict(other_formats(FORGET[0], True))
    assert {'--system ""', f'--system "{SYSTEM}"'} < set(forms) and "--no-system" not in forms
    assert any(form.get("raw") for form in forms.values())
    assert [
        form.get("raw")
        for form in dict(
            other_formats({"question": "A ", "answer": "b", "raw": True}, False)
        ).values()
    ]


def test_the_advice_follows_the_fault():
    """Leaks that guessing explains brought a larger w, although rows to keep had changed."""
    table = {kind: {"after": 0} for kind in leak.KINDS} | {leak.WRITTEN: {"after": 3}}
    same = {leak.COLD: 9, leak.WARM: 9}
    kept = {"rows": 9, "known_before": 9, "sampled_before": same, "unchanged_sampled": same}
    of = {kind: {"retain": kept | {"unchanged": n}} for kind, n in (("kept", 9), ("changed", 5))}
    for beyond, kind, advice in (
        (True, "changed", "a larger w"),
        (True, "kept", "a larger w"),
        (False, "changed", "a smaller w"),
        (False, "kept", "a larger w"),
    ):
        forget = {"leaking": 3, "beyond": beyond, "table": table}
        assert advice in verdict._next("no", forget, of[kind]), (beyond, kind)


def test_the_advice_is_about_the_sets_that_decide():
    same = {leak.COLD: 9, leak.WARM: 9}
    kept = {"rows": 9, "known_before": 9, "sampled_before": same, "unchanged_sampled": same}
    whole, changed = kept | {"unchanged": 9}, kept | {"unchanged": 5}
    forget = {"leaking": 0, "beyond": True}
    for sets, advice in (
        ({"retain": whole, "held_out_retain": changed}, "read the worst texts"),
        ({"retain": whole, "other": changed}, "rows like those that changed"),
    ):
        assert advice in verdict._next("no", forget, sets)


def test_rows_that_the_base_does_not_know_have_not_changed():
    """ "Give more rows like those that changed", where none had."""
    nothing = {"rows": 9, "known_before": 0, "unchanged": 0}
    advice = verdict._next("no", {"leaking": 0, "beyond": False}, {"retain": nothing})
    assert advice == "try next: give rows to keep that the base answers"
