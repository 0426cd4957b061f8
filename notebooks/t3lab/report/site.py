"""Write executed notebooks as web pages, with a page that lists them: `make site`.

Run `python -m t3lab.report.site FOLDER RESULTS`. RESULTS is a folder of results folders, such
as `results/profiles` or `out`. Every PROFILE/notebooks/NAME.ipynb in it becomes
FOLDER/PROFILE/NAME.html. A page loads nothing: its figures are inside it, and formulas are MathML,
which browsers draw. It may run one script, today's widget.js, which moves sliders.
"""

import base64
import hashlib
import io
import sys
from html import escape
from pathlib import Path

import nbformat
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from PIL import Image

from t3lab.report.readme import headline
from t3lib.core.files import atomic_write

TEMPLATES = Path(__file__).with_name("templates")
FRONT = """# Temper, then tilt

How to make a language model forget some of what it learned, without changing its weights: flatten
its probabilities (temper), then let a small classifier push down what belongs to the forgotten rows
(tilt). This is the companion to the paper [arXiv 2602.10217](https://arxiv.org/abs/2602.10217). Its
notebooks compute every table and figure again. They are shown as they were executed.

A row is a question with its answer. *D* is the distance between what the model and one retrained
without the rows to forget do with these rows (0 is best). *Forget Quality* is the p-value of D:
above 0.05 the test cannot tell the two apart. *row r* is their correlation row by row. *words* and
*score* say how much is kept of the rows to keep and of unrelated ones (1 is best).
"""


class WithFormulas(IPythonRenderer):
    """Markdown as HTML, with formulas as MathML."""

    def table(self, text: str) -> str:
        """Write a table that can be moved sideways where it is wider than the page."""
        return f'<div class="wide"><table>{text}</table></div>'

    def block_math(self, body: str) -> str:
        """Write a formula on lines of its own."""
        return convert(body, display="block")

    def inline_math(self, body: str) -> str:
        """Write a formula within a line."""
        return convert(body)


def markdown(source: str) -> str:
    """Write the HTML of a Markdown text."""
    return MarkdownWithMath(renderer=WithFormulas(escape=False)).render(source)


def build(folder: Path, results: Path) -> Path:
    """Write the pages of all executed notebooks in `results` into a folder, and return the path of
    the page that lists them. Each page leads to the one before it and to the next.
    """
    exporter = HTMLExporter(
        template_name="site",
        extra_template_basedirs=[str(TEMPLATES)],
        filters={"markdown2html": markdown},
    )

    digest = hashlib.sha256((TEMPLATES / "widget.js").read_bytes()).digest()
    script = f"'sha256-{base64.b64encode(digest).decode()}'"

    def write(path: Path, notebook: nbformat.NotebookNode, **resources: str) -> None:
        with atomic_write(path) as handle:
            handle.write(exporter.from_notebook_node(notebook, {"script": script, **resources})[0])

    lines = [FRONT]
    if (results.parent / "paper").is_dir():  # the committed results
        svg = base64.b64encode((results.parent / "pages" / "headline.svg").read_bytes()).decode()
        alt = "T3, its best rivals and retrained models at three scales"
        lines += [f"![{alt}](data:image/svg+xml;base64,{svg})", ""]

    paths = sorted(results.glob("*/notebooks/*.ipynb"))
    pages = [f"{path.parent.parent.name}/{path.stem}.html" for path in paths]
    cards, listed = dict[str, str](), dict[str, list[str]]()
    for number, (path, page) in enumerate(zip(paths, pages)):
        notebook, profile = nbformat.read(path, 4), path.parent.parent.name
        title = notebook.cells[0].source.partition("\n")[0].removeprefix("# ")
        beside = {
            way: f"../{pages[other]}"
            for way, other in (("previous", number - 1), ("next", number + 1))
            if 0 <= other < len(pages)
        }
        write(folder / page, notebook, title=title, profile=profile, name=path.stem, **beside)

        # A card for each notebook leads to its first copy with a figure.
        of = path.stem.partition("--")[0]
        if of not in cards and (picture := thumbnail(notebook)):
            image = f'<img alt="" src="data:image/{picture}"/>'
            cards[of] = f'<a class="card" href="{page}">{image}{escape(title)}</a>'
        line = f'<li><a href="{page}">{escape(title)}</a> ({escape(path.stem)})</li>'
        listed.setdefault(profile, []).append(line)

    if begin := next((page for page in pages if page.endswith("00_t3_in_five_minutes.html")), None):
        lines.append(f"Begin with [T3 in five minutes]({begin}).\n")
    in_order = "".join(cards[name] for name in sorted(cards))
    lines.append(f'<div class="cards">{in_order}</div>\n')
    for profile, items in listed.items():
        few = f"profile {escape(profile)}: {len(items)} executed"
        lines.append(f"<details><summary>{few}</summary><ul>{''.join(items)}</ul></details>\n")
    if (results.parent / "paper").is_dir():
        lines += ["## The 10% split at three scales\n", headline(results.parent)]

    cells = [nbformat.v4.new_markdown_cell("\n".join(lines))]
    write(folder / "index.html", nbformat.v4.new_notebook(cells=cells), title="T3 companion")

    return folder / "index.html"


def thumbnail(notebook: nbformat.NotebookNode) -> str:
    """Return the first figure of an executed notebook, as a small PNG or as the SVG that it is: the
    end of a data URL, "png;base64,…" or "svg+xml;base64,…". "" if there is none.
    """
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if png := data.get("image/png"):
                image, small = Image.open(io.BytesIO(base64.b64decode(png))), io.BytesIO()
                image.thumbnail((420, 260))
                image.save(small, "PNG")
                return f"png;base64,{base64.b64encode(small.getvalue()).decode()}"
            if svg := data.get("image/svg+xml"):
                return f"svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return ""


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), Path(sys.argv[2])))
