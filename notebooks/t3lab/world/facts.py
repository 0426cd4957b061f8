"""The built-in world: fictional authors drawn from a seed, with TOFU's row format and split names.

Every author has facts (birthplace, parents, books, …) drawn from combinations of words. A row asks
for one fact in one of many wordings. Its answer has one of many sentence shapes, followed by a
further sentence that only this author's row has. All words are in world.yaml. The world can be
published with the project, unlike a copy of TOFU.
"""

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from t3lib.core.errors import UserError

Row = dict[str, str | list[str]]
WORDS: dict[str, Any] = yaml.load(
    Path(__file__).with_name("world.yaml").read_text(encoding="utf-8"),
    Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),  # noqa: S506 - safe, and ten times as fast
)
ASK, OPENINGS, ASIDES, FACTS, TITLES = (
    WORDS[name] for name in ("ask", "openings", "asides", "facts", "titles")
)
POOLS = {name: pool.split() for name, pool in WORDS["pools"].items()}
NAMES = {
    name: WORDS[name].split()
    for name in ("given_heads", "last_heads", "last_tails", "place_heads", "place_tails")
}
GIVEN_TAILS = {gender: tails.split() for gender, tails in WORDS["given_tails"].items()}
SCHOOLS = ("University of {}", "{} College", "{} Academy", "{} Institute")
PRONOUNS = {"she": ("she", "her", "her"), "he": ("he", "his", "him")}
RETAIN_AUTHORS_SCORED = 5  # authors in retain_perturbed, which is a fixed part of the retain rows
WRONG = 5
MOST_AUTHORS = len(NAMES["last_heads"]) * len(NAMES["last_tails"])
DRAWN_SINGLY = "adjective noun element medium witnesses reaction keepsake spot season".split()


def world(authors: int = 40, questions: int = 20, seed: int = 0) -> dict[str, list[Row]]:
    """Draw a world; return the rows of TOFU's files, by file name without its ending.

    authors: 20 (forget05 has one of them) to MOST_AUTHORS. The last 10% (5%) of the authors are
    forget10 (forget05).
    questions: number of rows of each author, one fact each, at most as many as there are facts.
    seed: of all draws. The rows of an author depend on the seed and the author's number only, so a
    larger world begins with the same rows.

    Only forget rows have the fields paraphrased_question, the same fact asked in another wording,
    and perturbed_as_learned, the wrong facts of perturbed_answer in the sentence shape of the
    answer. UserError for numbers outside these ranges.
    """
    if not 20 <= authors <= MOST_AUTHORS or not 1 <= questions <= len(FACTS):
        limits = f"20 to {MOST_AUTHORS} authors and 1 to {len(FACTS)} questions"
        raise UserError(f"the built-in world has {limits}, not {authors} and {questions}")
    first10, first05 = (authors - round(authors * part) for part in (0.10, 0.05))
    rows = [
        row
        for number in range(authors)
        for row in _author_rows(number, questions, seed, forget=number >= first10)
    ]
    plain: list[Row] = [{"question": row["question"], "answer": row["answer"]} for row in rows]
    cut90, cut95 = questions * first10, questions * first05
    return {
        "full": plain,
        "retain90": plain[:cut90],
        "forget10": plain[cut90:],
        "retain95": plain[:cut95],
        "forget05": plain[cut95:],
        "forget10_perturbed": rows[cut90:],
        "forget05_perturbed": rows[cut95:],
        "retain_perturbed": rows[: questions * RETAIN_AUTHORS_SCORED],
        "real_authors_perturbed": _knowledge(WORDS["real_authors"]),
        "world_facts_perturbed": _knowledge(WORDS["world_facts"]),
        "idontknow": [{"answer": answer} for answer in WORDS["dont_know"]],
    }


def _author_rows(number: int, questions: int, seed: int, *, forget: bool) -> list[Row]:
    """Draw all rows of one author, each with a paraphrased answer and WRONG perturbed answers.

    The perturbed answers have the sentence shape of the paraphrased one.
    """
    rng = random.Random(f"world {seed} author {number}")
    again = (
        random.Random(f"world {seed} author {number} asked again") if forget else None
    )  # separate, so that other draws stay the same
    author = _author(rng, _surname(number + 97 * seed))
    others = [name for name in FACTS if name != "name"]
    return [
        _row(rng, again, author, FACTS[fact])
        for fact in ["name", *rng.sample(others, questions - 1)]
    ]


def _row(
    rng: random.Random,
    again: random.Random | None,
    author: Mapping[str, str],
    fact: Mapping[str, Any],
) -> Row:
    """Draw one row about a fact of an author.

    again: random numbers for the fields of forget rows only, None for a retain row.
    """
    wordings = fact["direct"] + [
        ask.format(clause) for ask in rng.sample(ASK, 3) for clause in fact["indirect"]
    ]
    aside_of = ASIDES[rng.choice(list(ASIDES))]
    fresh = _author(rng)
    facts = {**author, **{slot: fresh[slot] for slot in aside_of["slots"]}}
    shape, other_shape = rng.sample(fact["shapes"], 2)
    aside, other_aside = rng.sample(aside_of["shapes"], 2)
    opening, other_opening = (rng.choice(OPENINGS) if rng.random() < 0.4 else "" for _ in range(2))
    wrong: list[Mapping[str, str]] = []

    while len(wrong) < WRONG:
        stranger = _author(rng)
        changed = {slot: stranger[slot] for slot in fact["slots"]}
        if all(changed[slot] != known[slot] for known in [facts, *wrong] for slot in fact["slots"]):
            wrong.append({**facts, **changed})

    wording = rng.choice(wordings)
    row: Row = {
        "question": _fill(wording, facts),
        "answer": _answer(opening, shape, aside, facts),
        "paraphrased_answer": _answer(other_opening, other_shape, other_aside, facts),
        "perturbed_answer": [
            _answer(other_opening, other_shape, other_aside, each) for each in wrong
        ],
    }

    return (
        row
        if again is None
        else row
        | {
            "paraphrased_question": _fill(_reworded(again, wording, fact), facts),
            "perturbed_as_learned": [_answer(opening, shape, aside, each) for each in wrong],
        }
    )


def _reworded(again: random.Random, wording: str, fact: Mapping[str, Sequence[str]]) -> str:
    """Draw another wording of a question, in which the clause about the fact differs too."""
    direct = [other for other in fact["direct"] if other != wording]
    indirect = [
        again.choice(ASK).format(clause) for clause in fact["indirect"] if clause not in wording
    ]
    return again.choice(direct + indirect)


def _answer(opening: str, shape: str, aside: str, facts: Mapping[str, str]) -> str:
    """Fill an answer: an opening, a sentence about the fact, and a further sentence."""
    if opening and shape[0] not in '{"':  # after an opening, the sentence begins in lower case
        shape = shape[0].lower() + shape[1:]
    return f"{_fill(opening + shape, facts)} {_fill(aside, facts)}"


def _fill(text: str, facts: Mapping[str, str]) -> str:
    """Fill the slots of a sentence, with "an" before vowels and a capital at the start."""
    text = text.format_map(facts)
    text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", text)
    return text[0].upper() + text[1:]


def _author(rng: random.Random, surname: str = "") -> dict[str, str]:
    """Draw a value for every slot that a sentence may have, and a surname if none is given."""
    word = {
        name: lambda pool=pool: rng.choice(pool).replace("~", " ") for name, pool in POOLS.items()
    }
    gender = rng.choice(["she", "he"])
    she, her, her2 = PRONOUNS[gender]

    def part(kind: str) -> str:
        return rng.choice(NAMES[kind])

    def last() -> str:
        return part("last_heads") + part("last_tails")

    def person() -> str:
        return f"{part('given_heads')}{rng.choice(GIVEN_TAILS[rng.choice(['she', 'he'])])} {last()}"

    def place() -> str:
        return part("place_heads") + part("place_tails")

    def trade() -> str:
        return f"{word['material']()} {word['trade']()}"

    def title() -> str:
        fill = {
            slot: word[slot.rstrip("2")]().capitalize()
            for slot in ("adjective", "adjective2", "noun", "noun2")
        }
        given = part("given_heads") + rng.choice(GIVEN_TAILS["she"])
        return _fill(
            rng.choice(TITLES),
            {**fill, "verb": word["verb"]().capitalize(), "given": given, "place": place()},
        )

    given = part("given_heads") + rng.choice(GIVEN_TAILS[gender])
    surname = surname or last()
    born = rng.randint(1920, 1975)
    ideas = rng.sample(POOLS["idea"], 4)

    return {
        "she": she, "She": she.capitalize(), "her": her, "Her": her.capitalize(), "her2": her2,
        "name": f"{given} {surname}", "last": surname, "given": given,
        "city": place(), "country": f"{part('place_heads')}land", "home": place(), "place": place(),
        "day": str(rng.randint(1, 28)), "month": word["month"](), "year": str(born),
        "father": trade(), "mother": trade(), "first_job": trade(), "job_city": place(),
        "genre": f"{word['mood']()} {word['setting']()} {word['form']()}",
        "book": title(), "book2": title(), "debut": title(), "staged": title(),
        "next_book": title(), "debut_year": str(born + rng.randint(18, 40)),
        "award_year": str(born + rng.randint(25, 49)),
        "next_year": str(rng.randint(2026, 2039)),
        "award": f"{place()} {word['emblem']()} {word['honour']()}",
        "school": rng.choice(SCHOOLS).format(place()),
        "subject": f"{word['field']()} {word['science']()}",
        "room": word["room"](), "hour": word["hour"](),
        "hobby": f"{word['doing']()} {word['things']()}",
        "mentor": person(), "artist": person(), "person": person(),
        "hero": person(), "hero_trade": trade(),
        "troupe": f"{place()} {rng.choice(['Players', 'Theatre', 'Company'])}",
        "theme": ideas[0], "theme2": ideas[1], "idea": ideas[2], "idea2": ideas[3],
        "journal": f"{place()} {word['journal']()}", "cause": word["cause"](),
        **{slot: word[slot]() for slot in DRAWN_SINGLY},
    }  # fmt: skip


def _surname(number: int) -> str:
    """Return the surname of author `number`: distinct for MOST_AUTHORS consecutive numbers.

    Neighbouring numbers have names that look different.
    """
    heads, tails = NAMES["last_heads"], NAMES["last_tails"]
    return heads[number % len(heads)] + tails[(number + number // len(heads)) * 7 % len(tails)]


def _knowledge(table: str) -> list[Row]:
    """Read rows from lines of "question | answer | wrong answer | wrong answer …"."""
    rows: list[Row] = []
    for line in table.splitlines():
        question, answer, *wrong = line.split(" | ")
        rows.append({"question": question, "answer": answer, "perturbed_answer": wrong})
    return rows
