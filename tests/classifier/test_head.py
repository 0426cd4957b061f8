"""T3Head: the formula, the prior correction, the artefact, and everything it refuses."""

import copy
import json
import math
from types import SimpleNamespace

import pytest
import torch
from fabricate import INFO
from families import HIDDEN, VOCAB, family
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from torch import nn

from t3lib.classifier import artefact
from t3lib.classifier.head import T3Head, log_tilt
from t3lib.core.errors import UserError
from t3lib.core.hub import Place
from t3lib.core.rows import SYSTEM, encode_rows, prompt
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM


def test_initial_values_are_those_of_nn_linear():
    head = T3Head(64, 300, rank=8, seed=5)
    for weight, fan_in in ((head.A, 64), (head.B, 8)):
        bound = 1 / math.sqrt(fan_in)
        assert weight.abs().max() <= bound and weight.abs().max() > 0.98 * bound
        assert weight.std().item() == pytest.approx(
            nn.Linear(fan_in, 400, bias=False).weight.std().item(), rel=0.1
        )
    assert torch.equal(head.A, T3Head(64, 300, rank=8, seed=5).A)
    assert not torch.equal(head.A, T3Head(64, 300, rank=8, seed=6).A)
    assert T3Head(64, 300, init_b="zero").B.count_nonzero() == 0
    assert (
        T3Head(4096, 128256, rank=20).num_parameters == 2_647_040
    )  # 2.65e6 in the paper's Table 2


def test_logf_is_log_sigmoid_of_b_a_mean():
    head = T3Head(8, 13, rank=3).double()
    hidden = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    f = 1 / (1 + torch.exp(-(hidden.double().mean(1) @ head.A.T @ head.B.T)))
    torch.testing.assert_close(
        head.logf(head.project(hidden).mean(1)), f.log().float(), atol=1e-6, rtol=1e-6
    )
    torch.testing.assert_close(head(hidden.mean(1)), f.log().float(), atol=1e-6, rtol=1e-6)


def test_scores_are_float32_whatever_the_weights_or_autocast():
    head = T3Head(8, 13, rank=3)
    z = head.project(torch.ones(1, 8, dtype=torch.bfloat16))
    half = T3Head(8, 13, rank=3).to(torch.bfloat16)
    assert z.dtype == half.project(torch.ones(1, 8)).dtype == half.logf(z).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(head.project(torch.ones(1, 8)), z)
        assert head.logf(z).dtype == torch.float32


@pytest.mark.parametrize("gamma, mu", [(0.1, 0.5), (0.01, 0.3), (0.5, 0.5), (0.7, 0.2)])
def test_population_prior_is_appendix_d(gamma, mu):
    u = torch.linspace(-30, 30, 61, dtype=torch.float64)
    f = 1 / (1 + torch.exp(-u))
    ratio = mu * f / ((mu - gamma) * f + gamma * (1 - mu))
    torch.testing.assert_close(log_tilt(u, gamma=gamma, mu=mu), ratio.log(), atol=1e-9, rtol=1e-9)
    if (
        gamma == mu
    ):  # "when gamma = mu we recover the same estimator": equal up to the constant 1 / (1 - gamma)
        torch.testing.assert_close(
            log_tilt(u, gamma=gamma, mu=mu) - log_tilt(u), torch.full_like(u, math.log(2))
        )
    head = T3Head(8, 13, rank=3, prior="population", gamma=gamma, mu=mu)
    z = torch.randn(4, 3)
    torch.testing.assert_close(head.logf(z), log_tilt(head.logit(z), gamma=gamma, mu=mu))


def test_log_tilt_is_stable_and_sharpens():
    u = torch.tensor([-1e4, 0.0, 1e4])
    torch.testing.assert_close(log_tilt(u), torch.tensor([-1e4, -math.log(2), 0.0]))
    assert torch.isfinite(log_tilt(u, gamma=0.1)).all()
    torch.testing.assert_close(log_tilt(u, w=2.5), 2.5 * log_tilt(u))


def test_tokens_without_a_target_are_neutral_where_that_is_wanted(tmp_path):
    head, z = T3Head(8, 13, rank=3, w=2.0), torch.randn(4, 3)
    want = head.logf(z)
    head.untrained = "neutral"
    with pytest.raises(UserError, match="does not say which tokens it was trained on"):
        head.logf(z)
    head.taught = torch.arange(13) % 2 == 0
    want[:, 1::2] = 0.0
    assert torch.equal(head.logf(z), want)
    head.save_pretrained(tmp_path)
    again = T3Head.from_pretrained(tmp_path)
    assert again.untrained == "neutral" and torch.equal(again.logf(z), want)
    with pytest.raises(UserError, match="untrained must be one of as drawn, neutral"):
        T3Head(8, 13, rank=3, untrained="zero")


@pytest.mark.parametrize("other", [1, 3, None])
def test_a_head_of_another_format_is_one_line(tmp_path, other):
    T3Head(8, 13, rank=3).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["format"] == 2
    (tmp_path / "config.json").write_text(json.dumps(config | {"format": other}))
    with pytest.raises(UserError, match="another version .*: train the head again"):
        T3Head.from_pretrained(tmp_path)


@pytest.fixture
def saved(tmp_path):
    head = T3Head(
        8, 13, rank=3, prior="population", gamma=0.1, temperature=2.0, w=1.5, info=INFO, seed=7
    )
    head.save_pretrained(tmp_path / "head")
    return head, tmp_path / "head"


def test_round_trip_is_bit_exact_and_names_everything(saved):
    head, folder = saved
    again = T3Head.from_pretrained(folder)
    assert torch.equal(again.A, head.A) and torch.equal(again.B, head.B)
    assert again.config == head.config and not again.training
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    card = (folder / "README.md").read_text()
    for text in (
        "org/base",
        "abc123",
        "0123",
        "forget10",
        "| Seed | 4 |",
        "| org/base |\n| Base revision | abc123 |\n",  # no empty line ends the table
        "0.0005",
        "0.91",
        "T3ForCausalLM",
        "| 2.0 |",
    ):
        assert text in card
    assert card.startswith("---\nlibrary_name: t3lib")


def test_a_folder_of_the_home_directory_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    T3Head(8, 13, rank=3, w=2.0).save_pretrained("~/head")
    assert (tmp_path / "head" / "config.json").is_file() and not (tmp_path / "~").exists()
    assert T3Head.from_pretrained("~/head").w == 2.0


def test_saving_replaces_an_older_head_whole(saved):
    _, folder = saved
    newer = T3Head(8, 13, rank=3, seed=8, info={"split": "forget05"})
    newer.save_pretrained(folder, config={"metrics": {"fq": 0.5}})
    again = T3Head.from_pretrained(folder)
    assert torch.equal(again.A, newer.A)
    assert again.info == {"split": "forget05", "metrics": {"fq": 0.5}}
    assert "forget10" not in (folder / "README.md").read_text()


def test_bfloat16_head_round_trip(tmp_path):
    head = T3Head(8, 13, rank=3).to(torch.bfloat16)
    head.save_pretrained(tmp_path)
    assert torch.equal(T3Head.from_pretrained(tmp_path).B, head.B)


def test_info_that_is_not_json_is_refused_and_leaves_the_old_head(saved):
    head, folder = saved
    broken = T3Head(8, 13, rank=3, seed=9, info={"metrics": {"fq": float("nan")}})
    with pytest.raises(UserError, match="JSON"):
        broken.save_pretrained(folder)
    assert torch.equal(T3Head.from_pretrained(folder).A, head.A)


def test_another_tokenizer_is_refused_where_one_is_given(tokenizer):
    base = family("llama")
    head = T3Head(HIDDEN, VOCAB, 3, info={"tokenizer_hash": belonging.tokenizer_hash(tokenizer)})
    assert T3ForCausalLM(base, head, tokenizer=tokenizer).temperature == 2.5
    head.info["tokenizer_hash"] = "0" * 16
    with pytest.raises(UserError, match="another tokenizer"):
        T3ForCausalLM(base, head, tokenizer=tokenizer)


def test_another_form_of_prompt_warns_and_an_old_head_does_not(tokenizer, recwarn):
    row = {"question": "Who?", "answer": "Ada."}
    brief, bare = {**row, "system": "Be brief."}, {**row, "system": None}
    form, none = (belonging.prompt_form(tokenizer, [each]) for each in (row, bare))
    asked = prompt(tokenizer, "Who?")
    hidden = none | {"attention_mask": "openunlearning", "prompt": asked}
    plain, other, padded = (copy.deepcopy(tokenizer) for _ in range(3))
    plain.chat_template, other.chat_template = None, tokenizer.chat_template + " "
    padded.pad_token = padded.convert_ids_to_tokens(encode_rows(padded, [bare])[0].ids[-1])
    for info, words, question, said in (
        (form, tokenizer, row, ""),
        ({}, tokenizer, brief, ""),  # an old head, which recorded nothing
        (form, tokenizer, brief, "text 'You are a helpful assistant.', not 'Be brief.'"),
        (none, tokenizer, bare, ""),  # a recorded null is a form, too
        (none, tokenizer, row, "system text None, not 'You are a helpful assistant.'"),
        (none | {"prompt": asked + "Today is 1 May."}, tokenizer, bare, "renders another prompt"),
        (hidden, tokenizer, bare, ""),
        (hidden, padded, bare, "attention mask openunlearning"),
        (form, plain, row, "not 'none'"),
        (form, other, row, "chat template"),
    ):
        recwarn.clear()
        belonging.check_prompt(T3Head(8, 20, 2, info=info), words, [question])
        assert [said in str(each.message) for each in recwarn] == [True] * bool(said), said


def test_the_form_of_prompts_is_that_of_the_rows(tokenizer):
    def form(**row):
        return belonging.prompt_form(tokenizer, [{"question": "Who?", "answer": "Ada.", **row}])

    turns = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who?"}]
    assert (form()["system"], form(question=turns)["system"]) == (SYSTEM, "Be kind.")
    assert form(raw=True) == {"chat_template": belonging.PLAIN, "system": None}
    assert belonging.system_of(T3Head(8, 20, 2)) == SYSTEM
    assert belonging.system_of(T3Head(8, 20, 2, info=form(system=None))) is None


def test_another_base_or_state_of_it_is_refused_unless_it_is_meant(tmp_path):
    family("llama", seed=1).save_pretrained(tmp_path)
    base = type(family("llama")).from_pretrained(tmp_path)
    identity = belonging.base_identity(base)
    assert identity["base_model"] == tmp_path.name and len(identity["base_identity"]) == 16
    T3ForCausalLM(base, T3Head(HIDDEN, VOCAB, 3, info=identity))
    identity["base_weights"] = None  # as of a quantised base
    family("llama", seed=2).save_pretrained(tmp_path)  # the folder now holds another model
    base = type(base).from_pretrained(tmp_path)
    with pytest.raises(UserError, match="trained on .*identity.*other_base=True"):
        T3ForCausalLM(base, T3Head(HIDDEN, VOCAB, 3, info=identity))
    assert (
        T3ForCausalLM(base, T3Head(HIDDEN, VOCAB, 3, info=identity), other_base=True).temperature
        == 2.5
    )
    with pytest.raises(UserError, match="trained on org/base"):
        T3ForCausalLM(base, T3Head(HIDDEN, VOCAB, 3, info={"base_model": "org/base"}))
    with pytest.raises(UserError, match=r"trained on \\x1b\[2Jx") as refused:
        T3ForCausalLM(base, T3Head(HIDDEN, VOCAB, 3, info={"base_model": "\x1b[2J" + "x" * 10**6}))
    assert len(str(refused.value)) < 1000


def adapted(base, seed=1, scale=4):
    """A base with a random LoRA on it."""
    torch.manual_seed(seed)
    config = LoraConfig(r=2, lora_alpha=scale, target_modules=["q_proj"], init_lora_weights=False)
    return get_peft_model(base, config)


def trained(model):
    """The model after a step of training with the rate of a careful fine-tuning."""
    with torch.no_grad():
        for weight in model.parameters():
            weight += 1e-5 * torch.randn_like(weight)
    return model


def in_place(model):
    """The model with a LoRA merged into its weights, but not removed."""
    (model := adapted(model)).merge_adapter()
    return model


CHANGED = {
    "plain": lambda model: model,
    "merged": lambda model: adapted(model).merge_and_unload(),
    "merged in place": in_place,
    "adapted": adapted,
    "trained": trained,
}


@pytest.mark.parametrize(
    ("trained_on", "used_on", "fits"),
    [
        ("plain", "plain", True),
        ("merged", "merged", True),
        ("merged", "merged in place", True),
        ("merged", "plain", False),
        ("plain", "merged", False),
        ("adapted", "merged", False),  # another rounding
        ("plain", "trained", False),
        ("trained", "plain", False),
    ],
)
def test_a_head_belongs_to_weights_not_to_a_name(tmp_path, trained_on, used_on, fits):
    """Models changed in memory keep their name; the same weights may be saved anywhere."""
    family("llama").to(torch.bfloat16).save_pretrained(tmp_path / "base")

    def loaded(folder, dtype):
        return type(family("llama")).from_pretrained(tmp_path / folder, dtype=dtype)

    base = CHANGED[trained_on](loaded("base", torch.float32))
    info = belonging.base_identity(getattr(base, "get_base_model", lambda: base)())
    head = T3Head(HIDDEN, VOCAB, 3, info=json.loads(json.dumps(info)))
    present = CHANGED[used_on](loaded("base", torch.float32))
    models = [present]
    if "merged in" not in used_on:
        present.save_pretrained(tmp_path / "elsewhere", max_shard_size="5KB")
        models += [
            loaded("elsewhere", dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)
        ]
        assert len([*(tmp_path / "elsewhere").glob("*.safetensors")]) > 3
    for model in models:
        if fits:
            assert T3ForCausalLM(model, head)
        else:
            with pytest.raises(UserError, match="base_weights.*other_base=True"):
                T3ForCausalLM(model, head)
    old = {name: value for name, value in info.items() if name == "base_identity"}
    assert T3ForCausalLM(models[0], T3Head(HIDDEN, VOCAB, 3, info=old)), "compared as before"


def test_two_half_precisions_of_one_float32_base_are_named(tmp_path):
    """They round differently, so that weights alone cannot tell one base from two."""
    family("llama").save_pretrained(tmp_path)
    model = type(family("llama"))
    head = T3Head(HIDDEN, VOCAB, 3)
    head.info = belonging.base_identity(model.from_pretrained(tmp_path, dtype=torch.float16))
    with pytest.raises(UserError, match="of the same files: .* float16 here and bfloat16 there"):
        T3ForCausalLM(model.from_pretrained(tmp_path, dtype=torch.bfloat16), head)
    for dtype in (torch.float16, torch.float32):
        assert T3ForCausalLM(model.from_pretrained(tmp_path, dtype=dtype), head)
    with pytest.raises(UserError) as refused:
        T3ForCausalLM(family("llama", seed=3), head)
    assert "of the same files" not in str(refused.value)


def test_a_quantised_base_is_known_by_the_weights_of_its_folder(tmp_path):
    family("llama").save_pretrained(tmp_path)
    base = type(family("llama")).from_pretrained(tmp_path)
    head = T3Head(HIDDEN, VOCAB, 3, info=belonging.base_identity(base))
    quantised = type(base).from_pretrained(tmp_path)
    layer = quantised.model.layers[0].mlp.up_proj
    layer.weight = nn.Parameter(layer.weight.data.to(torch.int8), requires_grad=False)
    assert belonging.base_identity(quantised)["base_weights"] is None
    assert T3ForCausalLM(quantised, head)
    head.info["base_identity"] = "0" * 16
    with pytest.raises(UserError, match="base_identity"):
        T3ForCausalLM(quantised, head)
    assert T3ForCausalLM(base, head), "the weights decide where they are known"


def test_an_adapter_is_part_of_the_base():
    """A head trained on base + LoRA neither fits the bare base nor another LoRA, and the bare
    base's no LoRA.
    """

    def lora(seed, scale=4):
        return adapted(family("llama"), seed, scale)

    head = T3Head(HIDDEN, VOCAB, 3, info=belonging.base_identity(lora(1).get_base_model()))
    assert T3ForCausalLM(lora(1), head) and T3ForCausalLM(lora(1).to(torch.bfloat16), head)
    bare = T3Head(HIDDEN, VOCAB, 3, info=belonging.base_identity(family("llama")))
    assert T3ForCausalLM(family("llama"), bare)
    with (switched := lora(1)).disable_adapter():
        assert T3ForCausalLM(switched, bare), "an adapter that is switched off changes nothing"
    for base, wrong in (
        (family("llama"), head),
        (lora(2), head),
        (lora(1, scale=8), head),
        (lora(1), bare),
    ):
        with pytest.raises(UserError, match="base_adapter.*other_base=True"):
            T3ForCausalLM(base, wrong)
        assert T3ForCausalLM(base, wrong, other_base=True)


def test_heads_of_different_temperatures_need_one_that_is_given():
    base, heads = family("llama"), [T3Head(HIDDEN, VOCAB, 3, temperature=T) for T in (2.0, 3.0)]
    with pytest.raises(UserError, match=r"different temperatures \(2, 3\)"):
        T3ForCausalLM(base, heads)
    assert (
        T3ForCausalLM(base, heads, 2.5).temperature
        == 2.5
        == T3ForCausalLM(base, heads[:1], 2.5).temperature
    )


# ---- several at once, and from strangers --------------------------------------------------------


def test_a_head_that_came_first_is_not_overwritten_where_that_was_not_asked_for(saved, tmp_path):
    head, folder = saved
    other = T3Head(8, 13, rank=3, seed=8)
    with pytest.raises(UserError, match="exists already and is not an empty folder"):
        other.save_pretrained(folder, overwrite=False)
    assert torch.equal(T3Head.from_pretrained(folder).A, head.A)
    (tmp_path / "empty").mkdir()
    for place in ("empty", "new/er"):
        other.save_pretrained(tmp_path / place, overwrite=False)
        assert torch.equal(T3Head.from_pretrained(tmp_path / place).A, other.A)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot use .* as a head's folder"):
        other.save_pretrained(tmp_path / "file")


def test_no_lock_is_left_in_the_temporary_folder(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(artefact.tempfile, "tempdir", str(tmp_path / "temporary"))
    T3Head(8, 13, rank=3).save_pretrained(tmp_path / "head")
    T3Head.from_pretrained(tmp_path / "head")
    assert not [*(tmp_path / "temporary").iterdir()]


def test_a_cards_example_asks_in_the_form_of_training():
    """A bare question to a model with a chat template is another question: the head may not forget
    there.
    """
    for info, line in (
        (
            {"system": 'Be "kind".'},
            r't3lib.prompt(tokenizer, "Your question?", system="Be \"kind\".")',
        ),
        ({"chat_template": "none", "system": None}, 't3lib.prompt(tokenizer, "Your question?")'),
        (
            {"chat_template": "0" * 16, "system": None},
            't3lib.prompt(tokenizer, "Your question?", system=None)',
        ),
        ({"template": {"think": False}}, """"Your question?", template={'think': False})"""),
        ({"chat_template": belonging.PLAIN, "system": None}, '"The beginning of a text"'),
    ):
        example = (
            artefact.model_card(T3Head(8, 20, 2, info=info).config)
            .partition("```python")[2]
            .partition("```")[0]
        )
        assert line in example and (info.get("chat_template") == belonging.PLAIN) != (
            "t3lib.prompt" in example
        )
        compile(example, "README.md", "exec")


def test_a_head_of_the_hub_is_that_of_the_commit_that_was_found(tmp_path, monkeypatch):
    """The checksum travels with the head, so it cannot tell two commits apart."""
    T3Head(8, 20, 2).save_pretrained(tmp_path)
    asked = []

    def download(name, file, **options):
        asked.append((name, file, options))
        return str(tmp_path / file)

    monkeypatch.setattr(artefact, "located", lambda *_: Place("me/head", "0" * 40))
    monkeypatch.setattr(artefact, "hf_hub_download", download)
    assert T3Head.from_pretrained("me/head", revision="main").rank == 2
    found = {"revision": "0" * 40, "local_files_only": False}
    assert asked == [("me/head", name, found) for name in (artefact.CONFIG, artefact.WEIGHTS)]


def test_what_is_pushed_to_the_hub_is_the_head_with_a_card_that_the_hub_reads(
    tiny_model, monkeypatch
):
    """A stub stands for the Hub. License and data sets are what a person names, the base is the
    head's.
    """
    pushed = {}

    class Hub:
        def __init__(self, token):
            assert token == "secret"

        def create_repo(self, repo_id, **_):
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, repo_id, folder_path, **_):
            pushed.update((path.name, path.read_bytes()) for path in folder_path.iterdir())
            return f"hub/{repo_id}"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Hub)
    head = T3Head(32, tiny_model.config.vocab_size, 2, info={"base_model": "org/base"})
    named = {"license": "mit", "datasets": ["me/rows", "me/more"]}
    tilted = T3ForCausalLM(tiny_model, head, 2.5)
    assert tilted.push_to_hub("me/head", token="secret", model_card_kwargs=named) == "hub/me/head"
    assert {*pushed} == {"README.md", "config.json", "model.safetensors"}
    assert json.loads(pushed["config.json"])["temperature"] == 2.5
    card = ModelCard(pushed["README.md"].decode())
    assert card.data.to_dict() == named | {
        "library_name": "t3lib",
        "tags": ["unlearning", "t3"],
        "base_model": "org/base",
    }
    assert "[arXiv 2602.10217](https://arxiv.org/abs/2602.10217)" in card.text

    head.push_to_hub("me/head", token="secret")
    assert {"license", "datasets"}.isdisjoint(
        ModelCard(pushed["README.md"].decode()).data.to_dict()
    )
    pushed.clear()
    for wrong in ({"license": 5}, {"datasets": "me/rows"}, {"datasets": [5]}, {"owner": "me"}):
        with pytest.raises(UserError, match="model card: .* is neither license"):
            head.push_to_hub("me/head", token="secret", model_card_kwargs=wrong)
    assert not pushed


def test_a_card_holds_no_markup_of_others(tmp_path):
    nasty = "<script>alert(1)</script> | ![x](http://x.example/p.png) `code` \n# Title\n---\n"
    info = {name: nasty for name in INFO} | {"metrics": {nasty: nasty}, "hyperparameters": nasty}
    T3Head(8, 13, rank=3, info=info).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "<script" not in card and "![x]" not in card and "\n# Title" not in card
    assert card.count("\n---\n") == 1, "nothing ends the card's front matter early"
    rows = [line for line in card.splitlines() if line.startswith("|")]
    assert len(rows) > 12 and {line.count("|") - line.count("\\|") for line in rows} == {3}
