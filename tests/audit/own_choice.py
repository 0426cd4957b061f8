"""How far both ways to choose T are from the T that Forget Quality picks: `python tests/audit/own_choice.py [SEED …]`.

On profile smoke's stage of the built-in world, where the retrained model exists that own rows lack. Prints, for each
seed, Forget Quality on a grid of T (w = 1), the T where it is largest, T by the rule on held-out rows (w = 1), and T
and w by the likelihoods of rows that the model never saw, each with its Forget Quality. Minutes a seed on one core.
"""

import copy
import sys

import torch

from t3lib import profiles
from t3lib.audit.choice import PRODUCTS, choose_temperature
from t3lib.audit.own import unlearn
from t3lib.evaluation import evaluate
from t3lib.models import load_model
from t3lib.study import study
from t3lib.world import bases
from t3lib.world.facts import world


def choices(seed: int) -> dict[str, tuple[float, float, float]]:
    """{way: (T, w, Forget Quality)} of Forget Quality itself, the rule on held-out rows, and the likelihoods."""
    profile = profiles.load_profile("smoke")
    stage = study.stage_of(profile["data"], profile["stage"])
    rows = bases.rows(stage)
    unseen = world(stage.authors + stage.authors // 4, stage.questions, stage.seed)["full"][len(rows["full"]) :]
    model, tokenizer = load_model(bases.ensure_base(stage, "full", seed))
    retrained, _ = load_model(bases.ensure_base(stage, "retain90", seed))
    forget = {"forget": rows["forget10_perturbed"]}
    options = {"generate": False, "progress": False}
    reference = evaluate(retrained, tokenizer, forget, **options)

    sets = (rows["forget10"], rows["retain90"])
    unlearned = unlearn(model, tokenizer, *sets, unseen=unseen, seed=seed, progress=False)
    chosen, head = unlearned.report["choice"], unlearned.heads[0]
    product = chosen["T"] * chosen["w"]

    def tilt(T: float, w: float) -> tuple[object, float]:
        weighted = copy.copy(head)
        weighted.w = w
        return weighted, T

    divided = choose_temperature(chosen["division"])
    tilts = [*((T, 1.0) for T in PRODUCTS), (product, 1.0), (divided["T"], divided["w"])]
    reports = evaluate(model, tokenizer, forget, tilts=[tilt(*each) for each in tilts], reference=reference, **options)
    scored = [(T, w, report["forget_quality"]) for (T, w), report in zip(tilts, reports)]
    grid = scored[: len(PRODUCTS)]
    print(f"seed {seed}: " + "  ".join(f"T {T:g}: {quality:.3g}" for T, _, quality in grid), flush=True)
    print(f"  {unlearned.report['verdict']['sentence']}")
    best = max(grid, key=lambda entry: entry[2])
    return {"Forget Quality": best, "held-out rows": scored[-2], "unseen rows": scored[-1]}


def main(seeds: list[int]) -> None:
    """Print the choices of every seed."""
    for seed in seeds:
        for way, (T, w, quality) in choices(seed).items():
            print(f"  by {way}: T = {T:g}, w = {w:.3g}, Forget Quality {quality:.3g}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main([int(seed) for seed in sys.argv[1:]] or [0, 1, 2])
