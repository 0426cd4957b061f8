"""Compare T3 with Divergence Decoding, in whose place two small models steer the base.

    python results/studies/cpu-worlds/rivals.py --worlds 0
    python results/studies/cpu-worlds/rivals.py --worlds 4 5 6 7 1 2 3
    python results/studies/cpu-worlds/rivals.py --kinds linear --splits forget10

Divergence Decoding (arXiv 2605.31293) has p̂ ∝ p (q/r)^α, with q a small model that never saw the
rows to forget and r one of the same size that did (t3lab/study/divergence.py). Both are trained
here from nothing, with the base's tokenizer, rows, epochs and learning rate. Their seed is that of
no retrained model: a q that is a small copy of the judge would hand over the answer.

Written down before the script was run.

Search, in world 0 and for each split: both `SIZES` of the pair, and for each of four kinds all
points of `KINDS`. "linear" and "rank" are the published variants, "tempered" has p^(1/T) in place
of p, as T3 has, and "pair as f" is T3 with f = q / (q + r), which no head was trained for. The rule
of guided.py chooses a point of each kind: among those whose leak is at most that of another
retrained model (seed 1) and two of its standard errors over rows, the least Retain Error, rounded
to 0.001 nats, at a tie the least total variation; if no leak is so small, the least leak. Beside
it, "by D" is the point of the smallest D to the retrained model of seed 0, as the paper chooses.
Where the rule chooses the highest α or T, the script stops: the grid must grow. The highest k is
half of the vocabulary. The rule chose it in the first search: to leak little, rank must go so far.
After the first tables α of "linear" got four more values, `BETWEEN`, because its leak passes the
limit between two of the first ones. --kinds searches and measures some kinds alone, and keeps what
the tables have of the others.

The chosen models are then measured in other worlds, with the measures and aims of guided.py and
beside the same judge, the retrained model of seed 1. ULD and RMU are measured, too, with the
profile's settings, which Forget Quality chose among eight points each (seed 1). What T3, the base
and Retrained get by the same measures is in guided_each.csv.

"fixed penalty" is a control, and forgets nothing: the base, whose output layer gives a constant
less to the tokens that answers to forget have at least three times as often as answers to keep. The
constant is such that the mean loss of the answers to forget is that of the retrained model of seed
0. By arXiv 2607.19442 such a model passes whole batteries of tests: which of these tells it from a
retrained one?

It writes below --out: tables/rivals_search.csv, rivals_each.csv, rivals_texts.csv and
rivals/made.json. The models are cached in .t3cache.
"""

import copy
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import guided
import numpy as np
import pandas as pd
import torch

from t3lab import profiles, results, script
from t3lab.names import SPLITS
from t3lab.profiles import hyper_of
from t3lab.report import render
from t3lab.study.divergence import DivergenceForCausalLM, steer
from t3lab.study.methods import load_models, subject
from t3lab.study.study import Study, stage_of
from t3lab.world import bases
from t3lib.core.errors import UserError
from t3lib.core.models import load_model
from t3lib.core.progress import progress_bar
from t3lib.core.rows import encode_answers, encode_rows
from t3lib.tofu.data import retain_of
from t3lib.tofu.evaluation import metrics_of, score
from t3lib.tofu.likelihood import UNTILTED, answer_losses, answer_positions

SIZES = {size: guided.GRIDS["cpu"].guides[size] for size in ("small", "smaller")}
ALPHAS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
BETWEEN = (1.6, 1.7, 1.8, 1.9)
HEAT = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
DIALS = ["alpha", "temperature", "rank", "bounded"]
KINDS: dict[str, list[dict[str, Any]]] = {
    "linear": [{"alpha": a} for a in sorted((*ALPHAS, *BETWEEN))],
    "rank": [{"rank": k} for k in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)],
    "tempered": [{"alpha": a, "temperature": T} for a, T in product(ALPHAS, HEAT)],
    "pair as f": [
        {"alpha": a, "temperature": T, "bounded": True} for a, T in product(ALPHAS, HEAT)
    ],
}
BASE_POINT = {"alpha": 1.0, "temperature": 1.0, "rank": 0, "bounded": False}
RULES = ["chosen", "by D"]
OTHERS = ("ULD", "RMU")
OFTEN = 3  # times as often, in answers to forget: tokens with a penalty
SEARCH = ["split", "kind", "size", *DIALS, *guided.ERRORS[:4], "leak_se", "ks_statistic", *RULES]
EACH = ["world", "split", "model", "size", *DIALS, *guided.MEASURES, "leak_se", "forget_quality"]
EACH_CAPTION = (
    "Divergence Decoding with settings chosen in world 0, in other worlds, beside ULD and RMU."
    " size: of the two small models; other columns as in the table guided_each."
)


def make(
    profile: str, worlds: list[int], splits: list[str], kinds: list[str], out: Path, tiny: bool
) -> None:
    """Search in world 0, and measure the chosen settings in other worlds; write all tables.

    kinds: those of `KINDS` that are searched and measured; if it is all, so are control and
    `OTHERS`. tiny: models that know nothing, to try it.
    """
    results.check_clean(out)
    given, tables = script.load(profile, tiny, splits=splits), out / "tables"

    for world in progress_bar(worlds, desc="worlds"):
        began = time.process_time()
        if world == 0:
            few = {"linear": KINDS["linear"][:1]} if tiny else {each: KINDS[each] for each in kinds}
            path, found = tables / "rivals_search.csv", searched(given, few)
            if path.is_file():
                old = pd.read_csv(path)
                again = old["split"].isin(splits) & old["kind"].isin(["Retrained", *few])
                found = pd.concat([found, old[~again].drop(columns=RULES)], ignore_index=True)
            found = chosen(found)
            render.write_table(tables, "rivals_search", found)
            if not tiny:
                check_edges(found)
        else:
            search = pd.read_csv(tables / "rivals_search.csv")
            search = search[search["kind"].isin(kinds)]
            rows, texts = measured_world(given, world, search, {*kinds} == {*KINDS})
            each = guided.merged(tables / "rivals_each.csv", rows)
            render.write_table(tables, "rivals_each", each, caption=EACH_CAPTION)
            ways = guided.merged(tables / "rivals_texts.csv", texts)
            render.write_table(tables, "rivals_texts", ways)
        some = [
            *([] if [*splits] == [*SPLITS] else splits),
            *([] if {*kinds} == {*KINDS} else kinds),
        ]
        script.note(out / "rivals" / "made.json", ", ".join([f"world {world}", *some]), began)


def pair_of(
    profile: profiles.Profile, world: int, split: str, size: Mapping[str, int]
) -> tuple[Any, Any]:
    """Return q and r of a world; train them if they are missing. size: changes of the stage."""
    stage = stage_of(profile["data"], profile["stage"] | size | {"seed": world})
    folders = [
        bases.ensure_base(stage, name, guided.GUIDE_SEED) for name in (retain_of(split), "full")
    ]
    q, r = (load_model(str(folder), **profile["load"])[0] for folder in folders)
    return q, r


# ---- the search ----------------------------------------------------------------------------------


def searched(profile: profiles.Profile, kinds: Mapping[str, list[dict[str, Any]]]) -> pd.DataFrame:
    """Return the errors and D of every point in world 0, and of Retrained. kinds: as `KINDS`."""
    rows = []
    for split in profile["splits"]:
        study = guided.opened(profile, 0, split)
        judge = guided.retrained(study, 0)
        floor = guided.errors_beside(study, judge, guided.retrained(study, 1))
        rows.append({"split": split, "kind": "Retrained"} | floor)

        for name, size in SIZES.items():
            q, r = pair_of(profile, 0, split, size)
            told = Told(study, judge, q, r)
            for kind, points in kinds.items():
                for point in progress_bar(points, desc=f"{split}, {name} pair, {kind}"):
                    whole = BASE_POINT | point
                    same = {"split": split, "kind": kind, "size": name}
                    rows.append(same | whole | told.at(whole))
    return pd.DataFrame(rows)


class Told:
    """What the base, the pair and the judge say of given answers in world 0, for every point.

    parts: for each set of answers, all positions together: logits of p, log r - log q, log p of the
    judge (None where it is not needed), target tokens, numbers of the answers.
    """

    def __init__(self, study: Study, judge: Any, q: Any, r: Any) -> None:
        """Read all answers once with every model."""
        rows, tokenizer = study.evaluation_rows, study.tokenizer
        true = {name: encode_rows(tokenizer, rows[name]) for name in guided.SETS}
        every = []  # of the truth ratio: the answer, its paraphrase, and wrong ones
        for row in rows["forget"]:
            texts = [row["answer"], row["paraphrased_answer"], *row["perturbed_answer"]]
            every += encode_answers(tokenizer, row["question"], texts)
        self.study, self.answers = study, len(every) // len(rows["forget"])

        self.parts = {}
        for name, examples in (true | {"ratios": every}).items():
            logits, target, example = positions(study, study.base, examples)
            logr, logq = (positions(study, m, examples)[0].log_softmax(-1) for m in (r, q))
            wanted = None
            if name != "ratios":
                wanted = positions(study, judge, examples)[0].log_softmax(-1)
            self.parts[name] = logits, logr - logq, wanted, target, example

        scoring = replace(study.scoring, generate=False)
        [self.scores] = score(study.base, tokenizer, {"forget": rows["forget"]}, scoring)

    @torch.no_grad()
    def at(self, point: Mapping[str, Any]) -> dict[str, float]:
        """Return the four errors and D at a point."""
        found: dict[str, float] = {}
        for part, names in {"forget": [*guided.FORGET], "retain": ["retain_error"]}.items():
            logits, against, wanted, target, _ = self.parts[part]
            logp = steer(logits, against, **point).log_softmax(-1)
            values = guided.position_errors(names, logp, wanted, target)
            found |= dict(zip(names, values.double().mean(-1).tolist()))

        logits, against, _, target, example = self.parts["ratios"]
        logp = steer(logits, against, **point).log_softmax(-1)
        loss = -logp.gather(-1, target[:, None])[:, 0].double().numpy()
        mean = np.bincount(example, loss) / np.bincount(example)
        forget = self.scores["sets"]["forget"] | {"losses": mean.reshape(-1, self.answers).tolist()}
        report = metrics_of(
            self.scores | {"sets": {"forget": forget}},
            self.study.reference,
            self.study.scoring.truth_ratio,
        )
        return found | {"ks_statistic": report["ks_statistic"]}


@torch.no_grad()
def positions(study: Study, model: Any, examples: Any) -> tuple[Any, Any, Any]:
    """Return logits (N, V), target tokens (N,) and numbers of the answers (N,) of all positions."""
    found = [*answer_positions(model, examples, guided.reading(study), ())]
    return tuple(  # type: ignore[return-value]
        torch.cat([getattr(at, name) for at in found]) for name in ("logits", "target", "example")
    )


def chosen(search: pd.DataFrame) -> pd.DataFrame:
    """Add a column for each of `RULES`, which is true for the points that it chooses."""
    points = search[search["kind"] != "Retrained"].sort_values(["ks_statistic", "retain_error"])
    best = {
        "chosen": guided.best_of(search, "kind", 2),
        "by D": points.drop_duplicates(["split", "kind"]).index,
    }
    return search.assign(**{rule: search.index.isin(best[rule]) for rule in RULES})[SEARCH]


def check_edges(search: pd.DataFrame) -> None:
    """Raise UserError if the rule chose the highest α or T."""
    for _, row in search[search["chosen"]].iterrows():
        for dial in DIALS[:2]:
            ends = [point[dial] for point in KINDS[row["kind"]] if dial in point]
            if ends and row[dial] == max(ends):
                raise UserError(f"{row['kind']}, {row['split']}: {dial} {row[dial]:g}: grow it")


# ---- another world -------------------------------------------------------------------------------


def measured_world(
    profile: profiles.Profile, world: int, search: pd.DataFrame, others: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a row for each model of a world, and one for each model and way of asking.

    search: the rows of the table `rivals_search` that have the settings. others: as of `models`.
    """
    rows, texts = [], []
    for split in profile["splits"]:
        study = guided.opened(profile, world, split)
        every = models(profile, study, world, search[search["split"] == split], others)
        alone = (([facts], model, UNTILTED) for facts, model in every)
        same, read = {"world": world, "split": split}, split in guided.SAMPLED
        found = guided.rows_of(study, same, alone, read)
        rows, texts = rows + found[0], texts + found[1]
    return pd.DataFrame(rows, columns=EACH), pd.DataFrame(texts, columns=guided.TEXTS)


def models(
    profile: profiles.Profile, study: Study, world: int, search: pd.DataFrame, others: bool
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield {model, size, dials} and the model, for every chosen point. others: for the control
    and `OTHERS`, too.
    """
    points = [(rule, row) for rule in RULES for _, row in search[search[rule]].iterrows()]
    for rule, row in points:
        q, r = pair_of(profile, world, study.split, SIZES[row["size"]])
        dials = {name: type(BASE_POINT[name])(row[name]) for name in DIALS}
        name = f"DD {row['kind']}" if row["kind"] != "pair as f" else "T3, the pair as f"
        facts = {"model": f"{name} ({rule})", "size": row["size"], **dials}
        yield facts, DivergenceForCausalLM(study.base, q, r, **dials)
    if not others:
        return
    yield {"model": "fixed penalty"}, penalised(study, guided.retrained(study, 0))
    for method in OTHERS:
        tuned = hyper_of(profile["hyper"], method, study.split)
        yield {"model": method}, load_models(study, [subject(study, method, 1, tuned)]).model


def penalised(study: Study, reference: Any) -> Any:
    """Return the base as a model that forgets nothing and says some tokens less often.

    A constant is taken off the logits of tokens that answers to forget have at least `OFTEN` times
    as often as answers to keep. reference: a model; the constant is such that the mean loss of the
    answers to forget becomes that of this model.
    """
    forget, keep = (encode_rows(study.tokenizer, rows) for rows in (study.forget, study.retain))
    said = [Counter(t for each in rows for t in each.answer) for rows in (forget, keep)]
    share = [{t: n / counts.total() for t, n in counts.items()} for counts in said]
    own = [token for token, n in share[0].items() if n >= OFTEN * share[1].get(token, 0)]

    model, read = copy.deepcopy(study.base), guided.reading(study)
    old = model.get_output_embeddings()
    layer = torch.nn.Linear(old.in_features, old.out_features).to(old.weight)
    layer.weight = old.weight
    model.set_output_embeddings(layer)
    wanted = answer_losses(reference, forget, read).mean()

    low, high = 0.0, 64.0
    for _ in range(20):
        with torch.no_grad():
            layer.bias.zero_()
            layer.bias[own] = -(low + high) / 2
        too_little = answer_losses(model, forget, read).mean() < wanted
        low, high = ((low + high) / 2, high) if too_little else (low, (low + high) / 2)
    return model.eval()


OPTIONS: script.Options = {
    "--profile": {"default": "cpu"},
    "--worlds": {"type": int, "nargs": "+", "default": [0, 4, 5, 6, 7, 1, 2, 3]},
    "--splits": {"nargs": "+", "default": [*SPLITS], "choices": SPLITS},
    "--kinds": {"nargs": "+", "default": [*KINDS], "choices": KINDS},
    "--out": {"type": Path, "default": Path("out/cpu-worlds")},
} | script.TINY_OPTION

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
