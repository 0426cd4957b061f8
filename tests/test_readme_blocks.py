"""README's shell lines run as they stand, one by one, on a small model, and the Python of works.md
as it is.
"""

import json
import re
import shlex
import subprocess

import pytest
from conftest import ROOT

from t3lib import cli

README, WORKS = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "results/pages/works.md")
)
SKIPPED = {
    "pip": "fetches packages from the network; tests/test_wheel.py builds what it installs",
    ".": "changes the shell that types it",
    "git": "fetches the repository",
    "cd": "changes the shell that types it",
}
PARSED = {  # t3 verbs whose lines are only parsed
    "reproduce": "minutes to hours; tests/lab/grid runs it",
    "tofu": "minutes; tests/lab/study runs it",
    "serve": "answers until Ctrl-C; tests/own/test_serve.py runs it",
}
SMOLLM2 = "smollm2"  # its lines are only parsed: a download, and a quarter of an hour


def blocks(text):
    """(language, code) of every code block: fenced ones, and indented ones, which are the
    shell's.
    """
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.M | re.S)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    indented = re.findall(r"(?:^    +\S.*\n?)+", rest, flags=re.M)
    return fenced + [("sh", re.sub("^    ", "", code, flags=re.M)) for code in indented]


LINES = [
    line
    for language, code in blocks(README)
    if language == "sh"
    for line in re.sub(r"\\\n *", "", code).splitlines()
]
COMMANDS = [
    words
    for line in LINES
    for part in line.split(" && ")
    if (words := shlex.split(part, comments=True))
]
PYTHON = [code for language, code in blocks(WORKS) if language == "python"]


@pytest.fixture(scope="session")
def place(memorised, tmp_path_factory):
    """A folder with what the commands name: a model in MODEL, forget.jsonl, retain.jsonl,
    other.jsonl. Every file has a few rows, because each is asked in many ways.
    """
    folder = tmp_path_factory.mktemp("reader")
    model, tokenizer, forget, retain, other = memorised
    model.save_pretrained(folder / "MODEL")
    tokenizer.save_pretrained(folder / "MODEL")
    for name, rows in (("forget", forget), ("retain", retain), ("other", other)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows[:6])))
    return folder


def test_there_are_blocks_of_every_kind_and_each_is_known():
    assert {language for language, _ in blocks(README)} == {"sh", "math"}
    assert {words[0] for words in COMMANDS} <= {"make", "t3", *SKIPPED}
    assert {words[1] for words in COMMANDS if words[0] == "t3"} >= {
        "unlearn",
        "generate",
        "evaluate",
    }


@pytest.mark.parametrize(
    "words", [words for words in COMMANDS if words[0] == "make"], ids=shlex.join
)
def test_make_knows_the_target(words):
    assert subprocess.run([*words, "--dry-run"], cwd=ROOT, capture_output=True).returncode == 0


def test_the_command_line_runs_as_typed(place, short_search, monkeypatch, capsys):
    """What it finds is no part of this test: the fit is too short to forget anything."""
    monkeypatch.chdir(place)
    for words in COMMANDS:
        if words[0] == "t3" and (words[1] in PARSED or SMOLLM2 in words):
            cli.parser().parse_args(words[1:])
        elif words[0] == "t3":
            # 3: the report says that something leaks or changed
            assert cli.main(words[1:]) in (0, 3), (words, capsys.readouterr())
    printed = capsys.readouterr().out
    assert printed.count("\nreport: ") == 2  # a head, an evaluation
    assert (place / "head" / "model.safetensors").is_file()
    for folder in ("head-report", "report"):
        assert all((place / folder / f"report.{kind}").is_file() for kind in ("html", "json"))


def test_the_python_runs_as_it_is_and_prints_what_is_said(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    [code] = PYTHON
    exec(compile(code, "works.md", "exec"), {})
    found = [tuple(map(int, line.split())) for line in capsys.readouterr().out.splitlines()[-4:]]
    told = re.search(
        r"Of 20 .* T3 recites (\d+) and (\d+) at T = 1, (\d+) and (\d+) at T = 2", WORKS
    )
    # another processor, or other vectors of this one, moves an answer or two
    assert all(abs(n - int(of)) <= 2 for (_, n), of in zip(found, told.groups(), strict=True))
    assert [T for T, _ in found] == [1, 1, 2, 2]
    (_, said), _, (_, tempered), (_, kept) = found
    assert said > tempered == 0, "a tilt alone does not stop it all"
    assert kept >= 14


def test_its_prose_fits_a_reader_of_ten_minutes_and_its_tables_a_phone():
    generated = r"<!-- generated:(.*?) -->.*?<!-- /generated:\1 -->"
    text = re.sub(generated, "", README, flags=re.S)
    # code, pictures with their alt texts, links
    hidden = r"^```.*?^```|^    .*?$|!\[.*?\]|<picture>.*?</picture>|\]\(.*?\)"
    text = re.sub(hidden, "", text, flags=re.M | re.S)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert 600 < len(" ".join(prose).split()) <= 800
    assert len([word for word in README.split() if re.search(r"\w", word)]) <= 1300
    assert tables and max(line.count("|") for line in tables) <= 4, "three columns"
    assert not [line for line in LINES if len(line) > 400]


@pytest.mark.parametrize(
    ("test", "file"), re.findall(r"\[`(test_\w+)`\]\(../../(tests/[\w/]+\.py)\)", WORKS)
)
def test_the_tests_that_show_where_t3_works_are_there(test, file):
    assert (ROOT / file).stem == test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")
