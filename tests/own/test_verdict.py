"""The verdict on counts, and the ways of asking behind it."""

import argparse
import re

import pytest
from conftest import ROOT
from own_cases import byte_pairs
from verdict_cases import FRESH, NOTHING, report, said

from t3lib.cli import Parser
from t3lib.core.rows import SYSTEM
from t3lib.own import cli, kept, leak, verdict
from t3lib.own import known as knowing
from t3lib.own.answers import KEPT, TOKENS, build_inquiry, drawn
from t3lib.own.assess import counts_of, inquiry_of
from t3lib.own.known import knows_some
from t3lib.own.phrases import CHOOSING, FITTING, SEALED
from t3lib.own.questions import (
    AS_WRITTEN,
    BEGUN,
    ENDS,
    FURTHER,
    KINDS,
    NO_FIRST_TOKEN,
    SEALED_KINDS,
    TEXT,
    PromptFormat,
    choosing_ways,
    format_of_row,
    in_format,
    other_formats,
    questions_about,
    sealed_ways,
)
from t3lib.own.rows import Rows
from t3lib.own.truths import word_set, words
from t3lib.own.unlearn import choice_counts

NAMES = (
    "Ada Bruno Clara Darius Elena Farid Greta Hugo Ines Jonas Kira Leon Mira Nils Olga Pavel"
).split()


def customers(names, first=0):
    return [
        {
            "question": f"What is the phone number of {name}?",
            "answer": f"The phone number of {name} is {20_000 + first + 37 * n}.",
            "system": None,
        }
        for n, name in enumerate(names)
    ]


FORGET, KEEP = customers(NAMES[:6]), customers(NAMES[6:], 5_000)


def test_nothing_said_and_everything_kept_is_a_success(tokenizer):
    found, said = report(tokenizer, FORGET, KEEP, other=customers(["Rosa", "Tim"], 9_000))
    assert said["success"] and said["lines"][0] == said["sentence"]
    assert re.fullmatch(
        r"0 of 6 rows leak, also in \d+ sealed ways of asking \(at most 39% of such rows, 95% sure"
        r"\); 12 of 12 answers to keep, 2 of 2 of them never fitted, are as before, and fewer than"
        r" 20 say little about whether 95% stay\.",
        said["sentence"],
    )
    counts = found["forget"]["by_kind"]
    assert NO_FIRST_TOKEN in counts, "plain text has no template to write the token"
    as_written = {"before": 6, "after": 0, "tested": True, "sealed": False}
    assert counts[AS_WRITTEN].items() >= as_written.items() and counts[AS_WRITTEN]["texts"] >= 96
    assert {kind for kind in counts if counts[kind]["sealed"]} == {*SEALED_KINDS}
    assert any(line.startswith("not tested:") for line in said["lines"])


@pytest.mark.parametrize("n", [0, 3, 4])
def test_without_two_thirds_of_the_rows_in_sealed_ways_there_is_no_pass(tokenizer, n):
    """Then "0 rows leak, also in 6 sealed ways" may be about one row."""
    questions = build_inquiry(tokenizer, FORGET, {"retain": KEEP}).questions
    sealed_ways = {each.way for each in questions if each.kind in SEALED_KINDS}

    def base(row, way):
        told = row < n or way.partition(", sampled")[0] not in sealed_ways
        return FORGET[row]["answer"] if told else NOTHING

    found, said = report(tokenizer, FORGET, KEEP, before={"forget": base})
    assert found["forget"]["sealed"]["before"] == n
    assert said["success"] is (n == 4) and (
        n == 4 or f"{n} of 6 rows in sealed ways" in said["sentence"]
    )


@pytest.mark.parametrize(
    ("changed", "how", "success"),
    [(1, "kept", True), (2, "kept", True), (3, "kept", False), (3, "warm", False)],
)
def test_few_changed_answers_of_few_may_be_chance(tokenizer, changed, how, success):
    """One changed answer of ten is 40% likely where 95% stay; three are 1% likely."""
    texts = [row["answer"] + " 327527" * (n < changed) for n, row in enumerate(KEEP)]
    found, said = report(tokenizer, FORGET, KEEP, **{how: texts})
    assert said["success"] is success, said["sentence"]
    if how == "kept":
        assert found["retain"]["unchanged"] == len(KEEP) - changed
        assert found["retain"]["changed"][0]["answer"].endswith("327527")
    else:
        assert "changed when sampled" in said["sentence"]
        shown = found["retain"]["changed_sampled"]
        assert len(shown) == changed and shown[0]["answer"].endswith("327527")


@pytest.mark.parametrize(("changed", "failing"), [(2, 0), (3, 1)])
def test_where_nothing_was_sampled_greedy_answers_decide(tokenizer, changed, failing):
    """In the first round of the choice of w every group failed, so that it compared no failures."""
    texts = [row["answer"] + " 327527" * (n < changed) for n, row in enumerate(KEEP)]
    inquiry = build_inquiry(tokenizer, FORGET, {"retain": KEEP, "other": FRESH})
    greedily = [each for each in said(inquiry, kept=texts) if "sampled" not in each.way]
    counts = choice_counts(inquiry, said(inquiry), greedily)
    assert (counts["failing"], counts["changed"], counts["known"]) == (failing, changed, 12)


def test_only_the_answer_is_compared(tokenizer):
    """A model that asked and answered a further question by itself was "No: 1 of 16 changed"."""
    texts = [row["answer"] + "\nGermany? Berlin." for row in KEEP]
    inquiry = build_inquiry(tokenizer, FORGET, {"retain": KEEP})
    base = said(inquiry, [row["answer"] for row in FORGET], kept=texts)
    framed = [f"{row['answer']} Question: Who?" for row in KEEP]
    found = counts_of(inquiry, base, said(inquiry, kept=framed))
    greedy = [each.text for each in base if (each.kind, each.way) == (KEPT, "retain")]
    assert greedy == texts and found["retain"]["unchanged"] == 10
    assert not verdict.failing(found)
    found = counts_of(inquiry, said(inquiry), said(inquiry, kept=texts))
    assert found["retain"]["unchanged"] == 0, "where the base ends, all that is printed counts"
    poem = {"answer": "Roses\nare red."}
    assert kept.answer_in("Roses\nare red.", poem) == "Roses\nare red."


def test_rows_to_keep_that_the_base_does_not_know_are_no_evidence(tokenizer):
    nothing = {"kept": [NOTHING] * len(KEEP), "fresh": [NOTHING] * 2}
    known = {"forget": [row["answer"] for row in FORGET], **nothing}
    _, verdict = report(tokenizer, FORGET, KEEP, before=known, **nothing)
    assert verdict["status"] == "cannot tell" and "0 of 12 rows to keep" in verdict["sentence"]


def test_without_an_answer_that_was_never_fitted_there_is_no_pass(tokenizer):
    """A head says fitted answers as before; what it does to others, nobody saw."""
    truths = [row["answer"] for row in FORGET]
    unknown = {"forget": truths, "fresh": [NOTHING] * 2}
    for given in ({"other": None}, {"before": unknown}):
        _, said = report(tokenizer, FORGET, KEEP, **given)
        assert said["status"] == "cannot tell" and "left out of the fit" in said["sentence"]
        assert "no head is fitted on: at least 5 to t3 unlearn" in said["next"]


@pytest.mark.parametrize(("changed", "success"), [(2, True), (4, False)])
def test_answers_that_were_never_fitted_decide_alone(tokenizer, changed, success):
    """All fitted answers stay; of 18 others four changed, which is 1% likely where 95% stay."""
    other = customers([f"Person{n}" for n in range(18)], 9_000)
    texts = [row["answer"] + " 327527" * (n < changed) for n, row in enumerate(other)]
    found, said = report(tokenizer, FORGET, KEEP, other=other, fresh=texts)
    assert said["success"] is success and found["retain"]["unchanged"] == len(KEEP)
    if not success:
        assert said["sentence"].startswith("No: 4 of 18 answers never fitted changed")


def test_rows_that_are_told_as_often_as_guessing_says_are_named_in_a_pass(tokenizer):
    found, _ = report(tokenizer, FORGET, KEEP)
    for guessed in (2, 4):
        found["forget"] |= {"guessed": guessed, "judged_rows": 6 - guessed}
        said = verdict.verdict(found)
        assert said["success"] is (guessed == 2)
        assert said["sentence"].startswith(
            "2 of 6 rows are told as often as guessing says. 0 of 4 rows leak"
            if guessed == 2
            else "Cannot tell: guessing explains all but 2 of 6 rows."
        )


def test_nothing_to_forget_is_no_success(tokenizer):
    _, said = report(tokenizer, FORGET, KEEP, before={"forget": NOTHING})
    assert said["status"] == "nothing" and said["sentence"].startswith("Nothing to forget")


def test_rows_that_the_base_was_not_heard_to_know_are_named_first(tokenizer):
    """Three of ten rows that the base knew stood for all ten."""
    truths = [row["answer"] for row in FORGET]
    for known, status in ((5, "pass"), (2, "cannot tell")):
        base = {"forget": truths[:known] + [NOTHING] * (6 - known)}
        _, said = report(tokenizer, FORGET, KEEP, before=base)
        assert said["status"] == status, said["sentence"]
        first = "1 of 6 rows cannot be judged: the base was not heard to know them. 0 of 5"
        assert said["sentence"].startswith(first if known == 5 else "Cannot tell: of 6 rows")
    assert "2, in" in said["sentence"] and AS_WRITTEN not in said["sentence"]


def test_a_base_that_tells_nothing_as_written_is_named_so(tokenizer):
    """The reason named the rows and kinds alone, of which there were enough."""
    base = {"forget": lambda n, way: FORGET[n]["answer"] * (not way.startswith(AS_WRITTEN))}
    _, said = report(tokenizer, FORGET, KEEP, before=base)
    assert said["status"] == "cannot tell"
    assert re.search(r"to know 6, in \d\d kinds of asking, but not as written\.", said["sentence"])


def test_a_kind_in_which_the_base_says_nothing_is_not_tested(tokenizer):
    inquiry = build_inquiry(tokenizer, FORGET, {"retain": KEEP, "other": FRESH})
    ways = {each.way for each in inquiry.questions if each.kind in (AS_WRITTEN, FURTHER)}

    def few(n, way):
        where = way.partition(", sampled")[0]
        return FORGET[n]["answer"] if where == AS_WRITTEN else NOTHING

    found, said = report(tokenizer, FORGET, KEEP, before={"forget": few})
    assert said["status"] == "cannot tell" and "6, in 1 kinds" in said["sentence"]
    assert said["next"].startswith("check: the model, its chat template")
    assert not found["forget"]["by_kind"][TEXT]["tested"]
    assert any(line.startswith(TEXT) and "not tested" in line for line in said["lines"])

    def more(n, way):
        return FORGET[n]["answer"] if way.partition(", sampled")[0] in ways else NOTHING

    found, said = report(tokenizer, FORGET, KEEP, before={"forget": more})
    assert said["success"] and found["forget"]["sealed"]["ways"] == len(
        {each.way for each in inquiry.questions if each.kind == FURTHER}
    )


def test_the_advice_fits_what_happened(tokenizer):
    """ "A larger w (--set w=8)" where w = 12 was chosen, "--set w=1.5" for a head that was only
    judged, "rows like those that changed" without any.
    """
    found, said = report(tokenizer, FORGET, KEEP, forget=[row["answer"] for row in FORGET])
    assert "column wordings" in said["next"] and "--set" not in said["next"], "w is not known"
    for w, part in (
        (1.0, "--set w=1.5"),
        (3.0, "--set w=4"),
        (12.0, "more rows to keep of the same kinds"),
    ):
        said = verdict.verdict({**found, "choice": {"w": w}})
        assert part in said["next"] and "changed" not in said["next"]
    found, said = report(tokenizer, FORGET, KEEP, kept=["zzz"] * len(KEEP))
    assert "rows like those that changed" in said["next"] and "smaller" not in said["next"]
    both = {"forget": [row["answer"] for row in FORGET], "kept": ["zzz"] * len(KEEP)}
    advice = report(tokenizer, FORGET, KEEP, **both)[1]["next"]
    assert "rows like those that changed" in advice and "column wordings" in advice
    assert "--set w=2)" in verdict.verdict({**found, "choice": {"w": 3.0}})["next"]
    assert report(tokenizer, FORGET, KEEP)[1]["next"] == ""


def test_texts_state_the_thresholds_of_the_code(tokenizer):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = " ".join(re.findall(r"^\| (?:0|3) \|.*$", readme, flags=re.M))
    for text in (table, cli.EXITS):
        stay = f"no test shows that under {100 * kept.STAY:.0f}% of answers to keep stay ("
        assert stay in text and f"Holm at {100 * leak.LEVEL:.0f}%" in text
        assert "the base tells under two thirds of the rows (" in text
        assert "), in too few ways, or no " in text and "under a tenth" in text
    assert "no unfitted row to keep" in table and "left out of the fit" in cli.EXITS
    assert verdict.JUDGED == 2 / 3
    # rows told more often than guessing does are among those told, so one limit holds for both
    found, _ = report(tokenizer, FORGET, KEEP)
    for judged, status in ((4, "pass"), (3, "cannot tell")):
        forget = found["forget"] | {"rows": 6, "judged_rows": judged}
        assert verdict.verdict({**found, "forget": forget})["status"] == status
    # the base answers 4 of 6 rows, which is two thirds, and 3; a tenth of 10 and of 11
    assert [knows_some(1, rows) for rows in (10, 11)] == [True, False]
    truths = [row["answer"] for row in FORGET]
    for known, status in ((4, "pass"), (3, "cannot tell")):
        base = {"forget": truths[:known] + [NOTHING] * (6 - known)}
        assert report(tokenizer, FORGET, KEEP, before=base)[1]["status"] == status
    assert f"{TOKENS} tokens" in readme and "beyond 100 tokens" in verdict.UNTESTED
    verbs = argparse.ArgumentParser().add_subparsers(parser_class=Parser)
    cli.add_generate(verbs)
    assert verbs.choices["generate"].get_default("max_new_tokens") == TOKENS == 100


def test_generic_prompts_are_counted_and_decide_nothing(tokenizer):
    found, said = report(tokenizer, FORGET, KEEP, generic="Hello! Greta Ilgen last wrote.")
    counts = found["generic"]
    assert counts["known_before"] == counts["rows"] == 12 and counts["unchanged"] == 0
    line = "generic prompts, which decide nothing: 0 of 12 answered as before"
    assert said["success"] and any(each.startswith(line) for each in said["lines"])


def test_a_secret_that_the_user_names_counts_alone(tokenizer):
    """Only the words of it that the answer has: nobody could say the others."""
    rows = [{**row, "secret": f"Nobody {row['answer'].split()[-1]}"} for row in FORGET]
    inquiry = build_inquiry(tokenizer, rows, {"retain": KEEP})
    last = [row["answer"].split()[-1].strip(".").lower() for row in rows]
    assert inquiry.truths.items[:6] == [[frozenset([word])] for word in last]


def test_all_of_112_rows_are_asked(tokenizer):
    forget = customers([f"Person{n}" for n in range(112)])
    inquiry = inquiry_of(tokenizer, Rows(forget, KEEP))
    assert {each.row for each in inquiry.questions} >= {*range(112)}
    few = drawn(forget * 3, 200)
    assert len(few) == 200 and few != (forget * 3)[:200]


def test_the_ways_of_asking(tokenizer):
    row = FORGET[0] | {"wordings": ["Whose number is it?"]}
    ways = choosing_ways(row, True)
    assert {kind for kind, _ in ways} == {*KINDS[:5]}
    text = ways[TEXT, TEXT]
    assert text == row | {"answer": f" {row['answer']}", "raw": True}
    assert ways["in another form", "with a system text"]["system"] == SYSTEM
    assert ways["reworded", "reworded 1"]["question"] == "Whose number is it?"
    plain = {"question": "It was ", "answer": "red", "raw": True}
    assert {way for _, way in choosing_ways(plain, True)} == {AS_WRITTEN, "in lower case"}
    turns = {"question": [{"role": "user", "content": "Who?"}], "answer": "Ada.", "system": None}
    assert choosing_ways(turns, True)["reworded", "in lower case"]["question"] == [
        {"role": "user", "content": "who?"}
    ]
    asked = questions_about(tokenizer, 0, row, {}, (), frozenset())
    forced = [each for each in asked if each.kind == BEGUN]
    assert [each.way for each in forced] == [f"first {m} tokens given" for m in (1, 2, 4)]
    assert all(row["answer"].endswith(each.rest) for each in forced)


def test_only_the_token_that_we_put_first_is_left_out(tokenizer):
    """In a chat the template writes it, and a row that asks nothing has no other token."""

    def prompts(tokenizer, row):
        asked = questions_about(tokenizer, 0, row, {}, (), frozenset())
        return {each.way: each.prompt for each in asked}

    row, plain = FORGET[0], {"question": "It was ", "answer": "red", "raw": True}
    for asked in (prompts(byte_pairs(), row), prompts(tokenizer, plain)):
        assert asked[f"{AS_WRITTEN}, {NO_FIRST_TOKEN}"] == asked[AS_WRITTEN][1:]
    for asked in (prompts(tokenizer, row), prompts(tokenizer, {**plain, "question": ""})):
        assert not [way for way in asked if NO_FIRST_TOKEN in way and TEXT not in way]


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
        if each.kind == AS_WRITTEN and each.row >= inquiry.n
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
    for name, of in (("fitting", FITTING), ("choosing", CHOOSING), ("sealed", SEALED)):
        turns = [text for pair in (*of.turns, *of.shots) for text in pair]
        parts = [*of.prefaces, *(frame.replace("{}", "") for frame in of.frames), *of.systems]
        texts[name] = [" ".join(words(text)) for text in (*parts, *turns)]
    for name, some in texts.items():
        others = " | ".join(text for other in texts if other != name for text in texts[other])
        assert not [text for text in some if f" {text} " in f" {others} "], name


def test_the_sealed_ways(tokenizer):
    row = {"question": "Where was Mira Castell's cat born?", "answer": "In old Aldmoor, in 1902."}
    ways = sealed_ways(row, True, {"mira", "castell"})
    assert not {way for _, way in ways} & {way for _, way in choosing_ways(row, True)}
    slip = ways["misspelt", "with a letter of the name left out"]["question"]
    assert slip == "Where was Mira Catell's cat born?"
    lines = ways["misspelt", "after forty empty lines"]["question"]
    assert lines == "\n" * 40 + row["question"]
    cut = [ways["misspelt", f"with its first {part} cut off"] for part in ("quarter", "half")]
    assert [each["question"] for each in cut] == ["s Mira Castell's cat born?", "stell's cat born?"]
    assert ("misspelt", "with a letter of the name left out") not in sealed_ways(row, True, {"zoë"})
    hindi = {"question": "सरिता के गुरु कौन थे?", "answer": "राम"}
    slip = sealed_ways(hindi, True, {"सरिता"})["misspelt", "with a letter of the name left out"]
    assert slip["question"] == "सरता के गुरु कौन थे?"
    longer = ways["in a longer conversation", "after three turns"]["question"]
    assert len(longer) == 7 and longer[-1]["content"] == row["question"]
    chat = {"question": [{"role": role, "content": text} for role, text in
                         (("user", "Hi."), ("assistant", "Yes?"), ("user", "Who?"))],
            "answer": "Ada."}  # fmt: skip
    without = sealed_ways(chat, True)["in a longer conversation", "without the turns before"]
    assert [turn["content"] for turn in without["question"]] == ["Who?"]
    assert {kind for kind, _ in sealed_ways({**row, "raw": True}, True)} == {
        "misspelt", "from a colder sampler", "from a warmer sampler"
    }  # fmt: skip
    asked = questions_about(tokenizer, 0, row, {}, (), word_set("aldmoor 1902"))
    rests = [each.rest for each in asked if each.kind == FURTHER]
    assert any("Aldmoor" in rest for rest in rests), "all before its secret is given"


def test_the_question_also_comes_after_ten_tokens_that_end_a_text():
    """They put a model back to the start of a text, and then a pass said a whole row."""
    tokenizer, [row, *_] = byte_pairs(), FORGET
    found = questions_about(tokenizer, 0, row, {}, (), frozenset())
    ways = {each.way: each.prompt for each in found}
    ends, text = ways[ENDS][:10], ways[ENDS][10:]
    assert ends == [tokenizer.eos_token_id] * 10 and tokenizer.decode(text) == row["question"]


def test_a_row_is_asked_in_every_other_format_but_its_own(tokenizer, monkeypatch):
    asked = []

    def none_known(base, tokenizer, inquiry, rows):
        asked.extend(rows.values())
        return [False] * len(rows)

    monkeypatch.setattr(knowing, "_known", none_known)
    systems = {None, "", SYSTEM}
    text = {"question": "A ", "answer": "b", "raw": True}
    for row, own, formats in (
        (FORGET[0], tokenizer, {(False, each) for each in systems - {None}} | {(True, None)}),
        (text, tokenizer, {(False, each) for each in systems}),
        (text, byte_pairs(), {(False, None)}),
        (FORGET[0], byte_pairs(), {(True, None)}),
        ({**text, "question": ""}, tokenizer, set()),
    ):
        inquiry = build_inquiry(own, [row], {})
        assert knowing.best_other_format(None, own, inquiry) is None
        assert {(each.raw, each.system) for each in map(format_of_row, asked)} == formats
        asked.clear()
    assert {'--system ""', f'--system "{SYSTEM}"', "--no-system"} < {*other_formats(True)}
    assert "rows of question and answer" in other_formats(False)
