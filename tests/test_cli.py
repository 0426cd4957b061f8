"""The command line: help everywhere, one line and exit 2 for mistakes, never a traceback."""

import copy
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from importlib.metadata import EntryPoint

import pytest
from conftest import TEMPLATE

from t3lib import cli
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.own import cli as own_cli

pytestmark = pytest.mark.usefixtures("short_search")
VERBS = ["unlearn", "generate", "evaluate", "serve", *cli.LABORATORY]
OWN = ["--forget", "f.jsonl", "--retain", "r.jsonl"]
ON = ["--model", "x", "--out", "o", *OWN]
SPLIT = ["--split", "forget10", "--out", "o"]


@pytest.mark.parametrize("verb", [*VERBS, *(f"tofu {v}" for v in ("fit", "evaluate", "tune"))])
def test_every_verb_has_help_with_an_example_that_parses(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([*verb.split(), "--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0 and f"usage: t3 {verb}" in text
    if verb != "tofu":  # it only leads to its own verbs
        example = shlex.split(text.partition("example: t3 ")[2])
        assert cli.parser().parse_args(example).parser.prog == f"t3 {verb}"


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["--set", "plain=true"], "t3 tofu fit and t3lib.fit_head fit on the rows alone"),
        (["--rewordings", "f.csv"], "rows to forget may have a column wordings"),
    ],
)
def test_an_option_that_is_gone_names_what_replaces_it(words, instead, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["unlearn", *ON, *words])
    [line] = capsys.readouterr().err.splitlines()
    assert instead in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["unlern", *ON], "t3: there is no unlern: is it unlearn?"),
        (["unlearn", "--model", "x", "--forgot", "f.csv"], "there is no --forgot: is it --forget?"),
        (["generate", "--heads=h", "Who?"], "there is no --heads: is it --head?"),
        (["unlearn", *ON, "--sede", "1"], "there is no --sede: is it --seed?"),
        (["serve", "--temper", "2"], "the following arguments are required: --head"),
    ],
)
def test_a_misspelt_verb_or_option_is_named(words, said, capsys):
    """argparse said that another option is missing."""
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_help_shows_two_groups_and_unlearn_has_sixteen_options(capsys):
    text = cli.parser().format_help()
    own, paper = (text.index(f"\n{offer.title}:") for offer in cli.offers())
    assert own < text.index("  unlearn") < paper < text.index("  reproduce")
    action = cli.parser()._subparsers._group_actions[0]  # argparse's own
    options = action.choices["unlearn"]._actions
    assert len([each for each in options if each.dest not in ("help", "set")]) <= 16


def test_set_lists_what_it_changes(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["unlearn", *ON, "--set", "help"])
    lines = capsys.readouterr().out.splitlines()
    assert stop.value.code == 0 and [line.split()[0] for line in lines] == [*cli.SETTINGS]


def test_help_imports_no_torch():
    heavy = {"torch", "transformers", "pandas", "pydantic", "distributed"}
    code = "import sys; from t3lib import cli; cli.parser().format_help()\n"
    code += f"assert not {heavy} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def offering(monkeypatch, *others):
    """Let t3lib and these objects be all that is offered as `t3.verbs`."""
    found = [EntryPoint("own", "t3lib.own.cli:OWN", "t3.verbs")]
    found += [EntryPoint("other", each, "t3.verbs") for each in others]
    monkeypatch.setattr(cli, "entry_points", lambda group: found)


def test_without_the_laboratory_the_papers_verbs_say_where_they_come_from(monkeypatch, capsys):
    offering(monkeypatch)
    monkeypatch.setattr(own_cli, "heads_of", lambda args: [])
    for argv in (
        ["reproduce", "--profile", "smoke"],
        ["compare", "a"],
        ["tofu", "fit"],
        ["generate", "--model", "builtin:full", "--head", "h", "?"],
    ):
        assert cli.main(argv) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "come with t3lab, which regenerates the paper" in said
    text = cli.parser().format_help()
    assert "  unlearn    train" in text and "  reproduce  regenerates the paper, in" in text


def defective(verbs):
    raise RuntimeError("first line\nsecond line")


DEFECTIVE = cli.Offer("defective verbs", defective)
RIVAL = cli.Offer("rival verbs", lambda verbs: verbs.add_parser("unlearn"))


@pytest.mark.parametrize(
    ("offer", "why"),
    [
        ("no_such_package:OFFER", "ModuleNotFoundError: No module named 'no_such_package'"),
        (f"{__name__}:VERBS", "not an Offer of t3lib.cli"),
        (f"{__name__}:DEFECTIVE", "of defective verbs: RuntimeError: first line second line"),
        (f"{__name__}:RIVAL", "of rival verbs: ArgumentError: "),
    ],
)
def test_a_broken_package_is_one_line_and_leaves_the_other_verbs(offer, why, monkeypatch, capsys):
    offering(monkeypatch, offer)
    assert cli.main(["unlearn", *ON, "--columns", "question=a,answer=b", "--out", __file__]) == 2
    left_out, refused = capsys.readouterr().err.splitlines()
    assert left_out.startswith("t3: left out the verbs of ") and why in left_out
    assert refused.startswith("t3 unlearn: ")


def test_a_wrong_file_name_is_found_before_torch_is_imported(tmp_path):
    (tmp_path / "f.jsonl").touch()
    argv = ["unlearn", "--model", "x", "--out", "o", "--forget", str(tmp_path / "f.jsonl")]
    argv += ["--retain", str(tmp_path / "r.csv")]
    code = f"import sys; from t3lib import cli; code = cli.main({argv})\n"
    code += "assert code == 2 and 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"t3 unlearn: --retain {tmp_path / 'r.csv'}: no such file\n"


PRINTING = """
import sys
from t3lib import cli
from t3lib.own import cli as own
own.generate = lambda args: print("0 rows at τ = 1 …" + 100_000 * "." * ("long" in args.question))
sys.exit(cli.main())
"""
LONG = ["generate", "--model", "m", "--head", "h", "long"]


def run_t3(words, **streams):
    return subprocess.run(
        [sys.executable, "-c", PRINTING, *words], stderr=subprocess.PIPE, **streams
    )


@pytest.mark.parametrize("words", [[*LONG[:-1], "short"], ["unlearn", "--help"], ["--help"]])
@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1"])
def test_a_pipe_of_another_encoding_gets_the_same_lines(words, encoding):
    """A "τ" that the pipe's encoding lacks was once a traceback after all work was done."""
    wanted, found = (
        run_t3(words, stdout=subprocess.PIPE, env=os.environ | {"PYTHONIOENCODING": name})
        for name in ("utf-8", encoding)
    )
    assert (found.returncode, found.stderr, found.stdout) == (0, b"", wanted.stdout)


@pytest.mark.parametrize(
    ("words", "at_once"),
    [(LONG, ""), (LONG, "1"), ([*LONG[:-1], "short"], ""), (["--help"], "")],
)
def test_a_reader_that_closes_is_no_error_and_a_full_disk_is_one_line(words, at_once):
    """at_once: whether every line is written as it is printed."""
    env = os.environ | {"PYTHONUNBUFFERED": at_once}
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "w") as full:
        closed, whole = (run_t3(words, stdout=stream, env=env) for stream in (writer, full))
    os.close(writer)
    assert (closed.returncode, closed.stderr) == (141, b"")
    said = b"t3: cannot write: No space left on device\n"
    assert (whole.returncode, whole.stderr) == (1, said)


@pytest.fixture(scope="session")
def place(model_folder, tmp_path_factory):
    """A model folder and two row files, as a user would have them."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(model_folder, folder / "model")
    for name, who in (("forget", "Mara Quill"), ("retain", "Ansel Roe")):
        rows = [
            {"question": f"Book {i} of {who}?", "answer": f"{who} wrote volume {i}."}
            for i in range(6)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture
def head(place, tmp_path):
    """The folder of a head that fits the model in `place`."""
    vocabulary = json.loads((place / "model" / "config.json").read_text())["vocab_size"]
    T3Head(32, vocabulary, 4).save_pretrained(tmp_path / "a-head")
    return tmp_path / "a-head"


@pytest.fixture
def asked(monkeypatch, tokenizer):
    """Call it to replace decoding: it returns the list of prompts that are then asked."""

    def start(answer=""):
        prompts, ids = [], tokenizer(answer, add_special_tokens=False).input_ids

        def greedy(model, some, reading, **options):
            prompts.extend(map(tokenizer.decode, some))
            return [[ids for _ in some]]

        monkeypatch.setattr("t3lib.own.answers.greedy", greedy)
        return prompts

    return start


def own_rows(place, out, *more):
    base = ["unlearn", "--model", str(place / "model"), "--forget", str(place / "forget.jsonl")]
    return [*base, "--retain", str(place / "retain.jsonl"), "--out", str(out), *more]


def sets(**settings):
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


@pytest.mark.parametrize(
    "words",
    [
        ["--forget", "f" * 300 + ".jsonl"],
        ["--model", "m" * 300],
        ["--out", "o\udcff"],
    ],
)
def test_names_that_no_file_can_have_are_one_line(words, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(own_rows(place, tmp_path / "head", *words)) == 2
    last = capsys.readouterr().err.splitlines()[-1]  # before it: the columns of each file
    assert re.match("t3 unlearn: .*(File name too long|UTF-8)", last)


def test_unlearn_generate_on_own_rows(place, tmp_path, capsys, monkeypatch, short_search):
    head = tmp_path / "head"
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    how = ["--dtype", "float32", "--device", "cpu"]
    assert cli.main(own_rows(place, head, *sets(epochs=4), *how)) == 3
    assert {path.name for path in head.iterdir()} == {
        "model.safetensors",
        "config.json",
        "README.md",
    }
    reports = tmp_path / "head-report"  # a head can be shared without the rows
    written = {path.name for path in reports.iterdir()}
    assert written == {"report.html", "report.json", "texts.jsonl.gz"}
    texts = [path.read_text() for path in reports.iterdir() if path.suffix != ".gz"]
    assert not any(str(folder) in text for text in texts for folder in (tmp_path, place))
    assert not (tmp_path / "cache" / "features").exists(), "hidden states stay in memory"
    said = capsys.readouterr().out.splitlines()[0]
    assert "on 6 rows to forget and 5 rows to keep; trained and judged in" in said, "one held out"
    asking = ["generate", "--model", str(place / "model"), *how, "-T", "3", "-w", "1.5"]
    question = ["--", "Book 0 of Mara Quill?"]
    assert cli.main([*asking, "--max-new-tokens", "101", "--head", str(head), *question]) == 0
    lines, errors = (each.splitlines() for each in capsys.readouterr())
    assert lines[0].startswith("Q ") and any(line.startswith("base ") for line in lines)
    assert any(line.startswith("T3 (T = 3, w = 1.5) ") for line in lines)
    assert "no answer was judged beyond 100 tokens" in errors
    gated = T3Head.from_pretrained(head)
    gated.gate = 0.5
    gated.save_pretrained(tmp_path / "gated")
    asking += ["--max-new-tokens", "5"]
    assert cli.main([*asking, "--head", str(tmp_path / "gated"), *question]) == 0
    out, err = capsys.readouterr()
    assert ", gate = 0.5)" in out and "judged beyond" not in err


@pytest.mark.parametrize("verb", ["generate", "evaluate", "serve"])
def test_without_a_model_the_base_of_the_head_is_taken(
    verb, place, head, tmp_path, capsys, monkeypatch
):
    """It had to be typed again, and a wrong one was found after it was loaded."""
    loaded = []
    monkeypatch.setattr(
        "t3lib.core.models.load_model", lambda *name, **_: loaded.append(name) or 1 / 0
    )
    monkeypatch.setattr(own_cli, "find_spec", lambda name: None)
    monkeypatch.setattr("t3lib.own.serve.vllm_here", lambda but: False)
    rows = ["--forget", str(place / "forget.jsonl"), "--retain", str(place / "retain.jsonl")]
    more = {
        "generate": ["Who?"], "serve": ["--port", "0", "--unjudged"],
        "evaluate": [*rows, "--out", str(tmp_path / "o")],
    }  # fmt: skip
    words = [verb, "--head", str(head), *more[verb]]
    assert cli.main(words) == 2
    assert "does not say which base it was trained on" in capsys.readouterr().err
    named = T3Head.from_pretrained(head)
    named.info["base_model"] = str(place / "model")
    named.save_pretrained(head, overwrite=True)
    with pytest.raises(ZeroDivisionError):
        cli.main(words)
    assert loaded == [(str(place / "model"),)]
    if verb == "evaluate":
        own = head.with_name("a-head-report")
        own.mkdir()
        (own / "report.json").write_text("{}")
        assert cli.main([*words[:-1], str(own)]) == 2
        assert "has the report by which t3 serve decides" in capsys.readouterr().err
        shutil.rmtree(own)
        assert cli.main([verb, *more[verb]]) == 2
        assert "give --model, or --head" in capsys.readouterr().err


def test_a_folder_with_a_gguf_file_alone_says_how_to_make_a_model_of_it(place, tmp_path, capsys):
    (tmp_path / "a.gguf").touch()
    assert cli.main(own_rows(place, tmp_path / "o", "--model", str(tmp_path))) == 2
    said = capsys.readouterr().err
    assert "but a.gguf: t3lib.core.smollm2.dequantised(Path(FILE)" in said


def test_rows_that_the_base_does_not_know_end_in_a_report_and_no_head(
    place, tmp_path, capsys, monkeypatch
):
    """Training them took most of the time and could not show anything."""
    monkeypatch.setattr("t3lib.own.unlearn.is_unknown", lambda *_, **__: True)
    with pytest.warns(UserWarning, match="cannot show whether anything is kept"):
        assert cli.main(own_rows(place, tmp_path / "head")) == 3
    out = capsys.readouterr().out
    assert out.startswith("Nothing to forget: the base answers 0 of 6 rows in this form.\ncheck: ")
    assert not (tmp_path / "head").exists()
    report = json.loads((tmp_path / "head-report" / "report.json").read_text())
    assert report["verdict"]["status"] == "nothing" and "choice" not in report


def test_both_dials_columns_and_secrets_can_be_given_and_a_head_overwritten(
    place, tmp_path, capsys, short_search
):
    """One rate and few steps: what is given is not searched, and what lies in --out goes only where
    that is asked.
    """
    for name in ("forget", "retain"):
        rows = [json.loads(line) for line in (place / f"{name}.jsonl").read_text().splitlines()]
        lines = [f"{row['question']},{row['answer']},volume" for row in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["Frage,Antwort,PIN", *lines]))
    argv = ["unlearn", "--model", str(place / "model"), "--out", str(tmp_path / "head")]
    argv += ["--forget", str(tmp_path / "forget.csv"), "--retain", str(tmp_path / "retain.csv")]
    argv += ["--columns", "question=Frage,answer=Antwort", "--secret-column", "PIN"]
    argv += sets(steps=1, lr="1e-2", T=1.5)
    assert cli.main([*argv, *sets(w=2)]) == 3
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert (config["temperature"], config["w"], config["info"]["system"]) == (1.5, 2.0, None)
    report = json.loads((tmp_path / "head-report" / "report.json").read_text())
    entries = "verdict forget retain choice form coverage base date"
    assert {*entries.split()} <= set(report)
    assert report["forget"]["each"][0]["secret"] == "volume"
    assert report["choice"]["tried"] == [], "there was nothing to choose"
    assert cli.main(argv) == 2
    assert "is not empty: --overwrite replaces it" in capsys.readouterr().err
    assert cli.main([*argv, *sets(w=1), "--overwrite"]) == 3
    assert json.loads((tmp_path / "head" / "config.json").read_text())["w"] == 1.0


def test_the_system_text_stands_in_the_head_and_another_is_warned_about(
    place, tmp_path, monkeypatch, asked, capsys, short_search
):
    head = tmp_path / "head"
    few = sets(epochs=1, warmup_epochs=0)
    with pytest.warns(UserWarning, match="cannot show"):  # a random model
        cli.main(own_rows(place, head, *few, "--system", "Answer in French."))
    assert T3Head.from_pretrained(head).info["system"] == "Answer in French."
    assert "| System text | Answer in French. |" in (head / "README.md").read_text()
    with monkeypatch.context():
        prompts = asked()
        generate = ["generate", "--model", str(place / "model"), "--head", str(head)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cli.main([*generate, "Who?"]) == 0
        assert all("Answer in French." in text for text in prompts) and len(prompts) == 2
        assert "system text of the head: 'Answer in French.'" in capsys.readouterr().err
        with pytest.warns(
            UserWarning, match="trained with the system text 'Answer in French.', not 'Be brief.'"
        ):
            assert cli.main([*generate, "--system", "Be brief.", "Who?"]) == 0
        assert "Be brief." in prompts[-1] and "French" not in prompts[-1]
        assert "of the head" not in capsys.readouterr().err
    monkeypatch.undo()
    rows = ["--forget", str(place / "forget.jsonl"), "--retain", str(place / "retain.jsonl")]
    with pytest.warns(
        UserWarning, match="trained with the system text 'Answer in French.', not None"
    ):
        bare = ["--no-system", "--out", str(tmp_path / "bare")]
        cli.main(["evaluate", *generate[1:5], *rows, *bare])


def test_template_arguments_stay_in_the_head(
    place, tmp_path, monkeypatch, asked, capsys, short_search
):
    from t3lib import Rows, T3ForCausalLM, ask, assess, load_model

    folder, head = tmp_path / "moody", tmp_path / "head"
    shutil.copytree(place / "model", folder)
    (folder / "chat_template.jinja").write_text("{% if calm %}calm{% endif %}" + TEMPLATE)
    few = sets(epochs=1, warmup_epochs=0)
    argv = own_rows(place, head, *few)
    argv[2] = str(folder)
    assert cli.main([*argv, *sets(**{"template.sad": "false"})]) == 2
    assert "no argument 'sad'" in capsys.readouterr().err and not head.exists()
    with pytest.warns(UserWarning, match="cannot show"):
        cli.main([*argv, *sets(**{"template.calm": "true"})])
    assert T3Head.from_pretrained(head).info["template"] == {"calm": True}
    capsys.readouterr()
    with monkeypatch.context():
        prompts = asked()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cli.main(["generate", "--model", str(folder), "--head", str(head), "Who?"]) == 0
        said = 'template arguments of the head: {"calm": true}'
        assert said in capsys.readouterr().err
        model, tokenizer = load_model(folder)
        ask(T3ForCausalLM(model, head), tokenizer, "Who?")
        assert len(prompts) == 3 and all(text.startswith("calm") for text in prompts)
    monkeypatch.undo()
    rows = ["--forget", str(place / "forget.jsonl"), "--retain", str(place / "retain.jsonl")]
    model = ["--model", str(folder), "--head", str(head)]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert cli.main(["evaluate", *model, *rows, "--out", str(tmp_path / "report")]) == 3
        tilted = T3ForCausalLM(load_model(folder)[0], head)
        assess(tilted, tokenizer, Rows(*rows[1::2]))
    assert not [each for each in found if "trained with" in str(each.message)]


@pytest.mark.parametrize("form", ["text", "prompt"])
def test_a_head_of_plain_text_is_asked_in_plain_text(
    form, place, tmp_path, capsys, asked, short_search
):
    """In the chat template neither the base nor the head would know what they learned; text alone
    is begun.
    """
    texts = [f"The password of box {number} is seven times {number}." for number in range(12)]
    rows = [
        {"text": text} if form == "text" else {"prompt": text[:10], "completion": text[10:]}
        for text in texts
    ]
    argv = ["unlearn", "--model", str(place / "model"), "--out", str(tmp_path / "head")]
    for name, some in (("forget", rows[:6]), ("retain", rows[6:])):
        for number, row in enumerate(some):
            row |= {"prompt": f"{number} {name}: {row['prompt']}"} if form == "prompt" else {}
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)))
        argv += [f"--{name}", str(tmp_path / f"{name}.jsonl")]
    assert cli.main([*argv, *sets(steps=1, T=2)]) == 3
    prompts, start = asked(), "The password of"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ["--model", str(place / "model"), "--head", str(tmp_path / "head")]
        assert cli.main(["generate", *model, start]) == 0
        assert cli.main(["generate", *model, "--no-system", start]) == 0  # it once chose the chat
    assert prompts == [f"<|begin_of_text|>{start}"] * 4


def test_a_system_text_without_a_template_is_refused(place, tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(place / "model", folder)
    (folder / "chat_template.jinja").unlink()
    argv = own_rows(place, tmp_path / "head", "--system", "Be brief.")
    argv[2] = str(folder)
    assert cli.main(argv) == 2
    assert "no chat template" in capsys.readouterr().err and not (tmp_path / "head").exists()


def test_a_system_text_that_a_template_refuses_is_one_line(tokenizer):
    """It was left out without a word, as of Gemma, whose template has no system turn."""
    refusing = copy.deepcopy(tokenizer)
    refusing.chat_template = (
        "{% for turn in messages %}{% if turn.role == 'system' %}{{ raise_exception('none') }}"
        "{% endif %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}"
    )
    with pytest.raises(UserError, match="no place for one .its chat template takes none"):
        own_cli.check_system("Be brief.", refusing)
    for text in (None, ""):
        own_cli.check_system(text, refusing)
    own_cli.check_system("Be brief.", tokenizer)


def test_text_of_others_cannot_command_the_terminal(
    place, head, tmp_path, capsys, monkeypatch, asked, short_search
):
    """A base's answer with escape sequences, and a stranger's row with a mark that turns the line
    round.
    """
    asked("\x1b[2Jgone\x07 \u202edesrever" + "x" * 10**5)
    assert (
        cli.main(["generate", "--model", str(place / "model"), "--head", str(head), "Who\u202e?"])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.isprintable() and len(line) < 11_000 for line in lines)
    assert "\\x1b[2Jgone\\x07 \\u202edesrever" in lines[1]
    monkeypatch.undo()
    (tmp_path / "forget.jsonl").write_text(
        json.dumps({"question": "Who \u202ewas it?", "answer": "Nobody."})
    )
    argv = own_rows(place, tmp_path / "head", *sets(epochs=1, warmup_epochs=0))
    assert cli.main([*argv, "--forget", str(tmp_path / "forget.jsonl")]) == 3
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())
