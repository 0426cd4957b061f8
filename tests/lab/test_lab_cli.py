"""The verbs that regenerate the paper, and one model on one split of TOFU."""

import json
import os
import shutil
import warnings

import pytest
from conftest import ROOT, TEMPLATE, byte_tokenizer

from t3lab import results
from t3lib import cli
from t3lib.classifier.head import T3Head
from t3lib.tofu import evaluation


def test_results_of_uncommitted_code_are_refused_in_one_line(monkeypatch, capsys):
    """Before anything runs; --dry-run writes nothing."""
    monkeypatch.setattr(results.origin, "_git_state", lambda: ("c", True))
    monkeypatch.setattr("t3lab.grid.reproduce.reproduce", lambda *_, **__: 0)
    argv = ["reproduce", "--profile", "cpu", "--only", "05_paper_tables"]
    argv += ["--out", str(ROOT / "results" / "profiles" / "cpu")]
    for more, code in (([], 2), (["--dry-run"], 0)):
        assert cli.main([*argv, *more]) == code
    err = capsys.readouterr().err
    assert (
        err.count("\n") == 1
        and "commit your changes first" in err
        and "results/profiles/cpu" in err
    )


@pytest.fixture
def place(model_folder, tokenizer, tmp_path):
    """A model folder, a head that fits it, and a folder with TOFU's files."""
    shutil.copytree(model_folder, tmp_path / "model")
    T3Head(32, len(tokenizer), 4).save_pretrained(tmp_path / "head")
    for name in ("forget10", "retain90", "retain", "real_authors", "world_facts"):
        row = {"question": f"Who is {name}?", "answer": "Ada.", "perturbed_answer": ["Bob.", "Cy."]}
        row |= {"paraphrased_answer": "It is Ada."}
        text = "\n".join(json.dumps(row | {"question": f"{row['question']} {n}"}) for n in range(2))
        for end in ("", "_perturbed"):
            (tmp_path / f"{name}{end}.json").write_text(text)
    return tmp_path


def on(place, verb, *more):
    model = ["--model", str(place / "model"), "--data", str(place), "--split", "forget10"]
    return ["tofu", verb, *model, *more]


def test_template_arguments_of_a_split_stay_in_the_head(place, capsys, monkeypatch):
    head, prompts, real = place / "fitted", [], evaluation.greedy
    (place / "model" / "chat_template.jinja").write_text("{% if calm %}calm{% endif %}" + TEMPLATE)
    few = ["--set", "epochs=1", "--set", "template.calm=true", "--out", str(head)]
    assert cli.main(on(place, "fit", *few)) == 0
    assert T3Head.from_pretrained(head).info["template"] == {"calm": True}

    def seen(model, ids, *args, **kwargs):
        prompts.extend(ids)
        return real(model, ids, *args, **kwargs)

    monkeypatch.setattr(evaluation, "greedy", seen)
    argv = ["--head", str(head), "--out", str(place / "f.json"), "--max-new-tokens", "2"]
    reference = ["--reference", str(place / "model")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cli.main(on(place, "evaluate", *argv, *reference)) == 0
    start = byte_tokenizer()("calm", add_special_tokens=False)["input_ids"]
    assert prompts and all(ids[:4] == start for ids in prompts)
    assert capsys.readouterr().err.count("template arguments of the head") == 2


def test_fit_and_evaluate_one_model_on_a_split(place, capsys):
    head, out = place / "fitted", place / "report.json"
    sets = [f"--set={each}" for each in ("epochs=1", "T=2", "tail=0.01", "gate=0.9")]
    assert cli.main(on(place, "fit", *sets, "--out", str(head))) == 0
    saved = T3Head.from_pretrained(head)
    assert (saved.temperature, saved.info["split"]) == (2.0, "forget10")
    assert (saved.tail, saved.gate) == (0.01, 0.9)
    assert cli.main(on(place, "fit", "--set", "tail=2", "--out", str(place / "no"))) == 2
    assert "tail" in capsys.readouterr().err
    argv = on(place, "evaluate", "--head", str(head), "--out", str(out), "--max-new-tokens", "2")
    assert cli.main([*argv, "-T", "1,2"]) == 0
    reports = json.loads(out.read_text())["by_temperature"]
    assert [report["T"] for report in reports] == [1.0, 2.0]
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert [line.split(":")[0] for line in lines[-2:]] == ["T=1", "T=2"]
    why = "tofu evaluate: privleak and mia_* stay empty: data folder"
    assert why in said.err and "has no holdout10.json" in said.err
    suite = reports[0]["open_unlearning"]
    assert suite["privleak"] is None and suite["mia_loss"] is None
    assert suite["forget_Q_A_ROUGE"] == reports[0]["forget"]["rouge"]
    assert reports[0]["components"]["ra_prob"] is not None
    assert cli.main([*argv, "-T", "0.5"]) == 2 and "below 1" in capsys.readouterr().err


def test_an_audit_by_command_is_refused_in_one_line_that_names_the_notebook(capsys):
    for more in ([], ["--help"], ["--model", "builtin:full", "--split", "forget10", "--out", "x"]):
        assert cli.main(["tofu", "audit", *more]) == 2
        said = capsys.readouterr()
        assert not said.out and said.err.count("\n") == 1
        assert "t3 reproduce --only 06_audit" in said.err
    assert "audit" not in cli.parser().format_help()


def test_an_evaluation_has_every_name_of_openunlearnings_suite(place):
    shutil.copy(place / "retain90.json", place / "holdout10.json")
    few = ["--max-new-tokens", "2", "--reference"]

    def measured(name, reference, *more):
        argv = on(place, "evaluate", *more, "--out", str(place / name), *few, str(reference))
        assert cli.main(argv) == 0
        return json.loads((place / name).read_text())["open_unlearning"]

    found = measured("base.json", place / "model")
    assert found["privleak"] == 0.0, "the model is its own reference"
    names = "forget_quality forget_Q_A_Prob forget_Q_A_ROUGE forget_Truth_Ratio model_utility"
    names += " extraction_strength exact_memorization mia_loss mia_zlib mia_min_k"
    assert {*found} == {*names.split(), "mia_min_k_plus_plus", "privleak"}
    assert not [name for name, value in found.items() if value is None]
    record = json.loads((place / "base.json").read_text())
    record["open_unlearning"]["mia_min_k"] = 0.2
    (place / "retrained.json").write_text(json.dumps(record))
    tilted = measured("head.json", place / "retrained.json", "--head", str(place / "head"))
    expected = 100 * (0.2 - tilted["mia_min_k"]) / 0.8
    assert tilted["privleak"] == pytest.approx(expected, abs=1e-6)
    assert tilted["mia_min_k_plus_plus"] is not None


def test_openunlearnings_logs_go_out_and_come_back(place, capsys):
    """A head's evaluation as TOFU_EVAL.json is the reference of the next one: the same model."""
    shutil.copy(place / "retain90.json", place / "holdout10.json")
    logs, report = place / "TOFU_EVAL.json", place / "report.json"
    few = ["--head", str(place / "head"), "--out", str(report), "--max-new-tokens", "2"]
    there = [*few, "--attention-mask", "openunlearning"]
    write, read = ["--openunlearning", str(logs)], ["--reference", str(logs)]
    for wrong, why in (
        ([*few, *write], "--attention-mask openunlearning"),
        ([*there, *write, "-T", "1,2"], "give one T"),
    ):
        assert cli.main(on(place, "evaluate", *wrong)) == 2
        assert why in capsys.readouterr().err and not logs.exists()

    assert cli.main(on(place, "evaluate", *there, *write)) == 0
    assert cli.main(on(place, "evaluate", *there, *read)) == 0
    found = json.loads(report.read_text())
    assert (found["forget_quality"], found["open_unlearning"]["privleak"]) == (1.0, 0.0)

    # published logs are of two settings, of a number of rows, and may lack what is needed
    content = json.loads(logs.read_text())
    del content["forget_truth_ratio"]["value_by_index"]["1"]
    (place / "fewer.json").write_text(json.dumps(content))
    (place / "none.json").write_text(json.dumps({"model_utility": {"agg_value": 0.5}}))
    for argv, why in (
        ([*few, *read], "attention_mask 'openunlearning', this run uses 'lengths'"),
        ([*there, "--reference", str(place / "fewer.json")], "1 truth ratios, the forget set 2"),
        ([*there, "--reference", str(place / "none.json")], "nor forget_truth_ratio"),
    ):
        capsys.readouterr()
        assert cli.main(on(place, "evaluate", *argv)) == 2
        said = capsys.readouterr().err.splitlines()
        assert why in said[-1] and len(said) == 1


@pytest.mark.parametrize(
    "line",
    [
        "tofu evaluate --model MODEL --data hub --split forget10 --out OUT",
        "tofu fit --model MODEL --data hub --split forget10 --out OUT",
        "tofu evaluate --model builtin:full --data hub --split forget10 --out OUT",
    ],
)
def test_tofu_of_a_hub_that_is_away_is_one_line_at_once(line, place, monkeypatch, capsys):
    """datasets by itself would ask for half a minute, and end in its HTTP library's traceback."""

    def away(self, name, **options):
        raise OSError("no route\nto host")

    monkeypatch.setenv("T3_CACHE", str(place / "cache"))
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", away)
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: pytest.fail("asked again"))
    words = line.replace("MODEL", str(place / "model")).replace("OUT", str(place / "out")).split()
    assert cli.main(words) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert "locuslab/TOFU" in said and "the Hub cannot be reached" in said


def test_compare_sets_a_folder_beside_the_committed_results_of_its_profile(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("t3lab.grid.status.project_root", lambda: tmp_path)
    for folder, score in (("out/tiny", 0.25), ("results/profiles/tiny", 0.5)):
        (tmp_path / folder / "tables").mkdir(parents=True)
        (tmp_path / folder / "tables" / "tofu.csv").write_text(f"method,fq\nNPO\x1b,{score}\n")
        (tmp_path / folder / "manifest.json").write_text('{"profile": "tiny"}')
    ours, theirs = tmp_path / "out" / "tiny", tmp_path / "results" / "profiles" / "tiny"
    assert cli.main(["compare", str(ours)]) == 1
    printed = capsys.readouterr().out
    assert f"a: {ours}, b: {theirs}" in printed and "\x1b" not in printed
    compared = "1 cell differs in 1 table: tofu; compared: 0 runs, 1 table of 1"
    assert printed.splitlines()[-1] == compared
    for folder, why in ((tmp_path / "out" / "tiyn", "tiyn: no such folder"), (ours, "give two")):
        (ours / "manifest.json").unlink(missing_ok=True)
        assert cli.main(["compare", str(folder)]) == 2
        said = capsys.readouterr().err
        assert why in said and said.count("\n") == 1

    # the same sentence ends a reproduction of the profile, which may have no table in common
    (ours / "manifest.json").write_text('{"profile": "tiny"}')
    (tmp_path / "tiny.yaml").write_text("methods: [NPO]")
    monkeypatch.setattr("t3lab.grid.reproduce.reproduce", lambda *_, **__: 0)
    argv = ["reproduce", "--profile", str(tmp_path / "tiny.yaml"), "--out", str(ours)]
    assert cli.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"beside results/profiles/tiny: {compared} (t3 compare {os.path.relpath(ours)})"
    ]
    (ours / "tables" / "tofu.csv").unlink()
    assert cli.main(argv) == 0
    assert "have no run in common" in capsys.readouterr().out
    for more in ("--dry-run", f"--out={theirs}"):
        assert cli.main([*argv, more]) == 0
        assert not capsys.readouterr().out
