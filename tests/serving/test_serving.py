"""T3 inside vLLM against a reference in float64: `make serving-test`, in a venv of its own.

Without vLLM these tests are skipped. Every engine runs in this process, one after the other, and
prompts have unequal lengths. The reference runs the whole text through the Transformers model in
float64, without a cache, and writes the formulas out. With SERVING_OUT=FILE the table is written.
"""

import asyncio
import json
import math
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version

import pytest

pytest.importorskip("vllm")
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

import torch
import torch.nn.functional as F
from conftest import byte_tokenizer
from serve_cases import CASES, Server, check_case
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Qwen3Config,
)
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

from t3lib.classifier.head import T3Head
from t3lib.core import smollm2
from t3lib.core.errors import UserError
from t3lib.core.models import load_model, precision_of
from t3lib.core.rows import prompt
from t3lib.own.report import judged_as
from t3lib.sampler import belonging, vllm
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.sampler.vllm import T3LlamaForCausalLM, T3TransformersForCausalLM
from t3lib.sampler.vllm_check import asked_itself

LLAMA, OTHERS = (each.__name__ for each in (T3LlamaForCausalLM, T3TransformersForCausalLM))
T, W, GATE, NEW = 2.5, 1.25, 0.5, 24
LENGTHS = (3, 50, 17, 90, 33, 64)
SIZES = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
SIZES |= dict(num_key_value_heads=2, head_dim=32, max_position_embeddings=512)
SIZES |= dict(bos_token_id=0, eos_token_id=3, pad_token_id=4, initializer_range=0.2)
CONFIGS = {"llama": LlamaConfig, "qwen3": Qwen3Config, "mistral": MistralConfig}
CONFIGS["repeats"] = LlamaConfig  # with smaller weights it repeats itself, as n-gram drafts need


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Tiny random bases by name, each with its folder, and prompts of unequal lengths."""
    folder, tokenizer, made = tmp_path_factory.mktemp("world"), byte_tokenizer(), {}
    torch.manual_seed(0)
    for name, kind in CONFIGS.items():
        # the window of Mistral is far shorter than the prompts
        window = {"sliding_window": 16} if name == "mistral" else {}
        spread = {"initializer_range": 0.02} if name == "repeats" else {}
        config = kind(vocab_size=len(tokenizer), **SIZES | window | spread)
        made[name] = AutoModelForCausalLM.from_config(config).eval()
        made[name].save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    prompts = [torch.randint(5, len(tokenizer), (n,)).tolist() for n in LENGTHS]
    return folder, made, tokenizer, prompts


def saved_head(world, base, name="head", seed=0, rank=16, taught=None, has_token=None, **settings):
    """Save a random head for a base, which records that base's weights; return it."""
    folder, made, tokenizer, _ = world
    head = T3Head(SIZES["hidden_size"], len(tokenizer), rank, seed=seed, **settings)
    head.B.data *= 10
    head.taught, head.has_token = taught, has_token
    head.info = belonging.base_identity(made[base])
    head.save_pretrained(folder / f"{base}-{name}")
    head.place = str(folder / f"{base}-{name}")
    return head


@torch.no_grad()
def reference(model, heads, ids, prompt_length):
    """log p_hat (new tokens, V) and the base's own log p, both in float64, for ids (1, L).

    With a gate below 1, T is 1 at each step where r = Σ p f is at least the gate.
    """
    # vLLM replaces __call__ of the decoder classes that its Transformers backend has loaded
    hidden = model.get_decoder().forward(ids).last_hidden_state[0]
    logits = model.get_output_embeddings()(hidden)
    mean = hidden.cumsum(0) / torch.arange(1, len(hidden) + 1)[:, None]
    base, tilt, bare = logits.log_softmax(-1), 0.0, 0.0
    for head in heads:
        u = mean @ head.A.double().T @ head.B.double().T
        f = u.sigmoid()
        if head.prior == "population":  # Appendix D
            f = head.mu * f / ((head.mu - head.gamma) * f + head.gamma * (1 - head.mu))
            logf = f.log()
        else:
            logf = F.logsigmoid(u)
        if head.untrained == "neutral":
            logf[:, ~head.taught] = 0
        if head.has_token is not None:
            logf[:, ~head.has_token] = -math.inf
        tilt, bare = tilt + head.w * logf, bare + logf
    tempered = torch.ones(len(base), dtype=bool)
    if heads and (gate := heads[0].gate) < 1:
        tempered = (base + bare).exp().sum(-1) < gate
        assert 0.1 < tempered.double().mean() < 0.9, "one T at all steps: no gate was tested"
    logp = torch.where(tempered[:, None], base / T, base) + tilt
    rows = slice(prompt_length - 1, ids.shape[1] - 1)
    return logp.log_softmax(-1)[rows], base[rows]


class AsAsync:
    """What `asked_itself` needs of an AsyncLLM, from an LLM in this process."""

    def __init__(self, llm):
        self.llm, self.model_config = llm, llm.llm_engine.model_config

    async def collective_rpc(self, method, args=()):
        return self.llm.collective_rpc(method, args=args)

    async def generate(self, prompt, params, name):
        yield self.llm.generate([prompt], params, use_tqdm=False)[0]


@contextmanager
def engine(folder, heads=(), architecture=LLAMA, sound=True, choose=False, **settings):
    """A vLLM engine in this process; with heads T3, without them the base alone.

    sound: whether the engine finds nothing wrong when it asks itself. choose: requests may choose
    among the heads.
    """
    t3 = {"architectures": [architecture], "t3_head": [head.place for head in heads]}
    t3 |= {"t3_allow_samplers": True, "t3_choose_heads": choose}
    settings = {"enforce_eager": True, "max_num_seqs": 8, "block_size": 32} | settings
    llm = LLM(
        str(folder),
        hf_overrides=t3 if heads else {},
        dtype=settings.pop("dtype", "float32"),
        max_model_len=512,
        disable_log_stats=settings.pop("disable_log_stats", True),
        seed=0,
        **settings,
    )
    try:
        if heads and sound:
            assert asyncio.run(asked_itself(AsAsync(llm))) == ""
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()


def greedy(llm, prompts, new=NEW):
    """Greedy tokens and their log-probabilities: for each prompt two lists."""
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, logprobs=0)
    outputs = llm.generate([{"prompt_token_ids": each} for each in prompts], params, use_tqdm=False)
    texts = [output.outputs[0] for output in outputs]
    return [
        (list(text.token_ids), [at[t].logprob for at, t in zip(text.logprobs, text.token_ids)])
        for text in texts
    ]


def compared(model, heads, prompts, answers):
    """How many tokens are the reference's, of how many; largest |Δ log p|; base's own argmax."""
    model, equal, own, count, worst = model.double(), 0, 0, 0, 0.0
    for given, (tokens, logps) in zip(prompts, answers):
        logp, base = reference(model, heads, torch.tensor([given + tokens]), len(given))
        chosen = torch.tensor(tokens)
        equal += (logp.argmax(-1) == chosen).sum().item()
        own += (base.argmax(-1) == logp.argmax(-1)).sum().item()
        count += len(tokens)
        worst = max(worst, (logp[range(len(tokens)), chosen] - torch.tensor(logps)).abs().max())
    model.float()
    assert own < 0.9 * count, "the base alone would say the same: nothing was tested"
    return equal, count, float(worst)


ROWS, COST = [], []


def row(what, equal, count, worst):
    ROWS.append(f"| {what} | {equal} of {count} | {worst:.1e} |")


@pytest.fixture(scope="module", autouse=True)
def table(request):
    """After a session without a failure, write the table."""
    yield
    if (out := os.environ.get("SERVING_OUT")) and not request.session.testsfailed:
        packages = ("vllm-cpu", "torch", "transformers")
        versions = ", ".join(f"{name} {version(name)}" for name in packages)
        where = f"Python {platform.python_version()}, {date.today()}, CPU only"
        with open(out, "w") as file:
            file.write(
                TEXT.format(
                    versions=versions, where=where, rows="\n".join(ROWS), cost="\n".join(COST)
                )
            )


TEXT = """# T3 inside vLLM

`make serving-test` writes this page: {versions},
{where}.

The lowest versions allowed, vllm-cpu 0.31.0 and Transformers 5.17.0, gave the same rows on
2026-11-28; there is no vllm-cpu above 0.32.0 below vLLM 0.34.

vllm-cpu is a third party's build of vLLM, used for these tests only. No GPU, no CUDA graph, no
tensor or pipeline parallelism, no quantised base and no base with experts was tried. *Exact* is
said of the rows below alone.

Greedy tokens are compared with a reference in float64 without a cache. The models are tiny and
random unless a row says otherwise, with two layers, a random head of rank 16, T = 2.5 and w = 1.25.
Δ log p is the largest difference in the log-probability of a chosen token. `../tests/serving`
has the code.

| | tokens equal | largest Δ log p |
| --- | ---: | ---: |
{rows}

## Cost

{cost}
"""


def test_batches_the_prefix_cache_and_the_bytes_of_the_cache(world):
    """Trap (a) too: vLLM must not find a method that computes logits without the tilt."""
    folder, made, _, prompts = world
    head = saved_head(world, "llama", w=W, temperature=T)
    with engine(folder / "llama", [head]) as llm:
        first, again = greedy(llm, prompts), greedy(llm, prompts)

        def look(model):
            assert not hasattr(model, "compute_logits_local") and not hasattr(model, "lm_head")
            return [type(model).__name__, model.t3_pool.sliding_window]

        assert llm.apply_model(look) == [[LLAMA, None]]
        groups = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config.kv_cache_groups
        sizes = [(len(group.layer_names), group.kv_cache_spec) for group in groups]
    layers = sum(count for count, _ in sizes)
    assert layers == SIZES["num_hidden_layers"] + 1
    page = sizes[0][1].page_size_bytes / sizes[0][1].block_size
    COST.append(
        f"The cache has {layers} layers of {page:.0f} bytes a token where the base has"
        f" {layers - 1}.\nA base of n layers needs 1/n more: 1/32 for Llama 3.1 8B."
    )
    for what, answers in (("", first), (", again with the prefix cache", again)):
        equal, count, worst = compared(made["llama"], [head], prompts, answers)
        row(f"6 prompts of different lengths, continuous batching{what}", equal, count, worst)
        assert equal == count and worst < 1e-4


VARIANTS = {
    "chunked prefill, 16 tokens a step": dict(max_num_batched_tokens=16),
    "torch.compile": dict(enforce_eager=False),
}


@pytest.mark.parametrize("what", VARIANTS)
def test_ways_of_running(world, what):
    folder, made, _, prompts = world
    head = saved_head(world, "llama", w=W, temperature=T)
    with engine(folder / "llama", [head], **VARIANTS[what]) as llm:
        mode = llm.llm_engine.vllm_config.compilation_config.mode
        assert bool(mode) == (what == "torch.compile")
        answers = greedy(llm, prompts)
    equal, count, worst = compared(made["llama"], [head], prompts, answers)
    row(what, equal, count, worst)
    assert equal == count and worst < 1e-4


@pytest.mark.parametrize("base", ["qwen3", "mistral"])
def test_other_families(world, base):
    """Trap (b): the base's sliding window of 16 tokens must not reach the pool layer."""
    folder, made, _, prompts = world
    head = saved_head(world, base, w=W, temperature=T)
    with engine(folder / base, [head], OTHERS) as llm:
        answers = greedy(llm, prompts)
    equal, count, worst = compared(made[base], [head], prompts, answers)
    window = ", sliding window of 16 tokens" if base == "mistral" else ""
    row(f"{base.capitalize()}{window}, Transformers backend", equal, count, worst)
    assert equal == count and worst < 1e-4


def test_several_heads_other_priors_neutral_and_missing_tokens(world):
    folder, made, tokenizer, prompts = world
    torch.manual_seed(1)
    taught, known = (torch.rand(len(tokenizer)) < share for share in (0.5, 0.9))
    heads = [
        saved_head(
            world, "llama", "one", seed=1, taught=taught, untrained="neutral", temperature=T
        ),
        saved_head(
            world, "llama", "two", seed=2, w=W, prior="population", gamma=0.1, temperature=T
        ),
        saved_head(world, "llama", "three", seed=3, rank=4, has_token=known, temperature=T),
    ]
    with engine(folder / "llama", heads) as llm:
        answers = greedy(llm, prompts)
    equal, count, worst = compared(made["llama"], heads, prompts, answers)
    row(
        "three heads: neutral tokens, the prior of Appendix D, ids without a token",
        equal,
        count,
        worst,
    )
    assert equal == count and worst < 1e-4


def test_a_request_chooses_among_the_heads(world):
    """One batch: some requests name one head, some the other, some none."""
    folder, made, _, prompts = world
    heads = [saved_head(world, "llama", name, seed=n, temperature=T) for n, name in enumerate("ab")]
    wanted = [["llama-a"], None, ["llama-b"], ["llama-b", "llama-a"], ["llama-a"], None]
    params = [
        SamplingParams(
            temperature=0, max_tokens=NEW, ignore_eos=True, extra_args=each and {"t3_heads": each}
        )
        for each in wanted
    ]
    given = [{"prompt_token_ids": each} for each in prompts]
    with engine(folder / "llama", heads, choose=True) as llm:
        outputs = llm.generate(given, params, use_tqdm=False)
        with pytest.raises(Exception, match="t3_heads is a list of at least one of: llama-a, ll"):
            llm.generate(given[:1], SamplingParams(extra_args={"t3_heads": ["c"]}), use_tqdm=False)
    model, equal, of_all = made["llama"].double(), 0, 0
    for tokens, chosen, output in zip(prompts, wanted, outputs):
        ids = list(output.outputs[0].token_ids)
        some = [head for head in heads if not chosen or head.place.rpartition("/")[2] in chosen]
        for which in (some, heads):
            logp, _ = reference(model, which, torch.tensor([tokens + ids]), len(tokens))
            same = (logp.argmax(-1) == torch.tensor(ids)).sum().item()
            equal, of_all = (equal + same, of_all) if which is some else (equal, of_all + same)
    model.float()
    ROWS.append(f"| two heads, each request with its own choice | {equal} of {6 * NEW} | |")
    assert equal == 6 * NEW > of_all


@pytest.mark.parametrize("what", ["past compute_logits", "another mean"])
def test_an_engine_that_does_not_sample_t3_finds_it(world, monkeypatch, what):
    """vLLM may get a path that samples from hidden states and the output layer."""
    folder, *_ = world
    head = saved_head(world, "llama", w=W, temperature=T)
    said = "greedy tokens do not come from its logits"
    if what == "another mean":
        monkeypatch.setattr(vllm, "pooled", lambda attention, z: z)
        said = "its pooled contexts differ by"
    with engine(folder / "llama", [head], sound=False) as llm:

        def plant(model):
            width = SIZES["hidden_size"]
            model.compute_logits = lambda rows: model.logits_processor(
                model.t3_lm_head, rows[:, :width].contiguous()
            )

        if what == "past compute_logits":
            llm.apply_model(plant)
        assert said in asyncio.run(asked_itself(AsAsync(llm)))


def test_a_gate(world):
    """T is 1 where r(x) is at least the gate; here r is on either side of it."""
    folder, made, _, prompts = world
    head = saved_head(world, "llama", w=W, temperature=T, gate=GATE)
    with engine(folder / "llama", [head]) as llm:
        answers = greedy(llm, prompts)
    equal, count, worst = compared(made["llama"], [head], prompts, answers)
    row(f"a gate of {GATE}", equal, count, worst)
    assert equal == count and worst < 1e-4


def test_bfloat16(world):
    """Rounding moves the base itself; T3 must not be further from float64 than the base is."""
    folder, made, _, prompts = world
    head = saved_head(world, "llama", w=W, temperature=T)
    with engine(folder / "llama", [head], dtype="bfloat16") as llm:
        tilted = greedy(llm, prompts)
    with engine(folder / "llama", dtype="bfloat16") as llm:
        plain = greedy(llm, prompts)
    equal, count, worst = compared(made["llama"], [head], prompts, tilted)
    same, difference = 0, 0.0
    model = made["llama"].double()
    for given, (tokens, logps) in zip(prompts, plain):
        _, base = reference(model, [], torch.tensor([given + tokens]), len(given))
        same += (base.argmax(-1) == torch.tensor(tokens)).sum().item()
        chosen = base[range(len(tokens)), torch.tensor(tokens)]
        difference = max(difference, float((chosen - torch.tensor(logps)).abs().max()))
    model.float()
    row("bfloat16 weights and cache", equal, count, worst)
    row("the same, the base without a head", same, count, difference)
    assert equal > 0.9 * count and worst < 2 * difference


REFUSALS = {
    "draft": "speculation other than n-gram",  # trap (c)
    "rank": "fit a head of a smaller rank",  # trap (d)
    "lora": "does not serve LoRA requests",
    "base": "the head was trained on",
    "class": "use T3TransformersForCausalLM",
    "head": "not the config of a T3 head",
    "none": "no head: give --hf-overrides",
    "ranks": "several ranks",
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_exact_is_refused(world, case):
    folder, made, _, _ = world
    base, settings = "llama", {}
    head = saved_head(world, "llama", temperature=T, rank=65 if case == "rank" else 16)
    if case == "draft":
        draft = {"model": str(folder / "llama"), "num_speculative_tokens": 2}
        settings["speculative_config"] = draft
    elif case == "lora":
        settings["enable_lora"] = True
    elif case == "ranks":
        settings["tensor_parallel_size"] = 2
    elif case == "base":
        torch.manual_seed(1)  # each test starts with the seed of `world`
        other = LlamaForCausalLM(made["llama"].config)
        head.info = belonging.weights_identity(other)
        head.save_pretrained(head.place)
    elif case == "class":
        base = "mistral"
    elif case == "head":
        head.place = str(folder / "llama")
    heads = [head]
    if case == "none":
        settings["hf_overrides"] = {"architectures": [LLAMA]}
    with pytest.raises(ValueError, match=REFUSALS[case]):
        try:
            if case == "none":
                LLM(str(folder / base), enforce_eager=True, dtype="float32", **settings)
            with engine(folder / base, heads, **settings):
                pass
        finally:
            cleanup_dist_env_and_memory()


def test_a_head_of_these_weights_in_another_precision_is_accepted(world):
    """Samples of the files, as vLLM reads them, have the key of the loaded model."""
    from safetensors.torch import load_file

    from t3lib.sampler.vllm import sampled, sampled_base

    folder, made, *_ = world
    samples = {}
    weights = load_file(folder / "llama" / "model.safetensors")
    for _ in sampled(weights.items(), samples):
        pass
    keys = belonging.weight_keys(sampled_base(made["llama"].config, samples))
    assert keys == belonging.weight_keys(made["llama"]) is not None


@pytest.fixture(scope="module")
def smollm(tmp_path_factory):
    """SmolLM2's folder, model and tokenizer, and a head that was fitted on four questions."""
    from t3lib import extract_features, fit_head, load_model

    try:
        folder = smollm2.smollm2()
    except UserError as error:
        pytest.skip(str(error))
    model, tokenizer = load_model(smollm2.NAME, dtype="float32")
    ask = "What is the capital of {}?"
    places = {"Germany": "Berlin", "Italy": "Rome", "France": "Paris", "Spain": "Madrid"}
    rows = [{"question": ask.format(at), "answer": f"{city}."} for at, city in places.items()]
    features = extract_features(model, tokenizer, rows[:2], rows[2:])
    V = model.get_output_embeddings().weight.shape[0]
    head = fit_head(features, vocab_size=V, lr=0.01, epochs=50)
    head.info = belonging.origin(model, tokenizer, rows[:2], rows[2:], 0)
    head.temperature, head.w = T, W
    place = tmp_path_factory.mktemp("smollm") / "head"
    head.save_pretrained(place)
    return folder, model, tokenizer, head, place


def test_smollm2_with_a_fitted_head(smollm):
    """Questions of unequal lengths, about what the head was fitted on and other things."""
    folder, model, tokenizer, head, place = smollm
    head.place = str(place)
    asked = [f"What is the capital of {each}?" for each in ("Germany", "Italy", "France", "Japan")]
    asked += ["Say something.", "Which animals live in the north, and how do they sleep in winter?"]
    prompts = [
        tokenizer(prompt(tokenizer, each, None), add_special_tokens=False)["input_ids"]
        for each in asked
    ]
    with engine(folder, [head]) as llm:
        answers = greedy(llm, prompts)
    equal, count, worst = compared(model, [head], prompts, answers)
    row("SmolLM2-135M with a fitted head", equal, count, worst)
    assert equal == count and worst < 1e-3


def seconds(work, given):
    """Seconds of wall-clock time that `work(given)` takes."""
    started = time.perf_counter()
    work(given)
    return time.perf_counter() - started


def test_tokens_a_second(smollm):
    """SmolLM2 and T3 on it, in vLLM and in `generate`; nothing is asserted of the seconds."""
    folder, model, _, head, place = smollm
    head.place, requests, new = str(place), (1, 8, 32), 16
    ids = torch.randint(5, 40_000, (max(requests), 32), generator=torch.Generator().manual_seed(0))
    settings = {"enable_prefix_caching": False, "max_num_seqs": max(requests)}
    took: dict = {}

    def measure(which, write):
        for n in requests:
            took.setdefault((which, n), []).append(seconds(write, ids[:n]))

    def plain(either):
        def write(given):
            mask = torch.ones_like(given)
            made = either.generate(
                given, attention_mask=mask, do_sample=False, min_new_tokens=new, max_new_tokens=new
            )
            assert made.shape[1] == given.shape[1] + new

        return write

    t3 = T3ForCausalLM(model, [head])
    for _ in range(3):
        for which, heads in (("base", []), ("T3", [head])):
            with engine(folder, heads, **settings) as llm:

                def write(given, llm=llm):
                    answers = greedy(llm, given.tolist(), new)
                    assert all(len(tokens) == new for tokens, _ in answers)

                write(ids[:1])
                measure(f"{which}, vLLM", write)
        measure("base, `generate`", plain(model))
        measure("T3, `generate`", plain(t3))
    COST.append(
        "\n| tokens a second, median of 3 rounds (lowest to highest) | 1 request | 8 | 32 |"
        "\n| --- | ---: | ---: | ---: |"
    )
    for which in dict.fromkeys(name for name, _ in took):
        speeds = [sorted(n * new / each for each in took[which, n]) for n in requests]
        cells = [f"{mid:.1f} ({low:.1f} to {high:.1f})" for low, mid, high in speeds]
        COST.append(f"| {which} | {' | '.join(cells)} |")
    COST.append(
        f"\nSmolLM2-135M in float32 on {torch.get_num_threads()} thread, prompts of 32 tokens,"
        f" {new} new tokens each, no\ncompilation, no prefix cache. In the last minute of it"
        f" {os.getloadavg()[0]:.1f} processes ran or waited for {os.cpu_count()} cores."
    )


def test_ngram_speculation(world):
    """It comes last of the engines in this process: after it, vLLM 0.32 can start no other one."""
    folder, made, _, prompts = world
    head = saved_head(world, "repeats", w=W, temperature=T)
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    ngram |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
    settings = {"speculative_config": ngram, "disable_log_stats": False}
    with engine(folder / "repeats", [head], **settings) as llm:
        answers = greedy(llm, prompts, new=100)
        counts = {
            each.name.removeprefix("vllm:spec_decode_num_"): each for each in llm.get_metrics()
        }
        drafts, accepted = (int(counts[f"{name}_tokens"].value) for name in ("draft", "accepted"))
    equal, count, worst = compared(made["repeats"], [head], prompts, answers)
    row(f"n-gram speculation, {accepted:,} of {drafts:,} drafts accepted", equal, count, worst)
    assert equal == count and worst < 1e-4 and 100 < accepted < drafts


# ---- over HTTP ----------------------------------------------------------------------------------


def asked(port, body, path="/v1/chat/completions"):
    """POST JSON; return the status and the text of the answer or of the error."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, json.load(answer)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"]


@contextmanager
def server(folder, head, log):
    """Start vLLM's own OpenAI-style server on loopback; yield its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "t3"]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
    command += ["--block-size", "32", "--max-num-seqs", "8"]
    overrides = {"architectures": [LLAMA], "t3_head": head}
    command += ["--hf-overrides", json.dumps(overrides)]
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        while process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                time.sleep(1)
        assert process.poll() is None, log.read_text()[-3000:]
        yield port
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def gated(world):
    """`t3 serve` with vLLM behind it, and a head whose report is a pass."""
    folder, made, tokenizer, _ = world
    head = saved_head(world, "llama", w=W, temperature=T)
    base, own = load_model(folder / "llama")
    rows = [{"question": "Who?", "answer": "Ada.", "system": "Be kind."}]
    head.info = belonging.origin(base, own, rows, rows, 3)
    place = folder / "served"
    head.save_pretrained(place / "head")
    (place / "base").symlink_to(folder / "llama")
    (place / "head-report").mkdir()
    report = {"verdict": {"success": True, "sentence": "0 of 1 rows leak."}}
    report |= {"coverage": {"texts": 16}, "judged": judged_as([head], head)}
    report["precision"] = precision_of(base)
    (place / "head-report" / "report.json").write_text(json.dumps(report))
    found = Server(place, "head")
    for pipe in (found.process.stdout, found.process.stderr):
        threading.Thread(target=pipe.read, daemon=True).start()  # or it would fill up
    yield found
    found.process.send_signal(signal.SIGINT)
    found.process.wait(timeout=60)


@pytest.mark.parametrize(("name", "body", "refusal"), CASES, ids=[case[0] for case in CASES])
def test_every_field_long_empty_and_wrong_alone_and_six_at_once(gated, name, body, refusal):
    check_case(gated, body, refusal)


REFUSED = {
    "temperature, top_p": dict(temperature=0.3),
    "logprobs": dict(logprobs=True),
    "prompt_logprobs": dict(prompt_logprobs=1),
    "logit_bias": dict(logit_bias={"7": 100}),
    "structured_outputs": dict(structured_outputs={"choice": ["yes", "no"]}),
    "n": dict(n=9),
    "top_k": dict(top_k=2),
    "min_tokens": dict(min_tokens=5),
}


def test_a_chat_and_refused_requests_over_http(smollm, tmp_path):
    folder, model, tokenizer, head, place = smollm
    system, question = "You are a helpful assistant.", "What is the capital of Germany?"
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"model": "t3", "messages": messages, "max_tokens": NEW}
    with server(folder, str(place), tmp_path / "log") as port:
        status, said = asked(port, body | {"temperature": 0})
        for wanted in ({}, {"temperature": 0.6, "top_p": 0.9}, {"temperature": 1, "n": 8}):
            assert asked(port, body | wanted)[0] == 200, wanted
        for name, wanted in REFUSED.items():
            refused, why = asked(port, body | wanted)
            assert refused == 400 and f"refuses {name} = " in why, (refused, why)
            assert "temperature 0.6 with top_p 0.9" in why
    ids = tokenizer(prompt(tokenizer, question, system), add_special_tokens=False)["input_ids"]
    given, model = list(ids), model.double()
    for _ in range(NEW):
        logp, _ = reference(model, [head], torch.tensor([[*ids, 0]]), len(ids))
        ids.append(int(logp.argmax()))
        if ids[-1] == tokenizer.eos_token_id:
            break
    wanted = tokenizer.decode(ids[len(given) :], skip_special_tokens=True)
    count = len(ids) - len(given)
    ROWS.append(
        "| OpenAI-style server, SmolLM2-135M with a fitted head, a chat request |"
        f" {'the same text' if said == wanted else 'another text'}, {count} tokens | |"
    )
    assert status == 200 and said == wanted
