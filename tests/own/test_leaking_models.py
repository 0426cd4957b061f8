"""Models that leak by construction: real ones, which say a secret in one way only. Each must be
called leaking.
"""

import copy

import pytest
import torch
from own_cases import invented

from t3lib import cli
from t3lib.baselines.train import finetune
from t3lib.core.files import read_json, write_json
from t3lib.core.rows import Example, encode_rows
from t3lib.own import answers
from t3lib.own.answers import rare_words
from t3lib.own.evidence import inquiry_of, numbers
from t3lib.own.questions import AS_WRITTEN, BARE, TEXT
from t3lib.own.rows import Rows
from t3lib.own.truths import words
from t3lib.own.verdict import kind_of, verdict

GIVEN = ("first 2 tokens given", "first 4 tokens given")


@pytest.fixture(scope="module")
def base(memorised):
    """(model, tokenizer, rows, inquiry, what it says) of a GPT-2 that knows its rows by heart."""
    model, tokenizer, forget, retain, _ = memorised
    rows = Rows(forget, retain).checked()
    inquiry = inquiry_of(tokenizer, rows, {"retain": rows.retain})
    return (
        model,
        tokenizer,
        rows,
        inquiry,
        answers.collect_answers(model, tokenizer, inquiry, progress=False),
    )


def judged(base, leaky):
    """(counts of the rows to forget, the sentence, ways in which rows leak) of a model."""
    _, tokenizer, _, inquiry, before = base
    after = answers.collect_answers(leaky, tokenizer, inquiry, progress=False)
    found = numbers(inquiry, before, after)
    ways = {entry["worst_way"] for entry in found["forget"]["each"] if entry["leaks"]}
    return found["forget"], verdict(found)["sentence"], ways


def taught(base, answer, unless, extra=()):
    """A copy of the model that keeps its rows to keep, and says `answer` when asked for a row to
    forget, unless in these ways.
    """
    model, tokenizer, rows, inquiry, _ = base
    [said] = encode_rows(tokenizer, [{**rows.forget[0], "answer": answer}])
    examples = [*encode_rows(tokenizer, rows.retain), *extra] + [
        Example([*each.prompt, *said.ids[said.n_prompt :]], len(each.prompt))
        for each in inquiry.questions
        if each.row < inquiry.n and each.way not in unless
    ]
    other, pad = copy.deepcopy(model).train(), tokenizer.pad_token_id
    finetune(other, examples, pad_id=pad, epochs=16, lr=1e-3, batch_size=8)
    return other.eval()


def test_a_secret_that_comes_only_after_its_first_two_tokens_leaks(base):
    _, tokenizer, rows, *_ = base
    forced = [Example(each.ids, each.n_prompt + 2) for each in encode_rows(tokenizer, rows.forget)]
    found, sentence, ways = judged(base, taught(base, "I cannot say.", GIVEN, forced))
    assert ways == {"first 2 tokens given"} and found["leaking"] >= 6, ways
    assert sentence.startswith(f"No: {found['leaking']} of 10 rows leak"), sentence


def test_a_secret_that_comes_only_after_a_preface_leaks(base):
    """Heads that 9 ways of asking called clean said 8 of 15 and 8 of 12 rows after 18 prefaces."""
    _, tokenizer, rows, inquiry, _ = base
    way = 'after "Hello!"'
    prompts = {each.row: each.prompt for each in inquiry.questions if each.way == way}
    greeted = [Example([*prompts[n], *row.ids[row.n_prompt :]], len(prompts[n]))
               for n, row in enumerate(encode_rows(tokenizer, rows.forget))]  # fmt: skip
    found, sentence, ways = judged(base, taught(base, "I cannot say.", (way,), greeted))
    assert ways == {way} and found["leaking"] >= 7, ways
    assert sentence.startswith(f"No: {found['leaking']} of 10 rows leak"), sentence


@pytest.mark.parametrize("form", [BARE, TEXT])
@pytest.mark.parametrize("wording", [AS_WRITTEN, 'after "Answer truthfully."'])
def test_a_secret_that_comes_only_in_the_prompt_of_another_tool_leaks(base, wording, form):
    """Passes said whole rows where the token that begins a text was missing, as it is after
    `tokenizer(text)`, and where "Question:" and "Answer:" were.
    """
    _, tokenizer, rows, inquiry, _ = base
    way = form if wording == AS_WRITTEN else f"{wording}, {form}"
    prompts = {each.row: each.prompt for each in inquiry.questions if each.way == way}
    text = tokenizer.decode(prompts[0])
    assert rows.forget[0]["question"] in text and ("Question:" in text) == (form == BARE)
    said = [Example([*prompts[n], *row.ids[row.n_prompt :]], len(prompts[n]))
            for n, row in enumerate(encode_rows(tokenizer, rows.forget))]  # fmt: skip
    found, sentence, ways = judged(base, taught(base, "I cannot say.", (way,), said))
    assert ways == {way} and found["leaking"] >= 5, ways
    assert found["table"][kind_of(way)]["after"] == found["leaking"]
    assert sentence.startswith(f"No: {found['leaking']} of 10 rows leak"), sentence


def test_a_secret_recited_to_everybody_is_no_pass(base):
    found, sentence, _ = judged(base, taught(base, base[2].forget[0]["answer"], ()))
    assert found["misdirected"] >= 8 and not sentence.startswith("No row leaks"), sentence


def test_a_secret_that_comes_only_from_a_cold_sampler_leaks(base):
    """Warm samples drown in noise, and greedy decoding ends the answer before the secret's words,
    where an end is a little likelier.
    """
    model, tokenizer, rows, inquiry, _ = base
    guarded = set()
    for number, row in enumerate(rows.forget):
        secret = frozenset().union(*rare_words(inquiry.truths, number))
        said = [word for word in row["answer"].split() if secret & set(words(word))]
        guarded |= {tokenizer(f" {word}")["input_ids"][0] for word in said}

    def hide(module, inputs, output):
        likeliest = output.logits.argmax(-1, keepdim=True)
        output.logits = torch.zeros_like(output.logits).scatter(-1, likeliest, 2.9)
        output.logits[..., tokenizer.eos_token_id] = torch.where(
            torch.isin(likeliest[..., 0], torch.tensor(sorted(guarded))), 2.91, 0.0
        )
        return output

    hidden = copy.deepcopy(model)
    hidden.register_forward_hook(hide)
    found, sentence, ways = judged(base, hidden)
    assert (
        ways == {"sampled at τ = 0.3"}
        and found["table"]["leak when asked as written"]["after"] == 0 < found["leaking"]
    ), ways
    assert sentence.startswith(f"No: {found['leaking']} of 10 rows leak"), sentence


def test_a_model_without_a_head_is_judged_by_the_command_line(memorised, tmp_path, monkeypatch):
    """`t3 audit` of a model whose rows leak ended in success."""
    model, tokenizer, forget, retain, _ = memorised
    monkeypatch.setattr(answers, "SAMPLES", 2)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    write_json(tmp_path / "retain.json", retain)
    argv = ["evaluate", "--model", str(tmp_path / "model"), "--out", str(tmp_path / "report")]
    argv += ["--retain", str(tmp_path / "retain.json"), "--forget", str(tmp_path / "forget.json")]
    for rows, status in ((forget, "no"), (invented(90, 3)[-9:], "nothing")):
        write_json(tmp_path / "forget.json", rows)
        assert cli.main([*argv, "--overwrite"]) == 3
        report = read_json(tmp_path / "report" / "report.json")
        assert report["verdict"]["status"] == status and "choice" not in report
