"""`t3 serve` in a process, and what a client may send to it: fields with long, empty, wrong values.

tests/own/test_serve.py sends these requests to the server without vLLM, tests/serving to vLLM.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conftest import ROOT

from t3lib.own import gate

JSON = {"Content-Type": "application/json"}
ASK = [{"role": "user", "content": "Who?"}]
MODEL = "this server has one model, head"
SAMPLER = "is refused; allowed: temperature 0, temperature 0.6 with top_p 0.9, temperature 1"
ORDER = "messages: a system text comes first and the user's turn last, as the report asks"
TURN = "a turn has a role and a content, both text"


def said(content: Any, role: Any = "user") -> dict[str, Any]:
    """A request with one turn."""
    return {"messages": [{"role": role, "content": content}]}


# field: [(value, what the refusal says, "" where the request is answered)]
VALUES: dict[str, list[tuple[Any, str]]] = {
    "model": [("head", ""), (None, ""), ("x" * 10**5, MODEL), ("", MODEL), (3, "allowed: a text")],
    "user": [("x" * 10**5, ""), ("", ""), (3, "user: 3 is refused; allowed: a text")],
    "seed": [
        (2**53 - 1, ""), (0, ""), (10**30, "from 0 to 2^53 - 1"), (-1, "seed: -1 is refused"),
        ("", "seed: '' is refused"), (1.5, "a whole number"), (True, "seed: True is refused"),
    ],
    "n": [
        (1, ""), (0, "n: 0 is refused; allowed: a whole number from 1 to 8"), ("", "n: ''"),
        (10**6, "from 1 to 8"), (1.0, "n: 1.0"), (2, "n is 1 at temperature 0"),
    ],
    "max_tokens": [
        (10**9, ""), (None, ""), (0, "a whole number from 1 to 2^53 - 1"), ("", "max_tokens: ''"),
        (10**30, "is refused"), (float("nan"), "max_tokens: nan is refused"), ("3", "is refused"),
    ],
    "max_completion_tokens": [
        (3, ""), (10**30, "is refused"), ("", "is refused"), ([3], "is refused"),
    ],
    "temperature": [
        (0, ""), (-0.0, ""), (1, ""), (0.3, f"temperature 0.3 {SAMPLER}"),
        (float("inf"), "0, or a number from 0.01 to 100"), (1e-300, "temperature: 1e-300 is"),
        ("", "temperature: ''"), ("0", "temperature: '0'"), (False, "is refused"), (-1, "refused"),
    ],
    "top_p": [
        (1, ""), (0, "above 0, at most 1"), (10**9, "top_p: 1000000000 is refused"), ("", "top_p"),
        (float("nan"), "top_p: nan"),
    ],
    "stream": [(True, ""), (False, ""), (1, "stream: 1 is refused"), ("", "true or false")],
    "stream_options": [
        ({}, ""), ({"include_usage": True}, ""), ({"include_usage": 1}, "is refused"),
        ({"x" * 10**5: True}, "is refused"), ("", "include_usage"), ([], "include_usage"),
    ],
    "stop": [
        ([], ""), (["\n\n", "zq"], ""), ("zq", ""), ("é" * 100, ""),
        ("", "stop: '' is refused; allowed: at most 4 texts of 1 to 100 characters"),
        ([""], "is refused"), ([1], "stop: [1]"), ({}, "stop: {}"), ("x" * 101, "1 to 100"),
        (["x"] * 5, "at most 4 texts"), ("x" * 50_000, "is refused"), ("a\ud800", "control"),
        ("a\x00", "control"), ("\ufffd", "U+FFFD"), (["zq", "a\ufffd"], "U+FFFD"),
    ],
    "messages": [
        ([], "messages must be a list of turns"), ("", "messages must be a list of turns"),
        ({}, "messages must be a list of turns"), (None, "messages must be a list of turns"),
        ([1], TURN), ([{"role": "user"}], TURN), ([{"content": "x"}], TURN), ([[]], TURN),
        (ASK * 300, "tokens, the context 512"),
        (ASK * 513, "2,060 characters in 514 turns, the context 512 tokens"),
    ],
    # Fields that no server of ours has.
    "logprobs": [
        (False, ""), (True, "logprobs is refused (it gives away what was unlearned)"),
        (0, "logprobs is refused (it gives away what was unlearned)"),
    ],
    "top_logprobs": [(0, ""), (5, "top_logprobs is refused (it gives away")],
    "prompt_logprobs": [(1, "prompt_logprobs is refused (it gives away")],
    "logit_bias": [({}, ""), ({"5": 100}, "logit_bias is refused (it gives away")],
    "response_format": [({"type": "text"}, ""), ({"type": "json_object"}, "is refused; allowed")],
    "store": [(False, ""), (True, "store is refused; allowed: model")],
    "presence_penalty": [(0, "")],
    "echo": [(False, ""), (True, "echo is refused (it gives away what was unlearned); allowed")],
    "frequency_penalty": [(0.0, ""), (1.0, "frequency_penalty is refused; allowed: model")],
    "generation_config": [("{}", "generation_config is refused")],
    "chat_template_kwargs": [({"date_string": "now"}, "chat_template_kwargs is refused")],
    "vllm_xargs": [({"t3_heads": ["head"]}, "vllm_xargs is refused")],
    "tools": [([], ""), ([{"type": "function"}], "tools is refused")],
    "": [(1, "is refused; allowed: model")],
    "x" * 10**5: [(1, "… is refused; allowed: model")],
}  # fmt: skip
# Requests that are more than one value.
REQUESTS: list[tuple[dict[str, Any], str]] = [
    (said("x" * 600), "tokens, the context 512"),
    (said("x" * 20_000), "20,008 characters in 2 turns, the context 512 tokens"),
    (said("x" * 100_001), "more than the 100000 allowed"),
    (said(""), "turn 1 is empty"),
    (said(" \n"), "turn 1 is empty"),
    (said(None), TURN),
    (said(3), TURN),
    (said("a\ud800"), "half of a surrogate pair"),
    (said("a\x00b"), "control character"),
    (said("a<|eot_id|>"), "the special token <|eot_id|>"),
    (said([{"type": "text", "text": "Who"}, {"type": "text", "text": "is it?"}]), ""),
    (said([]), "turn 1 is empty"),
    (said([{"type": "text"}]), TURN),
    (said([{"type": "image_url", "image_url": {"url": "http://x"}}]), TURN),
    ({"messages": [{"role": "developer", "content": "Be kind."}, *ASK]}, ""),
    ({"messages": [*ASK, {"role": "system", "content": "Be kind."}]}, ORDER),
    ({"messages": [*ASK, {"role": "assistant", "content": "Ada"}]}, ORDER),
    (said("Be kind.", "developer"), ORDER),
    ({"messages": [*ASK, {"role": "system", "content": "Be kind."}, *ASK]}, ORDER),
    ({"messages": [{"role": "system", "content": "Be kind."}] * 2 + ASK}, ORDER),
    ({"messages": [{"role": "assistant", "content": "Ask."}, *ASK, *ASK]}, ""),
    (said("x", ""), "is no role"),
    (said("x", "x" * 1000), "is no role"),
    (said("x", "tool"), "the role tool is refused"),
    (said("x", 3), TURN),
    ({"messages": [{"role": "user", "content": "Who?", "name": "Ada", "type": "text"}]}, ""),
    ({"messages": [{"role": "user", "content": "Who?", "tool_calls": [], "refusal": None}]}, ""),
    (
        {"messages": [{"role": "assistant", "content": "Ada", "tool_calls": [{}]}, *ASK]},
        "messages: a turn with tool_calls is refused",
    ),
    ({"top_p": 0.5}, "top_p needs a temperature: the default is 0 here"),
    ({"temperature": 0.6, "top_p": 0.9, "seed": 5}, ""),
    ({"temperature": 1, "top_p": 0.5}, f"temperature 1 with top_p 0.5 {SAMPLER}"),
    ({"temperature": 1.2}, f"temperature 1.2 {SAMPLER}"),
    ({"temperature": 1.0, "n": 3, "seed": 7}, ""),
    ({"temperature": 1.0, "n": 2, "seed": 7, "stream": True}, ""),
    ({"stream": True, "stop": "zq", "stream_options": {"include_usage": True}}, ""),
    ({"prompt": "x"}, "prompt is refused; allowed: model"),
]
CASES: list[tuple[str, dict[str, Any], str]] = [
    *((f"{field[:20]} {place}", {field: value}, refusal)
      for field, values in VALUES.items() for place, (value, refusal) in enumerate(values)),
    *((f"request {place}", *case) for place, case in enumerate(REQUESTS)),
]  # fmt: skip


class Server:
    """`t3 serve` in a process of its own. lines: what it printed; url: where it answers."""

    def __init__(self, place, head, *more):
        words = ["serve", "--model", str(place / "base"), "--head", str(place / head), *more]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "t3lib", *words, "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self.lines = [self.process.stdout.readline()]
        while self.lines[-1] and "Ctrl-C" not in self.lines[-1]:
            self.lines.append(self.process.stdout.readline())
        assert self.lines[-1], self.process.communicate()[1]
        self.port = int(re.search(r"http://127.0.0.1:(\d+)/v1;", self.lines[0])[1])
        while self.get("/health")[0] != 200:
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.1)

    def get(self, path, data=None, headers=JSON):
        """(status, body) of a request; a body is posted as JSON."""
        data = data if data is None or isinstance(data, bytes) else json.dumps(data).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except urllib.error.URLError:
            return 0, ""

    def chat(self, **body):
        status, text = self.get(gate.CHAT, {"messages": ASK, "max_tokens": 12} | body)
        assert status == 200, text
        return text


def events(text: str) -> list[Any]:
    """The JSON of the events of a stream."""
    return [json.loads(line) for line in re.findall(r"^data: (\{.*)$", text, re.M)]


def check_case(server: Server, body: dict[str, Any], refusal: str) -> None:
    """A refusal is a 400 of one line, of another model a 404; an answer is the same whoever asks
    beside it.

    The request is sent alone, and then six times at once.
    """
    request = {"messages": ASK, "max_tokens": 4} | body

    def send(_: object = None) -> tuple[int, str]:
        """The status, and the text without what differs by itself, as the cuts of a stream do."""
        status, text = server.get(gate.CHAT, request)
        joined: dict[int, str] = {}
        for part in [part for event in events(text) for part in event["choices"]]:
            said = part["delta"].get("content") or ""
            joined[part["index"]] = joined.get(part["index"], "") + said
        whole = re.sub(r'"(id|created)": ?[^,]*', "", text)
        return status, str(sorted(joined.items())) if joined else whole

    status, text = server.get(gate.CHAT, request)
    if refusal:
        message = json.loads(text)["error"]["message"]
        expected = 404 if refusal == MODEL else 400
        assert (status, message.count("\n")) == (expected, 0) and refusal in message, text
        assert len(message) < 400, "no request is repeated"
    else:
        assert status == 200 and re.search(r'"finish_reason": ?"', text), text
        assert re.search(r'"model": ?"head"', text), text
    # Without a seed, a sample of temperature 1 is another one each time.
    if refusal or not body.get("temperature") or "seed" in body:
        alone = send()
        with ThreadPoolExecutor(6) as pool:
            assert {*pool.map(send, range(6))} == {alone}
