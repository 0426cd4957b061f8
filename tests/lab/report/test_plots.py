"""Figures from frames: what they draw is what the numbers say, with and without runs."""

import re
import runpy
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from fabricate import fabricate, fabricate_all
from matplotlib import rc_context
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from t3lab import results
from t3lab.names import SPLITS
from t3lab.report import look, plots, plots_cost, plots_theory, render, tables
from t3lib.baselines.losses import METHODS

FIGURES = {  # name -> the figure, and what the paper prints beside it
    "temperature": (plots.temperature, tables.printed(5)),
    "tradeoff": (plots.tradeoff, tables.printed(4)),
    "per_seed": (plots.per_seed, tables.printed(4)),
    "runtime": (plots_cost.runtime, results.paper_table(3)),
}


@pytest.fixture(scope="session")
def frame():
    return results.tidy(fabricate_all())


def points(axis):
    """All dots of a panel as (x, y)."""
    return [tuple(dot) for dots in axis.collections for dot in dots.get_offsets()]


def labels(axis):
    return [label.get_text() for label in axis.get_yticklabels()]


@pytest.mark.parametrize(
    ("name", "with_paper"),
    [
        *product(FIGURES, [True]),
        *product([name for name in FIGURES if name != "tradeoff"], [False]),
    ],
)
def test_draws_with_and_without_runs_and_leaves_pyplot_and_runs_alone(frame, name, with_paper):
    draw, printed = FIGURES[name]
    before = frame.copy()
    for runs in (frame, results.tidy([])):
        figure = draw(runs, printed if with_paper else None)
        assert isinstance(figure, Figure) and figure.get_label(), "its caption"
        figure.canvas.draw()
    assert not plt.get_fignums() and frame.equals(before)


def test_temperature_draws_the_means_every_seed_and_the_levels_around_them(frame):
    figure = plots.temperature(frame, tables.printed(5))
    table, paper = tables.temperature(frame), results.paper_table(5)
    retrained = tables.on_held_out(tables.main_runs(frame)).query("method == 'Retrained'")
    titles = [axis.get_title(loc="left") for axis in figure.axes[:3]]
    assert titles == ["Forget Quality", "MU-ROUGE", "Model Utility"]
    for row, split in zip(np.reshape(figure.axes, (2, 3)), SPLITS):
        mine, theirs = (each[each["split"] == split] for each in (table, paper))
        lines = {line.get_label(): line.get_ydata() for line in row[0].lines}
        assert np.allclose(lines["T3"], mine["fq_held_out"])
        assert [*lines[look.PAPER]] == [*theirs["fq"]]
        assert len(points(row[0])) == 5 * 3 + 5, "every seed is a dot, and the paper's means"
        heights = {tuple(line.get_ydata()) for line in row[1].lines}
        printed = tables.printed(5).query("method == 'Original' and split == @split")
        assert (*printed["mu_rouge"],) * 2 in heights, "the paper's, too"
        for axis, name in zip(row, tables.SUMMARY):
            [band] = axis.patches
            ends = retrained.loc[retrained["split"] == split, name].agg(["min", "max"])
            assert np.allclose([band.get_y(), band.get_y() + band.get_height()], ends)


def test_the_bar_in_a_cdf_panel_is_d_and_failed_runs_have_no_panel():
    runs = [fabricate("NPO", "forget10", None, 1), fabricate("T3", "forget10", 2.5, 1)]
    failed = fabricate("RMU", "forget10", None, 1, failed=True)
    figure = plots.truth_ratio_cdfs([*runs, failed])
    for run, axis in zip(runs, figure.axes, strict=True):
        [bar] = [line for line in axis.lines if line.get_linewidth() > 2]
        distance = abs(np.subtract(*bar.get_ydata()))
        assert distance == pytest.approx(run["metrics"]["ks_statistic"], abs=1e-12)
        assert f"D {distance:.3f}" in axis.get_title(loc="left")
        steps = [line for line in axis.lines if line is not bar]
        assert [len(line.get_xdata()) for line in steps] == [81, 81], "from 0, a step a row"
    assert "n = 80 forget rows" in figure.get_label()
    assert plots.truth_ratio_cdfs([failed]).get_supxlabel() == "no finished runs"


def test_two_numbers_says_what_a_change_of_units_does_to_D():
    """ln R of the original is that of the held-out model, moved and stretched: nothing remains."""
    theirs = np.random.default_rng(0).normal(0, 0.5, 80)
    ratios = {"reference": np.exp(theirs), "forget": np.exp(3 * theirs - 2)}
    run = {"T": 2.5, "truth_ratio": ratios}
    figure = plots.two_numbers(run, run, run, [np.exp(theirs)])
    cold, before = ([t.get_text() for t in axis.get_legend().get_texts()] for axis in figure.axes)
    D = [float(text.rpartition(" ")[2]) for text in (*cold, *before)]
    assert D[4] <= 0.02 < 0.3 < D[3], "one row may change places by rounding"
    assert "divided by 3.0" in cold[1] and 0.02 < D[1] != D[0]


def test_one_far_method_does_not_squeeze_the_other_panels():
    runs = [fabricate(method, "forget10", None, 1) for method in ("NPO", "GradDiff")]
    [ends] = {axis.get_xlim() for axis in plots.truth_ratio_cdfs(runs).axes}
    runs[1]["truth_ratio"]["forget"] = runs[1]["truth_ratio"]["forget"] * 1e-9
    assert {axis.get_xlim() for axis in plots.truth_ratio_cdfs(runs).axes} == {ends}
    assert ends[0] < min(runs[0]["truth_ratio"]["reference"]) < 1 < ends[1]


def test_tradeoff_places_every_method_at_its_means_and_every_seed_beside(frame):
    axes = plots.tradeoff(frame, tables.printed(4)).axes
    ours = tables.on_held_out(tables.at_tuned_temperature(frame))
    for axis, split in zip(axes, SPLITS):
        mine = ours[ours["split"] == split]
        means = mine.groupby("method")[["mu_rouge", "fq"]].mean()
        every = [*mine[["mu_rouge", "fq"]].to_numpy(), *means.to_numpy()]
        assert np.allclose(sorted(map(tuple, every)), sorted(points(axis)))
    for axis, _split in zip(axes[2:], SPLITS):
        [row] = (
            tables.printed(4).query("method == 'Original' and split == @_split").to_dict("records")
        )
        assert (row["mu_rouge"], row["fq"]) in points(axis), "the paper's original"


def test_d_is_drawn_where_no_forget_quality_is_above_what_is_caught(frame):
    assert plots.tradeoff(frame, tables.printed(4)).axes[0].get_ylabel() == "Forget Quality"
    caught = frame.assign(fq=1e-12, fq_held_out=1e-12)
    axes = plots.tradeoff(caught, tables.printed(4)).axes
    assert [axes[n].get_ylabel() for n in (0, 2)] == ["KS statistic D", "Forget Quality"]
    assert axes[0].yaxis_inverted() and not axes[2].yaxis_inverted(), "D = 0 is at the top"
    drawn = points(plots.per_seed(caught, tables.printed(4)).axes[0])
    ours = tables.at_tuned_temperature(caught).query("split == 'forget05'")["ks_held_out"]
    assert sorted(x for x, _ in drawn) == sorted(ours), "every seed, and nothing of the paper"


def test_a_panel_names_the_share_of_its_rows_and_only_splits_that_ran_have_one(frame):
    """A stage of TOFU with few authors forgets more than 10%; the paper's panel keeps the paper's
    share. Profile smoke runs one split; an empty panel beside it would look like a failure.
    """
    axes = plots.tradeoff(frame.assign(n_rows=240.0), tables.printed(4)).axes
    titles = [axis.get_title(loc="left") for axis in axes]
    assert titles == ["17% split, ours", "33% split, ours", "5% split, paper", "10% split, paper"]
    one = frame[frame["split"] == "forget10"]
    for draw, count in ((plots.tradeoff, 2), (plots.per_seed, 1)):
        axes = draw(one, tables.printed(4)).axes
        assert len(axes) == count
        assert all("10% split" in axis.get_title(loc="left") for axis in axes)


def test_show_saves_and_shows_an_image_with_its_caption(frame, tmp_path, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda *parts: shown.extend(parts))
    figure = plots.per_seed(frame)
    for name, drawn in (("a", figure), ("b", plots.per_seed(frame))):
        render.show(drawn, tmp_path / name / "per_seed.svg")
    image, words = shown[:2]
    assert image.data.startswith(b"\x89PNG") and image.alt == figure.get_label()
    assert figure.get_label() in words.data
    first, second = (tmp_path / name / "per_seed.svg" for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes(), "the same bytes from run to run"
    [(_, _, width, height)] = re.findall(r'viewBox="(.+?) (.+?) (.+?) (.+?)"', first.read_text())
    corners = rf"M 0 {height[:-3]}\d* \nL {width[:-3]}\d* .*?\nz\n\" style=\"fill: #ffffff\""
    assert re.search(corners, first.read_text(), re.S), "readable on a dark page: white behind it"


def test_the_dials_are_a_line_a_temperature_over_w_with_forget_quality_and_D():
    rows = [(T, w, 0.1 * T * w, 0.9 - 0.1 * w) for T in (1.0, 2.0) for w in (2.0, 0.5, 1.0)]
    search = pd.DataFrame(rows, columns=["T", "w", "fq", "D"]).assign(split="forget10", n_seeds=2)
    figure = plots.dials(search, "10% split", 400)
    for axis, column in zip(figure.axes, ("fq", "D")):
        lines = [line for line in axis.get_lines() if line.get_marker() == "."]
        for T, line in zip((1.0, 2.0), [line for line in lines if len(line.get_xdata())]):
            part = search[search["T"] == T].sort_values("w")
            assert np.allclose(line.get_xydata(), part[["w", column]])
    first = search[search["w"] == 0.5].set_index("T")["D"]
    ends = {text.get_text(): text.xy for text in figure.axes[1].texts}
    assert ends == {"T = 1": (0.5, first[1]), "T = 2": (0.5, first[2])}, "where lines are apart"
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.05"], "of the test"
    assert not figure.legends and "10% split" in figure.get_label()
    assert "n = 400 forget rows, means over 2 seeds" in figure.get_label()


def test_labels_at_line_ends_do_not_overlap_and_keep_their_order():
    figure, [[axis]] = look.panels(1, 1, (4, 3))
    axis.plot([0, 1], [0, 1])
    look.label_ends(axis, [("c", 0.5, "red"), ("a", 0.499, "0.7"), ("b", 0.4995, "0.7")])
    places = [text.xyann[1] for text in sorted(axis.texts, key=lambda text: text.get_text())]
    height = axis.get_position().height * 3 * 72
    assert np.diff(places) * height == pytest.approx([8, 8])
    assert np.mean(places) * 1.1 - 0.05 == pytest.approx(0.4995, abs=1e-3), "around their ends"


def test_of_several_learning_rates_the_dials_show_the_best_at_each_strength():
    rows = [(1.0, 2.0, 0.01, 0.2, 0.5), (1.0, 2.0, 0.02, 0.3, 0.4), (1.0, 3.0, 0.01, 0.4, 0.3)]
    rows += [(1.0, 3.0, 0.02, 0.1, 0.6), (2.0, 2.0, 0.02, 0.7, 0.2)]
    search = pd.DataFrame(rows, columns=["T", "w", "lr", "fq", "D"]).assign(n_seeds=2)
    figure = plots.dials(search, "10% split", 400)
    for axis, expected in zip(figure.axes, ([[2, 0.3], [3, 0.4]], [[2, 0.4], [3, 0.3]])):
        lines = [line for line in axis.get_lines() if line.get_marker() == "."]
        assert np.allclose(lines[0].get_xydata(), expected)
    assert "At T = 1 each w has the best of 2 learning rates." in figure.get_label()
    alone = plots.dials(search[search["lr"] == 0.02], "10% split", 400)
    assert "learning rates" not in alone.get_label()


@pytest.fixture
def varied(frame):
    """T3 as tuned and in two other settings, and the timing of the naive way."""
    settings = {"tuned": 0.5, "T=1,w=20": 0.1, "T=1,w=5": 0.2, "naive": 0.9}
    t3 = frame[(frame["method"] == "T3") & (frame["T"] == 2.5)]
    return pd.concat([t3.assign(setting=name, fq=value) for name, value in settings.items()])


def test_ablations_draw_every_seed_and_the_mean_with_the_tuned_one_first(varied, frame):
    figure = plots.ablations(varied)
    rows = [
        "T3 as tuned",
        "no tempering, f^5 for f, at this learning rate",
        "no tempering, f^20 for f, at this learning rate",
    ]
    assert labels(figure.axes[0]) == rows, "naive is no other choice: its head is the same"
    assert {round(x, 3) for x, _ in points(figure.axes[0])} == {0.5, 0.2, 0.1}
    assert len(figure.axes) == 3 and "neither end" not in figure.get_label(), "not audited"
    assert all(axis.get_xlabel().endswith("\nbetter →") for axis in figure.axes)
    assert "n = 40 (5%) and 80 (10%) forget rows, 3 seeds" in figure.get_label()
    assert plots.ablations(frame).get_label(), "no ablation ran: an empty figure, no error"


def test_ablations_show_what_retrained_models_have_where_they_were_audited(varied):
    known = varied.assign(auc=0.25, recognized_verbatim=0.75)
    columns = ["split", "method", "auc"]
    methods = ("Retrained", 0.5), ("Retrained", 0.7), ("NPO", 0.0)
    retrained = pd.DataFrame([("forget10", *each) for each in methods], columns=columns)
    for audited, dashed in ((retrained, [0.6]), (pd.DataFrame(), []), (None, [])):
        figure = plots.ablations(known, audited)
        titles = [axis.get_xlabel() for axis in figure.axes[3:]]
        assert titles == ["Recognized,\nas learned", "Membership\nAUC"]
        lines = [line for line in figure.axes[4].lines if line.get_linestyle() == "--"]
        assert [line.get_xdata()[0] for line in lines] == pytest.approx(dashed)
        named = {text.get_text() for text in figure.legends[0].texts}
        assert ("retrained models" in named) == bool(dashed)
        assert "neither end is best" in figure.get_label()


def test_a_metric_beyond_0_and_1_is_inside_its_panel(varied):
    for axis, value in zip(plots.ablations(varied.assign(fq=7.0, mu_rouge=-3.0)).axes, (7.0, -3.0)):
        assert min(axis.get_xlim()) < value < max(axis.get_xlim())


def test_errors_are_drawn_as_means_with_a_band_of_one_standard_error():
    rows = [(1, 1e-3, 50, T, method, 0.1 * T, 0.02, 1 / T, 0.05)
            for T in (1.0, 2.0, 3.0) for method in ("exact", "negligible_overlap")]  # fmt: skip
    columns = ["experiment", "v_f", "n", "T", "method"]
    columns += ["forget_error", "forget_se", "retain_error", "retain_se"]
    table = pd.DataFrame(rows, columns=columns)
    figure = plots_theory.errors(table, "v_f", 9)
    for axis, side in zip(figure.axes, ("forget", "retain")):
        exact = table[table["method"] == "exact"]
        mean, se = exact[f"{side}_error"], exact[f"{side}_se"]
        drawn = [line for line in axis.lines if len(line.get_xdata())]
        assert len(drawn) == 2 and all(np.allclose(line.get_ydata(), mean) for line in drawn)
        band = axis.collections[0].get_paths()[0].vertices[:, 1]
        ends = (mean - se).min(), (mean + se).max()
        assert (band.min(), band.max()) == pytest.approx(ends)
    assert "over 9 data sets" in figure.get_label()


def test_the_price_grows_with_the_vocabulary_and_its_points_are_those_given():
    given = pd.DataFrame({"T": [1.5, 3.0], "retain_error": [0.2, 2.4], "V": 2048})
    [axis] = plots_theory.price(given).axes
    curves = [line for line in axis.lines if len(line.get_xdata()) > 1]
    points = [
        (x, y) for line in axis.lines if line.get_marker() == "o" for x, y in line.get_xydata()
    ]
    assert len(curves) == 4 and points == [(2048, 0.2), (2048, 2.4)]
    for T, line in zip((1.25, 1.5, 2, 3), curves):
        V, price = line.get_xdata() - 1.0, line.get_ydata()
        tail = 1e-3 * (1e-3 / V) ** (1 / T - 1)  # Σ p^(1/T) of the other tokens
        entropy = -(0.999 * np.log(0.999) + 1e-3 * np.log(1e-3 / V))
        expected = np.log(0.999 ** (1 / T) + tail) - (1 - 1 / T) * entropy
        assert np.allclose(price, expected) and (np.diff(price) > 0).all()


def test_every_method_has_a_look_of_its_own():
    looks = {(to_hex(look.COLOURS[name]), look.MARKERS[name]) for name in METHODS}
    assert len(looks) == len(METHODS), "told by its marker even in grey"


@pytest.mark.filterwarnings("error")
def test_a_panel_without_numbers_stays_empty(frame):
    """Seaborn warned, with the path of this code, into the executed notebook."""
    figure = Figure()
    axis = figure.add_subplot()
    look.method_points(axis, frame.assign(fq=np.nan), "mu_rouge", "fq", 25)
    assert not axis.collections
    look.method_points(axis, frame, "mu_rouge", "fq", 25)
    assert axis.collections


def test_a_persons_matplotlibrc_changes_no_picture(tmp_path):
    table = pd.read_csv(ROOT / "results" / "studies" / "cpu-worlds" / "tables" / "worlds_each.csv")
    draw = runpy.run_path(str(ROOT / "results" / "studies" / "cpu-worlds" / "make.py"))["figure"]
    plain = render.save_figure(tmp_path / "plain", draw(table)).read_bytes()
    with rc_context({"text.usetex": True, "axes.facecolor": "black", "font.size": 30.0}):
        assert render.save_figure(tmp_path / "dark", draw(table)).read_bytes() == plain
