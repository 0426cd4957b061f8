"""Figures from frames: what they draw is what the numbers say, with and without runs."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from fabricate import fabricate, fabricate_all
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from t3lib.baselines.losses import BASELINES, METHODS
from t3lib.core.names import SPLITS
from t3lib.lab import results
from t3lib.lab.report import look, plots, plots_cost, render, tables
from t3lib.lab.report.architecture import architecture

FIGURES = {  # name -> the figure, and what the paper prints beside it
    "temperature": (plots.temperature, tables.printed(5)),
    "tradeoff": (plots.tradeoff, tables.printed(4)),
    "per_seed": (plots.per_seed, tables.printed(4)),
    "runtime": (plots_cost.runtime, results.paper_table(3)),
}


@pytest.fixture(scope="session")
def frame():
    return results.tidy(fabricate_all())


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("with_paper", [False, True])
def test_draws_with_and_without_runs_and_leaves_pyplot_alone(frame, name, with_paper):
    draw, printed = FIGURES[name]
    for runs in (frame, results.tidy([])):
        figure = draw(runs, printed if with_paper else None)
        assert isinstance(figure, Figure) and figure.get_label(), "its caption"
        figure.canvas.draw()
    assert not plt.get_fignums()


def test_frames_are_left_as_they_were(frame):
    before = frame.copy()
    plots.tradeoff(frame)
    plots_cost.runtime(frame)
    assert frame.equals(before)


def test_temperature_draws_the_means(frame):
    axis = plots.temperature(frame, tables.printed(5)).axes[0]
    table = tables.temperature(frame)
    lines = [line.get_ydata().tolist() for line in axis.lines]
    for split in SPLITS:
        assert any(
            np.allclose(line, table[table.split == split]["fq_held_out"])
            for line in lines
            if len(line) == 5
        )
        printed = results.paper_table(5)[lambda t, split=split: t.split == split]["fq"].tolist()
        assert printed in lines
    assert sum(len(dots.get_offsets()) for dots in axis.collections) == 2 * 5 * 3, (
        "every seed is a dot"
    )


def test_the_bar_in_a_cdf_panel_is_d():
    runs = [fabricate("NPO", "forget10", None, 1), fabricate("T3", "forget10", 2.5, 1)]
    figure = plots.truth_ratio_cdfs(runs)
    for run, axis in zip(runs, figure.axes):
        [bar] = [line for line in axis.lines if line.get_linewidth() > 2]
        low, high = bar.get_ydata()
        assert high - low == pytest.approx(run["metrics"]["ks_statistic"], abs=1e-12)
        assert f"D {high - low:.3f}" in axis.get_title(loc="left")
        steps = [line for line in axis.lines if line is not bar]
        assert sorted(len(line.get_xdata()) for line in steps) == [80, 80]


def test_failed_runs_have_no_panel():
    runs = [
        fabricate("NPO", "forget10", None, 1, failed=True),
        fabricate("RMU", "forget10", None, 1),
    ]
    titles = [axis.get_title(loc="left") for axis in plots.truth_ratio_cdfs(runs).axes]
    assert [title.split("\n")[0] for title in titles if title] == ["RMU"]
    assert "no finished runs" in [text.get_text() for text in plots.truth_ratio_cdfs([]).texts]


def test_tradeoff_places_every_method_at_its_means(frame):
    figure = plots.tradeoff(frame)
    table = tables.tofu(frame)
    for axis, split in zip(figure.axes, SPLITS):
        means = table[table.split == split][["mu_rouge", "fq_held_out"]].to_numpy()
        drawn = np.array(
            [dots.get_offsets()[0] for dots in axis.collections if dots.get_sizes()[0] > 40]
        )
        assert np.allclose(np.array(sorted(map(tuple, drawn))), np.array(sorted(map(tuple, means))))


def test_a_method_is_told_by_its_marker_even_in_grey():
    looks = {(to_hex(look.COLOURS[name]), look.MARKERS[name]) for name in METHODS}
    assert len(looks) == len(METHODS) and look.COLOURS["T3"] not in [
        look.COLOURS[name] for name in BASELINES
    ]


def test_runtime_labels_what_it_draws(frame):
    axis = plots_cost.runtime(frame).axes[0]
    assert {text.get_text().strip() for text in axis.texts} == {"5 + features 2"}, "5 s of training"
    assert [label.get_text() for label in axis.get_yticklabels()][-1] == "T3 (preprocessed)"


def test_architecture_names_its_parts():
    axis = architecture().axes[0]
    words = " ".join(text.get_text() for text in axis.texts)
    assert all(
        part in words for part in ("frozen", "$A$", "$B$", "temper", "softmax", "[g_\\phi(x)]_y")
    )
    assert len(axis.patches) == 9 + 10


def test_saved_figures_are_reproducible(tmp_path, frame):
    for name in ("a", "b"):
        render.save_figure(tmp_path / name / "per_seed.svg", plots.per_seed(frame))
    assert (tmp_path / "a/per_seed.svg").read_bytes() == (tmp_path / "b/per_seed.svg").read_bytes()


def test_every_method_has_a_colour_of_its_own():
    colours = [to_hex(look.COLOURS[name]) for name in (*BASELINES, "T3")]
    assert len(set(colours)) == len(colours)


def test_the_papers_original_is_drawn_where_ours_is(frame):
    original = tables.printed(4).query("method == 'Original'")
    assert len(original) == 2 and len(tables.printed(5).query("method == 'Original'")) == 2
    for axis, split in zip(plots.tradeoff(frame, tables.printed(4)).axes[2:], SPLITS):
        points = [tuple(dots.get_offsets()[0]) for dots in axis.collections]
        row = original[original["split"] == split].iloc[0]
        assert (row["mu_rouge"], row["fq"]) in points
    utility = plots.temperature(frame, tables.printed(5)).axes[1]
    heights = {line.get_ydata()[0] for line in utility.lines if len(set(line.get_ydata())) == 1}
    assert set(original["mu_rouge"]) <= heights


def test_d_is_drawn_where_no_forget_quality_is_above_what_is_caught(frame):
    assert plots.tradeoff(frame).axes[0].get_ylabel() == "Forget Quality"
    caught = frame.assign(fq=1e-12, fq_held_out=1e-12)
    figure = plots.tradeoff(caught, tables.printed(4))
    assert [figure.axes[0].get_ylabel(), figure.axes[2].get_ylabel()] == [
        "KS statistic D",
        "Forget Quality",
    ]
    assert figure.axes[0].get_ylim()[0] > figure.axes[0].get_ylim()[1], (
        "the best, D = 0, is at the top"
    )
    strips = plots.per_seed(caught, tables.printed(4)).axes[0]
    drawn = np.concatenate([dots.get_offsets()[:, 0] for dots in strips.collections])
    ours = tables.at_tuned_temperature(caught)[lambda runs: runs["split"] == SPLITS[0]][
        "ks_held_out"
    ]
    assert sorted(drawn) == sorted(ours), "every seed, and nothing of the paper, which prints no D"


def test_a_panel_names_the_share_of_its_rows(frame):
    """A stage of TOFU with few authors forgets more than 10%; the paper's panel keeps the paper's
    share.
    """
    axes = plots.tradeoff(frame.assign(n_rows=240.0), tables.printed(4)).axes
    titles = [axis.get_title(loc="left") for axis in axes]
    assert titles == ["17% split, ours", "33% split, ours", "5% split, paper", "10% split, paper"]


def test_one_far_method_does_not_squeeze_the_other_panels():
    runs = [
        fabricate(method, "forget10", None, 1)
        for method in ("NPO", "RMU", "SimNPO", "UnDIAL", "SatImp")
    ]
    low, high = plots.truth_ratio_cdfs(runs, columns=5).axes[0].get_xlim()
    far = fabricate("GradDiff", "forget10", None, 1)
    far["truth_ratio"]["forget"] = far["truth_ratio"]["forget"] * 1e-9
    axis = plots.truth_ratio_cdfs([*runs, far], columns=5).axes[0]
    assert axis.get_xlim()[0] > low / 3 and axis.get_xlim()[1] < high * 3
    assert len([tick for tick in axis.get_xticks() if low <= tick <= high]) <= 4


def test_captions_say_n(frame):
    beside = plots.tradeoff(frame, tables.printed(4)).get_label()
    assert "Ours: n = 40 (5%) and 80 (10%) forget rows, 3 seeds; the paper: n = 200 (5%)" in beside
    assert "n = 40 (5%) and 80 (10%) forget rows, 3 seeds." in plots_cost.runtime(frame).get_label()
    assert "n = 40 (5%) and 80 (10%) forget rows, 3 seeds." in plots.temperature(frame).get_label()
    assert (
        "n = 80 forget rows"
        in plots.truth_ratio_cdfs([fabricate("NPO", "forget10", None, 1)]).get_label()
    )


def test_captions_say_what_forget_quality_compares_with(frame):
    alone = frame.assign(fq_held_out=np.nan, ks_held_out=np.nan, n_references=np.nan)
    for draw in (plots.tradeoff, plots.per_seed, plots.temperature):
        assert "retrained models that nothing was tuned on (mean over 1)" in draw(frame).get_label()
        assert "settings were chosen on: none is held out" in draw(alone).get_label()


def test_rows_that_did_not_run_have_no_bar_and_no_tick(frame):
    few = frame[frame["method"].isin(["T3", "NPO"])]
    assert [label.get_text() for label in plots_cost.runtime(few).axes[0].get_yticklabels()] == [
        "NPO",
        "T3 (preprocessed)",
    ]
    assert [label.get_text() for label in plots.per_seed(few).axes[0].get_yticklabels()] == [
        "NPO",
        "T3",
    ]


def test_show_saves_and_shows_an_image_with_its_caption(frame, tmp_path, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda *parts: shown.extend(parts))
    figure = plots.per_seed(frame)
    render.show(figure, tmp_path / "figures" / "per_seed.svg")
    image, words = shown
    assert (
        image.data.startswith(b"\x89PNG")
        and image.alt == figure.get_label()
        and figure.get_label() in words.data
    )
    assert (tmp_path / "figures" / "per_seed.svg").is_file()


def test_a_split_that_did_not_run_has_no_panel(frame):
    """Profile smoke runs one split; an empty panel beside it would look like a failure."""
    one = frame[frame["split"] == "forget10"]
    for figure, panels in (
        (plots.tradeoff(one, tables.printed(4)), 2),
        (plots.per_seed(one, tables.printed(4)), 1),
    ):
        assert len(figure.axes) == panels
        assert all("10% split" in axis.get_title(loc="left") for axis in figure.axes)


def test_the_dials_are_a_line_a_temperature_over_w_with_forget_quality_and_D():
    search = pd.DataFrame(
        [(T, w, 0.1 * T * w, 0.9 - 0.1 * w) for T in (1.0, 2.0) for w in (2.0, 0.5, 1.0)]
    )
    search = search.set_axis(["T", "w", "fq", "D"], axis=1).assign(split="forget10", n_seeds=2)
    figure = plots.dials(search, "10% split", 400)
    for axis, column in zip(figure.axes, ("fq", "D")):
        lines = [line for line in axis.get_lines() if line.get_marker() == "."]
        for T, line in zip((1.0, 2.0), lines, strict=True):
            part = search[search["T"] == T].sort_values("w")
            assert (line.get_xdata() == part["w"]).all() and (
                line.get_ydata() == part[column]
            ).all()
    assert (
        "10% split" in figure.get_label()
        and "n = 400 forget rows, means over 2 seeds" in figure.get_label()
    )


def test_ablations_draw_every_seed_and_the_mean_with_the_tuned_one_first(frame):
    settings = {"tuned": 0.5, "T=1,w=20": 0.1, "T=1,w=5": 0.2, "naive": 0.9}
    t3 = frame[(frame["method"] == "T3") & (frame["T"] == 2.5)]
    varied = [t3.assign(setting=name, fq=value) for name, value in settings.items()]
    figure = plots.ablations(pd.concat(varied))
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "T3 as tuned",
        "no tempering, f^5 for f",
        "no tempering, f^20 for f",
    ]
    means = {
        round(dots.get_offsets()[0][0], 3) for dots in axis.collections if dots.get_sizes()[0] > 20
    }
    assert means == {0.5, 0.2, 0.1}, "naive is no other choice: its head is the same"
    assert len(figure.axes) == 3, "runs without the audit's measures: no empty panels"
    known = plots.ablations(pd.concat(varied).assign(auc=0.25, recognized_verbatim=0.75))
    assert [axis.get_xlabel() for axis in known.axes[3:]] == [
        "Recognized,\nas learned",
        "Membership\nAUC",
    ]
    assert {dots.get_offsets()[0][0] for dots in known.axes[4].collections} == {0.25}
    assert "neither end is best" in known.get_label() and "neither end" not in figure.get_label()
    alone = plots.ablations(pd.concat(varied).assign(auc=0.25), pd.DataFrame())
    assert "retrained models" not in {text.get_text() for text in alone.legends[0].texts}, (
        "03 and 05 without 06"
    )
    retrained = pd.DataFrame(
        {
            "split": ["forget10"] * 3,
            "method": ["Retrained", "Retrained", "NPO"],
            "auc": [0.5, 0.7, 0],
        }
    )
    beside = plots.ablations(pd.concat(varied).assign(auc=0.25), retrained)
    dashed = [line.get_xdata()[0] for line in beside.axes[-1].lines if line.get_linestyle() == "--"]
    assert pytest.approx(0.6) in dashed and "retrained models" in {
        text.get_text() for text in beside.legends[0].texts
    }
    assert "n = 40 (5%) and 80 (10%) forget rows, 3 seeds" in figure.get_label()
    assert plots.ablations(frame).get_label(), "no ablation ran: an empty figure, no error"


def test_a_metric_beyond_0_and_1_is_inside_its_panel(frame):
    far = [fabricate("T3", "forget10", 2.5, seed) | {"setting": "tuned"} for seed in (1, 2)]
    wide = results.tidy(far).assign(fq=7.0, mu_rouge=-3.0)
    for axis, value in zip(plots.ablations(wide).axes, (7.0, -3.0)):
        assert min(axis.get_xlim()) < value < max(axis.get_xlim())
    far = {name: frame[name] + 6 for name in frame.columns if name.startswith("fq")}
    axis = plots.per_seed(frame.assign(**far)).axes[0]
    assert min(axis.get_xlim()) < 6.5 < max(axis.get_xlim())
    assert look.ends([0.2, np.nan]) == (-0.04, 1.04) and look.ends([5.0], rising=False) == (
        5.2,
        -0.2,
    )


def test_an_eleventh_baseline_has_a_look_of_its_own_and_t3_keeps_its_star():
    import subprocess
    import sys

    code = (
        "from t3lib.baselines import losses as L; L.BASELINES['Toy'] = {}; L.METHODS = ('Original',"
        " 'Retrained', *L.BASELINES, 'T3'); from t3lib.lab.report import look; looks ="
        " {(str(look.COLOURS[m]), look.MARKERS[m]) for m in L.METHODS}; assert look.MARKERS['T3']"
        " == '*' and len(looks) == len(L.METHODS); from t3lib.lab.claims import llm; assert"
        " len(llm.TEN) == 10 and 'Toy' not in llm.TEN"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
