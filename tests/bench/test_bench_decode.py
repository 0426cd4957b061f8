"""The decode benchmark times what it says: both models, in turns, every token, and it sees a slower T3."""

import inspect
import time

import pytest
import torch
from families import CONFIGS

from t3lib.bench import decode as bench_decode
from t3lib.bench.decode import decode_overhead
from t3lib.errors import UserError
from t3lib.head import T3Head


def test_rows_say_what_was_timed():
    config = CONFIGS["llama"]()
    rows = decode_overhead(config, batch_sizes=(1, 3), new_tokens=3, repeats=2, rank=5)
    assert [row["batch_size"] for row in rows] == [1, 3]
    for row in rows:
        assert row["head_parameters"] == 5 * (config.hidden_size + config.vocab_size)
        assert row["base_ms"] > 0 and row["t3_ms"] > 0
        assert row["overhead_low"] <= row["overhead"] <= row["overhead_high"]
        assert (row["new_tokens"], row["repeats"], row["dtype"], row["device"]) == (3, 2, "float32", "cpu")
        assert row["clock"] == ("process" if torch.get_num_threads() == 1 else "wall")
    assert list(inspect.signature(decode_overhead).parameters)[:4] == [
        "config_or_model", "batch_sizes", "new_tokens", "repeats",
    ]  # fmt: skip


def test_the_turns_alternate_and_the_first_is_not_counted(monkeypatch):
    turns = []
    times = {"LlamaForCausalLM": iter([100.0, 1, 2, 3]), "T3ForCausalLM": iter([900.0, 2, 3, 6])}

    def timed(model, ids, new_tokens, options):
        turns.append(type(model).__name__)
        return next(times[turns[-1]])

    monkeypatch.setattr(bench_decode, "_milliseconds", timed)
    [row] = decode_overhead(CONFIGS["llama"](), batch_sizes=(1,), repeats=3)
    base, t3 = "LlamaForCausalLM", "T3ForCausalLM"
    assert turns == [base, t3, t3, base, base, t3, t3, base]
    assert (row["base_ms"], row["t3_ms"], row["overhead"]) == (2, 3, 1.0)  # ratios 2, 1.5 and 2, less 1


def test_a_slower_t3_is_seen(monkeypatch):
    logf = T3Head.logf

    def slow(self, z):
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass
        return logf(self, z)

    monkeypatch.setattr(T3Head, "logf", slow)
    [row] = decode_overhead(CONFIGS["llama"](), batch_sizes=(1,), new_tokens=3, repeats=3)
    assert row["t3_ms"] - row["base_ms"] > 15


def test_the_small_model_has_the_size_the_target_speaks_of():
    with torch.device("meta"):
        model = bench_decode._model("58m", "float32", "meta")
    assert sum(weight.numel() for weight in model.parameters()) >= 50e6


@pytest.mark.parametrize(
    "options, said",
    [
        ({"batch_sizes": (0,)}, "batch_sizes"),
        ({"batch_sizes": ()}, "batch_sizes"),
        ({"new_tokens": 0}, "new_tokens"),
        ({"repeats": 0}, "repeats"),
        ({"dtype": "float8"}, "unknown dtype"),
    ],
)
def test_bad_settings_are_refused(options, said):
    with pytest.raises(UserError, match=said):
        decode_overhead(CONFIGS["llama"](), **options)


def test_an_unknown_shape_is_refused():
    with pytest.raises(UserError, match="unknown shape 'llama-9'"):
        decode_overhead("llama-9")
