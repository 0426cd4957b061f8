"""Heads whose log f add up: do they still keep what each of them keeps?"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from t3lib.classifier.head import T3Head
from t3lib.core.models import pad_id
from t3lib.core.rows import Row, encode_rows
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.evaluation import answer_text
from t3lib.tofu.likelihood import Reading
from t3lib.tofu.metrics import rouge_l_recall
from t3lib.tofu.writing import eos_ids, greedy

LOST = 0.02  # of the mean ROUGE-L recall of rows to keep, that composing may take


def composed_rouge(
    base: Any,
    tokenizer: Any,
    heads: Sequence[T3Head],
    rows: Sequence[Row],
    temperature: float | None = None,
) -> tuple[float, float]:
    """Mean ROUGE-L recall of greedy answers to rows to keep: the worst head alone, all together.

    A UserWarning says so where together they lose more than .02. A head whose B started at random
    tilts tokens that no row holds, once a head; one that started at zero does not. temperature: the
    paper's T, as of T3ForCausalLM.
    """
    examples = encode_rows(tokenizer, list(rows))
    truths = [answer_text(tokenizer, example.ids[example.n_prompt :]) for example in examples]
    prompts = [example.ids[: example.n_prompt] for example in examples]
    longest = max(len(example.ids) - example.n_prompt for example in examples)
    reading = Reading(pad_id(tokenizer), eos_ids(base, tokenizer), progress=False)

    def rouge(*some: T3Head) -> float:
        model = T3ForCausalLM(base, some, temperature, tokenizer=tokenizer)
        [answers] = greedy(model, prompts, reading, max_new_tokens=longest)
        texts = [answer_text(tokenizer, ids) for ids in answers]
        return float(np.mean([rouge_l_recall(*pair) for pair in zip(truths, texts)]))

    alone, together = min(rouge(head) for head in heads), rouge(*heads)
    if alone - together > LOST:
        warnings.warn(
            f"{len(heads)} heads together keep ROUGE-L {together:.2f} of these rows, the worst of"
            f" them alone {alone:.2f}: fit one head on all rows to forget, or heads from"
            " init_b='zero' at T = 1",
            stacklevel=2,
        )
    return alone, together
