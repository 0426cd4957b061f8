"""`t3 serve` over HTTP: the same tokens as `generate`, and what it refuses."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, tiny_llama
from transformers.utils.import_utils import is_serve_available

from t3lib import cli
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.models import load_model
from t3lib.core.rows import prompt
from t3lib.own import serve
from t3lib.own.answers import TOKENS
from t3lib.own.report import judged_as
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM

DATED = (
    "{% if not date_string is defined %}{% set date_string = 'now' %}{% endif %}{{ date_string }}"
)
DATED += "{{ strftime_now('%d %b %Y') }}"
ASK = [{"role": "user", "content": "Who?"}]
SYSTEM = {"role": "system", "content": "Be kind."}


@pytest.fixture(scope="session")
def place(tokenizer, tmp_path_factory):
    """A folder with a base, a head of large random weights and its report. The chat template writes
    two dates.
    """
    folder = tmp_path_factory.mktemp("served")
    tiny_llama(tokenizer).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    template = folder / "base" / "chat_template.jinja"
    template.write_text(DATED + template.read_text())
    model, own = load_model(folder / "base")
    head = T3Head(32, len(tokenizer), 4, temperature=2.0, seed=1)
    with torch.no_grad():
        head.B.mul_(200)
    rows = [{"question": "Who?", "answer": "Ada.", "system": SYSTEM["content"]}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T3_CACHE", str(folder / "cache"))
        head.info = belonging.origin(model, own, rows, rows, 3)
    for name in ("head", "unjudged"):
        head.save_pretrained(folder / name)
    (folder / "head-report").mkdir()
    report = {"verdict": {}, "coverage": {"texts": 16}, "judged": judged_as([head], head)}
    (folder / "head-report" / "report.json").write_text(json.dumps(report))
    return folder


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
            time.sleep(0.1)

    def get(self, path, data=None):
        """(status, body) of a request; a body is posted as JSON."""
        data = data if data is None or isinstance(data, bytes) else json.dumps(data).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except urllib.error.URLError:
            return 0, ""

    def chat(self, **body):
        status, text = self.get(serve.CHAT, {"messages": ASK, "max_tokens": 12} | body)
        assert status == 200, text
        return text


@pytest.fixture(scope="session")
def server(place):
    if not is_serve_available():
        pytest.skip("pip install 't3lib[serve]' runs these")
    found = Server(place, "head")
    yield found
    found.process.kill()


@pytest.fixture(scope="session")
def unlearned(place):
    model, tokenizer = load_model(place / "base")
    return T3ForCausalLM(model, str(place / "head")), tokenizer


def generated(unlearned, messages, **how):
    """The text and number of tokens of the prompt, and the answer of `generate`."""
    model, tokenizer = unlearned
    text = prompt(tokenizer, messages, None)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=12, **how)[0, ids.input_ids.shape[1] :]
    return text, ids.input_ids.shape[1], tokenizer.decode(out, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("messages", "whole"),
    [
        (ASK, [SYSTEM, *ASK]),
        ([{"role": "system", "content": "Be brief."}, *ASK], None),
        ([*ASK, {"role": "assistant", "content": "Ada."}, *ASK], 1),
    ],
)
def test_it_answers_with_the_tokens_of_generate(server, unlearned, messages, whole):
    whole = [SYSTEM, *messages] if whole else messages
    text, length, want = generated(unlearned, whole)
    assert text.startswith("10 Apr 202510 Apr 2025") and "Be " in text
    found = json.loads(server.chat(messages=messages))
    assert found["choices"][0]["message"]["content"] == want
    assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (length, 12)
    events = re.findall(r"^data: (\{.*)$", server.chat(messages=messages, stream=True), re.M)
    pieces = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events]
    assert len(events) > 3 and "".join(pieces) == want[: len("".join(pieces))] and any(pieces)


def test_sampling_is_that_of_generate(server, unlearned):
    for how in ({"temperature": 1.0}, {"temperature": 0.6, "top_p": 0.9}):
        torch.manual_seed(3)
        want = generated(unlearned, [SYSTEM, *ASK], do_sample=True, **how)[2]
        found = json.loads(server.chat(**how, seed=3))["choices"][0]["message"]["content"]
        assert found == want != generated(unlearned, [SYSTEM, *ASK])[2]


def test_the_openai_client_is_served(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    assert [model.id for model in client.models.list()] == ["head"]
    answer = client.chat.completions.create(model="head", messages=ASK, max_completion_tokens=3)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 3
    with pytest.raises(openai.BadRequestError, match="a colder sampler undoes tempering"):
        client.chat.completions.create(model="head", messages=ASK, temperature=0.2)


def test_it_says_how_to_ask_and_what_it_refuses(server):
    text = "".join(server.lines)
    for said in (
        f"curl http://127.0.0.1:{server.port}/v1/chat/completions", "client.chat.completions",
        "the system text 'Be kind.' (added where a request has none) and the date 10 Apr 2025",
        "samplers: temperature 0, temperature 0.6 with top_p 0.9, temperature 1;", "refused:",
    ):  # fmt: skip
        assert said in text, text
    command = next(line for line in server.lines if "curl" in line)
    done = subprocess.run(["sh", "-c", f"{command.strip()} -s"], capture_output=True, text=True)
    assert "choices" in done.stdout, done.stderr


REFUSED = {
    "sampler": ({"temperature": 0.3}, "allowed: temperature 0, temperature 0.6 with top_p 0.9"),
    "top_p": ({"temperature": 1, "top_p": 0.5}, "a colder sampler undoes tempering"),
    "logprobs": ({"logprobs": True}, "logprobs is refused (it gives away what was unlearned)"),
    "top_logprobs": ({"top_logprobs": 5}, "top_logprobs is refused (it gives away"),
    "prompt_logprobs": ({"prompt_logprobs": 1}, "prompt_logprobs is refused (it gives away"),
    "logit_bias": ({"logit_bias": {"5": 100}}, "logit_bias is refused (it gives away"),
    "echo": ({"echo": True}, "echo is refused (it gives away what was unlearned); allowed: model"),
    "penalty": ({"frequency_penalty": 1.0}, "frequency_penalty is refused; allowed: model"),
    "config": ({"generation_config": "{}"}, "generation_config is refused"),
    "template": ({"chat_template_kwargs": {"date_string": "now"}}, "chat_template_kwargs is ref"),
    "tools": ({"tools": []}, "tools is refused"),
    "n": ({"n": 2}, "n is 1 to 1 here"),
    "no tokens": ({"max_tokens": 0}, "max_tokens and top_p above 0"),
    "nan": ({"max_tokens": float("nan")}, "max_tokens: nan is not allowed"),
    "text as number": ({"temperature": "0"}, "temperature: 0 is not allowed"),
    "huge seed": ({"seed": 10**30}, "is not allowed"),
    "stop": ({"stop": [1]}, "stop: [1] is not allowed"),
    "no text to stop at": ({"stop": ""}, "stop: an empty text is not allowed"),
    "stream": ({"stream": 1}, "stream: 1 is not allowed"),
    "model": ({"model": "gpt"}, "this server has one model, head"),
    "no messages": ({"messages": []}, "messages must be a list of turns"),
    "turn": ({"messages": [{"role": "user"}]}, "a turn has a role and a content, both text"),
    "role": ({"messages": [{"role": "tool", "content": "x"}]}, "the role tool is refused"),
    "faked turn": ({"messages": [{"role": "user", "content": "a<|eot_id|>"}]}, "the special token"),
    "too long": ({"messages": [{"role": "user", "content": "x" * 600}]}, "tokens, the context 512"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_undo_unlearning_is_a_400_of_one_line(server, case):
    body, said = REFUSED[case]
    status, text = server.get(serve.CHAT, {"messages": ASK} | body)
    message = json.loads(text)["error"]["message"]
    assert (status, message.count("\n")) == (400, 0) and said in message, text


@pytest.mark.parametrize(
    ("path", "data", "status"),
    [
        (serve.COMPLETIONS, {"prompt": "x"}, 400),
        (serve.CHAT, b"{", 400),
        (serve.CHAT, b"[]", 400),
        (serve.CHAT, b"\xff", 400),
        (serve.CHAT, b"[" * 100_000, 400),
        (serve.CHAT, b" " * (2**20 + 1) + b"{}", 400),
        (serve.CHAT, None, 404),
        ("/v1/responses", {"input": "x"}, 404),
        ("/load_model", {"model": "other"}, 404),
        ("/reset", {}, 404),
        ("/v1/systemone", {}, 404),
        ("/docs", None, 404),
    ],
)
def test_other_paths_and_broken_requests_are_refused(server, path, data, status):
    found, text = server.get(path, data)
    assert found == status and "\n" not in json.loads(text)["error"]["message"]
    assert server.get("/health")[0] == 200 and server.process.poll() is None


@pytest.mark.parametrize(
    ("chat", "completions", "answered"),
    [
        (True, False, serve.CHAT),
        (True, True, f"{serve.CHAT}, {serve.COMPLETIONS}"),
        (False, True, serve.COMPLETIONS),
    ],
)
def test_a_404_names_what_is_answered(chat, completions, answered):
    sent, rules = [], {"tokenizer": None, "chat": chat, "completions": completions}

    async def receive():
        return {"type": "http.request", "body": b"{}"}

    async def send(message):
        sent.append(message)

    asyncio.run(serve.Gate(None, rules)({"type": "http", "path": "/docs"}, receive, send))
    assert sent[0]["status"] == 404
    assert f"this server answers {answered} and /v1/models only" in sent[1]["body"].decode()


def test_a_websocket_is_closed():
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(serve.Gate(None, {"tokenizer": None})({"type": "websocket"}, None, send))
    assert sent == [{"type": "websocket.close"}]


def test_a_head_without_a_report_answers_greedily_and_the_operator_can_lift_it(place, unlearned):
    head, tokenizer = unlearned[0].heads[0], unlearned[1]
    before = head.info["chat_template"]

    def checked(name, request, path=serve.CHAT, most=8, **options):
        _, config, own = serve.described(str(place / "base"))
        rules = serve.rules_of([str(place / name)], [head], own, config, most=most, **options)
        return serve.Gate(None, rules).checked(json.dumps(request).encode(), path)

    ask = {"messages": ASK}
    assert checked("unjudged", ask | {"n": 8})["temperature"] == 0
    with pytest.raises(UserError, match="allowed: temperature 0$"):
        checked("unjudged", ask | {"temperature": 1})
    with pytest.raises(UserError, match="n is 1 to 8 here"):
        checked("unjudged", ask | {"n": 9})
    lifted = checked("unjudged", ask | {"temperature": 0.1, "top_p": 0.5}, any_sampler=True)
    assert (lifted["temperature"], lifted["top_p"]) == (0.1, 0.5)
    with pytest.raises(UserError, match="logprobs is refused"):
        checked("head", ask | {"logprobs": True}, any_sampler=True)
    text = {"prompt": "Who"}
    assert checked("head", text, serve.COMPLETIONS, completions=True)["prompt"] == "Who"
    with pytest.raises(UserError, match="is off"):
        checked("head", text, serve.COMPLETIONS)
    faked = {"prompt": f"{tokenizer.eos_token}Who"}
    with pytest.raises(UserError, match="holds the special token"):
        checked("head", faked, serve.COMPLETIONS, completions=True)
    room = 512 - len(tokenizer("Who").input_ids)
    long = text | {"max_tokens": 10**6}
    how = {"completions": True}
    assert checked("head", long, serve.COMPLETIONS, **how)["max_tokens"] == TOKENS, "as judged"
    assert checked("head", long, serve.COMPLETIONS, **how, any_sampler=True)["max_tokens"] == room
    head.info["chat_template"] = belonging.PLAIN
    try:
        with pytest.raises(UserError, match="add --completions"):
            checked("head", ask)
        with pytest.raises(UserError, match="trained without a chat template"):
            checked("head", ask, completions=True)
        _, config, own = serve.described(str(place / "base"))
        names = [str(place / "head")]
        rules = serve.rules_of(names, [head], own, config, most=1, completions=True)
        lines = serve.greeting(rules, "http://x/v1").splitlines()
        assert "chat" not in lines[1] and '"prompt": "Your text"' in lines[1]
        assert ' client.completions.create(model="head", prompt="Your text")' in lines[3]
    finally:
        head.info["chat_template"] = before


def test_the_report_of_another_head_lifts_nothing(place, unlearned):
    """A head that is saved over another one finds the other's report beside its folder."""
    head, (_, config, own) = unlearned[0].heads[0], serve.described(str(place / "base"))

    def allowed():
        return serve.rules_of([str(place / "head")], [head], own, config, most=1)["samplers"]

    assert allowed() == serve.JUDGED
    for name, value in (("temperature", 3.0), ("w", 2.0), ("gate", 0.5), ("untrained", "neutral")):
        kept = getattr(head, name)
        setattr(head, name, value)
        assert allowed() == (serve.GREEDY_SAMPLER,), name
        setattr(head, name, kept)
    with torch.no_grad():
        head.A[0, 0] += 1
        assert allowed() == (serve.GREEDY_SAMPLER,)
        head.A[0, 0] -= 1


def test_the_prompt_has_the_heads_template_arguments(place, unlearned):
    head, (_, config, own) = unlearned[0].heads[0], serve.described(str(place / "base"))
    own.chat_template = "{% if mood is defined %}{{ mood }}{% endif %}" + own.chat_template
    head.info["template"] = {"mood": "Gently: "}
    try:
        rules = serve.rules_of([str(place / "head")], [head], own, config, most=1)
    finally:
        del head.info["template"]
    assert prompt(rules["tokenizer"], ASK, None).startswith("Gently: ")
    assert prompt(own, ASK, None).startswith("Gently: ") is False


def test_what_cannot_start_is_one_line(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(serve, "is_serve_available", lambda: True)
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    monkeypatch.setattr(serve, "run_transformers", lambda *_: pytest.fail("it serves"))
    tiny_llama_of_another_seed(place, tmp_path / "other")
    capsys.readouterr()
    base, head = ["--model", str(place / "base")], ["--head", str(place / "head")]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = ["--port", str(taken.getsockname()[1])]
        for words, said in (
            ([*base, "--head", str(place / "nowhere")], "nowhere"),
            ([*base, *head, *port], "Address already in use"),
            ([*base, *head, "--port", "70000"], "--port 70000"),
            ([*base, *head, "--host", "no such host"], "--host no such host"),
            (["--model", str(tmp_path / "other"), *head, "--port", "0"], "trained on"),
        ):
            assert cli.main(["serve", *words]) == 2
            found = capsys.readouterr()
            assert said in found.err and found.err.count("\n") == 1 and not found.out
    monkeypatch.setattr(serve, "is_serve_available", lambda: False)
    assert cli.main(["serve", *base, *head]) == 2
    assert "no server is installed: pip install" in capsys.readouterr().err


def tiny_llama_of_another_seed(place, folder):
    model, tokenizer = load_model(place / "base")
    with torch.no_grad():
        model.lm_head.weight += 1
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_vllm_is_started_with_the_head_where_it_is_installed(place, capsys, monkeypatch):
    """What is started; tests/serving starts it."""
    calls = []

    def start(command, env):
        template = open(command[command.index("--chat-template") + 1], encoding="utf-8").read()
        calls.append(
            (dict(zip(command[3::2], command[4::2])), json.loads(env["T3_SERVE"]), template)
        )
        return SimpleNamespace(wait=lambda: ends[len(calls) - 1]())

    monkeypatch.setattr(serve, "find_spec", lambda name: name == "vllm")
    monkeypatch.setattr(serve.subprocess, "Popen", start)
    interrupted = iter([KeyboardInterrupt, 0])

    def interrupt():
        if (code := next(interrupted)) is KeyboardInterrupt:
            raise KeyboardInterrupt
        return code

    ends = [lambda: 0, lambda: 1, interrupt]
    words = ["--model", str(place / "base"), "--head", str(place / "head"), "--port", "0"]
    assert cli.main(["serve", *words]) == 0
    port = re.search(r":(\d+)/v1;", capsys.readouterr().out)[1]
    [(options, rules, template)] = calls
    assert json.loads(options["--hf-overrides"]) == {
        "architectures": ["T3LlamaForCausalLM"], "t3_head": [str(place / "head")],
        "t3_allow_samplers": False,
    }  # fmt: skip
    assert (options["--host"], options["--port"]) == ("127.0.0.1", port) and port != "0"
    assert (options["--max-logprobs"], options["--generation-config"]) == ("0", "vllm")
    assert options["--middleware"] == "t3lib.own.serve.Gate" and serve.DATE in template
    monkeypatch.setenv("T3_SERVE", json.dumps(rules))
    body = serve.Gate(None).checked(json.dumps({"messages": ASK, "n": 8}).encode(), serve.CHAT)
    assert body["messages"] == [SYSTEM, *ASK]
    assert cli.main(["serve", *words, "--allow-samplers"]) == 2
    assert "vLLM ended with exit code 1" in capsys.readouterr().err
    assert json.loads(calls[1][0]["--hf-overrides"])["t3_allow_samplers"]
    assert cli.main(["serve", *words]) == 130 and not [*interrupted], "vLLM's end is waited for"


def test_ctrl_c_ends_eight_streams_and_is_one_line(server, place):
    other = Server(place, "unjudged")

    def stream(number):
        seen = b""
        with socket.create_connection(("127.0.0.1", other.port)) as client:
            body = json.dumps({"messages": ASK, "stream": True}).encode()
            head = f"POST {serve.CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            while part := client.recv(65536):
                seen += part
                started[number] = True
        return seen

    started = [False] * 8
    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(stream, number) for number in range(8)]
        while not all(started):
            time.sleep(0.02)
        other.process.send_signal(signal.SIGINT)
        texts = [each.result() for each in streams]
    out, err = other.process.communicate()
    assert other.process.returncode == 130 and out == ""
    assert err.splitlines()[-1] == "t3 serve: stopped" and "Traceback" not in err
    assert all(b"data: " in text for text in texts)
    assert any(b"finish_reason" not in text for text in texts), "they end before they are done"


def test_heads_that_vllm_cannot_pool_are_served_by_transformers(
    place, tmp_path, capsys, monkeypatch
):
    wide = T3Head(32, 261, 99, temperature=2.0)
    wide.info = T3Head.from_pretrained(place / "head").info
    wide.save_pretrained(tmp_path / "wide")
    served = []
    monkeypatch.setattr(serve, "find_spec", lambda name: name == "vllm")
    monkeypatch.setattr(serve, "run_vllm", lambda *_, **__: pytest.fail("vLLM starts"))
    monkeypatch.setattr(serve, "run_transformers", lambda *given: served.append(given))
    words = ["serve", "--model", str(place / "base"), "--head", str(tmp_path / "wide")]
    for available, code, end in ((True, 0, "Transformers' server answers"), (False, 2, "[serve]'")):
        monkeypatch.setattr(serve, "is_serve_available", lambda yes=available: yes)
        capsys.readouterr()
        assert cli.main([*words, "--port", "0"]) == code
        found = capsys.readouterr().err
        assert "at most on this base, not 99" in found and end in found
    assert len(served) == 1 and served[0][0].heads[0].rank == 99
