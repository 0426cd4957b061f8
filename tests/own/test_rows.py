"""Rows as people have them: every form and every kind of file, and what is said when none fits."""

import json
import warnings

import pandas as pd
import pytest

from t3lib.core.errors import UserError
from t3lib.core.rows import SYSTEM, encode, encode_rows
from t3lib.own import rows
from t3lib.own.rows import Rows

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


@pytest.mark.parametrize("kind", ["json", "jsonl", "csv", "parquet"])
def test_an_empty_cell_is_no_value_in_any_kind_of_file(kind, tmp_path):
    """An empty `system` was once an empty turn, no turn or the given text, by the kind of file."""
    more = {"paraphrased_answer": None, "perturbed_answer": None, "note": None}
    entries = [
        {"question": "Who?", "answer": "Ada.", "text": None, "system": None, **more},
        {"question": None, "answer": None, "text": "Bo.", "system": None, **more},
        {"question": "Why?", "answer": "So.", "text": None, "system": "Mine.", **more},
    ]
    write = {
        "json": lambda table, path: path.write_text(json.dumps(entries)),
        "jsonl": lambda table, path: path.write_text("\n".join(map(json.dumps, entries))),
        "csv": lambda table, path: table.to_csv(path, index=False),
        "parquet": pd.DataFrame.to_parquet,
    }[kind]
    write(pd.DataFrame(entries), tmp_path / f"a.{kind}")
    found = rows.load(tmp_path / f"a.{kind}", "Given.", columns={"system": "system"})
    assert found == [
        {"question": "Who?", "answer": "Ada.", "system": "Given."},
        {"question": "", "answer": "Bo.", "raw": True},
        {"question": "Why?", "answer": "So.", "system": "Mine."},
    ]


def test_a_number_is_text_in_any_kind_of_file(tmp_path):
    """{"answer": 1998} was refused in JSON, and taken in CSV."""
    for name, text in (
        ("a.json", '[{"question": 7, "answer": 1998}]'),
        ("a.csv", "question,answer\n7,1998"),
    ):
        (tmp_path / name).write_text(text)
        [row] = rows.load(tmp_path / name)
        assert (row["question"], row["answer"]) == ("7", "1998")
    pd.DataFrame({"text": [1998.5]}).to_parquet(tmp_path / "a.parquet")
    assert rows.load(tmp_path / "a.parquet")[0]["answer"] == "1998.5"
    for wrong in (True, float("nan"), [1]):
        with pytest.raises(UserError, match="answer must be text"):
            rows.normal({"question": "q", "answer": wrong}, "here")


def test_messages_come_back_from_parquet(tmp_path):
    pd.DataFrame({"messages": [TURNS]}).to_parquet(tmp_path / "m.parquet")
    assert rows.load(tmp_path / "m.parquet") == [ENTRIES["messages"][1]]


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


def test_parquet_of_mixed_forms(tmp_path):
    mixed = pd.DataFrame({"question": ["q", None], "answer": ["a", None], "text": [None, "t"]})
    mixed.to_parquet(tmp_path / "rows.parquet")
    found = rows.load(tmp_path / "rows.parquet")
    assert found[1] == {"question": "", "answer": "t", "raw": True}


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
    assert "Be kind." in tokenizer.decode(plain.prompt)
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


def test_columns_and_secrets_of_a_file(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("Frage,Antwort,PIN\nWer?,Ada 12.,12\n")
    named = {"question": "Frage", "answer": "Antwort"}
    [row] = rows.load(path, columns=named | {"wordings": "not in every file"}, secret="PIN")
    assert (row["question"], row["answer"], row["secret"]) == ("Wer?", "Ada 12.", "12")
    for wrong, said in (
        ({"columns": {"question": "F"}}, "no column 'F'"),
        ({"columns": named, "secret": "X"}, "column 'X'"),
        ({"columns": named | {"system": "S"}}, "no column 'S'"),
    ):
        with pytest.raises(UserError, match=said):
            rows.load(path, **wrong)


def test_a_row_that_a_set_has_twice_counts_once():
    """Its twin was held out as "never fitted" while it was fitted, in another spelling too."""
    first, second = ({"question": f"Who is {name}?", "answer": name} for name in ("Ada", "Bo"))
    other = {"question": "Who is  Bo?", "answer": "Bo"}
    with pytest.warns(UserWarning, match=r"2 rows \(retain\) are given twice and count once"):
        found = Rows([first], [second, dict(second), other]).checked()
    assert len(found.retain) == 1 and found.retain[0]["answer"] == "Bo"
    boxes = [{"prompt": "Box is ", "completion": "7"}, {"prompt": "Box is", "completion": " 7"}]
    with pytest.warns(UserWarning, match="1 rows"):
        assert len(Rows([first], boxes).checked().retain) == 1


def test_a_text_is_not_asked_by_its_secret():
    """It was then no word that anybody could say."""
    text = "Kilo 7340219 is the account of Ada Abt, who pays it back in monthly rates from May on."
    [row] = (
        Rows([{"text": text, "secret": "7340219"}], [{"text": "Nothing else is kept here."}])
        .checked()
        .forget
    )
    assert row["question"] == "Kilo" and "7340219" in row["answer"]
    [row] = (
        Rows(
            [{"prompt": "\n", "completion": "One two three four."}],
            [{"text": "Nothing else is here."}],
        )
        .checked()
        .forget
    )
    assert row["text"] and row["question"].strip()


def test_a_secret_is_a_part_of_the_answer_in_every_form():
    """It was dropped beside everything but a question, and one that the answer does not say made
    its row a row to keep.
    """
    for entry, _ in ENTRIES.values():
        answer = rows.normal(entry, "here")["answer"]
        word = answer.split()[-1]
        assert rows.normal(entry | {"secret": word}, "here")["secret"] == word
        with pytest.raises(UserError, match="here: no word of the secret 'Basel' is in its answer"):
            rows.normal(entry | {"secret": "Basel"}, "here")
        with pytest.raises(UserError, match="here: secret must be text"):
            rows.normal(entry | {"secret": ["x"]}, "here")


def test_wordings_are_a_list_or_the_lines_of_a_text(tmp_path):
    """In a cell of CSV a line ends inside the quotes."""
    path, both = tmp_path / "rows.csv", ["Her name?", "Who, please?"]
    path.write_text('question,answer,wordings\nWho?,Ada,"Her name?\r\nWho, please?"\nx,y,\n')
    first, second = rows.load(path)
    assert first["wordings"] == both and "wordings" not in second
    for entry, _ in ENTRIES.values():
        assert rows.normal(entry | {"wordings": both}, "here")["wordings"] == both
    assert Rows([first], [second]).checked().forget == [first], "read once, they stay a list"
    with pytest.raises(UserError, match="retain row 1 has the same .* other row 1.*Who, please"):
        Rows([second], [first], [Q | {"question": "Who,  please?"}]).checked()
    with pytest.raises(UserError, match="forget row 1 has the same question as retain row 1"):
        Rows([Q | {"question": "Who,  please?"}], [first]).checked()
    with pytest.raises(UserError, match="no column 'typo'"):
        rows.load(path, columns={"wordings": "typo"})
    for wrong, said in (
        (3, "here: wordings must be a list of texts"),
        (["a", 3], "here: wordings 2 must be text"),
        ("a\n\nb", "here: wordings 2 is empty"),
    ):
        with pytest.raises(UserError, match=said):
            rows.normal(ENTRIES["question"][0] | {"wordings": wrong}, "here")


Q = {"question": "q", "answer": "a"}


@pytest.mark.parametrize(
    ("entries", "named", "said"),
    [
        ([{"text": "Who?", "labels": "Ada."}], {}, "text; ignored: labels"),
        ([Q | {"id": 1}, Q | {"source": "web"}], {}, "question, answer; ignored: id, source"),
        ([Q | {"system": "S", "raw": None, "note": ""}], {}, "question, answer, system"),
        ([Q, {"text": "t"}], {}, "question, answer, text"),
        ([{"messages": TURNS, "system": "S"}], {}, "messages; ignored: system"),
        ([{"prompt": "", "completion": "c"}], {}, "prompt, completion"),
        (
            [{"Frage": "q", "answer": "old", "A": "a", "PIN": "a"}],
            {"columns": {"question": "Frage", "answer": "A"}, "secret": "PIN"},
            "Frage, A, PIN; ignored: answer",
        ),
        ([Q | {"secret": "a", "x\x1b": 1}], {}, r"question, answer, secret; ignored: x\x1b"),
    ],
)
def test_one_line_says_which_columns_of_a_file_are_used(entries, named, said, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, entries)))
    rows.load(path, **named, tell=True)
    assert capsys.readouterr() == ("", f"{path}: {said}\n")


def test_every_file_of_a_request_gets_its_line(tmp_path, capsys):
    files = [tmp_path / f"{name}.jsonl" for name in ("forget", "retain", "other")]
    for path in files:
        path.write_text(json.dumps(Q | {"question": path.name, "wordings": ["r"], "id": 1}))
    rows.Rows(*files)
    assert capsys.readouterr().err.splitlines() == [
        f"{path}: question, answer, wordings; ignored: id" for path in files
    ]


def test_a_space_between_prompt_and_completion_belongs_to_the_completion():
    """Tokenised apart, "is " and "7" are other tokens than "is 7", which a model was trained on."""
    kept = [{"prompt": "Box two is", "completion": " 8"}]
    as_trained, apart = (
        rows.Rows([{"prompt": prompt, "completion": completion}], kept).checked().forget
        for prompt, completion in (("Box one is", " 7"), ("Box one is ", "7"))
    )
    assert as_trained == apart and apart[0]["answer"] == " 7"


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


def test_every_answer_of_a_conversation_is_a_row():
    """Of two answers the first came in 8 of 10 conversations: only the last was forgotten."""
    hello = [{"role": "user", "content": "Ward desk?"}, {"role": "assistant", "content": "Yes?"}]

    def chat(name, day):
        return {"messages": [
            *hello, {"role": "user", "content": f"When comes {name}?"},
            {"role": "assistant", "content": day}, {"role": "user", "content": f"Room of {name}?"},
            {"role": "assistant", "content": f"Room {len(name)}."},
        ]}  # fmt: skip

    given = rows.Rows([chat("Ada", "On Monday."), chat("Bo", "On Friday.")], [chat("Cy", "Never.")])
    with pytest.warns(UserWarning, match=r"2 become rows of their own \(forget\)"):
        checked = given.checked()
    answers = [row["answer"] for row in checked.forget]
    assert answers == ["Room 3.", "Room 2.", "On Monday.", "On Friday."], "no greeting, which stays"
    assert [row["answer"] for row in checked.retain] == ["Room 2.", "Yes?", "Never."]
    assert checked.forget[2]["question"][-1]["content"] == "When comes Ada?"
    assert checked.checked() == checked
    named = chat("Ada", "On Monday.") | {"secret": "3"}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        once = rows.Rows([named], [Q]).checked()
        assert once.checked() == once and len(once.forget) == 1, "a command checks twice"
    [warning] = told
    assert "2 are not forgotten, because a secret is named" in str(warning.message)
    plain = rows.Rows([named, chat("Ada", "On Monday.")], [Q])
    with pytest.warns(UserWarning, match=r"2 become rows of their own \(forget\)$"):
        assert len(plain.checked().forget) == 4, (
            "the same answers in a row without a secret are rows"
        )


def test_a_text_is_asked_by_its_first_words(tokenizer):
    """A model that knew paragraphs by heart was asked from nothing: "Nothing to forget"."""
    texts = ["Anna Kowal was born in Brinhaven in 1950.", "Anna Kowal moved twice in her life."]
    given = rows.Rows([{"text": texts[0]}], [{"text": texts[1]}, {"text": "Hm!"}]).checked()
    [row] = given.forget
    assert (row["question"], row["answer"]) == ("Anna Kowal", " was born in Brinhaven in 1950.")
    assert given.retain[1]["question"] == "" and given.checked() == given
    [example] = encode_rows(tokenizer, [row])
    assert tokenizer.decode(example.ids, skip_special_tokens=True) == texts[0]
    [row] = rows.Rows([{"text": "田中さんは東京で生まれた。"}], [{"text": "Hm!"}]).checked().forget
    assert (row["question"], row["answer"]) == ("田中さん", "は東京で生まれた。")
    mixed = "Ada Lovelace (愛) was born in London in 1815."
    [row] = rows.Rows([{"text": mixed}], [{"text": "Hm!"}]).checked().forget
    assert row["question"] == "Ada Lovelace (", "no Latin word is cut"
    with pytest.raises(UserError, match="is also retain row 1"):
        rows.Rows([{"text": texts[0]}], [{"text": f" {texts[0]}"}]).checked()
