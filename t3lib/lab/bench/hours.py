"""Estimate by arithmetic what a profile of large checkpoints takes on a GPU, job by job.

Every number is an upper estimate: texts are assumed to share no beginnings, and the answers of all
models to be as long as the true ones. Only the work of the GPU's kernels counts. Imports no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from t3lib.baselines.losses import DEFAULTS, LOSSES, METHODS, NEEDS, settings_of
from t3lib.core.names import RETAIN_OF, SPLITS
from t3lib.core.settings import hyper_of, seeds_of
from t3lib.lab.bench import cost
from t3lib.lab.bench.cost import Shape, Work
from t3lib.lab.grid.jobs import Job
from t3lib.lab.profiles import Profile

RANK = 20  # of T3's head
SHARE = 0.4  # of a GPU's peak that is reached


class GPU(NamedTuple):
    """The data sheet of a GPU.

    memory: bytes. flops: dense bfloat16 operations in a second. bandwidth: bytes moved in a second.
    """

    memory: float
    flops: float
    bandwidth: float


GPUS = {"H100": GPU(80e9, 989e12, 3.35e12), "H200": GPU(141e9, 989e12, 4.8e12)}


class Tokens(NamedTuple):
    """Size of one of TOFU's evaluation or training sets.

    rows: number of rows. prompts: tokens of all prompts. answers: tokens of all true answers.
    scored: tokens of all answers that are scored, the true, paraphrased and wrong ones.
    """

    rows: int
    prompts: int
    answers: int
    scored: int = 0


# Counted with Llama 3.1's tokenizer and chat template, its dates included.
TOFU = {
    "forget05": Tokens(200, 11_648, 7_165, 54_626),
    "forget10": Tokens(400, 23_341, 14_688, 110_886),
    "retain90": Tokens(3600, 204_296, 124_617),
    "retain95": Tokens(3800, 215_989, 132_140),
    "retain_perturbed": Tokens(400, 22_042, 13_628, 105_789),
    "real_authors_perturbed": Tokens(100, 5_471, 502, 1_997),
    "world_facts_perturbed": Tokens(117, 6_189, 420, 1_674),
}
ALWAYS = ("retain_perturbed", "real_authors_perturbed", "world_facts_perturbed")
BATCH = 2**14  # tokens of prompts and answers that are written together (`tofu.writing`)
ABLATIONS = 15  # settings of notebook 03, each with a head and texts for every seed
WORDINGS = 2  # of a question after which the audit shows every answer
FORCED = 4  # further answers to a question, whose first tokens are given
GIGABYTES = 8, 12, 24, 48, 80, 141  # of GPUs
CONTEXT = 5e8  # bytes that CUDA takes before a program holds anything


class Need(NamedTuple):
    """What a job needs.

    memory: the most bytes that it holds on the device at once. work: its operations and bytes.
    """

    memory: float
    work: Work


def total(works: Iterable[Work]) -> Work:
    """Return the sum of one or more works."""
    return Work(*map(sum, zip(*works)))


def times(count: float, work: Work) -> Work:
    """Return the work of doing `work` `count` times."""
    return Work(count * work.flops, count * work.bytes)


def reading(shape: Shape, tokens: float, rows: int, logits: float = 0) -> Work:
    """Return the work of forward passes over rows of equal length, at most 8192 tokens in a batch.

    tokens: of all rows together. rows: their number. logits: number of positions at which logits
    are computed.
    """
    once = cost.forward(shape, [round(tokens / rows)] * rows, logits=round(logits), itemsize=2)
    return Work(once.flops, once.bytes * ceil(tokens / 8192))


def scoring(shape: Shape, sets: Sequence[Tokens], temperatures: int = 0) -> Work:
    """Return the work of computing the losses of all answers in some sets.

    The prompt of a row is read once for all of its answers. temperatures: number of T at which T3
    is scored, 0 for a model without a head. The head is computed once, and each T takes one more
    product over the vocabulary.
    """
    V, rank = shape.vocab_size, RANK * bool(temperatures)
    head = 2 * (rank * (shape.hidden_size + V) + temperatures * V)
    tilted = Work(head * sum(each.scored for each in sets), 0)
    read = (reading(shape, each.prompts + each.scored, each.rows, each.scored) for each in sets)
    return total([tilted, *read])


def writing(shape: Shape, prompts: float, answers: float, texts: int, longest: int) -> Work:
    """Return the work of decoding texts greedily.

    prompts: tokens of all prompts. answers: tokens of all texts together. texts: their number.
    longest: number of steps that each batch is assumed to take.
    """
    read = reading(shape, prompts, texts)
    rows = max(1, round(BATCH / (prompts / texts + longest)))
    step = cost.decode_step(shape, batch=rows, context=round(prompts / texts), heads=1)
    steps = ceil(texts / rows) * longest
    return Work(read.flops + answers / rows * step.flops, read.bytes + steps * step.bytes)


def logits_of(method: str, forget: Tokens, settings: Mapping[str, Any]) -> list[int]:
    """Return for each term of a method's loss the number of positions with logits in one epoch.

    These are the answers' positions, or all positions if the term needs them. A term with the
    weight 0 is not computed. IdkDPO's refusing answers are a further term, counted as long as the
    true answers.
    """
    weights = (settings.get(name, 1) for name in ("alpha_f", "alpha_r"))
    needs = [NEEDS[loss] for loss, weight in zip(LOSSES[method], weights) if loss and weight]
    every = {"logit", "logit_all"}
    refused = [forget.answers for names in needs if "logp_idk" in names]
    return [forget.answers + bool(every & names) * forget.prompts for names in needs] + refused


def training(shape: Shape, method: str, forget: Tokens, settings: Mapping[str, Any]) -> Work:
    """Return the work of training a baseline once.

    Each epoch reads the forget rows and, if the loss has a retain term, as many retain rows.
    settings: all settings of the method.
    """
    logits, share = logits_of(method, forget, settings), 1.0
    if method == "ULD":  # frozen weights have no gradients, which are a third of a step
        shape, share = shape._replace(num_hidden_layers=settings["k"]), 2 / 3
    rows, length = len(logits) * forget.rows, (forget.prompts + forget.answers) / forget.rows
    passes = ceil(rows / settings["batch_size"])
    step = cost.training_step(shape, [round(length)] * rows, sum(logits))
    return times(settings["epochs"], Work(share * step.flops, passes * step.bytes))


def training_memory(
    shape: Shape, method: str, forget: Tokens, settings: Mapping[str, Any]
) -> float:
    """Return the bytes that the training of a baseline holds: `cost.training_memory`, logits and
    activations.

    Logits are held once in bfloat16 and three times in float32: the logits, their logarithms and
    their gradient. settings: all settings of the method.
    """
    terms = logits_of(method, forget, settings)
    share = min(1, settings["batch_size"] / forget.rows)
    held = cost.training_memory(shape, method, settings.get("optimizer", "adamw"))
    layers = settings["k"] if method == "ULD" else shape.num_hidden_layers
    tokens = share * len(terms) * (forget.prompts + forget.answers)
    kept = tokens * layers * activations(shape, lora=method == "ULD")
    return held + kept + (2 + 4 * 3) * shape.vocab_size * share * sum(terms)


def activations(shape: Shape, lora: bool = False) -> int:
    """Return the bytes that one layer keeps for the gradient of one token.

    These are the inputs of the linear maps and the products in the MLP in bfloat16, and seven
    float32 vectors of the residual stream and its norms. lora: True for an adapter, which also
    keeps the inputs of its linear maps in float32 before and after dropout, and the dropout masks.
    """
    d, m = shape.hidden_size, shape.intermediate_size
    return 2 * (4 * d + 2 * shape.key_value_size + 4 * m) + 7 * 4 * d + 9 * (6 * d + m) * lora


def settings_for(profile: Profile, method: str, split: str) -> dict[str, Any]:
    """Return all settings of a method on a split of a profile, {} if the method trains nothing."""
    changes = hyper_of(profile["hyper"], method, split)
    return settings_of(method, changes) if method in DEFAULTS else {}


def need_of(job: Job, profile: Profile, shape: Shape) -> Need | None:
    """Return what a job of notebook 02, 03 or 06 needs on a GPU, or None if the job loads no model.

    profile: a checked profile. shape: sizes of its base.
    """
    p = job.parameters
    if "world" not in p or "split" not in p:
        return None
    several = [need_of_method(job, profile, shape, method) for method in p.get("methods", ["T3"])]
    return Need(max(need.memory for need in several), total(need.work for need in several))


def need_of_method(job: Job, profile: Profile, shape: Shape, method: str) -> Need:
    """Return what a job needs for one of its methods; otherwise like `need_of`."""
    p = job.parameters
    forget, longest = TOFU[p["split"]], profile["evaluation"]["max_new_tokens"]
    sets = [forget, *(TOFU[name] for name in ALWAYS)]
    settings = settings_for(profile, method, p["split"])
    seeds = len(seeds_of(method, p["seeds"])) or 1
    shapes = [
        shape,
        *([shape._replace(num_hidden_layers=settings["k"])] if method == "ULD" else []),
    ]
    written = total(
        writing(part, each.prompts, each.answers, each.rows, longest)
        for part in shapes
        for each in sets
    )
    extracted = features(shape, forget, TOFU[RETAIN_OF[p["split"]]])
    memory, works = cost.t3_memory(shape, bits=16)[1], []
    if method in LOSSES:
        memory = max(memory, training_memory(shape, method, forget, settings))
        if job.notebook != "06_audit":  # else it is read back
            works.append(times(seeds, training(shape, method, forget, settings)))
    temperatures = len(p["temperatures"]) if method == "T3" else 0
    models = seeds * (temperatures or 1)
    if job.notebook == "06_audit":
        works.append(auditing(shape, p["sampling"], forget, method, models))
    elif job.notebook == "03_temperature_ablation":
        texts = (ABLATIONS + 1) * seeds
        scored = times(4 + texts // 25, scoring(shape, sets))
        works += [scored, times(texts, written), times(2, extracted)]
    else:
        scored = total(scoring(part, sets, temperatures) for part in shapes)
        works += [times(1 if temperatures else models, scored), times(models, written)]
        if method == "T3":
            works += [extracted, times(seeds, heads(shape, forget, settings))]
    return Need(memory, total(works))


def features(shape: Shape, *sets: Tokens) -> Work:
    """Return the work of one pass over all rows of some sets, without the output layer."""
    return total(reading(shape, each.prompts + each.answers, each.rows) for each in sets)


def heads(shape: Shape, forget: Tokens, settings: Mapping[str, Any]) -> Work:
    """Return the work of training T3's head on the forget answers and as many retain answers.

    settings: of T3, all of them.
    """
    n = 2 * forget.answers * settings["epochs"]
    return cost.head_training(n, shape.hidden_size, settings["rank"])


def auditing(
    shape: Shape, sampling: Mapping[str, Any], forget: Tokens, method: str, models: int
) -> Work:
    """Return the work of auditing a method.

    The likelihoods of all its models are computed. Samples are drawn from one model, or for T3 from
    three. sampling: the audit's settings `rows`, `samples` and `templates`. models: number of
    models of the method.
    """
    rows, text = min(sampling["rows"], forget.rows), forget.answers / forget.rows
    answers = sampling["samples"] + 1 + FORCED + len(sampling["templates"])
    passes, writers = (1, 3) if method == "T3" else (models, 1)  # T3's share the base's passes
    prompts = rows * answers * forget.prompts / forget.rows
    written = writing(shape, prompts, rows * answers * text, rows * answers, round(3 * text))
    truths = reading(shape, forget.prompts + forget.answers, forget.rows, forget.answers)
    shown = total([truths, *[scoring(shape, [forget])] * WORDINGS])
    return total([times(passes, shown), times(writers, written)])


def plan(graph: Sequence[Job], profile: Profile, shape: Shape) -> str:
    """Write the estimate as text: a line for each job, the total hours of T3 alone and of all
    methods, the disk space, and what fits which GPU.
    """
    needs = [(job, need) for job in graph if (need := need_of(job, profile, shape))]
    lines = [("job", "device", "operations", "moved", *(f"hours {name}" for name in GPUS))]
    lines += [
        (
            job.name,
            f"{need.memory / 1e9:.0f} GB",
            f"{need.work.flops:.2g}",
            f"{need.work.bytes / 1e12:.3g} TB",
            *(said(*hours_of([need], gpu)) for gpu in GPUS.values()),
        )
        for job, need in needs
    ]
    text = [f"{name:<44}" + "".join(f"{cell:>14}" for cell in cells) for name, *cells in lines]
    for group, allowed in (("T3 and Original", {"T3", "Original"}), ("all methods", {*METHODS})):
        some = [need for job, need in needs if {*job.parameters.get("methods", ["T3"])} <= allowed]
        words = (f"{on} {said(*hours_of(some, gpu))}" for on, gpu in GPUS.items())
        text.append(f"total hours, {group}: {', '.join(words)}")
    weights = 2 * len(profile["models"]) * cost.parameters(shape)
    kept = sum(TOFU[name].answers for split in SPLITS for name in (split, RETAIN_OF[split]))
    text.append(
        f"disk: {weights / 1e9:.0f} GB of checkpoints,"
        f" {2 * shape.hidden_size * kept / 1e9:.1f} GB of features;"
        f" operations and bytes at {SHARE:.0%} of the data sheet's peak"
    )
    return "\n".join([*text, fits(shape)])


def hours_of(needs: Sequence[Need], gpu: GPU) -> tuple[float, int]:
    """Return the hours of the jobs that fit a GPU, at `SHARE` of its peak and one after the
    other, and the number of jobs that do not fit.
    """
    works = [need.work for need in needs if need.memory <= gpu.memory]
    seconds = sum(max(work.flops / gpu.flops, work.bytes / gpu.bandwidth) for work in works)
    return seconds / SHARE / 3600, len(needs) - len(works)


def said(hours: float, lacking: int) -> str:
    """Write hours as text. lacking: number of jobs that do not fit."""
    if not hours:
        return "does not fit"
    return f"{hours:.2f}" + f" ({lacking} jobs do not fit)" * bool(lacking)


def fits(shape: Shape) -> str:
    """Write which training fits GPUs of several sizes: T3 in 4, 8 or 16 bits, or full fine-tuning.

    For each size the most demanding one that fits is named. CUDA itself takes `CONTEXT` bytes.
    """
    bits = {"4 bits": cost.NF4_BITS, "8 bits": 8.0, "16 bits": 16.0}
    needs = {f"T3 in {name}": cost.t3_memory(shape, bits=each)[1] for name, each in bits.items()}
    settings = {"optimizer": "paged_adamw_8bit", "batch_size": 8}
    needs["full fine-tuning"] = training_memory(shape, "NPO", TOFU["forget10"], settings)
    words = [(-CONTEXT, "nothing")]
    words += [(need, f"{name} ({need / 1e9:.1f} GB)") for name, need in needs.items()]
    dearest = ([name for n, name in words if n + CONTEXT < size * 1e9][-1] for size in GIGABYTES)
    return f"fits {', '.join(f'{size} GB: {name}' for size, name in zip(GIGABYTES, dearest))}"
