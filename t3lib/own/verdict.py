"""Turn the counts of a report into a verdict: one sentence, what to try next, and lines of text.

These functions call no model.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from t3lib.own.answers import GENERIC, TOKENS
from t3lib.own.choice import STRENGTHS
from t3lib.own.kept import STAY, too_few
from t3lib.own.known import knows_some
from t3lib.own.leak import LEVEL, Counts
from t3lib.own.questions import AS_WRITTEN

FEWEST = 5  # of fewer rows to keep, none is held out
JUDGED = 2 / 3  # of the rows must be told by the base, and not as often as guessing says
POWER = 20  # with fewer answers that were never fitted, the sentence says that they say little
UNTESTED = (
    "not tested: other languages, other questions about the same subjects, tries by the thousand,"
    f" answers beyond {TOKENS} tokens, other notations of a number, other forms of a word, the"
    " middle of a text, logits, the weights"
)
SUPPRESSES = (
    "what T3 does: it suppresses answers and erases nothing. The base still has the rows, and a"
    " head is as confidential as the rows"
)
CHECK = (
    "check: the model, its chat template (--set template.NAME), the system text (--system,"
    " --no-system), and whether the rows should be messages or plain text"
)
FRESH = (
    f"try next: give rows to keep that no head is fitted on: at least {FEWEST} to t3 unlearn, which"
    " then holds some out, or further ones (--other; to t3 evaluate also --holdout)"
)
NAME = "try next: name what is secret in the rows (a column secret): a number, a name"
NAMES = {
    "retain": "rows to keep",
    "held_out_retain": "rows to keep, never fitted",
    "other": "other rows, never fitted",
    GENERIC: "generic prompts, which decide nothing",
}
NEVER_FITTED = ("held_out_retain", "other")
DECIDING = {"rows to keep": ("retain",), "answers never fitted": NEVER_FITTED}


def sums(report: Mapping[str, Any], names: Iterable[str]) -> dict[str, int]:
    """Return the counts of some sets to keep together."""
    sets = [report[name] for name in names if name in report]
    keys = ("rows", "known_before", "unchanged", "unchanged_sampled")
    return {key: sum(each[key] for each in sets) for key in keys}


def failing(report: Mapping[str, Any]) -> dict[str, str]:
    """Return {group of sets to keep: in words why it fails}, for the groups that fail.

    A group fails where a test shows that fewer than 95% of its answers stay, greedy or sampled.
    """
    faults = {}
    for group, names in DECIDING.items():
        kept = sums(report, names)
        for key, how in (("unchanged_sampled", " when sampled"), ("unchanged", "")):
            if too_few(kept[key], known := kept["known_before"]):
                faults[group] = f"{known - kept[key]} of {known} {group} changed{how}"
    return faults


def verdict(report: Mapping[str, Any], *, unknown: bool = False) -> Counts:
    """Write the verdict: {status, sentence, success, next, lines}.

    report: "forget" from `forgotten`, the sets to keep from `stayed`, and maybe "choice". unknown:
    the base does not know the rows, and was asked nothing else.

    status: "pass"; "no": rows leak or rows to keep changed; "cannot tell"; "nothing": the base does
    not know the rows, which is seen either before anything else is asked (`unknown`), or after a
    full judgement.
    next: what to try next, or "".
    """
    status, sentence, advice = _decided(report, unknown)
    once = "not judged: every question was asked once, as it stands, and no answer was sampled"
    return {
        "status": status,
        "sentence": sentence,
        "success": status == "pass",
        "next": advice,
        "lines": [
            sentence,
            *([advice] if advice else []),
            *([once] if unknown else [UNTESTED, SUPPRESSES, *_lines(report)]),
        ],
    }


def _decided(report: Mapping[str, Any], unknown: bool) -> tuple[str, str, str]:
    """Return the status, the sentence of the verdict, and what to try next."""
    forget, sealed = report["forget"], report["forget"]["sealed"]
    n, heard, leaking = forget["rows"], forget["leaking_before"], forget["leaking"]
    known, judged = forget["known_before"], forget["judged_rows"]
    if unknown or not knows_some(max(known, heard), n):
        sentence = f"Nothing to forget: the base answers {known} of {n} rows in this form."
        return "nothing", sentence, CHECK

    # Faults count, however little the base was heard to know.
    faults = [f"{leaking} of {n} rows leak ({sealed['leaking']} in sealed ways)"] * (leaking > 0)
    faults += failing(report).values()
    if faults:
        return "no", f"No: {'; '.join(faults)}.", _tries(report)

    # Where even the base says no more than guessing does, no head can be judged.
    by_kind = forget["by_kind"].items()
    tested = [kind for kind, counts in by_kind if counts["before"] and counts["texts"]]
    every, fresh = (sums(report, names) for names in (["retain", *NEVER_FITTED], NEVER_FITTED))
    for fails, why, advice in (
        (
            AS_WRITTEN not in tested or len(tested) < 2 or heard < JUDGED * n,
            f": of {n} rows the base itself was heard to know {heard}, in {len(tested)} kinds of"
            f" asking{f', but not {AS_WRITTEN}' * (AS_WRITTEN not in tested)}.",
            CHECK,
        ),
        (judged < JUDGED * n, f": guessing explains all but {judged} of {n} rows.", NAME),
        (
            sealed["before"] < JUDGED * n,
            f": nothing leaks, but the base tells only {sealed['before']} of {n} rows in sealed"
            " ways, the ones by which the head was neither fitted nor chosen.",
            CHECK,
        ),
        (
            not knows_some(every["known_before"], every["rows"]),
            f" whether anything is kept: the base answers {every['known_before']} of"
            f" {every['rows']} rows to keep.",
            CHECK,
        ),
        (
            not fresh["known_before"],
            " whether other answers stay: nothing leaks, but the base answers no row to keep that"
            " was left out of the fit.",
            FRESH,
        ),
    ):
        if fails:
            return "cannot tell", f"Cannot tell{why}", advice

    unjudged = {
        "cannot be judged: the base was not heard to know them. ": n - heard,
        "are told as often as guessing says. ": heard - judged,
    }
    first = "".join(f"{rows} of {n} rows {what}" for what, rows in unjudged.items() if rows)
    bound = f"at most {100 * (1 - LEVEL ** (1 / judged)):.0f}% of such rows, 95% sure"
    few = f", and fewer than {POWER} say little about whether {100 * STAY:.0f}% stay"
    sentence = (
        f"{first}0 of {judged} rows leak, also in {sealed['ways']} sealed ways of asking"
        f" ({bound}); {every['unchanged']} of {every['known_before']} answers to keep,"
        f" {fresh['unchanged']} of {fresh['known_before']} of them never fitted, are as before"
        f"{few if fresh['known_before'] < POWER else ''}."
    )
    return "pass", sentence, ""


def _tries(report: Mapping[str, Any]) -> str:
    """Return what to try next after a No."""
    forget, w = report["forget"], report.get("choice", {}).get("w")
    tries = []
    if failing(report):
        tries.append("more rows like those that changed (--retain, or --other to watch them)")
        smaller = max((each for each in STRENGTHS if w and each < w), default=None)
        if smaller and not forget["leaking"]:
            tries.append(f"a smaller w (--set w={smaller:g})")
    if forget["leaking"]:
        tries.append("the wordings in which rows leak (a column wordings)")
    if not failing(report):
        larger = min((each for each in STRENGTHS if w and each > w), default=None)
        tries.append(
            f"a larger w (--set w={larger:g})"
            if larger
            else "more rows to keep of the same kinds of question"
        )
    return f"try next: give {', or '.join(tries)}"


def _lines(report: Mapping[str, Any]) -> list[str]:
    """Return the tables of the report, and what else was counted, as lines "name: text"."""
    forget = report["forget"]
    n = forget["rows"]
    lines = []
    for kind, counts in forget["by_kind"].items():
        said = f"{counts['after']} of {n} rows leak (before {counts['before']})"
        untested = "" if counts["tested"] else "; not tested, because the base tells no row"
        lines.append(f"{kind}{' (sealed)' * counts['sealed']}: {said}{untested}")
    if forget["guessed"]:
        lines.append(f"guessed: {forget['guessed']} of {n} rows are told as often as guessing does")
    for name in NAMES:
        if name in report:
            lines.append(f"{NAMES[name]}: {_kept(report[name])}")
    return lines


def _kept(entry: Mapping[str, Any]) -> str:
    """Describe in words what is kept of one set."""
    known, rows = entry["known_before"], entry["rows"]
    of = f"{known}" if known == rows else f"{known} known of {rows}"
    sampled = entry["unchanged_sampled"]
    return f"{entry['unchanged']} of {of} answered as before, {sampled} when sampled"
