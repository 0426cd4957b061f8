"""Rows as people have them: every form and every kind of file, and what is said when none fits."""

import json

import pandas as pd
import pytest

from t3lib import rows, tofu
from t3lib.errors import UserError

TURNS = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada."}]
ENTRIES = {
    "question": ({"question": "Who?", "answer": "Ada."}, {"question": "Who?", "answer": "Ada."}),
    "prompt": (
        {"prompt": "Who is it? ", "completion": "Ada."},
        {"question": "Who is it? ", "answer": "Ada.", "raw": True},
    ),
    "turns": ({"prompt": TURNS[:1], "completion": TURNS[1:]}, {"question": TURNS[:1], "answer": "Ada."}),
    "messages": ({"messages": TURNS}, {"question": TURNS[:1], "answer": "Ada."}),
    "text": ({"text": "Ada wrote it."}, {"question": "", "answer": "Ada wrote it.", "raw": True}),
}


@pytest.mark.parametrize("form", ENTRIES)
def test_every_form_becomes_a_question_and_an_answer(form):
    entry, row = ENTRIES[form]
    assert rows.normal(entry, "here") == row


def test_every_kind_of_file_gives_the_same_rows(tmp_path):
    entries = [{"question": f"Who is {name}?", "answer": f"{name}, no other."} for name in ("Ada", "Bo")]
    (tmp_path / "a.json").write_text(json.dumps(entries))
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, entries)))
    pd.DataFrame(entries).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame(entries).to_parquet(tmp_path / "a.parquet")
    for kind in ("json", "jsonl", "csv", "parquet"):
        assert rows.load(tmp_path / f"a.{kind}") == entries, kind


def test_messages_come_back_from_parquet(tmp_path):
    pd.DataFrame({"messages": [TURNS]}).to_parquet(tmp_path / "m.parquet")
    assert rows.load(tmp_path / "m.parquet") == [ENTRIES["messages"][1]]


@pytest.mark.parametrize(
    "entry, message",
    [
        ({"input": "a", "output": "b"}, "row 1: found input, output; a row has question and answer; prompt"),
        ({"messages": TURNS[:1]}, "must end with an answer of the assistant"),
        ({"messages": "Who?"}, "messages must be a list of turns"),
        ({"prompt": "Who?", "completion": " "}, "answer is empty"),
        ({"text": 3}, "answer must be text"),
        ("Who?", "expected an object with question and answer"),
    ],
)
def test_what_fits_no_form_is_named(entry, message):
    with pytest.raises(UserError, match=message):
        rows.normal(entry, "row 1")


def test_what_is_no_file_and_no_data_set_is_named(tmp_path):
    with pytest.raises(UserError, match="neither a file here"):
        rows.load("nothing")
    with pytest.raises(UserError, match="cannot read"):
        rows.load(tmp_path / "none.csv")


def test_the_system_text_and_the_turns_reach_the_prompt(tokenizer):
    [row] = [rows.normal({"messages": [{"role": "system", "content": "Be brief."}, *TURNS]}, "here", "Never used.")]
    text = tokenizer.decode(tofu.encode_rows(tokenizer, [row])[0].ids)
    assert "Be brief." in text and "Never used." not in text and text.index("Who?") < text.index("Ada.")
    plain = tofu.encode_rows(tokenizer, [{"question": "Who?", "answer": "Ada.", "system": "Be kind."}])[0]
    assert "Be kind." in tokenizer.decode(plain.ids[: plain.n_prompt])
    default = tofu.encode_rows(tokenizer, [{"question": "Who?", "answer": "Ada."}])[0]
    assert default == tofu.encode(tokenizer, "Who?", "Ada.") and tofu.SYSTEM in tokenizer.decode(default.ids)


def test_plain_text_is_all_answer(tokenizer):
    [example] = tofu.encode_rows(tokenizer, [ENTRIES["text"][1]])
    assert example.n_prompt == 1 and example.ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(example.ids[1:-1]) == "Ada wrote it." and example.ids[-1] == tokenizer.eos_token_id
    [example] = tofu.encode_rows(tokenizer, [ENTRIES["prompt"][1]])
    assert tokenizer.decode(example.ids[example.n_prompt : -1]) == "Ada."
