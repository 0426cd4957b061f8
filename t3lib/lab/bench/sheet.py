"""`t3 bench`: what T3 costs on this machine, in three rows.

Weights and rows are random, because cost does not depend on them, so nothing has to be downloaded.
On a CPU the base is float32 and small; `--gpu` measures Llama-3.1-8B's shape in bfloat16. What
T3's training, evaluation, bases in 4 and 8 bits and the baselines' steps take is measured by
`t3 reproduce --rehearse`.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from t3lib.core.errors import printable
from t3lib.lab.bench import cost
from t3lib.lab.bench.head import HeadShape, head_rows
from t3lib.lab.bench.model import decode_rows, random_model
from t3lib.lab.bench.shapes import shape_of
from t3lib.lab.bench.timing import COLUMNS
from t3lib.lab.results import peak_memory_bytes, provenance

CPU_WEIGHTS = 2e8  # the largest base that a CPU is asked to run


def sheet(shape: str, device: str) -> Iterator[dict[str, Any]]:
    """Measure the three rows one after the other; each has the device and the peak memory in bytes.

    shape: of the base whose head is trained. A CPU runs the shape "58m" in place of a larger base.
    A row that cannot be measured here has the reason as its note. UserError for an unknown shape.
    """
    sizes, gpu = shape_of(shape), device != "cpu"
    base = shape if gpu or cost.parameters(sizes) < CPU_WEIGHTS else "58m"
    name = provenance()["device"]
    dtype = "bfloat16" if gpu else "float32"
    model = cache(lambda: random_model(base, dtype=dtype, device=device))
    head = HeadShape(d=sizes.hidden_size, vocab=sizes.vocab_size)
    questions: dict[str, Callable[[], dict[str, Any]]] = {
        "head training": lambda: head_rows(head, device=device)[0],
        "decoding overhead, one row": lambda: decode_rows(model())[-1],
        "decoding overhead, 32 rows": lambda: decode_rows(model(), batch=32)[-1],
    }
    for what, ask in questions.items():
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        try:
            entry = ask()
        except RuntimeError as error:  # out of memory
            note = f"not measured: {printable(str(error).splitlines()[0])}"
            entry = dict.fromkeys(COLUMNS) | {"shape": base, "note": note}
        yield entry | {"what": what, "peak_memory_bytes": peak_memory_bytes(), "device": name}
