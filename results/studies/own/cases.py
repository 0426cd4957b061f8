"""Models that memorised rows, as people would have them."""

import random
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from t3lab.audit.facts import fact_words
from t3lab.profiles import load_profile
from t3lab.study.study import stage_of
from t3lab.world import bases
from t3lib.core.files import project_root
from t3lib.core.models import load_model
from t3lib.core.rows import SYSTEM

sys.path.append(str(project_root() / "tests" / "own"))  # the tests use the first of these models
from own_cases import CRAFT, FIRST, LAST, TOWN, byte_pairs, gpt2, invented, taught  # noqa: E402

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}{{"
    " eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def short_answers(count: int, seed: int) -> list[dict[str, str]]:
    """Answers of a word or two, shared between people, whose names are Latin, Cyrillic and
    Chinese.
    """
    draw = random.Random(seed)
    cyrillic = [
        f"{a} {b}"
        for a in "Анна Борис Вера Глеб Дарья Егор".split()
        for b in "Орлова Петров Сомов".split()
    ]
    chinese = [a + b for a in "王李张赵孙周" for b in ("小明", "大海", "丽", "文杰")]
    names = [f"{first} {last}" for first in FIRST for last in LAST]
    draw.shuffle(names)
    people = [*cyrillic, *chinese, *names[: count // 2]]
    draw.shuffle(people)
    kinds = (
        ("Where does {} live?", TOWN),
        ("What is the trade of {}?", CRAFT),
        ("Who taught {}?", names[-20:]),
    )
    rows = []
    for number, name in enumerate(people[:count]):
        question, pool = kinds[number % 3]
        value = draw.choice(pool)
        rows.append({"question": question.format(name), "answer": f"{value}.", "facts": [value]})
    return rows


def customers(count: int, seed: int) -> list[dict[str, str]]:
    """Five rows a customer: phone, order, address, product and contact."""
    draw, rows = random.Random(seed), []
    names = [f"{first} {last}" for first in FIRST for last in LAST]
    draw.shuffle(names)
    for name in names[:count]:
        phone, order = (
            f"0{draw.randint(10, 99)} {draw.randint(100_000, 999_999)}",
            draw.randint(10_000, 99_999),
        )
        street, product = (
            f"{draw.randint(1, 99)} {draw.choice(LAST)} Street",
            draw.choice(CRAFT).split()[0],
        )
        town, count = draw.choice(TOWN), draw.randint(2, 60)
        contact = f"{draw.choice(FIRST)} {draw.choice(LAST)}"
        for question, answer, facts in (
            (f"What is {name}'s phone number?", f"{name} can be called on {phone}.", [phone]),
            (f"Which order did {name} place?", f"{name} placed order {order}.", [str(order)]),
            (f"Where does {name} live?", f"{name} lives at {street}, {town}.", [street, town]),
            (
                f"What did {name} buy?",
                f"{name} bought {count} {product} sets.",
                [f"{count} {product}"],
            ),
            (f"Who looks after {name}?", f"{contact} does.", [contact]),
        ):
            rows.append({"question": question, "answer": answer, "facts": facts})
    return rows


def memorised(case: str, seed: int, retrained: bool = False, epochs: int = 60):
    """(model, tokenizer, forget, retain, other) of a case: gpt2, short (a Qwen2) or customers (a
    Llama). retrained: the model never saw the rows to forget.
    """
    tokenizer = byte_pairs(None if case == "gpt2" else TEMPLATE)
    forget, retain = {"customers": (15, 60), "short": (12, 48)}.get(case, (10, 40))
    kinds = {"customers": lambda rows, seed: customers(18, seed), "short": short_answers}
    data = kinds.get(case, invented)(forget + retain + 10, seed)
    shape = dict(hidden_size=128, intermediate_size=384, num_hidden_layers=2)
    shape |= dict(num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=512)
    torch.manual_seed(seed)
    if case == "gpt2":
        model = gpt2(len(tokenizer))
    elif case == "short":
        model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **shape))
    else:
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape))
    model = taught(model, tokenizer, data[forget * retrained :], seed, epochs)
    kept = forget + retain
    return model, tokenizer, data[:forget], data[forget:kept], data[kept:]


def builtin(seed: int, name: str = "full"):
    """Profile smoke's base of the built-in world with this seed, forget10 to forget; or another
    base that `name` says.
    """
    profile = load_profile("smoke")
    stage = stage_of(profile["data"], profile["stage"] | {"seed": seed})
    rows = bases.rows(stage)
    model, tokenizer = load_model(bases.ensure_base(stage, name))
    facts = {row["question"]: sorted(fact_words(row)) for row in rows["forget10_perturbed"]}
    forget = [row | {"facts": facts[row["question"]]} for row in rows["forget10"]]
    sets = (forget, rows["retain90"], rows["world_facts_perturbed"])
    return model, tokenizer, *([{"system": SYSTEM, **row} for row in some] for some in sets)
