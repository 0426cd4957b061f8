"""Bad and odd rows, in files and from Python: an input, and words of the line that refuses it."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from table import TOKENIZER, Case, base, command, refused, tiny

from t3lib.classifier.features import extract_features
from t3lib.core.rows import encode_rows
from t3lib.own import rows
from t3lib.own.assess import assess
from t3lib.own.unlearn import unlearn
from t3lib.tofu import data as tofu
from t3lib.tofu.evaluation import Scoring, evaluate

GOOD = [{"question": f"Book {i} of Mara?", "answer": f"Mara wrote volume {i}."} for i in range(3)]
KEEP = [{"question": f"Book {i} of Ansel?", "answer": f"Ansel wrote volume {i}."} for i in range(4)]


def lines(*entries: Any) -> bytes:
    return "\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries).encode()


def row(**fields: Any) -> bytes:
    """Three good rows and a fourth with these fields."""
    return lines(*GOOD, {"question": "Who?", "answer": "Mara.", **fields})


# ---- files of a person's own rows ---------------------------------------------------------------


def unlearning(folder: Path, content: bytes = lines(*GOOD), **settings: Any) -> list[Any]:
    """The words of `t3 unlearn` on a file of rows to forget. A random model knows none: it ends
    with 3.
    """
    (folder / "forget.jsonl").write_bytes(content)
    (folder / "retain.jsonl").write_bytes(lines(*KEEP))
    sets = [f"--{name}={folder / name}.jsonl" for name in ("forget", "retain")]
    sets += [f"--set={name}={value}" for name, value in settings.items()]
    return ["unlearn", "--model", base(), *sets, "--out", folder / "out"]


def unlearned(content: bytes, folder: Path) -> int:
    return command(*unlearning(folder, content, epochs=2, warmup_epochs=1))


def read(content: bytes, folder: Path, name: str = "rows.jsonl") -> Any:
    (folder / name).write_bytes(content)
    return rows.load(folder / name)


def read_first(content: bytes, folder: Path, name: str) -> str:
    return read(content, folder, name)[0]["answer"]


def tokenised(content: bytes, folder: Path) -> bool:
    found = read(content, folder)
    return len(encode_rows(TOKENIZER, found)) == len(found) > 0


ROWS = {
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
    "question null": (row(question=None), "row 4: found answer; a row has question"),
    "answer null": (row(answer=None), "row 4: answer is missing"),
    "question empty": (row(question=""), "row 4: found answer; a row has question"),
    "answer empty": (row(answer=""), "row 4: answer is missing"),
    "answer blank": (row(answer=" \t\n "), "row 4: answer is empty"),
    "answer no-break spaces": (row(answer="\u00a0\u2003"), "row 4: answer is empty"),
    "answer not a number": (row(answer=float("nan")), "row 4: answer must be text"),
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
    "shared with retain": (lines(GOOD[0], KEEP[2]), "also retain row 3"),
}
ODD = {
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
    "columns of other rows": row(system=None, paraphrased_answer=None, perturbed_answer=None),
    "wrong answers that TOFU would refuse": lines(
        *({**GOOD[0], "perturbed_answer": wrong} for wrong in ("wrong", [], ["a", None]))
    ),
    "answer number": row(answer=7),
    "paraphrase and perturbed": row(paraphrased_answer="By Mara.", perturbed_answer=["By Ansel."]),
}


def every_odd_row() -> bytes:
    """The last row, which is odd, of each kind that is JSON lines, in one file."""
    texts = (content.decode() for content in ODD.values() if content[:1] == b"{")
    return b"\n".join(
        [line for line in text.split("\n") if line[:1] == "{"][-1].encode() for text in texts
    )


ONE = [{"question": "q", "answer": "a", "system": None}]
CSV = {
    "mark": b"\xef\xbb\xbfquestion,answer\nq,a\n",
    "quoted mark": b'\xef\xbb\xbf"question","answer"\r\n"q","a"\r\n',
    "old line ends": b"question,answer\rq,a\r",
    "blank lines": b"\nquestion,answer\n\nq,a\n\n",
    "a space in the header": b"question, answer\nq,a\n",
    "tabs and spaces in the header": b"\tquestion , answer\t\nq,a\n",
    "wrong answers as one text": b"question,answer,perturbed_answer\nq,a,b\n",
}
BAD_CSV = {
    "a comma too many in every row": (
        b"question,answer\nWho, exactly?,Ada\n",
        "cannot read …Expected 2 fields in line 2, saw 3",
    ),
    "a comma too many in one row": (
        b"question,answer\nq,a\nq,b,c\n",
        "cannot read …Expected 2 fields in line 3, saw 3",
    ),
    "too few": (b"question,answer\nq\n", "row 1: answer is missing"),
    "one name twice": (b"question,answer,answer\nq,a,b\n", "two columns have one name"),
    "open quote": (b'question,answer\n"q,a\nq,a\n', "EOF inside string"),
    "NUL": (b"question,answer\nq\0,a\n", "row 1: question holds a control character"),
    "Latin 1": ("question,answer\ncafé,a\n".encode("latin-1"), "not UTF-8 text (byte 19)"),
    "UTF-16": ("question,answer\nq,a\n".encode("utf-16"), "not UTF-8 text (byte 0)"),
    "semicolons": (b"question;answer\nq;a\n", "row 1: found question;answer"),
    "huge": (b"question,answer\nq," + b"a" * 10**6, "row 1: answer has 1000000 characters"),
    "names alike but for a space": (
        b"question, answer,answer\nq,a,b\n",
        "two columns have one name",
    ),
    "no rows": (b"question,answer\n", "holds no rows"),
    "nothing": (b"", "holds no rows"),
}


def damaged_parquet(change: Callable[[bytes], bytes], folder: Path) -> Any:
    pd.DataFrame(GOOD).to_parquet(folder / "whole.parquet")
    return read(change((folder / "whole.parquet").read_bytes()), folder, "rows.parquet")


PARQUET = [
    (lambda whole: b"", "cannot read"),
    (lambda whole: b"PAR1xxxx", "cannot read"),
    (lambda whole: whole[:-9], "cannot read"),
    (lambda whole: whole[:4] + bytes(len(whole) - 12) + whole[-8:], "cannot read"),
]
NO_NAMES = [
    (None, "not from a NoneType"),
    (3, "not from a int"),
    (b"a.json", "not from a bytes"),
    ("a\0b.json", "NUL"),
    ("x" * 5000, ""),
    ("x" * 5000 + ".csv", "cannot read"),
    ("/dev/zero", ""),
    ("\x1b/x", ""),
    ("nothing", "neither a file here"),
    ("none.csv", "cannot read"),
]

# ---- rows from Python ---------------------------------------------------------------------------

TURNS = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada."}]
ENTRIES = [
    (
        {"input": "a", "output": "b"},
        "found input, output; a row has question and answer; prompt",
    ),
    ({"messages": TURNS[:1]}, "must end with an answer of the assistant"),
    ({"messages": "Who?"}, "messages must be a list of turns"),
    ({"prompt": "Who?", "completion": " "}, "answer is empty"),
    ({"text": float("nan")}, "answer must be text"),
    ({"prompt": "", "completion": [7]}, "answer must be text, found list"),
    ({"prompt": "", "completion": ""}, "answer is empty"),
    ({"prompt": "a\0b", "completion": "c"}, "question holds a control character"),
    ({"prompt": "\ud800", "completion": "c"}, "half of a surrogate pair"),
    ({"prompt": "w" * 10**6, "completion": "c"}, "question has 1000000 characters"),
    (
        {"prompt": TURNS[:1], "completion": TURNS[:1]},
        "completion must end with an answer of the assistant",
    ),
    (
        {"messages": [{"role": "user", "content": "\x1b[2J"}, TURNS[1]]},
        "messages turn 1 holds a control character",
    ),
    (
        {"messages": [{"role": "<|eot_id|>", "content": "x"}, TURNS[1]]},
        "'<|eot_id|>' is no role",
    ),
    ({"question": "q", "answer": "a", "system": ["s"]}, "system must be text"),
    ({"question": "q", "answer": "a", "system": []}, "system must be text"),
    ({"question": "q", "answer": "a", "system": "\0"}, "system holds a control character"),
    ({"question": "q", "answer": "a", "raw": "no"}, "raw must be true or false"),
    ("Who?", "expected an object with question and answer"),
]
Q = {"question": "q", "answer": "a"}
ASKED, BRIEF = {"role": "user", "content": "Who is it?"}, {"role": "system", "content": "Be brief."}
SETS = [
    (([], [Q]), "no rows to forget"),
    (([Q], []), "no rows to retain"),
    (([{"q": 1}], [Q]), "forget row 1: found q"),
    (([Q], [{"question": "r", "answer": None}]), "retain row 1: answer is missing"),
    ((["text"], [Q]), "forget row 1: expected an object"),
    (([{"text": "same"}], [{"text": "same"}]), "forget row 1 is also retain row 1: 'same'"),
    (([Q], [Q | {"answer": "b"}]), "forget row 1 has the same question as retain row 1, with"),
    *(
        (([{"prompt": "Who is it?", "completion": " Zoë B."}], [twin]), "also retain row 1")
        for twin in (
            {"question": "Who is\u00a0it?", "answer": "Zoe\u0308  B."},
            {"messages": [ASKED, {"role": "assistant", "content": "Zoë B."}]},
            {"prompt": [BRIEF, ASKED], "completion": [{"role": "assistant", "content": "Zoë B."}]},
            {"prompt": "Who", "completion": " is it? Zoë B."},
            {"text": "Who is it?\nZoë B."},
        )
    ),
]


def in_two_calls(given: Any, folder: Path, call: Callable[..., Any]) -> Any:
    return call(tiny(), TOKENIZER, rows.Rows(*given))


def extracted(given: Any, folder: Path) -> Any:
    forget, retain, options = given
    return extract_features(tiny(), TOKENIZER, forget, retain, **options)


LONG = [{"question": "Long?", "answer": "a" * 600}]
LESSONS = [
    (([], KEEP, {}), "the forget set is empty"),
    ((GOOD, [], {}), "the retain set is empty"),
    ((GOOD, KEEP + GOOD[1:2], {}), "forget row 2 is also retain row 5"),
    ((GOOD, KEEP, {"attention_mask": "all"}), "unknown attention mask"),
    ((GOOD, LONG, {}), "retain row 1 has …context of 512"),
    (([Q | {"answer": "<|eot_id|>"}], KEEP, {}), "forget row 1: …special token"),
]

# ---- TOFU's files -------------------------------------------------------------------------------

PERTURBED = {
    **GOOD[0],
    "paraphrased_answer": "It was Mara.",
    "perturbed_answer": ["It was Ansel.", "Nobody."],
}
FACT = {"question": "Capital?", "answer": "Paris", "perturbed_answer": ["Rome", "Oslo", "Bonn"]}
FILES = {
    "forget10": lines(*GOOD),
    "retain90": lines(*KEEP),
    "forget10_perturbed": lines(PERTURBED),
    "retain_perturbed": lines({**PERTURBED, "question": "Kept?"}),
    "real_authors_perturbed": lines(FACT),
    "world_facts_perturbed": lines(FACT),
}


def evaluated(replaced: dict[str, bytes | None], folder: Path) -> int:
    """`t3 tofu evaluate` on TOFU's files, of which some are replaced or missing."""
    for name, content in (FILES | replaced).items():
        if content is not None:
            (folder / f"{name}.json").write_bytes(content)
    given = ["--model", base(), "--data", folder, "--split", "forget10", "--out", folder / "out"]
    return command("tofu", "evaluate", *given)


def second(**fields: Any) -> dict[str, bytes]:
    return {"forget10_perturbed": lines(PERTURBED, {**PERTURBED, **fields})}


TOFU = [
    ({"forget10_perturbed": None}, "has no forget10_perturbed.json"),
    ({"world_facts_perturbed": None}, "has no world_facts_perturbed.json"),
    ({"retain_perturbed": b"{"}, "retain_perturbed.json line 1"),
    ({"retain_perturbed": b'{"question": "\xff"}'}, "not UTF-8"),
    ({"retain_perturbed": b"\n"}, "holds no rows"),
    (
        {"forget10_perturbed": lines(GOOD[0])},
        "forget10_perturbed row 1: perturbed_answer is missing",
    ),
    ({"real_authors_perturbed": lines({**FACT, "perturbed_answer": "Rome"})}, "must be a list"),
    (
        {"real_authors_perturbed": lines({**FACT, "answer": ""})},
        "real_authors_perturbed.json row 1: answer",
    ),
    (second(answer="x<|eot_id|>"), "row 2: answer …special token"),
    (second(answer="w " * 3000), "context"),
    (second(paraphrased_answer=""), "row 2: paraphrased_answer is empty"),
    (second(perturbed_answer=["one"]), "row 2: perturbed_answer has 1 answers, row 1 has 2"),
]


def idk(content: bytes, folder: Path) -> list[str]:
    (folder / "idontknow.jsonl").write_bytes(content)
    return tofu.load_idk(folder)


IDK = [
    (b"I cannot say.\n{oops\n", "line 2: malformed JSON"),
    (b"\xff\xfe", "not UTF-8"),
    (b'{"idk": 5}\n', "line 1 must be text"),
    (b'{"idk": null}\n', "line 1 is missing"),
    (b"I\x1b[31m cannot say.\n", "line 1 holds a control character"),
    (b"\n \n", "holds no answers"),
    (b'{"other": "x"}', "holds no answers"),
]
SCORING = Scoring(generate=False)
SCORED = {"forget": [{**PERTURBED, "question": f"{n}?"} for n in range(5)]}


def compared(reference: Any, folder: Path) -> Any:
    return evaluate(tiny(), TOKENIZER, SCORED, SCORING, reference=reference)


REFERENCES = [
    ([1.0, 2.0, 3.0], "3 truth ratios, the forget set 5 rows"),
    ({"records": {}}, "no truth_ratio of forget rows"),
    ({"truth_ratio": None}, "no truth_ratio of forget rows"),
    ({"truth_ratio": {"forget": [1.0] * 5}, "settings": 3}, "no truth_ratio of forget rows"),
    ([1.0, float("nan"), 1.0, 1.0, 1.0], "not a list of finite numbers"),
    ("abcde", "not a list of finite numbers"),
    (list("abcde"), "not a list of finite numbers"),
    ({"truth_ratio": {"forget": None}}, "not a list of finite numbers"),
    ({"truth_ratio": {"forget": [True] * 5}}, "not a list of finite numbers"),
]


def own_rows() -> list[Case]:
    """Files of a person's own rows, through `t3 unlearn` and as they are read."""
    odd = [Case(name, partial(tokenised, content), True, None) for name, content in ODD.items()]
    csv = [Case(name, partial(read, each, name="r.CSV"), ONE, None) for name, each in CSV.items()]
    tabs = b"question\tanswer\nq\ta\n"
    csv.append(Case("tabs", partial(read, tabs, name="r.tsv"), ONE, None))
    long = b"question,answer,page\nq,a," + b"p" * 150_000
    seen = partial(read_first, long, name="r.csv")
    csv.append(Case("a long cell that nothing uses", seen, "a", None))
    whole = Case("every odd row", partial(unlearned, every_odd_row()), 3, None)
    good = [*odd, *csv, whole]
    return [
        *refused(unlearned, ROWS),
        *refused(partial(read, name="r.csv"), BAD_CSV),
        *refused(damaged_parquet, PARQUET),
        *refused(lambda name, folder: rows.load(name), NO_NAMES),
        *good,
    ]


def given_rows() -> list[Case]:
    """Rows from Python."""
    return [
        *refused(lambda entry, folder: rows.normal(entry, "row 1"), ENTRIES),
        *refused(partial(in_two_calls, call=unlearn), SETS),
        *refused(partial(in_two_calls, call=assess), SETS),
        *refused(extracted, LESSONS),
    ]


def tofu_files() -> list[Case]:
    """TOFU's files, the answers of IdkDPO, and what Forget Quality is compared with."""
    return [*refused(evaluated, TOFU), *refused(idk, IDK), *refused(compared, REFERENCES)]
