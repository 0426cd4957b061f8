"""Figures from frames: what they draw is what the numbers say, with and without runs."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from fabricate import fabricate, fabricate_all
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from t3lib import results
from t3lib.names import BASELINES, METHODS, SPLITS
from t3lib.report import plots, render, tables

PAPER = {"temperature": 5, "tradeoff": 4, "per_seed": 4, "runtime": 3}


@pytest.fixture(scope="module")
def frame():
    return results.tidy(fabricate_all())


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("printed", [False, True])
def test_draws_with_and_without_runs_and_leaves_pyplot_alone(frame, name, printed):
    for runs in (frame, results.tidy([])):
        figure = getattr(plots, name)(runs, results.paper_table(PAPER[name]) if printed else None)
        assert isinstance(figure, Figure)
        figure.canvas.draw()
    assert not plt.get_fignums()


def test_frames_are_left_as_they_were(frame):
    before = frame.copy()
    plots.tradeoff(frame)
    plots.runtime(frame)
    assert frame.equals(before)


def test_temperature_draws_the_means(frame):
    axis = plots.temperature(frame, results.paper_table(5)).axes[0]
    table = tables.temperature(frame)
    lines = [line.get_ydata().tolist() for line in axis.lines]
    for split in SPLITS:
        assert any(np.allclose(line, table[table.split == split]["fq"]) for line in lines if len(line) == 5)
        printed = results.paper_table(5)[lambda t, split=split: t.split == split]["fq"].tolist()
        assert printed in lines
    assert sum(len(dots.get_offsets()) for dots in axis.collections) == 2 * 5 * 3, "every seed is a dot"


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
    runs = [fabricate("NPO", "forget10", None, 1, failed=True), fabricate("RMU", "forget10", None, 1)]
    titles = [axis.get_title(loc="left") for axis in plots.truth_ratio_cdfs(runs).axes]
    assert [title.split("\n")[0] for title in titles if title] == ["RMU"]
    assert "no finished runs" in [text.get_text() for text in plots.truth_ratio_cdfs([]).texts]


def test_tradeoff_places_every_method_at_its_means(frame):
    figure = plots.tradeoff(frame)
    table = tables.tofu(frame)
    for axis, split in zip(figure.axes, SPLITS):
        means = table[table.split == split][["mu_rouge", "fq"]].to_numpy()
        drawn = np.array([dots.get_offsets()[0] for dots in axis.collections if dots.get_sizes()[0] > 40])
        assert np.allclose(np.array(sorted(map(tuple, drawn))), np.array(sorted(map(tuple, means))))


def test_a_method_is_told_by_its_marker_even_in_grey():
    assert len(set(plots.MARKERS.values())) == len(METHODS)
    looks = {(to_hex(plots.COLOURS[name]), plots.MARKERS[name]) for name in METHODS}
    assert len(looks) == 13 and plots.COLOURS["T3"] not in [plots.COLOURS[name] for name in BASELINES]


def test_runtime_labels_what_it_draws(frame):
    axis = plots.runtime(frame).axes[0]
    assert {text.get_text().strip() for text in axis.texts} == {"7"}, "2 s of features and 5 s of training"
    assert [label.get_text() for label in axis.get_yticklabels()][-1] == "T3 (preprocessed)"


def test_architecture_names_its_parts():
    axis = plots.architecture().axes[0]
    words = " ".join(text.get_text() for text in axis.texts)
    assert all(part in words for part in ("frozen", "$A$", "$B$", "temper", "softmax", "[g_\\phi(x)]_y"))
    assert len(axis.patches) == 9 + 10


def test_saved_figures_are_reproducible(tmp_path, frame):
    for name in ("a", "b"):
        render.save_figure(tmp_path / name, "per_seed", plots.per_seed(frame))
    assert (tmp_path / "a/per_seed.svg").read_bytes() == (tmp_path / "b/per_seed.svg").read_bytes()
