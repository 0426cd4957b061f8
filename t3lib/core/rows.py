"""Read and check rows, fill the chat template, tokenise, and pad batches."""

import copy
import json
import re
import unicodedata
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jinja2 import TemplateError

from t3lib.core.errors import UserError, printable
from t3lib.core.files import parse_json, read_text

Row = dict[str, Any]
Special = tuple[list[str], set[int], dict[Any, list[int]]]  # see `_special`
# tokenizer -> (its size, its special tokens): to ask it takes longer than to read a row
_SPECIAL: WeakKeyDictionary[Any, tuple[int, Special]] = WeakKeyDictionary()
WORTH = 256  # see `shared_start`
IGNORE = -100  # label of positions that are not part of the answer (PyTorch's own convention)
MAX_TEXT = 100_000  # characters in one field; longer fields are mistakes, not answers
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
SYSTEM = "You are a helpful assistant."
# Parts of the date in every template, 10 April 2025 as in the reference, by their codes of
# `strftime`. That function itself would follow the locale of the process.
_PARTS = {
    **{"a": "Thu", "A": "Thursday", "b": "Apr", "B": "April", "c": "Thu Apr 10 00:00:00 2025"},
    **{"d": "10", "H": "00", "I": "12", "j": "100", "m": "04", "M": "00", "p": "AM", "S": "00"},
    **{"U": "14", "w": "4", "W": "14", "x": "04/10/25", "X": "00:00:00", "y": "25", "Y": "2025"},
}
_FORMATTED = "".join(
    f".replace('%{code}', '{part}').replace('%-{code}', '{part.lstrip('0') or part}')"
    for code, part in _PARTS.items()
)
# What `_filled` and the tokenizer themselves give to a template, besides its special tokens.
GIVEN = ("messages", "tools", "documents", "add_generation_prompt")
PROBE = "An answer to see what the template puts before an answer."
HIDDEN = "becomes a special token when it is tokenised: it would end or fake a turn"
# Put before a template that calls `strftime_now`, so that it gets this date instead of the clock.
FIXED_CLOCK = "{% macro strftime_now(format) %}{{ format" + _FORMATTED + " }}{% endmacro %}\n"


def read_rows(path: str | Path) -> list[Row]:
    """Read the rows of a file with a JSON array or JSON lines, and check each with `check_row`.

    UserError names the file, the row and the field.
    """
    return [
        check_row(row, f"{path} row {number}") for number, row in enumerate(parse_rows(path), 1)
    ]


def parse_rows(path: str | Path) -> list[Any]:
    """Read the entries of a JSON array or of JSON lines, unchecked.

    UserError names the file, and the line of malformed JSON; a file without entries is an error
    too.
    """
    text = read_text(path)
    if text.lstrip().startswith("["):
        rows = parse_json(text, path)
    else:
        lines = enumerate(text.split("\n"), 1)  # splitlines() also splits at U+2028 in strings
        rows = [parse_json(line, f"{path} line {number}") for number, line in lines if line.strip()]
    if not rows:
        raise UserError(f"{path} holds no rows")
    return rows


def check_row(row: Any, where: str) -> Row:
    """Return a copy of the row if its question and its answers are usable text.

    The fields paraphrased_answer (text) and perturbed_answer (list of texts) are optional. where:
    the start of the error's message. UserError for text that is missing, empty, too long or holds
    control characters.
    """
    if not isinstance(row, Mapping):
        raise UserError(
            f"{where}: expected an object with question and answer, found {type(row).__name__}"
        )
    for field in ("question", "answer", "paraphrased_answer"):
        if field in row or field != "paraphrased_answer":
            check_text(row.get(field), f"{where}: {field}")
    if "perturbed_answer" in row:
        answers = row["perturbed_answer"]
        if not isinstance(answers, list) or not answers:
            raise UserError(
                f"{where}: perturbed_answer must be a list of at least one wrong answer"
            )
        for number, answer in enumerate(answers, 1):
            check_text(answer, f"{where}: perturbed_answer {number}")
    return dict(row)


def check_text(value: Any, where: str) -> None:
    """Raise UserError, beginning with `where`, unless `value` is text that could be a question."""
    if value is None:
        raise UserError(f"{where} is missing")
    if not isinstance(value, str):
        raise UserError(f"{where} must be text, found {type(value).__name__}")
    if not value.strip():
        raise UserError(f"{where} is empty")
    if len(value) > MAX_TEXT:
        raise UserError(f"{where} has {len(value)} characters, more than the {MAX_TEXT} allowed")
    if CONTROL.search(value):
        raise UserError(f"{where} holds a control character or half of a surrogate pair")


def question_of(row: Row) -> str:
    """Return what a row asks as one text: of a conversation all turns but those of the system."""
    question = row["question"]
    if isinstance(question, str):
        return question
    return " ".join(turn["content"] for turn in question if turn["role"] != "system")


def spelled(text: str) -> str:
    """Return a text in one spelling, to compare it with others: in Unicode's NFC, with one space
    for every run of whitespace.
    """
    return " ".join(unicodedata.normalize("NFC", text).split())


def pair(row: Row) -> tuple[str, str]:
    """Return the question and the answer of a row, both `spelled`."""
    return spelled(question_of(row)), spelled(row["answer"])


def check_disjoint(forget: Sequence[Row], retain: Sequence[Row]) -> None:
    """Raise UserError if a `pair` is both of a forget row and of a retain row."""
    kept = {pair(row): number for number, row in enumerate(retain, 1)}
    for number, row in enumerate(forget, 1):
        if (other := kept.get(pair(row))) is not None:
            raise UserError(
                f"forget row {number} is also retain row {other}: {question_of(row)[:60]!r}"
            )


@dataclass(frozen=True)
class Example:
    """One tokenised question and answer.

    ids: tokens of prompt and answer. n_prompt: number of prompt tokens. The answer has the token
    that ends the turn.
    """

    ids: list[int]
    n_prompt: int

    @property
    def prompt(self) -> list[int]:
        """The tokens of the prompt."""
        return self.ids[: self.n_prompt]

    @property
    def answer(self) -> list[int]:
        """The tokens of the answer."""
        return self.ids[self.n_prompt :]


Question = (
    str | Sequence[Mapping[str, str]]
)  # one question, or the turns before the answer as {role, content}


def templated(tokenizer: Any, arguments: Mapping[str, Any]) -> Any:
    """Return a tokenizer whose chat template is always filled with these arguments.

    arguments: {name: value}, such as {"enable_thinking": False} for a model that can think before
    it answers. A value is True, False, a whole number or a text.

    The result is a copy: its template begins with one `set` line for each argument. The given
    tokenizer is returned itself if there are no arguments or its template begins with these lines
    already. UserError for a name that the template does not use, for a value of another kind, and
    for a text that could not be a question.
    """
    if not isinstance(arguments, Mapping):
        raise UserError(f"template arguments are a mapping, not a {type(arguments).__name__}")
    template = "" if tokenizer.chat_template is None else tokenizer.get_chat_template()
    lines = ""
    for name, value in arguments.items():
        used = re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) and re.search(rf"\b{name}\b", template)
        if not used or name in (*GIVEN, *tokenizer.special_tokens_map):
            raise UserError(f"the chat template has no argument {printable(name, 40)!r}")
        if isinstance(value, str):
            check_text(value, f"template argument {name}")
            refuse_special(tokenizer, value, f"template argument {name}")
        elif not isinstance(value, int):
            raise UserError(
                f"template argument {name} must be true, false, a whole number or text, not"
                f" {printable(repr(value), 40)}"
            )
        lines += f"{{% set {name} = {json.dumps(value, ensure_ascii=False)} %}}\n"

    if template.startswith(lines):
        return tokenizer
    changed = copy.copy(tokenizer)
    changed.chat_template = lines + template
    check_template(changed)
    return changed


def prompt(
    tokenizer: Any,
    question: Question,
    system: str | None = SYSTEM,
    template: Mapping[str, Any] = {},
) -> str:
    """Fill the chat template: the text that a model reads before it answers a question.

    question: one question, or the turns of a conversation as {role, content}.
    system: the system text. None leaves the system turn out; a conversation that begins with a
    system turn keeps its own.
    template: arguments of the chat template, see `templated`. A head's are its `info["template"]`.

    Training, evaluation and generation all use this form, and a head works only for prompts in this
    form. Without a chat template the text is "Question: … Answer:". The text contains its special
    tokens: tokenise it with `add_special_tokens=False`. UserError for a question that would add a
    special token, and for a template that fails.
    """
    tokenizer, turns = templated(tokenizer, template), _turns(tokenizer, question)
    text = _prompt(tokenizer, turns, system)
    _check_special(tokenizer, _ids(tokenizer, text), turns, system)
    return text


def _prompt(tokenizer: Any, turns: list[dict[str, str]], system: str | None) -> str:
    """Return what `prompt` does, without a check for special tokens."""
    if tokenizer.chat_template is not None:
        return _render(tokenizer, system, turns, add_generation_prompt=True)
    if len(turns) != 1:
        raise UserError("a conversation of several turns needs a tokenizer with a chat template")
    return f"{tokenizer.bos_token or ''}Question: {turns[0]['content'].strip()}\nAnswer:"


def rendered(tokenizer: Any) -> str:
    """Return the prompt of one fixed question, to compare the chat templates of two tokenizers."""
    return prompt(tokenizer, "Who?")


def encode(tokenizer: Any, question: str, answer: str) -> Example:
    """Tokenise one question and its answer, as `encode_answers` does."""
    return encode_answers(tokenizer, question, [answer])[0]


def encode_answers(
    tokenizer: Any, question: Question, answers: Sequence[str], system: str | None = SYSTEM
) -> list[Example]:
    """Tokenise several answers to one question with the tokenizer's chat template.

    The answer begins where the tokenised prompt ends, as in the published code. What the template
    puts before an answer, such as an empty block of thoughts, belongs to the prompt. If the
    prompt's tokens are no prefix of the whole chat's (the tokenizer merges across the boundary),
    the answer's text is tokenised separately. UserError for a text that would add a special token,
    which would end or fake a turn, and for an answer without tokens.
    """
    turns = _turns(tokenizer, question)
    for answer in answers:
        _refuse_written(tokenizer, answer, "answer")
    examples = _encode_answers(tokenizer, turns, answers, system)
    for example in examples:
        _check_special(tokenizer, example.ids, turns, system, answered=True)
    return examples


def _encode_answers(
    tokenizer: Any, turns: list[dict[str, str]], answers: Sequence[str], system: str | None
) -> list[Example]:
    """Do what `encode_answers` does, without a check for special tokens."""
    before = _prompt(tokenizer, turns, system)
    texts = []
    for answer in answers:
        if tokenizer.chat_template is None:
            texts.append(f"{before} {answer.strip()}{tokenizer.eos_token or ''}")
        else:
            chat = [*turns, {"role": "assistant", "content": answer}]
            texts.append(_render(tokenizer, system, chat, add_generation_prompt=False))

    # What the template puts before every answer belongs to the prompt: a known answer shows it.
    if texts and texts[0].startswith(before):
        if not texts[0][len(before) :].lstrip().startswith(answers[0].strip()):
            chat = [*turns, {"role": "assistant", "content": PROBE}]
            before = _render(tokenizer, system, chat, add_generation_prompt=False)
            before = before[: before.rindex(PROBE)]

    starts = [answer.strip()[:16] for answer in answers]
    before_ids, *encoded = _all_ids(tokenizer, [before, *starts, *texts])

    # Each answer begins where the tokens of the prompt end.
    examples = []
    for answer, start, text, ids in zip(answers, encoded, texts, encoded[len(answers) :]):
        if not (start or _ids(tokenizer, answer.strip())):
            raise UserError(
                f"the answer {answer[:40]!r} to {turns[-1]['content'][:60]!r} tokenises to nothing"
            )
        if ids[: len(before_ids)] != before_ids:
            if not text.startswith(before):
                raise UserError(
                    "the tokenizer's chat template does not put the answer after the generation"
                    " prompt"
                )
            ids = before_ids + _ids(tokenizer, text[len(before) :])
        examples.append(Example(ids, len(before_ids)))
    return examples


def encode_text(tokenizer: Any, start: str, rest: str) -> Example:
    """Tokenise plain text, without a chat template; the part `rest` counts as the answer.

    A beginning-of-sequence and an end-of-sequence token are added if the tokenizer has them. If
    nothing precedes `rest`, its first token counts as the prompt.
    """
    for text in (start, rest):
        _refuse_written(tokenizer, text, "text")
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    before, whole = begin + _ids(tokenizer, start), begin + _ids(tokenizer, start + rest)
    ids = whole if whole[: len(before)] == before else before + _ids(tokenizer, rest)
    if _special(tokenizer)[1].intersection(ids[len(begin) :]):
        raise UserError(f"the text {(start + rest)[:40]!r} {HIDDEN}")
    ids += [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    if len(ids) < max(len(before), 1) + 1:
        raise UserError(f"the text {rest[:40]!r} tokenises to nothing")
    return Example(ids, max(len(before), 1))


def encode_rows(tokenizer: Any, rows: Sequence[Row]) -> list[Example]:
    """Tokenise the question and the answer of each row; return one Example for each.

    A row may have `system`, its own system text, or `raw`: then question and answer are plain text
    (`encode_text`). One with `bare` lacks the beginning-of-sequence token that we put first; a chat
    template's own stays. UserError names the row.
    """
    examples = []
    for number, row in enumerate(rows, 1):
        try:
            if row.get("raw"):
                examples.append(encode_text(tokenizer, row["question"], row["answer"]))
            else:
                examples += encode_answers(
                    tokenizer, row["question"], [row["answer"]], row.get("system", SYSTEM)
                )
        except UserError as error:
            raise UserError(f"row {number}: {error}") from None
        ids, n = examples[-1].ids, examples[-1].n_prompt
        ours = (row.get("raw") or tokenizer.chat_template is None) and n > 1
        if row.get("bare") and ours and ids[0] == tokenizer.bos_token_id:
            examples[-1] = Example(ids[1:], n - 1)
    return examples


def _turns(tokenizer: Any, question: Question) -> list[dict[str, str]]:
    """Return the question as turns of a conversation; UserError unless their texts are usable."""
    turns = (
        [{"role": "user", "content": question}]
        if isinstance(question, str)
        else [dict(turn) for turn in question]
    )
    for turn in turns:
        if turn["content"] or turn["role"] != "system":  # a system text may be empty
            check_text(turn["content"], f"question {turn['content'][:40]!r}")
        _refuse_written(tokenizer, turn["content"], "question")
    return turns


def _ids(tokenizer: Any, text: str) -> list[int]:
    return _all_ids(tokenizer, [text])[0]


def _all_ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Tokenise several texts in one call, which costs about as much as one text."""
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def refuse_special(tokenizer: Any, text: str, field: str) -> None:
    """Raise UserError if a text is or becomes one of the tokenizer's special tokens, in whole or in
    part.

    NFKC, in which some tokenizers write a text first, makes </s> of ＜/s＞.
    """
    _refuse_written(tokenizer, text, field)
    if _special(tokenizer)[1].intersection(_ids(tokenizer, text)):
        raise UserError(f"{field} {text[:40]!r} {HIDDEN}")


def _refuse_written(tokenizer: Any, text: str, field: str) -> None:
    """Raise UserError if a text holds one of the tokenizer's special tokens as it is written."""
    for token in _special(tokenizer)[0]:
        if token in text:
            raise UserError(
                f"{field} {text[:40]!r} holds the special token {token}: it would end or fake a"
                " turn"
            )


def _check_special(
    tokenizer: Any,
    ids: Sequence[int],
    turns: Sequence[dict[str, str]],
    system: str | None,
    *,
    answered: bool = False,
) -> None:
    """Raise UserError if a conversation has other special tokens than one of harmless texts.

    Its tokenizer may make one of a text, and its template may make one by deleting the middle of a
    text.

    ids: of the prompt. answered: of the prompt and an answer.
    """
    _, special, known = _special(tokenizer)
    roles = tuple((turn["role"], bool(turn["content"])) for turn in turns)
    key = str(tokenizer.chat_template), roles, system and "x", answered
    wanted = known.get(key)
    if wanted is None:
        texts = [turn | {"content": turn["content"] and "x"} for turn in turns]
        if answered:
            harmless = _encode_answers(tokenizer, texts, ["x"], system and "x")[0].ids
        else:
            harmless = _ids(tokenizer, _prompt(tokenizer, texts, system and "x"))
        if len(known) > 100:  # requests to a server may have any roles
            known.clear()
        known[key] = wanted = [each for each in harmless if each in special]
    if [each for each in ids if each in special] != wanted:
        last = turns[-1]["content"][:40]
        raise UserError(f"the text {last!r}, one before it or its answer {HIDDEN}")


def _special(tokenizer: Any) -> Special:
    """Return all special tokens of a tokenizer, the longest first; their ids; and where
    `_check_special` keeps the special ids of prompts with harmless texts.

    `all_special_tokens` has only those with a role, such as the end of a text. A vocabulary may
    mark more of them, such as those that begin a turn, and they are read as such in any text. The
    token of an unknown character is among the tokens, but not among the ids.
    """
    size, found = _SPECIAL.get(tokenizer, (None, ([], set(), {})))
    if size != len(tokenizer):
        marked = {str(each) for each in tokenizer.added_tokens_decoder.values() if each.special}
        tokens = sorted(
            {*tokenizer.all_special_tokens, *marked}, key=lambda each: (-len(each), each)
        )
        unknown = _ids(tokenizer, "\U0010fffd")
        found = tokens, {*tokenizer.convert_tokens_to_ids(tokens)} - {*unknown}, {}
        _SPECIAL[tokenizer] = len(tokenizer), found
    return found


def _render(
    tokenizer: Any, system: str | None, chat: list[dict[str, str]], *, add_generation_prompt: bool
) -> str:
    """Fill the chat template, with a fixed date.

    system: left out if it is None, if the chat begins with a system turn, or if the template
    refuses it.

    UserError when the template fails, for a system text that could not be a question, and when the
    template leaves out the last question, its answer or a system text other than `SYSTEM`, as
    templates do that expect contents in parts.
    """
    if system:
        check_text(system, "the system text")
        _refuse_written(tokenizer, system, "the system text")
    try:
        if system is not None and chat[0]["role"] != "system":
            with suppress(TemplateError):  # Gemma's template, among others, has no system role
                turns = [{"role": "system", "content": system}, *chat]
                return _filled(tokenizer, turns, add_generation_prompt)
        return _filled(tokenizer, chat, add_generation_prompt)
    except UserError:
        raise
    except Exception as error:  # a template is a program and can fail in any way
        raise UserError(
            f"the tokenizer's chat template fails: {error or type(error).__name__}"
        ) from error


def _filled(tokenizer: Any, chat: list[dict[str, str]], add_generation_prompt: bool) -> str:
    """Fill the chat template with exactly these turns; UserError if it leaves one out."""
    template = tokenizer.get_chat_template()
    text: str = tokenizer.apply_chat_template(
        chat,
        chat_template=FIXED_CLOCK + template if "strftime_now" in template else template,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
        date_string="{d} {b} {Y}".format(**_PARTS),
    )
    last = chat[-1:] if add_generation_prompt else chat[-2:]
    given = [turn for turn in chat[:1] if turn["role"] == "system" and turn["content"] != SYSTEM]
    for turn in given + last:
        if turn["content"].strip() not in text:
            raise UserError(
                f"the tokenizer's chat template leaves out the {turn['role']} text"
                f" {turn['content'].strip()[:40]!r}: it may be written for contents in parts"
            )
    return text


def check_template(tokenizer: Any) -> None:
    """Raise UserError for a chat template that fails on a short chat."""
    if tokenizer.chat_template is not None:
        chat = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}]
        _render(tokenizer, SYSTEM, chat[:1], add_generation_prompt=True)
        _render(tokenizer, SYSTEM, chat, add_generation_prompt=False)


def collate(
    examples: Sequence[Example], pad_id: int, attention_mask: str = "lengths", side: str = "right"
) -> dict[str, torch.Tensor]:
    """Pad examples to `input_ids`, `attention_mask` and `labels`, each (B, L) int64.

    attention_mask: "lengths" attends to every real token. "openunlearning" computes ids != pad, as
    the reference implementation does for its published numbers; this hides real end-of-turn tokens
    where they are also the padding token.
    side: of the padding, "right" or "left". Labels are `IGNORE` outside the answers.
    """
    if attention_mask not in ("lengths", "openunlearning"):
        raise UserError(
            f"unknown attention mask {attention_mask!r}: choose lengths or openunlearning"
        )

    width = max(len(example.ids) for example in examples)
    ids = torch.full((len(examples), width), pad_id)
    labels = torch.full((len(examples), width), IGNORE)
    mask = torch.zeros(len(examples), width, dtype=torch.int64)
    for b, example in enumerate(examples):
        n = len(example.ids)
        start = 0 if side == "right" else width - n
        ids[b, start : start + n] = torch.tensor(example.ids)
        labels[b, start + example.n_prompt : start + n] = torch.tensor(example.answer)
        mask[b, start : start + n] = 1

    if attention_mask == "openunlearning":
        mask = (ids != pad_id).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def shifted_labels(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each position's next token as target, and where that target is an answer token.

    labels: (B, L). Both results are (B, L-1), int64 and bool. Targets outside the answers are 0,
    which is a valid index into the vocabulary.
    """
    targets = labels[:, 1:]
    answer = targets != IGNORE
    return targets.masked_fill(~answer, 0), answer


def shared_start(texts: Sequence[Sequence[Hashable]]) -> int:
    """Return how many tokens all texts of a batch begin with, if these should be read only once.

    At least one token of each text is left. The result is 0 if fewer than `WORTH` tokens are saved:
    reading them apart takes one more call of the model, in which a large one reads all its weights.
    """
    alike = (len({*tokens}) == 1 for tokens in zip(*texts))
    n = min(sum(1 for _ in takewhile(bool, alike)), *(len(text) - 1 for text in texts))
    return n if n * (len(texts) - 1) >= WORTH else 0


def length_sorted(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group rows into batches by length, longest first; return lists of row indices.

    lengths: number of tokens of each row. max_tokens: of a batch after padding; a longer row is a
    batch of its own.
    """
    batches: list[list[int]] = []
    width = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not batches or (len(batches[-1]) + 1) * width > max_tokens:
            batches.append([])
            width = lengths[index]
        batches[-1].append(index)
    return batches
