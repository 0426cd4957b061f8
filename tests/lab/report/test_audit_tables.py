"""Tables and figures of the audit from invented runs."""

import numpy as np
import pandas as pd
import pytest
from fabricate import fabricate

from t3lab import results
from t3lab.audit.labels import AUDIT
from t3lab.report import audit, look, plots_audit, render


def invented(method, T, seed, level, *, split="forget10", **more):
    run = fabricate(method, split, T, seed)
    leak = [{"k": k, "value": level / 2 + k / 16, "se": 0.01} for k in (1, 2, 4)]
    run |= {
        "metrics": dict.fromkeys(AUDIT, level),
        "errors": dict.fromkeys(AUDIT, 0.05),
        "empty": {},
        "leak": leak,
    }
    return run | {"templates": {}, "asked": {"top_p": 1.0, "forget": 80, "written": 40}} | more


@pytest.fixture
def runs():
    return [
        invented("T3", 2.0, 1, 0.5),
        invented("T3", 2.0, 2, 0.7),
        invented("Original", None, 0, 1.0),
        *(invented("Retrained", None, seed, level) for seed, level in enumerate((0.1, 0.3, 0.5))),
        fabricate("NPO", "forget10", None, 1, failed=True),
    ]


def test_distance_is_counted_in_spreads_of_the_retrained_models(runs):
    table = audit.audit(runs).set_index("method")
    assert list(table.index) == ["Original", "Retrained", "T3"] and table.loc["T3", "n_seeds"] == 2
    spread = np.std([0.1, 0.3, 0.5], ddof=1)
    for name in AUDIT:
        assert table.loc["T3", name] == pytest.approx(0.6)
        assert table.loc["T3", f"{name}_distance"] == pytest.approx((0.6 - 0.3) / spread)
        assert np.isnan(table.loc["Retrained", f"{name}_distance"])
    alike = [*runs[:3], *(invented("Retrained", None, seed, 0.3) for seed in (0, 1))]
    assert audit.audit(alike).set_index("method").loc["T3", "auc_distance"] == pytest.approx(
        0.3 / 0.05
    ), "rows' error"
    one = audit.audit(runs[:4]).set_index("method")  # a single one has no standard deviation
    assert one.loc["T3", "auc_distance"] == pytest.approx((0.6 - 0.1) / 0.05)


def test_without_a_retrained_model_there_is_no_distance(runs):
    table = audit.audit(runs[:3])
    assert table.filter(like="_distance").isna().all(axis=None) and table["auc"].notna().all()


def test_leak_is_the_mean_over_models(runs):
    table = audit.leak(runs)
    columns = ["tau", "top_p", "k", "value", "se", "rows_leaking", "rows"]
    assert list(table.columns) == ["split", "method", "T", "w", *columns]
    t3 = table[table["method"] == "T3"]
    assert list(t3["k"]) == [1, 2, 4] and t3["value"].iloc[0] == pytest.approx(0.6 / 2 + 1 / 16)


def test_a_sampler_has_rows_of_its_own_in_the_table_and_none_in_the_figure(runs):
    """Counted are rows, and not their mean over samplers."""
    cold = {"value": 0.01, "tau": 0.6, "top_p": 0.9, "rows_leaking": 3.0, "rows": 40}
    further = [entry | cold for entry in runs[0]["leak"]]
    both = [runs[0] | {"leak": runs[0]["leak"] + further}, *runs[1:]]
    table = audit.leak(both)
    t3 = table[table["method"] == "T3"]
    assert list(t3["top_p"]) == [0.9] * 3 + [1.0] * 3 and list(t3["k"]) == [1, 2, 4] * 2
    assert list(t3["tau"]) == [0.6] * 3 + [1.0] * 3 and list(t3["rows_leaking"][:3]) == [3.0] * 3
    assert (t3["value"][:3] == 0.01).all()
    pd.testing.assert_frame_equal(table[table["tau"] == 1].reset_index(drop=True), audit.leak(runs))
    drawn = [plots_audit.leak_curves(audit.leak(some), audit.models(some)) for some in (both, runs)]
    [axis], [alone] = (figure.axes for figure in drawn)
    assert len(axis.lines) == len(alone.lines)


def test_leak_names_every_line_at_its_end_and_all_baselines_once(runs):
    others = [invented(name, None, 1, level) for name, level in (("NPO", 0.2), ("RMU", 0.3))]
    heads = [invented("T3", T, 1, 0.4) | {"w": w} for T, w in ((1.0, 1.0), (1.0, 2.0))]
    every = [*runs[1:], *others, *heads]
    figure = plots_audit.leak_curves(audit.leak(every), audit.models(every))
    [axis] = figure.axes
    levels = {"Original": 1.0, "Retrained": 0.3, "T3, T = 2": 0.7, "T3, T = 1": 0.4}
    levels |= {"T3, T = 1, w = 2": 0.4, "baselines": 0.25}
    ends = {text.get_text(): text.xy for text in axis.texts}
    assert ends == {name: (4, pytest.approx(each / 2 + 4 / 16)) for name, each in levels.items()}
    thin = [line for line in axis.lines if line.get_color() == look.LIGHT]
    assert len(thin) == 2 and {line.get_linewidth() for line in thin} == {0.8}
    assert not figure.legends


def test_models_of_one_product_are_drawn_on_one_curve():
    """leak@k against tau T: (2, 1) at tau = .5 and its twin (1, 2) at tau = 1 are one point."""

    def drawn(T, w, level, tau):
        entry = {"k": 4, "value": level, "se": 0.01, "tau": tau, "rows_leaking": 1.0, "rows": 40}
        return invented("T3", T, 1, level, leak=[entry]) | {"w": w}

    runs = [drawn(2.0, 1.0, 0.3, 0.5), drawn(1.0, 2.0, 0.3, 1.0), drawn(2.0, 1.0, 0.2, 1.0)]
    figure = plots_audit.by_product(audit.leak(runs), 4)
    lines = [zip(*line.get_data()) for line in figure.axes[0].lines]
    points = {(round(x, 9), round(y, 9)) for line in lines for x, y in line}
    assert points >= {(1.0, 0.3), (2.0, 0.2)} and (0.5, 0.3) not in points


def test_ways_of_asking_are_rows_and_models_columns():
    """In the order of the entries; each cell has both counts. Nobody answers in French."""
    entries = pd.DataFrame(
        {"model": model, "way": way, "rows_leaking": leaking, "rows": rows}
        for model, leaking in (("T3", 2), ("NPO", 0))
        for way, rows in (("politely", 8), ("in lower case", 4), ("in French", 0))
    )
    figure = plots_audit.by_way(entries)
    [axis] = figure.axes
    assert [text.get_text() for text in axis.texts][:4] == ["2 / 8", "0 / 8", "2 / 4", "0 / 4"]
    ticks = (axis.get_yticklabels(), axis.get_xticklabels())
    assert [[label.get_text() for label in labels] for labels in ticks] == [
        ["politely", "in lower case"], ["T3", "NPO"],
    ]  # fmt: skip
    shades = axis.collections[0].get_array()
    assert shades[0, 0] == 0.25 and shades[1, 0] == 0.5


def test_no_audit_gives_empty_tables(tmp_path):
    for name, table in (("audit", audit.audit([])), ("leak", audit.leak([]))):
        assert table.empty
        assert render.write_table(tmp_path, name, table).read_text().startswith("split,method,T,w")


def test_an_empty_measure_says_why(runs):
    why = "the bases learned every row of the data"
    left = {name: 0.5 for name in AUDIT if not name.startswith("auc")}
    runs = [
        run | {"metrics": left, "empty": {"auc": why, "auc_min_k": why}}
        for run in runs
        if run["status"] == "ok"
    ]
    [reason] = audit.reasons(runs).itertuples(index=False)
    titles = f"{AUDIT['auc'].title}, {AUDIT['auc_min_k'].title}"
    assert reason == (titles, why, "T3, Original, Retrained"), "one line for both measures"
    assert np.isnan(audit.audit(runs)["auc"]).all()


def test_runs_are_written_without_texts_and_read_back(runs, tmp_path):
    results.write_audit(tmp_path / "runs", runs[0] | {"closest": ["what a model wrote"]})
    [kept] = results.read_audits(tmp_path / "runs")
    assert "closest" not in kept and kept["leak"] == runs[0]["leak"]
    assert results.read_runs(tmp_path / "runs") == [], "the main tables never see an audit"


def test_figures_have_a_panel_for_each_question(runs):
    table, models = audit.audit(runs), audit.models(runs)
    curves, against = (
        plots_audit.leak_curves(audit.leak(runs), models),
        plots_audit.against_temperature(table, models),
    )
    assert len(curves.axes) == 1 and "n = 40 (10%) forget rows, 2 seeds" in curves.get_label(), (
        "that were asked to write"
    )
    assert (
        len(against.axes) == len(plots_audit.AGAINST_T)
        and "n = 80 (10%) forget rows" in against.get_label()
    )
    main = results.tidy(
        [fabricate("T3", "forget10", 2.0, 1), fabricate("Original", "forget10", None, 0)]
    )
    figure = plots_audit.frontier(table, main)
    assert len(figure.axes) == len(plots_audit.FRONTIER)


def test_a_point_of_the_frontier_says_its_w_where_it_is_not_1(runs):
    table = audit.audit(runs)
    mine = table[(table["method"] == "T3") & (table["T"] == 2.0) & (table["w"] == 1)]
    main = [fabricate("T3", "forget10", 2.0, 1), fabricate("T3", "forget10", 2.0, 1) | {"w": 1.5}]
    figure = plots_audit.frontier(pd.concat([table, mine.assign(w=1.5)]), results.tidy(main))
    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["2", "2, w = 1.5"]
