"""Heads whose log f add up: do they still keep what each of them keeps?"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from t3lib.core.models import pad_id
from t3lib.core.rows import Row, encode_rows
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.evaluation import answer_text
from t3lib.tofu.likelihood import UNTILTED, Reading, Tilt
from t3lib.tofu.metrics import rouge_l_recall
from t3lib.tofu.writing import eos_ids, greedy

LOST = 0.02  # of the mean ROUGE-L recall of rows to keep, that composing may take


def composed_rouge(
    model: T3ForCausalLM, tokenizer: Any, rows: Sequence[Row], *, progress: bool = True
) -> tuple[float, float]:
    """Mean ROUGE-L recall of greedy answers to rows to keep: the worst head alone, all together.

    model: a base under several heads, each of which is also tried alone at the model's T. A
    UserWarning says so where together they lose more than .02. A head whose B started at random
    tilts tokens that no row holds, once a head; one that started at zero does not.
    """
    examples = encode_rows(tokenizer, list(rows))
    truths = [answer_text(tokenizer, example.ids[example.n_prompt :]) for example in examples]
    prompts = [example.ids[: example.n_prompt] for example in examples]
    longest = max(len(example.ids) - example.n_prompt for example in examples)
    reading = Reading(pad_id(tokenizer), eos_ids(model, tokenizer), progress=progress)

    def rouges(of: Any, tilts: Sequence[Tilt]) -> list[float]:
        """The mean of every tilt."""
        written = greedy(of, prompts, reading, tilts, max_new_tokens=longest)
        texts = [[answer_text(tokenizer, ids) for ids in answers] for answers in written]
        return [float(np.mean([*map(rouge_l_recall, truths, some)])) for some in texts]

    alone = min(rouges(model.base, [(head, model.temperature) for head in model.heads]))
    [together] = rouges(model, UNTILTED)
    if alone - together > LOST:
        warnings.warn(
            f"{len(model.heads)} heads together keep ROUGE-L {together:.2f} of these rows, the"
            f" worst of them alone {alone:.2f}: fit one head on all rows to forget, or heads from"
            " init_b='zero' at T = 1",
            stacklevel=2,
        )
    return alone, together
