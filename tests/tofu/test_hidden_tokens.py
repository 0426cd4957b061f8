"""The mask "openunlearning" hides the padding token inside a text, also where it ends a turn.

The reference implementation counts hidden tokens in the positions of texts that it scores, and
`generate` does not. So what greedy decoding writes cannot be read from a scored answer.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from families import CONFIGS, HIDDEN, VOCAB, family
from reference import Reference

from t3lib.classifier.head import T3Head
from t3lib.core import rows as core_rows
from t3lib.core.rows import Example
from t3lib.sampler.tilt import T3ForCausalLM
from t3lib.tofu import likelihood as score
from t3lib.tofu import writing
from t3lib.tofu.reader import Reader, Reading

PAD, STEPS = 0, 6
# Of the other families, Kimi's attention takes no mask that hides tokens, and RoBERTa counts
# positions by token ids, in `generate` otherwise than in `forward`.
FAMILIES = [*CONFIGS, "bloom (alibi)"]


def reading(mask, *ends):
    return Reading(PAD, ends, mask)


def prompts():
    """Prompts of unequal lengths that begin alike; all but one hold the padding token."""
    draw = np.random.default_rng(3)
    begin = [5, PAD, *draw.integers(3, VOCAB, 3).tolist()]
    rests = [draw.integers(3, VOCAB, length).tolist() for length in (2, 4, 3)]
    return [begin + rests[0], [*begin, *rests[1], PAD, 7], [*begin, PAD, PAD, *rests[2]], [9, 8, 7]]


def tilts(model):
    """The model alone, a head at T = 2, and the same head gated."""
    head = T3Head(HIDDEN, VOCAB, rank=4, init_b="kaiming")
    head.B.data *= 5
    gated = copy.copy(head)
    gated.gate = 0.5
    return [(None, 1.0), (head, 2.0), (gated, 2.0)]


def as_scored(model, tilt, how):
    """The most probable tokens after each prompt, one after another, as teacher forcing sees
    them.
    """
    answers = [[] for _ in prompts()]
    for step in range(STEPS):
        examples = [Example([*p, *a, 3], len(p)) for p, a in zip(prompts(), answers)]
        for at in score.answer_positions(model, examples, how, score.heads_of([tilt])):
            at = at.rows(at.step == step)
            for i, token in zip(at.example.tolist(), score.choices(at, [tilt])[0].tolist()):
                answers[i].append(token)
    return answers


@pytest.mark.parametrize("mask", ["lengths", "openunlearning"])
@pytest.mark.parametrize("name", FAMILIES)
def test_texts_that_begin_with_the_answer_are_those_written_from_nothing(name, mask):
    """The answers are what scoring finds most probable. One of their tokens ends a text, and
    tokens follow it, as the line break does that some templates put after the end of a turn.
    """
    model = family(name)
    how = reading(mask)
    for tilt in tilts(model):
        truths = as_scored(model, tilt, how)
        examples = [Example(p + truth, len(p)) for p, truth in zip(prompts(), truths)]
        ended = replace(how, eos_ids=[truths[0][2]])
        agreed = score.losses_and_agreed(model, examples, ended, [tilt], range(len(examples)))[1]
        begun = [[truth[:n] for truth, n in zip(truths, agreed[0])]]
        limit = {"max_new_tokens": STEPS + 2}
        (found,) = writing.greedy(model, prompts(), ended, [tilt], begun=begun, **limit)
        (wanted,) = writing.greedy(model, prompts(), ended, [tilt], **limit)
        assert found == wanted
        assert agreed[0, -1] > 0, "the work is saved where nothing is hidden"


@pytest.mark.parametrize("name", FAMILIES)
def test_hidden_tokens_are_hidden_as_in_generate(name, monkeypatch):
    """Whether what the prompts begin with is read once or with each of them."""
    monkeypatch.setattr(writing, "STAGE", 3)
    model, how, found = family(name), reading("openunlearning"), []
    for worth in (1, 10**9):
        monkeypatch.setattr(core_rows, "WORTH", worth)
        found.append(writing.greedy(model, prompts(), how, tilts(model), max_new_tokens=STEPS))
    assert found[0] == found[1]
    for (head, T), texts in zip(tilts(model), found[0]):
        writer = model if head is None else T3ForCausalLM(model, head, T)
        for prompt, text in zip(prompts(), texts):
            ids = torch.tensor([prompt])
            output = writer.generate(
                ids, attention_mask=(ids != PAD).long(), do_sample=False, pad_token_id=PAD,
                max_new_tokens=STEPS,
            )  # fmt: skip
            assert output[0, len(prompt) :].tolist() == text


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_hidden_token_inside_an_answer_is_scored_as_hidden(name):
    """As the end of a turn is, where the template puts a line break after it."""
    examples = [Example([*p, 11, PAD, 12, 13, PAD, 14], len(p)) for p in prompts()]
    head = T3Head(HIDDEN, VOCAB, rank=4, init_b="kaiming")
    model, tilts = family(name), [(None, 1.0), (head, 2.0)]
    found = score.answer_losses(model, examples, reading("openunlearning"), tilts)
    for losses, heads, T in zip(found, ([], [(head.A, head.B)]), (1.0, 2.0)):
        reference = Reference.of(family(name), heads, T)
        for loss, example in zip(losses, examples):
            ids = torch.tensor([example.ids])
            positions = torch.arange(ids.shape[1])[None]
            logp = reference.logp(ids, (ids != PAD).long(), positions)[0, example.n_prompt - 1 : -1]
            wanted = -logp.gather(-1, ids[0, example.n_prompt :, None]).mean()
            assert abs(loss - wanted) < 1e-5


def test_a_beginning_is_shared_only_where_all_texts_see_it_alike(monkeypatch):
    """A token is hidden in a prompt and in sight where it was written."""
    begin, rest = [5, 6, 7, 8], [PAD, 9, 10]
    states = [((*begin, *rest), ()), (tuple(begin), tuple(rest))]
    how, reader, seen = reading("openunlearning"), Reader(family("llama"), []), []
    monkeypatch.setattr(core_rows, "WORTH", 1)

    def choose(logits, z, writer, state):
        seen.append(logits.clone())
        return logits.argmax(-1)[state]

    for some in (states, states[:1], states[1:]):
        n = len(some)
        writing.write_texts(reader, some, range(n), [1] * n, choose, how)
    torch.testing.assert_close(seen[0], torch.cat(seen[1:]), atol=1e-5, rtol=0)
