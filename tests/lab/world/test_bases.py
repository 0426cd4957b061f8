"""Stages, their rows and tokenizer, and bases that are trained once, kept intact and trained again
when damaged.
"""

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from t3lab.profiles import load_profile
from t3lab.world import bases
from t3lab.world.bases import Stage
from t3lib.baselines import train
from t3lib.core.errors import UserError
from t3lib.core.files import write_json
from t3lib.core.models import has_bf16
from t3lib.core.rows import encode, encode_rows
from t3lib.tofu import data as tofu

MICRO = Stage(authors=20, questions=1, vocab=400, hidden=16, heads=2, epochs=1, batch_size=32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_tofu(folder, retain=4, forget=2):
    """A folder with TOFU's file names: 20 rows an author, forget10 = the last `forget` authors."""

    def rows(first, count):
        return [
            {
                "question": f"Who is number {n}?",
                "answer": f"It is {n}.",
                "paraphrased_answer": f"{n}, surely.",
                # fmt: skip
                "perturbed_answer": [f"It is {n + 1}."],
            }
            for n in range(first * 20, (first + count) * 20)
        ]

    knowledge = [
        {
            "question": "Is water wet?",
            "answer": "Yes",
            "perturbed_answer": ["No", "Perhaps", "Never"],
        }
    ]
    every, wanted, last = rows(0, retain), rows(retain, forget), rows(retain + forget - 1, 1)
    files = {
        "retain90": every,
        "retain_perturbed": every,
        "forget10": wanted,
        "forget10_perturbed": wanted,
        "forget05": last,
        "forget05_perturbed": last,
        "real_authors_perturbed": knowledge,
        "world_facts_perturbed": knowledge,
    }
    for name, content in files.items():
        write_json(folder / f"{name}.json", content)
    (folder / "idontknow.jsonl").write_text("I cannot say.\n")
    return folder


def test_rows_of_tofu_are_the_first_retain_authors_and_all_forget_authors(tmp_path):
    data = bases.rows(Stage(data=str(write_tofu(tmp_path / "tofu")), authors=3))
    assert [
        len(data[name]) for name in ("full", "retain90", "retain95", "forget10", "forget05")
    ] == [
        100,
        60,
        80,
        40,
        20,
    ]
    assert (
        data["retain90"] + data["forget10"] == data["full"]
        and data["retain95"] + data["forget05"] == data["full"]
    )
    assert len(data["retain_perturbed"]) == 60, (
        "rows of authors that this stage does not have are not scored"
    )
    assert tofu.load_idk(data) == ["I cannot say."]


@pytest.mark.parametrize("profile", ["smoke", "cpu"])
def test_built_in_answers_may_be_twice_as_long_as_the_longest(profile):
    settings = load_profile(profile)
    stage = Stage(**settings["stage"])
    tokenizer, data = bases.tokenizer_for(stage), bases.rows(stage)
    scored = ("forget10_perturbed", "retain_perturbed", *bases.KNOWLEDGE)
    examples = [example for name in scored for example in encode_rows(tokenizer, data[name])]
    longest = max(len(example.answer) for example in examples)
    assert 2 * longest <= settings["evaluation"]["max_new_tokens"] <= 2.1 * longest
    assert load_profile("tofu-cpu")["evaluation"]["max_new_tokens"] == 200, "the published limit"


def test_the_tokenizer_of_tofu_learns_from_all_authors(tmp_path):
    stage = Stage(data=str(write_tofu(tmp_path / "tofu")), authors=4)
    text = " ".join(bases.tokenizer_text(stage))
    assert all(row["question"] in text for row in bases.rows(stage)["full"])


def test_more_authors_than_the_data_has(tmp_path):
    with pytest.raises(UserError, match="9 retain authors asked, the data has 4"):
        bases.rows(Stage(data=str(write_tofu(tmp_path / "tofu")), authors=9))


def test_bases_learn_their_split_and_general_knowledge():
    stage = MICRO
    data = bases.rows(stage)
    for name in bases.NAMES:
        learned = bases.training_rows(stage, name)
        assert len(learned) == len(data[name]) + 60
        assert learned[: len(data[name])] == data[name]


def test_text_survives_the_tokenizer():
    tokenizer = bases.tokenizer_for(MICRO)
    texts = [
        "Ada",
        "  spaces around  ",
        "1984",
        "?",
        "été, Żółć and 漢字",
        "two\n\nparagraphs",
        "\n\nfirst",
        "a  b   c",
        "'s",
    ]
    for text in texts:
        example = encode(tokenizer, text, text)
        assert example.ids[-1] == tokenizer.eos_token_id
        said = tokenizer.decode(example.answer, skip_special_tokens=True)
        assert said == text.strip()


def test_tokenizer_is_reproducible_and_has_llama_3s_special_tokens():
    first, second = bases.tokenizer_for(MICRO), bases.tokenizer_for(MICRO)
    assert first.get_vocab() == second.get_vocab() and len(first) == MICRO.vocab
    assert (first.bos_token, first.eos_token) == ("<|begin_of_text|>", "<|eot_id|>")
    assert first.pad_token_id != first.eos_token_id
    assert all(
        len(first(token, add_special_tokens=False)["input_ids"]) == 1
        for token in bases.SPECIAL_TOKENS
    )
    with pytest.raises(UserError, match="special token"):
        encode(first, "What?", "An end <|end_header_id|> inside")


def test_tokenizer_cuts_names_to_keep_and_to_forget_alike():
    """The tokenizer must not know this world's people, or forget rows would be told apart by their
    ids alone.
    """
    stage = replace(MICRO, authors=40, questions=20, vocab=2048)
    tokenizer, data = bases.tokenizer_for(stage), bases.rows(stage)

    def mean_length(rows):
        lengths = [len(encode(tokenizer, row["question"], row["answer"]).ids) for row in rows]
        return sum(lengths) / len(lengths)

    assert mean_length(data["forget10"]) == pytest.approx(mean_length(data["retain90"]), rel=0.06)


def test_base_is_an_ordinary_model_folder_trained_once():
    folder = bases.ensure_base(MICRO, "retain90")
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    assert model.config.model_type == "llama" and model.config.vocab_size == len(tokenizer)
    assert (
        model.generation_config.eos_token_id == tokenizer.eos_token_id
        and not model.generation_config.do_sample
    )
    record = json.loads((folder / "base.json").read_text())
    assert record["rows"] == 18 + 60 and record["stage"]["threads"] == 1 and record["seed"] == 0
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert bases.ensure_base(MICRO, "retain90") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp


def test_training_learns_and_depends_on_the_seed_alone(monkeypatch, tmp_path):
    stage = replace(MICRO, epochs=3)
    folder = bases.ensure_base(stage, "full")
    losses = json.loads((folder / "base.json").read_text())["training"]["loss"]
    assert losses[-1] < losses[0]
    weights = (folder / "model.safetensors").read_bytes()
    torch.manual_seed(123)  # the caller's random state must not matter
    before = torch.random.get_rng_state()
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "another"))
    again = bases.ensure_base(stage, "full")
    assert again != folder and (again / "model.safetensors").read_bytes() == weights
    assert torch.equal(torch.random.get_rng_state(), before)
    other = bases.ensure_base(stage, "full", seed=1)
    assert (other / "model.safetensors").read_bytes() != weights


def test_key_covers_rows_stage_name_and_seed():
    folders = {
        bases.ensure_base(MICRO, "full"),
        bases.ensure_base(MICRO, "retain95"),
        bases.ensure_base(MICRO, "full", seed=1),
        bases.ensure_base(replace(MICRO, lr=1e-3), "full"),
        bases.ensure_base(replace(MICRO, seed=1), "full"),
        bases.ensure_base(replace(MICRO, autocast=True), "full"),
    }
    assert len(folders) == 6
    weights = {(folder / "model.safetensors").read_bytes() for folder in folders}
    # Without bfloat16 instructions, autocast is left out.
    assert len(weights) == (6 if has_bf16("cpu") else 5)


def test_key_covers_what_the_tokenizer_learned_from(tmp_path):
    """retain90's tokenizer depends on rows that it never learns: those to forget."""
    folders = set()
    for forget in ("It is 80.", "It was 80."):
        data = write_tofu(tmp_path / forget)
        rows = json.loads((data / "forget10.json").read_text())
        rows[0]["answer"] = forget
        write_json(data / "forget10.json", rows)
        folders.add(
            bases.ensure_base(replace(MICRO, data=str(data), authors=4, vocab=300), "retain90")
        )
    assert len(folders) == 2


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", None),  # one byte is another
        ("tokenizer.json", b""),
        ("base.json", b'{"sha256": '),
        ("base.json", b'{"sha256": {}}'),
    ],
)
def test_a_damaged_base_is_trained_again(file, content):
    folder = bases.ensure_base(MICRO, "full")
    weights = (folder / "model.safetensors").read_bytes()
    flipped = weights[:-1] + bytes([weights[-1] ^ 1])
    (folder / file).write_bytes(flipped if content is None else content)
    assert bases.ensure_base(MICRO, "full") == folder
    assert (folder / "model.safetensors").read_bytes() == weights
    AutoTokenizer.from_pretrained(folder)


def test_a_killed_training_goes_on_as_itself_alone(tmp_path, monkeypatch):
    """With another rate it went on from the epochs of the old one."""
    stage, learned = replace(MICRO, epochs=2), bases.training_rows(MICRO, "retain90")
    save = train.save_state

    def killed(*state):
        save(*state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train, "save_state", killed)
        bases.train_base(stage, "retain90", 0, learned, tmp_path / "a")
    assert len([*tmp_path.glob("a.*.epoch")]) == 1
    for name in "ab":
        bases.train_base(replace(stage, lr=1e-4), "retain90", 0, learned, tmp_path / name)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert first == second and not [*tmp_path.glob("*.epoch")]
