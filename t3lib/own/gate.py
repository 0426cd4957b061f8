"""Check requests as OpenAI's API has them: only what unlearning was judged by is passed on.

`Gate` stands before every server that `t3 serve` starts. What it allows is in its rules: of the
reports beside the heads (`verdict_rules`), and of the prompts that the heads were trained for
(`prompt_rules`).
"""

import asyncio
import copy
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from t3lib.core.errors import UserError, printable
from t3lib.core.hub import Place, located
from t3lib.core.rows import (
    CONTROL,
    FIXED_CLOCK,
    check_text,
    encode_answers,
    prompt,
    refuse_special,
)
from t3lib.own.answers import TOKENS
from t3lib.own.questions import SAMPLERS
from t3lib.own.report import report_of
from t3lib.own.rows import checked_turns
from t3lib.sampler import belonging

CHAT, COMPLETIONS, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
DATE = "10 Apr 2025"  # in chat templates, as heads are trained
GREEDY_SAMPLER = (0.0, 1.0)
JUDGED = (GREEDY_SAMPLER, *SAMPLERS)  # (temperature, top_p) of a report with samples
MOST = 8  # answers to one request
BYTES = 2**20  # of a request
STOPS = (4, 100)  # stop strings, and characters of each: every new token is searched for them
LONGEST = 32  # characters of a token, on average in any text that is read
# Fields that many clients send, at the value that means nothing.
NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "top_logprobs"), 0),
    **dict.fromkeys(("logprobs", "echo", "store"), False),
    "logit_bias": {}, "tools": [], "response_format": {"type": "text"},
}  # fmt: skip
ROLES = ("system", "user", "assistant")
TURN = ("role", "content", "name", "type")  # fields of a turn
GIVEN_AWAY = ("logprobs", "top_logprobs", "prompt_logprobs", "echo", "logit_bias")


def within(least: float, most: float, *kinds: type) -> Callable[[Any], bool]:
    """Return a test whether a value is a number between two others, of one of these types."""
    return lambda value: type(value) in kinds and least <= value <= most


def is_neutral(name: str, value: Any) -> bool:
    """Return whether a field has the value in `NEUTRAL`; False is not the number 0."""
    default = NEUTRAL.get(name)
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def is_stop(value: Any) -> bool:
    """Return whether a value is a stop string, or a list of some."""
    texts = value if isinstance(value, list) else [value]
    return len(texts) <= STOPS[0] and all(
        isinstance(text, str)
        and 0 < len(text) <= STOPS[1]
        # U+FFFD stands for a character of which only the first bytes are written.
        and not (CONTROL.search(text) or "\ufffd" in text)
        for text in texts
    )


# Fields of a request: whether a value is allowed, and in words what is. All others are refused.
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("model", "user"), (lambda value: isinstance(value, str), "a text")),
    "seed": (within(0, 2**53 - 1, int), "a whole number from 0 to 2^53 - 1"),
    "n": (within(1, MOST, int), f"a whole number from 1 to {MOST}"),
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens"),
        (within(1, 2**53 - 1, int), "a whole number from 1 to 2^53 - 1"),
    ),
    # Between 0 and 0.01 logits overflow when they are divided.
    "temperature": (
        lambda value: within(0, 0, int, float)(value) or within(0.01, 100, int, float)(value),
        "0, or a number from 0.01 to 100",
    ),
    "top_p": (within(1e-6, 1, int, float), "a number above 0, at most 1"),
    "stream": (lambda value: isinstance(value, bool), "true or false"),
    "stream_options": (
        lambda value: (
            isinstance(value, dict)
            and value.keys() <= {"include_usage"}
            and all(isinstance(each, bool) for each in value.values())
        ),
        '{"include_usage": true or false}',
    ),
    "stop": (
        is_stop,
        f"at most {STOPS[0]} texts of 1 to {STOPS[1]} characters, without control characters and"
        " U+FFFD",
    ),
}


class StrangeModel(UserError):
    """A request names another model than the only one."""


class Gate:
    """An ASGI middleware that passes on only requests by which unlearning was judged.

    app: the server behind it. rules: see `prompt_rules` and `verdict_rules`; by default the JSON in
    the environment's T3_SERVE, in which the tokenizer is a name, beside its commit on the Hub
    (`revision`) and its chat template. Another path or model gets status 404, another request
    status 400 with one line. Where a conversation has no system text, the head's is added.
    """

    def __init__(self, app: Any, rules: Mapping[str, Any] | None = None) -> None:
        self.app, self.rules = app, rules or json.loads(os.environ["T3_SERVE"])
        self.tokenizer = self.rules["tokenizer"]
        if isinstance(self.tokenizer, str):
            self.tokenizer = described(self.tokenizer, self.rules["revision"])[2]
            self.tokenizer.chat_template = self.rules["template"]
        self.checker = ThreadPoolExecutor(1)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, or let the server do it."""
        route = scope["type"], scope.get("method"), scope.get("path")
        if route[0] == "websocket":
            return await send({"type": "websocket.close"})
        if route[0] == "lifespan" or route == ("http", "GET", "/health"):
            return await self.app(scope, receive, send)
        if route == ("http", "GET", MODELS):
            return await answer(send, 200, object="list", data=[self.model()])
        if route == ("http", "GET", f"{MODELS}/{self.rules['name']}"):
            return await answer(send, 200, **self.model())
        data, more = bytearray(), True
        while more:  # to the end, because an answer to half a request is lost
            message = await receive()
            if len(data) <= BYTES:
                data += message.get("body", b"")
            more = message.get("more_body", False)
        if route not in {("http", "POST", path) for path in (CHAT, COMPLETIONS)}:
            kinds = ((CHAT, "chat"), (COMPLETIONS, "completions"))
            served = [path for path, kind in kinds if self.rules[kind]]
            message = f"this server answers {', '.join(served)} and {MODELS} only"
            return await answer(send, 404, error={"message": message})
        try:
            # A page in a browser may not send this type to another site. It may send it to its own,
            # whose name can be made to mean this machine, but then the browser adds Origin.
            headers = dict(scope.get("headers", ()))
            if b"origin" in headers:
                raise UserError(
                    "a web page's request is refused (a proxy may take the header Origin away)"
                )
            kind = headers.get(b"content-type", b"")
            if kind.split(b";")[0].strip().lower() != b"application/json":
                raise UserError("a request has the header Content-Type: application/json")
            # In a thread, because a long prompt takes seconds: others are answered meanwhile.
            loop = asyncio.get_running_loop()
            checked = await loop.run_in_executor(self.checker, self.checked, bytes(data), route[2])
            body = json.dumps(checked).encode()
        except UserError as refused:
            strange = isinstance(refused, StrangeModel)
            code = "model_not_found" if strange else None
            why = {"message": str(refused), "type": "invalid_request_error", "code": code}
            return await answer(send, 404 if strange else 400, error=why)
        passed = iter([{"type": "http.request", "body": body}])

        async def first_the_body() -> Any:
            return next(passed, None) or await receive()

        await self.app(scope, first_the_body, send)

    def model(self) -> dict[str, Any]:
        """Return what `/v1/models` says of the only model, with the verdict on its heads."""
        name, verdict = self.rules["name"], self.rules["verdict"]
        return {"id": name, "object": "model", "created": 0, "owned_by": "t3", "verdict": verdict}

    def checked(self, data: bytes, path: str) -> dict[str, Any]:
        """Return the request to pass on; UserError with one line for what is refused."""
        rules, chat = self.rules, path == CHAT
        if not chat and not rules["completions"]:
            raise UserError(f"{path} has no chat template, and is off (t3 serve --completions)")
        if chat and not rules["chat"]:
            raise UserError(f"{path} is refused: the head was trained without a chat template")
        body = known_fields(data, "messages" if chat else "prompt")
        if body.setdefault("model", rules["name"]) != rules["name"]:
            raise StrangeModel(f"this server has one model, {rules['name']}")

        # Greedy answers, or a sampler that the report judged.
        if body.get("top_p", 1) < 1 and "temperature" not in body:
            raise UserError("top_p needs a temperature: the default is 0 here, greedy answers")
        tau = float(body.get("temperature", 0)) or 0.0
        body["temperature"], body["top_p"] = tau, float(body.get("top_p", 1)) if tau else 1.0
        sampler = body["temperature"], body["top_p"]
        if rules["samplers"] and sampler not in {*map(tuple, rules["samplers"])}:
            allowed = samplers(rules["samplers"])
            raise UserError(f"{samplers([sampler])} is refused; allowed: {allowed}")
        if not tau and body.get("n", 1) > 1:
            raise UserError("n is 1 at temperature 0: greedy answers are all the same")

        if chat:
            body["messages"] = turns = self.turns(body.get("messages"))
            self.check_length([turn["content"] for turn in turns])
            text = prompt(self.tokenizer, turns, None)
        else:
            text = body.get("prompt", "")
            check_text(text, "prompt")
            self.check_length([text])
            refuse_special(self.tokenizer, text, "prompt")

        # In training and judging every text begins with this token, if the tokenizer has it. Some
        # tokenizers do not put it first by themselves.
        ids = self.tokenizer(text, add_special_tokens=not chat).input_ids
        begin = "" if ids[:1] == [self.tokenizer.bos_token_id] else self.tokenizer.bos_token or ""
        if not chat:
            body["prompt"] = begin + text

        # What the context leaves for the answer, and no more than a report judges.
        tokens = len(ids) + bool(begin and not chat)
        if not ids or (room := rules["context"] - tokens) < 1:
            raise UserError(f"the prompt has {tokens} tokens, the context {rules['context']}")
        longest = min(room, TOKENS) if rules["samplers"] else room
        wanted = body.pop("max_completion_tokens", body.get("max_tokens", TOKENS))
        return body | {"max_tokens": min(wanted, longest)}

    def check_length(self, texts: Sequence[str]) -> None:
        """Raise UserError for turns that cannot fit: others would wait for their tokens."""
        length, context = sum(map(len, texts)), self.rules["context"]
        if length > LONGEST * context or len(texts) > context:
            raise UserError(
                f"the prompt has {length:,} characters in {len(texts)} turns, the context {context}"
                " tokens"
            )

    def turns(self, messages: Any) -> list[dict[str, str]]:
        """Return a conversation, with the head's system text where it has none."""
        if isinstance(messages, list):
            messages = [as_text(turn) for turn in messages]
        turns = checked_turns(messages, "request", "messages")
        roles = [turn["role"] for turn in turns]
        if strange := {*roles} - {*ROLES}:
            raise UserError(f"messages: the role {strange.pop()} is refused; allowed: {ROLES}")
        # In other orders a head told rows that it does not tell when it is asked as judged.
        if roles[-1] != "user" or "system" in roles[1:]:
            raise UserError(
                "messages: a system text comes first and the user's turn last, as the report asks"
            )
        without = roles[0] != "system" and self.rules["system"] is not None
        return [{"role": "system", "content": self.rules["system"]}, *turns] if without else turns


def known_fields(data: bytes, text: str) -> dict[str, Any]:
    """Read the JSON of a request: {field: value}, without fields that change nothing.

    text: the field with the conversation or the prompt, which is not checked here. UserError for
    other JSON, and for a field or value that is not in `FIELDS`.
    """
    try:
        if len(data) > BYTES:
            raise ValueError
        body = json.loads(data)
        body = {
            name: value
            for name, value in body.items()
            if value is not None and not is_neutral(name, value)
        }
    except (ValueError, AttributeError, RecursionError):
        raise UserError(f"a request is a JSON object of at most {BYTES:,} bytes") from None
    if refused := sorted(body.keys() - FIELDS - {text}):
        why = " (it gives away what was unlearned)" if refused[0] in GIVEN_AWAY else ""
        raise UserError(
            f"{printable(refused[0], 40)} is refused{why}; allowed: {', '.join([*FIELDS, text])}"
        )
    for name in [name for name in FIELDS if name in body]:
        fits, allowed = FIELDS[name]
        if not fits(body[name]):
            value = printable(repr(body[name]), 40)
            raise UserError(f"{name}: {value} is refused; allowed: {allowed}")

    unread = {"user"} if body.get("stream") else {"user", "stream_options"}
    return {name: value for name, value in body.items() if name not in unread}


def as_text(turn: Any) -> Any:
    """Return a turn with its text parts joined to one text, and the role developer as system.

    A name and a type are left out, because they are no text of the turn. UserError for any other
    field that has a value, such as tool_calls: the model would not see it.
    """
    if not isinstance(turn, Mapping):
        return turn
    if unread := [name for name, value in turn.items() if value and name not in TURN]:
        what = printable(str(unread[0]), 40)
        raise UserError(f"messages: a turn with {what} is refused; allowed: {', '.join(TURN)}")
    role, content = turn.get("role"), turn.get("content")
    if isinstance(content, list) and all(
        isinstance(part, Mapping)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
        for part in content
    ):
        content = "\n".join(part["text"] for part in content)
    return {"role": "system" if role == "developer" else role, "content": content}


async def answer(send: Any, status: int, /, **content: Any) -> None:
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


def verdict_rules(
    names: Sequence[str], heads: Sequence[Any], precision: str = "", template: str | None = None, *,
    unjudged: bool = False, any_sampler: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return what the reports beside heads allow, for `Gate`: {verdict, samplers, precision}.

    names: folders or Hub ids of the heads. precision: of the base, as of `models.precision_of`; a
    report about another one does not count ("" if it is not known yet), nor one about another chat
    template, unless the rows were plain text. template: its digest, as of `belonging.prompt_form`
    (None if it is not known yet). verdict: the sentence of the only head's report, or why there is
    none; with any_sampler it begins with what no report judged. In the result, precision is that of
    the report, or None. samplers: the pairs (temperature, top_p) that the report judged; greedy
    answers alone if there is none, as for several heads together; None with any_sampler.

    UserError if the verdict is not a pass, or if there is none, unless it is served `unjudged`.
    """
    report: Any = (report_of(names[0], heads[0]) if len(heads) == 1 else None) or {}
    none = "these heads together" if len(heads) > 1 else "this head as it is"
    about = report.get("precision")
    if precision and report and about != precision:
        report, none = {}, f"this head in {precision} (its report: {about or 'none named'})"
    asked = report.get("form", {}).get("chat_template")
    if asked not in (template, belonging.PLAIN, None) and template:
        report, none = {}, "this head with this chat template"
    verdict = report.get("verdict", {})
    sentence = verdict.get("sentence", f"Not judged: no report is about {none}.")
    if not (verdict.get("success") or unjudged):
        raise UserError(f"{sentence} To serve it all the same, add --unjudged")
    allowed = JUDGED if report.get("coverage", {}).get("texts") else (GREEDY_SAMPLER,)
    more = "Other samplers and longer answers are allowed than a report judged. " * any_sampler
    judged = {"verdict": more + sentence, "samplers": None if any_sampler else allowed}
    return judged | {"precision": about}


def prompt_rules(
    name: str, heads: Sequence[Any], tokenizer: Any, config: Any, *, completions: bool = False
) -> dict[str, Any]:
    """Return how heads may be asked, for `Gate`: {name, system, context, chat, completions,
    tokenizer}.

    name: folder or Hub id of the first head. config: the base's configuration. The tokenizer of the
    result has the first head's template arguments, and a chat template with the date of training. A
    UserWarning says if it has another template than a head.

    The system text is that of the first head; None if it has none or the template takes none.
    UserError without a chat template and completions.
    """
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
        check_start(tokenizer, system)
        tokenizer = copy.copy(tokenizer)
        tokenizer.chat_template = fixed_template(tokenizer)

    # A template that shows no system text takes none.
    if not chat or prompt(tokenizer, "Who?", system) == prompt(tokenizer, "Who?", None):
        system = None

    return {
        "name": re.sub(r"[^\w.-]+", "-", Path(name).name) or "t3",
        "system": system,
        "context": getattr(config.get_text_config(), "max_position_embeddings", None) or 10**9,
        "chat": chat,
        "completions": completions,
        "tokenizer": tokenizer,
    }


def check_start(tokenizer: Any, system: str | None) -> None:
    """Raise UserError if the chat template puts something between prompt and answer, such as an
    empty block of thoughts. Answers were learned and judged after it, and a server's prompt ends
    before it.
    """
    [example] = encode_answers(tokenizer, "Who?", ["Ada."], system)
    text = prompt(tokenizer, "Who?", system)
    if example.prompt != tokenizer(text, add_special_tokens=False).input_ids:
        raise UserError(
            "the chat template puts something before an answer that a prompt does not have, such"
            " as an empty block of thoughts: unlearn with a template that puts it into the prompt"
            " (for Qwen3 --set template.enable_thinking=false)"
        )


def described(name: str, revision: str | None = None) -> tuple[Place, Any, Any]:
    """Return the place, the configuration and the tokenizer of a base, without its weights.

    name, revision: as of `hub.located`. UserError if they cannot be read.
    """
    place = located(name, revision)
    commit = place.commit or "main"
    try:
        return (
            place,
            AutoConfig.from_pretrained(place.name, revision=commit, trust_remote_code=False),
            AutoTokenizer.from_pretrained(place.name, revision=commit, trust_remote_code=False),
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{name}: {str(error).splitlines()[0]}") from None
