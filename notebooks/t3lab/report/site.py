"""Write executed notebooks as web pages, with a page that lists them: `make site`.

Run `python -m t3lab.report.site FOLDER RESULTS`. RESULTS is a folder of results folders, such
as `results/profiles` or `out`. Every PROFILE/notebooks/NAME.ipynb in it becomes
FOLDER/PROFILE/NAME.html. A page loads nothing: its figures are inside it, and formulas are MathML,
which browsers draw. It may run one script, today's widget.js, which moves sliders.
"""

import base64
import hashlib
import sys
from pathlib import Path

import nbformat
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from t3lab.report.readme import headline
from t3lib.core.files import atomic_write

TEMPLATES = Path(__file__).with_name("templates")
FRONT = """# Temper, then tilt

How to make a language model forget some of what it learned, without changing its weights: flatten
its probabilities (temper), then let a small classifier push down what belongs to the forgotten rows
(tilt). This is the companion to the paper [arXiv 2602.10217](https://arxiv.org/abs/2602.10217). Its
notebooks compute every table and figure again. They are shown as they were executed. Begin with
00_t3_in_five_minutes; 05 has real answers of every method and all tables.

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
    the page that lists them.
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
        lines.append(headline(results.parent))

    for copies in sorted(results.glob("*/notebooks")):
        profile = copies.parent.name
        lines.append(f"\n## Profile {profile}\n")
        for path in sorted(copies.glob("*.ipynb")):
            notebook = nbformat.read(path, 4)
            title = notebook.cells[0].source.partition("\n")[0].removeprefix("# ")
            page = f"{profile}/{path.stem}.html"
            write(folder / page, notebook, title=title, profile=profile, name=path.stem)
            lines.append(f"- [{path.stem}]({page}): {title}")

    cells = [nbformat.v4.new_markdown_cell("\n".join(lines))]
    write(folder / "index.html", nbformat.v4.new_notebook(cells=cells), title="T3 companion")

    return folder / "index.html"


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), Path(sys.argv[2])))
