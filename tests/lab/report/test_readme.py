"""The generated blocks are current, and the files, commands and make targets that README.md and
results/README.md name are there. Their prose is reviewed by people.
"""

import re
import shlex

import pandas as pd
import pytest
from conftest import ROOT

from t3lab.report import readme
from t3lab.results import HELD_OUT
from t3lib import cli
from t3lib.core.errors import UserError

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
DETAIL = (ROOT / "results" / "README.md").read_text(encoding="utf-8")


def test_the_headline_is_that_of_the_committed_tables(tmp_path):
    block = readme.headline(ROOT / "results")
    assert readme.with_block(TEXT, block) == TEXT, "run `python -m t3lab.report.readme`"
    with pytest.raises(UserError, match="no place"):
        readme.with_block("# nothing", block)
    for name in ("cpu", "paper"):  # a profile without held-out models
        (tmp_path / name / "tables").mkdir(parents=True)
    (tmp_path / "paper" / "table1.csv").symlink_to(ROOT / "results/paper/table1.csv")
    (tmp_path / "cpu" / "runs").symlink_to(ROOT / "results/cpu/runs")
    (tmp_path / "cpu/tables/forget_quality.csv").symlink_to(
        ROOT / "results/cpu/tables/forget_quality.csv"
    )
    scores = pd.read_csv(ROOT / "results/cpu/tables/tofu.csv").drop(columns=[*HELD_OUT])
    scores.to_csv(tmp_path / "cpu/tables/tofu.csv")
    alone = readme.headline(tmp_path)
    assert alone.count("no held-out retrained models") == 2
    assert re.search(r"\*\*T3\*\*, T = [\d.]+ \|  \| \d\.\d\d \|  \| \d\.\d\d \|", alone)


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
