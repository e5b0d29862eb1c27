"""Tables and named tuples among the arguments of a program, and values that the program reads itself."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import bmrjax as bmr
from bmrjax.infer.arguments import Constants, arguments, length
from bmrjax.infer.program_data import program_data

ROWS = 30
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 2)).astype(np.float32)
Y = (X[:, 0] + 0.3 * RNG.normal(size=ROWS)).astype(np.float32)
TABLE = pd.DataFrame(X, columns=["dose", "age"]).assign(site=["a", "b"] * (ROWS // 2))


class Study(NamedTuple):
    x: np.ndarray
    y: np.ndarray | None = None


def of_study(study):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(study.x @ beta, 0.5), obs=study.y)


def of_table(table, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
    site = numpyro.sample("site", dist.Normal(0, 1).expand([2]).to_event(1))
    at = (table["site"] == "b").to_numpy().astype(int)
    mean = table[["dose", "age"]].to_numpy() @ beta + site[at]
    numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def of_array(x, y=None):
    assert isinstance(x, jax.Array)
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def fit(program, data, **options):
    options = {"batch_size": None, "steps_per_epoch": 50, "num_epochs": 2, **options}
    return bmr.sparsify(
        program, data, key=jax.random.key(0), criterion=None, progress=False, **options
    )


@pytest.mark.parametrize("batch_size", [None, 10])
def test_a_named_tuple_stays_one(batch_size):
    found = program_data(of_study, (Study(X, Y),), batch_size=batch_size)
    (study,), _ = arguments(found)
    assert isinstance(study, Study)
    assert (study.x.shape, study.y.shape, length(found)) == ((ROWS, 2), (ROWS,), ROWS)


def test_a_program_that_computes_with_a_table_gets_the_table():
    found = program_data(of_table, (TABLE, Y), batch_size=None)
    args, _ = arguments(found)
    pd.testing.assert_frame_equal(args[0], TABLE)
    assert (length(found), args[1].shape) == (ROWS, (ROWS,))
    alone = program_data(lambda table: of_table(table, jnp.asarray(Y)), (TABLE,), batch_size=None)
    assert length(alone) == ROWS


def test_a_program_that_computes_with_arrays_gets_an_array():
    found = program_data(of_array, (TABLE[["dose", "age"]], Y), batch_size=None)
    assert isinstance(arguments(found)[0][0], jax.Array)


def test_rows_of_a_table_cannot_be_taken_for_minibatches():
    with pytest.raises(ValueError, match=r"needs the DataFrame at '0' .* batch_size=None"):
        program_data(of_table, (TABLE, Y), batch_size=10)


def test_what_fails_with_the_table_too_says_what_it_was_given():
    with pytest.raises(TypeError) as caught:
        program_data(lambda table: table["weight"], (TABLE[["dose", "age"]],), batch_size=None)
    assert "gets the DataFrame at '0' as an array" in caught.value.__notes__[-1]


def test_not_a_number_in_a_table_is_not_passed_on():
    missing = TABLE.assign(dose=np.where(np.arange(ROWS) == 3, np.nan, TABLE["dose"]))
    with pytest.raises(ValueError, match="with the DataFrame at '0', the log density is not"):
        program_data(of_table, (missing, Y), batch_size=None)


def test_tables_are_equal_if_they_hold_the_same():
    def constants(table):
        return Constants(jax.tree.structure(((0,), {})), (table,), ROWS)

    same, other = TABLE.copy(), TABLE.assign(site="a")
    renamed = TABLE.rename(columns={"age": "Age"})
    assert constants(TABLE) == constants(same)
    assert constants(TABLE).fingerprint(repr) == constants(same).fingerprint(repr)
    for unlike in (other, renamed):
        assert constants(TABLE) != constants(unlike)
        assert constants(TABLE).fingerprint(repr) != constants(unlike).fingerprint(repr)


def test_new_rows_of_a_table_are_predicted():
    result = fit(of_table, (TABLE, Y))
    key = jax.random.key(1)
    by_table = result.predict(key, TABLE[:4])
    assert by_table.mean.shape == (4,)
    np.testing.assert_allclose(result.predict(key, table=TABLE[:4]).mean, by_table.mean, rtol=1e-5)
    scores = result.evaluate(key, (TABLE[10:], Y[10:]))
    assert 0 < scores["rmse"] < Y.std()


def test_two_likelihoods_of_a_program_that_reads_all_its_data_are_predicted():
    missing = X.copy()
    missing[::5, 1] = np.nan

    def imputing(x, y=None):
        is_missing = np.isnan(x[:, 1])
        drawn = numpyro.sample("drawn", dist.Normal(0, 1).expand([int(is_missing.sum())]))
        column = jnp.asarray(x[:, 1]).at[np.flatnonzero(is_missing)].set(drawn)
        numpyro.sample("column", dist.Normal(0, 1), obs=column)
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        mean = jnp.stack([jnp.asarray(x[:, 0]), column], 1) @ beta
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    result = fit(imputing, (missing, Y))
    assert result.evaluate(jax.random.key(1), (missing, Y))["nll"] > 0
    assert result.predict(jax.random.key(1), missing, Y).mean.shape == (ROWS,)


def test_one_distribution_may_stand_for_all_rows():
    def level(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    def share(y):
        logits = numpyro.sample("logits", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    numbers = fit(level, (Y + 1,)).predict(jax.random.key(1), Y)
    np.testing.assert_allclose(numbers.mean, np.full(ROWS, numbers.mean[0]), rtol=1e-6)
    classes = fit(share, (np.arange(ROWS) % 3,))
    assert classes.predict(jax.random.key(1), np.arange(ROWS) % 3).mean.shape == (ROWS, 3)
    assert "not_predictable" not in classes.facts
