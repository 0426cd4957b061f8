"""Shared fixtures: a tiny tokenizer with Llama-3's chat template and a tiny random Llama. No
network, no GPU.

Torch and Transformers are imported by the fixtures that need them, so that tests of pure numpy
start at once. Tests pass in any order: `T3_TEST_ORDER=7 pytest tests` shuffles them with the seed
7, across files too.
"""

import os
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# One thread for torch, whoever imports it: two processes share two cores.
os.environ["OMP_NUM_THREADS"] = "1"
# Where there is a GPU, load_model would use it, and tests compare with tensors on the CPU.
if os.environ.get("T3_TEST_DEVICE", "cpu") == "cpu":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# On two busy cores an example of a property may take any time.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

SPECIAL = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|pad|>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


# As Qwen3's: without thinking, an empty block of thoughts ends the prompt; a chat's last answer
# always has one before it.
THINKING = TEMPLATE.replace(
    "{{ m['content'] | trim }}",
    "{% if loop.last and m['role'] == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m['content'] | trim }}",
).replace(
    "assistant<|end_header_id|>\n\n{% endif %}",
    "assistant<|end_header_id|>\n\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}",
)


def pytest_report_header() -> str:
    return (
        "order of the tests:"
        f" T3_TEST_ORDER={os.environ.get('T3_TEST_ORDER') or 'none, as they stand'}"
    )


# Fixtures of a session that take no time to make.
CHEAP = {"tokenizer", "tiny_model", "model_folder", "shared"}


def group_of(item: pytest.Item) -> str | None:
    """The expensive fixture that a test shares with others, or the notebook of a cell; else None.

    `make test` gives all tests of a group to one worker, so that the fixture is made once. A
    fixture that is made of another one of this kind is in the group of that one.
    """
    if item.path.suffix == ".ipynb":
        return str(item.path)
    found = {
        name: given[-1]
        for name, given in item._fixtureinfo.name2fixturedefs.items()  # type: ignore[attr-defined]
        if given[-1].baseid and given[-1].scope != "function" and name not in CHEAP
    }
    first = [name for name, each in found.items() if not {*each.argnames} & {*found}]
    return f"{found[first[0]].baseid}::{first[0]}" if first else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items if config.pluginmanager.hasplugin("xdist") else ():
        if group := group_of(item):
            item.add_marker(pytest.mark.xdist_group(group))
    if seed := os.environ.get("T3_TEST_ORDER"):
        random.Random(seed).shuffle(items)


def byte_tokenizer():
    """Every byte one token, plus the special tokens: no training, no files."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(SPECIAL + alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=SPECIAL[0],
        eos_token="<|eot_id|>",
        pad_token="<|pad|>",
        additional_special_tokens=SPECIAL[1:3],
        chat_template=TEMPLATE,
    )


def copy_checkout(folder: Path) -> Path:
    """Copy what `t3 reproduce` needs of the checkout into a folder, to be changed there."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("t3lib", "notebooks", "results/paper"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def edited(path: Path, *changes: tuple[str, str]) -> None:
    """Replace each old text, which occurs once, by the new one."""
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, (path.name, old)
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


@pytest.fixture(autouse=True)
def same_surroundings():
    """Every test starts with the same random state, and leaves the environment and the current
    folder as they were.

    A job that runs in this process sets both; what a later test starts would inherit its threads
    and its way with memory.
    """
    environment, folder = dict(os.environ), os.getcwd()
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
    yield
    os.chdir(folder)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


def tiny_llama(tokenizer):
    """A random two-layer Llama over the tokenizer's vocabulary."""
    import torch
    from families import DEVICE
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config).to(DEVICE).eval()


@pytest.fixture(scope="session")
def tiny_model(tokenizer):
    return tiny_llama(tokenizer)


@pytest.fixture(scope="session")
def model_folder(tiny_model, tokenizer, tmp_path_factory):
    """The tiny model and its tokenizer as a folder; not to be changed."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def memorised():
    """A small GPT-2 that knows its rows by heart: (model, tokenizer, forget, retain, other). Not to
    be changed.
    """
    from own_cases import memorised

    return memorised(0)


# Four texts of each kind in place of 16, few control rows, and texts of twice the truth's length.
FEW_TEXTS = {"TEXTS": 4, "CONTROL_ROWS": (6, 6), "TOKENS": 16}


@pytest.fixture
def few_texts(monkeypatch):
    """Few and short texts, where no finding depends on their number."""
    from t3lib.own import answers

    for name, value in FEW_TEXTS.items():
        monkeypatch.setattr(answers, name, value)


@pytest.fixture
def short_search(monkeypatch):
    """`t3 unlearn` with few lessons, steps and strengths, one sample, eight tokens an answer, where
    nobody reads its findings.

    A random model never ends an answer, and most of the time of such a test would go into its
    nonsense.
    """
    from dataclasses import replace

    from t3lib.own import answers, choice, lessons, questions
    from t3lib.own import unlearn as own

    for name in ("CHOOSING", "SEALED"):
        whole = getattr(questions, name)
        few = replace(whole, prefaces=whole.prefaces[:1], frames=whole.frames[:1])
        monkeypatch.setattr(questions, name, few)
    monkeypatch.setattr(lessons, "TOPICS", lessons.TOPICS[:1])

    # A random model knows no rows, and its head would not be fitted.
    monkeypatch.setattr(own, "is_unknown", lambda *_, **__: False)
    monkeypatch.setattr(own, "OWN_STEPS", 50)
    monkeypatch.setattr(lessons, "WORDINGS", (2, 1))
    monkeypatch.setattr(lessons, "FORMS", lessons.FORMS[:1])
    monkeypatch.setattr(lessons, "NEIGHBOURS", 1)
    monkeypatch.setattr(choice, "STRENGTHS", (1.0, 2.0))
    monkeypatch.setattr(answers, "TEXTS", 1)
    monkeypatch.setattr(answers, "rooms", lambda model, prompts, *_: [8] * len(prompts))


MICRO = {
    "authors": 20,
    "questions": 4,
    "hidden": 32,
    "layers": 2,
    "heads": 2,
    "epochs": 3,
    "vocab": 1600,
}


@pytest.fixture(scope="session")
def micro_study(tmp_path_factory):
    """A cache folder, and forget10 of a micro stage opened with it."""
    from t3lab.study import study

    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T3_CACHE", str(cache))
        return cache, study.open_study("forget10", stage=MICRO, evaluation={"max_new_tokens": 6})


@pytest.fixture
def few_unseen(monkeypatch):
    """40 rows that no base learned in place of 240, where no bound rests on an AUC."""
    from t3lab.study import audit

    monkeypatch.setattr(audit, "UNSEEN", 40)


@pytest.fixture
def opened(micro_study, few_unseen, monkeypatch):
    """forget10 of a micro stage. Its cache is the session's: a test that counts trainings takes
    settings of its own.
    """
    cache, whole = micro_study
    monkeypatch.setenv("T3_CACHE", str(cache))
    return whole


@pytest.fixture(scope="session")
def shared():
    """The folder of facts beside the checkout; tests that only it can serve are skipped
    without it.
    """
    if not SHARED.is_dir():
        pytest.skip("../shared is not here (a user's clone has none)")
    return SHARED
