"""Every decoding mode x model family x padding against the float64 no-cache reference: equal
tokens, equal log p.

T3_WRITE_MATRIX=1 writes what was measured to studies/tried/sampler_matrix.md, the table that README
links to.
"""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from families import CONFIGS, DEVICE, HIDDEN, MORE, VOCAB, family
from modes import LIMIT, MODES, PADDINGS, ROLLBACK, expected, prompt, worst
from reference import Reference

from t3lib.classifier.head import T3Head
from t3lib.core.files import atomic_write
from t3lib.sampler.tilt import T3ForCausalLM, tilt

T = 2.0
WRITE = os.environ.get("T3_WRITE_MATRIX") == "1"
IN_PLACE = [
    "greedy",
    "4 beams with scores",
    "static cache",
    "assisted (draft model)",
    "continuation",
]
CASES = len(CONFIGS) * (len(MODES) * len(PADDINGS) + len(IN_PLACE))
TABLE = Path(__file__).resolve().parents[2] / "results" / "studies" / "tried" / "sampler_matrix.md"
measured: dict[tuple[str, str], dict[str, float]] = {}


NEUTRAL = {"left": range(0, VOCAB, 3)}  # untaught tokens of the head that decodes with this padding
GATE = {"holes": 0.5}  # of the head that decodes with this padding
TAIL = {"right": 0.1, "holes": 0.05}  # the same; "holes" has both


def head(
    seed: int = 3, neutral: Sequence[int] = (), gate: float = 1.0, tail: float = 0.0
) -> T3Head:
    made = T3Head(HIDDEN, VOCAB, rank=5, seed=seed)
    if neutral:
        made.untrained, made.taught = "neutral", torch.ones(VOCAB, dtype=torch.bool)
        made.taught[list(neutral)] = False
    made.gate, made.tail = gate, tail
    made.A.data *= 3
    made.B.data *= 5
    return made.to(DEVICE)


@functools.cache
def t3(name: str, padding: str = "none") -> Reference:
    """The oracle of T3 with `head()` at T on a family's base."""
    dials = NEUTRAL.get(padding, ()), GATE.get(padding, 1.0), TAIL.get(padding, 0.0)
    return Reference.of(family(name), [(head().A, head().B)], T, *dials)


def measure(mode: str, name: str, model: Any, padding: str, row: str) -> None:
    """Check one case and record it; a base that cannot take tokens back has to refuse the modes
    that do.
    """
    cell = measured.setdefault((row, name), {"cases": 0, "delta": 0.0})
    if mode in ROLLBACK and family(name)._is_stateful:
        with pytest.raises(
            ValueError, match="assisted generation is not supported with stateful models"
        ):
            MODES[mode](model, t3(name, padding), padding)
    else:
        delta = MODES[mode](model, t3(name, padding), padding)
        assert delta <= LIMIT
        cell["delta"] = max(cell["delta"], delta)
    cell["cases"] += 1


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CONFIGS)
def test_exact(name: str, mode: str, padding: str) -> None:
    if padding == "right" and (
        mode == "continuation" or "chunked" in mode and family(name)._is_stateful
    ):
        # generate renumbers a right-padded row's tokens when called again, for any base; and a
        # hybrid base forgets the mask of a prompt's later chunks
        padding = "holes"
    dials = {"gate": GATE.get(padding, 1.0), "tail": TAIL.get(padding, 0.0)}
    made = head(neutral=NEUTRAL.get(padding, ()), **dials)
    measure(mode, name, T3ForCausalLM(family(name), made, T), padding, mode)


@pytest.mark.parametrize("mode", IN_PLACE)
@pytest.mark.parametrize("name", CONFIGS)
def test_exact_in_place(name: str, mode: str) -> None:
    base = family(name)
    with tilt(base, head(neutral=NEUTRAL["left"]), T) as model:
        assert model is base
        measure(mode, name, model, "left", f"`with tilt(...)`, {len(IN_PLACE)} modes")


@pytest.mark.parametrize(
    "mode", ["greedy", "use_cache=False", "4 beams with scores", "teacher-forced labels"]
)
@pytest.mark.parametrize("name", MORE)
def test_families_beside_those_of_the_table_are_exact(name: str, mode: str) -> None:
    made = T3ForCausalLM(family(name), head(neutral=NEUTRAL["left"]), T)
    assert MODES[mode](made, t3(name, "left"), "left") <= LIMIT


@pytest.mark.parametrize("name", CONFIGS)
def test_the_reference_can_tell(name: str) -> None:
    """Forgetting the padding mask, another T, another head, a head whose tokens are not neutral,
    one whose gate is open and one that keeps the tail would all be seen: each is off by far more
    than LIMIT.
    """
    neutral = NEUTRAL["left"]
    for wrong in (
        T3ForCausalLM(family(name), head(neutral=neutral), T + 0.01),
        T3ForCausalLM(family(name), head(seed=4, neutral=neutral), T),
        T3ForCausalLM(family(name), head(), T),
        T3ForCausalLM(family(name), head(neutral=neutral), T, gate=GATE["holes"]),
        T3ForCausalLM(family(name), head(neutral=neutral), T, tail=TAIL["right"]),
    ):
        assert teacher_delta(wrong, name, masked=True) > 100 * LIMIT
    right = T3ForCausalLM(family(name), head(neutral=neutral), T)
    assert teacher_delta(right, name, masked=False) > 100 * LIMIT


def teacher_delta(model: Any, name: str, masked: bool) -> float:
    ids, mask = prompt("left")
    with torch.no_grad():
        pooled = mask if masked else torch.ones_like(mask)
        logits = model(ids, attention_mask=mask, prepared=pooled).logits
    seen = mask.bool()
    return worst(logits[seen], expected(t3(name, "left"), "left", "teacher")[1][seen])


@pytest.mark.skipif(WRITE, reason="the table is being written")
def test_the_committed_table_is_of_these_cases() -> None:
    """Same modes, families, paddings, limit and number of cases as this file runs, every cell a
    passing measurement.

    After a change here: T3_WRITE_MATRIX=1 pytest tests/sampler/test_sampler_matrix.py, and commit
    the table.
    """
    head, rule, *rows = [line for line in TABLE.read_text().splitlines() if line.startswith("|")]
    assert head == "| mode | " + " | ".join(CONFIGS) + " |" and set(rule) == set("|-")
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells] == [*MODES, f"`with tilt(...)`, {len(IN_PLACE)} modes"]
    for mode, *deltas in cells:
        for name, delta in zip(CONFIGS, deltas):
            refused = mode in ROLLBACK and family(name)._is_stateful
            assert delta == "refused" if refused else 0 < float(delta) <= LIMIT
    assert summary(CASES) in TABLE.read_text()


@pytest.fixture(scope="module", autouse=True)
def matrix() -> Any:
    yield
    if WRITE:
        write_matrix(TABLE)


def write_matrix(path: Path) -> None:
    """Rows modes, columns families, cells the largest |delta log p| over the four paddings."""
    rows = list(dict.fromkeys(row for row, _ in measured))
    lines = ["| mode | " + " | ".join(CONFIGS) + " |", "|---" * (len(CONFIGS) + 1) + "|"]
    for row in rows:
        deltas = [measured[row, name]["delta"] for name in CONFIGS]
        lines.append(
            f"| {row} | "
            + " | ".join(f"{delta:.0e}" if delta else "refused" for delta in deltas)
            + " |"
        )
    passed = int(sum(cell["cases"] for cell in measured.values()))
    assert passed == CASES, (
        f"{passed} of {CASES} cases passed: a table is written of a whole run only"
    )
    with atomic_write(path) as handle:
        handle.write("\n".join([*lines, "", summary(CASES)]))


def summary(cases: int) -> str:
    """The sentences below the table."""
    return (
        f"{cases} cases passed: every row of a batch equals the float64 reference token for token;"
        f" cells give the\nlargest absolute difference of log p (limit {LIMIT:.0e}) over paddings"
        f" {', '.join(PADDINGS)}.\nHybrid bases have a recurrent state, which cannot be taken back:"
        ' modes with drafts are refused.\nRight-padded continuation runs with "holes": there'
        " `generate` renumbers the tokens itself, for any model.\nSo does right-padded chunked"
        " prefill of hybrid bases: they forget the mask there, with or without T3.\n"
    )
