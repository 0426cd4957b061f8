"""Two controls of T3 (least): what reaches its aim for nothing, and what stays that nobody fitted.

    python results/studies/cpu-worlds/controls.py

Refused: a program that looks questions up in a list and refuses the rows to forget, as they are
listed. It gives every token of a forgotten answer the probability 0, and changes no other answer.
So its leak is 0 and its Retain Error that of the base, which the rule of guided.py cannot improve
upon. Its Forget Error is the mean probability that the retrained model gives these tokens.

Held out: in all other tables of this folder the rows to keep that are evaluated are among those
that f was fitted on and that baselines were trained to keep. Here these 100 rows, five authors, are
left out of both, and the methods are the same otherwise. The base and the retrained models have
learned them as ever.

Both on the 10% split of the worlds 1 to 7, with the models of kept_ways.py, beside the retrained
model of seed 1. Written down before it was run: nothing is chosen here.

It writes tables/controls.csv and controls.json. The models are cached in .t3cache.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import baselines
import guided
import kept_ways
import numpy as np

from t3lab import profiles, script
from t3lab.study.study import Study
from t3lib.core.rows import encode_rows
from t3lib.tofu.likelihood import answer_probabilities
from t3lib.tofu.unlearning_errors import summary

SPLIT = baselines.SPLIT
ERRORS = ["forget_error", "leak", "retain_error", "total_variation"]
COLUMNS = ["world", "split", "model", "fitted", *ERRORS, "kept_before"]
ALIKE = ("Original", "Retrained")  # no method fitted them
CAPTION = (
    "The paper's errors, as in the table guided_each, of methods that were fitted on the rows to"
    " keep that are evaluated (fitted: 1) and of the same without these rows (0). kept_before:"
    " share of the answers that the base gives word for word and the model too. Refused: a program"
    " that refuses the listed questions and changes nothing else."
)


def make(worlds: list[int], out: Path, tiny: bool) -> None:
    """Measure the models of every world; write the table. tiny: models that know nothing."""
    kept_ways.write("controls", measured, worlds, out, tiny, COLUMNS, CAPTION)


def measured(study: Study, profile: profiles.Profile, few: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each model, with and without the evaluated rows.

    few: of `kept_ways.models`.
    """
    judge = guided.retrained(study, 1)
    [of_base] = guided.row_errors(study, judge, study.base)
    before = np.array(of_base["retain"]["likeliest"]) == 1  # given word for word

    forget = encode_rows(study.tokenizer, study.evaluation_rows["forget"])
    p = answer_probabilities(judge, forget, guided.reading(study))
    price = summary(of_base)["retain_error"]
    of_list = {"forget_error": p.mean(), "leak": 0.0, "retain_error": price, "kept_before": 1.0}
    yield {"model": "Refused", "fitted": 1, "total_variation": np.nan} | of_list

    for fitted, some in ((1, study), (0, guided.without_evaluated(study))):
        for names, model, tilts in kept_ways.models(profile, some, few):
            for name, each in zip(names, guided.row_errors(study, judge, model, tilts)):
                if fitted or name not in ALIKE:
                    kept = np.array(each["retain"]["likeliest"]) == 1
                    share = kept[before].mean() if before.any() else np.nan
                    yield {"model": name, "fitted": fitted} | summary(each) | {"kept_before": share}


if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), kept_ways.OPTIONS)
