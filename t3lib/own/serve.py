"""Serve an unlearned model as OpenAI's API does, and refuse requests that would undo unlearning.

vLLM answers where it is installed, otherwise the server of `transformers serve`, with one model and
one request at a time. `Gate` reads every request before either of them does.
"""

import copy
import inspect
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer
from transformers.utils.import_utils import is_serve_available

from t3lib.core.errors import UserError, printable
from t3lib.core.hub import located
from t3lib.core.rows import FIXED_CLOCK, check_row, prompt, refuse_special
from t3lib.own.answers import TOKENS
from t3lib.own.questions import SAMPLERS
from t3lib.own.report import report_of
from t3lib.own.rows import checked_turns
from t3lib.sampler import belonging

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
DATE = "10 Apr 2025"  # in chat templates, as heads are trained
GREEDY_SAMPLER = (0.0, 1.0)
JUDGED = (GREEDY_SAMPLER, *SAMPLERS)  # (temperature, top_p) of a report with samples
MOST = 8  # answers to one request; Transformers' server gives one
BYTES = 2**20  # of a request
ROLES = ("system", "user", "assistant")
# Fields of a request, with the types of their values. All others are refused.
FIELDS: dict[str, type | tuple[type, ...]] = {
    **{"model": str, "user": str, "seed": int, "n": int, "max_tokens": int},
    **{"max_completion_tokens": int, "temperature": (int, float), "top_p": (int, float)},
    **{"stream": bool, "stream_options": dict, "stop": (str, list)},
}
GIVEN_AWAY = ("logprobs", "top_logprobs", "prompt_logprobs", "echo", "logit_bias")


class Gate:
    """An ASGI middleware that passes on only requests by which unlearning was judged.

    app: the server behind it. rules: see `rules_of`; by default the JSON in the environment's
    T3_SERVE, in which the tokenizer is a name, beside its chat template. Another path gets status
    404, another request status 400 with one line. Where a conversation has no system text, the
    head's is added.
    """

    def __init__(self, app: Any, rules: Mapping[str, Any] | None = None) -> None:
        self.app, self.rules = app, rules or json.loads(os.environ["T3_SERVE"])
        self.tokenizer = self.rules["tokenizer"]
        if isinstance(self.tokenizer, str):
            self.tokenizer = described(self.tokenizer)[2]
            self.tokenizer.chat_template = self.rules["template"]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, or let the server do it."""
        route = scope["type"], scope.get("method"), scope.get("path")
        if route[0] == "websocket":
            return await send({"type": "websocket.close"})
        if route[0] == "lifespan" or route == ("http", "GET", "/health"):
            return await self.app(scope, receive, send)
        if route == ("http", "GET", "/v1/models"):
            model = {"id": self.rules["name"], "object": "model", "owned_by": "t3"}
            return await answer(send, 200, object="list", data=[model])
        data, more = b"", True
        while more:  # to the end, because an answer to half a request is lost
            message = await receive()
            data = (data + message.get("body", b""))[: BYTES + 1]
            more = message.get("more_body", False)
        if route not in {("http", "POST", path) for path in (CHAT, COMPLETIONS)}:
            kinds = ((CHAT, "chat"), (COMPLETIONS, "completions"))
            served = [path for path, kind in kinds if self.rules[kind]]
            message = f"this server answers {', '.join(served)} and /v1/models only"
            return await answer(send, 404, error={"message": message})
        try:
            body = json.dumps(self.checked(data, route[2])).encode()
        except UserError as refused:
            why = {"message": str(refused), "type": "invalid_request_error"}
            return await answer(send, 400, error=why)
        passed = iter([{"type": "http.request", "body": body}])

        async def first_the_body() -> Any:
            return next(passed, None) or await receive()

        await self.app(scope, first_the_body, send)

    def checked(self, data: bytes, path: str) -> dict[str, Any]:
        """Return the request to pass on; UserError with one line for what is refused."""
        rules, chat = self.rules, path == CHAT
        if not chat and not rules["completions"]:
            raise UserError(f"{path} has no chat template, and is off (t3 serve --completions)")
        if chat and not rules["chat"]:
            raise UserError(f"{path} is refused: the head was trained without a chat template")

        # Only known fields, each with a value of its type.
        try:
            body = json.loads(data[:BYTES])
            body = {name: value for name, value in body.items() if value is not None}
        except (ValueError, AttributeError, RecursionError):
            raise UserError(f"a request is a JSON object of at most {BYTES:,} bytes") from None
        types = FIELDS | ({"messages": list} if chat else {"prompt": str})
        if refused := sorted(body.keys() - types):
            why = " (it gives away what was unlearned)" if refused[0] in GIVEN_AWAY else ""
            raise UserError(f"{refused[0]} is refused{why}; allowed: {', '.join(types)}")
        for name, value in body.items():
            fits = isinstance(value, types[name]) and isinstance(value, bool) == (name == "stream")
            numbers = [value] if isinstance(value, int | float) else []
            texts = (value if isinstance(value, list) else [value]) if name == "stop" else []
            if (
                not fits
                or not all(0 <= each < 2**53 for each in numbers)
                or not all(isinstance(each, str) and each for each in texts)
            ):
                raise UserError(f"{name}: {printable(value, 40) or 'an empty text'} is not allowed")

        if body.setdefault("model", rules["name"]) != rules["name"]:
            raise UserError(f"this server has one model, {rules['name']}")

        # Greedy answers, or a sampler that the report judged.
        tau = float(body.get("temperature", 0))
        body["temperature"], body["top_p"] = tau, float(body.get("top_p", 1)) if tau else 1.0
        sampler = body["temperature"], body["top_p"]
        if rules["samplers"] and sampler not in {*map(tuple, rules["samplers"])}:
            allowed = samplers(rules["samplers"])
            raise UserError(f"a colder sampler undoes tempering; judged and allowed: {allowed}")

        if chat:
            body["messages"] = self.turns(body.get("messages"))
            text = prompt(self.tokenizer, body["messages"], None)
        else:
            text = check_row({"question": body.get("prompt"), "answer": "-"}, path)["question"]
            refuse_special(self.tokenizer, text, "prompt")

        # What the context leaves for the answer, and no more than a report judges.
        tokens = len(self.tokenizer(text, add_special_tokens=not chat).input_ids)
        if (room := rules["context"] - tokens) < 1:
            raise UserError(f"the prompt has {tokens} tokens, the context {rules['context']}")

        longest = min(room, TOKENS) if rules["samplers"] else room
        wanted = body.pop("max_completion_tokens", body.get("max_tokens", longest))
        if not (1 <= body.get("n", 1) <= rules["most"] and wanted and sampler[1]):
            raise UserError(f"n is 1 to {rules['most']} here, max_tokens and top_p above 0")
        return body | {"max_tokens": min(wanted, longest)}

    def turns(self, messages: Any) -> list[dict[str, str]]:
        """Return a conversation, with the head's system text where it has none."""
        turns = checked_turns(messages, "request", "messages")
        if strange := {turn["role"] for turn in turns} - {*ROLES}:
            raise UserError(f"messages: the role {strange.pop()} is refused; allowed: {ROLES}")
        without = turns[0]["role"] != "system" and self.rules["system"] is not None
        return [{"role": "system", "content": self.rules["system"]}, *turns] if without else turns


async def answer(send: Any, status: int, **content: Any) -> None:
    """Send a JSON object as the whole answer to a request."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


def samplers(allowed: Sequence[Sequence[float]]) -> str:
    """Name pairs (temperature, top_p) in one line."""
    names = (f"temperature {tau:g}" + f" with top_p {p:g}" * (p < 1) for tau, p in allowed)
    return ", ".join(names)


def fixed_template(tokenizer: Any) -> str:
    """Return the chat template with the date of training, whatever a request or a clock says."""
    template = tokenizer.get_chat_template()
    clock = FIXED_CLOCK if "strftime_now" in template else ""
    return f'{{% set date_string = "{DATE}" %}}{clock}{template}'


def rules_of(
    names: Sequence[str],
    heads: Sequence[Any],
    tokenizer: Any,
    config: Any,
    *,
    most: int,
    completions: bool = False,
    any_sampler: bool = False,
) -> dict[str, Any]:
    """Return what `Gate` checks: {name, system, samplers, context, most, chat, completions,
    tokenizer}.

    names: folders or Hub ids of the heads. config: the base's configuration. most: answers to one
    request. The tokenizer of the result has the first head's template arguments, and a chat
    template with the date of training. A UserWarning says if it has another template than a head.

    Allowed are the samplers (temperature, top_p) that the reports beside all heads judged, and
    greedy answers alone if a head has no report of its own; None with any_sampler. The system text
    is that of the first head; None if it has none or the template takes none. UserError without a
    chat template and completions.
    """
    reports: list[Any] = [report_of(name, head) or {} for name, head in zip(names, heads)]
    judged = all(report.get("coverage", {}).get("texts") for report in reports)
    system = belonging.system_of(heads[0])
    chat = tokenizer.chat_template is not None and heads[0].info.get("chat_template") not in (
        belonging.PLAIN,
        "none",
    )
    if not (chat or completions):
        raise UserError("this head was trained without a chat template: add --completions")

    # Every head must be asked as it was trained, with the template of the first.
    if chat:
        tokenizer = belonging.in_template_of(heads[0], tokenizer)
        for head in heads:
            row = {"question": "Who?", "answer": "-", "system": belonging.system_of(head)}
            belonging.check_prompt(head, tokenizer, [row])
        tokenizer = copy.copy(tokenizer)
        tokenizer.chat_template = fixed_template(tokenizer)

    # A template that shows no system text takes none.
    if not chat or prompt(tokenizer, "Who?", system) == prompt(tokenizer, "Who?", None):
        system = None

    return {
        "name": re.sub(r"[^\w.-]+", "-", Path(names[0]).name) or "t3",
        "system": system,
        "samplers": None if any_sampler else JUDGED if judged else (GREEDY_SAMPLER,),
        "context": getattr(config.get_text_config(), "max_position_embeddings", None) or 10**9,
        "most": most,
        "chat": chat,
        "completions": completions,
        "tokenizer": tokenizer,
    }


def greeting(rules: Mapping[str, Any], url: str) -> str:
    """Return the lines that say how to ask the server at a URL, and what it refuses."""
    verb, field, example = "completions", "prompt", '"Your text"'
    if rules["chat"]:
        example = json.dumps([{"role": "user", "content": "Your question?"}])
        verb, field = "chat/completions", "messages"
    system = "none" if rules["system"] is None else printable(repr(rules["system"]))
    allowed = samplers(rules["samplers"]) if rules["samplers"] else "all"
    most = f", of at most {TOKENS} tokens" if rules["samplers"] else ""
    off = "" if rules["completions"] else f", {COMPLETIONS}"
    return f"""serving {rules["name"]} on {url}; ask it:
  curl {url}/{verb} -H 'Content-Type: application/json' -d '{{"{field}": {example}}}'
  client = openai.OpenAI(base_url="{url}", api_key="none")
  client.{verb.replace("/", ".")}.create(model="{rules["name"]}", {field}={example})
trained with the system text {system} (added where a request has none) and the date {DATE}
samplers: {allowed}; answers to a request: {rules["most"]}{most}
refused: other samplers, probabilities, biases, tools{off}
anybody who reaches this address may ask; Ctrl-C ends it"""


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address; UserError if it cannot be."""
    if not 0 <= port < 2**16:  # getaddrinfo would take the rest of a division
        raise UserError(f"--port {port}: a port is from 0 to {2**16 - 1}")
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        place = socket.socket(kind)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(address)
    except OSError as error:
        raise UserError(f"--host {host} --port {port}: {error}") from None
    return place


def vllm_here(but: str = "") -> bool:
    """Return whether vLLM answers; UserError if Transformers' server is not there either.

    but: why vLLM cannot serve these heads, if it cannot (`too_wide`).
    """
    if find_spec("vllm") and not but:
        return True
    if not is_serve_available():
        why, also = (but, "") if but else ("no server is installed", ", or vllm")
        raise UserError(f"{why}: pip install 't3lib[serve]'{also}")
    if but:
        print(f"{but}: Transformers' server answers", file=sys.stderr)
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


def run_transformers(model: Any, rules: Mapping[str, Any], place: socket.socket) -> None:
    """Answer requests with a T3ForCausalLM until Ctrl-C, which raises KeyboardInterrupt.

    rules: see `rules_of`. place: a bound socket. Answers that are being written end at once then.
    """
    import uvicorn
    from transformers.cli.serving.chat_completion import ChatCompletionHandler
    from transformers.cli.serving.completion import CompletionHandler
    from transformers.cli.serving.model_manager import ModelManager
    from transformers.cli.serving.server import build_server
    from transformers.cli.serving.utils import GenerationState
    from transformers.utils import logging

    logging.set_verbosity_error()

    # Sampling is the default, which temperature 0 of a request switches off. After Ctrl-C every
    # answer ends at its next token.
    stopped: list[bool] = []
    model.generation_config.do_sample = True
    criterion = [lambda ids, scores: torch.full((len(ids),), bool(stopped), device=ids.device)]
    model.generate = partial(model.generate, stopping_criteria=criterion)

    # The server's manager of models gets ours, which is loaded already.
    tokenizer: Any = rules["tokenizer"]
    manager, state = ModelManager(model_timeout=-1), GenerationState()
    manager._load_model = lambda *_, **__: model  # type: ignore[method-assign]
    manager._load_processor = lambda *_, **__: tokenizer  # type: ignore[method-assign]
    parts: dict[str, Any] = {"model_manager": manager, "generation_state": state}
    for name, kind in (("chat", ChatCompletionHandler), ("completion", CompletionHandler)):
        parts[f"{name}_handler"] = kind(manager, state)

    # `Gate` lets no request through to the handlers that are None.
    needed = [*inspect.signature(build_server).parameters][:-1]  # not enable_cors
    behind: Any = build_server
    app = Gate(behind(**{name: parts.get(name) for name in needed}), rules)
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)

    try:
        uvicorn.Server(config).run(sockets=[place])
        raise KeyboardInterrupt  # uvicorn returns where SIGINT was ignored when Python started
    finally:
        stopped.append(True)
        for worker in state._generate_managers.values():
            worker.submit(bool).result()  # the interpreter must not end inside a forward pass


def described(name: str) -> tuple[str, Any, Any]:
    """Return folder or Hub id, configuration and tokenizer of a base, without its weights.

    UserError if they cannot be read.
    """
    place = located(name)
    commit = place.commit or "main"
    try:
        return (
            place.name,
            AutoConfig.from_pretrained(place.name, revision=commit, trust_remote_code=False),
            AutoTokenizer.from_pretrained(place.name, revision=commit, trust_remote_code=False),
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{name}: {str(error).splitlines()[0]}") from None


def run_vllm(
    base: str,
    heads: Sequence[str],
    rules: Mapping[str, Any],
    config: Any,
    **options: Any,
) -> None:
    """Start vLLM's server with T3 in it, and wait for its end; UserError if it fails.

    base, config: folder or Hub id of the base, and its configuration. heads: folders or Hub ids.
    rules: see `rules_of`. options: further options of vLLM's server, such as host, port and dtype.
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
        options |= {
            "model": base,
            "served-model-name": rules["name"],
            "generation-config": "vllm",
            "hf-overrides": json.dumps(overrides),
            "max-logprobs": 0,
            "middleware": "t3lib.own.serve.Gate",
            "chat-template": template.name,
        }
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        for_gate = {**rules, "tokenizer": base, "template": rules["tokenizer"].chat_template}
        variables = {"T3_SERVE": json.dumps(for_gate)}

        process = subprocess.Popen(command, env=os.environ | variables)
        try:
            code = process.wait()
        except KeyboardInterrupt:  # which vLLM got too: it ends its own processes
            process.wait()
            raise

    if code:
        raise UserError(f"vLLM ended with exit code {code}; its last lines say why")
