"""One method on one split, end to end on a micro stage: every row of Table 1 gives a complete run
record.
"""

import gc
import json
import math
import shutil
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import hmean, ks_2samp

from t3lab import identity, results
from t3lab.audit.labels import HIDING
from t3lab.bench import timing
from t3lab.report import tables
from t3lab.study import ablations, audit, methods, records, study, unlearned
from t3lab.world import bases
from t3lib.baselines.losses import METHODS
from t3lib.core import files
from t3lib.core.errors import UserError
from t3lib.core.rows import encode_rows
from t3lib.tofu.evaluation import Scoring

FAST = {"epochs": 1, "warmup_epochs": 0}
SHORT = {"max_new_tokens": 6}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_complete_run(method, opened, tmp_path):
    settings = {} if method in ("Original", "Retrained") else dict(FAST)
    before = {name: value.clone() for name, value in opened.base.state_dict().items()}
    runs = list(records.run_method(opened, method, seeds=[1, 2], settings=settings))
    assert [run["seed"] for run in runs] == ([0] if method == "Original" else [1, 2])
    for run in runs:
        assert run["status"] == "ok", run["error"]
        results.write_run(tmp_path, run | {"parameters": {}, "provenance": {}})
        ratios, metrics = run["truth_ratio"], run["metrics"]
        assert metrics["fq"] == pytest.approx(
            ks_2samp(ratios["forget"], ratios["reference"]).pvalue, abs=1e-9
        )
        rouge = [
            sum(r["rouge"] for r in run["records"][s]) / len(run["records"][s])
            for s in ("retain", "ra", "wf")
        ]
        assert metrics["mu_rouge"] == pytest.approx(
            hmean(rouge) if min(rouge) > 0 else 0.0, abs=1e-6
        )
        assert [("generation" in r) for r in run["records"]["forget"]] == [run is runs[0]] * len(
            ratios["forget"]
        )
    assert all((opened.base.state_dict()[name] == value).all() for name, value in before.items()), (
        "the base was changed"
    )
    if len(runs) == 2:
        assert runs[0]["truth_ratio"]["forget"] != runs[1]["truth_ratio"]["forget"], (
            "the seed was ignored"
        )


def test_runs_have_the_papers_errors_beside_the_judge(opened, tmp_path):
    """Those of the base again from its tables of log-probabilities, and the file keeps them."""
    judged = replace(opened, judge=1)
    [original] = records.run_method(judged, "Original", seeds=[], settings={})
    itself, other = records.run_method(judged, "Retrained", seeds=[1, 2], settings={})
    [t3] = records.run_method(judged, "T3", seeds=[1], settings=FAST | {"rank": 5})
    assert itself["unlearning_errors"] == {} and other["unlearning_errors"]["judge"] == 1

    judge, [base_rows, kept_rows] = (
        methods.load_models(judged, [methods.subject(judged, "Retrained", 1, {})]).model,
        [
            encode_rows(opened.tokenizer, opened.evaluation_rows[name])
            for name in ("forget", "retain")
        ],
    )

    def log_p(model, example):
        with torch.no_grad():
            logits = model(torch.tensor([example.ids])).logits[0].double()
        return logits[example.n_prompt - 1 : -1].log_softmax(-1).numpy()

    found = original["unlearning_errors"]
    for number, example in enumerate(base_rows):
        ours, theirs = (np.exp(log_p(model, example)) for model in (opened.base, judge))
        target = np.array(example.answer)
        gap = np.take_along_axis(theirs - ours, target[:, None], 1)[:, 0]
        assert found["forget"]["forget_error"][number] == pytest.approx(abs(gap).mean(), abs=2e-6)
        leak = np.maximum(0, -gap).mean()
        assert found["forget"]["leak"][number] == pytest.approx(leak, abs=2e-6)
    kl = []
    for example in kept_rows:
        ours, theirs = (log_p(model, example) for model in (opened.base, judge))
        kl += (np.exp(theirs) * (theirs - ours)).sum(-1).tolist()
    assert found["means"]["retain_error"] == pytest.approx(np.mean(kl), rel=1e-4)

    made = {"parameters": {}, "provenance": {}}
    for run in (original, itself, other, t3):
        results.write_run(tmp_path, run | made)
    read = results.read_runs(tmp_path)
    assert [bool(run["unlearning_errors"]) for run in read] == [True, False, True, True]
    table = tables.errors(read).set_index("method")
    assert [*table.index] == ["Original", "Retrained", "T3"]
    assert table.loc["T3", "lr"] > 0 and math.isnan(table.loc["Original", "lr"])
    assert table.loc["T3", "leak"] == pytest.approx(t3["unlearning_errors"]["means"]["leak"])


def test_a_temperature_that_02_has_run_is_not_run_again_in_03(opened, monkeypatch):
    settings = FAST | {"rank": 6, "temperature": 2.0}
    first = list(
        records.run_method(opened, "T3", seeds=[1], temperatures=[1.0, 2.0], settings=settings)
    )
    monkeypatch.setattr(study, "score", lambda *_, **__: pytest.fail("scored again"))
    again = records.run_method(opened, "T3", seeds=[1], temperatures=[2.0, 1.0], settings=settings)
    assert list(again) == first


def test_w_is_a_dial_like_T(opened, tmp_path):
    """It is in the run, in its file's name and in the key of its scores."""
    settings = FAST | {"rank": 11, "temperature": 4.0}
    both = [methods.subject(opened, "T3", 1, each) for each in (settings, settings | {"w": 0.8})]
    plain, sharp = records.records(opened, both, text_seed=1)
    assert (plain["w"], sharp["w"]) == (1.0, 0.8)
    assert plain["truth_ratio"]["forget"] != sharp["truth_ratio"]["forget"]
    names = [results.write_run(tmp_path, run).name for run in (plain, sharp)]
    assert names == ["T3--forget10--T4--seed1.json", "T3--forget10--T4--w0.8--seed1.json"]
    assert [run["w"] for run in results.read_runs(tmp_path)] == [0.8, 1.0]
    assert results.tidy(results.read_runs(tmp_path)).w.tolist() == [0.8, 1.0]


def test_the_features_of_a_naive_step_are_those_of_the_cache(opened):
    examples = encode_rows(opened.tokenizer, [opened.forget[3], opened.retain[5]])
    features = unlearned.t3_features(opened)
    with torch.no_grad():
        found = timing.pooled(opened, examples)
    for number, example, each in zip((3, len(opened.forget) + 5), examples, found):
        kept = features.x[features.row == number]
        own = each[example.n_prompt - 1 : len(example.ids) - 1]
        torch.testing.assert_close(own, kept, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("damage", ["", "flipped", "gone", "no note"])
def test_features_are_read_from_one_file_to_the_bit_and_made_again_if_it_is_damaged(
    opened, monkeypatch, tmp_path, damage
):
    monkeypatch.setenv("T3_CACHE", str(tmp_path))
    real, passes = unlearned.extract_features, []
    monkeypatch.setattr(
        unlearned, "extract_features", lambda *a, **b: passes.append(1) or real(*a, **b)
    )
    first = unlearned.t3_features(opened)
    [file], [note] = (tmp_path.glob(f"features/*.{end}") for end in ("safetensors", "json"))
    if damage == "flipped":
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 255]))
    elif damage:
        (file if damage == "gone" else note).unlink()
    for expected in (2 if damage else 1,) * 2:  # the second time it is in the cache
        again = unlearned.t3_features(opened)
        assert len(passes) == expected and again.device == first.device
        for name in unlearned.TENSORS:
            one, other = getattr(first, name), getattr(again, name)
            assert one.dtype == other.dtype and torch.equal(one, other), name


def test_seconds_of_features_are_those_of_a_cold_cache(opened):
    logs = [unlearned.training_of(opened, "T3", FAST | {"rank": rank}, 1) for rank in (3, 4)]
    assert {log["seconds"]["features"] for log in logs} == {unlearned.features_seconds(opened)}
    assert unlearned.features_seconds(opened) > 0


def test_a_training_that_is_not_kept_is_one_line(opened, monkeypatch):
    monkeypatch.setattr(identity, "changed_since_import", lambda: ["t3lib.core.rows"])
    with (
        pytest.warns(UserWarning, match="not kept"),
        pytest.raises(UserError, match="T3 seed 1: t3lib changed while this ran; run it again"),
    ):
        unlearned.training_of(opened, "T3", FAST | {"rank": 14}, 1)


def test_no_second_model_is_loaded_beside_the_base(opened, monkeypatch):
    """A device with room for one model of 8B can open a study."""
    load, alive = study.load_model, []

    def counted(*args, **options):
        gc.collect()
        assert not [model for model in alive if model() is not None], "a model is still held"
        model, tokenizer = load(*args, **options)
        alive.append(weakref.ref(model))
        return model, tokenizer

    for module in (study, methods):
        monkeypatch.setattr(module, "load_model", counted)
    monkeypatch.setattr(study, "read_sealed", lambda _: None)  # no scores of the reference yet
    stage = {name: value for name, value in vars(opened.stage).items() if name != "data"}
    again = study.open_study("forget10", stage=stage, evaluation=SHORT)
    assert again.reference["truth_ratio"] == opened.reference["truth_ratio"]
    for method in ("Original", "Retrained", "Original"):
        [_] = audit.audit_method(
            again, method, seeds=[0], settings={}, sampling=audit.Sampling(samples=1)
        )
    assert len(alive) == 6, "base and reference, to open; both, the second for each question; base"


def test_both_dials_are_searched_and_the_best_sharpened_point_is_run(opened):
    settings = FAST | {"rank": 9}  # a setting that no other test has left in the cache
    grid = {"temperatures": [1.0, 2.0], "strengths": [0.5, 1.0, 3.0]}
    search, runs = ablations.run_dials(opened, seeds=[1, 2, 3], settings=settings, **grid)
    assert [(row["T"], row["w"]) for row in search] == [
        (T, w) for T in (1.0, 2.0) for w in (0.5, 1.0, 3.0)
    ]
    assert {(row["n_seeds"], row["lr"]) for row in search} == {(2, 5e-4)}, "the default rate"
    best = max((row for row in search if row["w"] != 1), key=lambda row: (row["fq"], -row["D"]))
    assert [(run["T"], run["w"], run["seed"]) for run in runs] == [
        (best["T"], best["w"], seed) for seed in (1, 2, 3)
    ]
    assert np.mean([run["metrics"]["fq"] for run in runs[:2]]) == pytest.approx(best["fq"])
    assert np.mean([run["metrics"]["ks_statistic"] for run in runs[:2]]) == pytest.approx(best["D"])
    assert ablations.run_dials(
        opened, seeds=[1], settings=settings, temperatures=[1.0], strengths=[]
    ) == (
        [],
        [],
    )
    assert (
        ablations.run_dials(
            opened, seeds=[1], settings=settings, temperatures=[1.0], strengths=[1.0]
        )[1]
        == []
    )


def test_a_head_is_fitted_once_for_each_seed(opened, monkeypatch):
    """Strengths and temperatures share it."""
    fit, fits = unlearned.fit_heads, []

    def counted(features, settings, **options):
        fits.extend(each["seed"] for each in settings)
        return fit(features, settings, **options)

    monkeypatch.setattr(unlearned, "fit_heads", counted)
    settings = FAST | {"rank": 11, "lr": 0.01}  # a rank that no other test has left in the cache
    grid = {"temperatures": [1.0, 2.0], "strengths": [0.5, 3.0]}
    ablations.run_dials(opened, seeds=[1, 2, 3], settings=settings, **grid)
    assert sorted(fits) == [1, 2, 3]


def test_a_temperature_may_have_its_own_hyperparameters(opened):
    runs = records.run_method(
        opened,
        "T3",
        seeds=[1],
        temperatures=[1.0, 2.0],
        settings=FAST,
        settings_by_t={"2": {"rank": 5}},
    )
    assert [run["hyper"]["rank"] for run in runs] == [20, 5]


# Two tests vary these settings, and the second finds the heads and scores in the session's cache.
VARIED = {"epochs": 2, "warmup_epochs": 0, "temperature": 3.0, "lr": 0.01}


def test_every_ablation_differs_from_the_tuned_setting(opened):
    runs = ablations.run_ablations(opened, seeds=[1], settings=VARIED)
    assert [run["setting"] for run in runs] == list(ablations.ABLATIONS)
    assert set(ablations.ABLATIONS) == set(tables.SETTINGS), (
        "a figure and a table have words for each"
    )
    alike: dict[tuple[float, ...], list[str]] = {}
    for run in runs:
        alike.setdefault(tuple(run["truth_ratio"]["forget"]), []).append(run["setting"])
    # Of so weak a head r(x) is below .9 everywhere, so the gates from .9 temper all tokens.
    assert [names for names in alike.values() if len(names) > 1] == [
        ["tuned", "gate=0.99", "gate=0.9"],
        ["untrained=neutral", "untrained=neutral,gate=0.9"],
    ]
    some = {"seeds": [1], "settings": VARIED}
    assert ablations.run_ablations(opened, **some, vary=["decay=l2"]) == [runs[1]]
    assert ablations.run_ablations(opened, **some, vary=[]) == []
    with pytest.raises(UserError, match="^vary: unknown 'decay=l3'; known: all, tuned"):
        ablations.run_ablations(opened, **some, vary=["decay=l3"])


def test_an_ablation_brings_what_the_audit_says_of_the_same_model(opened):
    """Recognition and membership, each against the audit of that model by itself."""
    runs = ablations.run_ablations(opened, seeds=[1], settings=VARIED)
    taught = ablations.paraphrased(opened)
    for setting, where, more in (
        ("tuned", opened, 1),
        ("same text,T=2", opened, 1),
        ("paraphrases,T=2,w=1", taught, 2),
    ):
        [found] = [run for run in runs if run["setting"] == setting]
        own = ablations.ablated(VARIED, setting, more)
        shutil.rmtree(files.cache_dir("audit"))  # so that it is asked anew
        alone, *_ = audit.audit_method(  # beside it: T = 1 with the same greedy text
            where, "T3", seeds=[1], settings=own, sampling=audit.Sampling(samples=1)
        )
        for name in HIDING:
            assert found["metrics"][name] == pytest.approx(alone["metrics"][name], abs=1e-6), (
                setting,
                name,
            )
    assert len({run["metrics"]["auc"] for run in runs}) > len(runs) // 2


def test_a_head_that_learns_the_paraphrases_has_them_among_its_forget_rows(opened):
    reworded = ablations.paraphrased(opened)
    rows = opened.evaluation_rows["forget"]
    assert [row["answer"] for row in reworded.forget] == [
        *(row["answer"] for row in opened.forget),
        *(row["paraphrased_answer"] for row in rows),
    ]
    assert reworded.task_key != opened.task_key, "its heads are others in the cache"
    settings = [ablations.ablated({"epochs": 40}, "paraphrases", more) for more in (1, 2)]
    assert [each["epochs"] for each in settings] == [
        40,
        25,
    ], "as many rows are seen, after 25 epochs of warming up"
    assert ablations.ablated({"epochs": 3, "warmup_epochs": 1.5}, "tuned", 2)["epochs"] == 2
    assert reworded.retain == opened.retain and reworded.evaluation_rows is opened.evaluation_rows


def test_a_diverging_baseline_is_a_failed_run_with_empty_cells(opened, monkeypatch):
    def diverge(*_, **__):
        raise unlearned.Diverged("the loss is nan at step 3 of 9 (epoch 1): stopped")

    monkeypatch.setattr(unlearned, "unlearn_baseline", diverge)
    [run] = records.run_method(opened, "NPO", seeds=[7], settings=FAST)
    assert run["status"] == "failed" and "step 3" in run["error"] and run["metrics"] == {}
    assert math.isnan(results.tidy([run]).fq[0])
    monkeypatch.setattr(unlearned, "unlearn_baseline", lambda *_, **__: pytest.fail("tried again"))
    assert list(records.run_method(opened, "NPO", seeds=[7], settings=FAST)) == [run]


def test_a_diverging_head_is_a_failed_run_and_leaves_the_others(opened, monkeypatch):
    """The heads of a notebook share their passes. A search has none of it."""
    absurd = FAST | {"lr": 1.0, "weight_decay": 1e6, "epochs": 20}
    [alone] = records.run_method(opened, "T3", seeds=[1], settings=absurd)
    assert alone["status"] == "failed" and alone["metrics"] == {}
    assert alone["error"] == "the head diverged at lr 1 with weight_decay 1e+06"
    with monkeypatch.context() as patch:
        patch.setattr(unlearned, "fit_heads", lambda *_, **__: pytest.fail("tried again"))
        assert list(records.run_method(opened, "T3", seeds=[1], settings=absurd)) == [alone]

    some = [methods.subject(opened, "T3", 1, settings) for settings in (absurd, FAST)]
    assert [run["status"] for run in records.records(opened, some)] == ["failed", "ok"]
    how = {"seeds": [1], "dials": [(1.0, 1.0), (2.0, 1.0)], "sampling": audit.Sampling(samples=1)}
    audited = audit.audit_method(
        opened, "T3", settings=FAST | {"temperature": 2.0}, settings_by_t={"1": absurd}, **how
    )
    found = {(run["T"], run["w"]): run["status"] for run in audited}
    assert found == {(1.0, 1.0): "failed", (1.0, 2.0): "ok", (2.0, 1.0): "ok"}
    grid = {"temperatures": [2.0], "strengths": [1.0, 2.0]}
    assert ablations.run_dials(opened, seeds=[1], settings=absurd, **grid) == ([], [])


def test_data_of_the_page_is_the_same_from_either_split(opened):
    rows = study.question_rows(opened)
    assert set(rows) == {"forget05", "forget10", "retain", "ra", "wf"}
    assert rows["forget10"] == bases.rows(opened.stage)["forget10_perturbed"]
    json.dumps(rows)


# ---- What is kept, and by which content ---------------------------------------------------------


def test_an_unlearned_model_is_loaded_again_instead_of_trained(opened, monkeypatch):
    start = torch.cat([weight.flatten() for weight in opened.base.parameters()])
    for method, more in (("NPO", {}), ("NPO", {"lora_rank": 3}), ("ULD", {"k": 1, "rank": 3})):
        settings = FAST | {"lr": 3e-3 if method == "ULD" or not more else 0.1} | more
        trained = unlearned.unlearned(opened, method, settings, 5)
        ids = torch.tensor([opened.tokenizer("Where was she born?")["input_ids"]])
        with torch.no_grad():
            logits, before = trained(ids).logits, opened.base(ids).logits
            assert not torch.allclose(logits.log_softmax(-1), before.log_softmax(-1), atol=1e-3), (
                "it learned nothing"
            )
            with monkeypatch.context() as patch:
                patch.setattr(
                    unlearned, "unlearn_baseline", lambda *_, **__: pytest.fail("trained again")
                )
                again = unlearned.unlearned(opened, method, settings, 5)
            assert torch.equal(again(ids).logits, logits) and not again.training
        folder = files.cache_dir("unlearned", unlearned.unlearned_key(opened, method, settings, 5))
        weights = folder / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        anew = unlearned.unlearned(opened, method, settings, 5)
        with torch.no_grad():
            assert torch.equal(anew(ids).logits, logits)
        assert not more or weights.stat().st_size < 100_000, "the LoRA alone"
    assert torch.equal(torch.cat([weight.flatten() for weight in opened.base.parameters()]), start)


def test_a_damaged_score_is_asked_again(opened):
    [run] = records.run_method(opened, "Original", seeds=[1], settings={})
    for path in files.cache_dir("scores").glob("*.json"):
        path.write_text(path.read_text().replace("0.", "1.", 1))
    [again] = records.run_method(opened, "Original", seeds=[1], settings={})
    assert again["metrics"] == run["metrics"]


def test_a_changed_metric_asks_no_model(opened, monkeypatch):
    """Editing `metrics` computes numbers again from what was said, and trains and scores
    nothing.
    """
    settings = FAST | {"lora_rank": 2}
    [run] = records.run_method(opened, "NPO", seeds=[1], settings=settings)
    assert run["hyper"]["lora_rank"] == 2 and run["metrics"]["retain_rouge"] is not None
    for name in ("unlearn_baseline", "fit_heads"):
        monkeypatch.setattr(unlearned, name, lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr(study, "score", lambda *_, **__: pytest.fail("scored again"))
    monkeypatch.setattr("t3lib.tofu.metrics.rouge_l_recall", lambda *_: 0.25)
    [changed] = records.run_method(opened, "NPO", seeds=[1], settings=settings)
    assert (
        changed["metrics"]["mu_rouge"] == pytest.approx(0.25)
        and changed["metrics"]["fq"] == run["metrics"]["fq"]
    )


CHANGES = {
    "model": {"identity": {"full": "another model", "retain90": "the reference"}},
    "forget rows": {"forget": [{"question": "Who?", "answer": "Nobody."}]},
    "retain rows": {"retain": [{"question": "Who?", "answer": "Nobody."}]},
    "idk answers": {"idk": ["I forgot."]},
    "attention mask": {"scoring": Scoring("openunlearning")},
}


@pytest.mark.parametrize("method", ["NPO", "ULD", "T3"])
def test_the_key_of_an_unlearned_model_covers_all_that_decides_it(opened, method, monkeypatch):
    known = unlearned.unlearned_key(opened, method, FAST, 1)
    others = [
        unlearned.unlearned_key(replace(opened, **change), method, FAST, 1)
        for change in CHANGES.values()
    ]
    others += [
        unlearned.unlearned_key(opened, method, FAST, 2),
        unlearned.unlearned_key(opened, method, {}, 1),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(
            unlearned, "code_key", lambda *entries, methods=(): f"other code of {entries}"
        )
        others.append(unlearned.unlearned_key(opened, method, FAST, 1))
    assert len({known, *others}) == 1 + len(others)
    assert unlearned.unlearned_key(opened, method, dict(FAST), 1) == known


def test_how_a_question_is_put_is_in_every_key(opened, monkeypatch):
    """A template that reads the clock once gave features of one day and scores of another."""
    other = {"stage": vars(opened.stage), "evaluation": SHORT}
    before = study.open_study("forget10", **other)
    monkeypatch.setattr(study, "rendered", lambda tokenizer: "Who? (on another day)")
    after = study.open_study("forget10", **other)
    assert before.task_key != after.task_key and not {*before.identity.values()} & {
        *after.identity.values()
    }


def test_the_key_of_a_score_covers_all_that_decides_it(opened, monkeypatch):
    """Asked again for: another model, rows, attention mask, length of text, code; not for the kind
    of truth ratio.
    """
    asked = []

    def score(model, tokenizer, rows, scoring, tilts):
        asked.append(scoring)
        return [{"sets": {}, "T": None, "rows": {}, "settings": {}}]

    monkeypatch.setattr(study, "score", score)
    rows = {"forget": opened.evaluation_rows["forget"]}

    def ask(key="a model", rows=rows, generate=True, **change):
        before = len(asked)
        scoring = Scoring(generate=generate, **change)
        study.scored([key], lambda _: study.Loaded(None, None), rows, scoring, "cpu")
        return len(asked) > before

    assert ask() and not ask() and not ask(truth_ratio="arithmetic")
    assert (
        ask(key="another model")
        and ask(rows={"forget": rows["forget"][1:]})
        and ask(rows={"retain": rows["forget"]})
    )
    assert ask(attention_mask="openunlearning") and ask(max_new_tokens=7) and ask(generate=False)
    assert not ask(generate=False, max_new_tokens=8), "without text its length does not matter"
    monkeypatch.setattr(study, "code_key", lambda *entries, methods=(): f"other code of {entries}")
    assert ask()
