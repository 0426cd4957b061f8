"""What a model says about rows to forget and to keep, before and after: the evidence that a report shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from t3lib import belonging
from t3lib.audit import choice
from t3lib.audit.answers import asked, closeness, drawn, measure, most_new_tokens
from t3lib.audit.rows import checked_sets
from t3lib.audit.samples import sample_answers
from t3lib.sampler import T3ForCausalLM
from t3lib.tofu import Row, encode_rows

SAMPLES = 16


def assess(
    model: Any,
    tokenizer: Any,
    forget: Sequence[Row],
    retain: Sequence[Row],
    *,
    other: Sequence[Row] = (),
    holdout: Sequence[Row] = (),
    samples: int = SAMPLES,
    seed: int = 0,
    attention_mask: str = "lengths",
    progress: bool = True,
) -> dict[str, Any]:
    """What a model says about rows to forget and to keep: `before`, `after`, `curve`, `samples`, `examples`, `verdict`.

    model: a T3ForCausalLM (one head or several), whose base is the model before; or any other causal LM, which is then
    measured alone (`before` is the same as `after`). holdout: rows to keep that no head was fitted on.
    """
    rows = {"forget": forget, "retain": retain, "other": other, "holdout": holdout}
    forget, retain, other, holdout = checked_sets(rows).values()
    sets = {"forget": drawn(forget), "retain": drawn(retain)} | ({"other": drawn(other)} if other else {})
    sets |= {"held_out_retain": drawn(holdout)} if holdout else {}
    options: dict[str, Any] = {"attention_mask": attention_mask, "progress": progress}
    tilted = isinstance(model, T3ForCausalLM)
    for head in model.heads if tilted else ():
        belonging.check_prompt(head, tokenizer, [*forget, *retain])
    [(before, was)] = measure(model.base if tilted else model, tokenizer, sets, **options)
    curve = curve_of(model, tokenizer, sets, **options) if tilted else []
    after, now = next((pair for pair in curve if pair[0]["T"] == model.temperature), (before, was))
    limit = most_new_tokens(model, encode_rows(tokenizer, [row for rows in sets.values() for row in rows]))
    prompts = [example.ids[: example.n_prompt] for example in encode_rows(tokenizer, sets["forget"])]

    def best_of(some: Any) -> dict[str, Any]:
        texts = sample_answers(some, tokenizer, prompts, samples, seed=seed, max_new_tokens=limit, **options)
        return closeness(sets["forget"], texts, seed) | {"k": samples}

    sampled = {"after": best_of(model)} | ({"before": best_of(model.base)} if tilted else {})
    after = after | {"samples": sampled["after"]}
    return {
        "before": before,
        "after": after,
        "samples": sampled,
        "curve": [scores for scores, _ in curve],
        "examples": [
            {"set": name, "question": asked(row), "truth": row["answer"], "before": first, "after": second}
            for name, rows in sets.items()
            for _, row, first, second in zip(range(5 if name == "forget" else 3), rows, was[name], now[name])
        ],
        "rows": {name: len(some) for name, some in (("forget", forget), ("retain", retain), ("other", other))}
        | {"measured": {name: len(rows) for name, rows in sets.items()}},
        "verdict": choice.verdict(after, before),
    }


def curve_of(model: T3ForCausalLM, tokenizer: Any, sets: Mapping[str, Sequence[Row]], **options: Any) -> list[Any]:
    """`measure` at the model's own T and at every one of `choice.PRODUCTS`, ascending: (scores with T, texts)."""
    values: list[Any] = sorted({*choice.PRODUCTS, model.temperature})
    heads = list(model.heads)
    if len(heads) == 1:  # one base pass for all
        pairs = measure(model.base, tokenizer, sets, [(heads[0], T) for T in values], **options)
    else:
        composed = [T3ForCausalLM(model.base, heads, T, allow_sharpening=True) for T in values]
        pairs = [pair for each in composed for pair in measure(each, tokenizer, sets, **options)]
    return [(scores | {"T": T}, texts) for T, (scores, texts) in zip(values, pairs)]


def headline(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report's numbers as one flat table, for the head's model card: three decimals, and the verdict's sentence."""
    entries: dict[str, Any] = {"verdict": report["verdict"]["sentence"]}
    judged = [(name, report["before"][name], report["after"][name], "") for name in report["before"]]
    if "trial" in report:
        before, after = report["trial"]["before"], report["trial"]["at"]
        judged += [(name, before[name], after[name], " (trial head)") for name in before if name.startswith("held_out")]
    for name, before, after, judge in judged:
        for score, label in (("rouge", "ROUGE-L"), ("prob", "probability")):
            values = f"{before[score]:.3f} before, {after[score]:.3f} after"
            entries[f"{name.replace('_', ' ')} {label}{judge}"] = values
    samples = report["samples"]["after"]
    entries[f"forget ROUGE-L, best of {samples['k']} samples"] = round(samples["own"], 3)
    told = [report[when]["forget"]["verbatim"] for when in ("before", "after")]
    entries["forget rows word for word"] = f"{told[0]} before, {told[1]} after, {samples['verbatim']} among samples"
    for name, separation in report.get("separation", {}).items():
        if separation:
            entries[f"AUC of f, rows {name.replace('_', ' ')}"] = round(separation["auc"], 3)
    return entries
