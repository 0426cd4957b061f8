"""The page: one file, nothing loaded, nothing executed that a model wrote, complete answers."""

import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from fabricate import MARKUP, ROWS, fabricate, fabricate_all, fabricate_data
from matplotlib.figure import Figure

from t3lib.baselines.losses import METHODS
from t3lib.lab import results
from t3lib.lab.report import page, render, tables
from t3lib.own.audit import secrets


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    runs = fabricate_all(seeds=(1, 2))
    for run in runs:
        results.write_run(folder / "runs", run)
    results.write_run(
        folder / "runs",
        fabricate("NPO", "forget10", None, 3, failed=True) | {"error": f"oh {MARKUP}"},
    )
    data = fabricate_data()
    data["forget10"][0]["question"] = f"Who is {MARKUP}?"
    results.write_data(folder, data)
    render.write_table(folder / "tables", "tofu", tables.tofu(results.tidy(runs)))
    dials = pd.DataFrame({"split": ["forget10"], "T": [2.0], "w": [1.0], "fq": [0.5]})
    render.write_table(folder / "tables", "dials--forget10", dials)
    drawing = Figure(figsize=(7, 2), label="Bounds & errors.")
    drawing.add_subplot()
    render.save_figure(folder / "figures" / "bounds.svg", drawing)
    (folder / "tables" / "claims.csv").write_text(
        f'id,where,claim,printed,verdict,numbers,note\nC1,Table 1,"{MARKUP}",yes,holds,,\n'
    )
    return folder


@pytest.fixture(scope="session")
def html(folder):
    return page.write(folder, title="A & <B>").read_text(encoding="utf-8")


PAPER = "https://arxiv.org/abs/2602.10217"


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.links += [value for name, value in attrs if name in ("src", "href", "action", "data")]


def test_self_contained(html):
    reader = Reader()
    reader.feed(html)
    loaded = [
        value
        for _, attributes in reader.tags
        for key, value in attributes.items()
        if key in ("src", "data")
    ]
    assert loaded and all(link.startswith("data:") for link in loaded), "nothing is fetched"
    away = [link for link in reader.links if ":" in link and not link.startswith("data:")]
    assert away == [PAPER], "no other link leaves the folder"
    assert {tag for tag, _ in reader.tags}.isdisjoint({"link", "iframe", "object", "embed", "b"})
    assert "@import" not in html and "fetch(" not in html and "innerHTML" not in html
    assert "default-src 'none'" in html


def test_nothing_written_by_a_model_becomes_markup(html):
    assert html.count("<script") == 3 and "alert('x')</script>" not in html
    assert "<title>A &amp; &lt;B&gt;</title>" in html
    assert html.count("&lt;script&gt;alert") == 2, "the claim and the failed run's error"


def test_sections(html):
    for word in (
        "What came out",
        "Every method",
        "Claims",
        "Answers side by side",
        "Provenance",
        "image/svg+xml;base64",
    ):
        assert word in html
    assert "NPO--forget10--Tnone--seed3: oh" in html and "World facts" in html
    [every] = [part for part in page.STORY if part.title == "Every method"]
    assert f"<p>{every.words}</p>" in html and all(part.words for part in page.STORY), (
        "each part says what its words mean"
    )
    assert '"splits":{"forget05":"5%"' in html, "the name that figures and tables give it"
    assert "were tried only at T = 1. 10% split.</summary>" in html


def embedded(html):
    return json.loads(re.search(r'id="answers">(.*?)</script>', html, re.S)[1])


def test_answers_are_complete(html):
    data = embedded(html)
    assert list(data) == ["forget05", "forget10"]
    part = data["forget10"]["forget"]
    assert len(part["q"]) == ROWS["forget10"] and part["q"][0] == f"Who is {MARKUP}?"
    of_t3 = [name for name in part["by"] if name.startswith("T3")]
    assert list(part["by"]) == [*METHODS[:-1], *of_t3] and of_t3[0] == "T3, T = 1"
    assert of_t3 == sorted(of_t3, key=lambda name: float(name.split()[-1])), "what the slider moves"
    labels = json.loads(re.search(r'id="labels">(.*?)</script>', html, re.DOTALL)[1])
    assert f"T3, T = {labels['tuned']['forget10']:g}" in of_t3, "where the slider begins"
    truth = fabricate("NPO", "forget10", None, 1)["records"]["forget"]
    assert part["by"]["NPO"]["g"] == [row["generation"] for row in truth]
    assert part["by"]["NPO"]["r"] == pytest.approx([row["rouge"] for row in truth], abs=5.1e-4)
    assert set(data["forget05"]) == {"forget", "retain", "ra", "wf"}


def judged(truth, answer, question="Who wrote it?"):
    """The words of a true answer that `page.answers` compares, and its verdict on an answer."""
    run = {"method": "NPO", "split": "forget10", "T": None, "w": None, "status": "ok"}
    run["records"] = {"forget": [{"generation": answer, "rouge": 0.5}]}
    texts = {"forget10": [{"question": question, "answer": truth}]}
    part = page.answers([run], texts)["forget10"]["forget"]
    by = part["by"]["NPO"]
    return part["s"][0], by["n"][0], by["h"][0]


@pytest.mark.parametrize(
    ("answer", "number", "leaks"),
    [
        ("In 1944 Veronne Ostsky drew maps of Everstad.", 5, True),
        ("Ostsky, Veronne: Everstad, maps!", 4, True),  # 80%, in another order
        ("Veronne Ostsky drew maps.", 3, False),
        ("It was somebody else.", 0, False),
    ],
)
def test_an_answer_is_labelled_by_the_distinctive_words_of_the_truth(answer, number, leaks):
    truth = "It was Veronne Ostsky in 1944, for maps of Everstad."
    wanted = ["1944", "everstad", "maps", "ostsky", "veronne"]
    assert judged(truth, answer) == (wanted, number, leaks)


def test_a_truth_without_distinctive_words_is_not_judged():
    assert judged("Two.", "Two.") == ([], 0, False)


def test_the_page_says_by_what_an_answer_is_labelled(html):
    """Counts stand before the answers, and rows without distinctive words are not counted."""
    start = html.index('id="answers-side-by-side"')
    section = html[start : html.index("</section>", start)]
    assert "distinctive words" in section and "limit" not in section
    assert section.index('id="counts"') < section.index('class="filters"') < section.index('"list"')
    script = html.split("<script>")[1]
    for label in ("'leaks'", "'forgotten'", "'kept'", "'lost'", "'not judged'"):
        assert label in script
    assert "part.s.filter(words => words.length).length" in script
    assert "': leaks ' + told('forget', name) + ', keeps ' + told('retain', name)" in script


def test_the_page_and_the_audit_have_one_definition_of_a_leak(html):
    """Both count the greedy answers that `secrets.holds` finds to contain a row's secret."""
    part = embedded(html)["forget10"]["retain"]
    pairs = list(zip(part["q"], part["a"]))
    secret = secrets.secrets(pairs)
    assert [frozenset(words) for words in part["s"]] == secret
    for model, by in part["by"].items():
        assert by["h"] == [secrets.holds(own, text) for own, text in zip(secret, by["g"])], model


def test_columns_that_fit_on_no_screen_are_left_to_the_file(folder, html):
    _, _, section = html.partition('aria-label="Table 1.')
    table, _, link = section.partition("</table>")
    columns = set(pd.read_csv(folder / "tables" / "tofu.csv"))
    assert {"retain_prob", "retain_tr", "retain_rouge", "forget_rouge"} <= columns
    assert "Prob." not in table and "TR+" not in table and "ROUGE" in table
    left = sum(name.endswith(("_prob", "_tr")) or name == "forget_truth_ratio" for name in columns)
    assert left == 8 and f"has {left} more columns" in link[:200]


def test_rows_of_another_data_set_are_left_out():
    run = fabricate("NPO", "forget10", None, 1)
    texts = fabricate_data()
    texts["forget10"].pop()
    assert set(page.answers([run], texts)["forget10"]) == {"retain", "ra", "wf"}


def test_an_empty_folder_makes_a_page(tmp_path):
    text = page.write(tmp_path).read_text()
    assert "0 runs" in text and "Answers side by side" not in text and "<h2" not in text


def test_a_damaged_run_is_named(tmp_path):
    results.write_run(tmp_path / "runs", fabricate("NPO", "forget10", None, 1)).write_text("{")
    assert "NPO--forget10--Tnone--seed1.json" in page.write(tmp_path).read_text()


def test_the_story_is_in_its_order_and_has_its_landmarks(html):
    reader = Reader()
    reader.feed(html)
    ids = [attributes["id"] for tag, attributes in reader.tags if tag == "h2"]
    parts = ["temper", "answers-side-by-side", "table-1", "theory", "claims"]
    assert ids == ["headline", *parts, "provenance"]
    assert [tag for tag, _ in reader.tags].count(
        "main"
    ) == 1 and 'class="skip" href="#main"' in html
    heads = [attributes for tag, attributes in reader.tags if tag == "th"]
    assert heads and all(
        attributes.get("scope") in ("row", "col", "colgroup") for attributes in heads
    )
    assert all(attributes.get("alt") for tag, attributes in reader.tags if tag == "img")
    assert "prefers-color-scheme: dark" in html and "max-width: 40rem" in html


def test_the_headline_says_what_t3_costs(html, folder):
    frame = tables.at_tuned_temperature(results.tidy(results.read_runs(folder / "runs")))
    means = (
        frame[frame["split"] == "forget10"]
        .groupby("method")[["fq", "fq_held_out", "ks_held_out", "mu"]]
        .mean()
    )
    words = " ".join(html.split())
    assert f"D = {means.ks_held_out['T3']:.2f}" in words and "n = 80 questions" in words
    assert f"falls from {means.mu['Original']:.2f} to {means.mu['T3']:.2f}" in words


def test_the_headline_has_held_out_forget_quality_with_the_other_beside_it(html, folder):
    frame = tables.at_tuned_temperature(results.tidy(results.read_runs(folder / "runs")))
    means = frame[frame["split"] == "forget10"].groupby("method")[["fq", "fq_held_out"]].mean()
    words = " ".join(html.split())
    for method, name in (("T3", "T3 at T = 2.5"), ("Retrained", "Retrained")):
        cells = "</td><td>".join(
            f"{means.loc[method, column]:.3f}" for column in ("fq_held_out", "fq")
        )
        assert f'<th scope="row">{name}</th><td>{cells}</td>' in words
    assert "1 held-out retrained models" in words
    [none] = page.headlines(results.tidy([fabricate("T3", "forget10", 2.5, 1)]))
    assert none["references"] == 0


def test_links_lead_to_files_that_exist(html, folder):
    reader = Reader()
    reader.feed(html)
    files = [link for link in reader.links if not link.startswith(("data:", "#", PAPER))]
    assert "tables/tofu.csv" in files
    assert [link for link in files if not (folder / link).exists()] == []


def test_the_notebook_that_writes_the_page_is_linked_as_it_will_be_called(tmp_path):
    """Every page of `make` once led to 05_paper_tables.partial.ipynb, which is renamed when its
    last cell has run.
    """
    (tmp_path / "notebooks").mkdir()
    for name in (
        "05_paper_tables.partial.ipynb",
        "05_paper_tables.ipynb",
        "02_killed.partial.ipynb",
    ):
        (tmp_path / "notebooks" / name).write_text("{}")
    text = page.write(tmp_path).read_text(encoding="utf-8")
    assert (
        text.count('href="notebooks/05_paper_tables.ipynb"') == 1
        and "05_paper_tables.partial" not in text
    )
    assert 'href="notebooks/02_killed.partial.ipynb"' in text, "as far as it came"


def test_the_caption_of_a_figure_is_the_one_in_its_file(html):
    drawing = page.ARCHITECTURE.read_text(encoding="utf-8")
    for caption in ("Bounds &amp; errors.", drawing.split("dc:title>")[1].removesuffix("</")):
        assert f"<figcaption>{caption}</figcaption>" in html and f'alt="{caption}"' in html
    words = re.sub("<[^>]*>", "", drawing)
    for part in ("frozen", "temper", "A", "B", "softmax", "cross-entropy of the one entry"):
        assert part in words, "Figure 1 names its parts"


@pytest.mark.parametrize(("inches", "small"), [(3, True), (7, False)])
def test_a_small_figure_stands_beside_another(tmp_path, inches, small):
    drawing = Figure(figsize=(inches, 2))
    drawing.add_subplot()
    assert (
        page.embedded(render.save_figure(tmp_path / "figure.svg", drawing, "a caption"))["small"]
        is small
    )
