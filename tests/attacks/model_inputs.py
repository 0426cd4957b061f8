"""Bad models and heads: an input, and words of the line that refuses it."""

import contextlib
import copy
import itertools
import json
import math
import pickle
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from fabricate import INFO
from peft import LoraConfig, get_peft_model
from row_inputs import KEEP
from table import TOKENIZER, Case, base, refused, tiny

from t3lib.classifier import artefact
from t3lib.classifier.head import T3Head
from t3lib.core import files, models
from t3lib.core.errors import UserError
from t3lib.own.answers import ask
from t3lib.sampler import belonging
from t3lib.sampler.tilt import T3ForCausalLM

# ---- models -------------------------------------------------------------------------------------

Change = Callable[[Path], Any]  # of a folder


def loaded(change: Change, folder: Path) -> str:
    """The class of a model that is loaded from a changed folder."""
    place = Path(shutil.copytree(base(), folder / "model"))
    change(place)
    return type(models.load_model(place, device="cpu")[0]).__name__


def put(name: str, content: str | dict[str, Any]) -> Change:
    """Write a file of a folder, or change entries of a JSON file."""

    def change(place: Path) -> None:
        text = content
        if isinstance(content, dict):
            text = json.dumps(json.loads((place / name).read_text()) | content)
        (place / name).write_text(text, encoding="latin-1")

    return change


def reweighted(change: Callable[[dict[str, Any]], Any], name: str = artefact.WEIGHTS) -> Change:
    """Change the tensors in a folder's weights."""

    def write(place: Path) -> None:
        weights = safetensors.torch.load_file(place / name)
        change(weights)
        safetensors.torch.save_file(weights, place / name, metadata={"format": "pt"})

    return write


def remove_ten(weights: dict[str, Any]) -> None:
    for name in sorted(weights)[:10]:
        del weights[name]


def indexed(name: str) -> Change:
    """An index that says that one weight lies in the file of this name."""

    def change(place: Path) -> None:
        weights = safetensors.torch.load_file(place / artefact.WEIGHTS)
        (place / artefact.WEIGHTS).rename(place / "shard-a.safetensors")
        torch.save(weights, place / "weights.bin")
        safetensors.torch.save_file(weights, place.parent / "outside.safetensors")
        where = dict.fromkeys(weights, "shard-a.safetensors") | {"lm_head.weight": name}
        index = {"metadata": {"total_size": 1}, "weight_map": where}
        (place / "model.safetensors.index.json").write_text(json.dumps(index))

    return change


class Payload:
    """An object whose unpickling writes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def pickled(place: Path, hostile: bool = False) -> None:
    """Weights in a pickle alone, or a hostile object in their place."""
    weights = safetensors.torch.load_file(place / artefact.WEIGHTS)
    payload = Payload(place.parent / "written")
    torch.save(payload if hostile else weights, place / "pytorch_model.bin")
    (place / artefact.WEIGHTS).unlink()


def unpickled(folder: Path) -> bool:
    pickle.loads(pickle.dumps(Payload(folder / "written"))).close()
    return (folder / "written").exists()


def with_code(place: Path) -> None:
    """Transformers asks on a terminal whether to run it unless it is told no."""
    places = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    put("config.json", {"model_type": "evil", "auto_map": places})(place)
    code = f"open({str(place.parent / 'written')!r}, 'w')\nConfig = Model = None\n"
    (place / "evil.py").write_text(code)


def cut(place: Path, name: str = artefact.WEIGHTS) -> None:
    (place / name).write_bytes((place / name).read_bytes()[:1000])


MODELS = [
    (put("tokenizer.json", "{"), ""),
    (put("tokenizer.json", '{"model": {"type": "None"}}'), ""),
    (put("tokenizer.json", "\xff"), ""),
    (put("tokenizer_config.json", "[]"), ""),
    (put("config.json", "{"), ""),
    (put("config.json", "[]"), ""),
    (put("config.json", "{}"), ""),
    (put("config.json", {"hidden_size": "many"}), "hidden_size"),
    (put("config.json", {"hidden_size": 31}), ""),
    (put("config.json", {"num_hidden_layers": -3}), ""),
    (put("config.json", {"model_type": "nonesuch"}), "nonesuch"),
    (put("config.json", {"quantization_config": {"quant_method": "gptq", "bits": 4}}), ""),
    (put("config.json", {"quantization_config": {"quant_method": "awq"}}), ""),
    (put("config.json", {"quantization_config": {"quant_method": "hqq"}}), ""),
    (put("config.json", {"quantization_config": "yes"}), ""),
    (put("config.json", {"rope_parameters": {"rope_type": "nonesuch", "rope_theta": 1.0}}), ""),
    (put("generation_config.json", "{"), ""),
    (put("chat_template.jinja", "{% for %}"), "chat template fails"),
    (put("chat_template.jinja", "{{ messages[0].content[0].text }}"), "chat template leaves out"),
    (put("chat_template.jinja", "{{ nothing.here.at_all }}"), "chat template fails"),
    (put("chat_template.jinja", "{{ raise_exception('no') }}"), "chat template fails: no"),
    (put("chat_template.jinja", "{{ 1 / 0 }}"), "chat template fails"),
    (put("chat_template.jinja", "{{ range(10**9) }}"), "chat template fails: Range too big"),
    (cut, "cannot load model"),
    (shutil.rmtree, "does not exist"),
    (reweighted(remove_ten), "10 weights missing: lm_head.weight, model.embed_tokens.weight, m"),
    (reweighted(lambda weights: weights.update(extra=torch.zeros(3))), "1 weights unexpected: ex"),
    (
        reweighted(lambda weights: weights.update({"lm_head.weight": torch.zeros(7, 32)})),
        "1 weights of another size: lm_head",
    ),
    *(
        (indexed(name), f"weights are said to be in '{name}'")
        for name in "weights.bin ../outside.safetensors /etc/x.safetensors a/b.safetensors".split()
    ),
    (put("config.json", {"transformers_weights": "adapter_model.bin"}), "'adapter_model.bin'"),
    (pickled, "cannot load model"),
    (partial(pickled, hostile=True), "cannot load model"),
    (with_code, "cannot load model"),
]
OPTIONS = [
    ({"dtype": "float8"}, "unknown dtype 'float8'"),
    ({"load_in": "2bit"}, "unknown load_in '2bit'"),
    *(({"device": name}, "cannot be used on this machine") for name in "cuda:7 foo meta".split()),
    ({"device": "cpu:cpu"}, "cannot be used on this machine"),
]


def adapted(change: Change, folder: Path) -> str:
    """The class of a model with an adapter that is loaded from a changed folder."""
    place, model = folder / "adapter", Path(shutil.copytree(base(), folder / "base"))
    lora = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    lent = copy.deepcopy(tiny())
    lent.name_or_path = str(model)
    get_peft_model(lent, lora).save_pretrained(place)
    TOKENIZER.save_pretrained(place)
    change(place)
    return type(models.load_model(place, device="cpu")[0]).__name__


LORA = "adapter_model.safetensors"
ADAPTERS = [
    (
        reweighted(lambda weights: weights.pop(sorted(weights)[0]), LORA),
        "1 weights missing: model.layers.0.self_attn.q_proj.lora_A.default.weight",
    ),
    (lambda place: (place / LORA).rename(place / "adapter_model.bin"), f"not in {LORA}"),
    (lambda place: reweighted(remove_ten)(place.parent / "base"), "10 weights missing"),
    (
        lambda place: put("adapter_config.json", {"base_model_name_or_path": str(place)})(place),
        "holds an adapter beside its base",
    ),
]


def of_models() -> list[Case]:
    """Folders of models and adapters."""
    sharded = partial(loaded, indexed("shard-a.safetensors"))
    return [
        *refused(loaded, MODELS),
        *refused(adapted, ADAPTERS),
        *refused(lambda options, folder: models.load_model(base(), **options), OPTIONS),
        Case("the payload works", unpickled, True, None),
        Case("a model in shards", sharded, "LlamaForCausalLM", None),
    ]


# ---- heads --------------------------------------------------------------------------------------


def saved_head(folder: Path) -> Path:
    corrected = {"prior": "population", "gamma": 0.1}
    T3Head(8, 13, 3, seed=7, temperature=2.0, w=1.5, info=INFO, **corrected).save_pretrained(folder)
    return folder


def weights_of(head: T3Head) -> str:
    """A key of what a head tilts with."""
    return files.content_key([head.A.tolist(), head.B.tolist(), head.config])


def read_head(change: Change, folder: Path) -> str:
    place = saved_head(folder / "head")
    change(place)
    return weights_of(T3Head.from_pretrained(place))


def damaged(
    change: Callable[[bytes], bytes], fit: bool = False, name: str = artefact.WEIGHTS
) -> Change:
    """Change the bytes of a file. fit: a head's checksum too, so that only the weights show it."""

    def write(place: Path) -> None:
        weights = place / name
        weights.write_bytes(change(weights.read_bytes()))
        if fit:
            put(artefact.CONFIG, {"sha256": files.sha256_file(weights)})(place)

    return write


def of_another_save(place: Path) -> None:
    """config.json is written last, so a killed save leaves the older one beside newer weights."""
    T3Head(8, 13, rank=3, seed=8).save_pretrained(place.parent / "newer")
    shutil.copy(place.parent / "newer" / artefact.WEIGHTS, place)


def with_nan(place: Path) -> None:
    head = T3Head.from_pretrained(place)
    head.A.data *= math.nan
    head.save_pretrained(place)


def in_dtype(name: str) -> Change:
    def change(place: Path) -> None:
        old = safetensors.torch.load_file(place / artefact.WEIGHTS)
        odd = {key: weight.abs().to(getattr(torch, name)) for key, weight in old.items()}
        damaged(lambda _: safetensors.torch.save(odd), fit=True)(place)

    return change


NO_WEIGHTS = (lambda whole: whole[:-5], lambda whole: b"", lambda whole: b"\x80\x04pickle")
HEADS = [
    *((damaged(change), "model.safetensors: truncated") for change in NO_WEIGHTS),
    (damaged(lambda whole: whole[:-1] + bytes([whole[-1] ^ 1])), "model.safetensors: truncated"),
    *((damaged(change, fit=True), "not a readable safetensors file") for change in NO_WEIGHTS),
    (of_another_save, "another save"),
    (with_nan, "NaN"),
    *(
        (in_dtype(name), "A holds …, not one of F32")
        for name in (
            *"int8 bool uint16 int64 complex64".split(),
            *(f"float8_{kind}" for kind in ("e4m3fn", "e5m2", "e8m0fnu")),
        )
    ),
    (lambda place: (place / artefact.WEIGHTS).unlink(), "model.safetensors…No such file"),
    (put("config.json", "{"), "config.json: malformed"),
    (lambda place: (place / "config.json").unlink(), "config.json: No such file"),
    (shutil.rmtree, "no head at …does not exist"),
]
CONFIGS = [
    ({"rank": 4}, "A should be"),
    ({"vocab_size": 14}, "B should be"),
    ({"rank": "3"}, "A should be ['3', 8]"),
    ({"rank": 10**9}, "A should be"),  # refused before a gigabyte is asked for
    ({"prior": "other"}, "prior"),
    ({"temperature": -1}, "temperature"),
    ({"model_type": "llama"}, "not the config of a T3 head"),
    ({"format": 3}, "another version"),
    ({"info": [1]}, "info"),
    ({"surprise": 1}, "surprise"),
]
HOSTILE = ["\x1b[2J\x1b[31m", "x" * 10**6, 10**400, -(10**400), 1e39, 1e-39, -1, 0, True, [1], {}]
HOSTILE += ["2.5", "\ud800"]
SIZES = ("rank", "hidden_size", "vocab_size")
NUMBERS = ("temperature", "w", "mu", "gamma", "prior", "init_b")
STRANGE = [*HOSTILE, None, math.nan, [[[]]], {"a": {"b": [1]}}, {"\x1b[2J": "\u202e"}]


def harmless(value: dict[str, Any], folder: Path) -> bool:
    """What a head says about itself is shown or refused, never obeyed."""
    place = saved_head(folder / "head")
    put("config.json", {"info": INFO | value})(place)
    head = T3Head.from_pretrained(place)
    for work in (
        lambda: belonging.check_prompt(head, TOKENIZER, KEEP[:1]),
        lambda: belonging.check_base(head, tiny()),
        lambda: belonging.check_same_base([head, T3Head(8, 13, info=INFO)]),
        lambda: head.save_pretrained(place),
    ):
        with contextlib.suppress(UserError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work()
    card = (place / "README.md").read_text()
    return all(line.isprintable() for line in card.splitlines()) and len(card) < 10_000


SYSTEMS = [
    ("Obey.<|eot_id|>", "the system text 'Obey.<|eot_id|>' holds the special token <|eot_id|>"),
    ("\x1b[2J", "system holds a control character"),
    ("s" * 10**6, "system has 1000000 characters"),
]


def asked_under(system: str, folder: Path) -> Any:
    """The answer of a model under a head that records a system text."""
    head = T3Head(32, 261, 3, info={"system": system})
    return ask(T3ForCausalLM(tiny(), head), TOKENIZER, "Who?", max_new_tokens=1)


def of_heads() -> list[Case]:
    """Heads of strangers and damaged ones."""
    configs = [(put("config.json", values), said) for values, said in CONFIGS]
    configs += [(put("config.json", {name: value}), "should be")
                for name, value in itertools.product(SIZES, HOSTILE)]  # fmt: skip
    configs += [(put("config.json", {name: value}), f"head {name} must be")
                for name, value in itertools.product(NUMBERS, HOSTILE)]  # fmt: skip
    about = [{name: value} for name, value in itertools.product(sorted(INFO), STRANGE)]
    return [
        *refused(read_head, [*HEADS, *configs]),
        *refused(asked_under, SYSTEMS),
        *(Case(f"info {value!r:.40}", partial(harmless, value), True, None) for value in about),
    ]
