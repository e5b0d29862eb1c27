"""Evidence, saliency and compensation of rows against exact Gaussian algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax.trained import BinaryCrossEntropy, CrossEntropy, FunctionLoss, SquaredError, eliminate
from bmrjax.trained.eliminate import remove_elements
from bmrjax.trained.layers import TracedLayer
from bmrjax.trained.moments import LayerMoments
from bmrjax.trained.quadratic import Quadratic, prior_precision
from bmrjax.trained.weight_rows import rows_of

NOISE, DELTA = 0.7, 1.7


def regression(rng, outputs=3, inputs=6, rows=40):
    """Return inputs with correlation, targets, and the ridge solution: the exact posterior mean."""
    x = rng.normal(size=(rows, inputs)) @ (np.eye(inputs) + 0.5 * rng.normal(size=(inputs, inputs)))
    y = x @ rng.normal(size=(inputs, outputs)) + NOISE * rng.normal(size=(rows, outputs))
    precision = x.T @ x / NOISE**2 + DELTA * np.eye(inputs)
    return x, y, np.linalg.solve(precision, x.T @ y / NOISE**2).T


def problem(x, weights):
    """Return the rows of one linear layer and their quadratic loss."""
    count = len(x)
    a = x.T @ x / count
    strength = np.full((1, len(weights)), NOISE**-2)
    moments = LayerMoments(a[None], (a @ weights.T)[None], strength)
    index = np.arange(weights.size).reshape(1, *weights.shape)
    rows = rows_of([TracedLayer("w", 0, index, None, ())], [weights])
    return rows, [[Quadratic(moments, 0, count, DELTA, weights, has_bias=False)]]


def log_evidence(x, y):
    """Return ln p(y | x) of a linear regression with N(0, 1/δ) on its weights."""
    covariance = NOISE**2 * np.eye(len(x)) + x @ x.T / DELTA
    _, log_determinant = np.linalg.slogdet(2 * np.pi * covariance)
    return -0.5 * (log_determinant + y @ np.linalg.solve(covariance, y))


@pytest.mark.parametrize("count", [1, 5, 11])
def test_evidence_and_weights_of_a_linear_network_are_exact(count):
    x, y, weights = regression(np.random.default_rng(0))
    rows, quadratics = problem(x, weights)
    removed = remove_elements(rows, quadratics, count)
    assert sum(row.free() for row in rows) == weights.size - count == 18 - len(removed.saliency)
    exact = 0.0
    for o, row in enumerate(rows):
        here = x[:, row.keep]
        exact += log_evidence(here, y[:, o]) - log_evidence(x, y[:, o])
        precision = here.T @ here / NOISE**2 + DELTA * np.eye(here.shape[1])
        expected = np.linalg.solve(precision, here.T @ y[:, o] / NOISE**2)
        np.testing.assert_allclose(row.weights[row.keep], expected, rtol=1e-9)
        assert not row.weights[~row.keep].any()
    np.testing.assert_allclose(np.sum(removed.log_occam - removed.saliency), exact, rtol=1e-9)


def test_the_predicted_loss_is_that_of_a_linear_network():
    x, _, weights = regression(np.random.default_rng(1))
    rows, quadratics = problem(x, weights)
    removed = remove_elements(rows, quadratics, 9)
    new = np.stack([row.weights for row in rows])
    error = x @ (new - weights).T
    np.testing.assert_allclose(removed.loss, 0.5 * np.sum(error**2) / NOISE**2, rtol=1e-9)


def test_each_removal_is_the_cheapest_that_is_left():
    x, _, weights = regression(np.random.default_rng(2))
    rows, quadratics = problem(x, weights)
    removed = remove_elements(rows, quadratics, 12)
    other, _ = problem(x, weights)
    costs = []
    for _ in range(12):
        each = []
        for o, row in enumerate(other):
            found = quadratics[0][0].row(o, row.keep)
            price = 0.5 * found.mean**2 / found.variance
            each += [(p, o, i) for p, i in zip(price, np.flatnonzero(row.keep), strict=True)]
        price, o, i = min(each)
        costs.append(price)
        other[o].keep[i] = False
    assert [tuple(row.keep) for row in rows] == [tuple(row.keep) for row in other]
    np.testing.assert_allclose(np.sort(removed.saliency), np.sort(costs), rtol=1e-8)


def test_the_order_of_inputs_and_rows_changes_nothing():
    rng = np.random.default_rng(3)
    x, _, weights = regression(rng)
    rows, quadratics = problem(x, weights)
    remove_elements(rows, quadratics, 8)
    inputs, outputs = rng.permutation(6), rng.permutation(3)
    moved, others = problem(x[:, inputs], weights[outputs][:, inputs])
    remove_elements(moved[::-1], others, 8)
    for o, row in zip(outputs, moved, strict=True):
        np.testing.assert_array_equal(row.keep, rows[o].keep[inputs])
        np.testing.assert_allclose(row.weights, rows[o].weights[inputs], rtol=1e-8, atol=1e-12)


def test_removal_in_two_goes_is_removal_in_one():
    x, _, weights = regression(np.random.default_rng(4))
    once, quadratics = problem(x, weights)
    remove_elements(once, quadratics, 10)
    twice, _ = problem(x, weights)
    remove_elements(twice, quadratics, 4)
    remove_elements(twice, quadratics, 6)
    for a, b in zip(once, twice, strict=True):
        np.testing.assert_array_equal(a.keep, b.keep)
        np.testing.assert_allclose(a.weights, b.weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kept", [0, 40])
def test_columns_that_are_not_kept_are_computed_again(kept, monkeypatch):
    x, _, weights = regression(np.random.default_rng(5))
    rows, quadratics = problem(x, weights)
    removed = remove_elements(rows, quadratics, 9)
    monkeypatch.setattr(eliminate, "KEPT_COLUMNS", kept)
    other, _ = problem(x, weights)
    again = remove_elements(other, quadratics, 9)
    assert again.loss == pytest.approx(removed.loss, rel=1e-9)
    np.testing.assert_array_equal(again.place, removed.place)
    for a, b in zip(rows, other, strict=True):
        np.testing.assert_array_equal(a.keep, b.keep)
        np.testing.assert_allclose(a.weights, b.weights, rtol=1e-9, atol=1e-12)


def test_everything_can_go():
    x, y, weights = regression(np.random.default_rng(7))
    rows, quadratics = problem(x, weights)
    removed = [
        remove_elements(rows, quadratics, 15),
        remove_elements(rows, quadratics, 3),
        remove_elements(rows, quadratics, 1),
    ]
    assert [len(part.saliency) for part in removed] == [15, 3, 0]
    assert not any(row.weights.any() or row.keep.any() for row in rows)
    gain = sum(np.sum(part.log_occam - part.saliency) for part in removed)
    exact = sum(log_evidence(0 * x, y[:, o]) - log_evidence(x, y[:, o]) for o in range(3))
    np.testing.assert_allclose(gain, exact, rtol=1e-9)


def test_a_bias_takes_up_the_mean_of_what_went():
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.normal(size=(200, 3)) + [2.0, 0.0, 0.0], np.ones((200, 1))], 1)
    weights = np.array([[0.01, 1.0, -1.0, 0.5]])
    a = x.T @ x / len(x)
    moments = LayerMoments(a[None], (a @ weights.T)[None], np.ones((1, 1)))
    layer = TracedLayer("w", 0, np.arange(3).reshape(1, 1, 3), (1, np.zeros((1, 1), int)), ())
    rows = rows_of([layer], [weights[:, :3], weights[0, 3:]])
    remove_elements(rows, [[Quadratic(moments, 0, len(x), 1e-6, weights, has_bias=True)]], 1)
    assert list(rows[0].keep) == [False, True, True, True]
    expected = np.linalg.lstsq(x[:, 1:], x @ weights[0], rcond=None)[0]
    np.testing.assert_allclose(rows[0].weights[1:], expected, rtol=1e-4)
    assert rows[0].weights[3] > 0.515


def test_prior_precision_maximises_the_evidence():
    x, _, weights = regression(np.random.default_rng(6))
    a = x.T @ x / len(x)
    moments = LayerMoments(a[None], np.zeros((1, 6, 3)), np.array([[1.0, 0.1, 3.0]]))
    found = prior_precision([(moments, weights[None], False)], 40.0)

    def evidence(log_precision):
        curvature = np.kron(np.diag([1.0, 0.1, 3.0]), 40 * a)
        eigenvalues = np.linalg.eigvalsh(curvature) + np.exp(log_precision)
        return 0.5 * (
            18 * log_precision
            - np.exp(log_precision) * np.sum(weights**2)
            - np.sum(np.log(eigenvalues))
        )

    at = np.log(found)
    assert evidence(at) > max(evidence(at - 0.05), evidence(at + 0.05))
    slope = (evidence(at + 1e-4) - evidence(at - 1e-4)) / 2e-4
    assert abs(slope) < 1e-4


LOSSES = {
    "labels": (CrossEntropy(), np.array(2)),
    "probabilities": (CrossEntropy(), np.array([0.2, 0.5, 0.3, 0.0], np.float32)),
    "binary": (BinaryCrossEntropy(), np.array([0.0, 1.0, 1.0, 0.0], np.float32)),
    "squared": (SquaredError(0.6), np.array([0.1, 0.4, -1.0, 2.0], np.float32)),
    "function": (
        FunctionLoss(lambda z, y: jnp.sum(jnp.exp(z) - y * z)),
        np.array([1.0, 0.0, 3.0, 2.0], np.float32),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_roots_have_the_hessian_as_their_second_moment(name):
    loss, targets = LOSSES[name]
    outputs = jnp.array([0.3, -0.5, 1.2, 0.1])
    count = 20_000
    keys = jax.random.split(jax.random.key(0), count)
    found = jax.jit(jax.vmap(lambda key: loss.root(key, outputs, targets)))(keys)
    roots = np.asarray(found, np.float64)
    products = roots[:, :, None] * roots[:, None, :]
    exact = jax.hessian(lambda z: loss.value(z, targets))(outputs)
    error = products.std(0) / np.sqrt(count)
    assert (np.abs(products.mean(0) - exact) < 4.5 * error + 1e-5).all()


def test_losses_are_minus_log_likelihoods():
    import scipy.stats

    z, y = jnp.array([0.3, -0.5]), np.array([1.0, 0.0], np.float32)
    normal = -scipy.stats.norm(z, 0.6).logpdf(y).sum()
    np.testing.assert_allclose(SquaredError(0.6).value(z, y), normal, rtol=1e-5)
    binary = -scipy.stats.bernoulli(1 / (1 + np.exp(-np.asarray(z)))).logpmf(y).sum()
    np.testing.assert_allclose(BinaryCrossEntropy().value(z, y), binary, rtol=1e-5)
    labels = -np.log(scipy.special.softmax(np.asarray(z))[1])
    np.testing.assert_allclose(CrossEntropy().value(z, np.array(1)), labels, rtol=1e-5)


def test_the_mean_alone_is_that_of_the_posterior():
    x, y, weights = regression(np.random.default_rng(7))
    moments = LayerMoments((x.T @ x)[None] / len(x), (x.T @ y)[None] / len(x), np.ones((1, 3)))
    quadratic = Quadratic(moments, 0, len(x), 0.3, weights, has_bias=False)
    for keep in (np.ones(6, bool), np.array([1, 0, 1, 1, 0, 1], bool), np.zeros(6, bool)):
        np.testing.assert_allclose(
            quadratic.mean(1, keep), quadratic.row(1, keep).mean, rtol=1e-9, atol=1e-12
        )
