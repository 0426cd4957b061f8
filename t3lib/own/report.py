"""The report on a person's own model, beside a head: report.json, report.html, and in
texts.jsonl.gz all texts about rows to forget that were judged.

The commands `t3 unlearn` and `t3 evaluate` call `save_report`. The functions `unlearn` and `assess`
return a `Report` and write no file. The page loads nothing from elsewhere.
"""

import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from t3lib.classifier import artefact
from t3lib.core.errors import UserError
from t3lib.core.files import atomic_write, read_json, write_json
from t3lib.core.settings import FitSettings
from t3lib.own.answers import Text, way_of
from t3lib.own.kept import STAY
from t3lib.own.leak import LEVEL
from t3lib.own.truths import word_set
from t3lib.own.verdict import NAMES, UNTESTED


class Report(dict[str, Any]):
    """The content of report.json as a mapping. `print(report)` shows the verdict.

    texts: {"base", "model": the texts that were judged}; given: as of `answers.Inquiry`. They are
    not in report.json.
    """

    texts: Mapping[str, Sequence[Text]] = {}
    given: Mapping[tuple[str, int], Iterable[str]] = {}

    def __str__(self) -> str:
        return "\n".join(self["verdict"]["lines"])


def report_folder(head: str | Path) -> Path:
    """Return the folder of the report on a head, which lies beside the head's own folder.

    It holds the rows to forget, and whoever shares the head's folder should not share them.
    """
    return Path(f"{os.path.abspath(head)}-report")


def report_of(folder: str | Path, head: Any) -> Report | None:
    """Read the report beside a head's folder; None if there is none about this head alone.

    head: the `T3Head` in the folder. A report about other weights, or another T, w, gate or tail,
    is not about it. UserError for a file that is no report.
    """
    if not (path := report_folder(folder) / "report.json").is_file():
        return None
    content = read_json(path)
    if not isinstance(content, dict) or "verdict" not in content:
        raise UserError(f"{path}: not the report of t3 unlearn or t3 evaluate")
    return Report(content) if content.get("judged") == judged_as([head], head) else None


def judged_as(heads: Iterable[Any], sampler: Any) -> dict[str, Any]:
    """Describe for a report what was judged: {"T", "gate", "heads": [{"w", "weights"}]}, and "tail"
    unless it is 0.

    sampler: the head or the T3ForCausalLM whose T, gate and tail were used. weights: a digest of
    all that decides what a `T3Head` changes: its field `untrained`, its prior (unless it is the
    default), its matrices A and B, and for each token whether it was taught (`taught`) and whether
    the id has a token (`has_token`).
    """
    judged = []
    for head in heads:
        digest = hashlib.sha256(head.untrained.encode())
        if head.prior != FitSettings.prior:
            digest.update(f"{head.prior} {head.gamma} {head.mu}".encode())
        for name in artefact.SHAPES:
            if (tensor := getattr(head, name)) is not None:
                digest.update(tensor.detach().cpu().double().contiguous().numpy().tobytes())
        judged.append({"w": head.w, "weights": digest.hexdigest()[:16]})
    tail = {"tail": sampler.tail} if sampler.tail else {}
    return {"T": sampler.temperature, "gate": sampler.gate, "heads": judged} | tail


def save_report(report: Mapping[str, Any], folder: str | Path) -> Path:
    """Write the files of a report into a folder, and return the path of the page.

    texts.jsonl.gz has one line {"model", "row", "kind", "way", "text", "given"} for each text, so
    that anybody can count again what the report says of a row. "given" are words of the truth that
    the prompt gave: they do not count. A number that the prompt begins stands whole in its text.
    """
    folder, text = Path(folder), report_page(report)
    write_json(folder / "report.json", report)
    given = getattr(report, "given", {})
    lines = [
        json.dumps(
            {"model": model, **each._asdict()}
            | {"given": sorted(given.get((way_of(each), each.row), ()))},
            ensure_ascii=False,
        )
        for model, some in getattr(report, "texts", {}).items()
        for each in some
    ]
    with atomic_write(folder / "texts.jsonl.gz", "wb") as handle:
        handle.write(gzip.compress("\n".join(lines).encode(), mtime=0))
    with atomic_write(folder / "report.html") as handle:
        handle.write(text)
    return folder / "report.html"


def report_page(report: Mapping[str, Any]) -> str:
    """Write the report as one HTML file that loads nothing from elsewhere. Its only script sorts
    tables.
    """
    pages = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return pages.get_template("report.html").render(
        report=report,
        changed_rows=[
            {"set": NAMES[name] + how, **row}
            for name in NAMES
            if name in report
            for key, how in (("changed", ""), ("changed_sampled", ", sampled"))
            for row in report[name][key]
        ],
        names=NAMES,
        untested=UNTESTED,
        level=LEVEL,
        marked=marked,
        stay=STAY,
    )


def marked(text: str, secret: str) -> Markup:
    """Return a text as HTML in which the words of a secret are marked.

    secret: words with spaces between them.
    """
    wanted = frozenset(secret.split())
    parts = (
        Markup("<mark>{}</mark>").format(part) if word_set(part) & wanted else escape(part)
        for part in re.split(r"(\s+)", text)
    )
    return Markup("").join(parts)
