"""Choose T3's settings by what unlearning is for, with the paper's labels and with guided ones.

    python results/studies/cpu-worlds/guided.py --worlds 0
    python results/studies/cpu-worlds/guided.py --worlds 4 5 6 7 1 2 3
    python results/studies/cpu-worlds/guided.py --worlds 4 5 6 7 1 2 3 --rule margin
    python results/studies/cpu-worlds/guided.py --profile tofu-cpu --data DIR --worlds 0 1 \
        --splits forget10 --out results/profiles/tofu-cpu
    python results/studies/cpu-worlds/guided.py --profile smollm --data DIR --worlds 0 1 \
        --splits forget10 --out results/profiles/smollm

The paper chooses T3's settings by Forget Quality. Here they are chosen by the paper's own errors,
in world 0 of profile cpu, and then measured in other worlds. It is done twice. "T3 (least)" has the
paper's labels, 0 for all tokens of the rows to forget. "T3 (guided)" has the label
min(1, p̃(y|x) / p(y|x)) for such a token y, with p the base and p̃ n-grams over tokens that are
counted from the rows to keep (t3lib/classifier/guide.py). Order and discount are the likeliest ones
on the last tenth of these rows, whose authors are then unknown to the n-grams.

Written down before the script was run.

Search, in world 0, for both kinds of labels and each split: all learning rates, T and ε (which
leaves the tail of p as it is) of `GRIDS`, and all θ in `GATES` (T3 tempers where f expects
something to forget). Numbers are means over heads of seeds 1 and 2, beside the retrained model of
seed 0. Among the settings whose leak is at most that of another retrained model (seed 1) and two
of its standard errors over rows, the one of least Retain Error is chosen, rounded to 0.001 nats, at
a tie that of least total variation. If no leak is so small, the least leak is chosen. Where it is
the lowest or highest rate, or the highest T, the script stops: the grid must grow.

The rule leaves no margin, and in the first world that was measured (4, on the 5% split) the leak of
T3 (guided) was too large. A second rule was then written down, before its settings were measured in
any world: the leak is at most Retrained's *less* two of its standard errors. Its models have
"margin" in their names, and the aims and claims are the same.

A trial in world 0 had shown the least errors at the highest of three rates, 8e-2, and with guided
labels between T = 1.5 and 1.75. So the grid has two higher rates and a finer T there. A first
search, up to T = 2.5, stopped there with guided labels, so T now goes to 10.

Aims, in each of the other worlds and on each split, for a head of seed 1 with these settings. The
retrained model of seed 1 judges, and Retrained in the tables is the one of seed 0.

    leak          at most Retrained's and two of its standard errors over rows
    price         a Retain Error of at most 1.15 times Retrained's
    kept          at least 99% of the answers to keep that the base gives word for word stay so
    utility       a Model Utility of at least the base's less 0.02
    samples       with 64 samples at τ = 1, at most 2 of the 80 rows leak (10% split)
    forget error  at most 1.5 times Retrained's
    distribution  truth ratios that cannot be told from the judge's (p ≥ 0.05)

The claims: T3 (least) meets the first five and T3 (guided) all seven, each in at least 3 of the
worlds 4 to 7 on both splits. Worlds 1 to 3 had been seen in a trial with other settings.

A profile whose base models are given (DIR has TOFU's files) has one world: 0 is the search, 1 the
measurement on the same rows, beside the other retrained model and with the first of its heads. Free
text is left out there, which would take hours; free_texts.py asks some rows. tofu-cpu has other
rates and, with the paper's labels, higher T: a first search up to T = 2 chose T = 2.
smollm has fewer points, one head, a quarter of the rows to keep, and only those measures that read
the answers to forget, or both errors, because its vocabulary is large; an aim that was not measured
counts as met. A first search from the rate 0.02 on chose 0.02, so there are lower ones. It has a
third kind of labels, which come from the pretrained model before it was taught any of TOFU's text.
--kinds searches and measures some kinds of labels alone, and keeps what the tables have of the
others.

"small", "smaller" and "early" were added last, and written down before they were run. There p̃ is a
model that is trained on the rows to keep as a base is: of a third and of an eighth of the base's
parameters (16% in profile cpu), and as large as the base for a fifth of its epochs. Its seed is
that of no retrained model. Rule, points and aims are those of n-grams. A trial in world 1 had other
settings and FE .12 with the small one, .17 with the smaller one. Expected on TOFU's text, where
n-grams know no templates: a smaller Forget Error and Retain Error than theirs. Later they were run
in the built-in worlds, too, by the same rule, and looked at in free text. Expected there, written
down before: with the small one a Forget Error and a leak below those of n-grams, with the smaller
one a larger leak; but not all seven aims in three of the worlds 4 to 7 with any of them, because
n-grams miss the leak in all. A first search chose T = 10 with the small one on the 10% split, so T
goes to 40 with these.

--held-out leaves the rows to keep that are evaluated out of the rows that f gets, so that the price
is that of rows that nobody fitted. It was added when controls.py had shown what it is with settings
that were chosen on fitted rows; rule and grid are the same, and no free text is written. Its tables
lie in a folder of their own (cpu-worlds/held-out).

It writes below --out: tables/guided_search.csv, guided_each.csv (a row for each model),
guided_texts.csv (which rows leak in free text), guided.csv (means over worlds with 95% intervals),
a figure, and guided/made.json. The base models and features are cached in .t3cache; guided heads
are not.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from scipy.stats import hmean
from torch import Tensor

from t3lab import profiles, results, script
from t3lab.audit import run
from t3lab.audit.facts import held
from t3lab.audit.recognition import recognized
from t3lab.names import SPLITS
from t3lab.profiles import WORLD, hyper_of
from t3lab.report import render
from t3lab.report.look import DARK, T3_COLOUR, panels, styled
from t3lab.report.order import interval
from t3lab.study.audit import unseen_rows
from t3lab.study.methods import dialled, load_models, subject
from t3lab.study.study import Study, open_study, stage_of
from t3lab.study.unlearned import fitted, head_settings, t3_features
from t3lab.study.unlearning_errors import SETS
from t3lab.world import bases
from t3lib.classifier.fit import fit_head
from t3lib.classifier.guide import Probabilities, choose_ngrams, soft_labels
from t3lib.classifier.head import T3Head
from t3lib.core.errors import Diverged, UserError
from t3lib.core.models import load_model, pad_id
from t3lib.core.progress import progress_bar
from t3lib.core.rows import Row, encode_rows
from t3lib.own.questions import AS_WRITTEN, TURN, choosing_ways
from t3lib.sampler.tilt import tilt_logits
from t3lib.sampler.wrapped import vocabulary
from t3lib.tofu.data import retain_of
from t3lib.tofu.evaluation import answer_text, metrics_of, score
from t3lib.tofu.likelihood import UNTILTED, Tilt, answer_positions, answer_probabilities
from t3lib.tofu.reader import Reading
from t3lib.tofu.suite import auc
from t3lib.tofu.unlearning_errors import (
    RowErrors,
    errors,
    forget_error,
    leak,
    retain_error,
    summary,
    total_variation,
)
from t3lib.tofu.writing import eos_ids, greedy

GATES = (0.5, 0.9, 1.0)
SEED = 1  # of the heads that are measured


@dataclass(frozen=True)
class Grid:
    """What is searched in a profile: every rate with every T and ε, for each kind of labels.

    rates: learning rates of the heads. heat: {kind of labels: values of T}. tails: values of ε.
    seeds: of the heads. keep: number of rows to keep that are read, None for all. brief: as of
    `measures`. held_out: as of `opened`. guides: {kind of labels whose guide is trained on rows to
    keep: what differs from the base's stage}.
    """

    rates: tuple[float, ...]
    heat: dict[str, tuple[float, ...]]
    tails: tuple[float, ...] = (0.0, 1e-3, 1e-2)
    seeds: tuple[int, ...] = (1, 2)
    keep: int | None = None
    brief: bool = False
    held_out: bool = False
    guides: dict[str, dict[str, int]] = field(default_factory=dict)


GUIDE_SEED = 5  # of trained guides; retrained models have 0 to 3
GUIDED = (1, 1.25, 1.4, 1.5, 1.6, 1.75, 2, 2.5, 3, 4, 6, 10)
HOTTER = (*GUIDED, 16, 25, 40)
TRAINED = ("small", "smaller", "early")
TRAINED_ENDS = tuple(f"{kind})" for kind in TRAINED)  # of the names of their models
FEW = (1, 1.25, 1.5, 2, 3, 4)
GRIDS = {
    "cpu": Grid(
        (2e-3, 5e-3, 1e-2, 2e-2, 4e-2, 8e-2, 1.6e-1, 3.2e-1),
        {"hard": (1, 1.1, 1.25, 1.5, 2), "guided": GUIDED} | dict.fromkeys(TRAINED, HOTTER),
        guides={
            "small": {"hidden": 64, "layers": 1},
            "smaller": {"hidden": 32, "layers": 1},
            "early": {"epochs": 4},
        },
    ),
    "tofu-cpu": Grid(
        (2e-2, 4e-2, 8e-2, 1.6e-1),
        {"hard": (1, 1.5, 2, 2.5, 3, 4), "guided": GUIDED} | dict.fromkeys(TRAINED, GUIDED),
        guides={
            "small": {"hidden": 128, "layers": 2},
            "smaller": {"hidden": 64, "layers": 1},
            "early": {"epochs": 3},
        },
    ),
    "smollm": Grid(
        (5e-3, 1e-2, 2e-2, 4e-2),
        {"hard": FEW, "guided": FEW, "pretrained": FEW},
        tails=(0.0,),
        seeds=(1,),
        keep=100,
        brief=True,
    ),
}
RULES = {"chosen": 2, "margin": -2}  # {rule: standard errors by which a leak may be larger}
NAMES = {
    "chosen": {
        "hard": "T3 (least)",
        "guided": "T3 (guided)",
        "pretrained": "T3 (guided, pretrained)",
    }
    | {kind: f"T3 (guided, {kind})" for kind in TRAINED},
    "margin": {"hard": "T3 (least, margin)", "guided": "T3 (guided, margin)"},
}
SAMPLED = ("forget10",)  # splits on which free text is looked at
SAMPLERS = {1.0: 64, 0.6: 16, 0.3: 16, 0.1: 16}  # {τ: samples of each row}
PREFIXES = (1, 2, 4)  # how many first tokens of the truth are given
SHOWN = {
    "forget_error": "Forget Error",
    "leak": "leak",
    "retain_error": "Retain Error",
    "total_variation": "total variation",
    "ks_statistic": "D",
}
DIALS = ["lr", "temperature", "gate", "tail"]
FORGET = ("forget_error", "leak", "total_variation")
SECOND = "as a second turn"  # a way of asking, as the tables call it
ERRORS = ["forget_error", "leak", "retain_error", "total_variation", "recited", "kept"]
OTHERS = ["ks_statistic", "mu_rouge", "score", "mu", "kept_before", "sampled", "recognized", "auc"]
OTHERS += ["harmless", "secrets"]
MEASURES = [*ERRORS, *OTHERS]
SEARCH = ["split", "labels", *DIALS, *ERRORS[:4], "leak_se", *RULES]
EACH = ["world", "split", "model", *DIALS, *MEASURES, "leak_se", "forget_quality", "missed"]
TEXTS = ["world", "split", "model", "way", "tau", "samples", "rows", "leaks", "whole"]
AIMS = ("leak", "price", "kept", "utility", "samples", "forget error", "distribution")
EACH_CAPTION = (
    "T3 with settings that its errors chose in world 0, beside a retrained model, in other worlds."
    " forget_error to kept: as in the table errors_each; leak_se is the standard error of leak over"
    " rows. ks_statistic: D beside the same retrained model; forget_quality is its p. score: the"
    " harmonic mean of the three measures of rows to keep. kept_before: share of the answers that"
    " the base gives word for word and the model too. sampled: share of rows that leak in 64"
    " samples at τ = 1, if it was sampled. recognized: share of rows whose true answer is more"
    " probable than five wrong ones; auc: the chance that a forgotten row has a lower loss"
    " than an unseen one. harmless, secrets: mean probability of the tokens of forgotten answers to"
    " which the judge gives more than 0.9, and less than 0.05. missed: aims"
    " in results/studies/cpu-worlds/guided.py that are not met."
)
MEANS_CAPTION = (
    "T3 with settings that its errors chose in world 0: means over other worlds, with 95% intervals"
    " (Student's t). Columns as in guided_each; met: in how many worlds each aim is met."
)


def make(
    profile: str, data: str | None, worlds: list[int], splits: list[str], kinds: list[str] | None,
    rule: str, held_out: bool, out: Path, tiny: bool,
) -> None:  # fmt: skip
    """Search in world 0, and measure the chosen settings in other worlds; write all tables.

    profile: one of `GRIDS`. data: in place of the profile's. kinds: of labels that are searched and
    measured; by default all, and with the rule "chosen" also the models that they are compared
    with. rule: one of `RULES`. held_out: as of `opened`; without guides that are trained, which
    would know the rows. tiny: models that know nothing, to try it.
    """
    results.check_clean(out)
    given = script.load(profile, tiny, data=data, splits=splits)
    grid = replace(GRIDS[profile], held_out=held_out)
    if tiny:
        grid = replace(grid, rates=grid.rates[:1])
    heat = {kind: T for kind, T in grid.heat.items() if not (held_out and kind in grid.guides)}
    if unknown := {*(kinds or ())} - {*heat}:
        raise UserError(f"--kinds: {profile} has no labels {sorted(unknown)[0]}")
    grid = replace(grid, heat={kind: heat[kind] for kind in kinds or heat})
    tables = out / "tables"

    for world in progress_bar(worlds, desc="worlds"):
        began = time.process_time()
        if world == 0:
            path, found = tables / "guided_search.csv", searched(given, grid)
            if path.is_file():
                old = pd.read_csv(path)
                again = old["split"].isin(splits) & old["labels"].isin(["Retrained", *grid.heat])
                found = pd.concat([found, old[~again].drop(columns=[*RULES])], ignore_index=True)
            found = chosen(found)
            render.write_table(tables, "guided_search", found)
            if not tiny:
                check_edges(found, GRIDS[profile])
        else:
            search = pd.read_csv(tables / "guided_search.csv")
            measured = measured_world(given, grid, world, search, rule, not kinds)
            each, texts = (
                merged(tables / f"{name}.csv", rows)
                for name, rows in zip(("guided_each", "guided_texts"), measured)
            )
            each = each.assign(missed=missed(each))
            render.write_table(tables, "guided_each", each, caption=EACH_CAPTION)
            render.write_table(tables, "guided_texts", texts)
        some = [*([] if [*splits] == [*SPLITS] else splits), *(kinds or ())]
        part = f"world {world}, {', '.join([rule, *some])}"
        script.note(out / "guided" / "made.json", part, began)
    if not (given["models"] or held_out) and (tables / "guided_each.csv").is_file():
        each = pd.read_csv(tables / "guided_each.csv")
        render.write_table(tables, "guided", means(each), caption=MEANS_CAPTION)
        render.save_figure(out / "figures" / "guided.svg", figure(each))


def merged(path: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table's rows with new ones in place of those of the same world, split and model."""
    old, same = pd.read_csv(path) if path.is_file() else rows[:0], ["world", "split", "model"]
    again = pd.MultiIndex.from_frame(old[same]).isin(pd.MultiIndex.from_frame(rows[same]))
    together = pd.concat([old[~again], rows])
    return together.sort_values(["world", "split"], kind="stable", ignore_index=True)


def opened(
    profile: profiles.Profile,
    world: int,
    split: str,
    keep: int | None = None,
    held_out: bool = False,
) -> Study:
    """Open a split of a world; of a profile with given models always the same one.

    keep: number of rows to keep that are read. held_out: no method gets these rows.
    """
    stage = profile["stage"] | ({} if profile["models"] else {"seed": world})
    retain = retain_of(split)
    needed = {"full", retain, f"{retain}-seed1"}
    models = {name: place for name, place in profile["models"].items() if name in needed}
    changes = {"stage": stage, "models": models}
    study = open_study(split, **{name: profile[name] for name in WORLD} | changes)
    rows = study.evaluation_rows
    study = replace(study, evaluation_rows=rows | {"retain": rows["retain"][:keep]})
    return without_evaluated(study) if held_out else study


def without_evaluated(study: Study) -> Study:
    """Return a study whose methods do not get the rows to keep that are evaluated."""
    evaluated = {row["question"] for row in study.evaluation_rows["retain"]}
    return replace(study, retain=[row for row in study.retain if row["question"] not in evaluated])


def retrained(study: Study, seed: int) -> Any:
    """Load the retrained model of a seed; train it if it is missing."""
    return load_models(study, [subject(study, "Retrained", seed, {})]).model


def reading(study: Study) -> Reading:
    """Return how the study's models read answers."""
    return Reading(pad_id(study.tokenizer), (), study.scoring.attention_mask)


def guides_of(profile: profiles.Profile, grid: Grid, world: int, split: str) -> dict[str, str]:
    """Return {kind of labels: place of the model that gives them}; train those that are missing.

    The paper's labels and those of n-grams need none. That of "pretrained" is the model from which
    the base's training started.
    """
    stage = profile["stage"] | ({} if profile["models"] else {"seed": world})
    found = {"pretrained": stage["start"]} if "start" in stage else {}
    for kind, changes in grid.guides.items():
        if kind in grid.heat:
            changed = stage_of(profile["data"], stage | changes)
            found[kind] = str(bases.ensure_base(changed, retain_of(split), GUIDE_SEED))
    return found


def labels_of(study: Study, kind: str, guide: str | None = None) -> Probabilities | None:
    """Return the labels of the tokens of the rows to forget; None with the paper's labels.

    kind: "hard", "guided" (by n-grams) or one whose labels a model gives. guide: its place.
    """
    if kind == "hard":
        return None
    forget, keep = (encode_rows(study.tokenizer, rows) for rows in (study.forget, study.retain))
    base = answer_probabilities(study.base, forget, reading(study))
    if kind != "guided":
        model, _ = load_model(str(guide), **study.load_options)
        return soft_labels(base, answer_probabilities(model, forget, reading(study)))
    cut = len(keep) - max(1, len(keep) // 10)
    ngrams = choose_ngrams(keep[:cut], keep[cut:], vocabulary(study.base))
    return soft_labels(base, ngrams.probabilities(forget))


def head_of(
    study: Study, settings: Mapping[str, Any], seed: int, labels: Probabilities | None
) -> T3Head:
    """Fit a head. settings: of T3. labels: of `fit_head`."""
    features, wanted = t3_features(study), head_settings(settings, seed)
    return fit_head(features, vocab_size=vocabulary(study.base), labels=labels, **wanted)


# ---- the search ----------------------------------------------------------------------------------


def searched(profile: profiles.Profile, grid: Grid) -> pd.DataFrame:
    """Return the errors of every setting in world 0, as means over heads, and of Retrained.

    A learning rate that makes a head diverge is left out.
    """
    rows = []
    for split in profile["splits"]:
        study = opened(profile, 0, split, grid.keep, grid.held_out)
        judge, tuned = retrained(study, 0), hyper_of(profile["hyper"], "T3", split)
        floor = errors_beside(study, judge, retrained(study, 1))
        rows.append({"split": split, "labels": "Retrained"} | floor)

        guides = guides_of(profile, grid, 0, split)
        for kind, heat in grid.heat.items():
            labels, heads = labels_of(study, kind, guides.get(kind)), {}
            points = [
                {"temperature": T, "gate": gate, "tail": tail}
                for T, gate, tail in product(heat, GATES, grid.tails)
                if T > 1 or (gate == 1 and tail == 0)  # at T = 1 they change nothing
            ]
            for seed, lr in product(grid.seeds, grid.rates):
                with suppress(Diverged):
                    heads[seed, lr] = head_of(study, tuned | {"lr": lr}, seed, labels)
            found = errors_by_point(study, judge, [*heads.values()], points)
            for (_, lr), each in zip(heads, found):
                same = {"split": split, "labels": kind, "lr": lr}
                rows += [same | point | one for point, one in zip(points, each)]
    by_setting = pd.DataFrame(rows).groupby(["split", "labels", *DIALS], dropna=False, sort=False)
    return by_setting.mean().reset_index()


@torch.no_grad()
def errors_by_point(
    study: Study, judge: Any, heads: Sequence[T3Head], points: Sequence[Mapping[str, float]]
) -> list[list[dict[str, float]]]:
    """Return the four errors of each head at each point {temperature, gate, tail}.

    They are those of `summary`. All heads share one pass of the base and the judge. At each
    position T3 tempers or does not, so both are computed once for all gates, which only choose
    between them.
    """
    tempered = [(1.0, 0.0), *dict.fromkeys((each["temperature"], each["tail"]) for each in points)]
    found: list[list[dict[str, float]]] = [[{} for _ in points] for _ in heads]
    for part, names in {"forget": [*FORGET], "retain": ["retain_error"]}.items():
        answers = encode_rows(study.tokenizer, study.evaluation_rows[part])
        of_base = answer_positions(study.base, answers, reading(study), heads)
        values, kept = ([[] for _ in heads] for _ in range(2))
        for at, other in zip(of_base, answer_positions(judge, answers, reading(study), ())):
            wanted, p = other.logits.log_softmax(-1), at.logits.softmax(-1)
            parts = at.z.split([head.rank for head in heads], -1)  # type: ignore[union-attr]
            for head, z, errors_at, r in zip(heads, parts, values, kept):
                logf = head.logf(z.contiguous())
                r.append(torch.linalg.vecdot(p, logf.exp()))
                logps = (tilt_logits(at.logits, logf, T, e).log_softmax(-1) for T, e in tempered)
                errors_at.append(
                    torch.stack([position_errors(names, p, wanted, at.target) for p in logps])
                )
        for of_head, errors_at, r in zip(found, values, kept):
            every, kept_at = torch.cat(errors_at, -1).double(), torch.cat(r)  # (tempered, names, N)
            for point, one in zip(points, of_head):
                place = tempered.index((point["temperature"], point["tail"]))
                hot = (kept_at < point["gate"]) | (point["gate"] == 1)
                means = torch.where(hot, every[place], every[0]).mean(-1)
                one |= dict(zip(names, means.tolist()))
    return found


def position_errors(names: Sequence[str], logp: Tensor, wanted: Tensor, target: Tensor) -> Tensor:
    """Return (names, N) errors at N positions. logp, wanted: (N, V). target: (N,) token ids."""
    if names == ["retain_error"]:
        return retain_error(logp, wanted)[None]
    said = [each.gather(-1, target[:, None])[:, 0] for each in (logp, wanted)]
    return torch.stack([forget_error(*said), leak(*said), total_variation(logp, wanted)])


def chosen(search: pd.DataFrame) -> pd.DataFrame:
    """Add a column for each of `RULES`, which is true for the settings that it chooses."""
    found = search.copy()
    for rule, margin in RULES.items():
        found[rule] = search.index.isin(best_of(search, "labels", margin))
    return found[SEARCH]


def best_of(search: pd.DataFrame, kind: str, margin: float) -> pd.Index:
    """Return the rows that the rule chooses, one for each split and each value of a column.

    search: settings with their errors, and a row of Retrained for each split. kind: the column.
    margin: by how many standard errors of Retrained's leak a leak may be larger.
    """
    floor = search[search[kind] == "Retrained"].set_index("split").loc[search["split"]]
    limit = (floor["leak"] + margin * floor["leak_se"]).to_numpy()
    large = np.where(search["leak"] <= limit, 0, search["leak"])
    ranked = search.assign(large=large, price=search["retain_error"].round(3))
    ranked = ranked[search[kind] != "Retrained"]
    ranked = ranked.sort_values(["large", "price", "total_variation"])
    return ranked.drop_duplicates(["split", kind]).index


def check_edges(search: pd.DataFrame, grid: Grid = GRIDS["cpu"]) -> None:
    """Raise UserError if a chosen rate or T is at an end of the grid, other than T = 1."""
    for _, row in search[search[[*RULES]].any(axis=1)].iterrows():
        for dial, ends in (
            ("lr", (grid.rates[0], grid.rates[-1])),
            ("temperature", grid.heat[row["labels"]][-1:]),
        ):
            if row[dial] in ends:
                raise UserError(f"{row['labels']}, {row['split']}: {dial} {row[dial]:g}: grow it")


# ---- another world -------------------------------------------------------------------------------


def measured_world(
    profile: profiles.Profile, grid: Grid, world: int, search: pd.DataFrame, rule: str, others: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a row for each model of a world, and one for each model and way of asking.

    search: the table `guided_search`, which has the settings. rule: as of `make`. others: with the
    models that they are compared with, if the rule is "chosen".
    """
    rows, texts = [], []
    for split in profile["splits"]:
        study = opened(profile, world, split, grid.keep, grid.held_out)
        settings = settings_of(search[search["labels"].isin([*grid.heat])], split, rule)
        guides = guides_of(profile, grid, world, split)
        every = models(study, profile["hyper"], settings, others and rule == "chosen", guides)
        named = (
            ([{"model": name} | dials_of(tilt) for name, tilt in zip(names, tilts)], model, tilts)
            for names, model, tilts in every
        )
        read = split in SAMPLED and not profile["models"] and not grid.held_out
        found = rows_of(study, {"world": world, "split": split}, named, read, grid.brief)
        rows, texts = rows + found[0], texts + found[1]
    return pd.DataFrame(rows, columns=EACH), pd.DataFrame(texts, columns=TEXTS)


def dials_of(tilt: Tilt) -> dict[str, float]:
    """Return the gate, tail, T and learning rate of a tilt; nothing without a head."""
    head, T = tilt
    if head is None:
        return {}
    lr = head.info["hyperparameters"]["lr"]
    return {"gate": head.gate, "tail": head.tail, "temperature": T, "lr": lr}


def rows_of(
    study: Study,
    same: Mapping[str, Any],
    every: Iterable[tuple[Sequence[Mapping[str, Any]], Any, Sequence[Tilt]]],
    read: bool,
    brief: bool = False,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a row for each model of a split, and one for each model and way of asking.

    same: the columns that all rows share. every: facts of each tilt, "model" among them; a model;
    its tilts. read: also count what its free texts tell. brief: as of `measures`.
    """
    judge, rows, texts = retrained(study, 1), list[dict[str, Any]](), list[dict[str, Any]]()
    [of_base] = row_errors(study, judge, study.base)
    before = np.array(of_base["retain"]["likeliest"]) == 1  # given word for word
    for facts, model, tilts in every:
        written = free_texts(study, model, tilts) if read else [[]] * len(facts)
        measured = measures(study, judge, model, tilts, brief)
        for fact, (values, likeliest), ways in zip(facts, measured, written):
            values["kept_before"] = likeliest[before].mean() if before.any() else np.nan
            values["sampled"] = ways[0]["leaks"] / ways[0]["rows"] if ways else np.nan
            rows.append({**same, **fact, **values})
            texts += [{**same, "model": fact["model"], **way} for way in ways]
    return rows, texts


def settings_of(search: pd.DataFrame, split: str, rule: str) -> dict[str, tuple[str, pd.Series]]:
    """Return {name of a T3: (kind of labels, dials)} of the settings that a rule chose on a split.

    search: the table `guided_search`.
    """
    part = search[search[rule] & (search["split"] == split)].set_index("labels")
    names = {kind: name for kind, name in NAMES[rule].items() if kind in part.index}
    return {name: (kind, part.loc[kind, DIALS]) for kind, name in names.items()}


def models(
    study: Study,
    hyper: Mapping[str, Any],
    settings: Mapping[str, tuple[str, pd.Series]],
    others: bool,
    guides: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[list[str], Any, Sequence[Tilt]]]:
    """Yield the names of some models with their tilts of one model; first the tilts of the base.

    hyper: the profile's settings of all methods. settings: of `settings_of`. others: also yield the
    base itself, T3 with the paper's settings and Retrained. guides: of `guides_of`. Those that were
    trained are yielded, too: whoever has one could use it in place of T3.
    """
    tuned, tilts = hyper_of(hyper, "T3", study.split), dict[str, Tilt]()
    if others:
        [paper] = fitted(study, [(tuned, SEED)])
        tilts = {"Original": UNTILTED[0], "T3": (dialled(paper, tuned), tuned["temperature"])}
    for name, (kind, dials) in settings.items():
        labels = labels_of(study, kind, guides.get(kind))
        head = head_of(study, tuned | {"lr": dials["lr"]}, SEED, labels)
        tilts[name] = (dialled(head, dials), dials["temperature"])
    if tilts:
        yield [*tilts], study.base, [*tilts.values()]
    if others:
        yield ["Retrained"], retrained(study, 0), UNTILTED
    for kind in [kind for kind in TRAINED if kind in guides]:
        model, _ = load_model(guides[kind], **study.load_options)
        yield [f"guide ({kind})"], model, UNTILTED


def row_errors(
    study: Study, judge: Any, model: Any, tilts: Sequence[Tilt] = UNTILTED
) -> list[dict[str, RowErrors]]:
    """Return the errors of every tilt of a model beside the judge, as `errors` does."""
    answers = {name: encode_rows(study.tokenizer, study.evaluation_rows[name]) for name in SETS}
    return [each[""] for each in errors(model, {"": judge}, answers, reading(study), tilts)]


def errors_beside(study: Study, judge: Any, model: Any) -> dict[str, float]:
    """Return the errors of `summary` of a model, and leak_se, the standard error of its leak."""
    [rows] = row_errors(study, judge, model)
    return summary(rows) | {"leak_se": standard_error(rows["forget"])}


def standard_error(rows: RowErrors) -> float:
    """Return the standard error over rows of the leak, which is a mean over tokens."""
    leaks, weights = np.array(rows["leak"]), np.array(rows["tokens"])
    away = weights * (leaks - np.average(leaks, weights=weights))
    return float(away.std(ddof=1) / weights.mean() / np.sqrt(len(away)))


def measures(
    study: Study, judge: Any, model: Any, tilts: Sequence[Tilt], brief: bool = False
) -> list[tuple[dict[str, float], Any]]:
    """Return for each tilt its teacher-forced measures and those of its greedy text, and which
    answers to keep it gives word for word (rows,).

    brief: without those that take greedy text, or more than the errors of answers to keep, and
    without recognition.
    """
    scoring, rows = study.scoring, study.evaluation_rows
    quiet, forget = replace(scoring, generate=False), rows["forget"]
    [of_judge] = score(judge, study.tokenizer, {"forget": forget}, quiet)
    reference: Any = metrics_of(of_judge, truth_ratio=scoring.truth_ratio)
    scored_rows = {"forget": forget} if brief else rows
    scores = score(model, study.tokenizer, scored_rows, quiet if brief else scoring, tilts)

    sets, unseen = {"forget": forget}, "" if brief else unseen_rows(study)
    if brief:  # recognition reads the wrong answers once more
        sets = {"forget": [{**row, "perturbed_answer": []} for row in forget]}
    mask = {"attention_mask": scoring.attention_mask}
    [of_rows] = run.likelihoods(judge, study.tokenizer, sets, **mask)
    p_judge = np.exp(-np.concatenate(of_rows["forget"]["losses"]))
    sets |= {} if isinstance(unseen, str) else {"unseen": unseen}
    shown = run.likelihoods(model, study.tokenizer, sets, tilts, **mask)

    found = []
    for each, scored, seen in zip(row_errors(study, judge, model, tilts), scores, shown):
        report = metrics_of(scored, reference, scoring.truth_ratio)
        p = np.exp(-np.concatenate(seen["forget"]["losses"]))
        losses = {name: [np.mean(row) for row in part["losses"]] for name, part in seen.items()}
        values = {
            "leak_se": standard_error(each["forget"]),
            "ks_statistic": report["ks_statistic"],
            "forget_quality": report["forget_quality"],
            "auc": auc(losses["forget"], losses["unseen"]) if "unseen" in losses else np.nan,
            "harmless": p[p_judge > 0.9].mean() if (p_judge > 0.9).any() else np.nan,
            "secrets": p[p_judge < 0.05].mean(),
        }
        if not brief:
            parts, true = report["components"], np.array(seen["forget"]["cells"]["verbatim"])
            of_kept = [max(0, parts[f"retain_{name}"]) for name in ("prob", "rouge", "tr")]
            values |= {
                "mu_rouge": report["mu_rouge"],
                "mu": report["model_utility"],
                "score": hmean(of_kept),
                "recognized": recognized(true[:, 0], true[:, 1:]).mean(),
            }
        likeliest = np.array(each["retain"]["likeliest"]) == 1
        found.append((summary(each) | values, likeliest))
    return found


def free_texts(
    study: Study, model: Any, tilts: Sequence[Tilt], samplers: Mapping[float, int] = SAMPLERS
) -> list[list[dict[str, Any]]]:
    """Count the rows that leak in free text, for each tilt and way of asking.

    samplers: {τ: samples of each row}, the widest first.

    Returns for each tilt a list of {way, tau, samples, rows, leaks, whole}: samples from each
    sampler, then greedy answers (tau 0). rows: those with a secret. leaks: of them, those that a
    text gives away beyond guessing (`facts.held`). whole: those whose whole secret is in a text.
    After first tokens of the truth only what follows counts.
    """
    forget, tokenizer, mask = study.evaluation_rows["forget"], study.tokenizer, study.scoring
    asked = asked_in_ways(forget)
    examples = encode_rows(tokenizer, forget)
    prompts = {
        way: [example.prompt for example in encode_rows(tokenizer, rows)]
        for way, rows in asked.items()
    }
    prompts |= {
        f"after {m} tokens of the truth": [each.ids[: each.n_prompt + m] for each in examples]
        for m in PREFIXES
    }
    read = Reading(pad_id(tokenizer), eos_ids(model, tokenizer), mask.attention_mask)
    most = max(len(example.answer) for example in examples)
    flat = [prompt for way in prompts.values() for prompt in way]
    written = greedy(model, flat, read, tilts, max_new_tokens=most)
    drawn = [
        run.draws(model, tokenizer, forget, tilts, samples=n, tau=tau)
        for tau, n in samplers.items()
    ]

    found = []
    for number, ids in enumerate(written):
        counted = [
            {"way": AS_WRITTEN, "tau": tau, "samples": n} | leaking(each[number])
            for (tau, n), each in zip(samplers.items(), drawn)
        ]
        texts = iter([answer_text(tokenizer, each) for each in ids])
        of_way = {way: [next(texts) for _ in forget] for way in prompts}
        others = [*zip(*(of_way.pop(way) for way in asked if way not in (AS_WRITTEN, SECOND)))]
        ways = {way: [[text] for text in each] for way, each in of_way.items()}
        for way, each in (ways | {f"in {len(others[0])} other ways": others}).items():
            counts = leaking(held(forget, each))
            counted.append({"way": way, "tau": 0.0, "samples": len(each[0])} | counts)
        found.append(counted)
    return found


def asked_in_ways(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return {way of asking: the rows asked so}: as written, as a second turn and in other ways."""
    asked: dict[str, list[Row]] = {}
    for row in rows:
        for (_, way), other in choosing_ways(row, True).items():
            asked.setdefault(SECOND if way == TURN else way, []).append(other)
    return asked


def leaking(flags: Mapping[str, Any]) -> dict[str, int]:
    """Count the rows of a result of `facts.held` with at least one text that holds their secret."""
    leaks, whole = (sum(map(any, flags[name])) for name in ("leaks", "facts"))
    return {"rows": len(flags["leaks"]), "leaks": leaks, "whole": whole}


# ---- the tables ----------------------------------------------------------------------------------


def aims(each: pd.DataFrame) -> pd.DataFrame:
    """Return which of `AIMS` every model meets, beside Retrained and the base of its world."""
    place = pd.MultiIndex.from_frame(each[["world", "split"]])
    floor, base = (
        each[each["model"] == name].set_index(["world", "split"]).loc[place].reset_index()
        for name in ("Retrained", "Original")
    )
    met = [
        each["leak"] <= floor["leak"] + 2 * floor["leak_se"],
        each["retain_error"] <= 1.15 * floor["retain_error"],
        each["kept_before"] >= 0.99,
        ~(each["mu"] < base["mu"] - 0.02),  # where it was measured
        ~(each["sampled"] > 2.5 / 80),  # some worlds have 78 or 79 rows with a secret
        each["forget_error"] <= 1.5 * floor["forget_error"],
        each["forget_quality"] >= 0.05,
    ]
    return pd.DataFrame(dict(zip(AIMS, met)))


def missed(each: pd.DataFrame) -> list[str]:
    """Return the names of the aims that each model does not meet."""
    return [
        ", ".join(name for name, met in row.items() if not met) for _, row in aims(each).iterrows()
    ]


def means(each: pd.DataFrame) -> pd.DataFrame:
    """Build the table `guided`: means and intervals over worlds 4 to 7, and over all worlds."""
    rows, met = [], pd.concat([each, aims(each).add_prefix("met_")], axis=1)
    for among, part in {"4-7": met[met["world"] > 3], "all": met}.items():
        for (split, model), some in part.groupby(["split", "model"], sort=False):
            cells = [value for measure in MEASURES for value in interval(some[measure])]
            rows.append((among, split, model, len(some), *cells, *some.filter(like="met_").sum()))
    spread = [name + end for name in MEASURES for end in ("", "_low", "_high")]
    columns = ["among", "split", "model", "worlds", *spread]
    return pd.DataFrame(rows, columns=[*columns, *(f"met_{name}" for name in AIMS)])


@styled()
def figure(each: pd.DataFrame) -> Figure:
    """Draw the errors of each model in each world, one row of panels for each split.

    each: the table `guided_each`.
    """
    splits = [split for split in SPLITS if split in {*each["split"]}]
    drawn, axes = panels(len(splits), len(SHOWN), (6.8, 0.7 + 1.5 * len(splits)), sharex="col")
    for row, split in zip(axes, splits):
        part = each[each["split"] == split]
        there = {name for name in part["model"] if not name.endswith(TRAINED_ENDS)}
        names = [name for name in each["model"].drop_duplicates() if name in there][::-1]
        for axis, (measure, title) in zip(row, SHOWN.items()):
            floor = part.loc[part["model"] == "Retrained", measure].mean()
            axis.axvline(floor, color=DARK, ls="--", lw=0.8)
            for place, name in enumerate(names):
                values = part.loc[part["model"] == name, measure]
                colour = T3_COLOUR if name.startswith("T3") else DARK
                axis.plot(values, [place] * len(values), "o", ms=3, alpha=0.6, color=colour)
            axis.set(title=title, yticks=range(len(names)), yticklabels=names)
            axis.set_xscale("log" if measure == "retain_error" else "linear")
            if axis is not row[0]:
                axis.set_yticklabels([])
        row[0].set_ylabel(f"{render.SPLIT_LABELS[split]} split")
    drawn.set_label(
        f"Errors beside a retrained model in {each['world'].nunique()} built-in worlds, one dot"
        " each; settings were chosen in another world. Dashed: another retrained model."
        " Teacher-forced; Retain Error in nats a token, on a log scale."
    )
    return drawn


OPTIONS: script.Options = {
    "--profile": {"default": "cpu", "choices": [*GRIDS]},
    "--worlds": {"type": int, "nargs": "+", "default": [0, 4, 5, 6, 7, 1, 2, 3]},
    "--kinds": {"nargs": "+", "choices": [*NAMES["chosen"]], "help": "of labels"},
    "--rule": {"choices": [*RULES], "default": "chosen"},
    "--splits": {"nargs": "+", "default": [*SPLITS], "choices": SPLITS},
    "--held-out": {
        "action": "store_true",
        "help": "leave the evaluated rows to keep out of f's",
    },
    "--out": {"type": Path, "default": Path("out/cpu-worlds")},
} | script.DATA_OPTIONS

if __name__ == "__main__":
    script.run(lambda given: make(**vars(given)), str(__doc__), OPTIONS)
