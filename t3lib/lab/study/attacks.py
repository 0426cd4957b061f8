"""Attack unlearned models with access to their weights, and serve requests to forget that come one
by one.

Each function yields plain rows of a table. Nothing is cached, because notebook 08 runs only on
request.
"""

import copy
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from t3lib.baselines.train import finetune
from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_heads
from t3lib.classifier.head import T3Head
from t3lib.core.models import load_model, pad_id
from t3lib.core.rows import Row, encode_rows
from t3lib.lab.audit import run
from t3lib.lab.audit.recognition import recognized
from t3lib.lab.study.methods import load_models, retrained, subject
from t3lib.lab.study.study import Loaded, Study
from t3lib.lab.study.unlearned import head_settings
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.evaluation import metrics_of, score
from t3lib.tofu.likelihood import UNTILTED
from t3lib.tofu.metrics import METRICS, forget_quality, truth_ratio

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
    is recognised. fq: mean Forget Quality against `references`.
    """
    model, tokenizer, tilts = loaded
    how: dict[str, Any] = {"attention_mask": study.scoring.attention_mask, "progress": False}
    [shown] = run.likelihoods(model, tokenizer, {"forget": rows}, tilts or UNTILTED, **how)
    [drawn] = run.draws(model, tokenizer, rows, tilts or UNTILTED, samples=samples, **how)
    cells = {name: np.array(losses) for name, losses in shown["forget"]["cells"].items()}
    ratios = _ratios(study, cells)
    return {
        "rows_leaking": sum(map(any, drawn["leaks"])),
        "rows": len(drawn["leaks"]),
        **{
            f"recognized_{name}": recognized(cells[name][:, 0], cells[name][:, 1:]).mean()
            for name in CELLS
            if name in cells
        },
        "fq": float(np.mean([forget_quality(ratios, theirs)[0] for theirs in references])),
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
) -> Iterator[Entry]:
    """Train every model on 10% of the forget rows, and judge it by the other 90%.

    models: {method: settings}. The models of seed 1 are attacked; Original and Retrained have seed
    0.
    steps: numbers of training steps to try. lr: learning rate. samples: see `judge`.

    For T3, the base is trained. It is judged once under its old head ("T3, head kept") and, after
    the most steps, once under a new head ("T3, head refitted"). T3 without its head is the original
    model.
    """
    rows = study.evaluation_rows["forget"]
    given, left = rows[::10], [row for number, row in enumerate(rows) if number % 10]
    judged_by = references(study, left, (0,))
    for method, settings in models.items():
        loaded = load_models(study, [subject(study, method, _seed(method), settings)])
        for count in steps:
            model = relearned(loaded.model, study.tokenizer, given, count, lr)
            kinds = {method: loaded.tilts}
            if loaded.tilts:
                kinds = {"T3, head kept": loaded.tilts}
            if loaded.tilts and count == max(steps):
                [(_, T)], [head] = loaded.tilts, _heads(study, model, [study.forget], settings)
                kinds["T3, head refitted"] = [(head, T)]
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
) -> Iterator[Entry]:
    """Judge every model with its own weights and with weights in 8 and 4 bits.

    bits: 32 stands for the weights as they are. models, samples: see `relearning`.
    """
    rows = study.evaluation_rows["forget"]
    judged_by = references(study, rows, (0,))
    for method, settings in models.items():
        loaded = load_models(study, [subject(study, method, _seed(method), settings)])
        for width in bits:
            now = loaded if width == 32 else quantised(study, method, loaded, f"{width}bit")
            yield {"attack": "quantisation", "model": method, "bits": width} | judge(
                study, now, rows, judged_by, samples
            )


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

    settings: of T3.
    authors: numbers of authors to forget, each at most the number in the split.
    seeds: of the retrained models that Forget Quality is compared with. They never saw any author
    of the split.

    The heads of single authors start as the settings say ("random B") or from B = 0 ("zero B"), and
    their log f are added. cpu_seconds, bytes: time to fit the heads of an entry, and the size of
    their weights.
    """
    questions = study.stage.questions if study.stage else 20
    every = study.evaluation_rows["forget"]
    for count in authors:
        rows, parts = every[-count * questions :], list[Any]()
        judged_by = references(study, rows, seeds)
        together = study.forget[-count * questions :]
        gone = [together[start : start + questions] for start in range(0, len(rows), questions)]
        ways = {
            "one head": ([together], settings),
            "a head an author, random B": (gone, {**settings, "init_b": "kaiming"}),
            "a head an author, zero B": (gone, {**settings, "init_b": "zero"}),
        }
        for name, (parts, chosen) in ways.items():
            began = time.process_time()
            heads = _heads(study, study.base, parts, chosen)
            took = time.process_time() - began
            model = T3ForCausalLM(
                study.base, heads, float(settings["temperature"]), allow_sharpening=True
            )
            sets = study.evaluation_rows | {"forget": rows}
            [scores] = score(model, study.tokenizer, sets, study.scoring)
            report = metrics_of(scores, truth_ratio=study.scoring.truth_ratio)
            kept = {name: reduce(getitem, METRICS[name].place, report) for name in KEPT}
            size = sum(weight.nbytes for head in heads for weight in head.parameters())
            found = judge(study, Loaded(model, study.tokenizer), rows, judged_by, samples)
            yield {"authors": count, "heads": name} | found | kept | {
                "cpu_seconds": took, "bytes": size,
            }  # fmt: skip


def _heads(
    study: Study, base: Any, forget: Sequence[Sequence[Row]], settings: Mapping[str, Any]
) -> list[T3Head]:
    """Fit one head on a base for each set of rows to forget. The rows to keep are the study's."""
    heads = []
    for rows in forget:
        features = extract_features(
            base, study.tokenizer, list(rows), study.retain,
            attention_mask=study.scoring.attention_mask,
        )  # fmt: skip
        size = base.get_output_embeddings().weight.shape[0]
        heads += fit_heads(
            features, [head_settings(settings, seed=1)], vocab_size=size, progress=False
        )
    return heads


def _ratios(study: Study, cells: Mapping[str, Any]) -> Any:
    losses = cells["paraphrased"]
    return truth_ratio(losses[:, 0], losses[:, 1:], study.scoring.truth_ratio)


def _seed(method: str) -> int:
    return 0 if method in ("Original", "Retrained") else 1
