"""The defaults of every method are said once, in `settings`: whoever else has a default has this
one.
"""

import dataclasses
import inspect
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch

from t3lab import profiles
from t3lab.files import read_yaml
from t3lib import cli
from t3lib.baselines.losses import BASELINES, LOSSES, settings_of
from t3lib.classifier.features import Features, extract_features
from t3lib.classifier.fit import fit_head
from t3lib.classifier.head import T3Head
from t3lib.core import settings
from t3lib.core.errors import UserError, printable
from t3lib.core.settings import FitSettings, check
from t3lib.own.unlearn import Choices
from t3lib.tofu.evaluation import Scoring
from t3lib.tofu.fit import fit_on_rows


def test_the_papers_choice_stands_where_the_paper_says_it():
    """Appendix "Hyperparameter Search": T3 on Llama-3.1-8B."""
    wanted = {
        "rank": 20,
        "lr": 5e-4,
        "epochs": 100,
        "warmup_epochs": 25,
        "batch_size": 32,
        "weight_decay": 1e-3,
    }
    assert (
        wanted
        | {"temperature": 2.5, "w": 1.0, "gate": 1.0, "tail": 0.0, "untrained": "as drawn"}
        | {"decay": "adamw", "init_b": "kaiming"}
        | {
            "prior": "balanced",
            "epoch": "redrawn",
        }
        == settings.T3
    )


def test_fit_head_head_and_unlearn_have_these_defaults():
    x, s = torch.randn(12, 8), torch.tensor([0, 0, 1, 1])
    features = Features(x, torch.arange(12), torch.arange(4).repeat_interleave(3), s)
    head = fit_head(features, vocab_size=16)
    assert head.info["hyperparameters"] == dataclasses.asdict(FitSettings())
    for name in ("rank", "init_b", "prior", "w", "temperature"):
        assert getattr(T3Head(8, 16), name) == getattr(head, name) == settings.T3[name]
    fitted = inspect.signature(fit_on_rows).parameters["settings"].default
    assert fitted == FitSettings()


def test_set_names_settings_that_exist():
    known = {field.name for field in dataclasses.fields(FitSettings)} | {"T", "steps"}
    known |= {"untrained", "template.NAME", "gate", "tail"}  # of own.unlearn.Choices
    assert {*cli.SETTINGS} <= known


def test_defaults_yaml_and_signatures_take_the_first_choice():
    defaults = read_yaml(profiles.profiles_dir() / "defaults.yaml")
    assert not defaults["hyper"] and not defaults["grids"], (
        "a method's defaults stand in t3lib.core.settings alone"
    )
    for name in ("attention_mask", "truth_ratio"):
        first = settings.CHOICES[name][0]
        assert defaults["evaluation"][name] == getattr(Scoring, name) == first
    words = "tofu evaluate --model x --split forget10 --out y".split()
    args = vars(cli.parser().parse_args(words))
    for name in ("attention_mask", "truth_ratio", "max_new_tokens"):
        assert args[name] == getattr(Scoring, name)
    for function in (extract_features, fit_on_rows):
        assert (
            inspect.signature(function).parameters["attention_mask"].default
            == settings.CHOICES["attention_mask"][0]
        )


def test_every_baseline_is_in_the_table_as_its_loss_wants_it():
    assert list(BASELINES) == list(LOSSES)
    for method, terms in LOSSES.items():
        own = BASELINES[method]
        assert ("alpha_r" in own) == (terms.retain is not None)
        for name, parameter in inspect.signature(terms.forget).parameters.items():
            if (
                name not in ("tokens", "inverse_tokens", "variant")
                and parameter.kind is parameter.KEYWORD_ONLY
            ):
                assert parameter.default == own[name], (method, name)


def test_changes_are_laid_over():
    assert settings_of("T3", {"lr": 1, "temperature": 3})["lr"] == 1 and settings.T3["lr"] == 5e-4
    assert settings_of("SimNPO", {"delta": 0.2, "bf16": True})["delta"] == 0.2


@pytest.mark.parametrize("name", sorted(settings.BOUNDS))
def test_numbers_out_of_bounds_or_of_no_number_are_refused(name):
    low, high = settings.BOUNDS[name]
    check(name, low)
    check(name, high)
    wrong = [
        math.nan,
        math.inf,
        -math.inf,
        1e39,
        10**400,
        -1,
        True,
        None,
        "2",
        "9" * 10**6,
        [1],
        {},
        2 + 1j,
    ]
    for value in wrong + ([2.5] if isinstance(low, int) else []):
        with pytest.raises(UserError, match=f"{name} must be a .*number") as error:
            check(name, value)
        assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    "kind", [int, np.int64, np.uint8, torch.tensor, lambda value: pd.Series([value]).iloc[0]]
)
def test_numbers_of_every_library_are_kept_as_pythons(kind, tmp_path):
    """A sweep or a data frame gives numbers of its own types; whole numbers are real ones, too."""
    fit = FitSettings(epochs=kind(30), warmup_epochs=kind(3), w=kind(2), seed=kind(4))
    choices = Choices(kind(3), kind(2), steps=kind(30), seed=kind(4), fit={"rank": kind(5)})
    head = T3Head(kind(8), kind(16), kind(3), w=kind(2), temperature=kind(3), seed=kind(4))
    chosen = settings_of("T3", {"rank": kind(5), "temperature": kind(3)})
    values = [*dataclasses.asdict(fit).values(), *chosen.values(), *head.config.values()]
    values += [choices.temperature, choices.strength, choices.steps, choices.seed, choices.fit]
    head.info = {"values": values}
    head.save_pretrained(tmp_path)
    assert {type(value) for value in values} <= {int, float, str, bool, dict, type(None)}
    assert (fit.epochs, choices.steps, choices.fit["rank"], head.rank) == (30, 30, 5, 3)


@pytest.mark.parametrize("name", ["seed", "w"])
def test_a_choice_of_its_own_is_no_further_setting(name):
    """Given twice, one of the two would be ignored."""
    with pytest.raises(UserError, match=f"fit: {name} is a choice of its own"):
        Choices(fit={name: 1})
    with pytest.raises(UserError, match="epochs and steps both say how long"):
        Choices(steps=30, fit={"epochs": 2})


@pytest.mark.parametrize("kind", [float, np.float32, np.float64, torch.tensor, Fraction])
def test_real_numbers_of_every_library_are_kept_as_pythons(kind):
    assert settings.check_temperature(kind(2.5)) == 2.5
    assert type(Choices(kind(2.5), kind(0.5)).strength) is float
    for wrong in (np.bool_(True), np.array([2.5]), torch.ones(2), np.float32("nan")):
        with pytest.raises(UserError, match="w must be a number"):
            check("w", wrong)
    with pytest.raises(UserError, match="rank must be a whole number"):
        check("rank", kind(2.5))


def test_foreign_text_is_printable_and_short():
    assert printable("Who is  Åsa\n\tNord?") == "Who is Åsa Nord?"
    assert printable("\x1b[31mred\x1b[0m \x07 \x9b2J") == "\\x1b[31mred\\x1b[0m \\x07 \\x9b2J"
    assert (
        printable("a\u202eb\u2066c\ufeffd\u2028e\x85f\ud800g")
        == "a\\u202eb\\u2066c\\ufeffd e f\\ud800g"
    )
    assert printable("می\u200cخواهم 👩\u200d🔬") == "می\u200cخواهم 👩\u200d🔬"
    long = printable("x" * 10**8)
    assert len(long) == 200 and long.endswith("x…")
    assert printable("\x00" * 150, 100) == "\\x00" * 24 + "\\x0" + "…"
    assert printable(12.5) == "12.5" and str(UserError("no\nsuch \x1b[2J")) == "no such \\x1b[2J"
