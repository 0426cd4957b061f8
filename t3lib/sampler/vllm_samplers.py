"""What T3 refuses in a request to vLLM.

vLLM loads `JudgedSamplers` in every server beside which t3lib is installed (entry point
vllm.logits_processors), and a server whose entry point cannot be imported ends. So this module
imports neither torch nor Transformers, and of vLLM only the interfaces that its version has. It
does nothing in a server without T3.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from t3lib.core.errors import UserError

# A plug-in must inherit the interface of the model runner that is used, V1 or V2. vLLM 0.30 and
# older have no V2.
INTERFACES = ("vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor")
JUDGED = ((0.0, 1.0), (0.6, 0.9), (1.0, 1.0))  # (temperature, top-p) that t3 unlearn judges
ALLOWED = "temperature 0 (greedy), temperature 0.6 with top_p 0.9, or temperature 1"
# Fields of a request that do not change which text is probable and return no probability.
HARMLESS = {"temperature", "top_p", "seed", "stop", "stop_token_ids", "max_tokens", "detokenize"}
HARMLESS |= {"skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"}
HARMLESS |= {"output_kind", "stream_interval", "output_text_buffer_length", "skip_clone"}
HARMLESS |= {"skip_reading_prefix_cache"}
MOST = 8  # samples of one request
CHOICE = "t3_heads"  # in vllm_xargs: the heads of one request
# Fields that change or read the logits before the heads of a request are chosen.
COMPUTED_BEFORE = [
    *("logprobs", "prompt_logprobs", "structured_outputs", "logit_bias"),
    *("allowed_token_ids", "bad_words"),
]


def _interfaces() -> list[type]:
    """Return the classes that a logits processor inherits in this version of vLLM."""
    found = []
    for name in INTERFACES:
        with suppress(ImportError, AttributeError):
            found.append(import_module(name).LogitsProcessor)
    return found


def names_of(hf_config: Any) -> tuple[str, ...]:
    """Return the names of the heads among which a request may choose; () without t3_choose_heads.

    hf_config: the base's configuration with --hf-overrides. A head is named as its folder, or as
    the last part of its Hub id.
    """
    heads = hf_config.t3_head if getattr(hf_config, "t3_choose_heads", False) else []
    heads = [heads] if isinstance(heads, str) else heads
    return tuple(os.path.basename(os.path.normpath(head)) for head in heads)


class JudgedSamplers(*_interfaces()):  # type: ignore[misc]
    """Refuse requests that could bring forgotten text back, and tilt by the heads of a request.

    Logits are changed only for a request that names some of the heads (`names_of`).

    A colder sampler undoes T: p_hat at (T, w), sampled at τ, is (1, w T) sampled at τ T. Logged
    probabilities are p f^T, and a bias or a grammar makes the model choose among given secrets.

    on: whether requests are checked. vLLM passes a request without its model, so this belongs to
    the process: a server with T3 switches it on, and it stays on for other models in that process.
    names: of the heads that a request may name, None in a server without T3. logits_of: the logits
    of some heads and rows of the last step, which the model leaves here.
    """

    on = False
    names: tuple[str, ...] | None = None
    logits_of: Callable[..., Any]

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise UserError, which a client gets as status 400, for a request that is not allowed."""
        chosen = cls.names is not None and cls.check_choice(sampling_params, cls.names)
        if not cls.on:
            return
        default = type(sampling_params)()
        changed = {
            name: value
            for name in default.__struct_fields__
            if (value := getattr(sampling_params, name)) != getattr(default, name)
            and not name.startswith("_")
            and name not in HARMLESS
        }
        if changed.get("n", MOST + 1) <= MOST:
            del changed["n"]
        if chosen and len(changed["extra_args"]) == 1:
            del changed["extra_args"]
        sampler = sampling_params.temperature, sampling_params.top_p
        if sampler not in JUDGED:
            changed["temperature, top_p"] = sampler
        for name, value in changed.items():
            raise UserError(
                f"this server has unlearned rows and refuses {name} = {value}, which could bring"
                f" them back; allowed: {ALLOWED}, at most {MOST} samples, no probabilities, biases"
                " or grammars"
            )

    @staticmethod
    def check_choice(sampling_params: Any, names: tuple[str, ...]) -> bool:
        """Return whether a request names some of the heads; UserError for other names.

        What changes or reads logits before the heads are chosen is refused with a choice.
        """
        wanted = (sampling_params.extra_args or {}).get(CHOICE)
        if wanted is None:
            return False
        if not names:
            raise UserError(f"this server takes no {CHOICE} (t3_choose_heads is off)")
        if not isinstance(wanted, list) or not wanted or not all(name in names for name in wanted):
            raise UserError(f"{CHOICE} is a list of at least one of: {', '.join(names)}")
        given = {name: getattr(sampling_params, name, None) for name in COMPUTED_BEFORE}
        given["min_tokens"] = getattr(sampling_params, "min_tokens", 0) or None
        for name, value in given.items():
            if value not in (None, [], {}):
                raise UserError(f"{CHOICE} cannot be combined with {name}")
        return True

    def __init__(self, vllm_config: Any = None, *_: Any) -> None:
        """Prepare for what the two versions of vLLM's model runner do: no request has chosen."""
        model = getattr(vllm_config, "model_config", None)
        self.choosable = names_of(model.hf_config) if model else ()
        self.chosen: dict[int, list[int]] = {}  # place of a request in the batch: its heads

    def heads_of(self, sampling_params: Any, *_: Any) -> list[int] | None:
        """Return the numbers of the heads that a request names, or None."""
        wanted = (sampling_params.extra_args or {}).get(CHOICE) if self.choosable else None
        return wanted and sorted({*map(self.choosable.index, wanted)})

    def apply(self, logits: Any, context: Any = None) -> Any:
        """Tilt the rows of requests that chose by their heads alone.

        context: V2's, which says of each row at which place its request is. In V1 the rows are the
        places.
        """
        if not self.chosen:
            return logits
        places = range(len(logits)) if context is None else context.expanded_idx_mapping.tolist()
        for row, place in enumerate(places):
            if place in self.chosen:
                rows = slice(row, row + 1)
                logits[rows] = JudgedSamplers.logits_of(self.chosen[place], rows)
        return logits

    def is_argmax_invariant(self) -> bool:
        """Return whether greedy tokens stay the same, also if a request chooses its heads."""
        return not self.choosable

    def update_state(self, batch_update: Any) -> None:
        """Follow requests that come to a place, move or leave: V1 calls this before each step."""
        if self.choosable:
            builtin = import_module(f"{INTERFACES[0]}.builtin")
            builtin.process_dict_updates(self.chosen, batch_update, self.heads_of)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Return whether a request that comes to a place chooses its heads: V2 calls this."""
        self.chosen.pop(req_idx, None)
        if heads := self.heads_of(sampling_params):
            self.chosen[req_idx] = heads
        return bool(heads)
