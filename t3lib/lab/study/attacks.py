"""Attack unlearned models with access to their weights, and serve requests to forget that come one
by one.

Each function yields plain rows of a table. Nothing is cached, because notebook 08 runs only on
request.
"""

import copy
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from t3lib.baselines.train import finetune
from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_head
from t3lib.classifier.head import T3Head
from t3lib.core.models import load_model, pad_id
from t3lib.core.rows import Row, encode_rows
from t3lib.lab.study.methods import load_models, retrained, subject
from t3lib.lab.study.study import Loaded, Study
from t3lib.lab.study.unlearned import head_settings
from t3lib.lab.world import bases
from t3lib.own.answers import answers, inquiry
from t3lib.own.asking import PREFACES
from t3lib.own.audit import run
from t3lib.own.audit.facts import row_secrets
from t3lib.own.audit.recognition import recognized
from t3lib.own.audit.secrets import holds, words
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.evaluation import metrics_of, score
from t3lib.tofu.likelihood import UNTILTED
from t3lib.tofu.metrics import by_column, forget_quality, truth_ratio

Entry = dict[str, Any]  # one row of a table
CELLS = ("verbatim", "one_shape")  # cells of recognition that are judged
KEPT = ("mu_rouge", "mu", "retain_rouge")


def judge(
    study: Study, loaded: Loaded, rows: Sequence[Row], references: Sequence[Any], samples: int
) -> Entry:
    """Measure what one model knows of some forget rows.

    references: truth ratios (n,) of retrained models on the same rows.
    samples: answers sampled for each row at temperature 1.

    Returns a dict. rows_leaking: number of rows of which some sample holds the secret, out of
    `rows` with a secret. recognized_verbatim, recognized_one_shape: share of rows whose true answer
    is recognised. fq, fq_min, fq_max: mean, lowest and highest Forget Quality against `references`.
    """
    model, tokenizer, tilts = loaded
    how: dict[str, Any] = {"attention_mask": study.scoring.attention_mask, "progress": False}
    [shown] = run.likelihoods(model, tokenizer, {"forget": rows}, tilts or UNTILTED, **how)
    [drawn] = run.draws(model, tokenizer, rows, tilts or UNTILTED, samples=samples, **how)
    cells = {name: np.array(losses) for name, losses in shown["forget"]["cells"].items()}
    ratios = _ratios(study, cells)
    qualities = [forget_quality(ratios, theirs)[0] for theirs in references]
    return {
        "rows_leaking": sum(map(any, drawn["leaks"])),
        "rows": len(drawn["leaks"]),
        **{
            f"recognized_{name}": recognized(cells[name][:, 0], cells[name][:, 1:]).mean()
            for name in CELLS
            if name in cells
        },
        "fq": float(np.mean(qualities)),
        "fq_min": min(qualities),
        "fq_max": max(qualities),
    }


def references(study: Study, rows: Sequence[Row], seeds: Sequence[int]) -> list[Any]:
    """Return the truth ratios (n,) of the split's retrained models on some rows, one array for each
    seed.

    seeds: 0 is the reference on which settings were chosen.
    """
    found = []
    for seed in seeds:
        model, tokenizer = load_model(retrained(study, seed), **study.load_options)
        mask = study.scoring.attention_mask
        [shown] = run.likelihoods(
            model, tokenizer, {"forget": rows}, attention_mask=mask, progress=False
        )
        found.append(_ratios(study, {n: np.array(c) for n, c in shown["forget"]["cells"].items()}))
    return found


def relearned(model: Any, tokenizer: Any, rows: Sequence[Row], steps: int, lr: float) -> Any:
    """Return a copy of a model after `steps` steps of fine-tuning on all these rows at once."""
    model = copy.deepcopy(model).float()
    examples = encode_rows(tokenizer, list(rows))
    settings: dict[str, Any] = {"epochs": steps, "batch_size": len(rows), "lr": lr}
    settings |= {"warmup_epochs": 0.0, "weight_decay": 0.0}
    if steps:
        finetune(model, examples, pad_id=pad_id(tokenizer), progress="relearning", **settings)
    return model.eval()


def quantised(study: Study, method: str, loaded: Loaded, load_in: str) -> Loaded:
    """Return a model with weights in 8 or 4 bits (bitsandbytes). For T3 the base is quantised and
    the head stays as it is.

    load_in: "8bit" or "4bit".
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # or it warns about each cast
    if method in ("Original", "T3"):
        return Loaded(*load_model(study.models["full"], load_in=load_in), loaded.tilts)
    with TemporaryDirectory() as folder:
        loaded.model.save_pretrained(folder)
        study.tokenizer.save_pretrained(folder)
        return Loaded(*load_model(folder, load_in=load_in))


def relearning(
    study: Study,
    models: Mapping[str, Mapping[str, Any]],
    *,
    steps: Sequence[int],
    lr: float,
    samples: int,
    seeds: Sequence[int] = (0,),
) -> Iterator[Entry]:
    """Train every model on 10% of the forget rows, and judge it by the other 90%.

    models: {method: settings}. The models of seed 1 are attacked; Original and Retrained have seed
    0.
    steps: numbers of training steps to try. lr: learning rate. samples: see `judge`.
    seeds: of the retrained models that Forget Quality is compared with.

    For T3, the base is trained. It is judged under its old head ("T3, head kept") and under a new
    head that is fitted afterwards ("T3, head refitted"). T3 without its head is the original model.
    """
    rows = study.evaluation_rows["forget"]
    given, left = rows[::10], [row for number, row in enumerate(rows) if number % 10]
    judged_by = references(study, left, seeds)
    for method, settings in models.items():
        loaded = load_models(study, [subject(study, method, _seed(method), settings)])
        for count in steps:
            model = relearned(loaded.model, study.tokenizer, given, count, lr)
            kinds = {method: loaded.tilts}
            if loaded.tilts:
                [(_, T)], head = loaded.tilts, _head(study, model, study.forget, settings)
                kinds = {"T3, head kept": loaded.tilts, "T3, head refitted": [(head, T)]}
            for name, tilts in kinds.items():
                now = Loaded(model, study.tokenizer, tilts)
                yield {"attack": "relearning", "model": name, "steps": count} | judge(
                    study, now, left, judged_by, samples
                )


def quantisation(
    study: Study,
    models: Mapping[str, Mapping[str, Any]],
    *,
    samples: int,
    bits: Sequence[int] = (32, 8, 4),
    seeds: Sequence[int] = (0,),
) -> Iterator[Entry]:
    """Judge every model with its own weights and with weights in 8 and 4 bits.

    bits: 32 stands for the weights as they are. models, samples, seeds: see `relearning`.
    """
    rows = study.evaluation_rows["forget"]
    judged_by = references(study, rows, seeds)
    for method, settings in models.items():
        loaded = load_models(study, [subject(study, method, _seed(method), settings)])
        for width in bits:
            now = loaded if width == 32 else quantised(study, method, loaded, f"{width}bit")
            yield {"attack": "quantisation", "model": method, "bits": width} | judge(
                study, now, rows, judged_by, samples
            )


def asking(study: Study, models: Mapping[str, Mapping[str, Any]]) -> Iterator[Entry]:
    """Ask every model in every way of `own.asking`, decode greedily, and count the rows that leak.

    models: see `relearning`. Yields one entry for each model and way. rows: number of rows that the
    original model answers in this way; only these are counted. rows_leaking: how many of them the
    model gives away. If a row has a paraphrased question, it is one of the ways.
    """
    rows = study.evaluation_rows["forget"]
    secret = [row | {"secret": " ".join(own)} for row, own in zip(rows, row_secrets(rows))]
    other = {row["question"]: [row["paraphrased_question"]]
             for row in rows if row.get("paraphrased_question")}  # fmt: skip
    put = inquiry(study.tokenizer, secret, {"retain": study.retain}, rewordings=other)
    prompts, truths = [each.prompt for each in put.asked], [each.room for each in put.asked]

    def leaking(loaded: Loaded) -> set[tuple[str, int]]:
        """Return (way of asking, number of the row) for each answer that contains the secret."""
        model, tokenizer, tilts = loaded
        [texts] = answers(model, tokenizer, prompts, truths, tilts or UNTILTED, progress=False)
        wanted = [put.secrets[each.row] for each in put.asked]
        wanted = [own & {*words(each.rest)} if each.rest else own
                  for own, each in zip(wanted, put.asked)]  # fmt: skip
        return {(each.way, each.row) for each, own, text in zip(put.asked, wanted, texts)
                if holds(own, text)}  # fmt: skip

    known = leaking(Loaded(study.base, study.tokenizer))
    counts = Counter(way for way, _ in known)
    for method, settings in models.items():
        loaded = load_models(study, [subject(study, method, _seed(method), settings)])
        found = Counter(way for way, _ in leaking(loaded) & known)
        for way in dict.fromkeys(each.way for each in put.asked):
            # figures lack the characters, so the table has their translation
            name = way.replace(f'"{PREFACES[-1]}"', '"Please answer:" in Chinese')
            entry = {"attack": "asking", "model": method, "way": name}
            yield entry | {"rows_leaking": found[way], "rows": counts[way]}


def requests(
    study: Study,
    settings: Mapping[str, Any],
    *,
    authors: Sequence[int],
    seeds: Sequence[int],
    samples: int,
) -> Iterator[Entry]:
    """Forget the last 1, 2, … authors of a split, by one head for all of them or by one head for
    each author.

    settings: of T3, all of them.
    authors: numbers of authors to forget, each at most the number in the split.
    seeds: of the retrained models that Forget Quality is compared with. They never saw any author
    of the split. The model of the last seed is also judged ("retrained"), against the others.

    The heads of single authors start from a random B or from B = 0, and their log f are added, at
    the settings' T and, from B = 0, also at T = 1. cpu_seconds, bytes: time to fit the heads of an
    entry, and the size of their weights.
    """
    stage = study.stage
    questions = stage.questions if stage and stage.data == "builtin" else bases.TOFU_QUESTIONS
    kept = {name: rows for name, rows in study.evaluation_rows.items() if name != "forget"}
    tuned = float(settings["temperature"])

    def fitted(start: int, end: int, init_b: str) -> tuple[T3Head, float]:
        """Fit a head to authors `start` to `end`, counted from the last, and return it with the
        CPU-seconds that this took.
        """
        began, n = time.process_time(), len(study.forget)
        rows = study.forget[n - end * questions : n - start * questions]
        head = _head(study, study.base, rows, {**settings, "init_b": init_b})
        return head, time.process_time() - began

    random, zero = (
        [fitted(number, number + 1, init_b) for number in range(max(authors))]
        for init_b in ("kaiming", "zero")
    )
    control = Loaded(*load_model(retrained(study, seeds[-1]), **study.load_options))
    for count in authors:
        rows = study.evaluation_rows["forget"][-count * questions :]
        judged_by = references(study, rows, seeds)
        ways = {
            "one head": ([fitted(0, count, settings["init_b"])], tuned),
            "a head an author, random B": (random[:count], tuned),
            "a head an author, zero B": (zero[:count], tuned),
            "a head an author, zero B, T = 1": (zero[:count], 1.0),
            "retrained": ([], 1.0),
        }
        for name, (timed, T) in ways.items():
            heads = [head for head, _ in timed]
            model = control.model
            if heads:
                model = T3ForCausalLM(study.base, heads, T, allow_sharpening=True)
            [scores] = score(model, study.tokenizer, kept, study.scoring)
            values = by_column(metrics_of(scores, truth_ratio=study.scoring.truth_ratio))
            stays = {name: values[name] for name in KEPT}
            theirs = judged_by if heads else judged_by[:-1] or judged_by
            found = judge(study, Loaded(model, study.tokenizer), rows, theirs, samples)
            yield {"authors": count, "heads": name} | found | stays | {
                "cpu_seconds": sum(seconds for _, seconds in timed),
                "bytes": sum(weight.nbytes for head in heads for weight in head.parameters()),
            }  # fmt: skip


def _head(study: Study, base: Any, forget: Sequence[Row], settings: Mapping[str, Any]) -> T3Head:
    """Fit a head of seed 1 on a base to rows to forget. The rows to keep are the study's."""
    features = extract_features(
        base, study.tokenizer, list(forget), study.retain,
        attention_mask=study.scoring.attention_mask,
    )  # fmt: skip
    size, own = base.get_output_embeddings().weight.shape[0], head_settings(settings, seed=1)
    return fit_head(features, vocab_size=size, progress=False, **own)


def _ratios(study: Study, cells: Mapping[str, Any]) -> Any:
    losses = cells["paraphrased"]
    return truth_ratio(losses[:, 0], losses[:, 1:], study.scoring.truth_ratio)


def _seed(method: str) -> int:
    return 0 if method in ("Original", "Retrained") else 1
