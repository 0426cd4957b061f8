"""Copy the models behind these results out of the cache, for a release.

    python results/profiles/cpu/models.py --out build/models

`make release` calls it. The folder gets `full`, `retain90` and `retain95` (seed 0), each with the
data card and the licence, and `head-forget10`, T3's head for the 10% split (seed 1) with its tuned
T. `make` leaves them in the cache, and nothing is trained here: if a model is missing, or if the
committed runs name another base, one line says what to do (exit status 2).
"""

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

from t3lab import profiles, results, script
from t3lab.profiles import WORLD, hyper_of
from t3lab.study.study import Study, open_study
from t3lab.study.unlearned import unlearned_key
from t3lab.world import bases
from t3lib.classifier.head import T3Head
from t3lib.core.errors import UserError
from t3lib.core.files import cache_dir, model_identity, project_root, read_json
from t3lib.core.rows import encode_rows
from t3lib.sampler import belonging

SPLIT, SEED = "forget10", 1  # of the head
RUN = f"results/profiles/cpu/runs/Original--{SPLIT}--Tnone--seed0.json"
BESIDE = ("LICENSE", "notebooks/t3lab/world/README.md")  # added to every base


def copy(out: Path) -> None:
    """Write the models below `out`, which is emptied first."""
    root, profile = project_root(), profiles.load_profile("cpu")
    with patch.object(bases, "train_base", missing):
        study = open_study(SPLIT, **{name: profile[name] for name in WORLD})
        found = {name: bases.ensure_base(study.stage, name) for name in bases.NAMES}
    if read_json(root / RUN)["provenance"]["model_revision"] != model_identity(found["full"]):
        raise UserError(
            "results/profiles/cpu is of another base: run make OUT=results/profiles/cpu"
        )
    if results.provenance()["dirty"]:
        raise UserError("a release is of a commit: commit your changes first")
    head = head_of(study, hyper_of(profile["hyper"], "T3", SPLIT))
    shutil.rmtree(out, ignore_errors=True)
    head.save_pretrained(out / f"head-{SPLIT}")
    for name, folder in found.items():
        shutil.copytree(folder, out / name)
        for card in BESIDE:
            shutil.copy(root / card, out / name)


def missing(*_: object) -> None:
    """Raise UserError, in place of a training."""
    raise UserError("the cache lacks a model of profile cpu: run `make`, then this command again")


def head_of(study: Study, settings: dict[str, Any]) -> T3Head:
    """Return the cached head of T3 with these settings; T, split and base are recorded in it."""
    kept = cache_dir("unlearned", unlearned_key(study, "T3", settings, SEED))
    if not (kept / "config.json").is_file():
        missing()
    head, rows = T3Head.from_pretrained(kept), (study.forget, study.retain)
    examples = [each for part in rows for each in encode_rows(study.tokenizer, part)]
    tokens = sum(len(each.answer) for each in examples)
    head.temperature, head.info["split"] = settings["temperature"], SPLIT
    head.info |= belonging.origin(study.base, study.tokenizer, *rows, tokens)
    return head


if __name__ == "__main__":
    given = {"--out": {"type": Path, "default": Path("build/models"), "help": "folder"}}
    script.run(lambda args: copy(args.out), str(__doc__), given)
