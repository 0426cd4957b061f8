"""Measure the steps of a rehearsal, beside what arithmetic predicts.

A row of the table has the seconds, the most memory that the process held, and the operations that
torch counted, beside the bytes and operations that `cost` predicts. Other programs on the machine
can make the seconds longer, but do not change memory and operations.
"""

import copy
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from runpy import run_module
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.optim import SGD
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoTokenizer

from t3lib.baselines import train
from t3lib.baselines.assistant import make_assistant
from t3lib.baselines.losses import LOSSES
from t3lib.baselines.uld import ULDForCausalLM
from t3lib.baselines.unlearn import Lesson, unlearn_baseline
from t3lib.classifier.features import extract_features
from t3lib.classifier.fit import fit_head
from t3lib.classifier.head import T3Head
from t3lib.core.models import load_model
from t3lib.core.rows import encode_answers
from t3lib.lab.audit import run
from t3lib.lab.bench import cost, hours
from t3lib.lab.bench.cost import Shape
from t3lib.lab.profiles import Profile
from t3lib.lab.results import peak_memory_bytes, provenance
from t3lib.lab.study.study import Study, open_study
from t3lib.tofu.data import load_rows
from t3lib.tofu.evaluation import score
from t3lib.tofu.metrics import SETS

BITS = {"8bit": ("int8", 8.0), "4bit": ("nf4", cost.NF4_BITS)}
WITHOUT_MOMENTS = (
    "SGD in place of AdamW: bitsandbytes' update of 8-bit moments on a CPU holds 20 bytes a weight"
    " of the embeddings besides, and was killed at 18.8 GB"
)
LOGITS = 2**28  # entries of the logits of one batch at most (`likelihood.default_batch_tokens`)
OWN_ROWS = 2  # to forget, and as many to keep; a verdict asks about each of them in many ways
# What is typed after `t3`; {full} and so on are filled in. Random weights know no rows, so that
# nothing is sampled. With choices of its own `unlearn` searches for none.
VERBS = {
    "t3 unlearn": "--model {full} --forget {own}/forget10.json --retain {own}/retain90.json"
    " --out {head} --overwrite --steps 20 --lr 1e-3 --temperature 2.5 --strength 1",
    "t3 evaluate": "--model {full} --forget {own}/forget10.json --retain {own}/retain90.json"
    " --head {head} --out {head}-report",
    "t3 generate": "--model {full} --head {head} --max-new-tokens {longest} Who?",
}


class Work(NamedTuple):
    """A step to measure.

    do: runs the step. bytes: predicted, the most held at once; Python and its libraries take half a
    gigabyte more. rows, tokens: number of rows and tokens that the step processes. flops: predicted
    operations, None if there is no prediction.
    """

    do: Callable[[], object]
    bytes: float
    rows: int = 0
    tokens: int = 0
    flops: float | None = None


def measure(profile: Profile, step: str) -> dict[str, Any]:
    """Load the base, run one step and return its row; KeyError for an unknown step.

    Call this in its own process, so that the peak memory is the step's.
    """
    torch.set_num_threads(int(os.environ.get("T3_THREADS", torch.get_num_threads())))
    shape, work = work_of(profile, step)
    with FlopCounterMode(display=False) as counter:
        began = time.perf_counter()
        said = work.do()
        seconds = time.perf_counter() - began
    return {
        "profile": profile["name"],
        "step": step,
        "shape": f"{cost.parameters(shape) / 1e9:.3g}e9 parameters",
        "dtype": BITS.get(step, ("bfloat16",))[0],
        "rows": work.rows,
        "tokens": work.tokens,
        "seconds": round(seconds, 2),
        "peak_bytes": peak_memory_bytes(),
        "predicted_bytes": round(work.bytes),
        "flops": counter.get_total_flops() or None,
        "predicted_flops": work.flops,
        "device": provenance()["device"],
        "note": said if isinstance(said, str) else None,
    }


def work_of(profile: Profile, step: str) -> tuple[Shape, Work]:
    """Return the shape of a profile's base, and a step that is ready to run."""
    place, split = profile["models"]["full"], profile["splits"][0]
    shape = Shape.of(AutoConfig.from_pretrained(place))
    weights = cost.t3_memory(shape, bits=BITS.get(step, ("", 16.0))[1])[0]
    if step == "load":
        return shape, Work(lambda: load_model(place), weights)
    if step in VERBS:
        return shape, typed(profile, step, shape, weights + 6 * LOGITS)
    world = {name: profile[name] for name in ("data", "models", "evaluation")}
    study = open_study(split, **world, load={"load_in": step} if step in BITS else {})
    if (method := step.removeprefix("one step of ")) in LOSSES:
        work = training(study, profile, shape, method)
    else:
        work = (READING | dict.fromkeys(BITS, evaluation))[step](study, profile, shape)
    return shape, work._replace(bytes=weights + work.bytes)


def typed(profile: Profile, verb: str, shape: Shape, held: float) -> Work:
    """Prepare a command of `t3`, as if it were typed, on the rehearsal's rows.

    Its row says how it ended, such as "exit code 3". A head that `t3 unlearn` has not fitted yet is
    random, so that each verb can be measured alone.
    """
    full, data = profile["models"]["full"], Path(profile["data"])
    own, longest = data.with_name("own-rows"), profile["evaluation"]["max_new_tokens"]
    if not (head := own / "head").is_dir():
        T3Head(shape.hidden_size, shape.vocab_size).save_pretrained(head)
    for name in ("forget10.json", "retain90.json"):
        lines = (data / name).read_text().splitlines(keepends=True)
        (own / name).write_text("".join(lines[:OWN_ROWS]))
    places = {"full": full, "own": own, "head": head, "longest": longest}

    def do() -> str | None:
        sys.argv = [*verb.split(), *(word.format(**places) for word in VERBS[verb].split())]
        try:
            run_module("t3lib", run_name="__main__")
        except SystemExit as end:
            return f"exit code {end.code}"
        return None

    rows = [*load_rows(own, "forget10"), *load_rows(own, "retain90")]
    if verb == "t3 generate":
        rows = [{"question": "Who?", "answer": "-"}]
    read = tokens_of(AutoTokenizer.from_pretrained(full), rows)
    return Work(do, held, read.rows, read.prompts + read.answers)


def tokens_of(tokenizer: Any, rows: Sequence[Any], paraphrased: bool = False) -> hours.Tokens:
    """Count the tokens of some rows, as in `hours.TOFU`.

    paraphrased: True if the paraphrased answers are scored as well.
    """
    counted = []
    for row in rows:
        texts = [row["answer"], *row.get("perturbed_answer", ())]
        texts += [row["paraphrased_answer"]] if paraphrased else []
        examples = encode_answers(tokenizer, row["question"], texts)
        answers = [len(each.ids) - each.n_prompt for each in examples]
        counted.append((1, examples[0].n_prompt, answers[0], sum(answers)))
    return hours.Tokens(*map(sum, zip(*counted)))


def training_of_t3(study: Study, profile: Profile, shape: Shape) -> Work:
    """Prepare the step that computes the features of all rows and trains a head with the profile's
    settings.
    """
    read = tokens_of(study.tokenizer, [*study.forget, *study.retain])
    tokens, mask = read.prompts + read.answers, study.scoring.attention_mask
    settings, rows = hours.settings_for(profile, "T3", study.split), (study.forget, study.retain)
    del settings["temperature"]

    weights, most = cost.t3_memory(
        shape, bits=16, batch_tokens=tokens, answer_tokens=read.answers, batch=0
    )
    half = hours.Tokens(*(count // 2 for count in read))
    counted = hours.features(shape, read), hours.heads(shape, half, settings)
    return Work(
        lambda: fit_head(
            extract_features(study.base, study.tokenizer, *rows, attention_mask=mask),
            **settings | {"vocab_size": shape.vocab_size},
        ),
        *(most - weights, read.rows, tokens, hours.total(counted).flops),
    )


def evaluation(study: Study, profile: Profile, shape: Shape) -> Work:
    """Prepare T3's evaluation: losses of all answers, and greedy texts at every T."""
    head = T3Head(shape.hidden_size, shape.vocab_size).to(study.base.device)
    return scores(study, study.base, [shape], [(head, T) for T in profile["temperatures"]])


def evaluation_of_uld(study: Study, profile: Profile, shape: Shape) -> Work:
    """Prepare the evaluation of ULD, whose assistant runs beside the base."""
    settings = hours.settings_for(profile, "ULD", study.split)
    assistant = make_assistant(study.base, settings["k"], rank=settings["rank"])
    model = ULDForCausalLM(study.base, assistant.eval(), strength=settings["T"])
    return scores(study, model, [shape, shape._replace(num_hidden_layers=settings["k"])], [])


def scores(
    study: Study, model: Any, shapes: Sequence[Shape], tilts: Sequence[tuple[T3Head, float]]
) -> Work:
    """Prepare the evaluation of a model.

    shapes: of the base and of what runs beside it. tilts: of T3, else empty.
    """
    sets, longest = study.evaluation_rows, study.scoring.max_new_tokens
    read = [tokens_of(study.tokenizer, sets[name], SETS[name].paraphrased) for name in sets]
    rows, prompts, _, scored = map(sum, zip(*read))
    written = rows * (len(tilts) or 1) * longest
    counted = [hours.scoring(shape, read, len(tilts)) for shape in shapes]
    counted += [hours.writing(shape, prompts, written, rows, longest) for shape in shapes]
    return Work(
        lambda: score(model, study.tokenizer, sets, study.scoring, tilts or None),
        6 * LOGITS * len(shapes),  # in bfloat16 and in float32
        *(rows, 2 * prompts + scored + written, hours.total(counted).flops),
    )


def audit(study: Study, profile: Profile, shape: Shape) -> Work:
    """Prepare the audit of the base: likelihoods, samples, forced and prefaced answers.

    All of them use as many rows as the rehearsal samples answers for.
    """
    asked = profile["notebooks"]["06_audit"]["sampling"]
    rows = study.evaluation_rows["forget"][: asked["rows"]]
    read, mask = tokens_of(study.tokenizer, rows, True), study.scoring.attention_mask
    drawn = {"samples": asked["samples"], "templates": asked["templates"], "attention_mask": mask}
    return Work(
        lambda: (
            run.likelihoods(study.base, study.tokenizer, {"forget": rows}, attention_mask=mask),
            run.writings(study.base, study.tokenizer, rows, **drawn),
        ),
        *(6 * LOGITS, read.rows, read.prompts + read.scored),
        hours.auditing(shape, asked, read, "Original", 1).flops,
    )


def training(study: Study, profile: Profile, shape: Shape, method: str) -> Work:
    """Prepare the training of a baseline for one epoch, which is one step on the rehearsal's few
    rows. The base stays in memory.
    """
    settings = hours.settings_for(profile, method, study.split)
    read = tokens_of(study.tokenizer, study.forget)
    model, tokenizer = study.base, study.tokenizer
    lesson = Lesson(study.forget, study.retain, study.idk, model, study.scoring.attention_mask)
    trained = model if method == "ULD" else copy.deepcopy(model)
    held = hours.training_memory(shape, method, read, settings)
    sgd = settings["optimizer"] == "paged_adamw_8bit" and not torch.cuda.is_available()
    make = (lambda _, weights, lr, decay: SGD(weights, lr)) if sgd else train.make_optimizer

    def do() -> str | None:
        with patch.object(train, "make_optimizer", make):
            unlearn_baseline(method, trained, tokenizer, lesson, settings=settings, seed=1)
        return WITHOUT_MOMENTS if sgd else None

    return Work(
        do,
        held - cost.t3_memory(shape, bits=16)[0],
        *(2 * read.rows, 2 * (read.prompts + read.answers)),  # as many rows to keep
        hours.training(shape, method, read, settings).flops,
    )


READING = {
    "T3's training": training_of_t3,
    "evaluation": evaluation,
    "evaluation of ULD": evaluation_of_uld,
    "audit": audit,
}
