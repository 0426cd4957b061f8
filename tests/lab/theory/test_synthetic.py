"""Experiments 1 and 2: the table's shape and arithmetic, reproducibility, and the pieces redone in
the open.
"""

import numpy as np
import pytest

from t3lab.theory import experiments as synthetic
from t3lib.theory import METHODS, GaussianMixture, fit_logistic


@pytest.fixture(scope="session")
def small():
    return synthetic.experiments(
        n_first=(50,), n_second=(25, 50), T=[1.0, 2.0, 3.0], trials=40, seed=3
    )


def test_the_table_has_the_columns_and_rows_of_the_design(small):
    table, cells = small
    expected = (
        "experiment v_f n T method retain_error retain_se retain_median forget_error forget_se"
        " forget_median"
    )
    assert list(table.columns) == expected.split()
    assert len(table) == (3 + 2) * 3 * 2 and not table.isna().any().any()
    assert not table.duplicated(["experiment", "v_f", "n", "T", "method"]).any()
    assert len(cells) == 4  # (v_f = 1e-3, n = 50) belongs to both experiments and is computed once
    shared = [
        table[(table.experiment == e) & (table.v_f == 1e-3) & (table.n == 50)].drop(
            columns="experiment"
        )
        for e in (1, 2)
    ]
    np.testing.assert_array_equal(
        *(part.sort_values(["method", "T"]).to_numpy()[:, 4:] for part in shared)
    )


def test_a_cell_is_the_papers_recipe_step_by_step(small):
    table, cells = small
    rng = np.random.default_rng((3, 25))
    mixture = GaussianMixture(v_f=1e-3)

    def draw(trials):
        s = (rng.random((trials, 25)) < 0.9).astype(float)
        noise = rng.standard_normal((trials, 25))
        return np.where(s == 1, 1 + noise, np.sqrt(1e-3) * noise), s

    z, s = draw(10)
    risks = {
        lam: np.mean([mixture.excess_risk(fit_logistic(a, b, lam)) for a, b in zip(z, s)])
        for lam in synthetic.LAMBDAS
    }
    lam = min(risks, key=risks.get)
    assert cells.set_index(["v_f", "n"]).loc[(1e-3, 25), "lam"] == pytest.approx(lam)
    z, s = draw(40)
    phi = np.array([fit_logistic(a, b, lam) for a, b in zip(z, s)])
    for method in METHODS:
        retain = np.array([mixture.retain_error(p, 2.0, method) for p in phi])
        forget = np.array([mixture.forget_error(p, 2.0, method) for p in phi])
        row = table[
            (table.experiment == 2)
            & (table.n == 25)
            & (table["T"] == 2.0)
            & (table.method == method)
        ].iloc[0]
        assert row.retain_error == pytest.approx(retain.mean(), rel=1e-9)
        assert row.forget_se == pytest.approx(forget.std(ddof=1) / np.sqrt(40), rel=1e-9)
        assert row.forget_median == pytest.approx(np.median(forget), rel=1e-9)


def test_methods_agree_at_t_1_and_the_papers_retain_error_is_never_smaller(small):
    table, _ = small
    wide = table.pivot(
        index=["experiment", "v_f", "n", "T"], columns="method", values="retain_error"
    ).reset_index()
    at_one = wide["T"] == 1.0
    np.testing.assert_allclose(
        wide["exact"][at_one], wide["negligible_overlap"][at_one], rtol=1e-10
    )
    assert (wide["negligible_overlap"][~at_one] > wide["exact"][~at_one]).all()


def test_same_seed_same_numbers_and_another_seed_others(small):
    again = synthetic.experiments(
        n_first=(50,), n_second=(), v_f=(1e-3,), T=[1.0, 2.0, 3.0], trials=40, seed=3
    )[0]
    first = small[0][(small[0].experiment == 1) & (small[0].v_f == 1e-3)]
    np.testing.assert_allclose(again.iloc[:, 5:], first.iloc[:, 5:], rtol=1e-12)
    other = synthetic.experiments(
        n_first=(50,), n_second=(), v_f=(1e-3,), T=[1.0, 2.0, 3.0], trials=40, seed=4
    )[0]
    assert not np.allclose(other["forget_error"], again["forget_error"], rtol=1e-3)


def test_alternatives_are_what_they_say(small):
    """The λ of least risk and its errors are the experiment's; every other row is one control away
    from them.
    """
    table = synthetic.alternatives((25, 50), (1e-3,), T=(1.0, 2.0), w=(3.0,), trials=40, seed=3)
    for n, part in table.groupby("n"):
        least = part[part["least_risk"]]
        first = small[0][
            (small[0].experiment == 2) & (small[0].n == n) & (small[0].method == "exact")
        ].set_index("T")
        plain = least[least["w"] == 1].set_index("T")
        np.testing.assert_allclose(
            plain["forget_error"], first["forget_error"][[1.0, 2.0]], rtol=1e-9
        )
        np.testing.assert_allclose(plain["forget_se"], first["forget_se"][[1.0, 2.0]], rtol=1e-9)
        mixture, rng = GaussianMixture(v_f=1e-3), np.random.default_rng((3, n))
        lam = synthetic.select_lambda(mixture, *synthetic.sample(mixture, n, 10, rng))
        data = synthetic.sample(mixture, n, 40, rng)
        assert set(least["lam"]) == {lam}
        sharp = mixture.forget_error(fit_logistic(*data, lam), 1.0, sharpen=3.0).mean()
        assert least[least["w"] == 3]["forget_error"].item() == pytest.approx(sharp, rel=1e-9)
        row = part[(part["lam"] == 1e-2) & (part["T"] == 2.0)].iloc[0]
        phi = fit_logistic(*data, 1e-2)
        assert row["forget_error"] == pytest.approx(mixture.forget_error(phi, 2.0).mean(), rel=1e-9)
        assert row["delta"] == pytest.approx(mixture.excess_risk(phi).mean(), rel=1e-9)


def test_more_regularisation_and_more_tempering_than_the_risk_asks_for_forgets_better():
    """v_f = 1e-3, n = 100: least risk with its best T against ten thousand times its λ with T
    = 3.
    """
    table = synthetic.alternatives((100,), (1e-3,), T=(1.0, 1.5, 2.0, 3.0), trials=60)
    least = table[table["least_risk"] & (table["w"] == 1)]
    other = table[(table["lam"] == 1e-1) & (table["T"] == 3)].iloc[0]
    assert (
        other["delta"] > 5 * least["delta"].iloc[0]
        and other["forget_error"] < 0.5 * least["forget_error"].min()
    )


def test_every_v_f_sees_the_same_labels():
    cells = [synthetic.fit_trials(GaussianMixture(v_f=v), 25, trials=4) for v in (1e-6, 1.0)]
    np.testing.assert_array_equal(cells[0].s, cells[1].s)
    retain = cells[0].s == 1
    np.testing.assert_array_equal(cells[0].z[retain], cells[1].z[retain])
    assert not np.allclose(cells[0].z[~retain], cells[1].z[~retain])


def test_the_floor_of_the_lambda_grid_matters():
    """numerics: with a floor of 1e-6 the chosen λ of a narrow spike and a large n is the floor
    itself.
    """
    mixture, rng = GaussianMixture(v_f=1e-6), np.random.default_rng(1)
    z, s = synthetic.sample(mixture, 400, 10, rng)
    assert synthetic.select_lambda(mixture, z, s) < 1e-7
    assert synthetic.select_lambda(mixture, z, s, 10.0 ** np.arange(-6, 0.1, 0.5)) == pytest.approx(
        1e-6
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: synthetic.sample(GaussianMixture(), 0, 5, np.random.default_rng(0)), "n must.*0"),
        (lambda: synthetic.fit_trials(GaussianMixture(), 10, trials=0), "trials must.*0"),
        (lambda: synthetic.experiments(v_f=(0.0,), n_second=()), "v_f must.*0.0"),
        (lambda: synthetic.experiments(T=[0.5], trials=2), "T must.*0.5"),
    ],
)
def test_bad_input_names_the_argument_and_its_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()
