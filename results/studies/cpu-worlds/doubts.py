"""Try to prove wrong that T3's tuned T has a large Forget Error, at profile cpu.

    python results/studies/cpu-worlds/doubts.py --worlds 4 5 6

errors.py judges with one retrained model, token by token in given answers, as the models are. Here
the 10% split of some worlds is measured in other ways. The retrained models of seeds 0 and 1 judge
in turn, and the other of them is the floor.

Written down before it was run: the finding is in doubt if in any world, by either judge or at any
τ, T3 as Forget Quality chose has no larger Forget Error than T3 at T = 1, or if its samples are
nearer to the retrained model's than those of T3 at T = 1, by first_word or by surprise.

- tables/doubts.csv: the same errors by both judges and with colder samplers: p^(1/τ), normalised,
  of both models.
- tables/doubts_free.csv: no given answers, but --samples answers to each forgotten question, drawn
  at τ from a model and from the judge of seed 1. first_word is the mean total variation of the
  first rare word: the first one that is in at most 1% of all answers and not in the question.
  rouge is the mean ROUGE-L of the judge's samples in the model's. surprise is the mean −ln p of
  the tokens of the model's samples under the judge, in nats, without empty samples. facts is the
  share of samples that contain every word of the row's fact. The row "the judge again" has further
  samples of the judge: few samples of one distribution differ too.
- tables/identified.csv: does f know what a retrained model would say? correlation is the mean over
  forgotten contexts of that of ln f and ln p_ret / p, over all tokens but the learned one. Learned
  tokens are secret where the judge of seed 1 gives them less than 0.05, and harmless above 0.9. f
  and p are medians of f, and means of p̂, of both kinds.
"""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from t3lab import profiles, results, script
from t3lab.audit.facts import held
from t3lab.profiles import WORLD, hyper_of
from t3lab.report import render
from t3lab.study.methods import load_models, subject
from t3lab.study.study import Study, open_study
from t3lab.study.unlearning_errors import SETS
from t3lib.core.files import write_json
from t3lib.core.models import pad_id
from t3lib.core.progress import progress_bar
from t3lib.core.rows import Row, encode_rows
from t3lib.own.truths import words
from t3lib.sampler.tilt import tilted
from t3lib.tofu.likelihood import UNTILTED, answer_losses, answer_positions
from t3lib.tofu.metrics import rouge_l_recall
from t3lib.tofu.reader import Reading
from t3lib.tofu.samples import sample_tilts
from t3lib.tofu.unlearning_errors import errors, summary

SPLIT = "forget10"
JUDGES = (1, 0)  # seeds of retrained models
TAUS = (1.0, 0.7, 0.5)
RARE = 0.01  # largest share of answers that have a rare word
COMPARED = 8  # samples of each model whose ROUGE-L is computed pair by pair
POINTS = {
    "T3 as Forget Quality chose": {"lr": 5e-3, "temperature": 3.0},
    "T3 at T = 1, its own rate": {"lr": 4e-2, "temperature": 1.0},
    "strong f, T = 1.25, gated": {"lr": 4e-2, "temperature": 1.25, "gate": 0.9},
}
SECRET, HARMLESS = 0.05, 0.9  # p under a retrained model: at most, at least
IDENTIFIED = ["correlation", "tokens"]
IDENTIFIED += [f"{what}_{kind}" for kind in ("secret", "harmless") for what in ("n", "f", "p")]
ERRORS = ["forget_error", "leak", "retain_error", "total_variation"]
FREE = ["first_word", "rouge", "surprise", "facts"]
CAPTION = (
    "The paper's errors on the 10% split by two judges, the retrained models of seeds 1 and 0, and"
    " with colder samplers (tau). Retrained is the other of both. Columns as in errors_each."
)
CAPTION_FREE = (
    "Sampled answers to forgotten questions on the 10% split, beside those of a retrained model."
    " first_word: total variation of the first rare word, per question. rouge: mean ROUGE-L of the"
    " retrained model's samples in the model's. surprise: mean -ln p of the samples' tokens under"
    " the retrained model. facts: share of samples with every word of the row's fact."
)
CAPTION_F = (
    "What f knows of a retrained model on the 10% split. correlation: of ln f and ln p_ret / p over"
    " all tokens but the learned one, mean over contexts of forgotten answers. Of learned tokens to"
    " which the retrained model gives less than 0.05 (secret) and more than 0.9 (harmless): their"
    " number, the median of f, and the mean probability under T3."
)


def make(worlds: list[int], samples: int, out: Path, tiny: bool) -> None:
    """Measure all models in some worlds and write both tables, with means over worlds.

    tiny: models that know nothing, to try the script.
    """
    results.check_clean(out)
    profile, began = profiles.load_profile("cpu"), time.process_time()
    if tiny:
        profile = script.tiny(profile)
    forced, free, known = (list[tuple[Any, ...]]() for _ in range(3))
    for world in progress_bar(worlds, desc="worlds"):
        opened = {name: profile[name] for name in WORLD}
        opened["stage"] = profile["stage"] | {"seed": world}
        study = open_study(SPLIT, **opened)
        models = loaded(study, hyper_of(profile["hyper"], "T3", SPLIT))
        forced += [(world, *row) for row in by_errors(study, models)]
        free += [(world, *row) for row in by_samples(study, models, samples)]
        known += [(world, name, *identified(study, models, name)) for name in POINTS]

    columns = ["world", "tau", "judge", "model"]
    tables = {
        "doubts": (pd.DataFrame(forced, columns=[*columns, *ERRORS]), CAPTION),
        "doubts_free": (pd.DataFrame(free, columns=["world", "tau", "model", *FREE]), CAPTION_FREE),
        "identified": (pd.DataFrame(known, columns=["world", "model", *IDENTIFIED]), CAPTION_F),
    }
    for name, (table, caption) in tables.items():
        render.write_table(out / "tables", name, table, caption=caption)
    write_json(out / "doubts.json", script.made(began))


def loaded(study: Study, tuned: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return {name: (model, its tilt)}; judges are named by their seeds. tuned: settings of T3."""
    models = {
        str(seed): (load_models(study, [subject(study, "Retrained", seed, {})]).model, UNTILTED[0])
        for seed in JUDGES
    }
    points = [subject(study, "T3", 1, tuned | point) for point in POINTS.values()]
    of_t3 = load_models(study, points)
    models["Original"] = (of_t3.model, UNTILTED[0])
    return models | {name: (of_t3.model, tilt) for name, tilt in zip(POINTS, of_t3.tilts)}


def by_errors(study: Study, models: dict[str, tuple[Any, Any]]) -> list[tuple[Any, ...]]:
    """Return rows (tau, judge, model, the four errors)."""
    answers = {name: encode_rows(study.tokenizer, study.evaluation_rows[name]) for name in SETS}
    reading = Reading(pad_id(study.tokenizer), (), study.scoring.attention_mask)
    judges = {str(seed): models[str(seed)][0] for seed in JUDGES}
    rows = []
    for tau in TAUS:
        for model in {id(model): model for model, _ in models.values()}.values():
            names = [name for name, (its, _) in models.items() if its is model]
            found = errors(model, judges, answers, reading, [models[n][1] for n in names], tau)
            for name, by_judge in zip(names, found):
                for judge, values in by_judge.items():
                    if name != judge:
                        means = summary(values)
                        label = "Retrained" if name in judges else name
                        rows.append((tau, int(judge), label, *(means[each] for each in ERRORS)))
    return rows


def by_samples(
    study: Study, models: dict[str, tuple[Any, Any]], samples: int
) -> list[tuple[Any, ...]]:
    """Return rows (tau, model, the four measures of its samples) beside the first judge's."""
    asked = study.evaluation_rows["forget"]
    judge, floor = map(str, JUDGES)
    named = {"the judge again": models[judge], "Retrained": models[floor]}
    named |= {name: each for name, each in models.items() if name not in (judge, floor)}
    rows = []
    for tau in TAUS:
        theirs = drawn(study, asked, models[judge], samples, tau, seed=0)
        for name, model in named.items():
            ours = drawn(study, asked, model, samples, tau, seed=1)
            rows.append((tau, name, *compared(study, asked, ours, theirs, models[judge][0])))
    return rows


@torch.no_grad()
def identified(
    study: Study, models: dict[str, tuple[Any, Any]], name: str
) -> tuple[float, int, int, float, float, int, float, float]:
    """Return the measures `IDENTIFIED` of one model of T3 beside the first judge."""
    examples = encode_rows(study.tokenizer, study.evaluation_rows["forget"])
    reading = Reading(pad_id(study.tokenizer), (), study.scoring.attention_mask)
    base, (head, T) = models[name]
    walks = [
        answer_positions(base, examples, reading, [head]),
        answer_positions(models[str(JUDGES[0])][0], examples, reading),
    ]
    correlations, f, p_ret, p = (list[torch.Tensor]() for _ in range(4))
    for at, other in zip(*walks, strict=True):
        logf, judged = head.logf(at.z), other.logits.log_softmax(-1)
        logp = tilted(at.logits, [logf], [head], T, head.gate, head.tail).log_softmax(-1)
        ratio = judged - at.logits.log_softmax(-1)
        rest = torch.ones_like(logf).scatter(1, at.target[:, None], 0)
        x, y = (
            (each - (each * rest).sum(1, True) / rest.sum(1, True)) * rest for each in (logf, ratio)
        )
        correlations.append((x * y).sum(1) / (x.norm(dim=1) * y.norm(dim=1)))
        for values, found in ((logf, f), (judged, p_ret), (logp, p)):
            found.append(values.gather(1, at.target[:, None])[:, 0].exp())
    f, p_ret, p = (torch.cat(each) for each in (f, p_ret, p))
    kinds = [
        (int(kind.sum()), float(f[kind].nanmedian()), float(p[kind].mean()))
        for kind in (p_ret < SECRET, p_ret > HARMLESS)
    ]
    return (float(torch.cat(correlations).mean()), len(p_ret), *kinds[0], *kinds[1])


def drawn(
    study: Study, rows: Sequence[Row], model: tuple[Any, Any], count: int, tau: float, seed: int
) -> list[list[str]]:
    """Sample answers to the questions of rows: (rows, count) texts."""
    examples = encode_rows(study.tokenizer, rows)
    return sample_tilts(
        model[0],
        study.tokenizer,
        [example.ids[: example.n_prompt] for example in examples],
        count,
        [model[1]],
        seed=seed,
        max_new_tokens=max(len(example.ids) - example.n_prompt for example in examples),
        tau=tau,
        attention_mask=study.scoring.attention_mask,
    )[0]


def compared(
    study: Study,
    rows: Sequence[Row],
    ours: list[list[str]],
    theirs: list[list[str]],
    judge: Any,
) -> tuple[float, ...]:
    """Return the four measures `FREE` of a model's samples beside the judge's."""
    answers = [set(words(str(row["answer"]))) for row in [*study.forget, *study.retain]]
    counts = Counter(word for answer in answers for word in answer)
    common = {word for word, n in counts.items() if n > RARE * len(answers)}
    apart, rouge = [], []
    for row, mine, other in zip(rows, ours, theirs):
        known = common | set(words(str(row["question"])))
        one, two = (Counter(first_rare(text, known) for text in texts) for texts in (mine, other))
        apart.append(sum(abs(one[word] - two[word]) for word in one | two) / 2 / len(mine))
        rouge += [rouge_l_recall(b, a) for a in mine[:COMPARED] for b in other[:COMPARED]]
    texts = [
        {"question": row["question"], "answer": text}
        for row, mine in zip(rows, ours)
        for text in mine
        if text.strip()
    ]
    examples = encode_rows(study.tokenizer, texts)
    reading = Reading(pad_id(study.tokenizer), (), study.scoring.attention_mask)
    loss = np.asarray(answer_losses(judge, examples, reading)).reshape(-1)
    tokens = [len(example.ids) - example.n_prompt for example in examples]
    surprise = np.average(loss, weights=tokens)
    facts = held(rows, ours)["facts"]
    return (*map(float, map(np.mean, (apart, rouge, surprise, facts))),)


def first_rare(text: str, known: set[str]) -> str:
    """Return the first word of a text that is not known, "" if all are."""
    return next((word for word in words(text) if word not in known), "")


OPTIONS: script.Options = {
    "--worlds": {"type": int, "nargs": "+", "default": [4, 5, 6]},
    "--samples": {"type": int, "default": 16},
    "--out": {"type": Path, "default": Path("out/cpu-worlds")},
} | script.TINY_OPTION

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
