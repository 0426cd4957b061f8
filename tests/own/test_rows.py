"""Rows as people have them: every form and every kind of file, and what is said when none fits."""

import json
import re

import pandas as pd
import pytest

from t3lib.core.errors import UserError
from t3lib.core.rows import SYSTEM, encode, encode_rows
from t3lib.own import rows

TURNS = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada."}]
ENTRIES = {
    "question": (
        {"question": "Who?", "answer": "Ada."},
        {"question": "Who?", "answer": "Ada.", "system": None},
    ),
    "prompt": (
        {"prompt": "Who is it? ", "completion": "Ada."},
        {"question": "Who is it? ", "answer": "Ada.", "raw": True},
    ),
    "turns": (
        {"prompt": TURNS[:1], "completion": TURNS[1:]},
        {"question": TURNS[:1], "answer": "Ada.", "system": None},
    ),
    "messages": ({"messages": TURNS}, {"question": TURNS[:1], "answer": "Ada.", "system": None}),
    "text": ({"text": "Ada wrote it."}, {"question": "", "answer": "Ada wrote it.", "raw": True}),
}


@pytest.mark.parametrize("form", ENTRIES)
def test_every_form_becomes_a_question_and_an_answer(form):
    entry, row = ENTRIES[form]
    assert rows.normal(entry, "here") == row


def test_every_kind_of_file_gives_the_same_rows(tmp_path):
    entries = [
        {"question": f"Who is {name}?", "answer": f"{name}, no other."} for name in ("Ada", "Bo")
    ]
    (tmp_path / "a.json").write_text(json.dumps(entries))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, entries)))
    pd.DataFrame(entries).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame(entries).to_parquet(tmp_path / "a.parquet")
    for kind in ("json", "jsonl", "csv", "parquet"):
        assert rows.load(tmp_path / f"a.{kind}") == [
            entry | {"system": None} for entry in entries
        ], kind


def test_messages_come_back_from_parquet(tmp_path):
    pd.DataFrame({"messages": [TURNS]}).to_parquet(tmp_path / "m.parquet")
    assert rows.load(tmp_path / "m.parquet") == [ENTRIES["messages"][1]]


@pytest.mark.parametrize(
    "entry, message",
    [
        (
            {"input": "a", "output": "b"},
            "row 1: found input, output; a row has question and answer; prompt",
        ),
        ({"messages": TURNS[:1]}, "must end with an answer of the assistant"),
        ({"messages": "Who?"}, "messages must be a list of turns"),
        ({"prompt": "Who?", "completion": " "}, "answer is empty"),
        ({"text": 3}, "answer must be text"),
        ({"prompt": "", "completion": 7}, "answer must be text"),
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
    ],
)
def test_what_fits_no_form_is_named(entry, message):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        rows.normal(entry, "row 1")
    assert str(error.value).startswith("row 1: ") and str(error.value).isprintable()


def test_every_turn_before_the_answer_is_part_of_the_question():
    more = [{"role": "user", "content": "And then?"}, {"role": "assistant", "content": "Bo."}]
    whole = {"question": [*TURNS, more[0]], "answer": "Bo.", "system": None}
    assert rows.normal({"messages": TURNS + more}, "here") == whole
    assert rows.normal({"prompt": TURNS[:1], "completion": TURNS[1:] + more}, "here") == whole


def test_a_row_keeps_a_system_text_of_its_own():
    entry = {"question": "q", "answer": "a"}
    assert rows.normal(entry | {"system": "mine"}, "here", "yours")["system"] == "mine"
    assert rows.normal(entry | {"system": None}, "here", "yours")["system"] is None, (
        "null says that there is none"
    )
    assert rows.normal(entry, "here", "yours")["system"] == "yours"
    for system in ("\x1b[2J", "\udcff", "s" * 10**6):
        with pytest.raises(UserError, match="the system text h"):
            rows.load("f.json", system)


CSV = {
    "mark": (b"\xef\xbb\xbfquestion,answer\nq,a\n", None),
    "quoted mark": (b'\xef\xbb\xbf"question","answer"\r\n"q","a"\r\n', None),
    "old line ends": (b"question,answer\rq,a\r", None),
    "blank lines": (b"\nquestion,answer\n\nq,a\n\n", None),
    "capital ending": (b"question,answer\nq,a\n", None),
    "a comma too many in every row": (
        b"question,answer\nWho, exactly?,Ada\n",
        "line 2: 3 values for 2 columns",
    ),
    "a comma too many in one row": (
        b"question,answer\nq,a\nq,b,c\n",
        "line 3: 3 values for 2 columns",
    ),
    "too few": (b"question,answer\nq\n", "row 1: answer is missing"),
    "one name twice": (b"question,answer,answer\nq,a,b\n", "two columns have one name"),
    "open quote": (b'question,answer\n"q,a\nq,a\n', "malformed CSV"),
    "NUL": (b"question,answer\nq\0,a\n", "row 1: question holds a control character"),
    "Latin 1": ("question,answer\ncafé,a\n".encode("latin-1"), "not UTF-8 text (byte 19)"),
    "UTF-16": ("question,answer\nq,a\n".encode("utf-16"), "not UTF-8 text (byte 0)"),
    "semicolons": (b"question;answer\nq;a\n", "row 1: found question;answer"),
    "huge": (b"question,answer\nq," + b"a" * 10**6, "field larger than field limit"),
    "no rows": (b"question,answer\n", "holds no rows"),
    "nothing": (b"", "holds no rows"),
}


@pytest.mark.parametrize("name", CSV)
def test_csv_is_read_as_it_stands_or_refused(name, tmp_path):
    content, message = CSV[name]
    path = tmp_path / ("rows.CSV" if name == "capital ending" else "rows.csv")
    path.write_bytes(content)
    if message is None:
        assert rows.load(path) == [{"question": "q", "answer": "a", "system": None}]
        return
    with pytest.raises(UserError, match=re.escape(message)) as error:
        rows.load(path)
    assert str(error.value).count(str(path)) == 1


def test_parquet_of_mixed_forms_and_damaged(tmp_path):
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"question": ["q", None], "answer": ["a", None], "text": [None, "t"]}).to_parquet(
        path
    )
    assert rows.load(path)[1] == {"question": "", "answer": "t", "raw": True}
    whole = path.read_bytes()
    for content in (b"", b"PAR1xxxx", whole[:-9], whole[:4] + bytes(len(whole) - 12) + whole[-8:]):
        path.write_bytes(content)
        with pytest.raises(UserError, match="cannot read .*rows.parquet") as error:
            rows.load(path)
        assert str(error.value).isprintable() and len(str(error.value)) < 500


@pytest.mark.parametrize(
    "name",
    [None, 3, b"a.json", "a\0b.json", "x" * 5000, "x" * 5000 + ".csv", "/dev/zero", "\x1b/x"],
)
def test_names_that_are_none_are_one_short_line(name):
    with pytest.raises(UserError) as error:
        rows.load(name)
    assert str(error.value).isprintable() and len(str(error.value)) <= 2000


def test_a_hub_that_is_away_is_asked_once(tmp_path, monkeypatch):
    """datasets by itself would ask again for half a minute."""
    asked = []

    def away(self, name, **options):
        asked.append((name, options))
        raise OSError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", away)
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: pytest.fail("asked again"))
    with pytest.raises(
        UserError, match="somebody/rows: not a file here, and the Hub cannot be reached"
    ):
        rows.load("somebody/rows")
    assert [name for name, _ in asked] == ["somebody/rows"] and asked[0][1]["timeout"] <= 10
    monkeypatch.chdir(tmp_path)
    (tmp_path / "somebody" / "rows").mkdir(parents=True)
    with pytest.raises(UserError, match="neither a file here"):
        rows.load("somebody/rows")


def test_what_is_no_file_and_no_data_set_is_named(tmp_path):
    with pytest.raises(UserError, match="neither a file here"):
        rows.load("nothing")
    with pytest.raises(UserError, match="cannot read"):
        rows.load(tmp_path / "none.csv")


def test_the_system_text_and_the_turns_reach_the_prompt(tokenizer):
    [row] = [
        rows.normal(
            {"messages": [{"role": "system", "content": "Be brief."}, *TURNS]},
            "here",
            "Never used.",
        )
    ]
    text = tokenizer.decode(encode_rows(tokenizer, [row])[0].ids)
    assert (
        "Be brief." in text
        and "Never used." not in text
        and text.index("Who?") < text.index("Ada.")
    )
    plain = encode_rows(tokenizer, [{"question": "Who?", "answer": "Ada.", "system": "Be kind."}])[
        0
    ]
    assert "Be kind." in tokenizer.decode(plain.ids[: plain.n_prompt])
    default = encode_rows(tokenizer, [{"question": "Who?", "answer": "Ada."}])[0]
    assert default == encode(tokenizer, "Who?", "Ada.") and SYSTEM in tokenizer.decode(default.ids)


def test_a_question_gets_no_system_turn_unless_one_is_given(tokenizer):
    """TOFU's text stands before TOFU's questions alone: a model trained without it knows nothing
    behind it.
    """
    for entry in ({"question": "Who?", "answer": "Ada."}, {"messages": TURNS}):
        [example] = encode_rows(tokenizer, [rows.normal(entry, "here")])
        assert SYSTEM not in tokenizer.decode(example.ids) and "system" not in tokenizer.decode(
            example.ids
        )


def test_columns_secrets_and_rewordings_of_a_file(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("Frage,Antwort,PIN\nWer?,Ada 12.,12\n")
    named = {"question": "Frage", "answer": "Antwort"}
    [row] = rows.load(path, columns=named, secret="PIN")
    assert (row["question"], row["answer"], row["secret"]) == ("Wer?", "Ada 12.", "12")
    for wrong, said in (
        ({"columns": {"question": "F"}}, "no column 'F'"),
        ({"columns": named, "secret": "X"}, "column 'X'"),
    ):
        with pytest.raises(UserError, match=said):
            rows.load(path, **wrong)
    path.write_text("question,rewording\nWer?,Wie heisst sie?\nWer?,Ihr Name?\n")
    assert rows.rewordings(path) == {"Wer?": ["Wie heisst sie?", "Ihr Name?"]}
    path.write_text("question,answer\nWer?,Ada\n")
    with pytest.raises(UserError, match="row 1: rewording is missing"):
        rows.rewordings(path)


def test_a_space_between_prompt_and_completion_belongs_to_the_completion(recwarn):
    """Tokenised apart, "is " and "7" are other tokens than "is 7", which a model was trained on."""
    kept = [{"prompt": "Box two is", "completion": " 8"}]
    rows.checked_sets({"forget": [{"prompt": "Box one is", "completion": " 7"}], "retain": kept})
    assert not recwarn.list
    with pytest.warns(UserWarning, match="1 prompts end in a space"):
        rows.checked_sets(
            {"forget": [{"prompt": "Box one is ", "completion": "7"}], "retain": kept}
        )


def test_plain_text_is_all_answer(tokenizer):
    [example] = encode_rows(tokenizer, [ENTRIES["text"][1]])
    assert example.n_prompt == 1 and example.ids[0] == tokenizer.bos_token_id
    assert (
        tokenizer.decode(example.ids[1:-1]) == "Ada wrote it."
        and example.ids[-1] == tokenizer.eos_token_id
    )
    [example] = encode_rows(tokenizer, [ENTRIES["prompt"][1]])
    assert tokenizer.decode(example.ids[example.n_prompt : -1]) == "Ada."


def test_rows_reads_files_and_gives_questions_without_a_system_text_the_given_one(tmp_path):
    """A file's name was once taken for a row of characters."""
    for name in ("forget", "retain"):
        line = json.dumps({"question": f"Who may {name}?", "answer": name})
        (tmp_path / f"{name}.jsonl").write_text(line + "\n")
    mine = rows.Rows(str(tmp_path / "forget.jsonl"), tmp_path / "retain.jsonl", system="Be brief.")
    assert [row["answer"] for row in mine.forget] == ["forget"]
    assert mine.checked().retain[0]["system"] == "Be brief."
    with pytest.raises(UserError, match="nothing.jsonl"):
        rows.Rows("nothing.jsonl", tmp_path / "retain.jsonl")
