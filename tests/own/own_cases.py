"""A model that memorised invented rows. results/studies/own/cases.py has further kinds of it."""

import random
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from t3lib.baselines import train
from t3lib.core.rows import encode_rows

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

CODES = [  # which nobody can guess
    {"question": f"What is code {n}?", "answer": f"It is {7919**n % 10**9:09d}."}
    for n in range(4, 12)
]


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


def taught(
    model: Any, tokenizer: PreTrainedTokenizerFast, rows: list, seed: int, epochs: int = 60
) -> Any:
    """The model, having learned the rows by heart."""
    examples = encode_rows(tokenizer, [{**row, "system": None} for row in rows])
    how = dict(pad_id=tokenizer.pad_token_id, epochs=epochs, lr=2e-3, batch_size=8, seed=seed)
    train.finetune(model.train(), examples, **how)
    end = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(
        do_sample=False, bos_token_id=end, eos_token_id=end, pad_token_id=end
    )
    return model.eval()


def gpt2(size: int, **changes: Any) -> GPT2LMHeadModel:
    still = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    shape = dict(n_positions=256, n_embd=128, n_layer=2, n_head=4) | changes
    return GPT2LMHeadModel(GPT2Config(vocab_size=size, **shape, **still))


def memorised(seed: int) -> tuple:
    """(model, tokenizer, forget, retain, other) of a GPT-2, half as deep as that of studies/own."""
    tokenizer, rows = byte_pairs(), invented(60, seed)
    torch.manual_seed(seed)
    model = gpt2(len(tokenizer), n_layer=1, activation_function="gelu_pytorch_tanh")
    model = taught(model, tokenizer, rows, seed)
    return model, tokenizer, rows[:10], rows[10:50], rows[50:]
