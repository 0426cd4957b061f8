"""A case is something that must be refused in one line, or survived. `outcome` tries it."""

import contextlib
import functools
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from conftest import byte_tokenizer, tiny_llama
from transformers import LlamaForCausalLM

from t3lib import cli
from t3lib.core.errors import UserError

TOKENIZER = byte_tokenizer()
KEPT = tempfile.TemporaryDirectory()  # removed when the process ends
REFUSED = object()  # equal to no result: nothing but a refusal will do
LEFT = ("out", "written")  # what a command was to write, and what hostile code would write


class Case(NamedTuple):
    """work(empty folder) returns `expected`, or it is refused in one line.

    said: words of that line, in their order and parted by "…". None: it must work.
    """

    name: str
    work: Callable[[Path], Any]
    expected: Any = REFUSED
    said: str | None = ""


@functools.cache
def tiny() -> LlamaForCausalLM:
    return tiny_llama(TOKENIZER)


@functools.cache
def base() -> Path:
    """A folder with the tiny model and its tokenizer; not to be changed."""
    place = Path(KEPT.name) / "base"
    with contextlib.redirect_stderr(io.StringIO()):  # a bar
        tiny().save_pretrained(place)
    TOKENIZER.save_pretrained(place)
    return place


def refused(work: Callable[[Any, Path], Any], inputs: Mapping[Any, Any] | Iterable) -> list[Case]:
    """A case for each input that work(input, folder) must refuse.

    inputs: pairs (input, words of the refusal), or such pairs by name. A change of a folder has the
    words as its name.
    """
    named = inputs.items() if isinstance(inputs, Mapping) else ((None, pair) for pair in inputs)
    cases = []
    for name, (given, said) in named:
        title = name or (said if callable(given) else repr(given)[:50])
        cases.append(Case(title, partial(work, given), said=said))
    return cases


def command(*words: Any) -> int:
    """Run `t3` and return its exit code; raise the one line of a refusal as UserError."""
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        try:
            code = cli.main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
    if code == 2:
        lines = printed.getvalue().splitlines()
        # A note on a missing reference is said before anything is read.
        [line] = [each for each in lines if each[:2] == "t3" and "no --reference" not in each]
        assert line.isprintable()
        raise UserError(line)
    return code


def outcome(case: Case, folder: Path) -> tuple[str, str]:
    """("survived" | "lost" | "wrong", what was seen).

    It is survived when its result is right, or a refusal is right and leaves nothing behind. It is
    lost when it ends in a traceback, in another line, or leaves something half-written, and wrong
    when it returns another result without a word.
    """
    os.environ["T3_CACHE"] = str(folder / "cache")
    try:
        result, line = case.work(folder), None
    except UserError as error:
        result, line = None, str(error)
    except Exception as error:  # a traceback, whatever its kind, is what must not be
        return "lost", f"{type(error).__name__}: {error}"[:300]
    left = [name for name in LEFT if line is not None and (folder / name).exists()]
    if left := [*left, *(path.name for path in folder.rglob("*.partial*"))]:
        return "lost", f"left {left} behind: {line}"
    if line is None:
        return "survived" if result == case.expected else "wrong", repr(result)[:300]
    words = None if case.said is None else ".*".join(map(re.escape, case.said.split("…")))
    named = words is not None and re.search(words, line)
    return "survived" if named else "lost", f"refused: {line}"[:300]
