"""T and w chosen from evidence, without a retrained model. Pure functions on the measured tables.

p^(1/T) f^w = (p f^(w·T))^(1/T): greedy text depends on the product w·T alone, so it can fix the product and nothing
else. Likelihoods see T itself: they divide the product where rows of the same kind that the model never saw are there.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

# Least share of ROUGE-L that each set must keep: rows the head was fitted on, and rows it never saw.
KEEP = {"retain": 0.95, "held_out_retain": 0.8, "other": 0.8}
HALF = 0.5  # most of a truth's words, in order, that an answer may hold and count as forgotten
SURE = 0.8  # least share of the probability of a token to keep at which sampled answers to keep are still good
KNOWN = 0.5  # least probability of a token of its truths, on average, at which a model knows the rows to forget
PRODUCTS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)


def tells(scores: Mapping[str, Any]) -> bool:
    """Whether answers to forget questions are closer to their own truth than to the nearest other one (ROUGE-L).

    Where no other is there to compare with, whether they hold more than `HALF` of it.
    """
    other = scores["nearest_other"]
    return bool(scores["own"] > (HALF if other is None else other))


def knows(scores: Mapping[str, Any]) -> bool:
    """Whether a model without a head knows the rows to forget: it `tells`, and finds truths likely or says one."""
    return tells(scores) and (scores["prob"] > KNOWN or scores["verbatim"] > 0)


def forgets(scores: Mapping[str, Any]) -> bool:
    """Whether greedy answers do not `tells`, hold at most `HALF` of their truth's words, and none holds all of them.

    The last for every single row: a mean over ten hides three that still stand word for word.
    """
    return not tells(scores) and scores["own"] <= HALF and not scores["verbatim"]


def keeps(scores: Mapping[str, Any], before: Mapping[str, Any], sets: Collection[str] = tuple(KEEP)) -> bool:
    """Whether each of `sets` that was measured keeps its share (`KEEP`) of the ROUGE-L that it had before."""
    return all(scores[name]["rouge"] >= KEEP[name] * before[name]["rouge"] for name in sets if name in scores)


def choose_product(curve: Sequence[Mapping[str, Any]], before: Mapping[str, Any]) -> tuple[float, str]:
    """The smallest w·T of the curve that forgets and keeps, and the reason in one sentence.

    curve: one entry a product, ascending, with `product` and the scores of each set. Without such a product: the
    smallest that forgets and keeps all but the held-out rows, which are few, for forgetting was asked for and the
    verdict will say what they lost; without that, the largest that still keeps; without that, the smallest.
    """
    tried = ", ".join(f"{entry['product']:g}" for entry in curve)
    keeping = [entry for entry in curve if keeps(entry, before)]
    good = [entry for entry in keeping if forgets(entry["forget"])]
    if good:
        return good[0]["product"], f"the smallest w·T of {tried} that forgets and keeps the other rows"
    nearly = [entry for entry in curve if forgets(entry["forget"]) and keeps(entry, before, ("retain", "other"))]
    if nearly:
        return nearly[0]["product"], f"the smallest w·T of {tried} that forgets; none also keeps rows held out"
    if keeping:
        return keeping[-1]["product"], f"the largest w·T of {tried} at which other rows keep theirs; none forgets"
    return curve[0]["product"], f"no w·T of {tried} leaves the other rows as they must be, so the smallest"


def worse(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Of two entries of one product, by two heads, set by set the worse: more told, or less kept."""
    merged = dict(first) | dict(second)
    for name in first.keys() & second.keys() & {"forget", *KEEP}:
        if name == "forget":
            merged[name] = max(first[name], second[name], key=lambda scores: (scores["verbatim"], scores["rouge"]))
        else:
            merged[name] = min(first[name], second[name], key=lambda scores: scores["rouge"])
    return merged


def choose_temperature(distances: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """The entry {T, w, D, …} with the least distance D between forget rows and unseen rows; ties go to w nearest 1."""
    return min(distances, key=lambda entry: (entry["D"], abs(entry["w"] - 1)))


def choose_rate(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The learning rate whose `separation` is largest, the smallest one among equals.

    separation: the most that some w·T reaches of (share of held-out retain tokens that greedy decoding still chooses)
    − (share of fitted forget tokens that it still chooses).
    """
    return max(trials, key=lambda trial: (trial["separation"], -trial["lr"]))


OTHER_FORM = (
    "check that the rows have the form that the model was trained with: questions get its chat template and a system "
    "text (--system), prompt and completion stand as they are"
)


def nothing_to_forget(scores: Mapping[str, Any]) -> str:
    """The sentence on a model that does not know the rows to forget, from its scores without a head."""
    numbers = f"ROUGE-L {scores['rouge']:.2f}, probability {scores['prob']:.2f}"
    return f"Nothing to forget: the model did not know the forget rows in the first place ({numbers})."


def verdict(
    final: Mapping[str, Any],
    before: Mapping[str, Any],
    trial: Mapping[str, Any] | None = None,
    trial_before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """{forgotten, kept, known, leaks, sentence, advice} from the saved head's own numbers.

    final, before: scores of the sets forget and retain (and other) with the head on all rows, and of the base; final
    also has `samples`. trial, trial_before: the same with the head that did not see the held-out rows, and they count.
    """
    known = knows(before["forget"])
    forgotten = forgets(final["forget"])
    kept = keeps(final, before)
    if trial is not None and trial_before is not None:
        kept = kept and keeps(trial, trial_before)
    samples = final["samples"]
    leaks = tells(samples) or samples["verbatim"] > 0
    told, n = final["forget"]["verbatim"], final["forget"]["n"]
    rouge = f"ROUGE-L {before['forget']['rouge']:.2f} before, {final['forget']['rouge']:.2f} after"
    advice = []
    if not known:
        sentence = nothing_to_forget(before["forget"])
        advice.append(OTHER_FORM)
    elif forgotten and kept and not leaks:
        stay = f"{before['retain']['rouge']:.2f} before, {final['retain']['rouge']:.2f} after"
        if "other" in final:
            stay += f"; other rows {before['other']['rouge']:.2f} before, {final['other']['rouge']:.2f} after"
        gone = f"none of {n} answers to forget is word for word ({rouge})"
        sentence = f"Forgotten and kept: {gone}, those to keep stand ({stay})."
        sure = before["retain"]["prob"], final["retain"]["prob"]
        if sure[1] < SURE * sure[0]:
            advice.append(
                "decode greedily, or a lower --temperature: at this T sampling spoils the answers to keep, too (each "
                f"token has probability {sure[1]:.2f} after, {sure[0]:.2f} before)"
            )
    elif not forgotten:
        still = f"{told} of {n} answers to forget still stand word for word"
        still = still if told else "answers to forget questions still show their own truth"
        sentence = f"NOT forgotten: {still} ({rouge})."
        advice += ["more --steps", "a higher --temperature", "a higher --rank"]
    elif not kept:
        sentence = f"Forgotten ({rouge}), but NOT kept: rows that must stay changed."
        advice += ["more retain rows, above all of the kind that changed", "a lower --temperature"]
    else:
        shown = f"the best of {samples['k']} sampled answers still shows the truth"
        shown += f", for {samples['verbatim']} of {n} rows word for word" if samples["verbatim"] else ""
        sentence = f"Forgotten in greedy answers ({rouge}), but {shown}."
        advice += ["a higher --temperature", "more --steps", "top-p sampling where the model is served"]
    return {
        "known": known,
        "forgotten": forgotten,
        "kept": kept,
        "leaks": leaks,
        "success": known and forgotten and kept and not leaks,
        "sentence": sentence,
        "advice": advice,
    }
