"""A real model that leaks by construction, in one way only, and the command line's exit status.
test_leak judges texts alone, and in every kind of asking.
"""

import copy
from dataclasses import replace

import pytest
import torch
from own_cases import CODES

from t3lib import cli
from t3lib.core.files import read_json, write_json
from t3lib.own import answers
from t3lib.own.assess import counts_of, inquiry_of
from t3lib.own.leak import TOGETHER
from t3lib.own.questions import AS_WRITTEN, COLDER
from t3lib.own.rows import Rows
from t3lib.own.truths import COMMON, words
from t3lib.own.verdict import verdict


def test_a_secret_that_comes_only_from_a_cold_sampler_leaks(memorised):
    """Warm samples drown in noise, and greedy decoding ends the answer before the secret's words,
    where an end is a little likelier.
    """
    model, tokenizer, forget, retain, _ = memorised
    rows = Rows(forget, retain).checked()
    inquiry = inquiry_of(tokenizer, rows)
    few = [each for each in inquiry.questions if each.kind in (AS_WRITTEN, COLDER)]
    inquiry = replace(inquiry, questions=few)
    guarded = set()
    for number, row in enumerate(rows.forget):
        secret = frozenset().union(*inquiry.truths.rare(number, COMMON))
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
    before, after = (answers.collect_answers(each, tokenizer, inquiry) for each in (model, hidden))
    found = counts_of(inquiry, before, after)
    kinds = {kind for kind, counts in found["forget"]["by_kind"].items() if counts["after"]}
    assert kinds == {COLDER, TOGETHER} and found["forget"]["leaking"] > 0
    assert verdict(found)["status"] == "no"


@pytest.mark.usefixtures("few_texts")
def test_a_model_without_a_head_is_judged_by_the_command_line(
    memorised, tmp_path, monkeypatch, capsys
):
    """`t3 evaluate` of a model whose rows leak must not end in success, and its report is compared
    with a later one.
    """
    model, tokenizer, forget, retain, _ = memorised
    monkeypatch.setattr(answers, "CONTROL_ROWS", (4, 4))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    write_json(tmp_path / "retain.json", retain[:10])
    argv = ["evaluate", "--model", str(tmp_path / "model"), "--out", str(tmp_path / "report")]
    argv += ["--retain", str(tmp_path / "retain.json"), "--forget", str(tmp_path / "forget.json")]
    for rows, status in ((CODES[:4], "nothing"), (forget[:4], "no")):
        write_json(tmp_path / "forget.json", rows)
        assert cli.main([*argv, "--overwrite"]) == 3
        report = read_json(tmp_path / "report" / "report.json")
        assert report["verdict"]["status"] == status and "choice" not in report
