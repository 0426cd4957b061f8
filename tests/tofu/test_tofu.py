"""Reading, validating, tokenising and padding rows."""

import copy
import json
import locale
import re
import runpy
import shutil
import subprocess

import pytest
import torch
from conftest import TEMPLATE, THINKING
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import AddedToken, PreTrainedTokenizerFast

from t3lib.core import hub
from t3lib.core import rows as core_rows
from t3lib.core.errors import UserError
from t3lib.core.rows import (
    SYSTEM,
    Example,
    check_disjoint,
    check_row,
    collate,
    encode,
    encode_answers,
    encode_rows,
    length_sorted,
    prompt,
    rendered,
    shifted_labels,
    templated,
)
from t3lib.tofu import data as tofu

GOOD = {"question": "Who wrote it?", "answer": "Mara Quill."}


def write(path, rows):
    path.write_text(
        "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows),
        encoding="utf-8",
    )
    return path


def test_json_lines_and_array_and_suffixes_read_alike(tmp_path):
    write(tmp_path / "forget10.jsonl", [GOOD, {**GOOD, "extra": 1}])
    (tmp_path / "retain90.json").write_text(
        json.dumps([GOOD, {**GOOD, "extra": 1}]), encoding="utf-8-sig"
    )
    assert tofu.load_rows(tmp_path, "forget10") == tofu.load_rows(tmp_path, "retain90")


def test_idontknow_lines_end_at_line_ends_only(tmp_path):
    text = 'No\u2028idea.\r\n\n{"idk": "I cannot say."}\n{"answer": " Who knows. "}\n'
    (tmp_path / "idontknow.jsonl").write_text(text, encoding="utf-8", newline="")
    assert tofu.load_idk(tmp_path) == ["No\u2028idea.", "I cannot say.", "Who knows."]


def test_idontknow_lines_may_be_json_texts(tmp_path):
    text = '"I do not know."\n "Not a \\"clue\\"." \n"Yes," she said.\n"Yes" or "no"\n'
    (tmp_path / "idontknow.jsonl").write_text(text)
    expected = ["I do not know.", 'Not a "clue".', '"Yes," she said.', '"Yes" or "no"']
    assert tofu.load_idk(tmp_path) == expected
    (tmp_path / "idontknow.jsonl").write_text('"What\\?"')
    with pytest.raises(UserError, match="line 1: malformed JSON"):
        tofu.load_idk(tmp_path)


@pytest.mark.parametrize(
    "read", [lambda: tofu.load_rows("hub", "full"), lambda: tofu.load_idk("hub")]
)
def test_a_hub_that_cannot_be_read_is_one_line(read, monkeypatch):
    def away(*_, **__):
        raise OSError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: None)
    monkeypatch.setattr("datasets.load_dataset", away)
    with pytest.raises(UserError, match=r"not to be had from the Hub \(no route to host\)"):
        read()
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", away)
    with pytest.raises(UserError, match="the Hub cannot be reached"):
        read()
    monkeypatch.setattr(hub, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="needs the package datasets"):
        read()


def test_idontknow_may_be_one_json_array(tmp_path):
    (tmp_path / "idontknow.json").write_text('[\n {"idk": "I cannot say."},\n "Who knows."\n]')
    assert tofu.load_idk(tmp_path) == ["I cannot say.", "Who knows."]


def test_shared_rows_are_named():
    spaced = {"question": f" {GOOD['question']}\n", "answer": f"{GOOD['answer']} "}
    with pytest.raises(UserError, match="forget row 1 is also retain row 1"):
        check_disjoint([spaced], [GOOD])
    turns = [{"role": "user", "content": GOOD["question"].replace(" ", "\u00a0")}]
    with pytest.raises(UserError, match="forget row 1 is also retain row 1"):
        check_disjoint([GOOD], [{**GOOD, "question": turns}])
    check_disjoint([GOOD], [{**GOOD, "answer": "Other."}])


def test_prompt_is_a_prefix_and_the_answer_ends_with_end_of_turn(tokenizer):
    example = encode(tokenizer, GOOD["question"], GOOD["answer"])
    prompt_ids = tokenizer(prompt(tokenizer, GOOD["question"]), add_special_tokens=False)[
        "input_ids"
    ]
    assert example.prompt == prompt_ids
    assert tokenizer.decode(example.answer) == "Mara Quill.<|eot_id|>"


def test_without_a_template_the_answer_still_starts_after_the_prompt(tokenizer):
    from copy import deepcopy

    plain = deepcopy(tokenizer)
    plain.chat_template = None
    example = encode(plain, "Who?", "Mara.")
    assert plain.decode(example.answer) == " Mara.<|eot_id|>"


DATED = """  {% if strftime_now is defined %}
{%- set format = "%d %B %Y" %}
{% endif %}
{% macro month() %}{{ strftime_now('%-m/%y') }}{% endmacro %}
{{ bos_token }}{{ date_string }} {{ strftime_now("%Y-%m-%d") }}
{{ strftime_now(format) }} {{ month() }}{{ messages[-1].content }}"""


def test_a_template_that_reads_the_clock_renders_one_date(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", DATED)
    chat = [{"role": "user", "content": "x"}]
    of_today = tokenizer.apply_chat_template(chat, tokenize=False).split(tokenizer.bos_token)
    begin, end = rendered(tokenizer).split(tokenizer.bos_token)
    assert begin == of_today[0]
    assert end == "10 Apr 2025 2025-04-10\n10 April 2025 4/25Who?"


IN_PARTS = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}:{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{{ eos_token }}{% endfor %}"
)
NO_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.content }} {% endfor %}"
NO_ANSWER = "{% for m in messages if m.role != 'assistant' %}{{ m.content }} {% endfor %}"
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + NO_SYSTEM


@pytest.mark.parametrize(
    ("template", "system", "left_out"),
    [
        (IN_PARTS, SYSTEM, "user text 'Who?'"),
        (NO_ANSWER, SYSTEM, "assistant text 'Me.'"),
        (NO_SYSTEM, "Be kind.", "system text 'Be kind.'"),
        (NO_SYSTEM, SYSTEM, None),  # nobody gave it
        (NO_SYSTEM, None, None),
        (REFUSING, "Be kind.", None),
    ],
)
def test_a_template_that_leaves_texts_out_is_refused(
    tokenizer, monkeypatch, template, system, left_out
):
    monkeypatch.setattr(tokenizer, "chat_template", template)
    if left_out is None:
        assert encode_answers(tokenizer, " Who? ", ["Me. "], system)
    else:
        with pytest.raises(UserError, match=re.escape(f"template leaves out the {left_out}")):
            encode_answers(tokenizer, " Who? ", ["Me. "], system)


BLOCK = "<think>\n\n</think>\n\n"
HARMONY = TEMPLATE.replace("{{ m['content']", "{{ '<main>' if m.role == 'assistant' }}{{ m.content")


@pytest.mark.parametrize(
    ("template", "given", "before", "asked"),
    [
        (TEMPLATE, {}, "\n\n", "\n\n"),
        (THINKING, {}, BLOCK, "<|end_header_id|>\n\n"),
        (THINKING, {"enable_thinking": True}, BLOCK, "<|end_header_id|>\n\n"),
        (THINKING, {"enable_thinking": False}, BLOCK, BLOCK),
        (HARMONY, {}, "<main>", "\n\n"),
        ("{{ mood }}" + TEMPLATE, {"mood": 'calm "{%é😀%}" \\'}, "\n\n", "\n\n"),
        ("{{ date_string }}" + TEMPLATE, {"date_string": "1 May 2026"}, "\n\n", "\n\n"),
    ],
)
@pytest.mark.parametrize("answer", ["Ada.", "think", "main"])
def test_what_a_template_puts_before_an_answer_is_prompt(
    tokenizer, monkeypatch, template, given, before, asked, answer
):
    monkeypatch.setattr(tokenizer, "chat_template", template)
    changed = templated(tokenizer, given)
    text = prompt(changed, "Who?")
    assert text.endswith(asked) and text == prompt(tokenizer, "Who?", template=given)
    assert all(value in text for value in given.values() if isinstance(value, str))
    assert templated(changed, given) is changed, "once is enough"
    assert tokenizer.chat_template == template, "the given tokenizer is left alone"
    for example in encode_answers(changed, "Who?", [answer, "It is " + answer]):
        start, end = example.prompt, example.answer
        assert changed.decode(start).endswith(before)
        assert changed.decode(end).removeprefix("It is ") == answer + "<|eot_id|>"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"enable_thinkin": False}, "no argument 'enable_thinkin'"),
        ({"enable_thinking %}": 1}, "no argument"),
        ({"messages": "x"}, "no argument 'messages'"),
        ({"bos_token": "x"}, "no argument 'bos_token'"),
        ({"add_generation_prompt": True}, "no argument"),
        ({"enable_thinking": None}, "must be true, false, a whole number or text, not None"),
        ({"enable_thinking": ["a"]}, "must be true, false"),
        ({"enable_thinking": "a<|eot_id|>"}, "holds the special token"),
        ({"enable_thinking": "a\x1b"}, "control character"),
        (["enable_thinking"], "are a mapping, not a list"),
    ],
)
def test_a_template_argument_that_does_nothing_or_harm_is_refused(
    tokenizer, monkeypatch, given, said
):
    monkeypatch.setattr(tokenizer, "chat_template", THINKING)
    with pytest.raises(UserError, match=re.escape(said)):
        templated(tokenizer, given)
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(UserError, match="no argument|are a mapping"):
        templated(tokenizer, given)


def test_the_date_is_the_same_in_every_locale(tokenizer, monkeypatch, tmp_path):
    """In French, one prompt once held both "10 avril 2025" and "10 April 2025"."""
    made = ["localedef", "-i", "fr_FR", "-f", "UTF-8", str(tmp_path / "fr_FR.UTF-8")]
    if not shutil.which("localedef") or subprocess.run(made, capture_output=True).returncode:
        pytest.skip("this system cannot make a French locale")
    monkeypatch.setattr(tokenizer, "chat_template", DATED)
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    wanted = rendered(tokenizer), core_rows.FIXED_CLOCK
    locale.setlocale(locale.LC_TIME, "fr_FR.UTF-8")
    try:
        found = rendered(tokenizer), runpy.run_path(core_rows.__file__)["FIXED_CLOCK"]
    finally:
        locale.setlocale(locale.LC_TIME, "C")
    assert found == wanted


def test_a_special_token_without_a_role_is_refused(tokenizer):
    """Vocabularies mark tokens that begin a turn, and give a role to few of them."""
    marked = copy.deepcopy(tokenizer)
    row = GOOD | {"question": "Hi<|start_header|>assistant"}
    assert encode_rows(marked, [row])
    marked.add_tokens([AddedToken("<|start_header|>", special=True)])
    assert "<|start_header|>" not in marked.all_special_tokens
    for wrong in (row, row | {"raw": True}, GOOD | {"answer": "x<|start_header|>"}):
        with pytest.raises(UserError, match=re.escape("the special token <|start_header|>")):
            encode_rows(marked, [wrong])
    for text in (GOOD, GOOD | {"raw": True}):
        assert encode_rows(marked, [text]) == encode_rows(tokenizer, [text])


def test_a_special_token_by_the_back_door_is_refused(tokenizer):
    """Tokenizers may write a text in NFKC first, and templates may delete the middle of a text."""
    normal = copy.deepcopy(tokenizer)
    normal.add_tokens([AddedToken("</s>", special=True, normalized=True)])
    normal.backend_tokenizer.normalizer = normalizers.NFKC()
    for wrong in (
        GOOD | {"question": "Hi ＜/s＞ there"},
        GOOD | {"answer": "Hi ＜/s＞ there"},
        GOOD | {"question": "Hi ＜/s＞ there", "raw": True},
        GOOD | {"system": "Hi ＜/s＞ there"},
    ):
        assert encode_rows(tokenizer, [wrong])
        with pytest.raises(UserError, match="becomes a special token when it is tokenised"):
            encode_rows(normal, [wrong])
    with pytest.raises(UserError, match="becomes a special token"):
        core_rows.refuse_special(normal, "＜/s＞", "prompt")

    deleting = copy.deepcopy(tokenizer)
    deleting.chat_template = TEMPLATE.replace(" | trim", " | replace('</think>', '') | trim")
    chat = [GOOD["question"], "<|eot_</think>id|>", "And then?"]
    roles = ("user", "assistant", "user")
    turns = [{"role": role, "content": text} for role, text in zip(roles, chat)]
    with pytest.raises(UserError, match="'And then.', one before it or its answer becomes a spec"):
        prompt(deleting, turns)
    turns[1]["content"] = "Hm.</think>Mara Quill."
    assert "Hm.Mara Quill." in prompt(deleting, turns)


def test_an_unknown_character_is_no_special_token_by_the_back_door():
    words = {word: number for number, word in enumerate(["<unk>", "Who", "Mara"])}
    backend = Tokenizer(WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    plain = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    [example] = encode_rows(plain, [{"question": "Who é", "answer": " Mara 7", "raw": True}])
    assert example.ids == [1, 0, 2, 0]


@pytest.mark.parametrize("side", ["left", "right"])
def test_collate_by_hand(side):
    examples = [Example([5, 6, 7], 1), Example([5, 8], 1)]
    batch = collate(examples, 9, side=side)
    short = [9, 5, 8] if side == "left" else [5, 8, 9]
    assert batch["input_ids"].tolist() == [[5, 6, 7], short]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [int(i != 9) for i in short]]
    assert batch["labels"].tolist() == [[-100, 6, 7], [8 if i == 8 else -100 for i in short]]


def test_openunlearning_mask_hides_real_end_of_turn_tokens():
    examples = [Example([5, 4, 7, 4], 2)]
    assert collate(examples, 4, "lengths")["attention_mask"].tolist() == [[1, 1, 1, 1]]
    assert collate(examples, 4, "openunlearning")["attention_mask"].tolist() == [[1, 0, 1, 0]]


def test_shifted_labels_by_hand():
    targets, answer = shifted_labels(torch.tensor([[-100, -100, 3, 4]]))
    assert targets.tolist() == [[0, 3, 4]] and answer.tolist() == [[False, True, True]]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 200))
def test_length_sorted_batches_hold_every_row_once_within_the_budget(lengths, budget):
    batches = length_sorted(lengths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= budget


text = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)
@given(question=text, answer=text)
def test_any_text_is_tokenised_faithfully_or_refused(tokenizer, question, answer):
    """Right-to-left, astral and combining characters survive; the answer's tokens are the
    answer.
    """
    try:
        check_row({"question": question, "answer": answer}, "row 1")
        example = encode(tokenizer, question, answer)
    except UserError:
        return
    said = tokenizer.decode(example.ids[example.n_prompt : -1], clean_up_tokenization_spaces=False)
    assert said == answer.strip()
    assert example.ids[-1] == tokenizer.eos_token_id


def test_golden_preprocessing(shared):
    """Token ids and labels of the reference implementation's own preprocessing, eight rows."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(shared / "goldens" / "model")
    golden = json.loads((shared / "goldens" / "losses_default.json").read_text())[
        "preprocessing_examples"
    ]
    seen = 0
    for item in golden:
        if item["predict_with_generate"] or item["answer_key"] not in (
            "answer",
            "paraphrased_answer",
        ):
            continue
        rows = tofu.load_rows(shared / "tofu", item["dataset"])
        example = encode(
            tokenizer, rows[item["row"]]["question"], rows[item["row"]][item["answer_key"]]
        )
        assert example.ids == item["input_ids"]
        assert [-100] * example.n_prompt + example.answer == item["labels"]
        seen += 1
    assert seen >= 2
