"""Greedy answers and likelihoods of a model's own rows, before and after, scored against every truth."""

import random
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t3lib.likelihood import UNTILTED, Tilt, answer_losses
from t3lib.metrics import rouge_l_recall
from t3lib.models import context_length, pad_id
from t3lib.tofu import Example, Row, encode_rows
from t3lib.writing import eos_ids, greedy

MOST_ROWS = 100  # rows of a set that are answered and scored: enough to judge, few enough to wait for
# Thai, Lao, Burmese, Khmer, kana, Chinese characters: words are not set apart.
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")
OTHERS = 20  # truths of other rows that an answer is compared with

Sets = Mapping[str, Sequence[Row]]


def drawn(rows: Sequence[Row], most: int = MOST_ROWS, seed: int = 0) -> list[Row]:
    """At most `most` of the rows, drawn without replacement, in their own order."""
    if len(rows) <= most:
        return list(rows)
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), most))]


def recall(truth: str, text: str) -> float:
    """ROUGE-L recall of a truth's words in a text, whatever their script: rouge_score knows the letters a to z alone.

    A word with another letter counts as one number; where a script has no spaces, and in a truth without any word (an
    emoji), each character does.
    """
    return rouge_l_recall(*(_spelt(some, characters=not re.search(r"\w", truth)) for some in (truth, text)))


def _spelt(text: str, characters: bool) -> str:
    """The text with whatever rouge_score would pass over written in digits."""

    def digits(match: re.Match[str]) -> str:
        word = match[0].lower()
        if word.isascii() and not characters:
            return word
        parts = word if characters or UNSPACED.search(word) else [word]
        return f" {' '.join(str(int.from_bytes(part.encode())) for part in parts)} "

    return re.sub(r"\S" if characters else r"\w+", digits, unicodedata.normalize("NFKC", text))


def closeness(rows: Sequence[Row], texts: Sequence[Sequence[str]], seed: int = 0) -> dict[str, Any]:
    """{own, nearest_other, verbatim}: how far each row's best text gives away its own answer, and those of others.

    texts: one or several per row, of which the best counts for each truth. own: mean ROUGE-L recall of the rows' own
    answers. nearest_other: mean over rows of the most that any other answer of the set reaches, of up to `OTHERS` drawn
    ones; None where the set holds one answer only. verbatim: rows whose text holds every word of their answer in order.
    One that the texts of rows with another answer hold as well was said to anyone ("Yes") and does not count.
    """
    answers = [row["answer"].strip() for row in rows]
    own, other, verbatim = [], [], 0
    for number, (truth, candidates) in enumerate(zip(answers, texts)):
        rest = [index for index, answer in enumerate(answers) if answer != truth]
        picked = random.Random(seed * 1_000_003 + number).sample(rest, min(OTHERS, len(rest)))
        own.append(_best(truth, candidates))
        other += [max(_best(answers[index], candidates) for index in picked)] if picked else []
        verbatim += own[-1] == 1 and all(_best(truth, texts[index]) < 1 for index in rest)
    return {"own": float(np.mean(own)), "nearest_other": float(np.mean(other)) if other else None, "verbatim": verbatim}


def _best(truth: str, texts: Sequence[str]) -> float:
    """Most of a truth's words that one of the texts holds."""
    return max(recall(truth, text) for text in texts)


def asked(row: Row) -> str:
    """The question of a row as one text; of a conversation the last turn before the answer."""
    question = row["question"]
    return question if isinstance(question, str) else question[-1]["content"]


def most_new_tokens(model: Any, examples: Sequence[Example]) -> int:
    """Twice the tokens of the longest answer, at least 16, but no more than the model's context leaves."""
    wanted = max(16, 2 * max(len(example.ids) - example.n_prompt for example in examples))
    return min(wanted, (context_length(model) or 10**9) - max(example.n_prompt for example in examples))


def measure(
    model: Any, tokenizer: Any, sets: Sets, tilts: Sequence[Tilt] = UNTILTED, *,
    attention_mask: str = "lengths", progress: bool = True,
) -> list[tuple[dict[str, Any], dict[str, list[str]]]]:  # fmt: skip
    """For every tilt (scores {set: {rouge, prob, n}}, greedy answers {set: texts}).

    rouge: mean ROUGE-L recall of the greedy answer; prob: mean p(answer)^(1/|answer|), |answer| in tokens; of forget
    sets also {own, nearest_other, verbatim} (see `closeness`). One base pass serves all tilts. model: any causal LM, or
    the base of the tilts.
    """
    flat = [(name, row) for name, rows in sets.items() for row in rows]
    examples = encode_rows(tokenizer, [row for _, row in flat])
    common: dict[str, Any] = {"pad_id": pad_id(tokenizer), "attention_mask": attention_mask, "progress": progress}
    losses = answer_losses(model, examples, tilts=tilts, **common)
    prompts = [example.ids[: example.n_prompt] for example in examples]
    common |= {"eos_ids": eos_ids(model, tokenizer), "max_new_tokens": most_new_tokens(model, examples)}
    outputs = greedy(model, prompts, tilts, **common)
    results = []
    for loss, output in zip(losses, outputs):
        scores: dict[str, Any] = {}
        texts: dict[str, list[str]] = {}
        start = 0
        for name, rows in sets.items():
            part = slice(start, start := start + len(rows))
            texts[name] = [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in output[part]]
            rouge = [recall(row["answer"], text) for row, text in zip(rows, texts[name])]
            scores[name] = {"rouge": float(np.mean(rouge)), "prob": float(np.exp(-loss[part]).mean()), "n": len(rows)}
            if name.endswith("forget"):
                scores[name] |= closeness(rows, [[text] for text in texts[name]])
        results.append((scores, texts))
    return results
