"""The command line: help everywhere, one line and exit 2 for mistakes, never a traceback."""

import json
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from conftest import ROOT

from t3lib.classifier.head import T3Head
from t3lib.lab import cli, commands, results

pytestmark = pytest.mark.usefixtures("short_search")
VERBS = [
    "reproduce",
    "unlearn",
    "evaluate",
    "audit",
    "generate",
    "tune",
    "bench",
    "compare",
    "page",
]
OWN = ["--forget", "f.jsonl", "--retain", "r.jsonl"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example_that_parses(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([verb, "--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0 and "usage: t3 " + verb in text
    example = shlex.split(text.partition("example: t3 ")[2])
    assert cli.parser().parse_args(example).verb == verb


def test_help_names_every_verb_by_what_it_is_for():
    """`t3 audit` and `t3 page` once stood only at the end of a list."""
    purposes = cli.parser().description.rstrip(".").split(": ")[1:]
    named = [verb for purpose in purposes for verb in purpose.split(". ")[0].split(", ")]
    assert sorted(named) == sorted(VERBS)


def test_help_imports_no_torch():
    code = "import sys; from t3lib.lab import cli; cli.parser().format_help()\n"
    code += (
        "assert not {'torch', 'transformers', 'pandas', 'pydantic', 'distributed'} &"
        " set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_wrong_file_name_is_found_before_torch_is_imported(tmp_path):
    (tmp_path / "f.jsonl").touch()
    argv = ["unlearn", "--model", "x", "--out", "o", "--forget", str(tmp_path / "f.jsonl")]
    argv += ["--retain", str(tmp_path / "r.csv")]
    code = f"import sys; from t3lib.lab import cli; code = cli.main({argv})\n"
    code += "assert code == 2 and 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"t3 unlearn: --retain {tmp_path / 'r.csv'}: no such file\n"


def test_the_parser_knows_all_verbs():
    [verbs] = [
        action for action in cli.parser()._actions if action.dest == "verb"
    ]  # argparse's own
    assert list(verbs.choices) == VERBS


@pytest.fixture(scope="session")
def place(tiny_model, tokenizer, tmp_path_factory):
    """A model folder and two row files, as a user would have them."""
    folder = tmp_path_factory.mktemp("user")
    tiny_model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    for name, who in (("forget", "Mara Quill"), ("retain", "Ansel Roe")):
        rows = [
            {"question": f"Book {i} of {who}?", "answer": f"{who} wrote volume {i}."}
            for i in range(6)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def own_rows(place, out, *more):
    base = ["unlearn", "--model", str(place / "model"), "--forget", str(place / "forget.jsonl")]
    return [*base, "--retain", str(place / "retain.jsonl"), "--out", str(out), *more]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "VERB"),
        (["unlearn", "--model", "x"], "--out"),
        (
            ["evaluate", "--model", "x", "--out", "o.json", "--temperature", "2"],
            "--temperature needs --head",
        ),
        (
            ["evaluate", "--model", "x", "--out", "o.json", "--temperature", "hot", "--head", "h"],
            "list of numbers",
        ),
        (["generate", "--model", "x", "--head", "nowhere", ""], "empty question"),
        (
            ["unlearn", "--model", "x", *OWN, "--out", "h", "--steps", "9", "--epochs", "2"],
            "give either --steps or --epochs",
        ),
        (["reproduce", "--seeds", "1,two"], "list of whole numbers"),
        (["reproduce", "--workers", "2", "--scheduler", "tcp://x:1"], "not allowed with"),
        (
            [
                "unlearn",
                "--model",
                "x",
                "--out",
                "h",
                "--temperature",
                "nan",
                "--split",
                "forget10",
            ],
            "temperature must be",
        ),
        (
            ["unlearn", "--model", "x", "--out", "h", "--temperature", "-1", "--split", "forget10"],
            "temperature must be",
        ),
        (
            [
                "unlearn",
                "--model",
                "x",
                "--out",
                "h",
                "--temperature",
                "0.5",
                "--split",
                "forget10",
            ],
            "--allow-sharpening",
        ),
        (["unlearn", "--model", "x", "--out", "h"], "either --forget FILE"),
        (["unlearn", "--model", "x", "--out", "h", "--split", "forget10"], "--data is needed"),
        (["reproduce", "--profile", "no-such-profile"], "no-such-profile"),
        (["bench", "--shape", "huge"], "unknown shape 'huge'"),
        (
            ["unlearn", "--model", "x", "--out", "h", "--epoch", "3", "--colour", "red"],
            "t3 unlearn: unknown arguments: --colour red",
        ),
        (["audit", "--model", "x", "--forget", "f", "--out", "o"], "--unseen FILE is needed"),
        (["audit", "--model", "x", "--unseen", "u", "--out", "o"], "--forget FILE is needed"),
        (
            [
                "audit",
                "--model",
                "x",
                "--forget",
                "f",
                "--unseen",
                "u",
                "--out",
                "o",
                "--samples",
                "8",
                "--k",
                "1,9",
            ],
            "--k 9: leak@k needs k between 1 and the 8 samples",
        ),
        (
            [
                "audit",
                "--model",
                "x",
                "--forget",
                "f",
                "--unseen",
                "u",
                "--out",
                "o",
                "--temperature",
                "2",
            ],
            "--temperature needs --head",
        ),
        (
            ["evaluate", "--model", "x", "--out", "o", *OWN, "--reference", "y"],
            "--reference is not used with --forget",
        ),
        (
            ["evaluate", "--model", "x", "--out", "o", *OWN, "--max-new-tokens", "0"],
            "--max-new-tokens is not used",
        ),
        (
            ["evaluate", "--model", "x", "--out", "o", *OWN, "--truth-ratio", "geometric"],
            "--truth-ratio is not used",
        ),
        (
            ["evaluate", "--model", "x", "--out", "o", *OWN, "--strength", "2"],
            "--strength needs --head",
        ),
        (
            ["evaluate", "--model", "x", "--out", "o", *OWN, "--other-base"],
            "--other-base needs --head",
        ),
        (
            ["evaluate", "--model", "x", "--out", "o", *OWN, "--columns", "question"],
            "not a list of pairs",
        ),
        (
            ["evaluate", "--model", "x", "--out", "o", *OWN, "--system", "x", "--no-system"],
            "not allowed with",
        ),
        (
            ["unlearn", "--model", "x", "--out", "o", *OWN, "--attention-mask", "openunlearning"],
            "--attention-mask openunlearning hides tokens",
        ),
        (
            ["evaluate", "--model", "x", "--out", "o", *OWN, "--temperature", "2,3", "--head", "h"],
            "one T for own rows",
        ),
        (
            ["evaluate", "--model", "x", "--out", "o", "--split", "forget10", "--other", "f"],
            "--other is for own rows",
        ),
        (
            ["evaluate", "--model", "x", "--out", "o", "--split", "forget10", "--system", "s"],
            "--system is for own rows",
        ),
        (
            ["evaluate", "--model", "x", "--out", "/dev/null", *OWN],
            "/dev/null exists already and is not a folder",
        ),
        (
            ["evaluate", "--model", "x", "--out", "/dev/null/o", *OWN],
            "/dev/null is no folder that can be written",
        ),
        (
            ["unlearn", "--model", "x", "--out", "/dev/null/o", *OWN],
            "/dev/null is no folder that can be written",
        ),
        (["unlearn", "--model", "x", "--out", "o" * 300, *OWN], "File name too long"),
        (["page", "nowhere"], "nowhere: not a results folder"),
        (["generate", "--model", "x", "--head", "h", "--\x1b[2J", "Who?"], r"--\x1b[2J"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(argv, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in OWN[1::2]:  # a file that is missing would be the mistake that is named
        Path(name).touch()
    try:
        code = cli.main(argv)
    except SystemExit as stop:
        code = stop.code
    err = capsys.readouterr().err
    assert code == 2 and said in err and err.count("\n") == 1, err
    assert sorted(path.name for path in tmp_path.iterdir()) == OWN[1::2], "nothing half-written"


def test_results_of_uncommitted_code_are_refused_in_one_line(monkeypatch, capsys):
    """Before anything runs; --dry-run writes nothing."""
    monkeypatch.setattr(results, "_git_state", lambda: ("c", True))
    monkeypatch.setattr("t3lib.lab.grid.reproduce.reproduce", lambda *_, **__: 0)
    for more, code in (([], 2), (["--dry-run"], 0)):
        argv = [
            "reproduce",
            "--profile",
            "cpu",
            "--only",
            "05_paper_tables",
            "--out",
            str(ROOT / "results" / "cpu"),
        ]
        assert cli.main([*argv, *more]) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "commit your changes first" in err and "results/cpu" in err


def test_a_folder_without_a_model_is_said_to_be_one(place, tmp_path, capsys):
    argv = own_rows(place, tmp_path / "head")
    argv[argv.index("--model") + 1] = str(place)  # the folder around the model's
    assert cli.main(argv) == 2
    why = "this folder holds no model, because it has no config.json"
    assert capsys.readouterr().err == f"t3 unlearn: --model {place}: {why}\n"
    assert not (tmp_path / "head").exists()


def test_unlearn_generate_on_own_rows(place, tmp_path, capsys, monkeypatch):
    head = tmp_path / "head"
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    assert (
        cli.main(own_rows(place, head, "--epochs", "4", "--dtype", "float32", "--device", "cpu"))
        == 3
    )
    written = {
        "model.safetensors",
        "config.json",
        "README.md",
        "report.html",
        "report.json",
        "report.csv",
    }
    assert {path.name for path in head.iterdir()} == written
    assert not list((tmp_path / "cache" / "features").iterdir()), "on disk only while it trains"
    following = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert following[0] == "t3" and following[-1] == "Book 0 of Mara Quill?"
    options = ["--dtype", "float32", "--device", "cpu"]
    assert following[1:-2] == [
        "generate",
        "--head",
        str(head),
        "--model",
        str(place / "model"),
        *options,
    ]
    assert cli.main([*following[1:-2], "--max-new-tokens", "5", *following[-2:]]) == 0  # as printed
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Q ") and any(line.startswith("base ") for line in lines)
    assert any(line.startswith("T3 T=") for line in lines)


def test_both_dials_columns_and_secrets_can_be_given_and_a_head_overwritten(
    place, tmp_path, capsys
):
    """One seed and few steps: what is given is not searched, and what lies in --out goes only where
    that is asked.
    """
    for name in ("forget", "retain"):
        rows = [json.loads(line) for line in (place / f"{name}.jsonl").read_text().splitlines()]
        lines = [f"{row['question']},{row['answer']},volume" for row in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["Frage,Antwort,PIN", *lines]))
    argv = [
        "unlearn",
        "--model",
        str(place / "model"),
        "--out",
        str(tmp_path / "head"),
        "--steps",
        "1",
        "--lr",
        "0.01",
    ]
    argv += [
        "--forget",
        str(tmp_path / "forget.csv"),
        "--retain",
        str(tmp_path / "retain.csv"),
        "-w",
        "2",
    ]
    argv += [
        "--columns",
        "question=Frage,answer=Antwort",
        "--secret-column",
        "PIN",
        "--temperature",
        "1.5",
    ]
    assert cli.main(argv) == 3
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert (config["temperature"], config["w"], config["info"]["system"]) == (1.5, 2.0, None)
    report = json.loads((tmp_path / "head" / "report.json").read_text())
    assert {
        "verdict",
        "forget",
        "retain",
        "recognition",
        "choice",
        "form",
        "asked",
        "base",
        "date",
    } <= set(report)
    assert report["forget"]["each"][0]["secret"] == ["volume"]
    assert report["choice"]["tried"] == [] and "from the screen alone" in report["choice"]["reason"]
    assert cli.main(argv) == 2
    assert "is not empty: --overwrite replaces it" in capsys.readouterr().err
    assert cli.main([*argv, "--strength", "1", "--overwrite"]) == 3
    assert json.loads((tmp_path / "head" / "config.json").read_text())["w"] == 1.0


def test_a_head_on_another_base_is_refused_unless_that_is_meant(place, tmp_path, capsys):
    width = json.loads((place / "model" / "config.json").read_text())["vocab_size"]
    T3Head(32, width, 4, info={"base_model": "org/other"}).save_pretrained(tmp_path)
    argv = [
        "generate",
        "--model",
        str(place / "model"),
        "--head",
        str(tmp_path),
        "--max-new-tokens",
        "1",
        "Who?",
    ]
    assert cli.main(argv) == 2 and "trained on org/other" in capsys.readouterr().err
    assert cli.main([*argv, "--other-base", "-w", "0.5"]) == 0


def test_the_system_text_stands_in_the_head_and_another_is_warned_about(
    place, tmp_path, capsys, monkeypatch
):
    head = tmp_path / "head"
    with pytest.warns(UserWarning, match="Nothing to forget"):  # a random model
        cli.main(
            own_rows(
                place,
                head,
                "--epochs",
                "1",
                "--warmup-epochs",
                "0",
                "--system",
                "Answer in French.",
            )
        )
    assert T3Head.from_pretrained(head).info["system"] == "Answer in French."
    assert "| System text | Answer in French. |" in (head / "README.md").read_text()
    asked = []
    monkeypatch.setattr(
        commands, "answer", lambda model, tokenizer, ids, limit: asked.append(tokenizer.decode(ids))
    )
    generate = [
        "generate",
        "--model",
        str(place / "model"),
        "--head",
        str(head),
        "--max-new-tokens",
        "3",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cli.main([*generate, "Who?"]) == 0
    assert all("Answer in French." in text for text in asked) and len(asked) == 2
    with pytest.warns(
        UserWarning, match="trained with the system text 'Answer in French.', not 'Be brief.'"
    ):
        assert cli.main([*generate, "--system", "Be brief.", "Who?"]) == 0
    assert "Be brief." in asked[-1] and "French" not in asked[-1]
    rows = ["--forget", str(place / "forget.jsonl"), "--retain", str(place / "retain.jsonl")]
    evaluate = ["evaluate", *generate[1:5], *rows]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cli.main([*evaluate, "--out", str(tmp_path / "report")]) == 3, (
            "asked in the head's own form"
        )
    with pytest.warns(
        UserWarning, match="trained with the system text 'Answer in French.', not None"
    ):
        cli.main([*evaluate, "--no-system", "--out", str(tmp_path / "bare")])


@pytest.mark.parametrize("form", ["text", "prompt"])
def test_a_head_of_plain_text_is_asked_in_plain_text(form, place, tmp_path, capsys, monkeypatch):
    """In the chat template neither the base nor the head would know what they learned; text alone
    is begun.
    """
    texts = [f"The password of box {number} is seven times {number}." for number in range(12)]
    rows = [
        {"text": text} if form == "text" else {"prompt": text[:10], "completion": text[10:]}
        for text in texts
    ]
    for name, some in (("forget", rows[:6]), ("retain", rows[6:])):
        for number, row in enumerate(some):
            row |= {"prompt": f"{number} {name}: {row['prompt']}"} if form == "prompt" else {}
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)))
    head, files = (
        tmp_path / "head",
        ["--forget", str(tmp_path / "forget.jsonl"), "--retain", str(tmp_path / "retain.jsonl")],
    )
    model = ["--model", str(place / "model")]
    assert (
        cli.main(
            ["unlearn", *model, *files, "--out", str(head), "--steps", "1", "--temperature", "2"]
        )
        == 3
    )
    following = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert following[-1] == ("The password of" if form == "text" else "0 forget: The passwo")
    asked = []
    monkeypatch.setattr(
        commands, "answer", lambda model, tokenizer, ids, limit: asked.append(tokenizer.decode(ids))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cli.main(following[1:]) == 0
    assert asked == ["<|begin_of_text|>" + following[-1]] * 2


def test_a_system_text_without_a_template_is_refused(place, tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(place / "model", folder)
    (folder / "chat_template.jinja").unlink()
    argv = own_rows(place, tmp_path / "head", "--system", "Be brief.")
    argv[2] = str(folder)
    assert cli.main(argv) == 2
    assert "no chat template" in capsys.readouterr().err and not (tmp_path / "head").exists()


def test_text_of_others_cannot_command_the_terminal(place, tmp_path, capsys, monkeypatch):
    """A base's answer with escape sequences, and a stranger's row with a mark that turns the line
    round.
    """
    T3Head(
        32, json.loads((place / "model" / "config.json").read_text())["vocab_size"], 4
    ).save_pretrained(tmp_path)
    monkeypatch.setattr(
        commands, "answer", lambda *_: "\x1b[2Jgone\x07 \u202edesrever" + "x" * 10**6
    )
    assert (
        cli.main(
            ["generate", "--model", str(place / "model"), "--head", str(tmp_path), "Who\u202e?"]
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.isprintable() and len(line) < 11_000 for line in lines)
    assert "\\x1b[2Jgone\\x07 \\u202edesrever" in lines[1]
    row = {"question": "Who \u202ewas it?", "answer": "Nobody."}
    (tmp_path / "forget.jsonl").write_text(json.dumps(row))
    argv = own_rows(place, tmp_path / "head", "--epochs", "1", "--warmup-epochs", "0", "--forget")
    assert cli.main([*argv, str(tmp_path / "forget.jsonl")]) == 3
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_audit_sets_forgotten_rows_beside_unseen_ones_and_says_what_is_empty(
    place, tmp_path, capsys
):
    argv = ["audit", "--model", str(place / "model"), "--samples", "2", "--out", str(tmp_path)]
    argv += ["--forget", str(place / "forget.jsonl"), "--unseen", str(place / "retain.jsonl")]
    assert cli.main(argv) == 0
    said = capsys.readouterr().out
    assert "leak@2" in said and "empty: recognized_verbatim: row 1 has no perturbed_answer" in said
    assert "leaks: 0 of 0 rows" in said and "not tested: other languages" in said
    report = json.loads((tmp_path / "audit.json").read_text())
    assert (
        set(report["audit"][""]) == {"forget", "unseen"}
        and "Membership AUC" in (tmp_path / "audit.md").read_text()
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--max-new-tokens", "0", "Who?"], "max_new_tokens must be at least 1"),
        (["--max-new-tokens", "600", "Who?"], "exceed the model's context of 512"),
        (["Who?", "a\udc80b"], "surrogate"),
        (["Who?", "hi <|eot_id|> x"], "special token"),
        (["Who?", "word " * 300], "exceed the model's context"),
    ],
)
def test_a_bad_question_is_one_line_before_anything_is_answered(
    place, tmp_path, more, said, capsys, monkeypatch
):
    vocabulary = json.loads((place / "model" / "config.json").read_text())["vocab_size"]
    T3Head(32, vocabulary, 4).save_pretrained(tmp_path / "head")
    assert (
        cli.main(
            ["generate", "--model", str(place / "model"), "--head", str(tmp_path / "head"), *more]
        )
        == 2
    )
    out, err = capsys.readouterr()
    assert said in err.splitlines()[-1] and "Traceback" not in err and not out, (
        out,
        err,
    )  # above: the loading bar


def test_evaluate_at_several_temperatures_also_below_1_where_that_is_allowed(
    place, tmp_path, capsys, monkeypatch
):
    T3Head(
        32, json.loads((place / "model" / "config.json").read_text())["vocab_size"], 4
    ).save_pretrained(tmp_path)
    row = {"question": "Who?", "answer": "Ada.", "perturbed_answer": ["Bob.", "Cy."]}
    monkeypatch.setattr(commands.study, "evaluation_rows", lambda *_: {"ra": [row]})
    argv = [
        "evaluate",
        "--model",
        str(place / "model"),
        "--head",
        str(tmp_path),
        "--data",
        str(tmp_path),
    ]
    argv += ["--split", "forget10", "--temperature", "0.5,2", "--max-new-tokens", "2"]
    argv += ["--out", str(tmp_path / "report.json")]
    assert cli.main(argv) == 2 and "--allow-sharpening" in capsys.readouterr().err
    assert cli.main([*argv, "--allow-sharpening"]) == 0
    reports = json.loads((tmp_path / "report.json").read_text())["by_temperature"]
    assert [report["T"] for report in reports] == [0.5, 2.0] and reports[0]["components"][
        "ra_prob"
    ] is not None
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["T=0.5", "T=2"]


def test_python_dash_m_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "t3lib", "--version"], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.startswith("t3 ")


def test_compare_sets_a_folder_beside_the_committed_results_of_its_profile(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("t3lib.lab.grid.status.project_root", lambda: tmp_path)
    for folder, score in (("out/tiny", 0.25), ("results/tiny", 0.5)):
        (tmp_path / folder / "tables").mkdir(parents=True)
        (tmp_path / folder / "tables" / "tofu.csv").write_text(f"method,fq\nNPO\x1b,{score}\n")
        (tmp_path / folder / "manifest.json").write_text('{"profile": "tiny"}')
    ours, theirs = tmp_path / "out" / "tiny", tmp_path / "results" / "tiny"
    assert cli.main(["compare", str(ours)]) == 1
    printed = capsys.readouterr().out
    assert f"a: {ours}, b: {theirs}" in printed and "\x1b" not in printed
    assert printed.splitlines()[-1] == "1 cell differs in 1 table: tofu"
    (ours / "manifest.json").unlink()
    assert cli.main(["compare", str(ours)]) == 2
    assert "give two folders" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("manifest", "said"),
    [('{"profile": "mine"}', "profile mine are committed"), ("{}", "profile unknown are")],
)
def test_compare_says_that_there_is_nothing_to_compare_with(tmp_path, capsys, manifest, said):
    (tmp_path / "manifest.json").write_text(manifest)
    assert cli.main(["compare", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert said in err and "give two folders" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "more", [["--head", ","], ["--head", "", "--temperature", "2"], ["--head", "HEAD,"]]
)
def test_no_head_is_passed_over(more, place, tmp_path, capsys):
    """A list that holds no name would evaluate the base as if a head were on it."""
    T3Head(32, 50, 4).save_pretrained(tmp_path / "head")
    more = [word.replace("HEAD", str(tmp_path / "head")) for word in more]
    argv = ["evaluate", *own_rows(place, tmp_path / "report")[1:], *more]
    assert cli.main(argv) == 2 and "head" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_a_report_does_not_replace_that_of_a_head(place, tmp_path, capsys):
    T3Head(32, 50, 4).save_pretrained(tmp_path)
    assert cli.main(["evaluate", *own_rows(place, tmp_path)[1:], "--head", str(tmp_path)]) == 2
    assert "holds a head" in capsys.readouterr().err and not (tmp_path / "report.json").exists()


@pytest.mark.parametrize(
    ("option", "file", "said"),
    [
        ("--holdout-forget", "forget", "forget row 1 is also holdout_forget row 1"),
        ("--holdout-retain", "retain", "retain row 1 is also holdout_retain row 1"),
        ("--holdout-retain", "forget", "forget row 1 is also holdout_retain row 1"),
        ("--other", "forget", "forget row 1 is also other row 1"),
        ("--other", "retain", "retain row 1 is also other row 1"),
        ("--unseen", "forget", "forget row 1 is also unseen row 1"),
    ],
)
def test_rows_that_are_no_evidence_are_refused(option, file, said, place, tmp_path, capsys):
    argv = own_rows(place, tmp_path / "out", option, str(place / f"{file}.jsonl"))
    assert cli.main(argv) == 2 and said in capsys.readouterr().err
    if option == "--other":
        assert cli.main(["evaluate", *argv[1:]]) == 2 and said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "line",
    [
        "evaluate --model MODEL --data hub --split forget10 --out OUT",
        "unlearn --model MODEL --data hub --split forget10 --out OUT",
        "evaluate --model builtin:full --data hub --split forget10 --out OUT",
    ],
)
def test_tofu_of_a_hub_that_is_away_is_one_line_at_once(line, place, tmp_path, monkeypatch, capsys):
    """datasets by itself would ask for half a minute, and end in its HTTP library's traceback."""

    def away(self, name, **options):
        raise OSError("no route\nto host")

    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", away)
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: pytest.fail("asked again"))
    words = (
        line.replace("MODEL", str(place / "model")).replace("OUT", str(tmp_path / "out")).split()
    )
    assert cli.main(words) == 2
    said = capsys.readouterr().err.splitlines()
    assert (
        len(said) == 1 and "locuslab/TOFU" in said[0] and "the Hub cannot be reached" in said[0]
    ), said
