"""ARTIFACT.md stays one screen and its commands are there; the data card counts the world."""

import re
import shlex
import subprocess

from conftest import ROOT

from t3lib import cli

ARTIFACT = (ROOT / "ARTIFACT.md").read_text(encoding="utf-8")
CARDS = (ROOT / "notebooks/t3lab/world/README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"`((?:make|python|t3)\b[^`]*)`", ARTIFACT)


def test_the_artifact_page_is_one_screen_and_its_commands_exist():
    assert len(ARTIFACT.splitlines()) <= 60
    assert {command.split()[0] for command in COMMANDS} == {"make", "python", "t3"}
    for command in COMMANDS:
        program, *words = shlex.split(command)
        if program == "make":
            done = subprocess.run([program, "-n", *words], cwd=ROOT, capture_output=True)
            assert done.returncode == 0, command
        elif program == "python":
            assert (ROOT / words[0]).is_file(), command
        else:
            cli.parser().parse_args(words)


def test_whoever_reports_other_numbers_is_asked_for_what_tells_why():
    text = (ROOT / ".github/ISSUE_TEMPLATE/numbers.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    (.*)$", text, flags=re.M)
    [compared] = [line.split("|")[0] for line in lines if line.startswith("t3 ")]
    cli.parser().parse_args(shlex.split(compared)[1:])
    for part in ("git log", "requirements.lock", "/proc/cpuinfo"):
        assert any(part in line for line in lines), part
    assert (ROOT / ".github/ISSUE_TEMPLATE" / re.findall(r"\]\((.*?)#", text)[0]).is_file()


def test_the_data_card_counts_the_world():
    from t3lab import profiles
    from t3lab.world import facts

    stage = profiles.load_profile("cpu")["stage"]
    rows = facts.world(stage["authors"], stage["questions"])
    words = sum(len(f"{row['question']} {row['answer']}".split()) for row in rows["full"])
    size = f"{stage['authors']} authors with {stage['questions']} questions each, 800 rows"
    assert f"{size} and {words:,} words" in CARDS and len(rows["full"]) == 800
    assert f"at most {facts.MOST_AUTHORS} authors with {len(facts.FACTS)} questions" in CARDS
    counts = f"{len(rows['real_authors_perturbed'])} questions about real authors and"
    assert f"{counts} {len(rows['world_facts_perturbed'])} about the world" in CARDS
