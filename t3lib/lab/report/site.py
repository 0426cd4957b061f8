"""Build the site: the results pages and rendered notebooks of all profiles as static files, with a
front page.

`python -m t3lib.lab.report.site FOLDER` builds it from committed files, in seconds and without a
network. Its pages load nothing from elsewhere. nbconvert turns notebooks into HTML, and their
formulas become MathML, which browsers draw.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
from latex2mathml.converter import convert
from markupsafe import Markup

from t3lib.core.files import atomic_write, project_root
from t3lib.lab import results
from t3lib.lab.report import page
from t3lib.lab.report.render import TEMPLATES

MATH = re.compile(
    r"\$\$(?P<block>.+?)\$\$|(?<![\\$\w])\$(?P<inline>[^\s$](?:[^$\n]*[^\s$])?)\$(?!\d)", re.S
)
WIDGET = "application/vnd.jupyter.widget-view+json"  # type of an output that needs a kernel
DEAD = "(Sliders are here when the notebook runs.)"  # what a page shows in its place
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.S)


def build(root: Path, folder: Path) -> Path:
    """Write the site of the checkout `root` into `folder`, and return its front page. An existing
    folder is deleted first.
    """
    if folder.exists():
        shutil.rmtree(folder)
    profiles = [
        path.parent
        for path in sorted((root / "results").glob("*/runs"))
        if any(path.glob("*.json"))
    ]
    entries = [_profile(path, folder / path.name) for path in profiles if path.name != "scratch"]
    shown = {
        Path(copy["file"]).stem.partition("--")[0]
        for entry in entries
        for copy in entry["notebooks"]
    }
    unexecuted = [
        path for path in sorted((root / "notebooks").glob("*.ipynb")) if path.stem not in shown
    ]
    copies = {path.stem: path for path in sorted(root.glob("results/*/notebooks/*.ipynb"))}
    for path in unexecuted:
        _notebook(copies.get(path.stem, path), folder / "notebooks" / f"{path.stem}.html")
    figure = next(iter((root / "results").glob("cpu/figures/temperature.svg")), None)
    front = TEMPLATES.get_template("site.html").render(
        title="T3 companion",
        profiles=entries,
        unexecuted=[path.stem for path in unexecuted],
        figure=page.embedded(figure) if figure else None,
    )
    with atomic_write(folder / "index.html") as handle:
        handle.write(front)
    return folder / "index.html"


def _profile(source: Path, folder: Path) -> dict[str, Any]:
    """Write one profile's page with its tables, figures and notebooks, and return what the front
    page says about it.
    """
    for part in ("tables", "figures"):
        if (source / part).is_dir():
            shutil.copytree(source / part, folder / part)
    copies = sorted((source / "notebooks").glob("*.ipynb"))
    for path in copies:
        _notebook(path, folder / "notebooks" / f"{path.stem}.html", source.name)
    page.write(source, to=folder)
    frame = results.tidy(results.read_runs(source / "runs", corrupt=[]))
    return {
        "name": source.name,
        "headline": page.headlines(frame),
        "notebooks": [
            {"file": f"{source.name}/notebooks/{path.stem}.html", "name": path.stem}
            for path in copies
        ],
    }


def _notebook(source: Path, target: Path, profile: str = "") -> None:
    """Write one notebook as a page. Widgets become a line of text, because they need a kernel.

    profile: the profile whose results page it links to, or "".
    """
    # imported here, because it takes a second and only the site needs it
    from nbconvert import HTMLExporter

    notebook = nbformat.read(source, 4)
    notebook.metadata.pop("widgets", None)  # their state, as a script
    formulas: list[str] = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if WIDGET in output.get("data", {}):
                output.data = {"text/plain": DEAD}
        if cell.cell_type == "markdown":
            parts = CODE.split(cell.source)  # every second part is code and has no formulas
            parts[::2] = [
                MATH.sub(lambda match: _placeholder(match, formulas), part) for part in parts[::2]
            ]
            cell.source = "".join(parts)
    body, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    body = re.sub(r"FORMULA(\d+)X", lambda match: formulas[int(match[1])], body)
    title = next(
        (
            line[2:]
            for cell in notebook.cells
            for line in cell.source.splitlines()
            if line[:2] == "# "
        ),
        "",
    )
    html = TEMPLATES.get_template("notebook.html").render(
        title=title or source.stem,
        name=source.stem,
        body=Markup(body),
        profile=profile,
        executed=any(cell.get("outputs") for cell in notebook.cells),
    )
    with atomic_write(target) as handle:
        handle.write(html)


def _placeholder(match: re.Match[str], formulas: list[str]) -> str:
    """Append the formula as MathML to `formulas`, and return a word for its place that Markdown
    leaves alone.
    """
    formulas.append(
        convert(match["block"] or match["inline"], display="block" if match["block"] else "inline")
    )
    return f"FORMULA{len(formulas) - 1}X"


if __name__ == "__main__":
    print(build(project_root(), Path(sys.argv[1] if len(sys.argv) > 1 else "build/site")))
