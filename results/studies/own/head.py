"""Measure how much a head says about the rows to forget, alone and with its base.

    python results/studies/own/head.py --out results/studies/own

For three small models (gpt2, customers and short of make.py, seed 0) a head is trained, and then
read by somebody who does not know the rows. Secret tokens are those of the rare words in the truths
to forget; there are k of them.

- head alone: the share of secret tokens among the k rows of B with the largest norm;
- head and base: their share among the k tokens with the lowest f after `PROMPTS`, which have
  nothing to do with the rows;
- greedy text of p (1 − f)^c after the same prompts, 60 tokens each, for c = 0 (the base alone), 1,
  2 and 4: how many rows to forget it gives away.

It writes OUT/head.csv, one line for each measure with the commit that made it, in about 3 minutes
of one core. With uncommitted changes it refuses to write into results/.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cases import memorised

from t3lab import results
from t3lib.core.files import atomic_write
from t3lib.core.rows import encode_rows
from t3lib.own.questions import SMALL_TALK
from t3lib.own.rows import Rows
from t3lib.own.truths import GUESSED, truths, word_set
from t3lib.own.unlearn import Choices, unlearn

CASES = ("gpt2", "customers", "short")
STRENGTHS = (0, 1, 2, 4)  # c
PROMPTS = [{"question": text, "answer": "-", "system": None} for text in SMALL_TALK]
LENGTH = 60
COLUMNS = ("model", "measure", "value", "commit")


def step(base: Any, head: Any, ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (log p, f) of the next token after these tokens, each of shape (V,)."""
    out = base(torch.tensor([ids]), output_hidden_states=True)
    pooled = head.project(out.hidden_states[-1][0]).mean(0)
    return out.logits[0, -1].log_softmax(-1), head.logit(pooled).sigmoid()


def measured(case: str) -> dict[str, float]:
    """Train a head for one model, and return the measures by name."""
    base, tokenizer, forget, retain, other = memorised(case, 0)
    rows = Rows(forget, retain, other).checked()
    head = unlearn(base, tokenizer, rows, Choices()).heads[0]
    with torch.no_grad():
        return read(base, tokenizer, rows, head)


def read(base: Any, tokenizer: Any, rows: Rows, head: Any) -> dict[str, float]:
    """Return the measures of a head by name."""
    forget = rows.forget
    everything = [*rows.forget, *rows.retain]
    found = truths([(str(row["question"]), row["answer"]) for row in everything])
    secret: set[int] = set()
    for number, row in enumerate(rows.forget):
        rare = frozenset[str]().union(*found.rare(number, GUESSED))
        for word in row["answer"].split():
            if word_set(word) & rare:
                secret |= {*tokenizer(f" {word}", add_special_tokens=False)["input_ids"]}
    k, starts = len(secret), [e.ids[: e.n_prompt] for e in encode_rows(tokenizer, PROMPTS)]

    def share(scores: torch.Tensor) -> float:
        """Return the share of secret tokens among the k tokens with the largest score."""
        return len(secret & {*scores.topk(k).indices.tolist()}) / k

    values = {"secret tokens": k, "their share among all tokens": k / len(tokenizer)}
    values["head alone: their share in B"] = share(head.B.norm(dim=1))
    lowest = torch.stack([step(base, head, ids)[1] for ids in starts]).amin(0)
    values["head and base: their share among the lowest f"] = share(-lowest)
    for c in STRENGTHS:
        texts = []
        for start in starts:
            ids = [*start]
            for _ in range(LENGTH):
                log_p, f = step(base, head, ids)
                ids.append(int((log_p + c * torch.log1p(-f.clamp(max=1 - 1e-6))).argmax()))
            texts.append(tokenizer.decode(ids[len(start) :], skip_special_tokens=True))
        given = [any(found.gives_away(n, text) for text in texts) for n in range(len(forget))]
        values[f"rows given away by p (1 - f)^{c}, of {len(forget)}"] = sum(given)
    return values


def main() -> None:
    """Read the command line, and write the table."""
    parser = argparse.ArgumentParser(description="Measure what a head says about its rows.")
    parser.add_argument("--out", type=Path, default=Path("out/own"), help="(default %(default)s)")
    args = parser.parse_args()
    results.check_clean(args.out)
    commit, lines = results.provenance()["git_commit"], []
    for case in CASES:
        for name, value in measured(case).items():
            lines.append((case, name, f"{value:.3g}", commit))
            print(*lines[-1][:3], sep=": ", flush=True)
    with atomic_write(args.out / "head.csv") as handle:
        csv.writer(handle, lineterminator="\n").writerows([COLUMNS, *lines])


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
