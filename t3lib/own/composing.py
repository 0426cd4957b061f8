"""Check whether several heads whose log f are added still keep what each of them keeps alone."""

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
    """Measure what several heads keep: return the mean ROUGE-L recall of greedy answers to rows to
    keep, of the worst head alone and of all heads together.

    model: a base under several heads. Each head is also tried alone, at the model's T. rows: rows
    to keep.

    A UserWarning says so if the heads together lose more than 0.02. A head whose B started at
    random also tilts tokens that no row holds, so the tilts of several such heads add up. A head
    whose B started at zero does not tilt these tokens.
    """
    examples = encode_rows(tokenizer, list(rows))
    truths = [answer_text(tokenizer, example.ids[example.n_prompt :]) for example in examples]
    prompts = [example.ids[: example.n_prompt] for example in examples]
    longest = max(len(example.ids) - example.n_prompt for example in examples)
    reading = Reading(pad_id(tokenizer), eos_ids(model, tokenizer), progress=progress)

    def rouges(of: Any, tilts: Sequence[Tilt]) -> list[float]:
        """Return the mean ROUGE-L recall under every tilt."""
        written = greedy(of, prompts, reading, tilts, max_new_tokens=longest)
        texts = [[answer_text(tokenizer, ids) for ids in answers] for answers in written]
        return [float(np.mean([*map(rouge_l_recall, truths, some)])) for some in texts]

    alone = min(rouges(model.base, [(head, model.temperature) for head in model.heads]))
    [together] = rouges(model, UNTILTED)
    if alone - together > LOST:
        warnings.warn(
            f"{len(model.heads)} heads together keep ROUGE-L {together:.2f} of these rows, the"
            f" worst of them alone {alone:.2f}: fit one head on all rows to forget. A smaller w T"
            " keeps more and forgets less",
            stacklevel=2,
        )
    return alone, together
