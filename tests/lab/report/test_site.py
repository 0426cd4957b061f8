"""The site: executed notebooks as pages that load nothing and can be read anywhere."""

import base64
import hashlib
import re
import shutil

import nbformat
import pandas as pd
import pytest
from conftest import ROOT
from nbformat import v4

from t3lab.explore import widget
from t3lab.report import render, site

COPIES = ("cpu/notebooks/05_paper_tables", "smollm/notebooks/00_t3_in_five_minutes")
PAGES = ("index.html", "cpu/05_paper_tables.html", "smollm/00_t3_in_five_minutes.html")


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("results")
    for name in COPIES:
        (root / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / "results" / "profiles" / f"{name}.ipynb", root / f"{name}.ipynb")
    sliders = {"text/html": widget.page("language", pd.DataFrame({"answer": ["Berlin"]}))}
    outputs = [v4.new_output("display_data", sliders)]
    cells = [v4.new_markdown_cell("# Sliders"), v4.new_code_cell("panel", outputs=outputs)]
    made = v4.new_notebook(cells=cells)
    nbformat.write(made, root / "cpu" / "notebooks" / "sliders.ipynb")
    return site.build(root / "site", root).parent


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_nothing_and_its_links_lead_to_pages(built, page):
    html = (built / page).read_text(encoding="utf-8")
    # but the data and the one script of sliders, see below
    mine = re.escape(render.TEMPLATES.get_template("widget.js").render())
    data = r'<script type="application/json">.*?</script>'
    html = re.sub(rf"{data}|<script>{mine}</script>", "", html)
    assert not re.search(r"<(script|link|iframe|object|embed)\b", html)
    tags = "".join(re.findall(r"<[a-zA-Z][^>]*>", html))
    loaded = re.findall(r"""\s(?:src|srcset|data|poster|action)\s*=\s*["']?([^"'>\s]*)""", tags)
    assert all(value.startswith("data:image/") for value in loaded)
    assert not re.search(r"url\(|@import", html) and "default-src 'none'" in html
    links = re.findall(r"""\shref\s*=\s*["']?([^"'>\s]*)""", tags)
    away = [link for link in links if not link.startswith(("#", "https://arxiv.org/"))]
    assert away and all((built / page).parent.joinpath(link).is_file() for link in away)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_read_on_a_phone_and_in_the_dark(built, page):
    html = (built / page).read_text(encoding="utf-8")
    assert '<meta content="width=device-width, initial-scale=1" name="viewport"/>' in html
    assert "@media (prefers-color-scheme: dark)" in html and "color-scheme: light dark" in html


def test_the_page_of_tables_has_figures_and_then_counts_and_real_answers(built):
    html = (built / PAGES[1]).read_text(encoding="utf-8")
    counts, answers = html.index("leaks, rows to forget"), html.index('class="t3-answers"')
    assert html.index("Table 1.") < counts < answers
    assert re.search(r'<img[^>]*src="data:image/png', html) and '<table class="t3-table">' in html
    assert "80 of 80" in html[counts:] and '<span class="bad">leaks</span>' in html[answers:]


def test_the_list_has_every_notebook_with_its_title(built):
    html = (built / "index.html").read_text(encoding="utf-8")
    for page, title in ((PAGES[1], "The paper's tables"), (PAGES[2], "T3 in five minutes")):
        assert f'<a href="{page}">' in html and title in html


def test_the_list_begins_with_00_and_shows_a_card_for_a_notebook_with_a_figure(built):
    html = (built / "index.html").read_text(encoding="utf-8")
    assert f'Begin with <a href="{PAGES[2]}">' in html
    cards = re.findall(
        r'<a class="card" href="([^"]+)"><img[^>]*src="data:image/(png|svg.xml);base64,', html
    )
    assert cards == [(PAGES[2], "svg+xml"), (PAGES[1], "png")], "in order, without the sliders"


def test_a_page_leads_to_the_one_before_it_and_to_the_next(built):
    names = [PAGES[1], "cpu/sliders.html", PAGES[2]]
    for number, name in enumerate(names):
        html = (built / name).read_text(encoding="utf-8")
        found = dict(re.findall(r'<a href="\.\./([^"]+)">(previous|next)</a>', html))
        beside = {"previous": names[number - 1 : number], "next": names[number + 1 : number + 2]}
        assert {way: page for page, way in found.items()} == {
            way: page for way, pages in beside.items() for page in pages
        }


def test_sliders_are_the_only_script_that_may_run(built):
    """A browser runs an inline script whose digest is in the page's policy, and no other."""
    html = (built / "cpu/sliders.html").read_text(encoding="utf-8")
    [script] = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert re.findall('script-src ([^;"]*)"', html) == [f"'sha256-{digest}'"]
    assert "Berlin" in html


def test_formulas_are_mathml_and_code_stays():
    html = site.markdown("Inline $\\hat p_r$ and `$HOME$`.\n\n$$\\frac{a_b}{c}*d*e_f$$")
    assert html.count("<math") == 2 and "<mfrac>" in html and "<em>" not in html
    assert "<code>$HOME$</code>" in html
