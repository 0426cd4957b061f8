"""Bad profiles, run files, arguments and commands, with words of the line that refuses each."""

import copy
import gzip
import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fabricate import PROFILE_DEFAULTS, fabricate
from model_inputs import Change, cut, put
from row_inputs import lines
from table import TOKENIZER, Case, base, command, refused, tiny
from transformers import AutoModelForCausalLM, LlamaForCausalLM, MptConfig

from t3lab import profiles, results
from t3lab.bench.cost import shape_of
from t3lab.study import study
from t3lab.world import bases
from t3lab.world.facts import world
from t3lib.baselines import train
from t3lib.baselines.assistant import make_assistant
from t3lib.baselines.losses import settings_of
from t3lib.baselines.uld import ULDForCausalLM
from t3lib.baselines.unlearn import Task, unlearn_baseline
from t3lib.classifier.features import Features
from t3lib.classifier.fit import fit_head
from t3lib.classifier.head import T3Head
from t3lib.core.rows import encode_rows
from t3lib.core.settings import check_temperature
from t3lib.own.unlearn import Choices
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu import data as tofu

# ---- profiles -----------------------------------------------------------------------------------


def profile(text: str, folder: Path, name: str = "mine") -> dict[str, Any]:
    """The profile of this text, over `PROFILE_DEFAULTS`."""
    (folder / "defaults.yaml").write_text(PROFILE_DEFAULTS)
    (folder / "mine.yaml").write_text(text)
    return profiles.load_profile(name, folder)


PROFILES = [
    ("sedes: [1]", "unknown key sedes"),
    ("stage: {autors: 3}", "unknown key stage.autors"),
    ("evaluation: {mask: lengths}", "unknown key evaluation.mask"),
    (
        "evaluation: {attention_mask: none}",
        "evaluation.attention_mask: should be 'lengths' or 'openunlearning', not 'none'",
    ),
    (
        "evaluation: {max_new_tokens: many}",
        "evaluation.max_new_tokens: should be a valid integer, not 'many'",
    ),
    ("stage: {authors: 2.5}", "stage.authors: should be a valid integer, not 2.5"),
    ("stage: {authors: true}", "stage.authors: should be a valid integer, not True"),
    ("methods: [T4]", "'SimNPO' or 'T3', not 'T4'"),
    ("methods: T3", "methods: should be a valid list, not 'T3'"),
    ("methods: []", "methods: should hold at least one and each once, not []"),
    ("methods: [T3, T3]", "methods: should hold at least one and each once, not ['T3', 'T3']"),
    ("methods: [[T3]]", "methods.0: should be"),
    ("splits: [forget99]", "splits.0: should be 'forget05' or 'forget10', not 'forget99'"),
    ("splits: [../../etc]", "splits.0: should be 'forget05' or 'forget10', not '../../etc'"),
    ("seeds: [one]", "seeds.0: should be a valid integer, not 'one'"),
    ("seeds: [-1]", "seeds.0: should be greater than or equal to 0, not -1"),
    ("seeds: [true]", "seeds.0: should be a valid integer, not True"),
    ("temperatures: [0.5]", "temperatures.0: should be greater than or equal to 1, not 0.5"),
    (
        "temperatures: [.nan]",
        "temperatures.0: should be less than or equal to 1000000, not nan",
    ),
    (
        "temperatures: [.inf]",
        "temperatures.0: should be less than or equal to 1000000, not inf",
    ),
    (
        "models: {base: x}",
        "models.base: should be full, retain90, retain95 or such as retain90-seed1, not 'base'",
    ),
    ("models: {full: 3}", "models.full: should be a valid string, not 3"),
    (
        "data: no/such/folder",
        "data: should be builtin, customers, hub or a folder that is there, not 'no/such/folder'",
    ),
    ("hyper: {NPO: {gamma: 1}}", "hyper.NPO has no setting 'gamma': choose among accumulation"),
    ("hyper: {NPO: {lr: fast}}", "hyper.NPO: lr must be a number from"),
    ("hyper: {NPO: 3}", "hyper.NPO: should be a valid dictionary, not 3"),
    (
        "hyper: {NPO/forget05/hot: {lr: 1.0}}",
        "should be METHOD, METHOD/SPLIT or METHOD/SPLIT/T",
    ),
    ("hyper: {../NPO: {}}", "should be METHOD, METHOD/SPLIT or METHOD/SPLIT/T, not '../NPO'"),
    ("grids: {NPO: {lr: 1.0}}", "grids.NPO: should be a valid list"),
    ("grids: {NPO: [{beta: 0.1}, {lrr: 1.0}]}", "grids.NPO has no setting 'lrr'"),
    ("grids: {NPO: [{}, {}, {}, {}, {}, {}, {}, {}, {}]}", "at most 8 items"),
    (
        "notebooks: {02_tofu_unlearning: 3}",
        "notebooks.02_tofu_unlearning: should be a valid dictionary, not 3",
    ),
    ("- a\n- b", "must hold a mapping"),
    ("a: [1", "line 1: not valid YAML"),
    ("data: !!python/object/apply:os.system [exit]", "not valid YAML"),
    ("\x00", "not valid YAML"),
    (
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
        "not valid YAML (line 2: aliases are not read)",
    ),
    ("data: &data [*data]", "aliases are not read"),
    ("stage: {a: " + "[" * 50_000, "not valid YAML"),
    ("seeds: [" + "9" * 400 + "]", "seeds.0: should be less than 2147483648"),
    ("seeds: [" + "9" * 5000 + "]", "not valid YAML"),
    ("hyper: {NPO: {lr: " + "9" * 400 + "}}", "hyper.NPO: lr must be a number"),
    ("hyper: {NPO: {lr: 1e400}}", "hyper.NPO: lr must be a number"),
    ("seeds: [1]\n---\nseeds: [2]", "not valid YAML"),
    ("seeds: [2020-01-01]", "not valid YAML (Object of type date"),
    ("data: " + "x" * 300_000, "data: should be builtin, customers, hub or a folder that is"),
    ('models: {full: "\\x1b[2J\\u202e", retain: x}', "models.retain: should be"),
    ('data: "\\x1b[31m"', r"not '\x1b[31m'"),
]
NAMES = ["../other/mine", "..", "", ".", "a/b", "defaults", "no\nsuch", "-x", "~", "nope", "x\0"]
NAMES += ["../x", "a/../../x", "/etc/passwd", "..\\x"]
OVERRIDES = [
    ({"methods": ["t3"]}, "command line"),
    ({"splits": ["10"]}, "command line"),
    ({"seeds": [1, 1]}, "command line"),
    ({"seeds": []}, "command line"),
    ({"data": ""}, "command line"),
    ({"data": "no/where"}, "command line"),
]

# ---- run files ----------------------------------------------------------------------------------

RUNS = [
    ({"method": "Gradascent"}, "Gradascent"),
    ({"method": "../x"}, "method '../x' is not one of"),
    ({"split": "forget90"}, "forget90"),
    ({"split": "a/b"}, "split 'a/b' is not one of"),
    ({"status": "done"}, "done"),
    ({"seed": "1"}, "seed"),
    ({"T": "2.5"}, "T "),
    ({"w": "1"}, "w numbers"),
    ({"metrics": {"fq": 1.0}}, "mu_rouge"),
]


def written(change: dict[str, Any], folder: Path) -> Path:
    return results.write_run(folder / "out", fabricate("T3", "forget10", 2.5, 1) | change)


def read_runs(change: Change, folder: Path) -> Any:
    """Whether a run file is read as it was written, after a change of its folder."""
    place = results.write_run(folder / "runs", fabricate("NPO", "forget10", None, 1)).parent
    right = results.read_runs(place)
    change(place)
    return results.read_runs(place) == right


NAME = "NPO--forget10--Tnone--seed1"
OTHER = "NPO--forget10--Tnone--seed2"
PACKED = f"{NAME}{results.PACKED}"


def packed(content: bytes) -> Change:
    return lambda place: (place / PACKED).write_bytes(content)


DAMAGED_RUNS = [
    (lambda place: cut(place, f"{NAME}.json"), f"{NAME}.json"),
    (put(f"{NAME}.json", {"metrics": {"fq": 0.99}}), f"{NAME}.json: altered or damaged"),
    (put(f"{NAME}.json", "[]"), f"{NAME}.json"),
    (lambda place: (place / f"{NAME}.json").rename(place / f"{OTHER}.json"), f"{OTHER}.json"),
    (lambda place: (place / PACKED).unlink(), "records"),
    (lambda place: (place / PACKED).write_bytes((place / PACKED).read_bytes()[:-20]), "records"),
    *(
        (packed(content), "")
        for content in (b"", b"null", b"{}", b"x", gzip.compress(b"[" * 200_000))
    ),
    (packed(gzip.compress(bytes(results.LARGEST + 1), 1)), ""),
    (packed(gzip.compress(b'{"forget": []}')), "altered or damaged"),  # sound, of another run
    *(
        (put(f"{NAME}.json", {"records": name}), "")
        for name in ("", ".", "..", "/etc/passwd", "other.records.json.gz", None, 1)
    ),
]


def of_the_lab() -> list[Case]:
    """Profiles, and run files of all kinds."""
    named = [(text, f"mine.yaml…{said}") for text, said in PROFILES]
    shipped = profiles.load_profile("smoke")
    return [
        *refused(profile, named),
        *refused(lambda name, folder: profile("", folder, name), [(name, "") for name in NAMES]),
        *refused(lambda change, folder: profiles.override(shipped, **change), OVERRIDES),
        *refused(written, RUNS),
        *refused(read_runs, DAMAGED_RUNS),
    ]


# ---- arguments ----------------------------------------------------------------------------------

HEAD = [
    ({"rank": 0}, "rank"),
    ({"rank": 2.5}, "rank"),
    ({"prior": "flat"}, "prior"),
    ({"prior": "population"}, "gamma"),
    ({"prior": "population", "gamma": 1.0}, "gamma"),
    ({"mu": 0.0}, "mu"),
    ({"init_b": "ones"}, "init_b"),
    ({"w": 0}, "w must"),
    ({"temperature": math.nan}, "temperature"),
    ({"temperature": "2.5"}, "temperature"),
]


def features(change: Callable[[Features], Any] = lambda given: None) -> Features:
    """Of two rows of each kind, three tokens a row."""
    x, s = torch.randn(12, 8), torch.tensor([0, 0, 1, 1])
    made = Features(x, torch.arange(12), torch.arange(4).repeat_interleave(3), s)
    change(made)
    return made


FIT = {"epochs": 12, "warmup_epochs": 3, "lr": 5e-3, "batch_size": 5, "rank": 3}
FITS = [
    ({"rank": 0}, "rank must be a whole number from 1 to …, not 0"),
    ({"rank": 2.5}, "rank"),
    ({"rank": True}, "rank"),
    ({"epochs": 0}, "epochs"),
    ({"batch_size": -1}, "batch_size"),
    ({"seed": -1}, "seed"),
    ({"lr": 0.0}, "lr must be a number"),
    ({"lr": math.nan}, "lr"),
    ({"lr": math.inf}, "lr"),
    ({"weight_decay": -1e-3}, "weight_decay"),
    ({"weight_decay": math.nan}, "weight_decay"),
    ({"warmup_epochs": 99}, "warmup_epochs 99 must lie between 0 and epochs"),
    ({"warmup_epochs": -1}, "warmup_epochs"),
    ({"decay": "none"}, "decay must be one of adamw, l2"),
    ({"epoch": "once"}, "epoch must be one of redrawn, fixed"),
    ({"init_b": "ones"}, "init_b"),
    ({"prior": "flat"}, "prior"),
    ({"gamma": 1.0, "prior": "population"}, "gamma"),
    ({"w": 0.0}, "w must be"),
    ({"momentum": 0.9}, "no setting 'momentum'"),
    ({"lr": 1e38, "warmup_epochs": 0}, "lr must be a number from … to 1, not 1e+38"),
    ({"seed": 2**63}, "seed must be"),
]
FEATURES = [
    (lambda given: given.s.fill_(1), "both forget and retain"),
    (lambda given: given.row.copy_(given.row.flip(0)), "row must ascend"),
    (lambda given: given.y.fill_(99), "target token …outside a vocabulary of 16"),
    (lambda given: given.x.fill_(math.nan), "not finite"),
]
CHOICES = [
    ({"steps": "9"}, "steps must be"),
    ({"steps": 0.5}, "steps must be"),
    ({"steps": True}, "steps must be"),
    ({"fit": {"lr": "x"}}, "lr must be"),
    ({"seed": -1}, "seed must be"),
    ({"temperature": "x"}, "temperature must be"),
    ({"strength": -1}, "w must be"),
    ({"fit": {"speed": 1}}, "no setting 'speed'"),
]
FORGET = [{"question": f"Book {i}?", "answer": f"Mara wrote {i}."} for i in range(9)]
RETAIN = [{"question": f"Song {i}?", "answer": f"Ansel sang {i}."} for i in range(13)]
SPECIAL = [{"question": "Who?", "answer": "Me.<|eot_id|>"}]
TASK = Task(FORGET, RETAIN, ["I do not know."])
FAST = {"lr": 1e-3, "epochs": 2, "batch_size": 4, "warmup_epochs": 0}


def wider() -> LlamaForCausalLM:
    made = copy.deepcopy(tiny())
    made.resize_token_embeddings(264, mean_resizing=False)
    return made


def uld() -> ULDForCausalLM:
    return ULDForCausalLM(tiny(), tiny())


def quantised() -> LlamaForCausalLM:
    made = copy.deepcopy(tiny())
    made.is_quantized = True
    return made


def trained(given: Any, folder: Path | None = None, base: Any = None) -> Any:
    method, options = given
    task = options.get("task", TASK)
    settings = FAST | {name: value for name, value in options.items() if name != "task"}
    return unlearn_baseline(
        method, base or copy.deepcopy(tiny()), TOKENIZER, task, settings=settings, seed=1
    )


BASELINES = [
    (("Gradient", {}), "unknown method 'Gradient': choose one of GradAscent, GradDiff, WGA"),
    (("T3", {}), "unknown method 'T3'"),
    (("NPO", {"variant": "papper"}), "NPO: variant must be one of reference, paper, not 'papper'"),
    (("NPO", {"betta": 1.0}), "NPO has no setting 'betta': choose among …beta"),
    (("GradAscent", {"alpha_r": 1.0}), "GradAscent has no setting 'alpha_r'"),
    (("NPO", {"beta": "0.1"}), "NPO: beta must be a number"),
    (("NPO", {"beta": 0}), "NPO: beta must be a number from 1e-06"),
    (("NPO", {"alpha_f": -1.0}), "NPO: alpha_f must be a number from 0"),
    (("ULD", {"T": -1.0}), "ULD: T must be a number from 0"),
    (("NPO", {"bf16": 1}), "NPO: bf16 must be true or false, not 1"),
    (("NPO", {"lr": float("nan")}), "NPO: lr must be a number from 1e-12 to 1, not nan"),
    (("NPO", {"lr": 1e38}), "NPO: lr must be a number from 1e-12 to 1, not 1e"),
    (("NPO", {"lr": -1e-5}), "NPO: lr must be a number"),
    (("NPO", {"lr": 10**400}), "NPO: lr must be a number"),
    (("NPO", {"retain_loss": "mse"}), "NPO: retain_loss must be one of nll, kl"),
    (("NPO", {"alpha_f": 0, "alpha_r": 0}), "alpha_f and alpha_r are both 0"),
    (("NPO", {"epochs": 0}), "NPO: epochs must be a whole number from 1 to 100000, not 0"),
    (("NPO", {"epochs": 1.5}), "NPO: epochs must be a whole number from 1 to 100000, not 1.5"),
    (("NPO", {"batch_size": -1}), "batch_size must be"),
    (("NPO", {"accumulation": 0}), "accumulation must be"),
    (("NPO", {"warmup_epochs": 3}), "warmup_epochs 3 must lie between 0 and epochs (2)"),
    (("NPO", {"weight_decay": -0.1}), "weight_decay must be"),
    (("NPO", {"max_grad_norm": 0}), "max_grad_norm must be"),
    (("NPO", {"optimizer": "lion"}), "optimizer must be one of adamw, paged_adamw_8bit"),
    (("RMU", {"k": 3}), "k = 3: the model has layers 1 to 2"),
    (("RMU", {"k": 0}), "RMU: k must be a whole number from 1"),
    (("ULD", {"k": 33}), "k = 33: the model has layers 1 to 2"),
    (("ULD", {"rank": 0}), "ULD: rank must be a whole number from 1"),
    (("ULD", {"rank": 10**11}), "ULD: rank must be"),
    (
        ("IdkDPO", {"task": Task(FORGET, RETAIN)}),
        "IdkDPO needs …answers: the data has no idontknow file",
    ),
    (
        ("NPO", {"task": Task(RETAIN, FORGET)}),
        "the forget set has 13 rows, more than the 9 of the retain set",
    ),
    (("NPO", {"task": Task([], RETAIN)}), "the forget set has no rows"),
    (("NPO", {"task": Task(SPECIAL, RETAIN)}), "row 1: …special token"),
]
TRAININGS = [
    ({"lr": -1.0}, "lr must be a number from"),
    ({"epochs": 10**400}, "epochs must be a whole number"),
    ({"epochs": 1, "warmup_epochs": 2}, "warmup_epochs 2 must lie between 0 and epochs"),
    ({"optimizer": "lion"}, "optimizer must be one of"),
]
ASSISTANTS = [
    ((0, 2), "k = 0: the model has layers 1 to 2"),
    ((3, 2), "k = 3: the model has layers 1 to 2"),
    ((1.0, 2), "k = 1.0: the model has layers 1 to 2"),
    ((1, 0), "rank must be a whole number from 1"),
    ((1, 2.5), "rank must be a whole number …, not 2.5"),
]
STAGES = [{"vocab": 100}, {"hidden": 30, "heads": 4}, {"epochs": 0}, {"threads": 0}]
STAGES += [{"authors": -1}]
CALLS = [
    (lambda: train.finetune(tiny(), [], pad_id=0), "no examples"),
    (lambda: make_assistant(small_mpt(), 1), "MptForCausalLM has no list of decoder layers"),
    *(
        (lambda strength=value: ULDForCausalLM(tiny(), tiny(), strength), "strength")
        for value in ("1", None, True, -0.1, math.nan, math.inf)
    ),
    (lambda: ULDForCausalLM(tiny(), wider()), "assistant's vocabulary is 264, the base's 261"),
    (lambda: ULDForCausalLM(tiny(), copy.deepcopy(tiny()).to("meta")), "on meta, the base on cpu"),
    (lambda: ULDForCausalLM(tiny(), torch.nn.Linear(32, 261)), "causal language model"),
    (lambda: ULDForCausalLM(uld(), tiny()), "already unlearned"),
    (lambda: T3ForCausalLM(uld(), T3Head(32, 261, 3)), "already unlearned"),
    (lambda: uld().save_pretrained("anywhere"), "save the assistant"),
    (lambda: trained(("NPO", {}), base=quantised()), "the base is quantised: omit load_in"),
    (lambda: trained(("ULD", {}), base=quantised()), "the base is quantised: omit load_in"),
    (
        lambda: trained(("NPO", {"task": replace(TASK, original=wider())})),
        "the original model's vocabulary has 264 tokens, the model's 261",
    ),
    (lambda: settings_of("Original", {}), "unknown method 'Original'"),
    (lambda: settings_of("T3", {"beta": 1.0}), "T3 has no setting 'beta': choose among batch_size"),
    (lambda: settings_of("T3", {"seed": 1}), "no setting 'seed'"),
    *(
        (lambda value=value: check_temperature(value), "temperature")
        for value in ("2.5", None, True, math.nan, math.inf, 0, -1, 0.5, 1e39, 10**400)
    ),
    (lambda: shape_of("llama-9"), "unknown shape 'llama-9': choose one of llama-3.1-70b, "),
    (lambda: shape_of("../x"), "unknown shape"),
    (lambda: tofu.retain_of("../x"), "unknown split"),
    (lambda: tofu.load_idk({"full": []}), "idontknow holds no answers"),
    (lambda: study.open_study("forget50"), "unknown split 'forget50'"),
    (
        lambda: study.open_study("forget05", models={"full": "x", "retain90": "y"}),
        "models: retain95 is missing",
    ),
    (lambda: study.open_study("forget10", evaluation={"mask": 1}), "unknown evaluation setting"),
    (lambda: study.stage_of("builtin", {"autors": 3}), "unknown setting 'autors'"),
    *(
        (lambda size=size: world(*size), "authors and 1 to")
        for size in ((19, 5), (40, 0), (40, 999), (10_000, 1))
    ),
    *((lambda wrong=wrong: bases.Stage(**wrong), "stage: ") for wrong in STAGES),
    (lambda: bases.training_rows(bases.Stage(authors=20, questions=1), "retain99"), "unknown base"),
    (lambda: results.paper_table(9), "table9.csv"),
]


def small_mpt() -> Any:
    """Its decoder calls its layers `blocks`."""
    sizes = {"vocab_size": 61, "d_model": 16, "n_layers": 1, "n_heads": 2}
    return AutoModelForCausalLM.from_config(MptConfig(**sizes))


def of_calls() -> list[Case]:
    """Arguments of public functions."""
    fit = partial(fit_head, vocab_size=16)
    finetune = partial(train.finetune, examples=encode_rows(TOKENIZER, FORGET), pad_id=0)
    return [
        *refused(lambda given, folder: T3Head(8, 13, **given), HEAD),
        *refused(lambda given, folder: fit(features(), **FIT | given), FITS),
        *refused(lambda change, folder: fit(features(change), **FIT), FEATURES),
        *refused(lambda given, folder: Choices(**given), CHOICES),
        *refused(trained, BASELINES),
        *refused(lambda given, folder: finetune(tiny(), **given), TRAININGS),
        *refused(lambda given, folder: make_assistant(tiny(), given[0], rank=given[1]), ASSISTANTS),
        *refused(lambda call, folder: call(), CALLS),
    ]


# ---- commands -----------------------------------------------------------------------------------

OWN = ["--forget", "f.jsonl", "--retain", "r.jsonl"]
ON = ["--model", "x", "--out", "out", *OWN]
SPLIT = ["--split", "forget10", "--out", "out"]


def sets(**settings: Any) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


COMMANDS = [
    ([], "VERB"),
    (["unlearn", "--model", "x"], "--out"),
    (["unlearn", "--model", "x", "--out", "out", "--forget", "f.jsonl"], "--retain"),
    (["evaluate", *ON, "-T", "2"], "-T needs --head"),
    (["evaluate", *ON, "-w", "2"], "-w needs --head"),
    (["evaluate", *ON, "-T", "hot", "--head", "h"], "invalid float"),
    (["evaluate", *ON, "-T", "nan", "--head", "h"], "temperature must be"),
    (["evaluate", *ON, "-T", "0.5", "--head", "h"], "below 1"),
    (["evaluate", *ON, "--temperature", "2", "--head", "h"], "there is no --temperature"),
    (["evaluate", *ON, "--columns", "question"], "not a list of pairs"),
    (["evaluate", *ON, "--system", "x", "--no-system"], "not allowed with"),
    (["evaluate", "--model", "x", "--out", "/dev/null", *OWN], "is not a folder"),
    (["evaluate", "--model", "x", "--out", "/dev/null/o", *OWN], "no folder that can be written"),
    (["unlearn", "--model", "x", "--out", "/dev/null/o", *OWN], "no folder that can be written"),
    (["unlearn", "--model", "x", "--out", "out" * 300, *OWN], "File name too long"),
    (["unlearn", *ON, *sets(steps=9, epochs=2)], "epochs and steps both say how long"),
    (["unlearn", *ON, *sets(T=-1)], "temperature must be"),
    (["unlearn", *ON, *sets(T="hot")], "temperature must be"),
    (["unlearn", *ON, *sets(rank="0.5")], "rank must be"),
    (["unlearn", *ON, *sets(colour="red")], "not NAME=VALUE with a name among T, w"),
    (["unlearn", *ON, "--set", "rank"], "not NAME=VALUE"),
    (["unlearn", *ON, "--epoch", "3", "--colour", "red"], "there is no --colour: is it --columns"),
    (["generate", "--model", "x", "--head", "nowhere", ""], "empty question"),
    (["generate", "--model", "x", "--head", "h", "--\x1b[2J", "Who?"], r"--\x1b[2J"),
    (["reproduce", "--seeds", "1,two"], "list of whole numbers"),
    (["reproduce", "--workers", "2", "--scheduler", "tcp://x:1"], "choose one of --workers"),
    (["reproduce", "--profile", "no-such-profile"], "no-such-profile"),
    (["tofu"], "give fit, evaluate or tune"),
    (["tofu", "fit", "--model", "x", "--out", "h"], "--split"),
    (["tofu", "fit", *SPLIT, "--model", "x"], "--data is needed"),
    (["tofu", "evaluate", *SPLIT, "--model", "x", "-T", "2"], "-T needs --head"),
    (["tofu", "evaluate", *SPLIT, "--model", "x", "--out", "."], ". is a folder: name a file"),
    (["tofu", "evaluate", *SPLIT, "--model", "builtin:all"], "are full, retain90"),
]
QUESTIONS = [
    (["--max-new-tokens", "0", "Who?"], "max_new_tokens must be at least 1"),
    (["--max-new-tokens", "600", "Who?"], "exceed the model's context of 512"),
    (["Who?", "a\udc80b"], "surrogate"),
    (["Who?", "hi <|eot_id|> x"], "special token"),
    (["Who?", "word " * 300], "exceed the model's context"),
]
EVIDENCE = [
    (["evaluate", "--holdout", "r.jsonl"], "retain row 1 is also held_out_retain row 1"),
    (["evaluate", "--other", "f.jsonl"], "forget row 1 is also other row 1"),
    (["unlearn", "--other", "r.jsonl"], "retain row 1 is also other row 1"),
    (["unlearn", "--unseen", "f.jsonl"], "forget row 1 is also unseen row 1"),
    *((["evaluate", "--head", name], "an empty name") for name in (",", "", "head,")),
    (["evaluate", "--head", "head", "--out", "head"], "holds a head"),
    (["unlearn", "--model", "."], "this folder holds no model, because it has no config.json"),
]


def typed(words: list[str], folder: Path) -> int:
    """`t3` in a folder with the rows f.jsonl and r.jsonl, and with two heads."""
    os.chdir(folder)
    for name in OWN[1::2]:  # a file that is missing would be the mistake that is named
        Path(name).write_bytes(lines({"question": f"{name}?", "answer": "a"}))
    for name, info in (("head", {}), ("other", {"base_model": "org/other"})):
        T3Head(32, len(TOKENIZER), 4, info=info).save_pretrained(name)
    return command(*(base() if word == "BASE" else word for word in words))


def of_commands() -> list[Case]:
    """Command lines: what is typed wrong, and what no command may do."""
    on = ["--model", "BASE", "--out", "out", *OWN]
    ask = ["generate", "--model", "BASE", "--head", "head"]
    return [
        *refused(typed, COMMANDS),
        *refused(typed, [([*ask, *more], said) for more, said in QUESTIONS]),
        *refused(typed, [([verb, *on, *more], said) for (verb, *more), said in EVIDENCE]),
        *refused(typed, [([*ask[:-1], "other", "Who?"], "trained on org/other")]),
    ]
