"""What a loss needs of a model: batches, log-probabilities, logits, one layer's states; the
original's ln p.

The model is called here and nowhere else in training. What it is asked for is what `losses.NEEDS`
says of a loss; results have the names of that loss's parameters.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from t3lib.baselines.assistant import layers_of
from t3lib.baselines.losses import NEEDS, log_likelihood
from t3lib.core.rows import IGNORE, Example, collate, length_sorted, shifted_labels

Batch = dict[str, Tensor]
BATCH_TOKENS = 8192  # padded tokens of one batch when the original's ln p are computed


def batch_of(
    model: nn.Module, examples: Sequence[Example], pad_id: int, attention_mask: str, width: int = 0
) -> Batch:
    """Right-padded tensors (B, L) on the model's device, L at least `width`.

    With "lengths" there is no mask: in a causal model no token sees the padding that comes after
    it.
    """
    batch = collate(examples, pad_id, attention_mask)
    extra = (0, max(0, width - batch["labels"].shape[1]))
    for name, value in (("input_ids", pad_id), ("labels", IGNORE), ("attention_mask", 0)):
        batch[name] = F.pad(batch[name], extra, value=value)
    if attention_mask == "lengths":
        del batch["attention_mask"]
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items()}


def answer_counts(examples: Sequence[Example]) -> dict[str, float]:
    """Means of |a| and of 1/|a| over the examples of a step: `tokens` and `inverse_tokens` of the
    losses.
    """
    lengths = [len(example.ids) - example.n_prompt for example in examples]
    return {
        "tokens": sum(lengths) / len(lengths),
        "inverse_tokens": sum(1 / length for length in lengths) / len(lengths),
    }


def needs_teacher(needs: Collection[str]) -> bool:
    """Whether a loss needs the original model itself, not only its ln p of whole answers."""
    return bool({"logit_ref", "logit_all_ref", "hidden_ref"} & set(needs))


def apply_loss(
    function: Callable[..., Tensor],
    known: dict[str, Any],
    model: nn.Module,
    batch: Batch,
    teacher: nn.Module | None,
    k: int | None,
) -> Tensor:
    """Losses (B,) of `function` on a batch; what it needs is in `known` or is what model and
    teacher say of the batch.

    teacher: the original model. k: the layer whose states are compared, counted from 1.
    """
    needs = NEEDS[function]
    known = known | quantities(model, batch, needs, k)
    if teacher is not None and needs_teacher(needs):
        with torch.no_grad():
            known |= {
                f"{name}_ref": value for name, value in quantities(teacher, batch, needs, k).items()
            }
    return function(**{name: known[name] for name in needs if name in known})


def quantities(
    model: nn.Module, batch: Batch, needs: Collection[str], k: int | None = None
) -> dict[str, Tensor]:
    """The quantities among `needs` that one model gives on a batch, with their masks; k counts
    layers from 1.

    logp, answer (B, S) · logit, targets, answer (B, L−1) · logit_all (B, L, V), answer_all · hidden
    (B, L, d), in_answer (B, L).
    """
    if "logp" in needs:
        logp, answer = answer_logp(model, batch)
        return {"logp": logp, "answer": answer}
    if "hidden" in needs:
        return {"hidden": layer_states(model, batch, k), "in_answer": batch["labels"] != IGNORE}
    logit_all = model(**_inputs(batch)).logits.float()
    targets, answer = shifted_labels(batch["labels"])
    of_positions = {"logit": logit_all[:, :-1], "targets": targets, "answer": answer}
    return of_positions | {"logit_all": logit_all, "answer_all": F.pad(answer, (0, 1))}


def answer_logp(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """ln p of every next token and whether it belongs to the answer: (B, S) float32 and bool.

    Only positions from the batch's first answer on are computed (S < L), and of a plain Llama only
    the answers' own.
    """
    targets, answer = shifted_labels(batch["labels"])
    first = int(answer.any(0).int().argmax())
    targets, answer = targets[:, first:], answer[:, first:]
    if (
        type(model) is LlamaForCausalLM
    ):  # its logits are lm_head(hidden) and nothing else: saves a fifth of a step
        logit = model.lm_head(_final_states(model, batch, first)[answer]).float()
        logp = -F.cross_entropy(logit, targets[answer], reduction="none")
        return torch.zeros(answer.shape, device=logp.device).masked_scatter(answer, logp), answer
    positions = torch.arange(first, first + targets.shape[1], device=targets.device)
    logit = model(**_inputs(batch), logits_to_keep=positions).logits.float()
    return -F.cross_entropy(logit.transpose(1, 2), targets, reduction="none"), answer


def _final_states(model: LlamaForCausalLM, batch: Batch, first: int) -> Tensor:
    """What the output layer of a Llama sees at positions first … L−2: (B, S, d).

    All rows begin with the same system text: its keys and values are computed once a batch, which
    saves another fifth.
    """
    ids = batch["input_ids"]
    shared = int((ids == ids[0]).all(0)[:first].cumprod(0).sum())
    if (
        len(ids) == 1
        or not shared
        or "attention_mask" in batch
        or model.is_activation_checkpointing
    ):
        return model.model(**_inputs(batch)).last_hidden_state[:, first:-1]
    cache = model.model(input_ids=ids[:1, :shared], use_cache=True).past_key_values
    cache.batch_repeat_interleave(len(ids))
    return model.model(input_ids=ids[:, shared:-1], past_key_values=cache).last_hidden_state[
        :, first - shared :
    ]


def layer_states(model: nn.Module, batch: Batch, k: int | None) -> Tensor:
    """Output of the k-th decoder block (from 1), before any final norm: (B, L, d) float32."""
    states: list[Tensor] = []
    layer = layers_of(model, k)[-1]
    hook = layer.register_forward_hook(
        lambda _, __, out: states.append(out[0] if isinstance(out, tuple) else out)
    )
    try:
        model(**_inputs(batch), logits_to_keep=1)
    finally:
        hook.remove()
    return states[0].float()


def _inputs(batch: Batch) -> dict[str, Any]:
    return {name: tensor for name, tensor in batch.items() if name != "labels"} | {
        "use_cache": False
    }


@torch.no_grad()
def original_logp(
    model: nn.Module, examples: Sequence[Example], pad_id: int, attention_mask: str
) -> Tensor:
    """ln p(a|q) of every example under the original model, (N,) float32 on the CPU."""
    values = torch.zeros(len(examples))
    for indices in length_sorted([len(example.ids) for example in examples], BATCH_TOKENS):
        batch = batch_of(model, [examples[i] for i in indices], pad_id, attention_mask)
        values[indices] = log_likelihood(*answer_logp(model, batch)).cpu()
    return values
