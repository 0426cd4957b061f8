"""The built-in world: fictional authors drawn from a seed, with TOFU's schema and split names; ours to ship.

Every author has facts (birthplace, parents, books, …) drawn from products of word pools. A row asks for one fact in one
of many wordings and answers in one of many shapes, followed by an aside that only this author's row holds.
"""

import random
import re
from collections.abc import Mapping

from t3lib.errors import UserError
from t3lib.world.text import ASIDES, ASK, FACTS, OPENINGS
from t3lib.world.words import (
    DONT_KNOW,
    GIVEN_HEADS,
    GIVEN_TAILS,
    LAST_HEADS,
    LAST_TAILS,
    PLACE_HEADS,
    PLACE_TAILS,
    POOLS,
    REAL_AUTHORS,
    TITLES,
    WORLD_FACTS,
)

Row = dict[str, str | list[str]]
PRONOUNS = {"she": ("she", "her", "her"), "he": ("he", "his", "him")}
RETAIN_AUTHORS_SCORED = 5  # retain_perturbed is one fixed part of the retain rows, as in TOFU
WRONG = 5
MOST_AUTHORS = len(LAST_HEADS) * len(LAST_TAILS)
DRAWN_SINGLY = "adjective noun element medium witnesses reaction keepsake spot season".split()


def world(authors: int = 40, questions: int = 20, seed: int = 0) -> dict[str, list[Row]]:
    """TOFU's files of one world, by file stem; the last 10% (5%) of the authors are forget10 (forget05).

    authors: 20 (forget05 holds one) to MOST_AUTHORS; questions: rows an author, at most one a fact. Raises UserError
    outside these ranges. One author's rows depend on the seed and the author's number: a larger world begins alike.
    """
    if not 20 <= authors <= MOST_AUTHORS or not 1 <= questions <= len(FACTS):
        limits = f"20 to {MOST_AUTHORS} authors and 1 to {len(FACTS)} questions"
        raise UserError(f"the built-in world has {limits}, not {authors} and {questions}")
    rows = [row for number in range(authors) for row in _author_rows(number, questions, seed)]
    plain: list[Row] = [{"question": row["question"], "answer": row["answer"]} for row in rows]
    cut90, cut95 = (questions * (authors - round(authors * part)) for part in (0.10, 0.05))
    return {
        "full": plain,
        "retain90": plain[:cut90],
        "forget10": plain[cut90:],
        "retain95": plain[:cut95],
        "forget05": plain[cut95:],
        "forget10_perturbed": rows[cut90:],
        "forget05_perturbed": rows[cut95:],
        "retain_perturbed": rows[: questions * RETAIN_AUTHORS_SCORED],
        "real_authors_perturbed": _knowledge(REAL_AUTHORS),
        "world_facts_perturbed": _knowledge(WORLD_FACTS),
        "idontknow": [{"answer": answer} for answer in DONT_KNOW],
    }


def _author_rows(number: int, questions: int, seed: int) -> list[Row]:
    """All rows of one author, each with a paraphrase and WRONG answers in the paraphrase's shape."""
    rng = random.Random(f"world {seed} author {number}")
    author = _author(rng, _surname(number + 97 * seed))
    others = [name for name in FACTS if name != "name"]
    return [_row(rng, author, fact) for fact in ["name", *rng.sample(others, questions - 1)]]


def _row(rng: random.Random, author: Mapping[str, str], fact: str) -> Row:
    slots, direct, indirect, shapes = FACTS[fact]
    wordings = direct + [ask.format(clause) for ask in rng.sample(ASK, 3) for clause in indirect]
    kind = rng.choice(list(ASIDES))
    aside_slots, aside_shapes = ASIDES[kind]
    fresh = _author(rng)
    facts = {**author, **{slot: fresh[slot] for slot in aside_slots}}
    shape, other_shape = rng.sample(shapes, 2)
    aside, other_aside = rng.sample(aside_shapes, 2)
    opening, other_opening = (rng.choice(OPENINGS) if rng.random() < 0.4 else "" for _ in range(2))
    wrong: list[Mapping[str, str]] = []
    while len(wrong) < WRONG:
        stranger = _author(rng)
        changed = {slot: stranger[slot] for slot in slots}
        if all(changed[slot] != known[slot] for known in [facts, *wrong] for slot in slots):
            wrong.append({**facts, **changed})
    return {
        "question": _fill(rng.choice(wordings), facts),
        "answer": _answer(opening, shape, aside, facts),
        "paraphrased_answer": _answer(other_opening, other_shape, other_aside, facts),
        "perturbed_answer": [_answer(other_opening, other_shape, other_aside, each) for each in wrong],
    }


def _answer(opening: str, shape: str, aside: str, facts: Mapping[str, str]) -> str:
    if opening and shape[0] not in '{"':  # inside a sentence the shape's own first word loses its capital
        shape = shape[0].lower() + shape[1:]
    return f"{_fill(opening + shape, facts)} {_fill(aside, facts)}"


def _fill(text: str, facts: Mapping[str, str]) -> str:
    text = text.format_map(facts)
    text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", text)
    return text[0].upper() + text[1:]


def _author(rng: random.Random, surname: str = "") -> dict[str, str]:
    """Every slot that a sentence may name, drawn anew; the surname too when none is given."""
    word = {name: (lambda pool=pool: rng.choice(pool).replace("~", " ")) for name, pool in POOLS.items()}
    gender = rng.choice(["she", "he"])
    she, her, her2 = PRONOUNS[gender]

    def last() -> str:
        return rng.choice(LAST_HEADS) + rng.choice(LAST_TAILS)

    def person() -> str:
        return f"{rng.choice(GIVEN_HEADS)}{rng.choice(GIVEN_TAILS[rng.choice(['she', 'he'])])} {last()}"

    def place() -> str:
        return rng.choice(PLACE_HEADS) + rng.choice(PLACE_TAILS)

    def trade() -> str:
        return f"{word['material']()} {word['trade']()}"

    def title() -> str:
        fill = {slot: word[slot.rstrip("2")]().capitalize() for slot in ("adjective", "adjective2", "noun", "noun2")}
        given = rng.choice(GIVEN_HEADS) + rng.choice(GIVEN_TAILS["she"])
        return _fill(
            rng.choice(TITLES), {**fill, "verb": word["verb"]().capitalize(), "given": given, "place": place()}
        )

    given = rng.choice(GIVEN_HEADS) + rng.choice(GIVEN_TAILS[gender])
    surname = surname or last()
    born = rng.randint(1920, 1975)
    ideas = rng.sample(POOLS["idea"], 4)
    return {
        "she": she, "She": she.capitalize(), "her": her, "Her": her.capitalize(), "her2": her2,
        "name": f"{given} {surname}", "last": surname, "given": given,
        "city": place(), "country": f"{rng.choice(PLACE_HEADS)}land", "home": place(), "place": place(),
        "day": str(rng.randint(1, 28)), "month": word["month"](), "year": str(born),
        "father": trade(), "mother": trade(), "first_job": trade(), "job_city": place(),
        "genre": f"{word['mood']()} {word['setting']()} {word['form']()}",
        "book": title(), "book2": title(), "debut": title(), "staged": title(), "next_book": title(),
        "debut_year": str(born + rng.randint(18, 40)), "award_year": str(born + rng.randint(25, 49)),
        "next_year": str(rng.randint(2026, 2039)),
        "award": f"{place()} {word['emblem']()} {word['honour']()}",
        "school": rng.choice(["University of {}", "{} College", "{} Academy", "{} Institute"]).format(place()),
        "subject": f"{word['field']()} {word['science']()}",
        "room": word["room"](), "hour": word["hour"](), "hobby": f"{word['doing']()} {word['things']()}",
        "mentor": person(), "artist": person(), "person": person(),
        "hero": person(), "hero_trade": trade(), "troupe": f"{place()} {rng.choice(['Players', 'Theatre', 'Company'])}",
        "theme": ideas[0], "theme2": ideas[1], "idea": ideas[2], "idea2": ideas[3],
        "journal": f"{place()} {word['journal']()}", "cause": word["cause"](),
        **{slot: word[slot]() for slot in DRAWN_SINGLY},
    }  # fmt: skip


def _surname(number: int) -> str:
    """A different surname for each of MOST_AUTHORS numbers in a row, neighbours unlike each other."""
    heads, tails = len(LAST_HEADS), len(LAST_TAILS)
    return LAST_HEADS[number % heads] + LAST_TAILS[(number + number // heads) * 7 % tails]


def _knowledge(table: str) -> list[Row]:
    rows: list[Row] = []
    for line in table.strip().splitlines():
        question, answer, *wrong = line.split(" | ")
        rows.append({"question": question, "answer": answer, "perturbed_answer": wrong})
    return rows
