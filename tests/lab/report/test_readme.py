"""The generated blocks are current, and the files, commands and make targets that README.md and
results/README.md name are there. Their prose is reviewed by people.
"""

import re
import shlex

import numpy as np
import pytest
from conftest import ROOT

from t3lab.report import departures, readme, render
from t3lab.study.ablations import ABLATIONS
from t3lib import cli
from t3lib.core.errors import UserError

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
DETAIL = (ROOT / "results" / "README.md").read_text(encoding="utf-8")


def test_generated_blocks_are_those_of_the_committed_tables():
    for name, parts in readme.blocks(ROOT / "results").items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for block, content in parts.items():
            again = readme.with_block(text, block, content)
            assert again == text, f"{block} in {name}: run `python -m t3lab.report.readme`"
    with pytest.raises(UserError, match="no place"):
        readme.with_block("# nothing", block, content)


def test_the_headline_figure_has_every_method_and_value_of_the_tables(tmp_path):
    figure, scales = readme.headline_figure(ROOT / "results"), readme.leading(ROOT / "results")
    rows = np.reshape(figure.axes, (-1, len(readme.DRAWN)))
    titles = [axis.get_title(loc="left").split("\n")[-2] for axis in rows[0]]
    assert titles == ["← better", *["better →"] * 3]
    for axes, scores in zip(rows, scales.values(), strict=True):
        named = [label.get_text() for label in axes[0].get_yticklabels()]
        assert len(named) == len({*named}) == len(scores)
        assert all(("T3" in name) == ("T3" in method) for name, method in zip(named, scores.index))
        for axis, measure in zip(axes, readme.DRAWN):
            dots = [line.get_xdata()[0] for line in axis.lines if line.get_marker() == "o"]
            values = scores[measure].tolist()
            if measure == "ks_held_out" and "world_forget10" in scores:
                worlds = [
                    each[0] if isinstance(each, tuple) else None
                    for each in scores["world_forget10"]
                ]
                values = [D if over is None else over for over, D in zip(worlds, values)]
            assert dots == values
    drawn = render.save_figure(tmp_path / "headline", figure)
    texts = [
        path.read_text(encoding="utf-8")
        for path in (drawn, ROOT / "results" / "figures" / "headline.svg")
    ]
    # In the files, letters are paths with their text as a comment, and dots are uses of one path.
    words, again = (re.findall("<!-- .+? -->", text) for text in texts)
    assert words == again, "run `python -m t3lab.report.readme`"
    places, again = (re.findall('<use .*?x="(.+?)" y="(.+?)"', text) for text in texts)
    assert np.allclose(np.array(places, float), np.array(again, float), atol=1)


def test_every_departure_names_a_test_that_is_there():
    for each in departures.DEPARTURES:
        path, _, test = each.test.partition("::")
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), each.here
        assert not each.setting or each.setting in ABLATIONS


@pytest.mark.parametrize(("text", "place"), [(TEXT, ROOT), (DETAIL, ROOT / "results")])
def test_every_path_named_exists(text, place):
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    names = re.findall(r"`((?:tests|t3lib|notebooks|results)/[\w./-]+)`", text)
    names = [name for name in names if name != "results/llama-8b"]  # made on a rented machine
    assert len(links) > 15
    missing = [name for name in links if not (place / name).exists()]
    assert missing + [name for name in names if not (ROOT / name).exists()] == []
    rows = [line for line in text.splitlines() if line.startswith("|")]
    made = [name for row in rows for name in re.findall(r"`((?:tables|figures)/[\w.-]+)`", row)]
    assert place == ROOT or len(made) >= 8, "what the paper map says that notebooks leave"
    assert [name for name in made if not (ROOT / "results" / "cpu" / name).exists()] == []


def test_every_command_parses():
    """A command of the README is one the parser accepts; its notebooks exist."""
    parser = cli.parser()
    both = f"{TEXT}\n{DETAIL}"
    commands = re.findall(r"^    (t3 .+?)(?:  +#.*)?$", both, re.M)
    commands += re.findall(r"`(t3 [a-z]+ [^`]+)`", both)
    assert len(commands) >= 15
    for command in commands:
        arguments = parser.parse_args(shlex.split(command)[1:])
        for name in getattr(arguments, "only", None) or ():
            assert (ROOT / "notebooks" / f"{name}.ipynb").is_file(), command
