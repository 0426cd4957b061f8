"""What runs the base on the clock: random Llamas, features, evaluation, decoding, a step of each baseline."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from transformers import CompileConfig

from t3lib.baselines.losses import LOSSES
from t3lib.bench import cost, timing
from t3lib.bench import model as bench_model
from t3lib.bench.model import random_model
from t3lib.errors import UserError
from t3lib.head import T3Head

MACHINE = cost.Ceilings(1e15, 1e15)  # nothing is below its bounds


@pytest.fixture(scope="session")
def model():
    return random_model("tiny")


def by_what(rows):
    return {entry["what"].strip(): entry for entry in rows}


def cost_of(entry):
    return min(entry["median"], entry["busy"])


def test_parameter_count_of_the_paper_on_the_meta_device():
    """Table 2: 8.03e9 parameters of full fine-tuning."""
    model = random_model("llama-3.1-8b", device="meta")
    assert sum(p.numel() for p in model.parameters()) == 8_030_261_248
    assert model.config.vocab_size == 128_256


def test_random_model_is_reproducible_and_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    a, b = random_model("tiny", seed=3), random_model("tiny", seed=3)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters()))
    assert not torch.equal(a.lm_head.weight, random_model("tiny", seed=4).lm_head.weight)


def test_the_small_model_has_the_size_the_target_speaks_of():
    assert sum(weight.numel() for weight in random_model("58m", device="meta").parameters()) >= 50e6


def test_an_unknown_shape_is_refused():
    with pytest.raises(UserError, match="unknown shape 'llama-9'"):
        random_model("llama-9")


def test_feature_rows(model):
    rows = by_what(bench_model.feature_rows(model, "tiny", MACHINE, count=8, repeats=2))
    assert rows["features, to an empty cache"]["over_bound"] > 1
    ratio = rows["features / decoder alone, throughput"]["median"]
    assert ratio == pytest.approx(cost_of(rows["decoder alone"]) / cost_of(rows["features"]), rel=1e-6)


def test_evaluation_shares_the_base_pass(model):
    """Five temperatures, and as many of another head, are scored with the calls of the base that one needs."""
    calls = []
    hook = model.model.register_forward_hook(lambda *_: calls.append(1))
    passes = {}

    def counted(works, repeats):
        for name, work in works.items():
            del calls[:]
            work()
            passes.setdefault(name, len(calls))  # scoring comes first
        return {name: timing.Timing((1.0,), (1.0,)) for name in works}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_model, "interleaved", counted)
        rows = bench_model.evaluation_rows(model, "tiny", MACHINE, count=3, seeds=2, repeats=2, new_tokens=4)
    hook.remove()
    assert len(set(passes.values())) == 1 and passes["1 T"] > 0, passes
    assert [entry["what"].strip() for entry in rows] == [
        *("scoring, 1 T", "scoring, 5 T", "5 T / 1 T", "scoring, 5 T x 2 seeds", "5 T x 2 seeds / 1 T"),
        *("generation, 1 T", "generation, 5 T", "5 T / 1 T", "generation, 5 T x 2 seeds", "5 T x 2 seeds / 1 T"),
    ]


def test_one_step_of_each_baseline():
    rows = bench_model.step_rows(lambda: random_model("tiny"), "tiny", MACHINE, batch=2, steps=1)
    assert [entry["what"] for entry in rows] == [f"one step of {name}" for name in LOSSES]
    assert all(entry["median"] > 0 for entry in rows)
    bounds = by_what(rows)
    assert bounds["one step of GradAscent"]["lower_bound"] < bounds["one step of GradDiff"]["lower_bound"]
    assert bounds["one step of ULD"]["lower_bound"] is None, "its layers are fewer"


@pytest.mark.parametrize("method", LOSSES)
def test_a_base_is_gone_before_the_next_is_made(method):
    """On one GPU there is no room for two; nothing waits for the collector of cycles."""
    before = []

    def base():
        assert not any(reference() for reference in before)
        model = random_model("tiny", layers=1)
        before.append(weakref.ref(model))
        return model

    gc.disable()
    try:
        bench_model.step_rows(base, "tiny", MACHINE, methods=[method], batch=2, steps=1, warmup=1)
    finally:
        gc.enable()
    assert len(before) == 2


# decoding -------------------------------------------------------------------------------------------------------------


def test_decode_rows_have_both_and_the_overhead(model):
    rows = bench_model.decode_rows(model, "tiny", 3, new_tokens=2)
    assert [entry["what"].strip() for entry in rows] == [
        *("decoding, batch of 1: base", "decoding, batch of 1: T3", "overhead"),
        *("decoding, batch of 8: base", "decoding, batch of 8: T3", "overhead"),
    ]
    assert [entry["unit"] for entry in rows] == ["ms/token", "ms/token", "%"] * 2
    assert all(entry["median"] > 0 and "clock" in entry["note"] for entry in rows if entry["unit"] == "ms/token")
    assert rows[2]["note"].startswith("quartiles")


def test_compiled_decoding_compiles_one_step_of_the_base_and_one_of_t3(monkeypatch):
    """Tracing as ever; the compiler's own back end is torch's business, and needs a C++ compiler."""

    def config(*, fullgraph):
        return CompileConfig(backend="eager", mode=None, fullgraph=fullgraph)

    monkeypatch.setattr(bench_model, "CompileConfig", config)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    rows = bench_model.decode_rows(random_model("tiny"), "tiny", 1, batch_sizes=(1,), new_tokens=4, compiled=True)
    assert [entry["what"].strip() for entry in rows] == [
        *("compiled decoding, batch of 1: base", "compiled decoding, batch of 1: T3", "overhead"),
    ]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_compiled_decoding_of_which_nothing_was_compiled_is_no_row():
    """As when TORCHDYNAMO_DISABLE is set. The prompt's own pass, which gives the first token, is never compiled."""
    torch._dynamo.utils.counters.clear()
    with pytest.raises(UserError, match="compiled nothing"):
        bench_model.decode_rows(random_model("tiny"), "tiny", 1, batch_sizes=(1,), new_tokens=1, compiled=True)


@pytest.mark.parametrize("heads", [1, 3])
def test_a_slower_t3_is_seen(heads, model, monkeypatch):
    """On a clock that passes 10 ms in a pass of the base and 5 in a head, whatever the machine is doing."""
    now = [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0]))
    logf, forward = T3Head.logf, type(model.model).forward

    def passing(seconds, function):
        def slow(*args, **kwargs):
            now[0] += seconds
            return function(*args, **kwargs)

        return slow

    monkeypatch.setattr(T3Head, "logf", passing(0.005, logf))
    monkeypatch.setattr(type(model.model), "forward", passing(0.010, forward))
    found = bench_model.decode_timings(model, heads=(heads,), new_tokens=4, repeats=3)
    assert found[0].busy == pytest.approx([0.04] * 3)
    assert found[heads].over(found[0]) == pytest.approx([1 + 0.5 * heads] * 3)


def test_too_few_tokens_mean_nothing(model):
    short = SimpleNamespace(generate=lambda ids, **_: ids)
    with pytest.raises(AssertionError, match="0 tokens, not 3"):
        bench_model.decoding(short, torch.zeros(1, 2), 3)()


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"heads": (0,)}, {"new_tokens": 0}, {"repeats": 0}])
def test_bad_settings_are_refused(options, model):
    with pytest.raises(UserError, match="must be at least 1"):
        bench_model.decode_timings(model, **options)


def test_scale_is_measured_once_and_by_arithmetic_at_larger_shapes(monkeypatch):
    seconds = {0: (1.0, 1.0), 1: (1.1, 1.1), 64: (2.0, 2.0)}
    found = {n: timing.Timing(value, value) for n, value in seconds.items()}
    monkeypatch.setattr(bench_model, "decode_timings", lambda *args, **kwargs: found)
    table = bench_model.scale(random_model("tiny"), "tiny", 2, heads=(1, 64)).set_index(["shape", "heads", "how"])
    assert table.overhead["tiny", 1, "measured"] == pytest.approx(10)
    assert table.overhead["tiny", 64, "measured"] == pytest.approx(100)
    one = table.overhead["llama-3.1-8b", 1, "bytes of weights"]
    assert one == pytest.approx(100 * 4 * 2_647_040 / 15.0e9, rel=0.01)
    assert table.overhead["llama-3.1-8b", 1000, "bytes of weights"] == pytest.approx(1000 * one)
    assert table.overhead["llama-3.1-70b", 1, "bytes of weights"] < one / 8
