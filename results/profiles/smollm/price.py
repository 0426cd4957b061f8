"""What T3 costs a chat model on questions that have nothing to do with the rows.

    python results/profiles/smollm/price.py --data DIR

At profile smollm (10% split, seed 1) it asks 98 questions of SmolLM2 before it learned TOFU's text,
of the model that learned it, and of T3 on that model: at the paper's rate and T, at the settings
that the search chose, at T = 1 with its own rate, and as leak and price chose. *neutral* is ours,
not the paper's: log f = 0 for tokens that are no target of any row the head was fitted on. The
columns of the table `price`: unchanged are the answers whose first sentence is that of SmolLM2
itself, greedy and sampled at τ = 1; kl and same_token compare with the model that learned TOFU's
text, along its own greedy answers: nats a token, and the share of tokens with the same most
probable successor. DIR has TOFU's files. It took 17 CPU-minutes beside tests; the base may be
another training than that of other tables, because its weights are not kept.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from t3lab import profiles, results, script
from t3lab.explore.stories import first_sentence, written
from t3lab.profiles import WORLD, hyper_of
from t3lab.report import render
from t3lab.study.methods import dialled
from t3lab.study.study import Study, open_study
from t3lab.study.unlearned import head_settings, t3_features
from t3lib.classifier.fit import fit_heads
from t3lib.classifier.head import T3Head
from t3lib.core.files import project_root, read_json
from t3lib.core.models import load_model, pad_id
from t3lib.core.rows import Row, encode_rows
from t3lib.own.phrases import SMALL_TALK
from t3lib.sampler.tilt import T3ForCausalLM, temperature_at, tilted
from t3lib.tofu.likelihood import answer_positions
from t3lib.tofu.reader import Reading
from t3lib.tofu.samples import sample_answers

PROFILE, SPLIT, SEED, NEW_TOKENS = "smollm", "forget10", 1, 40
PAPER = ({"lr": 5e-4}, 2.5)
CAPTION = (
    "Questions without any relation to TOFU. unchanged, unchanged_sampled: answers whose first"
    " sentence is that of SmolLM2 before it learned TOFU's text. kl, same_token: against the model"
    " that learned it."
)


def questions() -> list[Row]:
    """Return the questions: capitals, simple facts and small talk."""
    sample = read_json(project_root() / "notebooks" / "sample" / "capitals.json")
    countries = [*sample["forget"], *sample["keep"]]
    capitals = [sample["wordings"][0].format(country) for country in countries]
    texts = [*capitals, *sample["others"], *SMALL_TALK]
    return [{"question": text, "answer": "-"} for text in dict.fromkeys(texts)]


def heads(study: Study, profile: dict[str, Any]) -> dict[str, tuple[T3Head, float]]:
    """Fit the heads that are compared; return {name: (head, T)}."""
    best, untempered = (hyper_of(profile["hyper"], "T3", SPLIT, T) for T in (None, 1.0))
    wanted = {"paper": PAPER, "chosen": (best, best["temperature"]), "T = 1": (untempered, 1.0)}
    search = pd.read_csv(Path(__file__).parent / "tables" / "guided_search.csv")
    least = search[search["chosen"] & (search["split"] == SPLIT) & (search["labels"] == "hard")]
    [chosen] = least.to_dict("records")
    wanted["least"] = {"lr": chosen["lr"], "gate": chosen["gate"]}, chosen["temperature"]
    features = t3_features(study)
    settings = [head_settings(each, SEED) for each, _ in wanted.values()]
    size = study.base.get_output_embeddings().weight.shape[0]
    fitted = fit_heads(features, settings, vocab_size=size)
    found: dict[str, tuple[T3Head, float]] = {}
    for head, (name, (each, T)) in zip(fitted, wanted.items()):
        dials = {"gate": each.get("gate", 1.0)}
        label = f"T3, {name}: lr {each['lr']:g}, T = {T:g}" + ", gated" * (dials["gate"] < 1)
        found[label] = dialled(head, dials), T
        found[f"{label}, neutral"] = dialled(head, dials | {"untrained": "neutral"}), T
    return found


@torch.no_grad()
def along(base: Any, tokenizer: Any, rows: list[Row], head: T3Head, T: float) -> dict[str, float]:
    """Compare T3 with its base along some rows' answers.

    kl: nats a token. same_token: share of positions with the same most probable token. tempered:
    share of positions that are tempered, which the head's gate decides.
    """
    reading = Reading(pad_id(tokenizer))
    gaps, same, tempered = [], [], []
    for part in answer_positions(base, encode_rows(tokenizer, rows), reading, [head]):
        logp, logf = part.logits.float().log_softmax(-1), head.logf(part.z)
        here = torch.as_tensor(temperature_at(logp, [logf], [head], T, head.gate))
        tempered.append((here.expand(len(logp), 1) != 1).float())
        logp_hat = tilted(logp, [logf], [head], T, head.gate, head.tail).log_softmax(-1)
        gaps.append((logp.exp() * (logp - logp_hat)).sum(-1))
        same.append(logp.argmax(-1) == logp_hat.argmax(-1))
    return {
        "kl": torch.cat(gaps).mean().item(),
        "same_token": torch.cat(same).float().mean().item(),
        "tempered": torch.cat(tempered).mean().item(),
    }


def make(data: str, out: Path) -> None:
    """Write the table below `out`."""
    results.check_clean(out)
    profile = profiles.load_profile(PROFILE)
    study = open_study(SPLIT, **{name: profile[name] for name in WORLD} | {"data": data})
    tokenizer, rows = study.tokenizer, questions()
    itself, _ = load_model("smollm2", **profile["load"])
    before = [first_sentence(text) for text in written(itself, tokenizer, rows)[0]]
    own = written(study.base, tokenizer, rows)[0]
    along_own = [row | {"answer": text} for row, text in zip(rows, own) if text]
    prompts = [each.prompt for each in encode_rows(tokenizer, rows)]

    def as_before(texts: list[str]) -> int:
        return sum(old == first_sentence(text) for old, text in zip(before, texts))

    def asked(model: Any, texts: list[str]) -> dict[str, int]:
        drawn = sample_answers(model, tokenizer, prompts, 1, seed=0, max_new_tokens=NEW_TOKENS)
        samples = [text for [text] in drawn]
        return {"unchanged": as_before(texts), "unchanged_sampled": as_before(samples)}

    lines: list[dict[str, Any]] = [
        {"model": "SmolLM2 before", **asked(itself, written(itself, tokenizer, rows)[0])},
        {"model": "taught TOFU's text", **asked(study.base, own), "kl": 0.0, "same_token": 1.0},
    ]
    tilts = heads(study, profile)
    texts = written(study.base, tokenizer, rows, list(tilts.values()))
    for (name, (head, T)), answers in zip(tilts.items(), texts):
        counted = asked(T3ForCausalLM(study.base, head, T), answers)
        lines.append({"model": name, **counted, **along(study.base, tokenizer, along_own, head, T)})
    table = pd.DataFrame(lines).assign(of=len(rows))
    render.write_table(out / "tables", "price", table, caption=CAPTION)


OPTIONS: script.Options = {
    "--data": {"default": "hub", "help": "folder with TOFU's files, or hub"},
    "--out": {"type": Path, "default": Path("out/smollm")},
}

if __name__ == "__main__":
    about = "What T3 costs a chat model, at profile smollm."
    script.run(lambda args: make(args.data, args.out), about, OPTIONS, as_jobs=False)
