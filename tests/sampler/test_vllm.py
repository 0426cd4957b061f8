"""T3's model class for vLLM without vLLM: its arithmetic, its rules and its entry points.

vLLM's classes are replaced by stubs. `make serving-test` runs the module inside vLLM itself.
"""

import asyncio
import copy
import importlib
import shutil
import subprocess
import sys
import tomllib
import types
import warnings
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from torch import nn

from t3lib.classifier.head import T3Head
from t3lib.classifier.pooling import prefix_mean
from t3lib.core.errors import UserError
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM, tilt_logits

CODE = tuple(f"t3lib/sampler/vllm{part}.py" for part in ("", "_rules", "_samplers", "_check"))
LENGTHS = (3, 7, 1)  # of the requests in one batch


class Attention(nn.Module):
    """Causal attention within each of the requests that lie one after the other."""

    def __init__(self, num_heads, head_size, scale, num_kv_heads, prefix, cache_config=None):
        super().__init__()
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads
        self.prefix, self.cache_config = prefix, cache_config

    def forward(self, q, k, v):
        q, k, v = (x.view(len(x), -1, self.head_size).transpose(0, 1) for x in (q, k, v))
        k, v = (x.repeat_interleave(len(q) // len(k), 0) for x in (k, v))
        pieces = zip(*(x.split(LENGTHS, 1) for x in (q, k, v)))
        dot = nn.functional.scaled_dot_product_attention
        done = torch.cat([dot(*piece, is_causal=True) for piece in pieces], 1)
        return done.transpose(0, 1).flatten(1)


class Llama(nn.Module):
    """A vLLM model over a Transformers model: requests one after the other, without padding."""

    def __init__(self, *, vllm_config, prefix):
        super().__init__()
        self.config, self.model = vllm_config.model_config.hf_config, vllm_config.loaded
        self.lm_head = self.model.get_output_embeddings()

    def forward(self, ids):
        rows = (
            self.model.get_decoder()(each[None]).last_hidden_state for each in ids.split(LENGTHS)
        )
        return torch.cat([*rows], 1)[0]

    def logits_processor(self, lm_head, hidden, bias):
        return lm_head(hidden)

    def compute_logits(self, hidden):
        return self.logits_processor(self.lm_head, hidden, None)

    def compute_logits_local(self, hidden):
        return self.compute_logits(hidden)

    def load_weights(self, weights):
        return {name for name, _ in weights}


class SamplingParams(SimpleNamespace):
    defaults = dict(temperature=1.0, top_p=1.0, top_k=0, n=1, logprobs=None, prompt_logprobs=None)
    defaults |= dict(logit_bias=None, seed=None, max_tokens=16, min_tokens=0, _eos_token_id=None)
    defaults |= dict(extra_args=None)
    __struct_fields__ = tuple(defaults)

    def __init__(self, **given):
        super().__init__(**self.defaults | given)


def process_dict_updates(entries, update, new_state):
    """What V1 does with the state of requests: those that come, then those that leave or move."""
    for place, *request in update.added:
        entries[place] = new_state(*request)
    for place in update.removed:
        entries.pop(place, None)
    for start, end in update.moved:
        entries[end] = entries.pop(start, None)
    for place in [place for place, state in entries.items() if state is None]:
        del entries[place]


STUBS = {
    "vllm": {"ModelRegistry": SimpleNamespace(), "SamplingParams": SamplingParams},
    "vllm.model_executor.layers.attention": {"Attention": Attention},
    "vllm.model_executor.models.llama": {"LlamaForCausalLM": Llama},
    "vllm.model_executor.models.transformers": {"TransformersForCausalLM": Llama},
    "vllm.model_executor.models.config": {"MODELS_CONFIG_MAP": {}, "VerifyAndUpdateConfig": object},
    "vllm.v1.sample.logits_processor": {"LogitsProcessor": type("V1", (), {})},
    "vllm.v1.sample.logits_processor.builtin": {"process_dict_updates": process_dict_updates},
    "vllm.v1.worker.gpu.sample.logits_processor": {"LogitsProcessor": type("V2", (), {})},
}


@pytest.fixture
def served(monkeypatch):
    """The modules of rules and of the class, imported over stubs of vLLM."""
    for name, content in STUBS.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    names = tuple(f"t3lib.sampler.vllm{part}" for part in ("_samplers", "_check", "_rules", ""))
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    _, _, *modules = [importlib.import_module(name) for name in names]
    yield modules
    for name in names:
        sys.modules.pop(name, None)


def vllm_config(model, heads=(), **changes):
    """What the modules read of vLLM's configuration; changes: attributes by dotted place."""
    config = model.config
    config.t3_head = list(heads)
    parts = {
        "loaded": model,
        "parallel_config": SimpleNamespace(
            world_size=1, data_parallel_size=1, worker_extension_cls=""
        ),
        "cache_config": SimpleNamespace(cache_dtype="auto", sliding_window=2),
        "load_config": SimpleNamespace(load_format="auto"),
        "device_config": SimpleNamespace(device="cpu"),
        **dict.fromkeys(("speculative_config", "lora_config", "kv_transfer_config")),
        "model_config": SimpleNamespace(
            hf_config=config,
            architecture="T3LlamaForCausalLM",
            **dict.fromkeys(("is_hybrid", "has_inner_state", "use_mla", "is_moe")),
            **dict.fromkeys(("is_encoder_decoder", "is_multimodal_model", "enable_sleep_mode")),
            get_head_size=lambda: config.hidden_size // config.num_attention_heads,
            get_num_kv_heads=lambda _: config.num_key_value_heads,
            get_num_attention_heads=lambda _: config.num_attention_heads,
            get_total_num_hidden_layers=lambda: config.num_hidden_layers,
            get_hidden_size=lambda: config.hidden_size,
            get_vocab_size=lambda: config.vocab_size,
            skip_tokenizer_init=True,
            override_generation_config={},
        ),
    }
    whole = SimpleNamespace(**parts)
    for place, value in changes.items():
        at, _, name = place.rpartition("__")
        setattr(getattr(whole, at) if at else whole, name, value)
    return whole


@pytest.fixture
def heads(tiny_model, tmp_path):
    """Folders of two heads of the tiny model: neutral tokens; another prior, ids without token."""
    d, V = tiny_model.config.hidden_size, tiny_model.config.vocab_size
    one = T3Head(d, V, 9, seed=1, w=1.25, temperature=2.5, untrained="neutral")
    two = T3Head(d, V, 5, seed=2, prior="population", gamma=0.1, temperature=2.5)
    one.gate = two.gate = 0.25
    one.tail = two.tail = 0.02
    one.taught, two.has_token = torch.rand(V) < 0.5, torch.rand(V) < 0.9
    for head, name in ((one, "one"), (two, "two")):
        head.info = belonging.weights_identity(tiny_model)
        head.save_pretrained(tmp_path / name)
    return [str(tmp_path / "one"), str(tmp_path / "two")]


@pytest.mark.parametrize("n, heads, kv_heads, size", [(1, 1, 1, 4), (7, 4, 2, 4), (12, 6, 3, 4)])
def test_attention_with_zero_queries_is_the_running_mean(served, n, heads, kv_heads, size):
    _, module = served
    z = torch.randn(sum(LENGTHS), n)
    means = module.pooled(Attention(heads, size, 1.0, kv_heads, ""), z)
    wanted = [prefix_mean(each[None])[0] for each in z.split(LENGTHS)]
    torch.testing.assert_close(means, torch.cat(wanted))


@torch.no_grad()
def test_the_class_computes_what_the_sampler_does(served, tiny_model, heads):
    """Unequal lengths, two heads; and the three traps: (a), (b) and the name of the layer."""
    _, module = served
    model = module.T3LlamaForCausalLM(vllm_config=vllm_config(tiny_model, heads))
    assert model.load_weights(tiny_model.named_parameters()) > {"model.norm.weight"}
    assert not hasattr(model, "compute_logits_local"), "it would leave f out"
    assert model.t3_pool.cache_config is None, "the base's window would be inherited"
    assert model.t3_pool.prefix == "model.layers.2.t3_pool.attn"
    assert not [name for name, _ in model.named_parameters() if "t3_heads" in name]
    ids = torch.randint(5, tiny_model.config.vocab_size, (sum(LENGTHS),))
    states = model(ids)
    whole = T3ForCausalLM(tiny_model, heads, other_base=True)

    def kept(ids):
        """r(x) of the last position, from the definition."""
        context = tiny_model.model(ids[None]).last_hidden_state.mean(1)
        f = torch.stack([(head(context) / head.w).exp() for head in whole.heads]).prod(0)
        return float((tiny_model(ids[None]).logits[:, -1].softmax(-1) * f).sum())

    gates = {"open for all": 0.0, "shut for all": 1.0}
    gates["open for one"] = sorted(map(kept, ids.split(LENGTHS)))[-1] - 1e-6
    assert model.t3_tail == whole.tail == 0.02
    assert model.t3_gate == whole.gate == 0.25 and 0.2 < gates["open for one"] < 0.9
    found = {}
    for name, gate in gates.items():
        model.t3_gate = whole.gate = gate
        # vLLM selects the last row of each request
        found[name] = logits = model.compute_logits(states[[2, 9, 10]])
        wanted = torch.cat([whole(each[None]).logits[:, -1] for each in ids.split(LENGTHS)])
        torch.testing.assert_close(logits, wanted, atol=1e-5, rtol=1e-5)
    apart = (found["open for one"] - found["shut for all"]).abs().amax(-1) > 1e-3
    assert apart.sum() == 1, "the gate is open for one row of three"
    assert (logits - tilt_logits(wanted, 0 * wanted, 1)).abs().max() < 1e-3
    assert (logits < -1e29).sum(1).tolist() == [int((~whole.heads[1].has_token).sum())] * 3


REFUSED = {
    "several ranks": {"parallel_config__world_size": 2},
    "several ranks .* data parallel": {"parallel_config__data_parallel_size": 2},
    "another extension of the worker": {"parallel_config__worker_extension_cls": "their.own"},
    "speculation other than n-gram": {"speculative_config": SimpleNamespace(method="eagle")},
    "LoRA requests": {"lora_config": object()},
    "a hybrid": {"model_config__is_hybrid": True},
    "a hybrid or": {"model_config__has_inner_state": True},
    "a hybrid or MLA base": {"model_config__use_mla": True},
    "a base with experts": {"model_config__is_moe": True},
    "a base with experts, an encoder": {"model_config__is_encoder_decoder": True},
    "a base with experts, an encoder or images": {"model_config__is_multimodal_model": True},
    "a cache of another dtype": {"cache_config__cache_dtype": "fp8"},
    "a cache from another server": {"kv_transfer_config": object()},
    "sleep mode": {"model_config__enable_sleep_mode": True},
    "weights that are not read from safetensors": {"load_config__load_format": "gguf"},
    "another base than Llama": {"model_config__hf_config": SimpleNamespace(model_type="qwen3")},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_was_not_tried_is_refused(served, tiny_model, heads, what):
    rules, module = served
    fine = {"speculative_config": SimpleNamespace(method="ngram")}
    rules.check_config(vllm_config(tiny_model, heads, **fine))
    with pytest.raises(UserError, match=f"does not serve {what}"):
        rules.Rules.verify_and_update_config(vllm_config(tiny_model, heads, **REFUSED[what]))
    assert not rules.JudgedSamplers.on
    with pytest.raises(UserError, match=f"does not serve {what}"):
        module.T3LlamaForCausalLM(vllm_config=vllm_config(tiny_model, heads, **REFUSED[what]))


@torch.no_grad()
def test_what_samples_without_the_tilt_is_found(served, tiny_model, heads):
    """vLLM may sample from `lm_head`, past `compute_logits`, or pool another mean."""
    _, module = served
    check = sys.modules["t3lib.sampler.vllm_check"]
    model = module.T3LlamaForCausalLM(vllm_config=vllm_config(tiny_model, heads))
    model.load_weights(tiny_model.named_parameters())
    ids = torch.randint(5, tiny_model.config.vocab_size, (sum(LENGTHS),))
    states = model(ids)
    assert not hasattr(model, "lm_head")
    with pytest.raises(AttributeError, match="lm_head"):
        Llama.compute_logits(model, states[:, : tiny_model.config.hidden_size])

    worker = check.Watch()
    worker.get_model = lambda: model

    def found(tokens, pooled=1.0):
        worker.t3_watch()
        changed = states.clone()
        changed[:, tiny_model.config.hidden_size :] *= pooled
        for rows in (changed[[2, 9]], changed[3:10]):  # of two requests, and of a prompt
            best = model.compute_logits(rows).argmax(-1).tolist()
        return worker.t3_difference(best[-1:] if tokens is None else tokens)

    assert found(None) == "" and model.t3_seen is None, "nothing is kept after the check"
    assert found([], pooled=0.9) == "its pooled contexts differ by 10.0% from their means"
    base = tiny_model(ids[None, 3:10]).logits[0].argmax(-1).tolist()
    assert "greedy tokens do not come from its logits" in found(base)
    assert check.difference(model, [], [1]) == "1 of 1 greedy tokens do not come from its logits"
    assert check.difference(model, [(states[:2], [1])], [1]) == "it computes no logits of a prompt"


@pytest.mark.parametrize("found", ["", "it samples from p", ValueError("an engine that is gone")])
def test_a_server_that_does_not_serve_t3_does_not_start(served, monkeypatch, capsys, found):
    """The last guard against a server that answers with the base."""
    check = sys.modules["t3lib.sampler.vllm_check"]
    passed, sent = [], []

    async def asked(engine):
        if isinstance(found, str):
            return found
        raise found

    async def app(scope, *_):
        passed.append(scope["type"])

    async def receive():
        return {"type": "lifespan.startup"}

    async def send(message):
        sent.append(message["type"])

    monkeypatch.setattr(check, "asked_itself", asked)
    scope = {"type": "lifespan", "app": SimpleNamespace(state=SimpleNamespace(engine_client=0))}
    asyncio.run(check.SelfCheck(app)(scope, receive, send))
    wrong = ["lifespan.startup.failed"] if found else []
    assert (passed, sent) == (["lifespan"] * (not wrong), wrong)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(wrong) and all(str(found) in line for line in lines)


def test_another_tokenizer_is_refused_and_a_template_with_a_date_is_said(
    served, tiny_model, heads, tokenizer, monkeypatch
):
    rules, _ = served
    head = T3Head.from_pretrained(heads[0])
    head.info |= {"tokenizer_hash": belonging.tokenizer_hash(tokenizer)}
    head.save_pretrained(heads[0])
    named = {"tokenizer": "a/name", "tokenizer_revision": None, "skip_tokenizer_init": False}
    config = vllm_config(tiny_model, heads, **{f"model_config__{k}": v for k, v in named.items()})

    def started(tokenizer):
        known = SimpleNamespace(from_pretrained=lambda name, revision: tokenizer)
        monkeypatch.setattr(rules, "AutoTokenizer", known)
        config.parallel_config.worker_extension_cls = ""
        rules.Rules.verify_and_update_config(config)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        started(tokenizer)
    dated, other = copy.deepcopy(tokenizer), copy.deepcopy(tokenizer)
    dated.chat_template = "{{ strftime_now('%d') }}" + tokenizer.chat_template
    with pytest.warns(UserWarning, match="chat template writes a date"):
        started(dated)
    other.add_tokens(["another"])
    with pytest.raises(UserError, match="trained with another tokenizer"):
        started(other)


@torch.no_grad()
def test_a_request_chooses_among_the_heads(served, tiny_model, heads, tmp_path):
    rules, module = served
    judged = rules.JudgedSamplers
    check = judged.validate_params
    check(SamplingParams(extra_args={"t3_heads": ["one"]}))  # a server without T3

    def started(choose=True, heads=heads, **more):
        config = vllm_config(tiny_model, heads, **more)
        config.model_config.hf_config.t3_choose_heads = choose
        config.model_config.hf_config.t3_allow_samplers = False
        rules.Rules.verify_and_update_config(config)
        return config

    started(choose=False)
    with pytest.raises(UserError, match="takes no t3_heads"):
        check(SamplingParams(extra_args={"t3_heads": ["one"]}))
    with pytest.raises(UserError, match="does not serve speculation where requests choose heads"):
        started(speculative_config=SimpleNamespace(method="ngram"))
    same = shutil.copytree(heads[0], tmp_path / "again" / "one")
    with pytest.raises(UserError, match="two heads have one name .one, one"):
        started(heads=[heads[0], str(same)])
    config = started()
    for wrong in (["three"], [], "one", [1], {"one": 1}, 3, [["one"]]):
        with pytest.raises(UserError, match="t3_heads is a list of at least one of: one, two"):
            check(SamplingParams(extra_args={"t3_heads": wrong}))
    with pytest.raises(UserError, match="refuses extra_args"):
        check(SamplingParams(extra_args={"t3_heads": ["one"], "more": 1}))
    for name, value in {"logprobs": 0, "min_tokens": 3, "logit_bias": {1: 5.0}}.items():
        with pytest.raises(UserError, match=f"cannot be combined with {name}"):
            judged.check_choice(
                SimpleNamespace(extra_args={"t3_heads": ["one"]}, **{name: value}), ("one",)
            )
    with pytest.raises(UserError, match="is a list of"):
        judged.check_choice(SimpleNamespace(extra_args={"t3_heads": [1]}), ("1",))
    assert judged.check_choice(
        SimpleNamespace(extra_args={"t3_heads": ["1"]}, min_tokens=0), ("1",)
    )

    model = module.T3LlamaForCausalLM(vllm_config=config)
    model.load_weights(tiny_model.named_parameters())
    states = model(torch.randint(5, tiny_model.config.vocab_size, (sum(LENGTHS),)))[[2, 9, 10]]
    asked = [["one"], None, ["two", "one"]]  # two heads are all of them
    params = [SamplingParams(extra_args=each and {"t3_heads": each}) for each in asked]
    for each in params:
        check(each)
    both = judged(vllm_config(tiny_model, heads))
    assert not both.is_argmax_invariant()
    assert [both.add_request(7 + place, each) for place, each in enumerate(params)] == [
        True, False, True
    ]  # fmt: skip
    context = SimpleNamespace(expanded_idx_mapping=torch.tensor([7, 8, 9]))
    logits = model.compute_logits(states)
    found = both.apply(logits.clone(), context)
    v1 = judged(vllm_config(tiny_model, heads))  # which follows its batch by itself
    added = [(place, each, [], []) for place, each in enumerate(params)]
    v1.update_state(SimpleNamespace(added=added, removed=[], moved=[]))
    assert torch.equal(v1.apply(logits.clone()), found)
    v1.update_state(SimpleNamespace(added=[], removed=[0], moved=[(2, 0)]))
    assert v1.chosen == {0: [0, 1]}
    alone = module.T3LlamaForCausalLM(vllm_config=vllm_config(tiny_model, heads[:1]))
    alone.load_weights(tiny_model.named_parameters())
    narrow = states[:, : tiny_model.config.hidden_size + 9]
    torch.testing.assert_close(found[0], alone.compute_logits(narrow)[0])
    assert (found[0] - logits[0]).abs().max() > 1e-3 and torch.equal(found[1], logits[1])
    torch.testing.assert_close(found[2], logits[2])
    assert not both.add_request(7, params[1]) and 7 not in both.chosen, "the place is another's"


def test_heads_that_do_not_fit_are_refused(served, tiny_model, heads, tmp_path):
    rules, module = served
    d, V = tiny_model.config.hidden_size, tiny_model.config.vocab_size

    def saved(name, d=d, V=V, rank=4, info=None, **settings):
        T3Head(d, V, rank, info=info, **settings).save_pretrained(tmp_path / name)
        return [str(tmp_path / name)]

    cut = saved("cut")
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"")
    other = {"base_weights": ["0" * 16, "1" * 16]}
    cases = {
        "no head: give": [],
        "truncated, altered": cut,
        "hidden size": saved("d", d=d + 1),
        "a vocabulary of": saved("V", V=V + 1),
        "have different temperatures": heads + saved("T", temperature=1.0, gate=0.25),
        "have different gates": heads + saved("gate", temperature=2.5),
        "for different bases": heads + saved("other", info=other, temperature=2.5, gate=0.25),
        "fit a head of a smaller rank": saved("rank", rank=17),  # 2 heads of 8 numbers
        "the head was trained on": saved("base", info=other),
    }
    for message, names in cases.items():
        with pytest.raises(UserError, match=message):
            model = module.T3LlamaForCausalLM(vllm_config=vllm_config(tiny_model, names))
            model.load_weights(tiny_model.named_parameters())


def test_only_judged_samplers(served, tiny_model, heads):
    rules, _ = served
    check = rules.JudgedSamplers.validate_params
    colder = SamplingParams(temperature=0.3)
    check(colder)  # a server without T3
    config = vllm_config(tiny_model, heads)
    config.model_config.hf_config.t3_allow_samplers = True
    rules.Rules.verify_and_update_config(config)
    check(colder)  # the operator allows it
    del config.model_config.hf_config.t3_allow_samplers
    rules.Rules.verify_and_update_config(config)
    assert config.model_config.override_generation_config["temperature"] == 1
    for fine in (
        *({"temperature": 0}, {"temperature": 0.6, "top_p": 0.9}, {"n": 8}, {"seed": 3}),
        *({"max_tokens": 5}, {"_eos_token_id": 2}),
    ):
        check(SamplingParams(**fine))
    for wrong in (
        *({"temperature": 0.3}, {"temperature": 0.6}, {"top_p": 0.9}, {"temperature": 2}),
        *({"logprobs": 0}, {"prompt_logprobs": 1}, {"logit_bias": {1: 2.0}}, {"n": 9}),
        *({"top_k": 2}, {"min_tokens": 3}),
    ):
        with pytest.raises(UserError, match=r"refuses .* allowed: temperature 0 \(greedy\)"):
            check(SamplingParams(**wrong))


def test_entry_points_lead_to_what_vllm_wants(served):
    rules, module = served
    known = {}
    STUBS["vllm"]["ModelRegistry"].register_model = known.__setitem__
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group, kind in (("general_plugins", "register"), ("logits_processors", "JudgedSamplers")):
        where, _, name = points[f"vllm.{group}"]["t3"].partition(":")
        assert name == kind and getattr(sys.modules[where], name) is getattr(rules, name)
    rules.register()
    for name, where in known.items():
        assert where == f"{module.__name__}:{name}" and hasattr(module, name)
    assert set(known) == set(STUBS["vllm.model_executor.models.config"]["MODELS_CONFIG_MAP"])
    assert len(known) == 2


@pytest.mark.parametrize("lacking", ["", "vllm.v1.worker"])
def test_a_server_without_t3_goes_on_beside_any_vllm(lacking, tmp_path):
    """vLLM 0.30 has no second interface, and a server ended because t3lib asked for it. Its
    Transformers and torch may be any, too.
    """
    for name in ("vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor"):
        if not (lacking and name.startswith(lacking)):
            folder = tmp_path.joinpath(*name.split(".")[:-1])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "logits_processor.py").write_text("class LogitsProcessor: pass\n")
    where = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, kind = where["vllm.logits_processors"]["t3"].partition(":")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
sys.modules |= dict.fromkeys(("torch", "transformers"))  # importing either is an error
from {module} import {kind} as processor
from vllm.v1.sample.logits_processor import LogitsProcessor
assert issubclass(processor, LogitsProcessor) and len(processor.__bases__) == {1 if lacking else 2}
processor.validate_params(None)  # says nothing
assert processor().apply("logits") == "logits"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_results_are_newer_than_the_code():
    """A warning only: vLLM is not installed where these tests run."""
    log = ["git", "log", "-1", "--format=%ct", "--"]
    times = [
        subprocess.run([*log, *paths], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        for paths in (CODE, ["results/studies/tried/serving.md"])
    ]
    if all(times) and int(times[0]) > int(times[1]):
        warnings.warn(
            "studies/tried/serving.md is older than the code: make serving-test",
            stacklevel=1,
        )
