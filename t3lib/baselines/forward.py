"""The forward passes that a loss needs: log-probabilities, logits, or one layer's hidden states.

In training, only this module calls the model. `losses.NEEDS` lists what a loss needs, and results
have the names of that loss's parameters.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from t3lib.baselines.assistant import layers_of
from t3lib.baselines.losses import NEEDS, log_likelihood
from t3lib.core.models import CACHE, cache_of
from t3lib.core.rows import IGNORE, Example, collate, length_sorted, shifted_labels

Batch = dict[str, Tensor]
BATCH_TOKENS = 8192  # padded tokens in a batch of `original_logp`


def batch_of(
    model: nn.Module, examples: Sequence[Example], pad_id: int, attention_mask: str, width: int = 0
) -> Batch:
    """Pad examples on the right to tensors (B, L) on the model's device, L at least `width`.

    Returns input_ids, labels and, for "openunlearning", attention_mask. With "lengths" there is no
    mask, because in a causal model no token sees the padding that comes after it.
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
    """Return the means of |a| and of 1/|a| over a step's examples, |a| the number of answer tokens.

    They are the arguments `tokens` and `inverse_tokens` of the losses.
    """
    lengths = [len(example.answer) for example in examples]
    return {
        "tokens": sum(lengths) / len(lengths),
        "inverse_tokens": sum(1 / length for length in lengths) / len(lengths),
    }


def needs_teacher(needs: Collection[str]) -> bool:
    """Return True if a loss needs the original model, and not only its ln p of whole answers."""
    return bool({"logit_ref", "logit_all_ref", "hidden_ref"} & set(needs))


def apply_loss(
    function: Callable[..., Tensor],
    known: dict[str, Any],
    model: nn.Module,
    batch: Batch,
    teacher: nn.Module | None,
    k: int | None,
) -> Tensor:
    """Compute the losses (B,) of `function` on a batch.

    known: arguments of the loss that need no forward pass here. model: the model in training.
    batch: as of `batch_of`.
    teacher: the original model, None if it is not needed.
    k: layer whose states are compared, counted from 1.
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
    """Run one model on a batch; return those quantities that a loss needs, with their masks.

    needs: names of the loss's arguments. k: layer, counted from 1. The result is one of three: logp
    and answer (B, S); hidden (B, L, d) and in_answer (B, L); or logit (B, L−1, V), targets and
    answer (B, L−1), logit_all (B, L, V), answer_all (B, L).
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
    """Return ln p of every next token and whether it belongs to the answer: (B, S) float32, bool.

    Only positions from the batch's first answer on are computed (S < L). For a plain Llama only the
    answers' own positions are computed; elsewhere ln p is 0.
    """
    targets, answer = shifted_labels(batch["labels"])
    first = int(answer.any(0).int().argmax())
    targets, answer = targets[:, first:], answer[:, first:]
    if (
        type(model) is LlamaForCausalLM
    ):  # its logits are just lm_head(hidden); this saves a fifth of a step
        logit = model.lm_head(_final_states(model, batch, first)[answer]).float()
        logp = -F.cross_entropy(logit, targets[answer], reduction="none")
        return logp.new_zeros(answer.shape).masked_scatter(answer, logp), answer
    positions = torch.arange(first, first + targets.shape[1], device=targets.device)
    logit = model(**_inputs(batch), logits_to_keep=positions).logits.float()
    return -F.cross_entropy(logit.transpose(1, 2), targets, reduction="none"), answer


def _final_states(model: LlamaForCausalLM, batch: Batch, first: int) -> Tensor:
    """Return the final hidden states of a Llama at positions first … L−2: (B, S, d).

    All rows begin with the same system text. Its keys and values are computed once for each batch,
    which saves a fifth of a training step.
    """
    ids = batch["input_ids"]
    shared = int((ids == ids[0]).all(0)[:first].cumprod(0).sum())
    if (
        len(ids) == 1
        or not shared
        or "attention_mask" in batch
        # Transformers' own property for this had another name before version 5.23.
        or any(getattr(part, "gradient_checkpointing", False) for part in model.modules())
    ):
        return model.model(**_inputs(batch)).last_hidden_state[:, first:-1]
    cache = cache_of(model.model(input_ids=ids[:1, :shared], use_cache=True))
    cache.batch_repeat_interleave(len(ids))
    output = model.model(input_ids=ids[:, shared:-1], **{CACHE: cache})
    return output.last_hidden_state[:, first - shared :]


def layer_states(model: nn.Module, batch: Batch, k: int | None) -> Tensor:
    """Return the k-th decoder block's output, before any final norm: (B, L, d) float32.

    k: counted from 1.
    """
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
    """Return ln p(a|q) of every example under the original model: (N,) float32 on the CPU."""
    values = torch.zeros(len(examples))
    for indices in length_sorted([len(example.ids) for example in examples], BATCH_TOKENS):
        batch = batch_of(model, [examples[i] for i in indices], pad_id, attention_mask)
        values[indices] = log_likelihood(*answer_logp(model, batch)).cpu()
    return values
