"""What T3 refuses in a request to vLLM.

vLLM loads `JudgedSamplers` in every server beside which t3lib is installed (entry point
vllm.logits_processors), and a server whose entry point cannot be imported ends. So this module
imports neither torch nor Transformers, and of vLLM only the interfaces that its version has. It
does nothing in a server without T3.
"""

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


def _interfaces() -> list[type]:
    """Return the classes that a logits processor inherits in this version of vLLM."""
    found = []
    for name in INTERFACES:
        with suppress(ImportError, AttributeError):
            found.append(import_module(name).LogitsProcessor)
    return found


class JudgedSamplers(*_interfaces()):  # type: ignore[misc]
    """Refuse requests that could bring forgotten text back; it changes no logits.

    A colder sampler undoes T: p_hat at (T, w), sampled at τ, is (1, w T) sampled at τ T. Logged
    probabilities are p f^T, and a bias or a grammar makes the model choose among given secrets.

    on: whether requests are checked. vLLM passes a request without its model, so this belongs to
    the process: a server with T3 switches it on, and it stays on for other models in that process.
    """

    on = False

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise UserError, which a client gets as status 400, for a request that is not allowed."""
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
        sampler = sampling_params.temperature, sampling_params.top_p
        if sampler not in JUDGED:
            changed["temperature, top_p"] = sampler
        for name, value in changed.items():
            raise UserError(
                f"this server has unlearned rows and refuses {name} = {value}, which could bring"
                f" them back; allowed: {ALLOWED}, at most {MOST} samples, no probabilities, biases"
                " or grammars"
            )

    def __init__(self, *_: Any) -> None:
        """Keep nothing of what the two versions of vLLM's model runner pass."""

    def apply(self, logits: Any, *_: Any) -> Any:
        """Return the logits unchanged."""
        return logits

    def is_argmax_invariant(self) -> bool:
        """Return True: nothing is changed."""
        return True

    def update_state(self, batch_update: Any) -> None:
        """Do nothing: there is no state."""

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Return False: no request's logits are changed."""
        return False
