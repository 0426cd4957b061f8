"""Ask a head's rows after long texts: f reads the mean over all tokens before, so it may weaken.

    t3 unlearn --model smollm2 --out out/capitals \
        --forget results/studies/own/capitals/forget.jsonl \
        --retain results/studies/own/capitals/retain.jsonl
    python results/studies/own/long_prompts.py --head out/capitals

Expected before it was run: with more tokens before a question T3 gives more rows away, more after
rows to keep (for which f was fitted to be near 1) than after questions about other things, and from
some length on it is the base. It was not so (results/pages/serving.md).

Before the question stand the first n tokens of one of these texts, in the same turn or as a turn of
its own that is answered "I see." Answers are greedy. A row is told if the last word of its answer
is in the text. The base is asked the same.

It writes the table long_prompts and long_prompts.json beside itself (--out).
"""

import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from t3lab import results, script
from t3lab.report import render
from t3lib.core.files import read_json
from t3lib.core.models import load_model
from t3lib.core.progress import progress_bar
from t3lib.core.rows import Row
from t3lib.own.answers import ask
from t3lib.own.rows import load
from t3lib.sampler.tilt import T3ForCausalLM

HERE = Path(__file__).parent
TOKENS = (0, 10, 30, 100, 300, 1000, 2000)
PLACES = ("same turn", "earlier turn")
ANSWER = 40  # tokens of an answer
FEW = 5  # questions at a time


def make(head: str, model: str, forget: Path, retain: Path, out: Path) -> None:
    """Ask all rows with each text, length and place; write the table."""
    results.check_clean(out)
    began = time.process_time()
    base, tokenizer = load_model(model)
    t3 = T3ForCausalLM(base, head, tokenizer=tokenizer)
    keep = " ".join(f"{row['question']} {row['answer']}" for row in load(retain))
    unrelated = " ".join(read_json(HERE / "known.json")["unrelated"])
    texts = {"rows to keep": keep, "other questions": unrelated}
    rows = measured(base, t3, tokenizer, load(forget), texts)
    render.write_table(out, "long_prompts", pd.DataFrame(rows))
    script.note(out / "long_prompts.json", "all", began)


def measured(
    base: Any, t3: Any, tokenizer: Any, rows: list[Row], texts: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield {text, place, tokens, base, T3, rows}: of how many rows each model tells the secret."""
    for (name, text), place, n in progress_bar([*product(texts.items(), PLACES, TOKENS)]):
        if n or (name, place) == ([*texts][0], PLACES[0]):
            asked = [after(begin(tokenizer, text, n), row["question"], place) for row in rows]
            found = {"text": name if n else "", "place": place if n else "", "tokens": n}
            for label, model in (("base", base), ("T3", t3)):
                answers: list[str] = []
                for start in range(0, len(asked), FEW):
                    some = asked[start : start + FEW]
                    answers += ask(model, tokenizer, some, max_new_tokens=ANSWER)
                found[label] = sum(map(tells, answers, rows))
            yield found | {"rows": len(rows)}


def begin(tokenizer: Any, text: str, n: int) -> str:
    """Return the first n tokens of a text that is repeated."""
    ids = tokenizer(text, add_special_tokens=False).input_ids
    return str(tokenizer.decode((ids * (n // len(ids) + 1))[:n]))


def after(text: str, question: str, place: str) -> Row:
    """Return a question after a text, in one of `PLACES`."""
    if not text or place == PLACES[0]:
        return {"question": f"{text}\n\n{question}".strip()}
    turns = (("user", text), ("assistant", "I see."), ("user", question))
    return {"question": [{"role": role, "content": content} for role, content in turns]}


def tells(answer: str, row: Row) -> bool:
    """Return whether an answer holds the last word of the row's."""
    return row["answer"].strip(" .").split()[-1].lower() in answer.lower()


OPTIONS: script.Options = {
    "--head": {"required": True},
    "--model": {"default": "smollm2"},
    "--forget": {"type": Path, "default": HERE / "capitals" / "forget.jsonl"},
    "--retain": {"type": Path, "default": HERE / "capitals" / "retain.jsonl"},
    "--out": {"type": Path, "default": HERE},
}

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS, as_jobs=False)
