"""The kept weights of a layer in parts come to the fit of the whole layer."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bmrjax as bmr
from bmrjax.trained import SquaredError, joint_fit, last_fit, wide_layers
from bmrjax.trained import moments as moments_module
from bmrjax.trained.joint_fit import fit_together
from bmrjax.trained.moments import Calibration
from bmrjax.trained.path import quadratics_of
from bmrjax.trained.traced import trace
from bmrjax.trained.weight_rows import filled, rows_of

pytestmark = pytest.mark.usefixtures("strict_promotion")

ROWS, INPUTS, OUTPUTS, PARTS = 300, 32, 3, 4
PRECISION, SCALE = 0.3, 40.0


class TwoUses(eqx.Module):
    """A grouped convolution with strides that is used twice, and a product whose weights are on the right."""

    kernel: eqx.nn.Conv2d
    last: jax.Array

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.kernel = eqx.nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2, key=a)
        self.last = jax.random.normal(b, (36, 3))

    def __call__(self, x):
        x = jnp.concatenate([jnp.tanh(self.kernel(x)), self.kernel(x[:, ::-1] ** 2)])
        return x.ravel()[:36] @ self.last


@pytest.fixture
def narrow(monkeypatch):
    """Take layers in parts of eight inputs."""
    monkeypatch.setattr(wide_layers, "WIDEST", 12)
    monkeypatch.setattr(wide_layers, "NARROWEST_PART", 8)
    monkeypatch.setattr(wide_layers, "WIDEST_PART", 8)


class Problem:
    """A layer in parts half of whose weights are removed, and the exact loss of the others."""

    def __init__(self, *, use_bias: bool, size: float = 1.0, compensated: bool = False):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(ROWS, 6)) @ rng.normal(size=(6, INPUTS))
        x = x + 0.3 * rng.normal(size=x.shape) + 1.5
        self.x = (size * x * np.exp(rng.normal(size=INPUTS))).astype(np.float32)
        network = eqx.nn.Linear(INPUTS, OUTPUTS, use_bias=use_bias, key=jax.random.key(0))
        y = np.asarray(jax.vmap(network)(self.x))
        found = trace(network, [self.x])
        self.use_bias, self.layers, self.dense = use_bias, found.layers, found.parts.arrays
        self.calibration = Calibration(
            found.capture, SquaredError(2.0), self.dense, [self.x], y, key=jax.random.key(1)
        )
        self.keep = np.random.default_rng(1).random((OUTPUTS, INPUTS)) < 0.5
        self.rows = rows_of(self.layers, self.dense)
        for row in self.rows:
            places = self.layers[row.layer].index[0, row.output]
            row.keep[: len(places)] = self.keep.ravel()[places]
        # Where the moments are taken: with the removed weights or without.
        self.arrays = self.dense if compensated else self.masked()
        moments = self.calibration.moments(self.arrays)
        self.strength = SCALE * moments[0].outputs[0]
        self.quadratics = quadratics_of(
            self.layers, moments, self.dense, SCALE, [PRECISION] * PARTS, self.arrays
        )

    def masked(self):
        for row in self.rows:
            row.weights[~row.keep] = 0.0
        return filled(self.layers, self.dense, self.rows)

    def fit(self):
        products = partial(self.calibration.products, self.arrays)
        fit_together(self.layers, self.rows, self.quadratics, self.arrays, products)
        return filled(self.layers, self.dense, self.rows)

    def excess(self, arrays):
        """Return by how much the loss of each row exceeds the least, in float64 with NumPy, in nats."""
        x = np.concatenate([self.x, np.ones((ROWS, 1))], 1).astype(np.float64)
        dense, now = (self._weights(of) for of in (self.dense, arrays))
        found = []
        for row in range(OUTPUTS):
            some = np.append(self.keep[row], self.use_bias)
            prior = np.append(np.full(INPUTS, PRECISION), 1e-6 * PRECISION / PARTS)
            pull = self.strength[row] * x[:, some].T @ (x @ dense[row]) / ROWS
            pull += (prior * dense[row])[some]
            precision = self.strength[row] * x[:, some].T @ x[:, some] / ROWS + np.diag(prior[some])
            miss = now[row, some] - np.linalg.solve(precision, pull)
            found.append(0.5 * miss @ precision @ miss)
        return np.array(found)

    def _weights(self, arrays):
        bias = np.asarray(arrays[1]) if self.use_bias else np.zeros(OUTPUTS)
        return np.concatenate([np.asarray(arrays[0]), bias[:, None]], 1).astype(np.float64)


@pytest.mark.parametrize(
    "options",
    [
        {"use_bias": True},
        {"use_bias": False},
        {"use_bias": True, "size": 1e-4},
        {"use_bias": False, "size": 1e4},
        {"use_bias": True, "compensated": True},
    ],
)
def test_it_is_the_masked_ridge_solution(monkeypatch, narrow, options):
    problem = Problem(**options)
    before = problem.excess(problem.masked())
    # Single precision in the products: the loss is quadratic in what it leaves.
    monkeypatch.setattr(joint_fit, "SMALL_GAIN", 1e-9)
    after = problem.excess(problem.fit())
    assert (after < 1e-6 * before).all()


def test_products_are_those_of_the_moments(monkeypatch, narrow):
    # Five of the 18 positions of the kernel.
    monkeypatch.setattr(moments_module, "POSITIONS", 5)
    monkeypatch.setattr(moments_module, "SAMPLES", 1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4, 6, 6)).astype(np.float32)
    found = trace(TwoUses(jax.random.key(0)), [x])
    layers, dense = found.layers, found.parts.arrays
    assert all(layer.part is not None for layer in layers)
    calibration = Calibration(
        found.capture,
        SquaredError(1.0),
        dense,
        [x],
        np.zeros((40, 3), np.float32),
        key=jax.random.key(1),
        num_directions=1,
    )
    moments = calibration.moments(dense)
    for k, of in enumerate(moments):
        first = k - layers[k].part.number
        parts = range(first, first + layers[k].part.count)
        changes = {
            i: np.zeros((*layers[i].index.shape[:2], moments[i].inputs.shape[1])) for i in parts
        }
        changes[k] = rng.normal(size=changes[k].shape)
        mine = calibration.products(dense, changes)
        np.testing.assert_allclose(mine[k], changes[k] @ of.inputs, rtol=1e-4, atol=1e-4)


def test_it_ends_near_the_solution_and_repeats_itself(narrow):
    problem = Problem(use_bias=True)
    before = problem.excess(problem.masked())
    first = problem.fit()
    assert (problem.excess(first) < 0.01 * before).all()
    again = Problem(use_bias=True)
    np.testing.assert_array_equal(first[0], again.fit()[0])
    # From there it does not become worse.
    assert (problem.excess(problem.fit()) <= problem.excess(first) * (1 + 1e-6)).all()


def test_narrow_blocks_of_the_preconditioner_come_there_too(monkeypatch, narrow):
    monkeypatch.setattr(joint_fit, "FACTORS", 1)
    monkeypatch.setattr(joint_fit, "NARROWEST_BLOCK", 2)
    problem = Problem(use_bias=True)
    before = problem.excess(problem.masked())
    assert (problem.excess(problem.fit()) < 0.05 * before).all()


def test_a_row_that_would_become_worse_stays(narrow):
    problem = Problem(use_bias=True)
    problem.masked()
    start = [row.weights.copy() for row in problem.rows]

    def wrong(changes):
        found = problem.calibration.products(problem.arrays, changes)
        for of in found.values():
            of[:, 0] *= 1e-3  # too long a step, as the last product says
            of[:, 1] = np.nan
        calls.append(1)
        return found if len(calls) < 3 else problem.calibration.products(problem.arrays, changes)

    calls: list[int] = []
    fit_together(problem.layers, problem.rows, problem.quadratics, problem.arrays, wrong)
    for row, weights in zip(problem.rows, start, strict=True):
        assert np.array_equal(row.weights, weights) == (row.output < 2)


@pytest.mark.parametrize("units", [False, True])
def test_the_last_fit_is_of_the_whole_layer_and_then_of_all_layers(narrow, monkeypatch, units):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 4)) @ rng.normal(size=(4, 24)) + 0.3 * rng.normal(size=(400, 24))
    network = eqx.nn.MLP(24, 2, 20, 1, key=jax.random.key(0))
    x = x.astype(np.float32)
    data = (x, np.asarray(jax.vmap(network)(x)))

    def error():
        loss = bmr.trained.SquaredError(noise_scale=0.1)
        found = bmr.reduce_network(network, data, loss=loss, keep=0.3, units=units)
        return float(np.square(jax.vmap(found.network)(x) - data[1]).mean())

    of_all = error()
    monkeypatch.setattr(last_fit, "fit_outputs", lambda *given: list(given[4]))
    of_layers = error()
    monkeypatch.setattr(last_fit, "fit_together", lambda *_: None)
    assert of_all < 0.9 * of_layers
    assert of_layers < 0.9 * error()
