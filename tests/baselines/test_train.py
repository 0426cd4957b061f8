"""Fine-tuning: batches of similar lengths that hold every row once, a loss that falls, mistakes in
one line.
"""

import copy

from t3lib.baselines import train
from t3lib.core import models
from t3lib.core.rows import encode_rows

ROWS = [
    {"question": f"Book {i}?", "answer": "Mara wrote " + "very " * (i % 4) + f"{i}."}
    for i in range(9)
]


def test_batches_hold_every_row_once_and_rows_of_similar_length():
    lengths = [7 * i % 50 for i in range(50)]
    batches = train.bucketed(lengths, 4, seed=0)
    assert sorted(i for batch in batches for i in batch) == list(range(50))
    assert (
        max(max(lengths[i] for i in batch) - min(lengths[i] for i in batch) for batch in batches)
        <= 4
    )
    assert batches == train.bucketed(lengths, 4, seed=0) != train.bucketed(lengths, 4, seed=1)


def test_finetuning_learns_in_place(tiny_model, tokenizer):
    model, pad = copy.deepcopy(tiny_model), models.pad_id(tokenizer)
    log = train.finetune(
        model, encode_rows(tokenizer, ROWS), pad_id=pad, epochs=3, lr=1e-2, batch_size=4
    )
    assert log["steps"] == 9 and log["loss"][2] < log["loss"][0] - 0.5
    assert not model.training
