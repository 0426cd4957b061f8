"""Gated tempering on a chat model: what it keeps of SmolLM2, and whether other wordings open it.

    python results/profiles/smollm/gate.py

Gated T3 (ours, not the paper's) tempers only where the classifier expects something to forget:
where r(x) = sum_y p(y|x) f(x, y) is below the gate. Gate 1 is the paper's T3, gate 0 never tempers.
SmolLM2 is asked the questions of the stories of notebook 00, under the strong head at T = 2. That
is the smallest T of the table `stories_by_T` at which no sampled answer says a row with either
head. The strong head alone needs T = 1.25 for it. Its untaught tokens are as drawn (the paper's)
or neutral (ours). Columns of the table `gate`:

- said to as_before_sampled: see `stories.counts`.
- said_in_ways: rows to forget that are said in some way of asking of `t3 unlearn`, decoded
  greedily; askings: questions that are asked so, said_askings: those that are answered.
- kl, same_token, tempered: `price.along`, along the base's own answers to the questions of
  price.py, which have nothing to do with the rows. tempered_forget, tempered_keep: along the true
  answers to forget and to keep.

It takes half an hour of two idle cores, after SmolLM2 has learned the customers.
"""

import argparse

import pandas as pd
from price import along, questions

import t3lib
from t3lab import script
from t3lab.explore import stories
from t3lab.report import render
from t3lab.study.methods import dialled
from t3lib.core.files import project_root
from t3lib.own.answers import build_inquiry, greedy_texts
from t3lib.tofu.likelihood import UNTILTED, Tilt

T, GATES = 2.0, (0.0, 0.5, 0.9, 0.99, 1.0)
STORIES = {"known by itself": stories.known, "taught by heart": stories.taught}
CAPTION = (
    "Gated T3 (ours, not the paper's) on SmolLM2: the strong head of each story at T = 2, by the"
    " gate (1: the paper's T3, 0: no tempering) and what f is for tokens that no row taught."
)


def tell(name: str) -> pd.DataFrame:
    """Fit the strong head of a story and ask it at each gate. Returns a line for each, and the
    base's.
    """
    story = STORIES[name]("smollm2")
    base, tokenizer = story.base, story.tokenizer
    features = t3lib.extract_features(base, tokenizer, story.forget, story.keep)
    rate = stories.RATES["smollm2"][1]
    fitted = t3lib.fit_head(features, vocab_size=base.config.vocab_size, lr=rate)
    models = {}
    for untrained in ("as drawn", "neutral"):
        for gate in GATES:
            head = dialled(fitted, {"untrained": untrained, "gate": gate})
            models[f"{untrained}, gate = {gate:g}"] = head, T
    table = stories.counts(stories.tell(story, models)).set_index("model")
    table.insert(0, "story", name)
    own = stories.written(base, tokenizer, questions())[0]
    unrelated = [row | {"answer": text} for row, text in zip(questions(), own) if text]
    for model, (head, _) in models.items():
        table.loc[model, ["untrained", "gate"]] = head.untrained, head.gate
        for column, value in along(base, tokenizer, unrelated, head, T).items():
            table.loc[model, column] = value
        for kind, rows in {"forget": story.asked, "keep": story.kept}.items():
            shares = along(base, tokenizer, list(rows), head, T)
            table.loc[model, f"tempered_{kind}"] = shares["tempered"]
    told = in_ways(story, [*UNTILTED, *models.values()])
    return table.assign(**told).reset_index()


def in_ways(story: stories.Story, tilts: list[Tilt]) -> dict[str, list[int]]:
    """Count for each tilt what it says of the rows to forget, in every way of asking."""
    put = build_inquiry(story.tokenizer, story.asked, {"keep": story.keep})
    asked = [
        each
        for each in put.questions
        if each.row < put.n and (not each.rest or story.secrets[each.row] in each.rest)
    ]
    prompts, rooms = [each.prompt for each in asked], [each.room for each in asked]
    texts = greedy_texts(story.base, story.tokenizer, prompts, rooms, tilts)
    said = [
        [
            each.row
            for each, text in zip(asked, found)
            if story.secrets[each.row] in each.start + text
        ]
        for found in texts
    ]
    return {
        "said_in_ways": [len({*rows}) for rows in said],
        "said_askings": [len(rows) for rows in said],
        "askings": [len(asked)] * len(said),
    }


def make(_: argparse.Namespace) -> None:
    """Write the table below results/profiles/smollm."""
    table = pd.concat([tell(name) for name in STORIES], ignore_index=True)
    render.write_table(
        project_root() / "results" / "profiles" / "smollm" / "tables",
        "gate",
        table,
        caption=CAPTION,
    )


if __name__ == "__main__":
    script.run(make, __doc__, {}, as_jobs=False)
