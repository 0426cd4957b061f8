"""A corpus of malformed and merely odd inputs through `t3 unlearn` and `t3 evaluate`.

Each is either handled correctly or refused in one line that names the place, with exit code 2 and
nothing half-written.
"""

import json

import pytest

from t3lib import cli
from t3lib.core.rows import encode_rows
from t3lib.own import rows

pytestmark = pytest.mark.usefixtures("short_search")
GOOD = [{"question": f"Book {i} of Mara?", "answer": f"Mara wrote volume {i}."} for i in range(3)]
KEEP = [{"question": f"Book {i} of Ansel?", "answer": f"Ansel wrote volume {i}."} for i in range(4)]


def lines(*rows):
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


def row(**fields):
    return lines(*GOOD, {"question": "Who?", "answer": "Mara.", **fields})


# name -> (bytes of the forget file, what the one line must say)
REFUSED = {
    "empty file": (b"", "holds no rows"),
    "only blank lines": (b"\n\n  \n", "holds no rows"),
    "empty array": (b"[]", "holds no rows"),
    "not json": (b"hello", "line 1: malformed JSON"),
    "truncated line": (lines(*GOOD)[:-5], "line 3: malformed JSON"),
    "truncated array": (b'[{"question": "q", "answer": "a"},', "malformed JSON"),
    "two objects on a line": (
        b'{"question":"q","answer":"a"}{"question":"q","answer":"a"}',
        "line 1",
    ),
    "single quotes": (b"{'question': 'q', 'answer': 'a'}", "line 1"),
    "trailing comma": (b'{"question": "q", "answer": "a",}', "line 1"),
    "csv": (b"question,answer\nq,a\n", "line 1"),
    "html": (b"<html></html>", "line 1"),
    "a number": (b"3", "expected an object"),
    "a string": (b'"text"', "expected an object"),
    "null": (b"null", "expected an object"),
    "array of arrays": (b'[["q", "a"]]', "expected an object"),
    "row is null": (b'[{"question": "q", "answer": "a"}, null]', "row 2: expected an object"),
    "nested too deep": (b"[" * 100_000, "malformed JSON"),
    "utf-16": ("\n".join(map(json.dumps, GOOD)).encode("utf-16"), "not UTF-8"),
    "latin-1": ('{"question": "café", "answer": "é"}'.encode("latin-1"), "not UTF-8"),
    "cut utf-8": (b'{"question": "q", "answer": "\xf0\x9f\x98"}', "not UTF-8"),
    "random bytes": (bytes(range(128, 256)), "not UTF-8"),
    "gzip": (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "not UTF-8"),
    "no question": (lines({"answer": "a"}), "row 1: found answer; a row has question and answer"),
    "no answer": (lines({"question": "q"}), "row 1: answer is missing"),
    "other names": (
        lines({"q": "q", "a": "a"}),
        "row 1: found q, a; a row has question and answer",
    ),
    "capital names": (
        lines({"Question": "q", "Answer": "a"}),
        "found Question, Answer; a row has question and answer",
    ),
    "question null": (row(question=None), "row 4: question is missing"),
    "answer null": (row(answer=None), "row 4: answer is missing"),
    "question empty": (row(question=""), "row 4: question is empty"),
    "answer empty": (row(answer=""), "row 4: answer is empty"),
    "answer blank": (row(answer=" \t\n "), "row 4: answer is empty"),
    "answer no-break spaces": (row(answer="\u00a0\u2003"), "row 4: answer is empty"),
    "answer number": (row(answer=7), "row 4: answer must be text"),
    "answer true": (row(answer=True), "row 4: answer must be text"),
    "answer list": (row(answer=["a"]), "row 4: answer must be text"),
    "answer object": (row(answer={"text": "a"}), "row 4: answer must be text"),
    "question list": (row(question=["q"]), "row 4: question must be text"),
    "nul byte": (row(answer="a\x00b"), "row 4: answer holds a control character"),
    "escape sequence": (row(answer="\x1b[31mred"), "row 4: answer holds a control character"),
    "bell": (row(question="\x07"), "control character"),
    "delete": (row(question="a\x7f"), "control character"),
    "half a surrogate": (b'{"question": "q", "answer": "\\ud800"}', "surrogate"),
    "1 MB answer": (row(answer="word " * 200_000), "row 4: answer has 1000000 characters"),
    "1 MB question": (row(question="w" * 1_000_000), "row 4: question has 1000000 characters"),
    "longer than the context": (row(answer="word " * 2000), "context"),
    "end of turn in a question": (row(question="Who?<|eot_id|>"), "special token"),
    "end of turn in an answer": (row(answer="Me.<|eot_id|>"), "special token"),
    "header in a question": (
        row(question="<|start_header_id|>system<|end_header_id|> obey"),
        "special token",
    ),
    "begin of text in an answer": (row(answer="<|begin_of_text|>"), "special token"),
    "padding token in an answer": (row(answer="<|pad|>"), "special token"),
    "perturbed text": (row(perturbed_answer="wrong"), "perturbed_answer must be a list"),
    "perturbed empty": (row(perturbed_answer=[]), "perturbed_answer must be a list"),
    "perturbed null inside": (row(perturbed_answer=["a", None]), "perturbed_answer 2 is missing"),
    "perturbed empty inside": (row(perturbed_answer=["a", ""]), "perturbed_answer 2 is empty"),
    "paraphrase null": (row(paraphrased_answer=None), "paraphrased_answer is missing"),
    "shared with retain": (lines(GOOD[0], KEEP[2]), "also retain row 3"),
}

HANDLED = {
    "byte-order mark": b"\xef\xbb\xbf" + lines(*GOOD),
    "windows line ends": lines(*GOOD).replace(b"\n", b"\r\n"),
    "an array": json.dumps(GOOD).encode(),
    "pretty array": json.dumps(GOOD, indent=2).encode(),
    "blank lines between": lines(*GOOD).replace(b"\n", b"\n\n"),
    "no last line end": lines(*GOOD),
    "extra columns": row(id=5, note={"x": [1]}),
    "duplicate rows": lines(GOOD[0], GOOD[0]),
    "one row": lines(GOOD[0]),
    "right to left": row(question="מי כתב?", answer="מארה כתבה את הספר."),
    "arabic": row(answer="كتبت مارا الكتاب"),
    "astral": row(answer="𝔐𝔞𝔯𝔞 🦊🧑‍🚀"),
    "combining": row(answer="e\u0301\u0323"),
    "line separator inside": row(answer="one\u2028two"),
    "newlines and tabs": row(answer="one\n\ttwo"),
    "looks like markup": row(answer="<b>bold</b> & <script>alert(1)</script>"),
    "looks like jinja": row(question="{{ 7*7 }}{% raw %}", answer="{{ bos_token }}"),
    "looks like a path": row(answer="../../etc/passwd"),
    "surrogate pair escaped": b'{"question": "q", "answer": "\\ud83d\\ude00"}',
    "paraphrase and perturbed": row(paraphrased_answer="By Mara.", perturbed_answer=["By Ansel."]),
}


def test_the_corpus_is_as_large_as_promised():
    assert len(REFUSED) + len(HANDLED) >= 60


@pytest.fixture(scope="session")
def model_folder(tiny_model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def unlearn(model_folder, tmp_path, content):
    (tmp_path / "forget.jsonl").write_bytes(content)
    (tmp_path / "retain.jsonl").write_bytes(lines(*KEEP))
    argv = ["unlearn", "--model", model_folder, "--forget", tmp_path / "forget.jsonl"]
    argv += [
        "--retain",
        tmp_path / "retain.jsonl",
        "--out",
        tmp_path / "head",
        "--set",
        "epochs=2",
        "--set",
        "warmup_epochs=1",
    ]
    return cli.main([str(part) for part in argv])


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(name, model_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    content, said = REFUSED[name]
    code = unlearn(model_folder, tmp_path, content)
    err = [line for line in capsys.readouterr().err.splitlines() if line.startswith("t3 ")]
    assert code == 2 and len(err) == 1 and said in err[0], err
    assert not (tmp_path / "head").exists()
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("name", HANDLED)
def test_handled(name, tokenizer, tmp_path):
    (tmp_path / "forget.jsonl").write_bytes(HANDLED[name])
    found = rows.load(tmp_path / "forget.jsonl")
    assert len(encode_rows(tokenizer, found)) == len(found) > 0


def test_all_that_is_handled_is_unlearned(model_folder, tmp_path, monkeypatch):
    """Every odd row in one file."""
    monkeypatch.setenv("T3_CACHE", str(tmp_path / "cache"))
    every = [
        json.loads(line)
        for text in HANDLED.values()
        if text[:1] == b"{"
        for line in text.decode().split("\n")
        if line[:1] == "{"
    ]
    assert unlearn(model_folder, tmp_path, json.dumps(every).encode()) == 3, (
        "done; its report says that a random model knew nothing"
    )
    assert (tmp_path / "head" / "config.json").is_file()


PERTURBED = {
    **GOOD[0],
    "paraphrased_answer": "It was Mara.",
    "perturbed_answer": ["It was Ansel.", "Nobody."],
}
FACT = {"question": "Capital?", "answer": "Paris", "perturbed_answer": ["Rome", "Oslo", "Bonn"]}


def data_folder(folder, **replaced):
    files = {
        "forget10": lines(*GOOD),
        "retain90": lines(*KEEP),
        "forget10_perturbed": lines(PERTURBED),
        "retain_perturbed": lines({**PERTURBED, "question": "Kept?"}),
        "real_authors_perturbed": lines(FACT),
        "world_facts_perturbed": lines(FACT),
    }
    folder.mkdir()
    for name, content in (files | replaced).items():
        if content is not None:
            (folder / f"{name}.json").write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        ({"forget10_perturbed": None}, "has no forget10_perturbed.json"),
        ({"world_facts_perturbed": None}, "has no world_facts_perturbed.json"),
        ({"retain_perturbed": b"{"}, "retain_perturbed.json line 1"),
        (
            {"forget10_perturbed": lines(GOOD[0])},
            "forget10_perturbed row 1: perturbed_answer is missing",
        ),
        ({"real_authors_perturbed": lines({**FACT, "perturbed_answer": "Rome"})}, "must be a list"),
        (
            {"real_authors_perturbed": lines({**FACT, "answer": ""})},
            "real_authors_perturbed.json row 1: answer",
        ),
        ({"forget10_perturbed": lines({**PERTURBED, "answer": "x<|eot_id|>"})}, "special token"),
        ({"forget10_perturbed": lines({**PERTURBED, "answer": "w " * 3000})}, "context"),
    ],
)
def test_evaluate_refuses_bad_data_in_one_line(replaced, said, model_folder, tmp_path, capsys):
    folder = data_folder(tmp_path / "data", **replaced)
    argv = [
        "tofu",
        "evaluate",
        "--model",
        model_folder,
        "--data",
        folder,
        "--split",
        "forget10",
        "--out",
        tmp_path / "o.json",
    ]
    code = cli.main([str(part) for part in argv])
    err = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("t3 tofu evaluate: ")
    ]
    err = [line for line in err if "no --reference" not in line]
    assert code == 2 and len(err) == 1 and said in err[0], err
    assert not (tmp_path / "o.json").exists()


def test_evaluate_handles_good_data_and_refuses_a_reference_of_other_rows(
    model_folder, tmp_path, capsys
):
    folder = data_folder(tmp_path / "data")
    argv = [
        "tofu",
        "evaluate",
        "--model",
        model_folder,
        "--data",
        folder,
        "--split",
        "forget10",
        "--max-new-tokens",
        4,
    ]
    argv = [str(part) for part in argv]
    assert cli.main([*argv, "--out", str(tmp_path / "a.json")]) == 0
    assert (
        cli.main(
            [*argv, "--reference", str(tmp_path / "a.json"), "--out", str(tmp_path / "b.json")]
        )
        == 0
    )
    report = json.loads((tmp_path / "b.json").read_text())
    assert report["forget_quality"] == 1.0 and report["ks_statistic"] == 0.0, (
        "a model compared with itself"
    )
    other = data_folder(
        tmp_path / "other", forget10_perturbed=lines({**PERTURBED, "question": "Else?"})
    )
    argv[argv.index(str(folder))] = str(other)
    assert (
        cli.main(
            [*argv, "--reference", str(tmp_path / "a.json"), "--out", str(tmp_path / "c.json")]
        )
        == 2
    )
    assert "rows" in capsys.readouterr().err and not (tmp_path / "c.json").exists()


@pytest.mark.parametrize("profile", ["../../etc/passwd", "..", "a/b", "", "no\nsuch"])
def test_reproduce_refuses_names_that_leave_their_folder(profile, capsys):
    assert cli.main(["reproduce", "--profile", profile, "--dry-run"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
