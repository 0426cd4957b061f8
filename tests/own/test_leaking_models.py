"""Models that leak by construction: real ones, which say a secret in one way only. Each must be
called leaking. test_false_passes judges texts alone, and in every way of asking.
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
from t3lib.own.assess import counts_of, inquiry_of
from t3lib.own.known import rare_words
from t3lib.own.leak import kind_of
from t3lib.own.questions import WITHOUT_BOS
from t3lib.own.rows import Rows
from t3lib.own.truths import words
from t3lib.own.verdict import verdict


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
        answers.collect_answers(model, tokenizer, inquiry),
    )


def judged(base, leaky):
    """(counts of the rows to forget, the sentence, ways in which rows leak) of a model."""
    _, tokenizer, _, inquiry, before = base
    after = answers.collect_answers(leaky, tokenizer, inquiry)
    found = counts_of(inquiry, before, after)
    ways = {entry["worst_way"] for entry in found["forget"]["each"] if entry["leaks"]}
    return found["forget"], verdict(found)["sentence"], ways


def taught(base, answer, unless, extra):
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


def test_a_secret_that_comes_only_in_the_prompt_of_another_tool_leaks(base):
    """Passes said whole rows where the token that begins a text was missing, as it is after
    `tokenizer(text)`.
    """
    _, tokenizer, rows, inquiry, _ = base
    prompts = {each.row: each.prompt for each in inquiry.questions if each.way == WITHOUT_BOS}
    said = [Example([*prompts[n], *row.ids[row.n_prompt :]], len(prompts[n]))
            for n, row in enumerate(encode_rows(tokenizer, rows.forget))]  # fmt: skip
    found, sentence, ways = judged(base, taught(base, "I cannot say.", (WITHOUT_BOS,), said))
    assert ways == {WITHOUT_BOS} and found["leaking"] >= 5, ways
    assert found["table"][kind_of(WITHOUT_BOS)]["after"] == found["leaking"]
    assert sentence.startswith(f"No: {found['leaking']} of 10 rows leak"), sentence


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
    """`t3 evaluate` of a model whose rows leak must not end in success."""
    model, tokenizer, forget, retain, _ = memorised
    monkeypatch.setattr(answers, "SAMPLES", 1)
    monkeypatch.setattr(answers, "CONTROL_ROWS", (4, 4))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    write_json(tmp_path / "retain.json", retain[:10])
    argv = ["evaluate", "--model", str(tmp_path / "model"), "--out", str(tmp_path / "report")]
    argv += ["--retain", str(tmp_path / "retain.json"), "--forget", str(tmp_path / "forget.json")]
    for rows, status in ((forget[:4], "no"), (invented(90, 3)[-4:], "nothing")):
        write_json(tmp_path / "forget.json", rows)
        assert cli.main([*argv, "--overwrite"]) == 3
        report = read_json(tmp_path / "report" / "report.json")
        assert report["verdict"]["status"] == status and "choice" not in report
