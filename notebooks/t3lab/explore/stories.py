"""Notebook 00_t3_in_five_minutes: two stories of forgetting, of what a model knew and was taught.

`known` and `taught` open a story, `tell` asks the base and T3 its questions, `table` shows two of
them and `counts` all. Each story is told on SmolLM2, or on a tiny Llama that needs no download.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import pandas as pd

from t3lab.profiles import load_profile
from t3lab.report.render import write_table
from t3lab.study.study import stage_of
from t3lab.world import bases
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.files import project_root, read_json
from t3lib.core.models import has_bf16, load_model
from t3lib.core.rows import Row, encode_rows
from t3lib.core.smollm2 import NAME as SMOLLM2
from t3lib.own.answers import greedy_texts
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu.likelihood import UNTILTED, Tilt
from t3lib.tofu.samples import sample_answers

TINY = "tiny"
MODEL = "T3_MODEL"  # environment variable: the model of notebooks whose parameter names none
TAUGHT = {SMOLLM2: "customers", TINY: "smoke"}  # the profile whose model was taught its rows
RATES = {SMOLLM2: (5e-4, 1e-2), TINY: (2e-3, 4e-2)}  # learning rates of a weak and a strong head
ASKED = 40  # at most so many rows of each kind are asked
NEW_TOKENS = 40  # longest answer
# What gives a customer's row away: a telephone or order number, or a house with its street.
SECRET = re.compile(r"\d+(?: \d+)+|\d{5,}|\d+ [A-Z]\w+")
SHOWN = 90  # characters of an answer in a table
BASE = "base"
COUNTS = ["model", "said", "said_sampled", "asked", "as_before", "as_before_sampled", "kept"]

Both = dict[str, list[str]]  # "greedy" and "sampled" -> an answer to each question


@dataclass(frozen=True)
class Story:
    """A base model with its tokenizer, and rows to forget and to keep.

    model: "smollm2" or "tiny".
    forget, keep: the rows that heads are fitted on.
    asked, kept: the rows that are asked, of these two kinds.
    secrets: for each row of `asked`, the words that give it away.
    """

    model: str
    base: Any
    tokenizer: Any
    forget: list[Row]
    keep: list[Row]
    asked: list[Row]
    kept: list[Row]
    secrets: list[str]


@dataclass(frozen=True)
class Told:
    """The answers of the base and of T3, by model.

    forget: answers to `story.asked`. keep: answers to `story.kept`.
    """

    story: Story
    forget: dict[str, Both]
    keep: dict[str, Both]


def chosen(model: str = "") -> str:
    """Return a model's name, by default that of $T3_MODEL, else SmolLM2's; UserError for others."""
    name = model or os.environ.get(MODEL) or SMOLLM2
    if name not in TAUGHT:
        raise UserError(f"unknown model {name!r}: choose {' or '.join(TAUGHT)}")
    return name


def known(model: str = "") -> Story:
    """Open the story of knowledge that nobody taught the model for it.

    SmolLM2 is to forget the capitals of ten countries and to keep other capitals and facts. Its
    own greedy answers are the truth: a capital that it does not name is no row. Heads are fitted on
    four wordings of each question about a capital, and two other wordings are asked. Half of the
    rows to keep that are asked are facts of other kinds. The tiny Llama is to forget ten world
    facts that it says, and is asked as it was taught. model: see `chosen`.
    """
    model = chosen(model)
    if model == TINY:
        stage = _stage(model)
        base, tokenizer = load_model(bases.ensure_base(stage, "full"))
        data = bases.rows(stage)
        facts = data["world_facts_perturbed"]
        texts = written(base, tokenizer, facts)[0]
        forget = [row for row, text in zip(facts, texts) if row["answer"] in text][:10]
        keep = [row for row in facts if row not in forget] + data["real_authors_perturbed"]
        answers = [row["answer"] for row in forget]
        return Story(model, base, tokenizer, forget, keep, forget, keep[:ASKED], answers)

    base, tokenizer = load_model(model)
    sample = read_json(project_root() / "notebooks" / "sample" / "capitals.json")
    capitals: dict[str, str] = sample["forget"]

    def own(wordings: str, countries: Sequence[str], others: Sequence[str] = ()) -> list[Row]:
        questions = [words.format(each) for words in sample[wordings] for each in countries]
        rows = [{"question": each, "answer": "-", "system": None} for each in (*questions, *others)]
        texts = written(base, tokenizer, rows)[0]
        return [row | {"answer": first_sentence(text)} for row, text in zip(rows, texts)]

    def named(rows: Sequence[Row]) -> list[tuple[Row, str]]:
        pairs = list(zip(rows, list(capitals.values()) * (len(rows) // len(capitals))))
        right = [(row, capital) for row, capital in pairs if capital in row["answer"]]
        if not right:
            raise UserError(f"{model} names none of the capitals to forget")
        return right

    forget = [row for row, _ in named(own("wordings", list(capitals)))]
    asked, secrets = zip(*named(own("new wordings", list(capitals))))
    keep = own("wordings", sample["keep"], sample["others"])
    kept = keep[-len(sample["others"]) :][: ASKED // 2]
    kept += own("new wordings", sample["keep"][: ASKED // 4])

    return Story(model, base, tokenizer, forget, keep, list(asked), kept, list(secrets))


def taught(model: str = "") -> Story:
    """Open the story of rows that the model was taught by heart: customers, or invented authors.

    The model is trained first unless it is in the cache. A customer's row is given away by its
    number or house (`SECRET`), whatever the answer says around it, an author's by the whole answer.
    model: see `chosen`.
    """
    model = chosen(model)
    stage = _stage(model)
    dtype = "bfloat16" if stage.autocast and has_bf16("cpu") else None  # as it was trained
    base, tokenizer = load_model(bases.ensure_base(stage, "full"), dtype=dtype)
    data = bases.rows(stage)
    forget, keep = data["forget10"], data["retain90"]
    asked = forget[:ASKED]
    secrets = [row["answer"] for row in asked]
    if model == SMOLLM2:
        found = [(row, secret) for row in asked if (secret := SECRET.search(row["answer"]))]
        asked, secrets = [row for row, _ in found], [secret[0] for _, secret in found]
    return Story(model, base, tokenizer, forget, keep, asked, keep[:ASKED], secrets)


def _stage(model: str) -> bases.Stage:
    profile = load_profile(TAUGHT[model])
    return stage_of(profile["data"], profile["stage"])


def first_sentence(text: str) -> str:
    """Return a text up to its first full stop with a space after it, or up to its first line."""
    line = text.strip().partition("\n")[0]
    end = line.find(". ")
    return line if end < 0 else line[: end + 1]


def prompts_of(tokenizer: Any, rows: Sequence[Row]) -> list[list[int]]:
    """Return the token ids of the questions of some rows."""
    return [each.prompt for each in encode_rows(tokenizer, rows)]


def written(
    base: Any, tokenizer: Any, rows: Sequence[Row], tilts: Sequence[Tilt] = UNTILTED
) -> list[list[str]]:
    """Return the greedy answers of each tilt (head, T) to the questions of some rows."""
    prompts = prompts_of(tokenizer, rows)
    # an answer may be twice as long as its truth
    truths = [NEW_TOKENS // 2] * len(prompts)
    return greedy_texts(base, tokenizer, prompts, truths, tilts)


def answered(base: Any, tokenizer: Any, rows: Sequence[Row], tilts: Sequence[Tilt]) -> list[Both]:
    """Return a greedy answer of each tilt (head, T) to each row, and one sampled at τ = 1.

    All samples of all tilts are drawn with the same seed.
    """
    found, prompts = [], prompts_of(tokenizer, rows)
    for (head, T), texts in zip(tilts, written(base, tokenizer, rows, tilts)):
        drawn = sample_answers(
            base if head is None else T3ForCausalLM(base, head, T),
            *(tokenizer, prompts, 1),
            seed=0,
            max_new_tokens=NEW_TOKENS,
        )
        found.append({"greedy": texts, "sampled": [text for [text] in drawn]})
    return found


def tell(story: Story, models: Mapping[str, tuple[T3Head, float]]) -> Told:
    """Ask the base and some T3 models the questions of a story (`answered`).

    models: {name: (head, T)}.
    """
    tilts: list[Tilt] = [*UNTILTED, *models.values()]
    forget, keep = (
        dict(zip([BASE, *models], answered(story.base, story.tokenizer, rows, tilts)))
        for rows in (story.asked, story.kept)
    )
    return Told(story, forget, keep)


def table(told: Told) -> pd.DataFrame:
    """Build a table of the first question to forget and to keep, with a line for each model."""
    columns = {}
    for kind, texts, [row, *_] in (
        ("forget", told.forget, told.story.asked),
        ("keep", told.keep, told.story.kept),
    ):
        first = {"question": row["question"], "in the rows": row["answer"]}
        for how in ("greedy", "sampled"):
            for model, both in texts.items():
                first[model] = shorten(both[how][0], SHOWN, placeholder=" […]")
            columns[f"to {kind}, {how}"] = first
            first = {"question": "", "in the rows": ""}
    return pd.DataFrame(columns).rename_axis("").reset_index()


def counts(told: Told) -> pd.DataFrame:
    """Count for each model the rows to forget that it says, and the answers to keep that stay.

    said, said_sampled: answers of `asked` rows that hold the row's secret. as_before,
    as_before_sampled: answers to `kept` rows whose first sentence is that of the base's greedy one.
    """
    before = [first_sentence(text) for text in told.keep[BASE]["greedy"]]
    lines = []
    for model, texts in told.forget.items():
        said = [sum(secret in text for secret, text in zip(told.story.secrets, answers))
                for answers in texts.values()]  # fmt: skip
        stay = [sum(old == first_sentence(text) for old, text in zip(before, answers))
                for answers in told.keep[model].values()]  # fmt: skip
        lines.append([model, *said, len(told.story.asked), *stay, len(before)])
    return pd.DataFrame(lines, columns=COUNTS)


def write(folder: str | Path, told: Mapping[str, Told]) -> None:
    """Write the counts of some stories, and the greedy answer to the first question of each.

    told: by name. The table is `stories` in FOLDER/tables, by default in results/scratch.
    """
    parts = []
    for name, each in told.items():
        first = {"story": name, "question": each.story.asked[0]["question"]}
        answers = [texts["greedy"][0] for texts in each.forget.values()]
        parts.append(counts(each).assign(**first, answer=answers))
    table = pd.concat(parts)[["story", *COUNTS, "question", "answer"]]
    caption = f"Two stories of forgetting, on {next(iter(told.values())).story.model}."
    place = Path(folder or project_root() / "results" / "scratch" / "stories")
    write_table(place / "tables", "stories", table, caption=caption)
