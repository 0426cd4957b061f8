"""Before it answers anybody, a vLLM server asks itself whether what it samples is T3.

vLLM may sample without `compute_logits`, which has the tilt, or pool another mean than ours: its
versions, its options and the kernels of a GPU decide. `SelfCheck` asks two prompts greedily in one
batch, a short and a long one, and ends the server if it finds a difference.

    python -m vllm.entrypoints.openai.api_server … --middleware t3lib.sampler.vllm_check.SelfCheck
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from t3lib.core.errors import printable
from t3lib.sampler.vllm_samplers import JudgedSamplers

SHORT, LONG, NEW = 3, 300, 8  # tokens of the two prompts, and of each answer


class SelfCheck:
    """An ASGI middleware for vLLM's server, which asks when the server starts."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let the server start, or end it with one line; requests are passed on."""
        if scope["type"] == "lifespan":
            try:
                found = await asked_itself(scope["app"].state.engine_client)
            except Exception as error:  # of any kind: the server would go on without its check
                found = f"the check fails: {printable(str(error) or repr(error))}"
            if found:
                await receive()
                print(f"vLLM does not serve T3: {found}", file=sys.stderr, flush=True)
                return await send({"type": "lifespan.startup.failed", "message": ""})
        await self.app(scope, receive, send)


async def asked_itself(engine: Any) -> str:
    """Ask vLLM's engine the two prompts; return in words what is wrong, or "".

    engine: an AsyncLLM. Requests for probabilities are allowed meanwhile.
    """
    from vllm import SamplingParams

    size = engine.model_config.get_vocab_size()
    long = min(LONG, engine.model_config.max_model_len - NEW)
    prompts = [[(7 + 31 * place) % size for place in range(n)] for n in (SHORT, long)]
    greedy = {"temperature": 0.0, "ignore_eos": True}

    async def answer(name: str, prompt: list[int], **options: Any) -> list[int]:
        params = SamplingParams(**greedy, **options)
        async for output in engine.generate({"prompt_token_ids": prompt}, params, f"t3-{name}"):
            tokens = output.outputs[0].token_ids
        return list(tokens)

    judged, JudgedSamplers.on = JudgedSamplers.on, False
    try:
        await engine.collective_rpc("t3_watch")
        answers = (answer(str(len(each)), each, max_tokens=NEW) for each in prompts)
        tokens = sum(await asyncio.gather(*answers), [])
        # With probabilities of its prompt, vLLM computes the logits of all tokens of it.
        await answer("prompt", prompts[1], max_tokens=1, prompt_logprobs=0)
        [found] = await engine.collective_rpc("t3_difference", args=(tokens,))
    finally:
        JudgedSamplers.on = judged
    return str(found)


class Watch:
    """Methods for vLLM's worker, which has the model; see --worker-extension-cls of vLLM."""

    get_model: Any

    def t3_watch(self) -> None:
        """Keep what `compute_logits` gets and returns."""
        self.get_model().t3_seen = []

    def t3_difference(self, tokens: Sequence[int]) -> str:
        """Return `difference` for what was kept since `t3_watch`, and keep nothing more."""
        model = self.get_model()
        seen, model.t3_seen = model.t3_seen, None
        return difference(model, seen, tokens)


def difference(model: Any, seen: Sequence[tuple[Any, list[int]]], tokens: Sequence[int]) -> str:
    """Compare greedy tokens with the logits of T3, and their contexts with means computed apart.

    model: a `vllm.Tilted`. seen: of each call of its `compute_logits` the rows that it got and the
    most probable token of each; the longest call has the first tokens of one prompt. tokens: of the
    answers. Returns in words what differs, or "".
    """
    import torch

    if strange := Counter(tokens) - Counter(token for _, best in seen for token in best):
        return f"{strange.total()} of {len(tokens)} greedy tokens do not come from its logits"
    rows = max((rows for rows, _ in seen), key=len)
    if len(rows) <= SHORT:
        return "it computes no logits of a prompt"
    rank = sum(model.t3_ranks)
    hidden, pooled = rows.split([rows.shape[-1] - rank, rank], dim=-1)
    with torch.inference_mode():
        z = torch.cat([head.project(hidden) for head in model.t3_heads], dim=-1).float()
    means = z.cumsum(0) / torch.arange(1, len(z) + 1, device=z.device)[:, None]
    error = float((pooled.float() - means).norm() / means.norm())
    allowed = 1e-3 if hidden.dtype == torch.float32 else 0.03
    return "" if error < allowed else f"its pooled contexts differ by {error:.1%} from their means"
