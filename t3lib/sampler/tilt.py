"""Sample from the unlearned distribution, with `T3ForCausalLM` or with `tilt` on a model in place.

    p_hat(y | x)  =  softmax_y( log p(y | x) / T  +  log f(x, y) )          (Section 2.3; Eq. 5)

p is the frozen base, f the classifier (`head`) of the pooled context (`pooling`), T the paper's
temperature. Here log f is what `T3Head.logf` returns: w log f for a head of strength w.
`WrappedCausalLM.forward` (in `wrapped`) runs the base and passes its logits and hidden states to
`unlearned_logits` here. The `temperature` of Hugging Face's `generate` is a different one: it
divides the logits of p_hat when sampling.
"""

import copy
import functools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)

from t3lib.classifier import pooling
from t3lib.classifier.features import width_of
from t3lib.classifier.head import SETTINGS, T3Head
from t3lib.core.errors import UserError, printable
from t3lib.core.files import HEAD
from t3lib.core.hub import located
from t3lib.core.models import CACHE, load_model
from t3lib.core.settings import check, check_temperature
from t3lib.sampler import belonging
from t3lib.sampler.wrapped import (
    WrappedCausalLM,
    last_tokens,
    plain_base,
    visible_tokens,
    vocabulary,
)

# Arguments that Transformers' Auto classes add to those of a call.
FROM_TRANSFORMERS = {
    "adapter_kwargs",
    "local_files_only",
    "_from_auto",
    "_commit_hash",
    "cache_dir",
}
SEVERAL_DEVICES = ("auto", "balanced", "balanced_low_0", "sequential")
DIALS = ("temperature", "gate", "tail")  # of the sampler; a head has the values it was tuned for
Heads = T3Head | str | Path | Sequence[T3Head | str | Path]


def tempered(logits: Tensor, temperature: float | Tensor, tail: float = 0.0) -> Tensor:
    """log p̃ up to a constant:  p̃ = p^(1/T) c^(1 − 1/T) where p > c, p elsewhere;  c = ε max_y p(y).

    ε = 0 is the paper's p^(1/T). With ε > 0 (ours) only the spike is flattened and the tail stays
    as it is, so that a large vocabulary costs no more than a small one (`tail_price_bound` in
    `t3lib.theory.price`). ε = 1 does not temper.

    logits: (..., V) of the base in any float dtype. temperature: T, a number or (..., 1). tail: ε.
    Returns (..., V) in float32.
    """
    logits = logits.float()
    if not tail:
        return logits / temperature
    cut = logits.amax(-1, keepdim=True) + math.log(tail)
    return torch.where(logits > cut, cut + (logits - cut) / temperature, logits)


def tilt_logits(
    logits: Tensor, logf: Tensor, temperature: float | Tensor, tail: float = 0.0
) -> Tensor:
    """log p(y | x) / T + log f(x, y), up to a constant at each position (the logarithm of Eq. 5).

    logits, temperature, tail: of `tempered`. logf: (..., V) of the head. Returns (..., V) in
    float32. Neither p nor the result is normalised, which would cost more passes over |V| in every
    step.
    """
    # In place, because (B, L, V) is large.
    return tempered(logits, temperature, tail).add_(logf.to(logits.device))


def gated_temperature(
    logits: Tensor, logf: Tensor, temperature: float | Tensor, gate: float
) -> Tensor:
    """T(x) = T where r(x) < θ, 1 elsewhere;  r(x) = Σ_y p(y | x) f(x, y)   (ours, not the paper's).

    r(x) is the classifier's estimate of the probability that the next token belongs to the data to
    keep, so gated T3 tempers only where it expects something to forget. θ = 1 is the paper's T3,
    which tempers everywhere, and θ = 0 never tempers.

    logits: (..., V) of the base. logf: (..., V), log f without the strength w, summed over heads.
    temperature: T, a number or (..., 1). gate: θ. Returns (..., 1).
    """
    f = logf.to(logits.device).exp()
    kept = torch.linalg.vecdot(logits.float().softmax(-1), f)[..., None]
    return torch.where((kept < gate) | bool(gate == 1), temperature, torch.ones_like(kept))


def temperature_at(
    logits: Tensor,
    logf: Sequence[Tensor],
    heads: Sequence[T3Head],
    temperature: float | Tensor,
    gate: float,
) -> float | Tensor:
    """T(x) of `gated_temperature` for some heads; with θ = 1 nothing is computed.

    logf: w log f (..., V) of each head. Other arguments as of `gated_temperature`. Returns T itself
    for θ = 1, else (..., 1).
    """
    if gate == 1:
        return temperature
    bare = functools.reduce(torch.add, [each / head.w for each, head in zip(logf, heads)])
    return gated_temperature(logits, bare, temperature, gate)


def tilted(
    logits: Tensor,
    logf: Sequence[Tensor],
    heads: Sequence[T3Head],
    temperature: float | Tensor,
    gate: float,
    tail: float,
) -> Tensor:
    """log p̃(y | x) + Σ log f(x, y), up to a constant at each position (Eq. 5 of some heads).

    p̃ is p^(1/T(x)), with T(x) of `gated_temperature` and the tail of `tempered`.

    logits: (..., V) of the base. logf: w log f (..., V) of each head. temperature, gate, tail: T, θ
    and ε. Returns (..., V) in float32.
    """
    T = temperature_at(logits, logf, heads, temperature, gate)
    return tilt_logits(logits, functools.reduce(torch.add, logf), T, tail)


class T3ForCausalLM(WrappedCausalLM):
    """p_hat(y | x) ∝ p(y | x)^(1/T) f(x, y) with p frozen (Eq. 5), as a Transformers model.

    base: any decoder-only causal LM (quantised, with LoRA, offloaded ...).
    heads: one T3Head or the name of a saved one (a folder or Hub id), or a list of these for the
    same base, whose log f are added.
    temperature: the paper's T, by default the heads' own.
    gate: θ of `gated_temperature`, by default the heads' own; 1 is the paper's T3.
    tail: ε of `tempered`, by default the heads' own; 0 is the paper's T3.
    allow_sharpening: accept T below 1.
    tokenizer: if given, its hash is compared with the one that each head records.
    other_base: accept a head that was trained on another base.

    Logits are float32 and not normalised; a loss for `labels` is computed under p_hat. Where no
    position_ids are given, they are those of the base's own `forward` and `generate`. A
    cache filled by this model has one layer more than the base's, with the pooled context.
    UserError for a head of other sizes, on another device or of another base or tokenizer, for a
    T, gate or tail out of range, and for heads that differ in one of these if it is not given.
    """

    heads: Any
    report: Any  # only of a model that `t3lib.unlearn` returns, which sets it

    def __init__(
        self,
        base: PreTrainedModel,
        heads: Heads,
        temperature: float | None = None,
        *,
        gate: float | None = None,
        tail: float | None = None,
        allow_sharpening: bool = False,
        tokenizer: Any = None,
        other_base: bool = False,
    ) -> None:
        base = plain_base(base)
        names = [heads] if isinstance(heads, T3Head | str | Path) else list(heads)
        placed: list[Any] = [
            T3Head.from_pretrained(each).to(_devices(base)[0])
            if isinstance(each, str | Path)
            else each
            for each in names
        ]
        if not placed or not all(isinstance(head, T3Head) for head in placed):
            raise UserError("heads must be a T3Head, the name of a saved one, or a list of these")

        # Each head must fit this base.
        for head in placed:
            head.w = check("w", head.w, where="head ")
            belonging.check_sizes(head, width_of(base), vocabulary(base))
            if not other_base:
                belonging.check_base(head, base)
            if tokenizer is not None:
                belonging.check_tokenizer(head, tokenizer)
            if head.A.device not in _devices(base) or head.B.device != head.A.device:
                raise UserError(
                    f"the head is on {head.A.device}, the base on {base.device}: use"
                    f" head.to({base.device.type!r})"
                )
        belonging.check_same_base(placed)
        super().__init__(base)
        self.heads = nn.ModuleList(placed)
        self.allow_sharpening = allow_sharpening

        # T, gate and tail, given or the heads' own.
        for name, given in {"temperature": temperature, "gate": gate, "tail": tail}.items():
            setattr(self, name, belonging.shared_dial(placed, name, given, "the one to use"))

    @property
    def head(self) -> T3Head:
        """The only head; UserError if there are several."""
        if len(self.heads) != 1:
            raise UserError(f"several heads: use or save each of the {len(self.heads)} in .heads")
        head: T3Head = self.heads[0]
        return head

    @property
    def temperature(self) -> float:
        """The paper's T; assign to change it.

        UserError for a value that `check_temperature` refuses.
        """
        return self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        """UserError for a T that `settings.check_temperature` refuses."""
        self._temperature = check_temperature(value, allow_sharpening=self.allow_sharpening)

    @property
    def gate(self) -> float:
        """θ of `gated_temperature`; assign to change it. UserError outside [0, 1]."""
        return self._gate

    @gate.setter
    def gate(self, value: float) -> None:
        """UserError outside [0, 1]."""
        self._gate = float(check("gate", value))

    @property
    def tail(self) -> float:
        """ε of `tempered`; assign to change it. UserError outside [0, 1]."""
        return self._tail

    @tail.setter
    def tail(self, value: float) -> None:
        """UserError outside [0, 1]."""
        self._tail = float(check("tail", value))

    def project(self, hidden: Tensor) -> Tensor:
        """z = A H of all heads, side by side: hidden (B, L, d) -> (B, L, sum of ranks)."""
        parts = [head.project(hidden) for head in self.heads]
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]

    def logf(self, pooled: Tensor) -> tuple[Tensor, ...]:
        """w log f of the pooled context, for each head: (B, L, sum of ranks) -> (B, L, V) each."""
        heads = [*self.heads]
        parts = pooled.split([head.rank for head in heads], dim=-1) if len(heads) > 1 else [pooled]
        return tuple(head.logf(part) for head, part in zip(heads, parts))

    def step_inputs(self, attention_mask: Any, tokens: int) -> Tensor | None:
        """Return which of the last `tokens` tokens are visible and so are pooled; None for all."""
        return visible_tokens(attention_mask, tokens)

    def unlearned_logits(
        self, logits: Tensor, hidden: Tensor, cache: Any, prepared: Any, inputs: dict[str, Any]
    ) -> Tensor:
        """Return `tilted` logits of the new tokens, and add their states to the cache's sums.

        Arguments as of `WrappedCausalLM.unlearned_logits`.
        """
        belonging.check_sizes(self.heads[0], hidden.shape[-1], logits.shape[-1])
        pooled = self._pooled(hidden, prepared, cache)
        logf = self.logf(last_tokens(pooled, inputs["logits_to_keep"]))
        return tilted(logits, logf, self.heads, self.temperature, self.gate, self.tail)

    def _pooled(self, hidden: Tensor, visible: Tensor | None, cache: Any) -> Tensor:
        """mean_t(A H_t) of the context up to each new token: (B, L, sum of ranks).

        The result is on the heads' device; UserError if the hidden states are on another one and
        the base is not spread over devices.
        """
        device = self.heads[0].A.device
        if hidden.device != device and not hasattr(self.base, "hf_device_map"):
            offloaded = hasattr(self.heads[0], "_hf_hook")
            advice = (
                "offload the base alone, cpu_offload(model.base)"
                if offloaded
                else "move the whole model"
            )
            raise UserError(
                f"the head is on {device}, the base's hidden states on {hidden.device}: {advice}"
            )
        z = self.project(hidden.to(device))
        visible = None if visible is None else visible.to(device)
        if cache is None:
            return pooling.prefix_mean(z, visible)
        return pooling.attach(cache, self.heads).append(z, visible)

    def check_cache(self, cache: Any) -> None:
        """Raise UserError unless every token in the cache was pooled with these heads."""
        super().check_cache(cache)
        pooling.check_cache(cache, self.heads)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        *args: Any,
        attention_mask: Any = None,
        inputs_embeds: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the base's own inputs for this step, and which of the new tokens are visible.

        The mask is read here, where it is 2-D: for a static cache, Transformers next turns it into
        a 4-D one, from which visibility cannot be read. Transformers inspects the names of these
        parameters, `kwargs` included, to decide which arguments `generate` accepts.
        """
        inputs = {**kwargs, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        prepared = self.of_base("prepare_inputs_for_generation")(input_ids, *args, **inputs)
        new = next(
            prepared[name]
            for name in ("input_ids", "inputs_embeds")
            if prepared.get(name) is not None
        )
        visible = visible_tokens(attention_mask, new.shape[1])
        prepared["prepared"] = (
            visible if visible is not None else new.new_ones(new.shape[:2], dtype=torch.bool)
        )
        cache = prepared.get(CACHE)
        if cache is not None and cache.is_compileable:
            pooling.attach(cache, self.heads)  # compiled code must see the cache with this layer
        return prepared

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:  # type: ignore[override]
        """Save the head with the T, gate and tail in use, never the base.

        Arguments as of `T3Head.save_pretrained`. UserError for several heads: save each one by
        itself.
        """
        self._shared_head().save_pretrained(save_directory, **kwargs)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:  # type: ignore[override]
        """Push the head with the T, gate and tail in use to the Hub, never the base.

        UserError for several heads: push each one by itself.
        """
        return self._shared_head().push_to_hub(repo_id, **kwargs)

    def _shared_head(self) -> T3Head:
        """Return a copy of the only head with the T, gate and tail in use.

        UserError for several heads.
        """
        head = copy.copy(self.head)  # shares the weights; only the copy gets these
        for name in DIALS:
            setattr(head, name, getattr(self, name))
        return head

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        heads: Heads,
        *,
        base: PreTrainedModel | str | Path | None = None,
        temperature: float | None = None,
        gate: float | None = None,
        tail: float | None = None,
        allow_sharpening: bool = False,
        tokenizer: Any = None,
        other_base: bool = False,
        **load: Any,
    ) -> Self:
        """Load heads from folders or the Hub and put them on a base.

        heads: one name or several, or T3Heads. base: a loaded model, or a name for
        `models.load_model`, whose tokenizer is then loaded and checked too; by default the model
        that the first head was trained on, whose name is printed. A T3Head is moved to the device
        of a base that is given by name. load: arguments of `load_model`, such as dtype, device and
        load_in. Other arguments and errors as of the class.

        UserError without `base` if the head names none, or a folder that is not here, and for
        arguments of `load_model` beside a loaded model.
        """
        if load and isinstance(base, nn.Module):
            raise UserError(
                f"{min(load)}: the base is loaded already (T3Head.from_pretrained takes settings)"
            )
        several = [heads] if isinstance(heads, T3Head | str | Path) else heads
        if base is None:
            first = next(iter(several))
            head = first if isinstance(first, T3Head) else T3Head.from_pretrained(first)
            base, revision = belonging.base_of(head)
            print(f"base of the head: {printable(base)}", file=sys.stderr)
            load = {"revision": revision} | load

        if not isinstance(base, nn.Module):
            base, loaded_tokenizer = load_model(base, **load)
            tokenizer = loaded_tokenizer if tokenizer is None else tokenizer
            for each in several:
                if isinstance(each, T3Head):
                    each.to(_devices(base)[0])
        return cls(
            base,
            heads,
            temperature,
            gate=gate,
            tail=tail,
            allow_sharpening=allow_sharpening,
            tokenizer=tokenizer,
            other_base=other_base,
        )


# Attributes of a model that `tilt` replaces: methods whose originals are still called inside the
# block, then attributes that are only covered until it ends.
REPLACED = (
    "forward",
    "generate",
    "prepare_inputs_for_generation",
    "_update_model_kwargs_for_generation",
)
ADDED = (
    "generation_config",
    "generate_batch",
    "init_continuous_batching",
    "continuous_batching_context_manager",
)


@contextmanager
def tilt(
    model: PreTrainedModel,
    heads: Heads,
    temperature: float | None = None,
    **settings: Any,
) -> Iterator[PreTrainedModel]:
    """Switch T3 on for an unmodified model inside a block, and off when the block ends.

        with tilt(model, head, temperature=2.5):
            model.generate(...)

    Inside the block, the model's forward and generate are those of `T3ForCausalLM`, with its
    defaults for sampling, in every thread that uses this model. Afterwards every attribute is
    restored. The weights are never changed. heads, temperature, settings: arguments of
    `T3ForCausalLM`. UserError as there, for a nested `tilt`, and for copying, pickling or saving
    the model inside the block.
    """
    wrapped = T3ForCausalLM(model, heads, temperature, **settings)
    base = wrapped.base
    wrapped.replaced = {name: getattr(base, name) for name in REPLACED}

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UserError(
            "inside tilt(...) the model cannot be copied, pickled or saved: do it outside the block"
        )

    inside: dict[str, object] = {
        name: getattr(wrapped, name) for name in (*REPLACED, *ADDED, "resize_token_embeddings")
    }
    inside |= dict.fromkeys(("__getstate__", "save_pretrained", "push_to_hub"), refuse) | {
        "_tilted_by": wrapped
    }

    # What the model itself had under these names comes back when the block ends.
    before = {
        name: base.__dict__[name] for name in (*inside, "_compiled_call") if name in base.__dict__
    }
    base.__dict__.pop("_compiled_call", None)
    base.__dict__.update(inside)
    try:
        yield base
    finally:
        for name in (*inside, "_compiled_call"):
            base.__dict__.pop(name, None)
        base.__dict__.update(before)


def _devices(base: Any) -> list[torch.device]:
    """Return the devices of the base's weights, that of the output embedding first.

    Weights that are offloaded to disk have none. The CPU if there is no other.
    """
    output = base.get_output_embeddings()
    first = [] if output is None else list(output.parameters())
    devices = [
        weight.device for weight in (*first, *base.parameters()) if weight.device.type != "meta"
    ]
    return list(dict.fromkeys(devices)) or [torch.device("cpu")]


# ---- Transformers' Auto classes -----------------------------------------------------------------


class T3Config(PreTrainedConfig):
    """What Transformers reads from a head's config.json, to find the classes below."""

    model_type = HEAD


class ModelOfHead:
    """Loads a head with its base for `AutoModelForCausalLM` and `pipeline`."""

    config_class = T3Config

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        *,
        config: T3Config,
        revision: str | None = None,
        dtype: torch.dtype | str | None = None,
        device_map: Mapping[str, Any] | str | None = None,
        trust_remote_code=False,
        **options: Any,
    ) -> T3ForCausalLM:
        """Return `T3ForCausalLM.from_pretrained(name)`.

        name, revision: of the head. config: the head's, with the settings of the head that the call
        names. dtype: of the base. device_map: a device, or {"": device}. options: further arguments
        of `T3ForCausalLM.from_pretrained`. Those that Transformers adds have no effect, and no code
        from the Hub is run, whatever the call says. UserError for any other device_map.
        """
        device = device_map
        if isinstance(device_map, Mapping):
            device = device_map[""] if {*device_map} == {""} else "auto"
        if device in SEVERAL_DEVICES:
            raise UserError("device_map: load the base by itself, and give it as base=")
        given: dict[str, Any] = {"device": device, "dtype": str(dtype).removeprefix("torch.")}
        given |= {key: options[key] for key in {*options} - FROM_TRANSFORMERS}
        given = {key: each for key, each in given.items() if each not in (None, "None", "auto", "")}
        # Transformers writes w=2 of a call into the config, and so every setting that a head saves.
        settings = {
            key: value for key in SETTINGS if (value := getattr(config, key, None)) is not None
        }
        head = T3Head.from_pretrained(name, revision=revision, **settings)
        return T3ForCausalLM.from_pretrained(head, **given)


class TokenizerOfHead:
    """Loads the tokenizer of a head's base for `AutoTokenizer`."""

    @classmethod
    def from_pretrained(cls, name: str, *, revision: str | None = None, **options: Any) -> Any:
        """Return the tokenizer of the base that a head (name, revision) was trained on, with the
        head's template arguments.
        """
        head = T3Head.from_pretrained(name, revision=revision)
        base, commit = belonging.base_of(head)
        name = located(base).name
        tokenizer = AutoTokenizer.from_pretrained(name, revision=commit, trust_remote_code=False)
        return belonging.in_template_of(head, tokenizer)


AutoConfig.register(T3Config.model_type, T3Config)
AutoModelForCausalLM.register(T3Config, ModelOfHead)
AutoTokenizer.register(T3Config, TokenizerOfHead)
