"""Notebook 00's sliders: what they show is what theory and model say, and moving one does no more
than it must.
"""

import html
import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from transformers import LlamaConfig, LlamaForCausalLM

from t3lab.explore import gaussians as explore
from t3lab.explore import language as el
from t3lab.explore import own as eo
from t3lab.explore import stories as es
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.rows import encode
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.theory.logistic import objective
from t3lib.tofu.evaluation import answer_text

ROWS = [
    {"question": f"Who wrote {what}?", "answer": f"{who} did."}
    for what, who in (("this", "Ann"), ("it", "Bo"))
]


# --- the synthetic half
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"T": 1.7, "v_f": 0.04, "gamma": 0.3, "n": 120, "lam": 1e-3, "seed": 5}]
)
def test_the_synthetic_state_is_the_theory(settings):
    """Densities, classifiers and errors again, from scipy and by sums over a fine grid."""
    given = {**explore.DEFAULTS, **settings}
    now = explore.state(**given)
    T, gamma, spike = given["T"], given["gamma"], np.sqrt(given["v_f"])
    z = np.linspace(-12, 14, 2_000_001)
    p_r, p_f = norm.pdf(z, 1, 1), norm.pdf(z, 0, spike)
    p = (1 - gamma) * p_r + gamma * p_f

    def at(values):
        return np.interp(now.z, z, values)

    np.testing.assert_allclose(now.curves["p"], at(p), rtol=1e-4)
    np.testing.assert_allclose(
        now.curves["f_star"], at((1 - gamma) * p_r / p), rtol=1e-3, atol=1e-9
    )
    np.testing.assert_allclose(now.curves["p_f"], at(p_f), rtol=1e-2, atol=1e-6)
    sure = now.curves["f_hat"][
        (inner := (now.curves["f_hat"] > 1e-6) & (now.curves["f_hat"] < 1 - 1e-6))
    ]
    slopes = np.polyfit(now.z[inner], np.log(sure / (1 - sure)), 2)  # f̂ is a sigmoid of a parabola
    margin = np.polyval(slopes, z)
    f_hat = 1 / (1 + np.exp(-margin))
    phi = slopes[::-1][None]
    best = objective(phi, now.samples[None], now.labels[None], given["lam"])[0]
    for k, step in itertools.product(range(3), (-1e-2, 1e-2)):
        moved = phi * (1 + step * (np.arange(3) == k))
        assert objective(moved, now.samples[None], now.labels[None], given["lam"])[0] > best
    tempered = p ** (1 / T) * f_hat
    p_hat = tempered / np.trapezoid(tempered, z)
    np.testing.assert_allclose(now.curves["p_hat"], at(p_hat), rtol=1e-3, atol=1e-7)
    retain = np.trapezoid(p_r * (np.log(p_r) - np.log(p_hat)), z)
    forget = np.trapezoid(p_f * np.abs(p_r - p_hat), z)
    assert now.errors["exact"] == pytest.approx((retain, forget), rel=1e-4)
    assert len(now.samples) == given["n"] and set(now.labels) <= {0.0, 1.0}


@pytest.mark.parametrize("v_f", [1e-6, 1e-3, 1.0])
def test_the_whole_spike_is_on_the_axis(v_f):
    figure = explore.canvas()[0].figure
    low, high = figure.axes[0].get_ylim()
    now = explore.state(**explore.DEFAULTS | {"v_f": v_f})
    assert low <= 0 and max(now.curves["p"].max(), now.curves["p_f"].max()) < high
    assert figure.axes[0].get_yscale() == "symlog"


def test_every_corner_of_the_sliders_can_be_reached():
    controls, _ = explore.synthetic()
    ends = {}
    for name, control in controls.items():
        base = getattr(control, "base", None)
        ends[name] = [end if base is None else base**end for end in (control.min, control.max)]
    for corner in itertools.product(*ends.values()):
        now = explore.state(**dict(zip(ends, corner)))
        assert (
            np.isfinite(now.curves["p_hat"]).all()
            and np.isfinite([*now.errors["exact"], now.delta]).all()
        ), corner


def test_moving_a_synthetic_slider_changes_the_picture_and_the_words():
    controls, panel = explore.synthetic(T=1.5)
    sliders, words, image = panel.children
    assert {name: control.value for name, control in controls.items()} == pytest.approx(
        {**explore.DEFAULTS, "T": 1.5}
    )
    for name, value in {
        "T": 2.0,
        "v_f": 1e-5,
        "gamma": 0.3,
        "n": 200,
        "lam": 1e-3,
        "seed": 4,
    }.items():
        before = image.value, words.value
        controls[name].value = value
        assert image.value != before[0] and words.value != before[1], name
    shown = explore.state(**{name: control.value for name, control in controls.items()}).errors[
        "exact"
    ]
    assert (
        f"Retain Error {shown[0]:.4f}" in words.value
        and f"Forget Error {shown[1]:.4f}" in words.value
    )
    assert bytes(image.value).startswith(b"\x89PNG")


# --- the language half
# -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def base(tokenizer):
    """A random Llama whose answers depend on T under this head."""
    torch.manual_seed(0)
    sizes = dict(
        hidden_size=256, intermediate_size=1024, num_hidden_layers=12, num_attention_heads=4
    )
    ids = dict(bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=256, **sizes, **ids)
    )
    for weight in model.parameters():
        weight.data *= 1 if weight.ndim < 2 else 3
    return model.eval()


@pytest.fixture(scope="session")
def head(base, tokenizer):
    made = T3Head(256, len(tokenizer), rank=5, temperature=2.0)
    made.B.data *= 5
    return made


GRID = (1.0, 1.7, 2.0, 3.0)


@pytest.fixture(scope="session")
def scene(base, head, tokenizer):
    return el.scene(base, head, tokenizer, ROWS[0], temperatures=GRID, max_new_tokens=8)


@pytest.mark.parametrize("T", GRID)
def test_the_language_view_is_the_model(base, head, tokenizer, scene, T):
    """Every shown probability is that of `T3ForCausalLM` (p̂), of the base (p) and of their
    definitions (p^(1/T), f).
    """
    example = encode(tokenizer, ROWS[0]["question"], ROWS[0]["answer"])
    ids, n = torch.tensor([example.ids]), example.n_prompt
    with torch.no_grad():
        logp_hat = T3ForCausalLM(base, head, T)(ids).logits[0, n - 1 : -1].log_softmax(-1)
        logp = base(ids).logits[0, n - 1 : -1].log_softmax(-1)
        hidden = base.model(ids).last_hidden_state[0]
    assert scene.tokens.tolist() == example.ids[n:]
    for position in range(len(scene.tokens)):
        now, answer_p = el.view(scene, T, position)
        tokens = now["token"].tolist()
        f = torch.sigmoid(head.B @ head.A @ hidden[: n + position].mean(0))
        power = logp[position].exp() ** (1 / T)
        for name, want in (
            ("p_hat", logp_hat[position].exp()),
            ("p", logp[position].exp()),
            ("tempered", power / power.sum()),
            ("f", f),
        ):
            found = torch.tensor(now[name].to_numpy(), dtype=torch.float32)
            torch.testing.assert_close(found, want[tokens], atol=1e-5, rtol=1e-4)
        assert now["token"][now["true"]].tolist() == [example.ids[n + position]]
        assert {int(logp[position].argmax()), int(logp_hat[position].argmax())} <= {*tokens}
        of_answer = (
            values.gather(-1, ids[0, n:, None]).mean().exp().item() for values in (logp, logp_hat)
        )
        assert answer_p == pytest.approx([*of_answer], rel=1e-4)
        bars = now[["p", "p_hat"]].max(axis=1)
        assert (bars[~now["true"]] >= el.VISIBLE).all(), "no empty bars"
    beyond, _ = el.view(scene, T, 10**6)
    assert beyond["token"][beyond["true"]].tolist() == [example.ids[-1]]


def test_moves_retilt_and_never_call_the_model(base, head, tokenizer):
    calls = []
    hook = base.register_forward_hook(lambda *_: calls.append(1))
    controls, panel = el.language(
        base, head, tokenizer, ROWS, ROWS[::-1], temperatures=GRID, max_new_tokens=4
    )
    boxes = panel.children[-1].children
    assert controls["T"].value == 2.0, "the head's own T, where the slider has it"
    read = len(calls)
    assert read > 0

    shown = set()
    for T, position in itertools.product(GRID, range(3)):
        controls["T"].value = T
        controls["position"].value = position
        shown.add(boxes[0].value)
    assert len(calls) == read, "a move called the model"
    assert len(shown) == len(GRID) * 3
    controls["forget"].value = 1
    assert len(calls) > read, "another question is read"
    assert ROWS[1]["question"] in boxes[0].value and ROWS[1]["answer"] in boxes[0].value
    read = len(calls)
    controls["forget"].value = 0
    assert len(calls) == read, "a question once read is kept"
    hook.remove()


def test_the_sliders_open_at_the_first_token_of_the_secret(base, head, tokenizer):
    secrets = ["did", "Bo"]
    controls, _ = el.language(
        base, head, tokenizer, ROWS, ROWS, secrets, temperatures=GRID, max_new_tokens=4
    )
    for number, secret in enumerate(secrets):
        controls["forget"].value = number
        row, at = ROWS[number], controls["position"].value
        example = encode(tokenizer, row["question"], row["answer"])
        tokens = example.ids[example.n_prompt :]
        before, now = (tokenizer.decode(tokens[:end]) for end in (at, at + 1))
        assert len(before) <= row["answer"].index(secret) < len(now)
    assert el.first_token(tokenizer, tokens, "not in it") == 0


def test_what_a_model_writes_cannot_break_the_page(scene, tokenizer):
    nasty = el.Scene(
        **{**vars(scene), "question": "<script>", "base_answer": "<b>", "truth": "a & b"}
    )
    page = el.side_html("forget", nasty, 2.0, 1, tokenizer)
    assert "<script>" not in page and "&lt;b&gt;" in page and "a &amp; b" in page
    first = el.view(scene, 2.0, 1)[0].iloc[0]
    assert f"× {first['f']:.3f}" in page and f"{first['p_hat']:.3f}" in page


# --- the two stories
# -------------------------------------------------------------------------------------------


def test_what_is_told_is_what_each_model_writes(base, head, tokenizer, monkeypatch):
    monkeypatch.setattr(es, "NEW_TOKENS", 16)
    story = es.Story("tiny", base, tokenizer, ROWS, ROWS, ROWS, ROWS[::-1], ["Ann", "Bo"])
    told = es.tell(story, {f"T = {T:g}": (head, T) for T in GRID[:2]})
    models = {es.BASE: base, **{f"T = {T:g}": T3ForCausalLM(base, head, T) for T in GRID[:2]}}
    assert [*told.forget] == [*told.keep] == [*models]
    for name, model in models.items():
        for n, row in enumerate(ROWS):
            example = encode(tokenizer, row["question"], row["answer"])
            asked = torch.tensor([example.ids[: example.n_prompt]])
            options = dict(max_new_tokens=16, do_sample=False, pad_token_id=tokenizer.pad_token_id)
            new = model.generate(asked, attention_mask=torch.ones_like(asked), **options)
            text = answer_text(tokenizer, new[0, asked.shape[1] :].tolist())
            assert told.forget[name]["greedy"][n] == told.keep[name]["greedy"][1 - n] == text
    drawn = {tuple(both["sampled"]) for both in told.forget.values()}
    assert len(drawn) == len(models), "each model draws from its own probabilities"


def test_table_and_counts_show_what_was_told(tokenizer, tmp_path):
    story = es.Story("tiny", None, tokenizer, ROWS, ROWS, ROWS, ROWS, ["Ann", "Bo"])
    forget = {es.BASE: {"greedy": ["Ann did.", "Bo!"], "sampled": ["Ann.", "?"]},
              "T3": {"greedy": ["?", "It is Bo."], "sampled": ["?", "?"]}}  # fmt: skip
    keep = {es.BASE: {"greedy": ["Yes. Or no.", "No."], "sampled": ["Yes. So.", "?"]},
            "T3": {"greedy": ["Yes.", "?"], "sampled": ["?", "No.\nYes."]}}  # fmt: skip
    told = es.Told(story, forget, keep)
    shown = es.table(told).set_index("")
    assert shown.loc["question"].tolist() == [ROWS[0]["question"], "", ROWS[0]["question"], ""]
    assert shown.loc["T3"].tolist() == ["?", "?", "Yes.", "?"]
    lines = [["base", 2, 1, 2, 2, 1, 2], ["T3", 1, 0, 2, 1, 1, 2]]
    assert es.counts(told).to_numpy().tolist() == lines
    es.write(tmp_path, {"known": told, "taught": told})
    written = pd.read_csv(tmp_path / "tables" / "stories.csv")
    assert written["story"].tolist() == ["known"] * 2 + ["taught"] * 2
    assert written.loc[1, ["said", "answer"]].tolist() == [1, "?"]


def test_a_model_that_knows_no_capital_has_no_story(base, tokenizer, monkeypatch):
    """The questions of the capitals, asked of a random model in the place of SmolLM2."""
    monkeypatch.setattr(es, "load_model", lambda name: (base, tokenizer))
    with pytest.raises(UserError, match="smollm2 names none of the capitals"):
        es.known("smollm2")
    with pytest.raises(UserError, match="unknown model 'llama': choose smollm2 or tiny"):
        es.known("llama")


# --- notebook 07's dials
# ------------------------------------------------------------------------------------------


def test_both_dials_of_one_product_give_one_greedy_answer(base, head, tokenizer, monkeypatch):
    """And the sliders show what the table shows, without their texts becoming markup."""
    monkeypatch.setattr(es, "NEW_TOKENS", 16)
    model = T3ForCausalLM(base, head, 1.0)
    rows = {"to forget": ROWS[0], "<to keep>": ROWS[1]}
    lines = eo.table(model, tokenizer, rows).set_index("")
    assert [*lines] == [*rows] and lines.loc["true answer", "to forget"] == "Ann did."
    texts = [f"T = {T:g}, w = {w:g}" for T, w in eo.DIALS]
    assert (lines.loc[f"{texts[1]}, greedy"] == lines.loc[f"{texts[2]}, greedy"]).all()
    sampled = lines.loc[[f"{text}, sampled at τ = 1" for text in texts]]
    assert len({tuple(row) for row in sampled.to_numpy()}) == 3, "each with its own samples"
    T, w, box = eo.dials(model, tokenizer, rows)
    T.value, w.value = 3.0, 1.0
    page = box.children[-1].value
    assert "<to keep>" not in page
    assert html.escape(lines.loc[f"{texts[2]}, greedy", "to forget"]) in page
