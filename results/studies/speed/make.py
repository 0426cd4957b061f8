"""How much slower than its base does each way of unlearning at decoding time write?

    python results/studies/speed/make.py

The base, a Llama of 58M random weights, and each method take turns at writing 16 tokens greedily,
on one thread in float32: T3; a loop as the authors' code has it, which keeps all hidden states and
takes their mean in every step; ULD with an assistant of a quarter of the base's layers; Divergence
Decoding, which runs two models of that size. The table `speed` below --out has the medians and
quartiles of the ratios to the base, and the operations and bytes of a step by arithmetic. Their
ratio to the base's is the limit: of the bytes for one row, of the operations for eight. made.json
says which command and commit made it. Five minutes; let nothing run beside it.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from t3lab import results, script
from t3lab.bench.cost import Shape, Work, decode_step, shape_of
from t3lab.bench.timing import compare, decode, random_model
from t3lab.report import render
from t3lib.baselines.assistant import make_assistant
from t3lib.baselines.uld import ULDForCausalLM
from t3lib.classifier.head import T3Head
from t3lib.core.files import write_json
from t3lib.sampler.tilt import T3ForCausalLM

T, NEW = 2.5, 16
CAPTION = (
    "Decoding 16 tokens, as a multiple of the base's CPU time: median and quartiles of turns taken"
    " with the base, a Llama of 58M random weights in float32 on one thread. flops and bytes are"
    " those of a step by arithmetic, and limit is the ratio of the bytes (one row) or of the"
    " operations (eight rows) to the base's. Assistants have a quarter of the base's layers."
)


class Loop(nn.Module):
    """Greedy decoding step by step, without what else `generate` does in a step."""

    def __init__(self, *models: Any) -> None:
        super().__init__()
        self.models, self.device = nn.ModuleList(models), models[0].device
        self.states: list[torch.Tensor] = []

    def logits(self, outputs: Any) -> torch.Tensor:
        """Return the scores (B, V) of the next token."""
        raise NotImplementedError

    @torch.no_grad()
    def generate(self, ids: torch.Tensor, *, max_new_tokens: int, **_: Any) -> torch.Tensor:
        """Return ids (B, L) with `max_new_tokens` more tokens."""
        new, caches, self.states = ids, [None] * len(self.models), []
        for _step in range(max_new_tokens):
            outputs = [
                model(input_ids=new, past_key_values=cache, use_cache=True,
                      output_hidden_states=len(self.models) == 1)
                for model, cache in zip(self.models, caches)
            ]  # fmt: skip
            caches = [output.past_key_values for output in outputs]
            new = self.logits(outputs).argmax(-1, keepdim=True)
            ids = torch.cat([ids, new], dim=1)
        return ids


class AuthorsLoop(Loop):
    """T3 with all hidden states kept: softmax(l / T) * sigmoid(B A mean(H)) in every step."""

    def __init__(self, base: Any, head: T3Head) -> None:
        super().__init__(base)
        self.head = head

    def logits(self, outputs: Any) -> torch.Tensor:
        self.states.append(outputs[0].hidden_states[-1])
        pooled = torch.cat(self.states, dim=1).mean(1)
        f = torch.sigmoid(pooled @ self.head.A.T @ self.head.B.T)
        return (outputs[0].logits[:, -1] / T).softmax(-1) * f


class Divergence(Loop):
    """log p + log p_retain - log p_forget, with two small models."""

    def logits(self, outputs: Any) -> torch.Tensor:
        base, retain, forget = (output.logits[:, -1] for output in outputs)
        return base + retain - forget


def make(out: Path, tiny: bool) -> None:
    """Write the table. tiny: one turn with tiny models, to try the script."""
    results.check_clean(out)
    name = "tiny" if tiny else "58m"
    base, shape, repeats = random_model(name), shape_of(name), 1 if tiny else 21
    layers = max(1, shape.num_hidden_layers // 4)
    small = shape._replace(num_hidden_layers=layers)
    assistants = [make_assistant(base, layers, seed=seed).merge_and_unload() for seed in (0, 1)]
    head = T3Head(shape.hidden_size, shape.vocab_size).eval()
    methods = {
        "T3": (T3ForCausalLM(base, head, T), work(shape, heads=1)),
        "the authors' loop": (AuthorsLoop(base, head), work(shape, heads=1)),
        "ULD": (ULDForCausalLM(base, assistants[0]), added(work(shape), work(small))),
        "Divergence Decoding": (
            Divergence(base, *assistants), added(work(shape), work(small), work(small))
        ),
    }  # fmt: skip
    rows = []
    for batch in (1, 8):
        for method, (model, need) in methods.items():
            pair = {"base": base, method: model}
            works = {which: partial(decode, each, batch, NEW) for which, each in pair.items()}
            ratio = compare(method, name, works, repeats=repeats)[-1]
            limits = [of / alone for of, alone in zip(need, work(shape))]  # operations, bytes
            row = {"method": method, "rows": batch, "limit": limits[batch == 1]}
            row |= {key: ratio[key] for key in ("median", "low", "high", "repeats")}
            rows.append(row | {"flops": batch * need.flops, "bytes": need.bytes})
            print(f"{method}, {batch} rows: {ratio['median']:.3f}", flush=True)
    render.write_table(out / "tables", "speed", pd.DataFrame(rows), caption=CAPTION)
    write_json(out / "made.json", script.made())


def work(shape: Shape, **how: int) -> Work:
    """Return the work of one decoding step of a model in float32."""
    return decode_step(shape, itemsize=4, **how)


def added(*works: Work) -> Work:
    """Return the sum of some works."""
    return Work(*map(sum, zip(*works)))


OPTIONS: script.Options = {
    "--out": {"type": Path, "default": Path("out/speed")},
} | script.TINY_OPTION

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
