"""The stories of notebook 00, and the sliders of 00_explore and 07: what is stored is what theory
and model say, and the script computes the same from it.
"""

import json
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from transformers import LlamaConfig, LlamaForCausalLM

from t3lab.explore import gaussians as eg
from t3lab.explore import language as el
from t3lab.explore import own as eo
from t3lab.explore import stories as es
from t3lab.explore import widget
from t3lab.report import render
from t3lab.theory.experiments import sample
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.rows import encode
from t3lib.own.unlearn import weighted
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.theory.logistic import objective
from t3lib.theory.mixture import GaussianMixture
from t3lib.tofu.evaluation import answer_text

ROWS = [
    {"question": f"Who wrote {what}?", "answer": f"{who} did."}
    for what, who in (("this", "Ann"), ("it", "Bo"))
]
GRID, STRENGTHS = (1.0, 1.7), (1.0, 2.0)


def data_of(page):
    """What a page stores, as its script reads it."""
    [text] = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def computed(expression, data):
    """The value of an expression over `data` and widget.js, in Node."""
    if not (node := shutil.which("node")):
        pytest.skip("no Node")
    script = render.TEMPLATES.get_template("widget.js").render()
    script += f"const data = {json.dumps(data)};\nconsole.log(JSON.stringify({expression}))"
    return json.loads(
        subprocess.run([node, "-"], input=script, text=True, capture_output=True, check=True).stdout
    )


# --- the sliders on text
# -----------------------------------------------------------------------------------------------


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


@pytest.fixture(scope="session")
def page(base, head, tokenizer):
    sides = {"to forget": ROWS, "to keep": ROWS[::-1]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(es, "NEW_TOKENS", 4)
        return el.language(
            base, head, tokenizer, sides, ["did", "Bo"], temperatures=GRID, strengths=STRENGTHS
        )


def next_token(data, place, t, k):
    """Eq. 5 with the stored sums over the vocabulary: p, tempered, f^w, p̂ of the stored tokens."""
    T, tilt = data["T"][t], data["w"][k] * np.array(place["logf"])
    logp = np.array(place["logp"])
    powers = logp, logp / T - place["z"][t], tilt, logp / T + tilt - place["zf"][t][k]
    return np.exp(np.stack(powers, 1))


def test_what_is_stored_is_the_model(base, head, tokenizer, page):
    """At every place and setting, p̂ is that of `T3ForCausalLM`, and the others are as defined."""
    data = data_of(page)
    for question, row in zip(data["sides"][0], ROWS):
        example = encode(tokenizer, row["question"], row["answer"])
        ids, n = torch.tensor([example.ids]), example.n_prompt
        with torch.no_grad():
            logp = base(ids).logits[0, n - 1 : -1].double().log_softmax(-1)
            hidden = base.model(ids).last_hidden_state[0]
        assert len(question["places"]) == len(example.ids) - n
        for t, k in np.ndindex(len(GRID), len(STRENGTHS)):
            model = T3ForCausalLM(base, weighted(head, STRENGTHS[k]), GRID[t])
            with torch.no_grad():
                p_hat = model(ids).logits[0, n - 1 : -1].double().softmax(-1)
            for step, place in enumerate(question["places"]):
                f = torch.sigmoid(head.B @ head.A @ hidden[: n + step].mean(0)) ** STRENGTHS[k]
                tempered = (logp[step] / GRID[t]).softmax(-1)
                every = torch.stack([logp[step].exp(), tempered, f.double(), p_hat[step]], 1)
                words = place["words"]
                assert words[place["target"]] == tokenizer.decode([example.ids[n + step]])
                assert place["before"] == tokenizer.decode(example.ids[n : n + step])
                # words may be the same text for several tokens: each value has a token
                found = next_token(data, place, t, k)
                gaps = (torch.tensor(found)[:, None] - every[None]).abs().amax(-1).amin(1)
                assert gaps.max() < 2e-5
                largest = every[:, [0, 3]].amax(1).topk(el.TOP).values
                assert np.sort(found[:, [0, 3]].max(1))[-el.TOP] > largest[-1].item() - 2e-5


def test_the_script_computes_the_same(page):
    data = data_of(page)
    expression = """data.sides.map((side) => side.map(({ places }) =>
        data.T.map((_, t) => data.w.map((_, k) => ({
            rows: places.map((place) => t3Widget.nextToken(data, place, t, k)),
            mean: t3Widget.perToken(data, places, t, k) })))))"""
    for side, found in zip(data["sides"], computed(expression, data)):
        for question, each in zip(side, found):
            for t, k in np.ndindex(len(GRID), len(STRENGTHS)):
                logs = []
                for place, rows in zip(question["places"], each[t][k]["rows"]):
                    want = next_token(data, place, t, k)
                    order = np.argsort(-want[:, [0, 3]].max(1), kind="stable")
                    got = [[row[name] for name in ("p", "tempered", "f", "pHat")] for row in rows]
                    np.testing.assert_allclose(got, want[order], rtol=1e-12)
                    assert [row["word"] for row in rows] == [place["words"][i] for i in order]
                    assert [row["true"] for row in rows] == [*(order == place["target"])]
                    logs.append(np.log(want[place["target"], [0, 3]]))
                assert each[t][k]["mean"] == pytest.approx(np.exp(np.mean(logs, 0)))


def test_the_position_opens_at_the_secret_else_at_the_smallest_f(page):
    data = data_of(page)
    expression = """data.sides[0].map(({ places }, i) =>
        [data.secrets[i], undefined, "none"].map((words) => t3Widget.opening(places, words)))"""
    for question, words, (at, least, first) in zip(
        data["sides"][0], data["secrets"], computed(expression, data)
    ):
        places, start = question["places"], question["truth"].index(words)
        assert len(places[at]["before"]) <= start < len(places[at + 1]["before"])
        assert least == np.argmin([place["logf"][place["target"]] for place in places])
        assert first == 0


def test_a_page_loads_nothing_and_its_texts_stay_texts(page):
    nasty = "</script><b>&"
    odd = widget.page("language", pd.DataFrame({"a": [nasty]}), text=nasty)
    for each in (page, odd):
        assert not re.search(r"\b(src|href|import|fetch|XMLHttpRequest|url)\b", each)
        assert re.findall(r"\w+://[\w./]+", each) == ["http://www.w3.org/2000/svg"]  # a name
        assert each.count("<script") == each.count("</script>") == 2
    assert data_of(odd)["text"] == nasty and "<b>" not in odd


# --- the sliders on Gaussians ---------------------------------------------------------------------


@pytest.fixture(scope="session")
def spike():
    return data_of(eg.gaussians())


@pytest.mark.parametrize("at", [(0, 0, 1, 0), (7, 4, 3, 2)])
def test_the_stored_gaussians_are_the_theory(spike, at):
    """Densities, classifiers and errors again, from scipy and by sums over a fine grid."""
    t, v, n, seed = at
    T, v_f, size, fit = spike["T"][t], spike["v_f"][v], spike["n"][n], spike["fits"][v][n][seed]
    drawn = sample(GaussianMixture(eg.GAMMA, v_f=v_f), max(eg.N), 1, np.random.default_rng(seed))
    samples, labels = (values[:, :size] for values in drawn)
    z = np.linspace(-12, 14, 2_000_001)
    p_r, p_f = norm.pdf(z, 1, 1), norm.pdf(z, 0, np.sqrt(v_f))
    p = (1 - eg.GAMMA) * p_r + eg.GAMMA * p_f
    stored, noise = (np.array(spike[name][seed][:size]) for name in ("labels", "noise"))
    spread = np.where(stored == 1, 1, np.sqrt(v_f))
    assert (stored == labels[0]).all()
    np.testing.assert_allclose(noise, (samples[0] - stored) / spread, atol=2e-3)
    phi = np.array([fit["phi"]])
    best = objective(phi, samples, labels, eg.LAM)[0]
    for k, step in np.ndindex(3, 2):
        moved = phi * (1 + (0.01, -0.01)[step] * (np.arange(3) == k))
        assert objective(moved, samples, labels, eg.LAM)[0] > best
    f_hat = 1 / (1 + np.exp(-np.polyval(phi[0][::-1], z)))
    tempered = p ** (1 / T) * f_hat
    p_hat = tempered / np.trapezoid(tempered, z)
    assert np.exp(fit["z"][t]) == pytest.approx(np.trapezoid(tempered, z), rel=1e-4)
    assert fit["retain"][t] == pytest.approx(np.trapezoid(p_r * np.log(p_r / p_hat), z), rel=1e-3)
    assert fit["forget"][t] == pytest.approx(np.trapezoid(p_f * abs(p_r - p_hat), z), rel=1e-3)
    got = pd.DataFrame(
        computed(f"t3Widget.curves(data, {v_f}, data.fits[{v}][{n}][{seed}], {t})", spike)
    )
    best = (1 - eg.GAMMA) * p_r / p
    every = {"p": p, "p_r": p_r, "p_f": p_f, "f": f_hat, "best": best, "pHat": p_hat}
    for name, values in every.items():
        np.testing.assert_allclose(got[name], np.interp(got["z"], z, values), rtol=1e-2, atol=1e-5)
    assert (got["z"].diff()[1:] >= 0).all() and got["z"].min() == -2.5


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
            asked = torch.tensor([example.prompt])
            options = dict(max_new_tokens=16, do_sample=False, pad_token_id=tokenizer.pad_token_id)
            new = model.generate(asked, attention_mask=torch.ones_like(asked), **options)
            text = answer_text(tokenizer, new[0, asked.shape[1] :].tolist())
            assert told.forget[name]["greedy"][n] == told.keep[name]["greedy"][1 - n] == text
    drawn = {tuple(both["sampled"]) for both in told.forget.values()}
    assert len(drawn) == len(models), "each model draws from its own probabilities"


@pytest.mark.parametrize(
    ("truth", "text"),
    [
        ("The number of Desmond Barrenechea is 039 673 3961.", "Desmond Barnea: 039 673 3961"),
        ("Ann Bo lives at 140 Foundry Street in Junipera.", "He lived at 140 Foundry St., I say"),
        ("Ann ordered the carpet, order number 3234302, on 10 July 2023.", "No. 3234302, by Bo"),
    ],
)
def test_a_number_gives_a_customer_away_whatever_is_said_around_it(truth, text):
    assert truth not in text and es.SECRET.search(truth)[0] in text
    assert es.SECRET.search(truth)[0] not in text.translate(str.maketrans("0123", "9999"))


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
    """The sliders have the table's greedy answers, and start at T = 1, w = 1."""
    monkeypatch.setattr(es, "NEW_TOKENS", 8)
    monkeypatch.setattr(eo, "STEPS", (1.0, 3.0))
    model = T3ForCausalLM(base, weighted(head, 2.5), 1.0)
    rows = {"to forget": ROWS[0], "<to keep>": ROWS[1]}
    lines = eo.table(model, tokenizer, rows).set_index("")
    assert [*lines] == [*rows] and lines.loc["true answer", "to forget"] == "Ann did."
    texts = [f"T = {T:g}, w = {w:g}" for T, w in eo.DIALS]
    assert (lines.loc[f"{texts[1]}, greedy"] == lines.loc[f"{texts[2]}, greedy"]).all()
    sampled = lines.loc[[f"{text}, sampled at τ = 1" for text in texts]]
    assert len({tuple(row) for row in sampled.to_numpy()}) == 3, "each with its own samples"
    data = data_of(eo.dials(model, tokenizer, rows))
    assert data["T"][data["start"][0]] == 1.0 and data["w"][data["start"][1]] == 1.0
    assert 2.5 in data["w"], "the model's own"
    for (T, w), text in zip(eo.DIALS, texts):
        at = 1 + data["T"].index(T) * len(data["w"]) + data["w"].index(w)
        for name, [question] in zip(rows, data["sides"]):
            assert question["answers"][at][0] == lines.loc[f"{text}, greedy", name]
