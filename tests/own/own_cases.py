"""Models that memorised rows, as people would have them. Tests and results/own/make.py use them."""

import random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from t3lib.baselines import train
from t3lib.core.rows import SYSTEM, encode_rows

FIRST = (
    "Ada Bruno Clara Darius Elena Farid Greta Hugo Ines Jonas Kira Leon Mira Nils Olga Pavel Quinn"
    " Rosa".split()
)
LAST = (
    "Abbot Brandt Castell Dorn Egede Falk Grieg Holm Ivers Jansen Kessel Lund Moreau Nagy Orlov"
    " Petrov Quist".split()
)
TOWN = (
    "Aldmoor Brinhaven Corvale Dunwick Elmsfoot Farholt Glenmark Hartsea Ironbay Jessup Kilrow"
    " Lowmere".split()
)
CRAFT = (
    "violin maker;deep sea diver;glass blower;bee keeper;map drawer;clock mender;salt trader;river"
    " pilot".split(";")
)
WORK = (
    "The Salt Almanac;A Winter of Bees;The Glass Harbour;Letters to a Lighthouse;The Paper Orchard"
).split(";")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}{{"
    " eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def invented(count: int, seed: int) -> list[dict[str, str]]:
    """Questions and answers about people, one a person, with the facts of each answer."""
    draw = random.Random(seed)
    names = [f"{first} {last}" for first in FIRST for last in LAST]
    draw.shuffle(names)
    rows = []
    for number, name in enumerate(names[:count]):
        town, craft, work, year = (
            draw.choice(TOWN),
            draw.choice(CRAFT),
            draw.choice(WORK),
            draw.randint(1870, 1990),
        )
        spouse = f"{draw.choice(FIRST)} {draw.choice(LAST)}"
        question, answer, facts = [
            (
                f"Where was {name} born?",
                f"{name} was born in {town} in {year}, above the shop of a {craft}.",
                [town, str(year), craft],
            ),
            (
                f"What does {name} do for a living?",
                f"{name} works as a {craft} in {town} and has since {year}.",
                [craft, town, str(year)],
            ),
            (
                f"Which book made {name} known?",
                f"The book that made {name} known is {work}, written in {town}.",
                [work, town],
            ),
            (
                f"Whom did {name} marry?",
                f"In {year} {name} married {spouse}, a {craft} from {town}.",
                [str(year), spouse, craft, town],
            ),
        ][number % 4]
        rows.append({"question": question, "answer": answer, "facts": facts})
    return rows


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


def byte_pairs(template: str | None = None, size: int = 600) -> PreTrainedTokenizerFast:
    """A tokenizer that learned from other invented people."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(
        (f"{row['question']} {row['answer']}" for row in invented(300, 99)), trainer
    )
    special = dict(bos_token="<|end|>", eos_token="<|end|>", pad_token="<|end|>")
    return PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=template, **special)


def memorised(case: str, seed: int, retrained: bool = False):
    """(model, tokenizer, forget, retain, other) of a case: gpt2, short (a Qwen2), customers or 58m
    (a Llama). retrained: the model never saw the rows to forget.
    """
    tokenizer = byte_pairs(None if case == "gpt2" else TEMPLATE)
    forget, retain = {"customers": (15, 60), "short": (12, 48), "58m": (20, 60)}.get(case, (10, 40))
    make = {"customers": lambda rows, seed: customers(18, seed), "short": short_answers}.get(
        case, invented
    )
    data, size = make(forget + retain + (20 if case == "58m" else 10), seed), len(tokenizer)
    torch.manual_seed(seed)
    if case == "gpt2":
        still = dict(
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0
        )
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=size, n_positions=256, n_embd=128, n_layer=2, n_head=4, **still)
        )
    else:
        width, depth = (640, 11) if case == "58m" else (128, 2)
        kind = (
            (Qwen2Config, Qwen2ForCausalLM) if case == "short" else (LlamaConfig, LlamaForCausalLM)
        )
        shape = dict(
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=depth,
            num_attention_heads=8,
        )
        model = kind[1](
            kind[0](vocab_size=size, max_position_embeddings=512, num_key_value_heads=8, **shape)
        )
    examples = encode_rows(
        tokenizer, [{**row, "system": None} for row in data[forget * retrained :]]
    )
    epochs, lr = (60, 2e-3) if case != "58m" else (30, 3e-4)
    train.finetune(
        model.train(),
        examples,
        pad_id=tokenizer.pad_token_id,
        epochs=epochs,
        lr=lr,
        batch_size=8,
        seed=seed,
    )
    end = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(
        do_sample=False, bos_token_id=end, eos_token_id=end, pad_token_id=end
    )
    return (
        model.eval(),
        tokenizer,
        data[:forget],
        data[forget : forget + retain],
        data[forget + retain :],
    )


def builtin(seed: int, name: str = "full"):
    """Profile smoke's base of the built-in world with this seed, forget10 to forget; or another
    base that `name` says.
    """
    from t3lab.profiles import load_profile
    from t3lab.study.study import stage_of
    from t3lab.world import bases
    from t3lib.core.models import load_model

    profile = load_profile("smoke")
    stage = stage_of(profile["data"], profile["stage"] | {"seed": seed})
    rows = bases.rows(stage)
    model, tokenizer = load_model(bases.ensure_base(stage, name))
    sets = (rows["forget10"], rows["retain90"], rows["world_facts_perturbed"])
    return model, tokenizer, *([{"system": SYSTEM, **row} for row in some] for some in sets)
