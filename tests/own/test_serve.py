"""`t3 serve`: the same tokens as `generate`, over HTTP, and what it refuses (`serve_cases`)."""

import asyncio
import copy
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_llama
from serve_cases import ASK, CASES, Server, check_case, events
from transformers import Qwen2Config, Qwen2ForCausalLM

from t3lib import cli
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.hub import Place
from t3lib.core.models import load_model
from t3lib.core.rows import encode_text, prompt
from t3lib.own import gate, serve
from t3lib.own.answers import TOKENS
from t3lib.own.report import judged_as
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM

DATED = (
    "{% if not date_string is defined %}{% set date_string = 'now' %}{% endif %}{{ date_string }}"
)
DATED += "{{ strftime_now('%d %b %Y') }}"
SYSTEM = {"role": "system", "content": "Be kind."}
PASS = "0 of 1 rows leak."


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
    verdict = {"success": True, "sentence": PASS}
    report = {"verdict": verdict, "coverage": {"texts": 16}, "judged": judged_as([head], head)}
    report["precision"] = "float32"
    (folder / "head-report" / "report.json").write_text(json.dumps(report))
    return folder


@pytest.fixture(scope="session")
def server(place):
    pytest.importorskip("uvicorn", reason="pip install uvicorn runs these")
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
    found = events(server.chat(messages=messages, stream=True))
    pieces = [event["choices"][0]["delta"]["content"] for event in found]
    assert len(found) > 3 and "".join(pieces) == want
    roles = ["role" in event["choices"][0]["delta"] for event in found]
    assert roles == [True] + [False] * (len(found) - 1), "clients add up the parts of a field"


def test_sampling_is_that_of_generate(server, unlearned):
    for how in ({"temperature": 1.0}, {"temperature": 0.6, "top_p": 0.9}):
        torch.manual_seed(3)
        want = generated(unlearned, [SYSTEM, *ASK], do_sample=True, **how)[2]
        found = json.loads(server.chat(**how, seed=3))["choices"][0]["message"]["content"]
        assert found == want != generated(unlearned, [SYSTEM, *ASK])[2]


def served(unlearned, body, path=gate.CHAT, stays=True):
    """(status, body) of a request to a `LocalServer` in this process; without `stays` the client
    leaves at once.
    """
    model, tokenizer = unlearned
    app = serve.LocalServer(model, {"name": "head", "tokenizer": tokenizer})
    body = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 12} | body
    waiting, sent = [{"type": "http.request", "body": json.dumps(body).encode()}], []

    async def receive():
        if not waiting and stays:
            await asyncio.Event().wait()
        return waiting.pop() if waiting else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    asyncio.run(app({"type": "http", "path": path}, receive, send))
    app.worker.shutdown()
    return sent[0]["status"], b"".join(each["body"] for each in sent[1:]).decode()


@pytest.mark.parametrize("path", [gate.CHAT, gate.COMPLETIONS])
def test_a_stop_string_is_cut_off_and_no_part_of_it_is_sent(unlearned, path):
    asked = {"messages": ASK} if path == gate.CHAT else {"prompt": "Who?"}
    field = "message" if path == gate.CHAT else None

    def text(**more):
        [found] = json.loads(served(unlearned, asked | more, path)[1])["choices"]
        return found[field]["content"] if field else found["text"], found["finish_reason"]

    entire, reason = text()
    assert reason == "length" and len(entire) > 8
    stop = entire[3:6]
    want = entire[: entire.index(stop)]
    assert text(stop=["zqzq", stop]) == text(stop=stop) == (want, "stop")
    found = events(served(unlearned, asked | {"stop": stop, "stream": True}, path)[1])
    parts = [event["choices"][0] for event in found]
    of_part = [part["delta"]["content"] if field else part["text"] for part in parts]
    assert "".join(of_part) == want and parts[-1]["finish_reason"] == "stop"
    waiting = events(served(unlearned, asked | {"stop": "q" * 99, "stream": True}, path)[1])
    assert len(waiting) == 2, "all of it could have begun the stop string"


def test_several_answers_and_the_numbers_of_tokens(unlearned):
    body = {"messages": ASK, "temperature": 1.0, "n": 3, "seed": 4}
    entire = json.loads(served(unlearned, body)[1])
    texts = [choice["message"]["content"] for choice in entire["choices"]]
    assert [choice["index"] for choice in entire["choices"]] == [0, 1, 2] and len({*texts}) == 3
    assert entire["usage"]["completion_tokens"] == 36
    alone = json.loads(served(unlearned, body | {"n": 1})[1])["choices"][0]["message"]["content"]
    assert alone == texts[0]
    streamed = served(unlearned, body | {"stream": True, "stream_options": {"include_usage": True}})
    *parts, last = events(streamed[1])
    assert last["usage"] == entire["usage"] and last["choices"] == []
    assert streamed[1].endswith("data: [DONE]\n\n")
    for number, text in enumerate(texts):
        of_it = [p["choices"][0] for p in parts if p["choices"][0]["index"] == number]
        assert "".join(part["delta"]["content"] for part in of_it) == text


def test_nothing_is_written_for_a_client_that_has_left(unlearned, monkeypatch):
    lengths, left = [], threading.Event()
    generate, leaving = type(unlearned[0]).generate, serve.set_when_left

    async def noticed(receive, gone):
        await leaving(receive, gone)
        left.set()

    def counted(model, ids, **how):
        assert left.wait(60)
        out = generate(model, ids, **how)
        lengths.append(out.shape[1] - ids.shape[1])
        return out

    monkeypatch.setattr(serve, "set_when_left", noticed)
    monkeypatch.setattr(type(unlearned[0]), "generate", counted)
    served(unlearned, {"messages": ASK, "max_tokens": 300}, stays=False)
    assert left.is_set() and sum(lengths) <= 1, "the model looks for its client after a token"


def test_of_several_answers_none_is_begun_after_its_client_has_left(unlearned, monkeypatch):
    """Each answer reads the whole prompt, which took ten seconds of everybody's time."""
    model, tokenizer = unlearned
    gone, begun, generate = threading.Event(), [], type(model).generate

    def left(*args, **how):
        begun.append(gone.set())
        return generate(*args, **how)

    monkeypatch.setattr(type(model), "generate", left)
    app = serve.LocalServer(model, {"name": "head", "tokenizer": tokenizer})
    body = {"messages": ASK, "temperature": 1.0, "top_p": 1.0, "max_tokens": 9, "n": 8}
    app.answers(body, True, lambda part: None, gone)
    assert len(begun) == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_a_failing_answer_is_one_line_for_the_client(unlearned, monkeypatch, capsys, streamed):
    def fail(*_, **__):
        raise RuntimeError("out of memory at /secret/place\nand more")

    monkeypatch.setattr(type(unlearned[0]), "generate", fail)
    status, text = served(unlearned, {"messages": ASK, "stream": streamed})
    assert status == (200 if streamed else 500)
    assert "could not write this answer" in text and "secret" not in text
    assert "out of memory at /secret/place" in capsys.readouterr().err


def test_a_base_whose_template_is_not_chatml_answers_with_the_text_of_generate(
    tokenizer, monkeypatch
):
    """Transformers' server parsed the answers of a Qwen2, as DeepSeek-R1-Distill-Qwen is, as ChatML
    by the type of the model, and sent the whole prompt as the answer.
    """
    monkeypatch.setattr(tokenizer, "response_template", None, raising=False)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    torch.manual_seed(0)
    base = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **sizes, **heads)).eval()
    other = T3ForCausalLM(base, [T3Head(32, len(tokenizer), 4)]), tokenizer
    want = generated(other, ASK)[2]
    [found] = json.loads(served(other, {"messages": ASK})[1])["choices"]
    assert found["message"] == {"role": "assistant", "content": want}
    parts = events(served(other, {"messages": ASK, "stream": True})[1])
    assert "".join(each["choices"][0]["delta"]["content"] for each in parts) == want


def test_the_openai_client_is_served(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    assert [model.id for model in client.models.list()] == ["head"]
    answer = client.chat.completions.create(model="head", messages=ASK, max_completion_tokens=3)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 3
    assert client.models.retrieve(answer.model).verdict == PASS
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]}
    how = {"model": answer.model, "max_tokens": 3, "stop": [], "stream": True} | parts
    *chunks, last = client.chat.completions.create(**how, stream_options={"include_usage": True})
    text = "".join(chunk.choices[0].delta.content for chunk in chunks)
    assert text == answer.choices[0].message.content and last.usage == answer.usage
    with pytest.raises(openai.BadRequestError, match="temperature 0.2 is refused"):
        client.chat.completions.create(model="head", messages=ASK, temperature=0.2)
    with pytest.raises(openai.NotFoundError, match="this server has one model, head"):
        client.chat.completions.create(model="other", messages=ASK)


def test_lm_eval_is_served(server, monkeypatch):
    """58 files of its tasks have `until: []`."""
    clients = pytest.importorskip("lm_eval.models.openai_completions")
    from lm_eval.api.instance import Instance
    from lm_eval.models.api_models import JsonChatStr

    monkeypatch.setenv("OPENAI_API_KEY", "none")
    url = f"http://127.0.0.1:{server.port}{gate.CHAT}"
    client = clients.LocalChatCompletion(base_url=url, model="head", max_retries=1)
    how = [{"until": until, "max_gen_toks": 12, "do_sample": False} for until in ([], ["zq"], None)]
    turn = JsonChatStr(json.dumps([{**ASK[0], "type": "text"}]))
    found = client.generate_until([Instance("generate_until", {}, (turn, each), 0) for each in how])
    want = json.loads(server.chat())["choices"][0]["message"]["content"]
    assert found == [want] * 3


def test_it_says_how_to_ask_and_what_it_refuses(server):
    text = "".join(server.lines)
    for said in (
        f"curl http://127.0.0.1:{server.port}/v1/chat/completions", "client.chat.completions",
        "the system text 'Be kind.' (added where a request has none) and with the date 10 Apr",
        "samplers: temperature 0, temperature 0.6 with top_p 0.9, temperature 1 (default: "
        "temperature 0);", "refused:",
    ):  # fmt: skip
        assert said in text, text
    command = next(line for line in server.lines if "curl" in line)
    done = subprocess.run(["sh", "-c", f"{command.strip()} -s"], capture_output=True, text=True)
    assert "choices" in done.stdout, done.stderr


@pytest.mark.parametrize(("name", "body", "refusal"), CASES, ids=[case[0] for case in CASES])
def test_every_field_long_empty_and_wrong_alone_and_six_at_once(server, name, body, refusal):
    check_case(server, body, refusal)


def test_seeds_of_others_change_no_sample(server):
    """A request with a seed once set the random numbers of everybody."""

    def sample(seed):
        return server.chat(temperature=1.0, **({"seed": seed} if seed else {}))

    with ThreadPoolExecutor(6) as pool:
        texts = [json.loads(text)["choices"] for text in pool.map(sample, [3, 0] * 4)]
    assert all(text == texts[0] for text in texts[::2])
    assert len({str(text) for text in texts}) == 5


@pytest.mark.parametrize(
    ("path", "data", "status"),
    [
        (gate.COMPLETIONS, {"prompt": "x"}, 400),
        (gate.CHAT, b"{", 400),
        (gate.CHAT, b"[]", 400),
        (gate.CHAT, b"\xff", 400),
        (gate.CHAT, b"[" * 100_000, 400),
        pytest.param(gate.CHAT, b" " * (2**20 + 1) + b"{}", 400, id="too long"),
        pytest.param(
            *(gate.CHAT, json.dumps({"messages": ASK}).encode().ljust(2**20) + b"more", 400),
            id="more than a whole request",
        ),
        (gate.CHAT, None, 404),
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


def test_a_long_prompt_that_is_being_checked_keeps_nobody_else_waiting(monkeypatch):
    """Its tokens take seconds where the context is long."""
    checking, on = threading.Event(), threading.Event()

    def slowly(self, data, path):
        checking.set()
        assert on.wait(20), "nobody else was answered"
        raise UserError("the prompt has too many tokens")

    async def health(scope, receive, send):
        await gate.answer(send, 200, status="ok")

    async def ask(app, method, path):
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"{}"}

        async def send(message):
            sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": method, "path": path, "headers": headers}
        await app(scope, receive, send)
        return sent[0]["status"]

    async def both():
        rules = {"name": "head", "tokenizer": object(), "chat": True, "completions": False}
        app = gate.Gate(health, rules)
        long = asyncio.create_task(ask(app, "POST", gate.CHAT))
        await asyncio.to_thread(checking.wait, 60)
        found = await asyncio.wait_for(ask(app, "GET", "/health"), 30)
        on.set()
        return found, await long

    monkeypatch.setattr(gate.Gate, "checked", slowly)
    assert asyncio.run(both()) == (200, 400)


def test_a_request_without_a_type_or_of_a_page_is_refused(server):
    """A page in a browser may send text/plain to any server, and JSON to those that agree or that
    have its own name; it says where it is from.
    """
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": ""}):
        status, text = server.get(gate.CHAT, {"messages": ASK}, headers)
        assert status == 400
        said = "a request has the header Content-Type: application/json"
        assert json.loads(text)["error"]["message"] == said
    origin = {"Content-Type": "application/json", "Origin": "http://127.0.0.1"}
    status, text = server.get(gate.CHAT, {"messages": ASK}, origin)
    assert status == 400 and "a web page's request" in text
    charset = {"Content-Type": "application/json; charset=utf-8"}
    assert server.get(gate.CHAT, {"messages": ASK, "max_tokens": 1}, charset)[0] == 200


def test_the_model_is_named_as_answers_name_it(server):
    """Transformers' server named it head@main, and refused that name."""
    [model] = json.loads(server.get(gate.MODELS)[1])["data"]
    name = json.loads(server.chat(max_tokens=1))["model"]
    assert model["id"] == name == "head" and model["verdict"] == PASS
    assert json.loads(server.get(f"{gate.MODELS}/{name}")[1]) == model
    assert server.get(f"{gate.MODELS}/head@main")[0] == 404
    assert f"verdict: {PASS}\n" in server.lines


@pytest.mark.parametrize(
    ("chat", "completions", "answered"),
    [
        (True, False, gate.CHAT),
        (True, True, f"{gate.CHAT}, {gate.COMPLETIONS}"),
        (False, True, gate.COMPLETIONS),
    ],
)
def test_a_404_names_what_is_answered(chat, completions, answered):
    sent, rules = [], {"tokenizer": None, "name": "head", "chat": chat, "completions": completions}

    async def receive():
        return {"type": "http.request", "body": b"{}"}

    async def send(message):
        sent.append(message)

    asyncio.run(gate.Gate(None, rules)({"type": "http", "path": "/docs"}, receive, send))
    assert sent[0]["status"] == 404
    assert f"this server answers {answered} and /v1/models only" in sent[1]["body"].decode()


def test_a_websocket_is_closed():
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(gate.Gate(None, {"tokenizer": None})({"type": "websocket"}, None, send))
    assert sent == [{"type": "websocket.close"}]


def rules_of(place, head, name="head", completions=False, **verdict):
    """The rules of the gate before one head of `place`."""
    _, config, tokenizer = gate.described(str(place / "base"))
    judged = gate.verdict_rules([str(place / name)], [head], **verdict)
    return judged | gate.prompt_rules(name, [head], tokenizer, config, completions=completions)


def test_a_head_without_a_report_answers_greedily_and_the_operator_can_lift_it(place, unlearned):
    head, tokenizer = unlearned[0].heads[0], unlearned[1]
    before = head.info["chat_template"]

    def checked(name, request, path=gate.CHAT, **options):
        rules = rules_of(place, head, name, unjudged=name == "unjudged", **options)
        return gate.Gate(None, rules).checked(json.dumps(request).encode(), path)

    ask = {"messages": ASK}
    assert checked("unjudged", ask)["temperature"] == 0
    with pytest.raises(UserError, match="^temperature 1 is refused; allowed: temperature 0$"):
        checked("unjudged", ask | {"temperature": 1})
    with pytest.raises(UserError, match="n is 1 at temperature 0"):
        checked("unjudged", ask | {"n": 2})
    lifted = checked("unjudged", ask | {"temperature": 0.1, "top_p": 0.5}, any_sampler=True)
    assert (lifted["temperature"], lifted["top_p"]) == (0.1, 0.5)
    with pytest.raises(UserError, match="logprobs is refused"):
        checked("head", ask | {"logprobs": True}, any_sampler=True)
    text = {"prompt": "Who"}
    # As heads are trained and judged: this tokenizer puts no token first by itself.
    passed = checked("head", text, gate.COMPLETIONS, completions=True)["prompt"]
    trained = encode_text(tokenizer, "Who", " is it?")
    assert tokenizer(passed).input_ids == trained.prompt
    with pytest.raises(UserError, match="is off"):
        checked("head", text, gate.COMPLETIONS)
    faked = {"prompt": f"{tokenizer.eos_token}Who"}
    with pytest.raises(UserError, match="holds the special token"):
        checked("head", faked, gate.COMPLETIONS, completions=True)
    for wrong in ("", None, 3, ["Who"], [5, 6], "x" * 100_001, "a\x00"):
        with pytest.raises(UserError, match="^prompt (is|must|has|holds)"):
            checked("head", {"prompt": wrong}, gate.COMPLETIONS, completions=True)
    room = 512 - trained.n_prompt
    long = text | {"max_tokens": 10**6}
    how = {"completions": True}
    assert checked("head", long, gate.COMPLETIONS, **how)["max_tokens"] == TOKENS, "as judged"
    assert checked("head", long, gate.COMPLETIONS, **how, any_sampler=True)["max_tokens"] == room
    assert checked("head", text, gate.COMPLETIONS, **how, any_sampler=True)["max_tokens"] == TOKENS
    head.info["chat_template"] = belonging.PLAIN
    try:
        with pytest.raises(UserError, match="add --completions"):
            checked("head", ask)
        with pytest.raises(UserError, match="trained without a chat template"):
            checked("head", ask, completions=True)
        lines = serve.greeting(rules_of(place, head, **how), "http://x/v1", "smollm2").splitlines()
        assert "chat" not in lines[1] and '"prompt": "Your text"' in lines[1]
        assert ' client.completions.create(model="head", prompt="Your text")' in lines[3]
        assert lines[4] == "trained without a system text and with the date 10 Apr 2025"
    finally:
        head.info["chat_template"] = before


def test_the_report_of_another_head_lifts_nothing(place, unlearned):
    """A head that is saved over another one finds the other's report beside its folder."""
    head = unlearned[0].heads[0]

    def allowed():
        return rules_of(place, head, unjudged=True)["samplers"]

    assert allowed() == gate.JUDGED
    changes = {"temperature": 3.0, "w": 2.0, "gate": 0.5, "untrained": "neutral"}
    for name, value in (changes | {"prior": "population"}).items():
        kept = getattr(head, name)
        setattr(head, name, value)
        assert allowed() == (gate.GREEDY_SAMPLER,), name
        setattr(head, name, kept)
    kept = head.A.detach().clone()
    with torch.no_grad():
        head.A[0, 0] += 1
        assert allowed() == (gate.GREEDY_SAMPLER,)
        head.A.copy_(kept)


def test_a_report_on_another_precision_lifts_nothing(place, unlearned):
    """A base in 4 bits was served with the pass, and the samplers, of one in float32."""
    names, heads = [str(place / "head")], [unlearned[0].heads[0]]
    for precision in ("", "float32"):
        assert gate.verdict_rules(names, heads, precision)["verdict"] == PASS
    for precision in ("4bit", "bfloat16"):
        with pytest.raises(UserError, match=f"this head in {precision} .its report: float32"):
            gate.verdict_rules(names, heads, precision)
        rules = gate.verdict_rules(names, heads, precision, unjudged=True)
        assert rules["samplers"] == (gate.GREEDY_SAMPLER,)
    path = place / "head-report" / "report.json"
    report = json.loads(path.read_text())
    path.write_text(json.dumps({n: each for n, each in report.items() if n != "precision"}))
    try:
        with pytest.raises(UserError, match="its report: none named"):
            gate.verdict_rules(names, heads, "float32")
    finally:
        path.write_text(json.dumps(report))


def test_a_report_on_another_chat_template_lifts_nothing(place, unlearned):
    """A base whose template had been edited was served with the pass and a warning."""
    names, heads = [str(place / "head")], [unlearned[0].heads[0]]
    template = heads[0].info["chat_template"]
    path = place / "head-report" / "report.json"
    report = json.loads(path.read_text())
    path.write_text(json.dumps(report | {"form": {"chat_template": template, "system": None}}))
    try:
        assert gate.verdict_rules(names, heads, "float32", template)["verdict"] == PASS
        with pytest.raises(UserError, match="no report is about this head with this chat template"):
            gate.verdict_rules(names, heads, "float32", "another")
        path.write_text(json.dumps(report | {"form": {"chat_template": belonging.PLAIN}}))
        assert gate.verdict_rules(names, heads, "float32", "another")["verdict"] == PASS
    finally:
        path.write_text(json.dumps(report))


THINKING = """{% for turn in messages %}{{ turn.role }}:{% if turn.role == "assistant" %} --{% endif
%} {{ turn.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{{ before }} {% endif %}"""


def test_answers_that_were_judged_after_more_than_a_prompt_are_not_served(place, unlearned):
    """As of Qwen3, whose template puts an empty block of thoughts before an answer, but into a
    prompt only where it is told not to think.
    """
    _, config, tokenizer = gate.described(str(place / "base"))
    tokenizer.chat_template, head = THINKING, copy.copy(unlearned[0].heads[0])
    head.info = head.info | {"chat_template": None, "prompt": None, "template": {}}
    with pytest.warns(UserWarning), pytest.raises(UserError, match="something before an answer"):
        gate.prompt_rules("head", [head], tokenizer, config)
    head.info["template"] = {"before": " --"}
    with pytest.warns(UserWarning):
        assert gate.prompt_rules("head", [head], tokenizer, config)["chat"]


def test_an_empty_system_text_of_a_head_is_one(place, unlearned):
    """Such a head, as t3 unlearn --system "" makes it, got status 400 for every request."""
    head = unlearned[0].heads[0]
    rules = rules_of(place, head) | {"system": ""}
    body = gate.Gate(None, rules).checked(json.dumps({"messages": ASK}).encode(), gate.CHAT)
    assert body["messages"] == [{"role": "system", "content": ""}, *ASK]


def test_only_a_pass_is_served_unless_the_operator_says_otherwise(place, unlearned):
    """What the server says of itself is the sentence of the report."""
    head, folder = unlearned[0].heads[0], str(place / "head")
    path = place / "head-report" / "report.json"
    report = json.loads(path.read_text())
    assert rules_of(place, head)["verdict"] == PASS
    rules = rules_of(place, head, any_sampler=True)
    said = f"Other samplers and longer answers are allowed than a report judged. {PASS}"
    lines = serve.greeting(rules, "http://x/v1", "smollm2").splitlines()
    assert rules["verdict"] == said and f"verdict: {said}" in lines
    assert "refused: probabilities, biases, tools, /v1/completions" in lines
    failed = {"success": False, "sentence": "No: 1 of 1 rows leak."}
    path.write_text(json.dumps(report | {"verdict": failed}))
    try:
        with pytest.raises(UserError, match="No: 1 of 1 rows leak. .* add --unjudged$"):
            rules_of(place, head)
        rules = rules_of(place, head, unjudged=True)
    finally:
        path.write_text(json.dumps(report))
    assert rules["verdict"] == failed["sentence"] and rules["samplers"] == gate.JUDGED
    lines = serve.greeting(rules, "http://x/v1", "smollm2").splitlines()
    assert "verdict: No: 1 of 1 rows leak." in lines
    for names, said in (([str(place / "unjudged")], "this head as"), ([folder] * 2, "together")):
        with pytest.raises(UserError, match=f"Not judged: no report is about .*{said}"):
            gate.verdict_rules(names, [head] * len(names))
        rules = gate.verdict_rules(names, [head] * len(names), unjudged=True)
        assert rules["samplers"] == (gate.GREEDY_SAMPLER,)


def test_the_prompt_has_the_heads_template_arguments(place, unlearned):
    head, (_, config, own) = unlearned[0].heads[0], gate.described(str(place / "base"))
    own.chat_template = "{% if mood is defined %}{{ mood }}{% endif %}" + own.chat_template
    head.info["template"] = {"mood": "Gently: "}
    try:
        rules = gate.prompt_rules("head", [head], own, config)
    finally:
        del head.info["template"]
    assert prompt(rules["tokenizer"], ASK, None).startswith("Gently: ")
    assert prompt(own, ASK, None).startswith("Gently: ") is False


def test_what_cannot_start_is_one_line(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(serve, "find_spec", lambda name: name == "uvicorn")
    monkeypatch.setattr(serve, "run_local", lambda *_: pytest.fail("it serves"))
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
    assert cli.main(["serve", *base, "--head", str(place / "unjudged"), "--port", "0"]) == 2
    assert "this head as it is. To serve it all the same, add --un" in capsys.readouterr().err
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    # A quantised model was loaded first, and then there was a traceback.
    for more in ([], ["--load-in", "4bit"]):
        assert cli.main(["serve", *base, *head, *more]) == 2
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
        assert command.pop(5) == "--middleware"
        asked = command.pop(5)
        options = dict(zip(command[3::2], command[4::2]))
        calls.append((options, asked, json.loads(env["T3_SERVE"]), template))
        return SimpleNamespace(wait=lambda: ends[len(calls) - 1](), terminate=lambda: None)

    monkeypatch.setattr(serve, "find_spec", lambda name: name == "vllm")
    monkeypatch.setattr(serve.subprocess, "Popen", start)
    interrupted = iter([KeyboardInterrupt, 0])

    def interrupt():
        if (code := next(interrupted)) is KeyboardInterrupt:
            raise KeyboardInterrupt
        return code

    ends = [lambda: 0, lambda: 1, interrupt]
    words = ["--model", str(place / "base"), "--head", str(place / "head"), "--port", "0"]
    assert cli.main(["serve", *words]) == 2, "it ended by itself"
    port = re.search(r":(\d+)/v1;", capsys.readouterr().out)[1]
    [(options, asked, rules, template)] = calls
    assert json.loads(options["--hf-overrides"]) == {
        "architectures": ["T3LlamaForCausalLM"], "t3_head": [str(place / "head")],
        "t3_allow_samplers": False,
    }  # fmt: skip
    assert (options["--host"], options["--port"]) == ("127.0.0.1", port) and port != "0"
    assert (options["--max-logprobs"], options["--generation-config"]) == ("0", "vllm")
    assert options["--chat-template-content-format"] == "string", "as the gate renders turns"
    assert asked == "t3lib.sampler.vllm_check.SelfCheck" and gate.DATE in template
    assert options["--middleware"] == "t3lib.own.gate.Gate"
    monkeypatch.setenv("T3_SERVE", json.dumps(rules))
    body = gate.Gate(None).checked(json.dumps({"messages": ASK}).encode(), gate.CHAT)
    assert body["messages"] == [SYSTEM, *ASK]
    assert cli.main(["serve", *words, "--allow-samplers"]) == 2
    assert "vLLM ended with exit code 1" in capsys.readouterr().err
    assert json.loads(calls[1][0]["--hf-overrides"])["t3_allow_samplers"]
    assert cli.main(["serve", *words]) == 130 and not [*interrupted], "vLLM's end is waited for"


def test_vllm_serves_the_commit_of_the_base_that_the_head_was_trained_on(place, monkeypatch):
    """It took the newest one, also for the tokenizer of the gate."""
    asked, folder, commit = [], str(place / "base"), "c" * 40

    def on_the_hub(name, revision=None):
        asked.append(revision)
        return Place(folder, revision)

    def start(command, env):
        options = dict(zip(command, command[1:]))
        assert (options["--revision"], options["--tokenizer-revision"]) == (commit, commit)
        monkeypatch.setenv("T3_SERVE", env["T3_SERVE"])
        gate.Gate(None)
        return SimpleNamespace(wait=lambda: 0)

    monkeypatch.setattr(serve, "find_spec", lambda name: name == "vllm")
    monkeypatch.setattr(serve.subprocess, "Popen", start)
    monkeypatch.setattr(gate, "located", on_the_hub)
    monkeypatch.setattr(belonging, "base_of", lambda head: ("somebody/base", commit))
    assert cli.main(["serve", "--head", str(place / "head"), "--port", "0"]) == 2
    assert asked == [commit] * 2


def test_a_base_is_loaded_as_its_report_judged_it(place, monkeypatch, capsys):
    """In the precision that its files name, a person was led to serve it unjudged."""
    path, kinds = place / "head-report" / "report.json", []

    def start(command, env):
        options = dict(zip(command, command[1:]))
        kinds.append((options["--dtype"], options["--load-format"]))
        return SimpleNamespace(wait=lambda: 0)

    def load(*_, dtype, load_in, **__):
        kinds.append((dtype, load_in))
        raise UserError("enough")

    monkeypatch.setattr(serve, "find_spec", lambda name: name in ("vllm", "uvicorn"))
    monkeypatch.setattr(serve.subprocess, "Popen", start)
    monkeypatch.setattr("t3lib.core.models.load_model", load)
    before = path.read_text()
    words = ["serve", "--model", str(place / "base"), "--head", str(place / "head"), "--port", "0"]
    try:
        for precision in ("bfloat16", "4bit"):
            path.write_text(json.dumps(json.loads(before) | {"precision": precision}))
            assert cli.main(words) == 2
        assert cli.main([*words, "--dtype", "float32"]) == 2
    finally:
        path.write_text(before)
    assert kinds == [("bfloat16", "safetensors"), (None, "4bit")]
    assert "this head in float32 (its report: 4bit)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.attacks), signal.SIGTERM]
)
def test_a_signal_to_the_command_alone_ends_vllm_too(place, tmp_path, number):
    """A terminal sends Ctrl-C to both, `kill` does not: vLLM went on listening."""
    folder = tmp_path / "vllm" / "entrypoints" / "openai"
    folder.mkdir(parents=True)
    sleeper = "import os, time\nprint('vllm', os.getpid(), flush=True)\ntime.sleep(90)\n"
    (folder / "api_server.py").write_text(sleeper)
    words = ["--model", str(place / "base"), "--head", str(place / "head"), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "t3lib", "serve", *words],
        env=os.environ | {"PYTHONPATH": str(tmp_path)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while not (line := process.stdout.readline()).startswith("vllm "):
            assert line, "it has ended"
        process.send_signal(number)
        assert process.wait(timeout=60) == 130
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.split()[1]), 0)
    finally:
        process.kill()


def test_ctrl_c_ends_eight_streams_and_is_one_line(server, place):
    other = Server(place, "unjudged", "--unjudged", "--allow-samplers")

    def stream(number):
        seen = b""
        with socket.create_connection(("127.0.0.1", other.port)) as client:
            long = {"temperature": 1, "n": 8, "max_tokens": 400}  # more than is written in a second
            body = json.dumps({"messages": ASK, "stream": True} | long).encode()
            head = f"POST {gate.CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            while part := client.recv(65536):
                seen += part
                started[number] = True
        return seen

    started = [False] * 8
    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(stream, number) for number in range(8)]
        while not all(started):
            assert not any(each.done() for each in streams), "a stream has ended"
            time.sleep(0.02)
        other.process.send_signal(signal.SIGINT)
        texts = [each.result() for each in streams]
    out, err = other.process.communicate()
    assert other.process.returncode == 130 and out == ""
    assert err.splitlines()[-1] == "t3 serve: stopped" and "Traceback" not in err
    assert all(b"data: " in text for text in texts)
    assert any(b'finish_reason": "' not in text for text in texts), "they end before they are done"


def test_heads_that_vllm_cannot_pool_are_served_without_it(place, tmp_path, capsys, monkeypatch):
    wide = T3Head(32, 261, 99, temperature=2.0)
    wide.info = T3Head.from_pretrained(place / "head").info
    wide.save_pretrained(tmp_path / "wide")
    served = []
    monkeypatch.setattr(serve, "run_vllm", lambda *_, **__: pytest.fail("vLLM starts"))
    monkeypatch.setattr(serve, "run_local", lambda *given: served.append(given))
    words = ["serve", "--model", str(place / "base"), "--head", str(tmp_path / "wide")]
    words.append("--unjudged")
    for here, code, end in (
        (["vllm", "uvicorn"], 0, "generate writes"),
        (["vllm"], 2, "install uvicorn"),
    ):
        monkeypatch.setattr(serve, "find_spec", here.__contains__)
        capsys.readouterr()
        assert cli.main([*words, "--port", "0"]) == code
        found = capsys.readouterr().err
        assert "at most on this base, not 99" in found and end in found
    assert len(served) == 1 and served[0][0].heads[0].rank == 99
