"""The site: static files whose links lead to files of it, with pictures, formulas and nothing from
elsewhere.
"""

import re
import shutil
from html.parser import HTMLParser

import nbformat
import pytest
from conftest import ROOT
from fabricate import MARKUP, fabricate, fabricate_data
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from t3lib.lab import results
from t3lib.lab.report import render, site, tables

FORMULAS = (
    "# Forms & shapes\nInline $\\hat p_r$ and `$HOME`, US$5 to US$6.\n\n$$\\frac{a_b}{c}*d*e_f$$"
)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkout")
    folder = root / "results" / "small"
    runs = [fabricate("Original", "forget10", None, 1), fabricate("T3", "forget10", 2.5, 1)]
    for run in runs:
        results.write_run(folder / "runs", run)
    results.write_data(folder, fabricate_data())
    render.write_table(folder / "tables", "tofu", tables.tofu(results.tidy(runs)))
    picture = new_output("display_data", {"image/png": "aGk=", "text/plain": "<Image>"})
    text = new_output("stream", text=MARKUP)
    cells = [new_markdown_cell(FORMULAS), new_code_cell("show()", outputs=[picture, text])]
    for place in (
        "results/small/notebooks/02_tofu_unlearning--T3--forget10",
        "notebooks/02_tofu_unlearning",
        "notebooks/00",
    ):
        path = root / f"{place}.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(new_notebook(cells=cells), path)
    plain = root / "notebooks" / "07.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("show()")]), plain)
    executed = root / "results" / "other" / "notebooks" / "07.ipynb"  # a profile without runs
    executed.parent.mkdir(parents=True)
    nbformat.write(new_notebook(cells=[new_code_cell("show()", outputs=[text])]), executed)
    assert site.build(root, root / "site") == root / "site" / "index.html"
    return root / "site"


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.loaded = [], []

    def handle_starttag(self, tag, attrs):
        self.links += [
            value for name, value in attrs if name == "href" and not value.startswith("#")
        ]
        self.loaded += [value for name, value in attrs if name in ("src", "data")]


def test_links_lead_to_files_of_the_site_and_nothing_is_loaded(built):
    pages = sorted(path.relative_to(built).as_posix() for path in built.rglob("*.html"))
    rendered = "small/notebooks/02_tofu_unlearning--T3--forget10.html"
    shown = ["notebooks/00.html", "notebooks/07.html"]
    assert pages == ["index.html", *shown, "small/index.html", rendered]
    for page in pages:
        reader = Reader()
        reader.feed((built / page).read_text(encoding="utf-8"))
        assert all(value.startswith("data:") for value in reader.loaded), page
        for link in set(reader.links) - {"https://arxiv.org/abs/2602.10217"}:
            assert (built / page).parent.joinpath(link).is_file(), f"{page}: {link}"
        assert "default-src 'none'" in (built / page).read_text(encoding="utf-8")
    links = re.findall(r'href="([^"]+)"', (built / "index.html").read_text(encoding="utf-8"))
    assert {"small/index.html", rendered, "notebooks/00.html"} <= set(links), (
        "the front page leads everywhere"
    )
    assert rendered.removeprefix("small/") in (built / "small" / "index.html").read_text(
        encoding="utf-8"
    )


def test_formulas_are_mathml_and_other_dollars_stay(built):
    html = (built / "notebooks" / "00.html").read_text(encoding="utf-8")
    assert html.count("<math") == 2 and "<mfrac>" in html and "FORMULA" not in html
    assert "<code>$HOME</code>" in html and "US$5 to US$6" in html
    assert "<title>Forms &amp; shapes</title>" in html


def test_outputs_are_shown_and_stay_text(built):
    html = (built / "notebooks" / "00.html").read_text(encoding="utf-8")
    assert "data:image/png;base64,aGk=" in html
    assert "<script" not in html and "&lt;script&gt;" in html


def test_an_executed_copy_is_shown_in_place_of_its_notebook(built):
    html = (built / "notebooks" / "07.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in html and "07, executed" in html and "profile" not in html


def test_the_first_notebook_shows_its_table_and_figure_without_a_kernel(tmp_path):
    """Its slider is dead on a page, so the page has the committed copy with a table and a figure,
    of the cells that the notebook has today.
    """
    (source,) = ROOT.glob("notebooks/00_t3_in_five_minutes.ipynb")
    (tmp_path / "notebooks").mkdir()
    shutil.copy(source, tmp_path / "notebooks")
    copies = tmp_path / "results" / "smoke" / "notebooks"
    shutil.copytree(ROOT / "results" / "smoke" / "notebooks", copies)
    site.build(tmp_path, tmp_path / "site")
    html = (tmp_path / "site" / "notebooks" / source.with_suffix(".html").name).read_text()
    assert re.search(r'<img[^>]*src="data:image', html), "the figure over T"
    assert '<table class="t3-table">' in html and "T3, T = 3" in html, "the answers at each T"
    assert site.DEAD in html and "<script" not in html, "the slider is a line of text"
    code = [
        [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
        for path in (source, copies / source.name)
    ]
    assert set(code[0]) <= set(code[1]), "the copy was executed from other cells"


def test_the_front_page_has_the_headline_of_every_profile(built):
    html = (built / "index.html").read_text(encoding="utf-8")
    table = html[html.index("<table") : html.index("</table>")]
    assert "n = 80 questions" in table and '<th scope="row">T3 at T = 2.5</th>' in table
    assert all(f"<em>{name}</em>" in html for name in ("Forget Quality", "D", "MU-ROUGE"))


def test_a_second_build_leaves_nothing_of_the_first(built, tmp_path):
    root = shutil.copytree(built.parent, tmp_path / "checkout")  # the other tests look at the first
    built = root / "site"
    (built / "old.html").write_text("gone?")
    shutil.rmtree(root / "results" / "small" / "notebooks")
    site.build(root, built)
    assert not (built / "old.html").exists() and not (built / "small" / "notebooks").exists()
    assert (built / "notebooks" / "02_tofu_unlearning.html").is_file(), (
        "a notebook without an executed copy is shown as it is"
    )
