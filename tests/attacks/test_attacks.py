"""What must be refused in one line, or survived, is. `make attacks` tries what takes long, too."""

from pathlib import Path

import pytest
from run import TABLES, main
from table import Case, outcome

from t3lib.core.errors import UserError


@pytest.mark.parametrize("case", [case for kind in TABLES for case in kind()], ids=lambda c: c.name)
def test_a_case_is_survived(case, tmp_path, short_search, capfd):
    verdict, seen = outcome(case, tmp_path)
    assert verdict == "survived", seen
    assert not any(capfd.readouterr()), "nothing else is printed or logged"


def refuse(folder: Path) -> None:
    raise UserError("row 1 is empty")


@pytest.mark.parametrize(
    ("work", "expected", "said", "verdict"),
    [
        (refuse, 1, "row …empty", "survived"),
        (refuse, 1, "empty…row", "lost"),
        (refuse, 1, None, "lost"),
        (lambda folder: ((folder / "out").mkdir(), refuse(folder)), 1, "", "lost"),
        (lambda folder: 1 / 0, 1, "", "lost"),
        (lambda folder: (folder / "a.partial").write_text("x"), 1, None, "lost"),
        (lambda folder: 1, 2, "", "wrong"),
        (lambda folder: 1, 1, None, "survived"),
    ],
)
def test_a_verdict_is_what_came_of_it(work, expected, said, verdict, tmp_path):
    assert outcome(Case("", work, expected, said), tmp_path)[0] == verdict


def test_one_fault_in_240_of_every_kind_is_survived(capsys):
    failed, said = main(240), capsys.readouterr().out
    assert not failed, said
    assert said.count("survived") == said.count("\n") == 12
