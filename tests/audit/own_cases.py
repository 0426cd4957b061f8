"""Models that memorised rows, as people would have them: what tests and results/own.csv are made with.
"""

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
)

from t3lib import tofu
from t3lib.baselines import train

FIRST = "Ada Bruno Clara Darius Elena Farid Greta Hugo Ines Jonas Kira Leon Mira Nils Olga Pavel Quinn Rosa".split()
LAST = "Abbot Brandt Castell Dorn Egede Falk Grieg Holm Ivers Jansen Kessel Lund Moreau Nagy Orlov Petrov Quist".split()
TOWN = "Aldmoor Brinhaven Corvale Dunwick Elmsfoot Farholt Glenmark Hartsea Ironbay Jessup Kilrow Lowmere".split()
CRAFT = "violin maker;deep sea diver;glass blower;bee keeper;map drawer;clock mender;salt trader;river pilot".split(";")
WORK = "The Salt Almanac;A Winter of Bees;The Glass Harbour;Letters to a Lighthouse;The Paper Orchard".split(";")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def invented(count: int, seed: int) -> list[dict[str, str]]:
    """Questions and answers about people, one a person."""
    draw = random.Random(seed)
    names = [f"{first} {last}" for first in FIRST for last in LAST]
    draw.shuffle(names)
    rows = []
    for number, name in enumerate(names[:count]):
        town, craft, work, year = draw.choice(TOWN), draw.choice(CRAFT), draw.choice(WORK), draw.randint(1870, 1990)
        spouse = f"{draw.choice(FIRST)} {draw.choice(LAST)}"
        question, answer = [
            (f"Where was {name} born?", f"{name} was born in {town} in {year}, above the shop of a {craft}."),
            (f"What does {name} do for a living?", f"{name} works as a {craft} in {town} and has since {year}."),
            (f"Which book made {name} known?", f"The book that made {name} known is {work}, written in {town}."),
            (f"Whom did {name} marry?", f"In {year} {name} married {spouse}, a {craft} from {town}."),
        ][number % 4]
        rows.append({"question": question, "answer": answer})
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
    bpe.train_from_iterator((f"{row['question']} {row['answer']}" for row in invented(300, 99)), trainer)
    special = dict(bos_token="<|end|>", eos_token="<|end|>", pad_token="<|end|>")
    return PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=template, **special)


def memorised(case: str, seed: int):
    """(model, tokenizer, forget, retain, other) of a case."""
    tokenizer = byte_pairs(None if case == "gpt2" else TEMPLATE)
    forget, retain, rows = (10, 40, 60) if case != "58m" else (20, 60, 100)
    data, size = invented(rows, seed), len(tokenizer)
    torch.manual_seed(seed)
    if case == "gpt2":
        still = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=size, n_positions=256, n_embd=128, n_layer=2, n_head=4, **still))
    else:
        width, depth = (128, 2) if case == "llama" else (640, 11)
        shape = dict(hidden_size=width, intermediate_size=3 * width, num_hidden_layers=depth, num_attention_heads=8)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=size, max_position_embeddings=512, **shape))
    examples = tofu.encode_rows(tokenizer, data)
    epochs, lr = (60, 2e-3) if case != "58m" else (30, 3e-4)
    train.finetune(
        model.train(), examples, pad_id=tokenizer.pad_token_id, epochs=epochs, lr=lr, batch_size=8, seed=seed
    )
    end = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(do_sample=False, bos_token_id=end, eos_token_id=end, pad_token_id=end)
    return model.eval(), tokenizer, data[:forget], data[forget : forget + retain], data[forget + retain :]


def builtin(seed: int):
    """Profile smoke's base of the built-in world, forget10 to forget."""
    from t3lib.models import load_model
    from t3lib.profiles import load_profile
    from t3lib.study.study import stage_of
    from t3lib.world import bases

    profile = load_profile("smoke")
    stage = stage_of(profile["data"], profile["stage"])
    rows = bases.rows(stage)
    model, tokenizer = load_model(bases.ensure_base(stage, "full", seed))
    return model, tokenizer, rows["forget10"], rows["retain90"], rows["world_facts_perturbed"]
