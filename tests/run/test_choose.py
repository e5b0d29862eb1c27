"""One of several fits, by rows that none of them has seen."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bmrjax as bmr
from bmrjax.run.sparsest import clearly_better


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


X = jax.random.normal(jax.random.key(0), (160, 3))
Y = X @ np.array([2.0, 0.3, 0.0]) + 0.5 * jax.random.normal(jax.random.key(1), (160,))
TRAIN, NEW = (X[:80], Y[:80]), (X[80:], Y[80:])


def fitted(epochs):
    return bmr.sparsify(
        program,
        TRAIN,
        key=jax.random.key(2),
        num_epochs=epochs,
        batch_size=None,
        steps_per_epoch=20,
        criterion=None,
        progress=False,
    )


@pytest.fixture(scope="module")
def results():
    """Of a fit that has hardly begun, and of one that has ended."""
    return fitted(1), fitted(30)


def test_a_better_fit_takes_the_place_of_the_first(results):
    short, long = results
    best = bmr.choose([short, long], jax.random.key(3), NEW)
    assert len(best.history) == 30
    assert best.metrics["nll"] == pytest.approx(long.evaluate(jax.random.key(3), NEW)["nll"])
    assert len(bmr.choose([long, short], jax.random.key(3), NEW).history) == 30


def test_the_first_stays_where_the_rows_cannot_tell(results):
    _, long = results
    again = bmr.sparsify(
        program,
        TRAIN,
        key=jax.random.key(9),
        num_epochs=31,
        batch_size=None,
        steps_per_epoch=20,
        criterion=None,
        progress=False,
    )
    for first, second in ((long, again), (again, long)):
        best = bmr.choose([first, second], jax.random.key(3), NEW)
        assert len(best.history) == len(first.history)


def test_a_difference_must_be_sure_and_large():
    rng = np.random.default_rng(0)
    other = rng.normal(size=50)
    assert clearly_better(other + 0.2, other)
    assert not clearly_better(other + 0.05, other)  # 2.5 nats
    assert not clearly_better(other + 0.2 + 3 * rng.normal(size=50), other)
    assert not clearly_better(other - 0.2, other)
    assert not clearly_better(other[:19] + 5, other[:19])  # too few rows
    assert not clearly_better(other + 0.2 + np.eye(50)[0] * 500 - 10, other)  # one row says so
    assert not clearly_better(np.full(50, -np.inf), other)
    assert clearly_better(other, np.full(50, -np.inf))


def test_what_is_no_choice_is_explained(results):
    short, _ = results
    with pytest.raises(ValueError, match="no result to choose from"):
        bmr.choose([], jax.random.key(3), NEW)
    with pytest.raises(TypeError, match="takes results of sparsify, got dict"):
        bmr.choose([short.params], jax.random.key(3), NEW)
    far = NEW[0], np.full_like(NEW[1], 1e30)
    with pytest.raises(ValueError, match="no result has a finite"):
        bmr.choose([short], jax.random.key(3), far)
