"""The kept weights of a layer in parts come to the fit of the whole layer."""

from functools import partial

import equinox as eqx
import jax
import numpy as np
import pytest

from bmrjax.trained import SquaredError, wide_layers
from bmrjax.trained.joint_fit import fit_together
from bmrjax.trained.layers import layer_weights
from bmrjax.trained.moments import Calibration
from bmrjax.trained.path import quadratics_of
from bmrjax.trained.traced import trace
from bmrjax.trained.weight_rows import filled, rows_of

PRECISION = 0.3


@pytest.fixture
def narrow(monkeypatch):
    """Take layers in parts of eight inputs or so."""
    monkeypatch.setattr(wide_layers, "WIDEST", 12)
    monkeypatch.setattr(wide_layers, "NARROWEST_PART", 8)
    monkeypatch.setattr(wide_layers, "WIDEST_PART", 8)


def correlated(rows: int, seed: int) -> np.ndarray:
    """Return 32 inputs that depend on each other across parts, with means and unequal scales."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6)) @ rng.normal(size=(6, 32)) + 0.3 * rng.normal(size=(rows, 32))
    return ((x + 1.5) * np.exp(rng.normal(size=32))).astype(np.float32)


@pytest.mark.parametrize("use_bias", [True, False])
def test_it_is_the_masked_ridge_solution(narrow, use_bias):
    x = correlated(300, 0)
    network = eqx.nn.Linear(32, 3, use_bias=use_bias, key=jax.random.key(0))
    y = np.asarray(jax.vmap(network)(x))
    found = trace(network, [x])
    layers, dense = found.layers, found.parts.arrays
    assert len(layers) == 4
    noise = 2.0
    calibration = Calibration(
        found.capture, SquaredError(noise), dense, [x], y, key=jax.random.key(1), num_directions=8
    )
    keep = np.random.default_rng(1).random((3, 32)) < 0.5
    rows = rows_of(layers, dense)
    for row in rows:
        places = layers[row.layer].index[0, row.output]
        row.keep[: len(places)] = keep.ravel()[places]
        row.weights[~row.keep] = 0.0
    arrays = filled(layers, dense, rows)
    moments = calibration.moments(arrays)
    quadratics = quadratics_of(layers, moments, dense, 40.0, [PRECISION] * 4, arrays)
    fit_together(layers, rows, quadratics, arrays, partial(calibration.products, arrays))
    weights = np.asarray(layer_weights(layers[0], filled(layers, dense, rows)))
    mine = np.asarray(filled(layers, dense, rows)[0], np.float64)
    # The exact solution, of the whole layer.
    wide = np.concatenate([x, np.ones((300, 1))], 1).astype(np.float64)
    w0 = np.asarray(dense[0], np.float64)
    w0 = np.concatenate([w0, np.zeros((3, 1))], 1)
    if use_bias: w0[:, -1] = np.asarray(dense[1])
    for o in range(3):
        some = np.append(keep[o], use_bias)
        strength = 40.0 * moments[0].outputs[0, o]
        d = np.full(33, PRECISION); d[-1] *= 1e-6 / 4
        xs = wide[:, some]
        H = strength * xs.T @ xs / 300 + np.diag(d[some])
        b = strength * xs.T @ (wide @ w0[o]) / 300 + (d * w0[o])[some]
        best = np.linalg.solve(H, b)
        f = lambda w: 0.5 * w @ H @ w - b @ w
        w = mine[o][keep[o]]
        if use_bias: w = np.append(w, np.asarray(filled(layers, dense, rows)[1])[o])
        st = np.asarray(arrays[0],np.float64)[o][keep[o]]
        if use_bias: st = np.append(st, np.asarray(dense[1])[o])
        print(f(w) - f(best), f(st)-f(best), abs(w-best).max(), abs(best).max())
