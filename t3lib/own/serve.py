"""Serve an unlearned model as OpenAI's API does, behind the checks of `gate.Gate`.

vLLM answers where it is installed. Where it is not, `LocalServer` does, one request at a time, with
the text of `generate`.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from threading import Event
from typing import Any

import torch
from torch import Tensor

from t3lib.core.errors import UserError, printable
from t3lib.core.hub import Place
from t3lib.core.models import pad_id
from t3lib.core.rows import prompt
from t3lib.own.answers import TOKENS
from t3lib.own.gate import (
    CHAT,
    COMPLETIONS,
    DATE,
    GREEDY_SAMPLER,
    MOST,
    Gate,
    answer,
    samplers,
)
from t3lib.tofu.writing import eos_ids

Read = Callable[[], Awaitable[Any]]  # the next part of what `LocalServer.write` puts


class LocalServer:
    """The server behind `Gate` without vLLM: an ASGI app that answers one request after the other.

    model: a T3ForCausalLM. rules: see `gate`. Requests are as `Gate` passes them on.
    """

    def __init__(self, model: Any, rules: Mapping[str, Any]) -> None:
        self.model, self.name, self.tokenizer = model, rules["name"], rules["tokenizer"]
        # One thread, because torch has one random state, which a request with a seed sets.
        self.worker = ThreadPoolExecutor(1)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request; when its client leaves, nothing more is written."""
        if scope["path"] == "/health":
            return await answer(send, 200, status="ok")
        body, chat = json.loads((await receive())["body"]), scope["path"] == CHAT
        loop, gone = asyncio.get_running_loop(), Event()
        written: asyncio.Queue[Any] = asyncio.Queue()

        def put(part: Any) -> None:
            loop.call_soon_threadsafe(written.put_nowait, part)

        self.worker.submit(self.write, body, chat, put, gone)

        leaving = asyncio.create_task(set_when_left(receive, gone))
        head = {"id": f"t3-{uuid.uuid4().hex}", "created": int(time.time()), "model": self.name}
        try:
            if body.get("stream"):
                usage = body.get("stream_options", {}).get("include_usage", False)
                await stream(send, written.get, head, chat=chat, usage=usage)
            else:
                await whole(send, written.get, head, chat=chat)
        finally:
            leaving.cancel()
            gone.set()

    def write(
        self, body: Mapping[str, Any], chat: bool, put: Callable[[Any], Any], gone: Event
    ) -> None:
        """Write all answers to a request, in the worker's thread.

        put: gets the parts of the answers {index, text, finish_reason}, and at the end {usage} or
        {error}. gone: set when nobody reads them any more.
        """
        try:
            put({"usage": self.answers(body, chat, put, gone)})
        except Exception as error:  # of any kind, because the client waits for an answer
            print(f"t3 serve: {printable(str(error) or repr(error))}", file=sys.stderr, flush=True)
            put({"error": {"message": "the server could not write this answer"}})

    def answers(
        self, body: Mapping[str, Any], chat: bool, put: Callable[[Any], Any], gone: Event
    ) -> dict[str, int]:
        """Do the work of `write`; return the numbers of tokens."""
        text = prompt(self.tokenizer, body["messages"], None) if chat else body["prompt"]
        made = self.tokenizer(text, add_special_tokens=not chat, return_tensors="pt")
        ids, seed, tokens = made["input_ids"].to(self.model.device), body.get("seed"), 0
        sampler = {"do_sample": True, "temperature": body["temperature"], "top_p": body["top_p"]}
        options: dict[str, Any] = {
            "max_new_tokens": body["max_tokens"],
            "eos_token_id": eos_ids(self.model, self.tokenizer) or None,  # as in a report
            "pad_token_id": pad_id(self.tokenizer),
            **(sampler if body["temperature"] else {}),
        }
        stop = body.get("stop", [])
        stop = [stop] if isinstance(stop, str) else stop

        def put_part(index: int, text: str, reason: str | None) -> None:
            put({"index": index, "text": text, "finish_reason": reason})

        # A seed leaves the random numbers of other requests as they are.
        devices = [ids.device] if ids.is_cuda else []
        with torch.random.fork_rng(devices, enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            for index in range(body.get("n", 1)):
                if gone.is_set():  # each answer reads the whole prompt
                    break
                growing = Growing(
                    self.tokenizer, ids.shape[1], stop, partial(put_part, index), gone
                )
                out = self.model.generate(
                    ids, attention_mask=torch.ones_like(ids), stopping_criteria=[growing], **options
                )
                growing.close(out, options["eos_token_id"] or [])
                tokens += out.shape[1] - ids.shape[1]
        counts = {"prompt_tokens": ids.shape[1], "completion_tokens": tokens}
        return counts | {"total_tokens": sum(counts.values())}


class Growing:
    """A stopping criterion of `generate` that passes one answer's text on while it is written.

    start: number of tokens of the prompt. stop: strings, before the first of which the answer ends.
    put(text, reason): gets each new part of the text, the last one with the reason of its end.
    gone: set when nobody reads the answer any more.
    """

    def __init__(
        self,
        tokenizer: Any,
        start: int,
        stop: Sequence[str],
        put: Callable[[str, str | None], None],
        gone: Event,
    ) -> None:
        self.tokenizer, self.start, self.stop, self.put, self.gone = (
            tokenizer, start, stop, put, gone
        )  # fmt: skip
        self.sent = 0  # characters

    def __call__(self, ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Return whether the answer in ids (1, L) is to end, (1,)."""
        text, stopped = self.text(ids)
        # The last characters wait if a stop string may begin there, or if one is not whole yet.
        ready = len(text.rstrip("\ufffd")) - max(map(len, self.stop), default=1) + 1
        if not stopped and ready > self.sent:
            self.put(text[self.sent : ready], None)
            self.sent = ready
        return torch.full((1,), stopped or self.gone.is_set(), device=ids.device)

    def text(self, ids: Tensor) -> tuple[str, bool]:
        """Return the text before the first stop string, and whether there is one."""
        text = self.tokenizer.decode(ids[0, self.start :], skip_special_tokens=True)
        found = [at for at in map(text.find, self.stop) if at >= 0]
        return text[: min(found, default=len(text))], bool(found)

    def close(self, ids: Tensor, ends: Sequence[int]) -> None:
        """Pass the rest of the answer on. ends: tokens that end an answer."""
        text, stopped = self.text(ids)
        ended = stopped or ids[0, -1].item() in ends
        self.put(text[self.sent :], "stop" if ended else "length")


async def set_when_left(receive: Any, gone: Event) -> None:
    """Set `gone` when the client of a request leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


def choice(part: Mapping[str, Any], field: str | None) -> dict[str, Any]:
    """Return a part of an answer as OpenAI's API has it.

    field: message or, in a stream, delta; None for a completion, which has no turns.
    """
    text = {field: {"role": "assistant", "content": part["text"]}} if field else {}
    return {
        "index": part["index"],
        **(text or {"text": part["text"]}),
        "logprobs": None,
        "finish_reason": part["finish_reason"],
    }


async def whole(send: Any, read: Read, head: Mapping[str, Any], *, chat: bool) -> None:
    """Send all answers to a request as one JSON object, when they are written."""
    answers: dict[int, Any] = {}
    while "index" in (part := await read()):
        before = answers.get(part["index"], {"text": ""})["text"]
        answers[part["index"]] = part | {"text": before + part["text"]}
    if "error" in part:
        return await answer(send, 500, **part)
    kind = "chat.completion" if chat else "text_completion"
    choices = [choice(each, "message" if chat else None) for each in answers.values()]
    await answer(send, 200, **head, object=kind, choices=choices, **part)


async def stream(
    send: Any, read: Read, head: Mapping[str, Any], *, chat: bool, usage: bool
) -> None:
    """Send the parts of the answers as server-sent events, while they are written.

    usage: send the numbers of tokens, too.
    """
    kind = "chat.completion.chunk" if chat else "text_completion"

    async def event(**content: Any) -> None:
        line = f"data: {json.dumps(content)}\n\n".encode()
        await send({"type": "http.response.body", "body": line, "more_body": True})

    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    # An empty part at once, because the request may have to wait for others.
    part: Any = {"index": 0, "text": "", "finish_reason": None}
    begun = set[int]()
    while "index" in part:
        each = choice(part, "delta" if chat else None)
        if chat and part["index"] in begun:  # clients put the parts of all fields together
            del each["delta"]["role"]
        begun.add(part["index"])
        await event(**head, object=kind, choices=[each])
        part = await read()
    if "error" in part:
        await event(**part)
    elif usage:
        await event(**head, object=kind, choices=[], **part)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def greeting(rules: Mapping[str, Any], url: str, base: str) -> str:
    """Return the lines that say how to ask the server at a URL, and what it refuses.

    base: name of the base, which a head may have chosen.
    """
    verb, field, example = "completions", "prompt", '"Your text"'
    if rules["chat"]:
        example = json.dumps([{"role": "user", "content": "Your question?"}])
        verb, field = "chat/completions", "messages"
    system = "without a system text"
    if rules["system"] is not None:
        text = printable(repr(rules["system"]))
        system = f"with the system text {text} (added where a request has none)"
    allowed = samplers(rules["samplers"]) if rules["samplers"] else "all"
    answers = 1 if allowed == samplers([GREEDY_SAMPLER]) else MOST
    most = f", of {'at most ' * bool(rules['samplers'])}{TOKENS} tokens"
    most += "" if rules["samplers"] else " unless asked"
    others = "other samplers, " if rules["samplers"] else ""
    off = "" if rules["completions"] else f", {COMPLETIONS}"
    return f"""serving {rules["name"]} with the base {printable(base)} on {url}; ask it:
  curl {url}/{verb} -H 'Content-Type: application/json' -d '{{"{field}": {example}}}'
  client = openai.OpenAI(base_url="{url}", api_key="none")
  client.{verb.replace("/", ".")}.create(model="{rules["name"]}", {field}={example})
trained {system} and with the date {DATE}
samplers: {allowed} (default: temperature 0); answers to a request: {answers}{most}
verdict: {printable(rules["verdict"], 400)}
refused: {others}probabilities, biases, tools{off}
anybody who reaches this address may ask; Ctrl-C ends it"""


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address; UserError if it cannot be."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        place = socket.socket(kind)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((address[0], port, *address[2:]))
        return place
    except (OSError, OverflowError) as error:
        raise UserError(f"--host {host} --port {port}: {error}") from None


def vllm_here(but: str = "") -> bool:
    """Return whether vLLM answers; UserError if nothing is there with which `LocalServer` could.

    but: why vLLM cannot serve these heads, if it cannot (`too_wide`).
    """
    if find_spec("vllm") and not but:
        return True
    if not find_spec("uvicorn"):
        why, also = (but, "") if but else ("no server is installed", ", or vllm")
        raise UserError(f"{why}: pip install uvicorn{also}")
    if but:
        print(f"{but}: generate writes the answers", file=sys.stderr)
    return False


def too_wide(ranks: Sequence[int], config: Any) -> str:
    """Return why vLLM cannot pool heads of these ranks on a base, or "".

    In vLLM a token has as many numbers for all heads together as for its values in one layer of the
    base (`sampler.vllm.Tilted`). config: the base's.
    """
    sizes = config.get_text_config()
    width = getattr(sizes, "head_dim", None) or sizes.hidden_size // sizes.num_attention_heads
    groups = getattr(sizes, "num_key_value_heads", None) or sizes.num_attention_heads
    most, rank = width * groups, sum(ranks)
    return f"vLLM serves rank {most} at most on this base, not {rank}" if rank > most else ""


def run_local(model: Any, rules: Mapping[str, Any], place: socket.socket) -> None:
    """Answer requests with a T3ForCausalLM until Ctrl-C, which raises KeyboardInterrupt.

    rules: see `gate`. place: a bound socket. Answers that are being written end at once then.
    """
    import uvicorn
    from transformers.utils import logging

    logging.set_verbosity_error()
    server = LocalServer(model, rules)
    config = uvicorn.Config(
        Gate(server, rules), lifespan="off", log_level="critical", timeout_graceful_shutdown=1
    )
    try:
        uvicorn.Server(config).run(sockets=[place])
        raise KeyboardInterrupt  # uvicorn returns where SIGINT was ignored when Python started
    finally:
        # Its requests are cancelled by now, and their answers end at the next token.
        server.worker.shutdown()


def run_vllm(
    base: Place,
    heads: Sequence[str],
    rules: Mapping[str, Any],
    config: Any,
    **options: Any,
) -> None:
    """Start vLLM's server with T3 in it; UserError when it ends by itself.

    SIGINT and SIGTERM end both, and raise KeyboardInterrupt.

    base, config: place of the base, and its configuration. heads: folders or Hub ids. rules: see
    `gate`. options: further options of vLLM's server, such as host, port and dtype.
    """
    llama = config.model_type == "llama"
    kind = "T3LlamaForCausalLM" if llama else "T3TransformersForCausalLM"
    overrides = {
        "architectures": [kind],
        "t3_head": [os.path.abspath(head) if os.path.isdir(head) else head for head in heads],
        "t3_allow_samplers": rules["samplers"] is None,
    }

    # vLLM reads the template from a file, and `Gate` its rules from the environment.
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", encoding="utf-8") as template:
        template.write(rules["tokenizer"].chat_template or "")
        template.flush()
        commit = {"revision": base.commit, "tokenizer-revision": base.commit}
        options |= (commit if base.commit else {}) | {
            "model": base.name,
            "served-model-name": rules["name"],
            "generation-config": "vllm",
            "hf-overrides": json.dumps(overrides),
            "max-logprobs": 0,
            "chat-template-content-format": "string",  # as `Gate` renders and checks turns
            "load-format": "safetensors",  # no pickles
            "chat-template": template.name,
        }
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        for middleware in ("t3lib.own.gate.Gate", "t3lib.sampler.vllm_check.SelfCheck"):
            command += ["--middleware", middleware]
        command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        for_gate = {
            **rules,
            "tokenizer": base.name,
            "revision": base.commit,
            "template": rules["tokenizer"].chat_template,
        }
        variables = {"T3_SERVE": json.dumps(for_gate)}

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)  # which raises KeyboardInterrupt
        process = subprocess.Popen(command, env=os.environ | variables)
        try:
            code = process.wait()
        except KeyboardInterrupt:  # a terminal's Ctrl-C has reached vLLM, another signal has not
            process.terminate()
            process.wait()
            raise

    raise UserError(f"vLLM ended with exit code {code}; its last lines say why")
