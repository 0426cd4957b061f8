"""The sliders of notebook 00_explore on text: one question to forget and one to keep, under the
base and under T3, at any T.

A question is read once (`scene`): the base's log p and the head's log f at every position of its
true answer do not depend on T. So moving T or the position only computes with arrays and calls no
model (`view`). The greedy answers for all T of the slider are decoded together when a question is
picked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from t3lab.report.render import TEMPLATES
from t3lib.classifier.head import T3Head
from t3lib.core.models import pad_id
from t3lib.core.rows import Row, encode_rows
from t3lib.sampler.tilt import tilt_logits
from t3lib.tofu.likelihood import UNTILTED, Reading, answer_positions
from t3lib.tofu.writing import eos_ids, greedy

TEMPERATURES = tuple(1 + step / 4 for step in range(13))  # 1, 1.25, … 4
VISIBLE = 0.005  # a smaller probability has an empty bar: its token is counted with all others


@dataclass(frozen=True)
class Scene:
    """One question with everything that does not depend on T.

    tokens: (L,) ids of the true answer, including its end of turn.
    logp, logf: (L, V), the base's log p and the head's log f of the next token, after the question
    and the tokens of the answer before it.
    base_answer: the base's greedy text. answers: {T: T3's greedy text}.
    """

    question: str
    truth: str
    tokens: Tensor
    logp: Tensor
    logf: Tensor
    base_answer: str
    answers: dict[float, str]


def view(scene: Scene, T: float, position: int, top: int = 10) -> tuple[pd.DataFrame, list[float]]:
    """Compute p^(1/T) / Σ p^(1/T) and p̂ ∝ p^(1/T) f (Eq. 5) at one position of the true answer.

    position: counts the answer's tokens from 0. Beyond the end it means the last token.
    top: at most so many tokens are shown: those with the largest p or p̂, and the true token.
    Tokens whose probability is too small for a bar (`VISIBLE`) are left out.

    Returns a table with a row for each token shown, and the probability per token of the true
    answer (geometric mean) under the base and under T3. Columns of the table: token (its id), p,
    tempered, f (the tilt), p_hat, and true, which is True for the true token.
    """
    at = min(position, len(scene.tokens) - 1)
    target = scene.tokens[at]
    # (L, V): all positions, for the probability of the answer
    logp_hat = tilt_logits(scene.logp, scene.logf, T).log_softmax(-1)
    p, p_hat = scene.logp[at].exp(), logp_hat[at].exp()
    highest = torch.maximum(p, p_hat).topk(min(top, len(p)))
    shown = highest.indices[highest.values >= VISIBLE]
    if target not in shown:
        shown = torch.cat([shown[: top - 1], target[None]])
    tempered, f = (scene.logp[at] / T).softmax(-1), scene.logf[at].exp()
    every = {"p": p, "tempered": tempered, "f": f, "p_hat": p_hat}
    columns = {name: values[shown].tolist() for name, values in every.items()}
    tokens = {"token": shown.tolist(), "true": (shown == target).tolist()}
    of_answer = (logp.gather(-1, scene.tokens[:, None]).mean() for logp in (scene.logp, logp_hat))
    return pd.DataFrame(tokens | columns), [mean.exp().item() for mean in of_answer]


@torch.no_grad()
def scene(
    base: Any,
    head: T3Head,
    tokenizer: Any,
    row: Row,
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    max_new_tokens: int = 60,
) -> Scene:
    """Score a row's true answer with one forward pass, and decode the greedy answers at every T.

    max_new_tokens: the longest answer, in tokens.
    """
    [example] = encode_rows(tokenizer, [row])
    ends = eos_ids(base, tokenizer)
    reading = Reading(pad_id(tokenizer), ends, progress=False)
    parts = list(answer_positions(base, [example], reading, [head]))
    order = torch.cat([part.step for part in parts]).argsort()
    logits, z = (
        torch.cat([getattr(part, name) for part in parts])[order] for name in ("logits", "z")
    )
    prompt = example.ids[: example.n_prompt]
    tilts = [*UNTILTED, *((head, T) for T in temperatures)]
    written = greedy(base, [prompt], reading, tilts, max_new_tokens=max_new_tokens)
    texts = [tokenizer.decode(tokens, skip_special_tokens=True) for [tokens] in written]
    return Scene(
        question=row["question"],
        truth=row["answer"],
        tokens=torch.tensor(example.ids[example.n_prompt :]),
        logp=logits.float().log_softmax(-1).cpu(),
        logf=head.logf(z).cpu(),
        base_answer=texts[0],
        answers=dict(zip(temperatures, texts[1:])),
    )


def language(
    base: Any,
    head: T3Head,
    tokenizer: Any,
    forget: Sequence[Row],
    retain: Sequence[Row],
    secrets: Sequence[str] = (),
    **options: Any,
) -> tuple[dict[str, Any], Any]:
    """Build the widgets, and return (widgets by name, the box to display).

    forget, retain: rows to choose from. secrets: for each row to forget, the words that give it
    away; the position is first that of their first token. options: those of `scene`. Moving T or
    the position computes with arrays in memory. A question that is picked for the first time is
    scored and answered first.
    """
    import ipywidgets as widgets  # type: ignore[import-untyped]

    temperatures = sorted(options.setdefault("temperatures", TEMPERATURES))
    wide = widgets.Layout(width="98%")
    start = min(temperatures, key=lambda T: abs(T - head.temperature))
    controls: dict[str, Any] = {
        "T": widgets.SelectionSlider(options=temperatures, value=start, description="T"),
        "position": widgets.IntSlider(
            0, min=0, max=1, description="position", layout=widgets.Layout(width="330px")
        ),
    }
    sides = {"forget": forget, "retain": retain}
    for name, rows in sides.items():
        choices = [(row["question"], number) for number, row in enumerate(rows)]
        controls[name] = widgets.Dropdown(options=choices, description=name, layout=wide)
    boxes = {name: widgets.HTML(layout=widgets.Layout(width="50%")) for name in sides}
    read: dict[tuple[str, int], Scene] = {}

    def chosen(name: str) -> Scene:
        key = (name, controls[name].value)
        if key not in read:
            read[key] = scene(base, head, tokenizer, sides[name][key[1]], **options)
        return read[key]

    def redraw(_: object = None) -> None:
        scenes = {name: chosen(name) for name in sides}
        controls["position"].max = max(len(each.tokens) for each in scenes.values()) - 1
        for name, each in scenes.items():
            T, position = controls["T"].value, controls["position"].value
            boxes[name].value = side_html(name, each, T, position, tokenizer)

    def picked(_: object = None) -> None:
        if secrets:
            secret, tokens = secrets[controls["forget"].value], chosen("forget").tokens.tolist()
            controls["position"].max = max(controls["position"].max, len(tokens) - 1)
            controls["position"].value = first_token(tokenizer, tokens, secret)

    controls["forget"].observe(picked, names="value")
    for control in controls.values():
        control.observe(redraw, names="value")
    picked()
    redraw()
    first = widgets.HBox([controls["T"], controls["position"]])
    return controls, widgets.VBox(
        [controls["forget"], controls["retain"], first, widgets.HBox(list(boxes.values()))]
    )


def first_token(tokenizer: Any, tokens: Sequence[int], words: str) -> int:
    """Return the index of the token in which some words of a text begin, else 0."""
    start = tokenizer.decode(tokens).find(words)
    ends = (len(tokenizer.decode(tokens[: k + 1])) for k in range(len(tokens)))
    return next((k for k, end in enumerate(ends) if end > start), 0)


def side_html(name: str, each: Scene, T: float, position: int, tokenizer: Any) -> str:
    """Write one side as HTML: the answer so far, a table of next tokens with bars, and the models'
    answers.

    name: "forget" or "retain".
    """
    shown, answer_p = view(each, T, position)
    words = [tokenizer.decode([token]) for token in shown["token"]]
    so_far = each.tokens[: min(position, len(each.tokens) - 1)]
    return TEMPLATES.get_template("language.html").render(
        name=name,
        scene=each,
        answer_p=answer_p,
        T=f"{T:g}",
        answer=each.answers[T],
        so_far=tokenizer.decode(so_far.tolist()),
        rows=shown.assign(word=words).to_dict("records"),
        rest=1 - shown[["p", "tempered", "p_hat"]].sum(),
    )
