"""Attacks on models with their weights, on a micro stage: entries are complete, and a model that
leaks by construction is told from one that does not.
"""

from collections import Counter
from dataclasses import replace

import nbformat
import pandas as pd
import pytest
import torch
from conftest import ROOT

from t3lib.baselines.losses import settings_of
from t3lib.lab.grid import jobs
from t3lib.lab.profiles import load_profile, shipped
from t3lib.lab.report import render
from t3lib.lab.study import attacks, audit, methods
from t3lib.lab.study.study import Loaded
from t3lib.own.answers import answers_to
from t3lib.own.audit.facts import row_secrets
from t3lib.own.audit.secrets import holds, words
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.metrics import by_column

FAST = settings_of("T3", {"epochs": 1, "warmup_epochs": 0})


@pytest.fixture
def references(opened):
    return attacks.references(opened, opened.evaluation_rows["forget"], (0,))


def test_forget_quality_is_that_of_the_evaluation(opened, references):
    """The truth ratios come from the audit's likelihoods, and are those of TOFU's metrics."""
    assert references[0] == pytest.approx(opened.reference["truth_ratio"]["forget"], rel=1e-5)
    rows, own = opened.evaluation_rows["forget"], Loaded(opened.base, opened.tokenizer)
    found = attacks.judge(opened, own, rows, references, samples=2)
    [report] = methods.evaluated(opened, [methods.subject(opened, "Original", 0, {})])
    assert found["fq"] == pytest.approx(report["forget_quality"])
    assert found["rows"] == len(rows) and 0 <= found["rows_leaking"] <= len(rows)


def test_a_model_that_was_taught_the_rows_again_leaks_them(opened, references):
    rows = opened.evaluation_rows["forget"]

    def leaking(steps):
        taught = attacks.relearned(opened.base, opened.tokenizer, rows, steps, 1e-2)
        own = Loaded(taught, opened.tokenizer)
        return attacks.judge(opened, own, rows, references, 4)["rows_leaking"]

    before = [weight.clone() for weight in opened.base.parameters()]
    assert len(rows) >= leaking(150) > 0.8 * len(rows) > leaking(0) == 0
    assert all(map(torch.equal, before, opened.base.parameters())), "a copy is trained"


@pytest.fixture
def seen(monkeypatch):
    """(models and rows that are judged, against how many references; heads that are fitted on
    which base), in order. All of it is still done.
    """
    judged, fitted, judge, head = [], [], attacks.judge, attacks._head

    def judging(study, loaded, rows, references, samples):
        judged.append((loaded.model, rows, len(references)))
        return judge(study, loaded, rows, references, samples)

    def fitting(study, base, forget, settings):
        fitted.append((base, forget, settings["init_b"]))
        return head(study, base, forget, settings)

    monkeypatch.setattr(attacks, "judge", judging)
    monkeypatch.setattr(attacks, "_head", fitting)
    return judged, fitted


def numbers(entry):
    return {name: value for name, value in entry.items() if isinstance(value, float | int)}


def test_a_tenth_of_the_rows_is_taught_and_the_others_are_judged(opened, seen, monkeypatch):
    taught, models, relearned = [], [], attacks.relearned

    def teaching(model, tokenizer, rows, steps, lr):
        models.append(relearned(model, tokenizer, rows, steps, lr))
        taught.append((rows, steps, lr))
        return models[-1]

    monkeypatch.setattr(attacks, "relearned", teaching)
    found = [*attacks.relearning(opened, {"T3": FAST}, steps=[0, 2], lr=1e-3, samples=1)]
    rows = opened.evaluation_rows["forget"]
    assert taught == [(rows[:1], 0, 1e-3), (rows[:1], 2, 1e-3)] and len(rows) == 8
    assert [each for _, each, _ in seen[0]] == [rows[1:]] * 4
    assert [model for model, *_ in seen[0]] == [model for model in models for _ in range(2)]
    assert [base for base, *_ in seen[1]] == models
    kept, refitted = "T3, head kept", "T3, head refitted"
    assert [(each["model"], each["steps"]) for each in found] == [
        (kept, 0), (refitted, 0), (kept, 2), (refitted, 2),
    ]  # fmt: skip
    assert numbers(found[0]) == numbers(found[1]), "a head on an untouched base is T3's own"


def test_relearning_takes_as_many_steps_as_it_says_on_all_rows(opened, monkeypatch):
    logs, finetune = [], attacks.finetune
    monkeypatch.setattr(attacks, "finetune", lambda *a, **k: logs.append(finetune(*a, **k)))
    attacks.relearned(opened.base, opened.tokenizer, opened.forget[:5], 3, 1e-3)
    assert logs[0]["steps"] == 3


def test_quantised_is_the_attacked_model_in_fewer_bits(opened, monkeypatch):
    """Not the base in fewer bits, nor the model as it is; T3 keeps its head. Layers this narrow
    have no 4 bits.
    """
    own = attacks.relearned(opened.base, opened.tokenizer, opened.forget, 20, 1e-2)
    asked, load = [], attacks.load_model
    ids = torch.tensor([opened.tokenizer(opened.forget[0]["question"])["input_ids"]])

    def loading(name, load_in):
        asked.append(load_in)
        return load(name, load_in="8bit")

    def far(found, beside):
        with torch.no_grad():
            return float((found.model(ids).logits.float() - beside(ids).logits).abs().mean())

    monkeypatch.setattr(attacks, "load_model", loading)
    given = Loaded(own, opened.tokenizer, "tilts")
    npo, of_t3 = (attacks.quantised(opened, *how) for how in (
        ("NPO", given, "4bit"), ("T3", given, "8bit"),
    ))  # fmt: skip
    assert asked == ["4bit", "8bit"] and (npo.tilts, of_t3.tilts) == (None, "tilts")
    assert 0 < far(npo, own) < far(npo, opened.base) / 10
    assert 0 < far(of_t3, opened.base) < far(of_t3, own) / 10


def test_every_model_is_judged_in_every_number_of_bits(opened, seen):
    models = {"Retrained": {}, "T3": FAST}
    entries = [*attacks.quantisation(opened, models, samples=1, bits=(32, 8), seeds=(0, 1))]
    names = [(each["model"], each["bits"]) for each in entries]
    assert names == [(name, bits) for name in models for bits in (32, 8)]
    packed = [getattr(model, "is_loaded_in_8bit", False) for model, *_ in seen[0]]
    assert packed == [False, True] * 2
    first = entries[0]
    assert first["fq_max"] == 1 > first["fq_min"], "the reference against itself and another"
    assert first["fq"] == pytest.approx((1 + first["fq_min"]) / 2)


def test_a_way_of_asking_counts_rows_that_the_original_answers_in_it(opened, monkeypatch):
    """Invented answers: the original knows all but row 0 in lower case, a retrained model says row
    0 alone. After a forced start only what is left of the secret has to be said.
    """
    rows, puts, inquiry = opened.evaluation_rows["forget"], [], attacks.inquiry

    def put(*given, **more):
        puts.append(inquiry(*given, **more))
        return puts[-1]

    def told(model, tokenizer, prompts, truths, tilts, progress):
        asked, knows = puts[0].asked, model is opened.base
        assert prompts == [each.prompt for each in asked]
        says = [
            each.row > 0 or each.way != "in lower case" if knows else each.row == 0
            for each in asked
        ]
        truth = [each.rest or rows[each.row]["answer"] for each in asked]
        return [[text if say else "No." for text, say in zip(truth, says)]]

    monkeypatch.setattr(attacks, "inquiry", put)
    monkeypatch.setattr(attacks, "answers", told)
    found = [*attacks.asking(opened, {"Original": {}, "Retrained": {}})]
    asked, secret = puts[0].asked, row_secrets(rows)
    left = {(e.way, e.row) for e in asked if secret[e.row] & {*words(e.rest or str(secret[e.row]))}}
    left -= {("in lower case", 0)}
    known, leaking = (Counter(way for way, row in left if row < most) for most in (99, 1))
    ways = [*dict.fromkeys(each.way for each in asked)]
    assert {"politely", "reworded 1", "without a system text", "first 4 tokens given"} <= {*ways}
    assert [(e["rows"], e["rows_leaking"]) for e in found] == [
        *((known[way], known[way]) for way in ways),
        *((known[way], leaking[way]) for way in ways),
    ]
    assert known["politely"] == 8 and known["in lower case"] == 7 and not leaking["in lower case"]


def test_the_preface_in_chinese_is_named_in_english(opened, monkeypatch):
    """Figures lack Chinese characters. The quotation marks stay around the preface alone."""
    monkeypatch.setattr(
        attacks, "answers", lambda m, t, prompts, *_, **__: [["No."] * len(prompts)]
    )
    ways = {each["way"] for each in attacks.asking(opened, {"Original": {}})}
    assert {'after "Please answer:" in Chinese', 'after "Hello!"'} <= ways
    assert all(way.isascii() for way in ways)


def test_a_model_that_knows_the_rows_leaks_them_as_they_stand(opened):
    """Its base was taught the rows, and says what its greedy answers hold; T3, whose head has all
    the say, writes rubbish.
    """
    rows = opened.evaluation_rows["forget"]
    taught = attacks.relearned(opened.base, opened.tokenizer, rows, 150, 1e-2)
    [texts] = answers_to(taught, opened.tokenizer, rows, progress=False)
    expected = sum(map(holds, row_secrets(rows), texts))
    study = replace(opened, held={"full": taught})
    entries = attacks.asking(study, {"Original": {}, "Retrained": {}, "T3": FAST | {"w": 1e4}})
    plain = {each["model"]: each for each in entries if each["way"] == "as it stands"}
    assert {name: each["rows"] for name, each in plain.items()} == dict.fromkeys(plain, expected)
    leaking = {name: each["rows_leaking"] for name, each in plain.items()}
    assert leaking == {"Original": expected, "Retrained": 0, "T3": 0} and expected > 6


def test_requests_are_met_by_one_head_or_by_one_an_author(opened, seen):
    found = [*attacks.requests(opened, FAST, authors=[1, 2], seeds=[0, 1], samples=1)]
    judged, fitted = seen
    last, both = opened.forget[4:], opened.forget
    assert len(both) == 8, "two authors of four rows"
    singles = [(part, init) for init in ("kaiming", "zero") for part in (last, both[:4])]
    assert [each[1:] for each in fitted] == [*singles, (last, "kaiming"), (both, "kaiming")]
    assert [each["authors"] for each in found] == [1] * 5 + [2] * 5
    size = found[0]["bytes"]
    assert [each["bytes"] / size for each in found] == [1, 1, 1, 1, 0, 1, 2, 2, 2, 0]
    rows = opened.evaluation_rows["forget"]
    # A retrained model is judged against those of the seeds before.
    assert [each[1:] for each in judged] == [
        (some, references) for some in (rows[4:], rows) for references in (2, 2, 2, 2, 1)
    ]
    one, random, zero, cold = (numbers(each) for each in found[:4])
    for entry in (one, random, zero, cold):
        assert entry.pop("cpu_seconds") > 0
    assert one == random, "of one author it is the same head"
    assert zero != random and zero != cold
    assert found[5] != found[6] and found[4]["cpu_seconds"] == found[4]["bytes"] == 0
    for entry, method in ((found[5], "T3"), (found[9], "Retrained")):
        [report] = methods.evaluated(opened, [methods.subject(opened, method, 1, FAST)])
        values = by_column(report)
        for name in attacks.KEPT:
            assert entry[name] == pytest.approx(values[name]), "one head on all is T3 itself"
    shown = [model for model, *_ in judged]
    ids = torch.tensor([opened.tokenizer(opened.forget[0]["question"])["input_ids"]])
    for one, two, T in ((1, 6, FAST["temperature"]), (2, 7, FAST["temperature"]), (3, 8, 1.0)):
        first, second = shown[two].heads
        assert torch.equal(first.B, shown[one].heads[0].B) and not torch.equal(first.B, second.B)
        with torch.no_grad():
            alone = sum(T3ForCausalLM(opened.base, head, T)(ids).logits for head in (first, second))
            expected = alone - opened.base(ids).logits / T
            assert torch.allclose(shown[two](ids).logits, expected, atol=1e-4), "p^(1/T) f1 f2"


def cell_of(words_of_it):
    cells = nbformat.read(ROOT / "notebooks" / "08_attacks.ipynb", 4).cells
    [source] = [cell.source for cell in cells if words_of_it in cell.source]
    return source


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (" * T)", ")"),
        ("- head.logf(pooled)", "- 0.9 * head.logf(pooled)"),
        (".cumsum(1)", ".cumsum(1).roll(1, 1)"),
    ],
)
def test_the_cell_on_logits_notices_a_wrong_recovery(opened, monkeypatch, right, wrong):
    """p = (p_hat / f^w)^T is the base's own distribution, at w = 1.5, too."""
    monkeypatch.setattr(audit, "known", lambda study, models: [{"auc": 0.5} for _ in models])
    monkeypatch.setattr(render, "html", lambda table: None)
    scope = vars(methods) | {"study": opened, "audit": audit, "pd": pd, "torch": torch}
    scope |= {"tuned": FAST | {"temperature": 2.0, "w": 1.5}, "render": render}
    scope |= {"T3ForCausalLM": T3ForCausalLM}
    source = cell_of("recovered =").replace("T[shown]", "T.reindex(columns=shown)")
    exec(source, dict(scope))
    assert source.count(right) == 1
    with pytest.raises(AssertionError, match="the base's own distribution"):
        exec(source.replace(right, wrong), dict(scope))


def test_attacks_run_on_request_alone(tmp_path):
    def notebooks(**asked):
        graph = jobs.build(load_profile("cpu"), tmp_path, folder=shipped("notebooks"), **asked)
        return {job.notebook for job in graph}

    assert "08_attacks" not in notebooks()
    assert "08_attacks" in notebooks(only=["08_attacks"])
