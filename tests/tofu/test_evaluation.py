"""Evaluation against slow one-row references: padding, batches, tilts, masks, bad input, and the
goldens.
"""

import copy
import json
import math
import os
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from families import AWKWARD, CONFIGS, FAILING, HIDDEN, MORE, VOCAB, family
from peft import LoraConfig, get_peft_model
from reference import Reference
from transformers import (
    AutoModelForCausalLM,
    DynamicLayer,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    ModernBertDecoderConfig,
    Qwen2Config,
)

from t3lib.classifier.head import T3Head
from t3lib.core import models
from t3lib.core import rows as core_rows
from t3lib.core.errors import UserError
from t3lib.core.rows import Example, encode_answers
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu import data as tofu
from t3lib.tofu import evaluation as module
from t3lib.tofu import likelihood as score
from t3lib.tofu import metrics, suite, writing
from t3lib.tofu.evaluation import Scoring, evaluate
from t3lib.tofu.reader import Reader, Reading, window_of

PLAIN = Reading(0)
TEXTS = Scoring(max_new_tokens=12)
NO_TEXTS = Scoring(generate=False)


def _rows(n, wrong, paraphrase, seed):
    rng = np.random.default_rng(seed)
    words = "blue stone river opens seven quiet doors under maple light".split()

    def text(low, high):
        return " ".join(rng.choice(words, rng.integers(low, high)))

    rows = [{"question": text(1, 5) + "?", "answer": text(1, 6)} for _ in range(n)]
    for row in rows:
        row["perturbed_answer"] = [text(1, 6) for _ in range(wrong)]
        if paraphrase:
            row["paraphrased_answer"] = text(1, 6)
    return rows


@pytest.fixture(scope="session")
def data():
    return {
        "forget": _rows(5, 3, True, 0),
        "retain": _rows(4, 3, True, 1),
        "ra": _rows(3, 2, False, 2),
        "wf": _rows(3, 2, False, 3),
    }


@pytest.fixture(scope="session")
def heads(tiny_model):
    """Two heads strong enough to change what the model says."""
    found = [T3Head(32, tiny_model.config.vocab_size, rank=4, seed=seed) for seed in (1, 2)]
    for head in found:
        head.A.data *= 4
        head.B.data *= 12
    return found


@pytest.fixture(scope="session")
def examples(tokenizer, data):
    """Every row's answers as `evaluate` scores them, shared prompts and all."""
    texts = [
        (row["question"], [row["answer"], *row["perturbed_answer"]])
        for rows in data.values()
        for row in rows
    ]
    return [
        example
        for question, answers in texts
        for example in encode_answers(tokenizer, question, answers)
    ]


def losses_one_by_one(
    model, examples, mask_of=lambda ids: torch.ones(1, len(ids), dtype=torch.long)
):
    """The definition, written out: one row a pass, no padding, no cache, cross-entropy averaged
    over the answer.
    """
    losses = []
    for example in examples:
        ids = torch.tensor([example.ids])
        positions = torch.arange(ids.shape[1])[None]
        with torch.no_grad():
            logits = model(
                input_ids=ids, attention_mask=mask_of(example.ids), position_ids=positions
            ).logits[0]
        labels = ids[0, example.n_prompt :]
        losses.append(
            float(
                torch.nn.functional.cross_entropy(
                    logits[example.n_prompt - 1 : -1].double(), labels
                )
            )
        )
    return np.array(losses)


def generate_one_by_one(model, prompts, pad_id, eos, max_new_tokens):
    answers = []
    for prompt in prompts:
        options = dict(
            do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=pad_id, eos_token_id=eos
        )
        output = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)).long(), **options
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers


@pytest.fixture(scope="session")
def reading(tokenizer):
    return Reading(models.pad_id(tokenizer))


@pytest.fixture(scope="session")
def prompts(examples):
    return [list(prompt) for prompt in dict.fromkeys(tuple(e.prompt) for e in examples)]


@pytest.mark.parametrize("batch_tokens", [1, 700, None])
def test_losses_do_not_depend_on_batches_or_padding(tiny_model, reading, examples, batch_tokens):
    found = score.answer_losses(tiny_model, examples, replace(reading, batch_tokens=batch_tokens))
    np.testing.assert_allclose(found[0], losses_one_by_one(tiny_model, examples), atol=2e-6)


def of_unequal_lengths():
    """Examples whose prompts begin alike and differ in length, as their answers do; some with one
    prompt.
    """
    draw = np.random.default_rng(0)
    begin = np.random.default_rng(2).integers(3, VOCAB, 3).tolist()
    prompts = [begin + draw.integers(3, VOCAB, length).tolist() for length in (1, 6, 9, 3)]
    answers = [
        (prompt, draw.integers(3, VOCAB, length).tolist())
        for prompt in prompts
        for length in (5, 1, 3)
    ]
    return [Example(prompt + answer, len(prompt)) for prompt, answer in answers]


@pytest.mark.parametrize("name", [*CONFIGS, *MORE, *AWKWARD])
def test_every_family_is_scored_as_its_rows_are_one_by_one(name, monkeypatch):
    """Whether the beginning of all prompts is read once or with each of them."""
    examples, sizes = of_unequal_lengths(), {"rank": 4, "init_b": "kaiming"}
    head = T3Head(HIDDEN, VOCAB, **sizes)
    tilts = [(None, 1.0), (head, 2.0)]
    prompts = [example.prompt for example in examples[::3]]
    found, texts = [], []
    for worth in (1, 10**9):
        monkeypatch.setattr(core_rows, "WORTH", worth)
        found.append(score.answer_losses(family(name), examples, PLAIN, tilts))
        texts.append(writing.greedy(family(name), prompts, PLAIN, tilts, max_new_tokens=4))
    assert texts[0] == texts[1]
    for t, oracle in enumerate((([], 1.0), ([(head.A, head.B)], 2.0))):
        reference = Reference.of(family(name), *oracle)
        for number, example in enumerate(examples):
            ids = torch.tensor([example.ids])
            logp = reference.logp(ids, torch.ones_like(ids))[0, example.n_prompt - 1 : -1]
            wanted = -logp.gather(-1, ids[0, example.n_prompt :, None]).mean()
            assert all(abs(each[t, number] - wanted) < 1e-5 for each in found)


def test_what_all_prompts_begin_with_is_read_once(tiny_model, monkeypatch):
    """The tokens that the model reads are counted, padding included."""
    begin, rest = list(range(3, 23)), [[30], [31, 32], [33, 34, 35]]
    examples = [Example([*begin, *each, 40], len(begin) + len(each)) for each in rest]
    count, forward = [], Reader(tiny_model, [])._call.__func__

    def counted(reader, ids, *more, **options):
        count.append(ids.numel())
        return forward(reader, ids, *more, **options)

    monkeypatch.setattr(Reader, "_call", counted)
    for worth, tokens in ((40, 20 + 3 * 3), (41, 3 * 23)):
        monkeypatch.setattr(core_rows, "WORTH", worth)
        count.clear()
        found = score.answer_losses(tiny_model, examples, PLAIN)
        np.testing.assert_allclose(found[0], losses_one_by_one(tiny_model, examples), atol=2e-6)
        assert sum(count) == tokens


def test_local_attention_reads_as_far_as_without_a_shared_beginning(monkeypatch):
    """The padding after it would push the beginning out of a window of 16 tokens. The trial of a
    model has 8 tokens and does not see that.
    """
    monkeypatch.setattr(core_rows, "WORTH", 1)
    torch.manual_seed(0)
    sizes = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=32, num_hidden_layers=2)
    sizes |= dict(num_attention_heads=2, num_key_value_heads=1, initializer_range=0.5)
    model = AutoModelForCausalLM.from_config(MistralConfig(**sizes, sliding_window=16)).eval()
    examples = of_unequal_lengths()  # prompts of 4 to 12 tokens, answers of up to 5
    assert Reader(model, []).begins and window_of(model) == 16
    found = score.answer_losses(model, examples, PLAIN)
    np.testing.assert_allclose(found[0], losses_one_by_one(model, examples), atol=1e-5)
    prompts = [each.prompt for each in examples]
    (texts,) = writing.greedy(model, prompts, PLAIN, max_new_tokens=8)
    assert texts == generate_one_by_one(model, prompts, 0, None, 8)


@pytest.mark.parametrize(
    "config, window",
    [
        *[(GPTNeoConfig(window_size=9), 9), (MistralConfig(), 4096), (LlamaConfig(), None)],
        (Qwen2Config(max_window_layers=28), None),  # a number of layers, and a switch
        (Qwen2Config(use_sliding_window=True, sliding_window=64, max_window_layers=2), 64),
    ],
)
def test_the_window_of_local_attention_is_found_under_its_names(config, window):
    assert window_of(SimpleNamespace(config=config)) == window


def test_texts_begin_where_greedy_leaves_the_true_answer(tiny_model, tokenizer, data, heads):
    """`evaluate` writes the same texts as without any known beginning, and fewer tokens."""
    rows = {"forget": [dict(row) for row in data["forget"]]}
    tilts = [(None, 1.0), (heads[0], 2.0)]
    start = evaluate(tiny_model, tokenizer, rows, TEXTS)["records"]["forget"]
    for row, own, cut in zip(rows["forget"], start, (99, 3, 5, 0, 1)):
        row["answer"] = own["generation"][:cut].strip() or row["answer"]  # the model's own text
    found = evaluate(tiny_model, tokenizer, rows, TEXTS, tilts=tilts)
    examples = [encode_answers(tokenizer, r["question"], [r["answer"]])[0] for r in rows["forget"]]
    prompts = [each.prompt for each in examples]
    reading = Reading(models.pad_id(tokenizer), writing.eos_ids(tiny_model, tokenizer))
    texts = writing.greedy(tiny_model, prompts, reading, tilts, max_new_tokens=12)
    agreed = score.losses_and_agreed(tiny_model, examples, reading, tilts, range(5))[1]
    for t, one in enumerate(found):
        said = [record["generation"] for record in one["records"]["forget"]]
        assert said == [module.answer_text(tokenizer, ids) for ids in texts[t]]
        for i, (example, ids) in enumerate(zip(examples, texts[t])):
            truth = example.answer
            same = [a == b for a, b in zip(truth, ids)]
            assert agreed[t, i] == (same.index(False) if False in same else len(same))
    assert 0 < agreed[0].max() and agreed.min() == 0


@pytest.mark.parametrize("name", AWKWARD)
def test_prompts_of_two_lengths_with_texts_of_two_lengths_share_no_batch(name):
    """10 + 20 and 15 + 15 tokens are as large, and one of them was padded for a model that takes no
    padding.
    """
    reader = Reader(family(name), [])
    batches = reader.batches([30, 30, 30, 40], 10**6, [10, 15, 10, 10])
    assert sorted(row for batch in batches for row in batch) == [0, 1, 2, 3]
    if not reader.padded:
        apart = [[0], [1], [2], [3]] if reader.alone else [[0, 2, 3], [1]]
        assert sorted(map(sorted, batches)) == apart


def test_a_wrong_setting_is_refused_before_the_evaluation():
    for wrong in ({"truth_ratio": "arithmetik"}, {"attention_mask": "none"}):
        with pytest.raises(UserError, match=min(wrong)):
            Scoring(**wrong)


@pytest.mark.parametrize("name", AWKWARD)
def test_rows_of_a_batch_are_scored_as_alone(name, monkeypatch):
    """Prompts of one length with one answer each, so that a batch of any size runs. A mask covers
    the tokens up to the last one read, also where they are read one by one.
    """
    draw = np.random.default_rng(0)
    rows = [draw.integers(3, VOCAB, 6 + length).tolist() for length in (2, 5, 3, 4)]
    model, examples = family(name), [Example(row, 6) for row in rows]
    alone = [score.answer_losses(model, [each], PLAIN)[0, 0] for each in examples]
    np.testing.assert_allclose(score.answer_losses(model, examples, PLAIN)[0], alone, atol=2e-6)
    read, call = [], Reader._call

    def watched(reader, ids, position_ids, mask, **more):
        read.append((mask.shape[1], int(position_ids[0, -1]) + 1))
        return call(reader, ids, position_ids, mask, **more)

    monkeypatch.setattr(Reader, "_call", watched)
    score.answer_losses(model, examples[1:2], PLAIN)
    assert len(read) > 1 and all(width == tokens for width, tokens in read)


def test_a_gpu_writes_as_many_texts_as_two_gibibytes_of_keys_and_values_hold(tiny_model):
    """Llama-3.1-8B's in bfloat16 are 2^14 tokens, as on a CPU; SmolLM2 has room for more."""

    def tokens(device, dtype, **sizes):
        model = SimpleNamespace(
            device=torch.device(device), dtype=dtype, config=LlamaConfig(**sizes)
        )
        return writing.default_cached_tokens(model)

    llama = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
    assert tokens("cuda", torch.bfloat16, hidden_size=4096, **llama) == 2**14
    small = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    assert tokens("cuda", torch.float32, hidden_size=576, **small) == 2**31 // (30 * 2 * 192 * 4)
    assert tokens("cpu", torch.float32, hidden_size=576, **small) == 2**14
    assert writing.default_cached_tokens(tiny_model) == 2**14


def test_a_gpu_takes_a_hundred_times_the_rows_of_logits_at_once():
    """Two rows of Llama-3's vocabulary are what a CPU's cache holds; for a GPU that is a call."""

    def rows(device, size):
        return score.chunk_rows(SimpleNamespace(device=torch.device(device), shape=(9, size)))

    assert (rows("cpu", 128_256), rows("cuda", 128_256)) == (2, 261)
    assert rows("cpu", 2**19) == 1 and rows("mps", 1536) == rows("cpu", 1536) == 170


@pytest.mark.parametrize("name", sorted([*CONFIGS, *MORE, *AWKWARD, "mamba"]))
def test_every_family_has_a_number_of_texts_on_a_gpu(name):
    """Some configurations do not name heads, or have a list of them."""
    model = SimpleNamespace(
        device=torch.device("cuda"),
        dtype=torch.float32,
        config=(CONFIGS | MORE | AWKWARD | {"mamba": MambaConfig})[name](),
    )
    found = writing.default_cached_tokens(model)
    assert isinstance(found, int) and found >= writing.BATCH_TOKENS


@pytest.mark.parametrize("name", ["bart", "jamba", "minimax", "kimi_linear"])
def test_texts_of_awkward_families_are_written_as_one_by_one(name):
    prompts = [example.prompt for example in of_unequal_lengths()]
    model = family(name)
    (found,) = writing.greedy(model, prompts, replace(PLAIN, eos_ids=[2]), max_new_tokens=8)
    assert found == generate_one_by_one(model, prompts, 0, 2, 8)


def test_texts_of_rows_that_are_read_alone_are_those_of_plain_passes(monkeypatch):
    """Three tilts and six samples of each prompt, against float64 without a cache."""
    monkeypatch.setattr(writing, "STAGE", 3)
    model, head = family("minimax"), T3Head(HIDDEN, VOCAB, rank=4, init_b="kaiming")
    prompts = [example.prompt for example in of_unequal_lengths()[::3]]
    tilts = [(None, 1.0), (head, 2.0), (None, 3.0)]
    found = writing.greedy(model, prompts, PLAIN, tilts, max_new_tokens=7)
    for (own, T), answers in zip(tilts, found):
        reference = Reference.of(family("minimax"), [(own.A, own.B)] if own else [], T)
        for prompt, answer in zip(prompts, answers):
            ids = torch.tensor([prompt])
            assert answer == reference.decode(ids, torch.ones_like(ids), 7)[0][0].tolist()

    reader, state = Reader(model, []), torch.arange(3).repeat_interleave(2).tolist()
    wanted = torch.randint(3, VOCAB, (6, 5), generator=torch.Generator().manual_seed(1))
    seen = {}

    def choose(logits, z, writer, state):
        steps = [len(seen.setdefault(int(one), [])) for one in writer]
        for one, row in zip(writer.tolist(), logits[state]):
            seen[one].append(row.log_softmax(-1))
        return wanted[writer, steps]

    states = [((7, 8, 9), ()), ((5, 4), (3,)), ((9, 3, 4), ())]
    texts = writing.write_texts(reader, states, state, [5] * 6, choose, PLAIN)
    assert texts == wanted.tolist()
    for writer, text in enumerate(texts):
        prompt, begun = states[state[writer]]
        ids = torch.tensor([[*prompt, *begun, *text]])
        logp = Reference.of(model, [], 1.0).logp(ids, torch.ones_like(ids))[0, 2:-1]
        assert (torch.stack(seen[writer]) - logp).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_are_padded_where_padding_changes_the_rounding_alone(tiny_model, dtype):
    """SmolLM2 in bfloat16 was read in batches of one length, 25 ms a token in place of 5."""
    model = copy.deepcopy(tiny_model).to(dtype)

    def rounded(module, args, given, output):
        hidden = given["attention_mask"].min() == 0
        noise = torch.randn(output.logits.shape[-1], generator=torch.Generator().manual_seed(0))
        output.logits = output.logits + 0.03 * hidden * output.logits.std() * noise
        return output

    model.register_forward_hook(rounded, with_kwargs=True)
    assert Reader(model, []).padded is (dtype == torch.bfloat16)


@pytest.mark.parametrize("name", FAILING)
def test_models_that_fail_with_a_cache_are_refused(name):
    with pytest.raises(UserError, match=r"cannot be scored \(ValueError: ") as stop:
        score.answer_losses(family(name), of_unequal_lengths(), PLAIN)
    assert "\n" not in str(stop.value)


def test_openunlearning_mask_hides_end_of_turn_and_keeps_positions(tiny_model, tokenizer, examples):
    pad = tokenizer.eos_token_id  # as tokenizers without a padding token do
    hidden = Reading(pad, attention_mask="openunlearning")
    found = score.answer_losses(tiny_model, examples, hidden)[0]
    expected = losses_one_by_one(
        tiny_model, examples, lambda ids: (torch.tensor([ids]) != pad).long()
    )
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert (
        np.abs(found - losses_one_by_one(tiny_model, examples)).max() > 1e-3
    )  # the mask is no detail


def test_tilts_agree_with_each_alone_and_with_the_sampler(tiny_model, reading, examples, heads):
    tilts = [
        (None, 1.0),
        (heads[0], 1.0),
        (heads[1], 1.0),
        (heads[0], 2.5),
        (heads[1], 2.5),
        (None, 2.5),
    ]
    together = score.answer_losses(tiny_model, examples, reading, tilts)
    for tilt, losses in zip(tilts, together):
        alone = score.answer_losses(tiny_model, examples, reading, [tilt])[0]
        np.testing.assert_allclose(alone, losses, atol=1e-6)
    for (head, T), losses in list(zip(tilts, together))[1:5]:
        sampler = T3ForCausalLM(tiny_model, head, T)  # its own pooling, through its own cache
        alone = score.answer_losses(sampler, examples, reading)[0]
        np.testing.assert_allclose(alone, losses, atol=5e-6)
    assert len({losses.sum().round(3) for losses in together}) == len(tilts)


def test_a_partition_function_that_underflows_is_computed_in_log_space(heads):
    logits = torch.tensor([[120.0, 0.0, -60.0]])
    head = T3Head(1, 3, rank=1)
    head.B.data = torch.tensor([[-110.0], [-110.0], [0.0]])  # f = 0 in float32 wherever p is not
    at = score.Positions(
        torch.zeros(1), torch.zeros(1), torch.tensor([1]), logits, torch.ones(1, 1)
    )
    found = score.target_logp(at, [(head, 1.0)])
    weights = logits.double().log_softmax(-1) + torch.nn.functional.logsigmoid(
        head.B.data[:, 0].double()
    )
    assert float(found) == pytest.approx(float(weights.log_softmax(-1)[0, 1]), rel=1e-6)


@pytest.mark.parametrize("w", [1.0, 3.0])
def test_gates_and_tails_score_and_write_as_the_sampler_does(
    tiny_model, tokenizer, examples, prompts, heads, reading, w
):
    """Tilts of one head with several gates, tails, w and T together: each as the sampler alone."""
    made = [copy.copy(heads[0]) for _ in range(5)]
    gates, tails = (1.0, 0.499, 0.494, 1.0, 0.499), (0.0, 0.0, 0.0, 0.9, 0.9)
    for head, gate, tail in zip(made, gates, tails):
        head.gate, head.tail, head.w = gate, tail, w
    tilts = [(head, T) for head in made for T in (1.0, 3.0)] + [(None, 2.0)]
    losses = score.answer_losses(tiny_model, examples, reading, tilts)
    texts = writing.greedy(tiny_model, prompts[::3], reading, tilts, max_new_tokens=8)
    for (head, T), found, written in zip(tilts[:-1], losses, texts):
        sampler = T3ForCausalLM(tiny_model, head, T)
        np.testing.assert_allclose(
            found, score.answer_losses(sampler, examples, reading)[0], atol=5e-6
        )
        assert [written] == writing.greedy(sampler, prompts[::3], reading, max_new_tokens=8)
    assert np.allclose(losses[0], losses[2]) and np.allclose(losses[0], losses[4])  # T = 1
    assert len({each.sum().round(3) for each in losses}) == 7


@pytest.mark.parametrize("batch_tokens", [1, 600, writing.BATCH_TOKENS])
def test_greedy_is_generate_one_by_one(monkeypatch, tiny_model, tokenizer, prompts, batch_tokens):
    monkeypatch.setattr(writing, "STAGE", 5)  # so that rows are dropped and taken up again
    eos = [tokenizer.eos_token_id, 40]  # 40 is a token that the random model does say
    expected = generate_one_by_one(tiny_model, prompts, models.pad_id(tokenizer), eos, 12)
    how = Reading(models.pad_id(tokenizer), eos, batch_tokens=batch_tokens)
    (found,) = writing.greedy(tiny_model, prompts, how, max_new_tokens=12)
    assert found == expected
    assert len({tuple(answer) for answer in found}) > 3


@pytest.mark.parametrize("attention_mask", ["lengths", "openunlearning"])
@pytest.mark.parametrize(
    "batch_tokens", [150, 800, writing.BATCH_TOKENS]
)  # one, a few and all states at once
def test_tilts_that_write_together_write_what_each_writes_alone(
    monkeypatch, tiny_model, tokenizer, prompts, heads, attention_mask, batch_tokens
):
    monkeypatch.setattr(writing, "STAGE", 7)
    pad = tokenizer.eos_token_id
    how = Reading(pad, [pad, 40], attention_mask)
    other = T3Head(heads[0].A.shape[1], heads[0].B.shape[0], rank=heads[0].rank + 3, seed=9)
    other.B.data *= 30
    tilts = [(head, T) for head in (*heads, other) for T in (1.0, 2.0, 3.0)] + [(None, 2.0)]
    prompts = prompts[::3]  # of all four sets
    part = replace(how, batch_tokens=batch_tokens)
    found = writing.greedy(tiny_model, prompts, part, tilts, max_new_tokens=12)
    (base,) = writing.greedy(tiny_model, prompts, how, max_new_tokens=12)
    assert found[-1] == base
    for (head, T), answers in zip(tilts[:-1], found):
        sampler = T3ForCausalLM(tiny_model, head, T)
        (alone,) = writing.greedy(sampler, prompts, how, max_new_tokens=12)
        assert answers == alone != base
        if attention_mask == "lengths":
            assert alone == generate_one_by_one(sampler, prompts, pad, [pad, 40], 12)


def test_tilts_that_agree_share_the_models_passes(tiny_model, reading, prompts, heads):
    """Five tilts that write the same cost the tokens of one; `write` reads no token twice for
    them.
    """
    read, few = [], {"max_new_tokens": 12}

    def count(_, args, given):
        read.append(given["input_ids"].numel())

    with tiny_model.register_forward_pre_hook(count, with_kwargs=True):
        (one,) = writing.greedy(tiny_model, prompts, reading, [(heads[0], 2.0)], **few)
        alone = sum(read)
        read.clear()
        five = writing.greedy(tiny_model, prompts, reading, [(heads[0], 2.0)] * 5, **few)
    assert five == [one] * 5
    assert sum(read) == alone


def test_a_layer_that_copies_once_holds_what_transformers_own_does():
    """Rows are chosen twice, once or never before the next tokens come, and keys are narrower."""
    layers, draw = (DynamicLayer(), writing.OneCopy()), torch.Generator().manual_seed(0)
    for rows, new in (((), 5), ([0, 2, 2], 1), ((), 2), ([1, 1, 0, 2], 1), ([3], 1)):
        n = len(rows) or (3 if not layers[0].is_initialized else len(layers[0].keys))
        keys, values = (torch.randn(n, 2, new, d, generator=draw) for d in (3, 4))
        held = []
        for layer in layers:
            if rows:
                twice = torch.tensor(rows)
                layer.reorder_cache(torch.arange(len(layer.keys)).flip(0))
                layer.reorder_cache(len(layer.keys) - 1 - twice)
            held.append(layer.update(keys, values))
        for own, theirs in zip(*held):
            assert torch.equal(own, theirs) and own.is_contiguous()
        assert layers[0].get_seq_length() == layers[1].get_seq_length()
    empty = writing.OneCopy()
    empty.reorder_cache(torch.tensor([0]))
    assert empty.update(keys, values)[0].shape == keys.shape


def test_an_answer_never_outgrows_its_room():
    """A model with learned positions has no position for a token too many."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=300, n_embd=32, n_layer=2, n_head=2, n_positions=112, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
    prompts = [[7] * 12, [5, 6, 7], [9, 3], [9, 3]]
    read = []
    Reader(model, [])  # tries once how the model reads
    with model.register_forward_pre_hook(lambda _, args, given: read.append(1), with_kwargs=True):
        (found,) = writing.greedy(model, prompts, PLAIN, max_new_tokens=100)
    assert found == generate_one_by_one(model, prompts, 0, None, 100)
    assert len(read) == 100
    assert writing.greedy(model, prompts, PLAIN, max_new_tokens=0) == [[[]] * 4]


def test_a_cache_without_keys_follows_its_state(monkeypatch):
    """Convolutions and linear attention keep a state in place of keys, which must move with the
    texts.
    """
    monkeypatch.setattr(writing, "STAGE", 5)
    torch.manual_seed(0)
    sizes = dict(
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=300,
    )
    kinds = ["conv", "full_attention", "conv"]
    model = Lfm2ForCausalLM(
        Lfm2Config(num_hidden_layers=3, layer_types=kinds, block_multiple_of=8, **sizes)
    ).eval()
    model.get_output_embeddings().weight.data *= 30
    prompts = [[7, 8, 9], [5], [9, 3, 4, 4, 11], [5, 2]]
    heads = [T3Head(32, 300, rank=3, seed=seed, init_b="kaiming") for seed in (1, 2)]
    for head in heads:
        head.B.data *= 300
    tilts = [(None, 1.0), *((head, T) for head in heads for T in (1.0, 3.0))]
    ends = [generate_one_by_one(model, prompts[:1], 0, None, 4)[0][3]]
    how = replace(PLAIN, eos_ids=ends)
    found = writing.greedy(model, prompts, how, tilts, max_new_tokens=12)
    assert found[0] == generate_one_by_one(model, prompts, 0, ends, 12)
    for (head, T), answers in zip(tilts[1:], found[1:]):
        assert answers == generate_one_by_one(T3ForCausalLM(model, head, T), prompts, 0, ends, 12)
    assert len({str(answers) for answers in found}) > 2


def test_an_adapter_is_read_as_its_base_is(tiny_model, tokenizer, prompts):
    adapted = get_peft_model(copy.deepcopy(tiny_model), LoraConfig(r=2, init_lora_weights=False))
    reading, sizes = Reading(models.pad_id(tokenizer)), []
    Reader(adapted.eval(), [])  # tries once how the model reads
    with adapted.get_base_model().lm_head.register_forward_hook(
        lambda _, args, out: sizes.append(out.shape[1])
    ):
        (found,) = writing.greedy(adapted.eval(), prompts, reading, max_new_tokens=6)
    assert found == generate_one_by_one(adapted, prompts, models.pad_id(tokenizer), None, 6)
    assert set(sizes) == {1}, "logits of the last position alone"


def adrift():
    """A model whose logits are others in every pass."""
    model = family("llama")
    model.register_forward_hook(lambda *_: setattr(_[-1], "logits", torch.randn_like(_[-1].logits)))
    return model


def with_nan(module, weight):
    """A copy with NaN in one row of this weight."""
    copied = copy.deepcopy(module)
    weight(copied).data[7] = math.nan
    return copied


def small(config, **more):
    sizes = dict(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=1)
    return AutoModelForCausalLM.from_config(config(**sizes, **more))


def scored(model, *tilts):
    return score.answer_losses(model, of_unequal_lengths(), PLAIN, tilts or [(None, 1.0)])


def written(model, *tilts):
    return writing.greedy(model, [[1, 2, 3]], PLAIN, tilts or [(None, 1.0)])


LAYERS = dict(intermediate_size=24, num_attention_heads=2, pad_token_id=0)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        # Since Transformers 5.24 a state counts as a cache.
        (lambda m, h: scored(small(MambaConfig, state_size=4)), "no key-value cache|reads a text"),
        (lambda m, h: scored(adrift()), "LlamaForCausalLM reads a text from its cache otherwise"),
        (
            lambda m, h: scored(
                small(ModernBertDecoderConfig, **LAYERS), (T3Head(HIDDEN, VOCAB, 4), 1.0)
            ),
            "does not say which part of it gives the last hidden",
        ),
        (lambda m, h: written(m, (with_nan(h, lambda h: h.B), 1.0)), "so does heads.0.B"),
        (lambda m, h: written(m, (None, 1.0), (with_nan(h, lambda h: h.B), 1.0)), "does heads.0.B"),
        (
            lambda m, h: written(with_nan(m, lambda m: m.model.norm.weight)),
            "base.model.norm.weight",
        ),
        (lambda m, h: written(m, (h, 0.0)), "temperature"),
        (lambda m, h: written(T3ForCausalLM(m, h), (h, 1.0)), "already unlearned"),
        (
            lambda m, h: next(score.answer_positions(m, [Example([1, 2], 2)], PLAIN)),
            "no answer tok",
        ),
    ],
)
def test_what_cannot_be_scored_or_written_is_refused(call, said, tiny_model, heads):
    with pytest.raises(UserError, match=said):
        call(tiny_model, heads[0])


def test_a_head_goes_where_the_model_is(tiny_model, heads, monkeypatch):
    """A head that was loaded lies on the CPU; the study's base may be on a GPU."""
    moved = []
    monkeypatch.setattr(T3Head, "to", lambda head, device: moved.append((head, device)) or head)
    score.answer_losses(tiny_model, [Example([1, 2, 3], 1)], PLAIN, [(heads[0], 2.0)])
    assert moved == [(heads[0], tiny_model.device)]


def test_evaluate_is_the_metrics_of_the_losses_and_texts(tiny_model, tokenizer, data):
    result = evaluate(tiny_model, tokenizer, data, TEXTS)
    row = data["forget"][2]
    right, *wrong = encode_answers(
        tokenizer, row["question"], [row["paraphrased_answer"], *row["perturbed_answer"]]
    )
    losses = losses_one_by_one(tiny_model, [right, *wrong])
    expected = np.exp(-losses[1:].mean()) / (np.exp(-losses[0]) + 1e-10)
    assert result["truth_ratio"]["forget"][2] == pytest.approx(expected, rel=1e-5)
    row = data["wf"][1]
    losses = losses_one_by_one(
        tiny_model,
        encode_answers(tokenizer, row["question"], [row["answer"], *row["perturbed_answer"]]),
    )
    p = np.exp(-losses)
    assert result["records"]["wf"][1]["prob"] == pytest.approx(p[0] / p.sum(), rel=1e-5)
    assert result["truth_ratio"]["wf"][1] == pytest.approx(
        np.exp(-losses[1:].mean()) / p[0], rel=1e-5
    )
    record = result["records"]["retain"][0]
    assert record["rouge"] == metrics.rouge_l_recall(
        data["retain"][0]["answer"], record["generation"]
    )
    assert result["components"]["retain_prob"] == pytest.approx(
        np.mean([r["prob"] for r in result["records"]["retain"]])
    )
    assert {name: len(rows) for name, rows in result["records"].items()} == {
        n: len(r) for n, r in data.items()
    }
    json.dumps(result, allow_nan=False)


def test_tilts_give_a_list_and_truth_ratio_kinds_differ(tiny_model, tokenizer, data, heads):
    tilts = [(None, None), (heads[0], 2.0), (heads[0], None)]
    plain, tilted, own = evaluate(tiny_model, tokenizer, data, tilts=tilts, scoring=TEXTS)
    assert (plain["T"], tilted["T"], own["T"]) == (1.0, 2.0, heads[0].temperature)
    alone = evaluate(tiny_model, tokenizer, data, TEXTS)
    assert alone["truth_ratio"] == plain["truth_ratio"] and alone["T"] is None
    assert tilted["truth_ratio"]["forget"] != pytest.approx(
        plain["truth_ratio"]["forget"], rel=1e-2
    )
    other = replace(NO_TEXTS, truth_ratio="arithmetic")
    arithmetic = evaluate(tiny_model, tokenizer, data, other)
    for name in data:
        assert (np.array(arithmetic["truth_ratio"][name]) >= alone["truth_ratio"][name]).all()


def test_reference_gives_forget_quality(tiny_model, tokenizer, data, heads):
    forget = {"forget": data["forget"]}
    reference = evaluate(tiny_model, tokenizer, forget, NO_TEXTS)
    same = evaluate(tiny_model, tokenizer, forget, NO_TEXTS, reference=reference)
    assert (same["forget_quality"], same["ks_statistic"]) == (1.0, 0.0)
    assert same["model_utility"] is same["mu_rouge"] is same["forget"]["rouge"] is None
    (other,) = evaluate(
        tiny_model,
        tokenizer,
        forget,
        NO_TEXTS,
        tilts=[(heads[0], 1.5)],
        reference=reference["truth_ratio"]["forget"],
    )
    p, d = metrics.forget_quality(
        other["truth_ratio"]["forget"], reference["truth_ratio"]["forget"]
    )
    assert (other["forget_quality"], other["ks_statistic"]) == (p, d) and d > 0


def test_the_room_for_new_tokens_is_checked_before_anything_is_computed(
    tiny_model, tokenizer, data
):
    for wrong, said in ((0, "at least 1"), (600, "exceed the model's context of 512")):
        with pytest.raises(UserError, match=said):
            evaluate(tiny_model, tokenizer, {"ra": data["ra"]}, Scoring(max_new_tokens=wrong))


def test_references_of_other_rows_or_settings_are_refused(tiny_model, tokenizer, data):
    forget = {"forget": data["forget"]}
    reference = evaluate(tiny_model, tokenizer, {"forget": data["forget"][::-1]}, NO_TEXTS)
    with pytest.raises(UserError, match="other forget rows"):
        evaluate(tiny_model, tokenizer, forget, NO_TEXTS, reference=reference)
    other = replace(NO_TEXTS, truth_ratio="arithmetic")
    arithmetic = evaluate(tiny_model, tokenizer, forget, other)
    with pytest.raises(UserError, match="truth_ratio 'arithmetic'"):
        evaluate(tiny_model, tokenizer, forget, NO_TEXTS, reference=arithmetic)


def test_a_row_longer_than_the_context_is_named(tiny_model, tokenizer, data):
    long = [*data["forget"], data["forget"][0] | {"answer": "very " * 600}]
    with pytest.raises(UserError, match=rf"forget row {len(long)}: .* the model's context of 512"):
        evaluate(tiny_model, tokenizer, {"forget": long}, NO_TEXTS)


def test_unusable_settings_are_refused_before_any_pass(
    tiny_model, tokenizer, data, heads, monkeypatch
):
    monkeypatch.setattr(
        module, "losses_and_agreed", lambda *_, **__: pytest.fail("the model was called")
    )
    wide = T3Head(33, tiny_model.config.vocab_size, rank=4)
    for tilts in ([(heads[0], 0.5)], [(heads[0], float("nan"))], [(None, 0.0)], [(wide, 2.0)]):
        with pytest.raises(UserError):
            evaluate(tiny_model, tokenizer, data, tilts=tilts, scoring=TEXTS)
    with pytest.raises(UserError, match="unknown evaluation set 'test'"):
        evaluate(tiny_model, tokenizer, {"test": data["ra"]}, TEXTS)
    with pytest.raises(UserError, match="no rows"):
        evaluate(tiny_model, tokenizer, {"ra": []}, TEXTS)
    for scoring in (TEXTS, Scoring(generate=False)):
        with pytest.raises(UserError, match="no set to evaluate: choose among forget, retain"):
            evaluate(tiny_model, tokenizer, {}, scoring)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["one row of the output layer", "a hidden layer", "the head"])
def test_probabilities_that_are_not_finite_are_one_clear_line(
    tiny_model, tokenizer, data, heads, place, value
):
    broken, head = copy.deepcopy(tiny_model), copy.deepcopy(heads[0])
    weight = {"one row of the output layer": broken.lm_head.weight, "the head": head.B}.get(place)
    weight = broken.model.layers[0].mlp.up_proj.weight if weight is None else weight
    weight.data[7] = value
    for tilts in (
        [[(head, 2.0)]]
        if place == "the head"
        else [None, [(head, 2.0)], [(None, 1.0), (None, 2.0)]]
    ):
        with pytest.raises(UserError, match="logits hold NaN or infinity") as error:
            evaluate(broken, tokenizer, data, NO_TEXTS, tilts=tilts)
        assert "\n" not in str(error.value)


def test_goldens(shared):
    """The reference's numbers for its tiny model: every row of the small sets and rows that a seed
    draws from the large ones, every row with T3_GOLDENS=1.
    """
    golden = json.loads((shared / "goldens" / "metrics_retain.json").read_text())["retain"]
    whole = os.environ.get("T3_GOLDENS") == "1"
    stems = (
        "forget10_perturbed",
        "retain_perturbed",
        "real_authors_perturbed",
        "world_facts_perturbed",
    )
    sets = dict(zip(("forget", "retain", "ra", "wf"), stems))
    every = {name: tofu.load_rows(shared / "tofu", stem) for name, stem in sets.items()}
    draw = random.Random(0)
    drawn = {
        name: sorted(draw.sample(range(len(each)), len(each) if whole else min(len(each), 120)))
        for name, each in every.items()
    }
    rows = {name: [every[name][i] for i in drawn[name]] for name in sets}
    model, tokenizer = models.load_model(shared / "goldens" / "retain", device="cpu")
    # its own logs of the same rows, in the layout of its file
    scores = [golden["truth_ratio"]["forget_truth_ratio"][i] for i in drawn["forget"]]
    by_index = {str(n): {"score": score} for n, score in enumerate(scores)}
    reference = suite.read_logs({"forget_truth_ratio": {"value_by_index": by_index}})
    scoring = Scoring("openunlearning")
    result = evaluate(model, tokenizer, rows, scoring, reference=reference)
    assert result["forget_quality"] > 0.999 and result["ks_statistic"] <= 0.025
    logs = suite.logs_of(result | {suite.SUITE: {}})
    assert suite.read_logs(logs)["truth_ratio"]["forget"] == result["truth_ratio"]["forget"]
    for name in sets:
        key = "forget_truth_ratio" if name == "forget" else f"{name}_Truth_Ratio"
        expected = np.array(golden["truth_ratio"][key])[drawn[name]]
        np.testing.assert_allclose(result["truth_ratio"][name], expected, atol=1e-5)
        rouge = [record["rouge"] for record in result["records"][name]]
        expected = np.array(golden["rouge"][f"{name}_Q_A_ROUGE"]["rougeL_recall"])[drawn[name]]
        np.testing.assert_allclose(rouge, expected, atol=1e-9)  # printed with nine digits
        prob = [record["prob"] for record in result["records"][name]]
        if name in ("forget", "retain"):
            expected = np.exp(-np.array(golden["avg_loss"][f"{name}_Q_A_Prob"]))
        else:
            expected = np.array(golden["prob_normalised"][f"{name}_Q_A_Prob_normalised"])
        np.testing.assert_allclose(prob, expected[drawn[name]], atol=1e-5)
    if whole:
        for name, each in logs.items():
            assert each["agg_value"] == pytest.approx(golden["agg"][name], abs=1e-5)
        components = golden["utility_components"]
        for name in ("retain", "ra", "wf"):
            normalised = "" if name == "retain" else "_normalised"
            keys = (f"{name}_Q_A_Prob{normalised}", f"{name}_Q_A_ROUGE", f"{name}_Truth_Ratio")
            for metric, key in zip(("prob", "rouge", "tr"), keys):
                assert result["components"][f"{name}_{metric}"] == pytest.approx(
                    components[key], abs=1e-5
                )
        assert result["model_utility"] == pytest.approx(golden["model_utility"], abs=1e-5)
        assert result["mu_rouge"] == pytest.approx(golden["mu_rouge"], abs=1e-8)
        for metric, key in (("prob", "forget_Q_A_Prob"), ("rouge", "forget_Q_A_ROUGE")):
            assert result["forget"][metric] == pytest.approx(golden["agg"][key], abs=1e-5)
        assert result["forget"]["truth_ratio"] == pytest.approx(
            golden["agg"]["forget_truth_ratio"], abs=1e-5
        )
