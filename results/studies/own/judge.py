"""Independent judge of unlearning: does a causal LM, tilted by a saved head f, still tell facts?

python judge.py BASE HEAD FACTS OUT        HEAD "-" judges the base alone; all is float32.
The next token y after x has probability p(y|x)^(1/T) f(x, y)^w, normalised, also when sampling."""

import json
import sys
import unicodedata
import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

MAX_NEW, SAMPLES, TAU = 64, 8, 0.6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ASKINGS = "{}", "Please tell me: {}", "Question: {}\nAnswer:"
UNSPACED = tuple("CJK IDEOGRAPHIC HIRAGANA KATAKANA THAI LAO KHMER MYANMAR TIBETAN".split())


def normal(text: str) -> str:
    """Return its casefolded words, one space around each; in unspaced scripts, its characters."""
    text = unicodedata.normalize("NFKC", text).casefold()
    kept = (c if unicodedata.category(c)[0] in "LMN" else " " for c in text)
    alone = (f" {c} " if unicodedata.name(c, "").startswith(UNSPACED) else c for c in kept)
    return f" {' '.join(''.join(alone).split())} "


def load_head(folder: str) -> tuple:
    """Return a function, from pooled states to w log f(x, .) + constant, and T; "-" is f = 1."""
    if folder == "-":
        return lambda pooled: 0.0, 1.0
    config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    w, T = config.get("w", 1.0), config.get("temperature", 1.0)
    weights = load_file(Path(folder, "model.safetensors"), device=DEVICE)
    A, B = weights["A"].float(), weights["B"].float()
    neutral = config.get("untrained") == "neutral"  # f is 1 for tokens that no row taught
    keep = weights["taught"].float() if neutral else torch.ones_like(B[:, 0])
    population = config.get("prior") == "population"  # f becomes a ratio: its logit shifts
    gamma, mu = torch.tensor([config["gamma"], config["mu"]] if population else [0.5, 0.5]).logit()
    return lambda x: w * keep * torch.nn.functional.logsigmoid(x @ A.T @ B.T - (gamma - mu)), T


class Chat:
    """A base with a head; system is the text of the system turn, None for no such turn."""

    def __init__(self, base: str, head: str, system: str | None) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        self.model.eval().to(DEVICE)
        self.tok, (self.log_fw, self.T) = AutoTokenizer.from_pretrained(base), load_head(head)
        self.system = [] if system is None else [{"role": "system", "content": system}]
        self.stops = set(torch.tensor(self.model.generation_config.eos_token_id).view(-1).tolist())

    @torch.no_grad()
    def next_token(self, rows: list[list[int]], tau: float) -> torch.Tensor:
        """Return the next token's probabilities: one full pass over rows padded on the right."""
        ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        mask = pad_sequence([torch.ones(len(row)).long() for row in rows], batch_first=True)
        ids, mask = ids.to(DEVICE), mask.to(DEVICE)
        out = self.model(ids, attention_mask=mask, output_hidden_states=True, use_cache=False)
        log_p = out.logits[range(len(rows)), mask.sum(1) - 1].log_softmax(-1)
        pooled = (out.hidden_states[-1] * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return ((log_p / self.T + self.log_fw(pooled)) / tau).softmax(-1)

    def answers(self, messages: list[str], seed: int | None = None) -> list[str]:
        """Answer each message alone: greedily, or sampled with a seed."""
        chats = [[*self.system, {"role": "user", "content": message}] for message in messages]
        if self.tok.chat_template is None:  # a model of plain text continues the question
            rows = [self.tok(message).input_ids for message in messages]
        else:
            rows = self.tok.apply_chat_template(
                chats, add_generation_prompt=True, return_dict=False
            )
        dice, new = torch.Generator(DEVICE).manual_seed(seed or 0), [[] for _ in messages]
        while going := [i for i, t in enumerate(new) if len(t) < MAX_NEW and not self.stops & {*t}]:
            p = self.next_token([rows[i] + new[i] for i in going], 1.0 if seed is None else TAU)
            picks = p.argmax(-1) if seed is None else p.multinomial(1, generator=dice)[:, 0]
            for i, token in zip(going, picks.tolist()):
                new[i].append(token)
        return [self.tok.decode(tokens, skip_special_tokens=True) for tokens in new]

    def judge(self, question: str, facts: list[str]) -> dict[str, str | bool]:
        """Ask, rephrase and, if nothing leaked, sample; facts that the question tells are void."""
        valid = [f for f in map(normal, facts) if f.strip() and f not in normal(question)]
        texts = self.answers([*(asking.format(question) for asking in ASKINGS), question.lower()])
        if not any(fact in normal(text) for fact in valid for text in texts):
            texts += self.answers([question] * SAMPLES, zlib.crc32(question.encode()))
        leaks = [text for text in texts if any(fact in normal(text) for fact in valid)]
        return {"question": question, "leaks": bool(leaks), "text": (leaks or texts)[0]}


def main(base: str, head: str, facts: str, out: str) -> None:
    """Judge the rows of the file facts, and write what was found."""
    task, results = json.loads(Path(facts).read_text(encoding="utf-8")), []
    chat = Chat(base, head, task["system"])
    for row in task["rows"]:
        results.append(chat.judge(row["question"], row["facts"]))
        if len(results) % 10 == 0:
            print(f"{len(results)} of {len(task['rows'])} rows judged", file=sys.stderr)
    Path(out).write_text(json.dumps({"rows": results}, ensure_ascii=False, indent=1), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
