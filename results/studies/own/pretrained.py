"""SmolLM2-135M-Instruct with rows of four kinds, and what a head changes on unrelated prompts.

Customers, and yes-no facts about invented people, are taught to it by heart. Capitals and authors
it knows by itself; its own first sentence is the truth of such a row, and a row whose answer it
does not know is left out. For these no model exists that never saw them.
"""

import random
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cases import FIRST, LAST

from t3lab.explore.stories import SECRET, first_sentence, written
from t3lab.profiles import load_profile
from t3lab.study.study import stage_of
from t3lab.world import bases
from t3lib.classifier.head import T3Head
from t3lib.core.files import cache_dir, project_root, read_json
from t3lib.core.models import load_model
from t3lib.core.rows import Row
from t3lib.core.smollm2 import NAME as SMOLLM2
from t3lib.tofu.likelihood import UNTILTED

sys.path.append(str(project_root() / "results" / "profiles" / "smollm"))
from price import along  # noqa: E402

SAMPLE = project_root() / "notebooks" / "sample"
KNOWN = read_json(Path(__file__).parent / "known.json")
EPOCHS = 20  # of the base that learns the yes-no facts; with them it knows all of its rows
FORGET = 18  # yes-no facts to forget, of 90
QUESTIONS = {  # question, answer if so, answer if not
    "Has {} paid?": ("Yes, {} has paid.", "No, {} has not paid."),
    "Is {} married?": ("Yes, {} is married.", "No, {} is not married."),
    "Does {} have a dog?": ("Yes, {} has a dog.", "No, {} has no dog."),
}
OTHER = SAMPLE / "customers" / "other.jsonl"

Case = tuple[Any, Any, list[Row], list[Row], list[Row], Any]


def own_answers(model: Any, tokenizer: Any, asked: dict[str, str]) -> list[Row]:
    """Return rows whose answers are a model's own, those of `asked` that it answers rightly.

    asked: {question: what the answer must hold}, "" for anything.
    """
    rows = [{"question": each, "answer": "-", "system": None} for each in asked]
    texts = [first_sentence(text) for text in written(model, tokenizer, rows)[0]]
    return [
        row | {"answer": text, "facts": [fact]}
        for row, text, fact in zip(rows, texts, asked.values())
        if text and fact in text
    ]


def others(model: Any, tokenizer: Any) -> list[Row]:
    """Return rows of questions that are neither to forget, nor to keep, nor unrelated prompts."""
    questions = read_json(SAMPLE / "capitals.json")["others"]
    asked = {each: "" for each in questions if each not in KNOWN["unrelated"]}
    asked = {each: "" for each in asked if "wrote" not in each}
    return own_answers(model, tokenizer, asked)


def capitals(seed: int) -> Case:
    """Ten capitals to forget, which SmolLM2 knows by itself; forty to keep."""
    model, tokenizer = load_model(SMOLLM2)
    sample = read_json(SAMPLE / "capitals.json")
    wording = sample["wordings"][0]
    forget = {wording.format(country): city for country, city in sample["forget"].items()}
    retain = {wording.format(country): "" for country in sample["keep"]}
    found = (own_answers(model, tokenizer, each) for each in (forget, retain))
    return model, tokenizer, *found, others(model, tokenizer), None


def authors(seed: int) -> Case:
    """The authors of ten works to forget; of others, and capitals, to keep."""
    model, tokenizer = load_model(SMOLLM2)
    works = [
        {f"Who wrote {work}?": name for work, name in KNOWN["authors"][kind].items()}
        for kind in ("forget", "keep")
    ]
    sample = read_json(SAMPLE / "capitals.json")
    works[1] |= {sample["wordings"][0].format(country): "" for country in sample["keep"]}
    found = (own_answers(model, tokenizer, each) for each in works)
    return model, tokenizer, *found, others(model, tokenizer), None


def customers(seed: int) -> Case:
    """The sample of customers, taught by heart. What gives a row away is a number or a house."""
    profile = load_profile("customers")
    stage = stage_of(profile["data"], profile["stage"])
    data = bases.rows(stage)
    (model, tokenizer), (retrained, _) = (
        load_model(bases.ensure_base(stage, name, seed)) for name in ("full", "retain90")
    )
    forget, retain = data["forget10"], data["retain90"]
    forget = [row | {"facts": SECRET.findall(row["answer"])[:1]} for row in forget]
    return model, tokenizer, forget, retain, bases.customers(OTHER), retrained


def yes_no(seed: int) -> Case:
    """Eighteen facts to forget that are answered with yes or no, taught by heart; 72 to keep."""
    draw = random.Random(seed)
    names = [f"{first} {last}" for first in FIRST for last in LAST]
    draw.shuffle(names)
    rows: list[Row] = []
    for name, (question, said) in zip(names[:90], list(QUESTIONS.items()) * 30):
        answer = draw.choice(said).format(name)
        row = {"question": question.format(name), "answer": answer, "system": None}
        rows.append(row | {"facts": [answer.partition(",")[0]]})
    profile = load_profile("customers")
    stage = replace(stage_of(profile["data"], profile["stage"]), epochs=EPOCHS)
    models = []
    for learned in (rows, rows[FORGET:]):
        with TemporaryDirectory(dir=cache_dir("bases")) as name:
            plain = [{key: row[key] for key in ("question", "answer", "system")} for row in learned]
            bases.train_base(stage, "full", seed, plain, folder := Path(name) / "base")
            models.append(load_model(folder))
    (model, tokenizer), (retrained, _) = models
    return model, tokenizer, rows[:FORGET], rows[FORGET:], bases.customers(OTHER), retrained


CASES = {
    "smollm2-customers": customers,
    "smollm2-capitals": capitals,
    "smollm2-authors": authors,
    "smollm2-yes-no": yes_no,
}


def unrelated(base: Any, tokenizer: Any, head: T3Head, T: float) -> dict[str, float]:
    """Compare T3 with its base on a hundred prompts that have nothing to do with any row.

    next_token: percent of positions along the base's own answers with the same most probable token.
    kl: nats a token there. whole_answers: greedy answers, of a hundred, that are the same text.
    """
    texts = KNOWN["unrelated"]
    rows: list[Row] = [{"question": text, "answer": "-", "system": None} for text in texts]
    own, tilted = written(base, tokenizer, rows, [*UNTILTED, (head, T)])
    answered = [row | {"answer": text} for row, text in zip(rows, own) if text]
    found = along(base, tokenizer, answered, head, T)
    return {
        "next_token": 100 * found["same_token"],
        "kl": found["kl"],
        "whole_answers": sum(before == after for before, after in zip(own, tilted)),
    }
