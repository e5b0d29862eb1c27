"""The kept weights of all layers come to the network whose outputs are nearest to those of the given one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bmrjax.trained import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError, wide_layers
from bmrjax.trained.moments import Calibration
from bmrjax.trained.output_fit import OutputLoss, fit_outputs
from bmrjax.trained.path import quadratics_of
from bmrjax.trained.prepare_network import prepare
from bmrjax.trained.traced import trace
from bmrjax.trained.weight_rows import filled, rows_of

ROWS, SCALE, PRECISION = 200, 2000.0, 0.7


class Convolved(eqx.Module):
    """A convolution whose weights are used twice, and a product; both have biases."""

    first: eqx.nn.Conv1d
    last: eqx.nn.Linear

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.first = eqx.nn.Conv1d(2, 2, 3, padding=1, key=a)
        self.last = eqx.nn.Linear(16, 3, key=b)

    def __call__(self, x):
        x = self.first(jnp.tanh(self.first(x.reshape(2, 8))))
        return self.last(jnp.tanh(x).ravel())


class Problem:
    """A network half of whose weights are removed, and the exact objective of the others."""

    def __init__(self, network, loss, inputs=16):
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(ROWS, inputs)).astype(np.float32)
        self.traced = trace(network, (self.x,))
        self.dense = self.traced.parts.arrays
        self.layers = self.traced.layers
        self.loss = loss
        outputs = jax.vmap(network)(self.x)
        self.targets = jax.vmap(loss.from_predictions)(outputs)
        self.rows = rows_of(self.layers, self.dense)
        for row in self.rows:
            row.keep &= row.fixed | (rng.random(len(row.keep)) < 0.5)
            row.weights[~row.keep] = 0.0
        self.start = filled(self.layers, self.dense, self.rows)

    def fitted(self):
        """Return arrays after the fit, with the moments taken where it begins."""
        calibration = Calibration(
            self.traced.capture,
            self.loss,
            self.dense,
            (self.x,),
            self.targets,
            key=jax.random.key(1),
        )
        moments = calibration.moments(self.start)
        precisions = [PRECISION] * len(self.layers)
        quadratics = quadratics_of(self.layers, moments, self.dense, SCALE, precisions, self.start)
        loss = OutputLoss(self.traced.capture, self.loss, (self.x,), np.asarray(self.targets))
        return fit_outputs(self.layers, self.rows, quadratics, self.dense, self.start, loss)

    def objective(self, arrays):
        outputs = jax.vmap(lambda x: self.traced.capture.outputs(arrays, (x,)))(self.x)
        loss = jnp.mean(jax.vmap(self.loss.value)(outputs, self.targets))
        prior = 0.0
        biases = {layer.bias[0] for layer in self.layers if layer.bias is not None}
        for i, (array, before) in enumerate(zip(arrays, self.dense, strict=True)):
            precision = PRECISION * (1e-6 if i in biases else 1.0)
            prior += 0.5 * precision * jnp.sum(jnp.where(self.masks[i], array - before, 0.0) ** 2)
        return SCALE * loss + prior

    @property
    def masks(self):
        found = [np.ones(array.shape, bool) for array in self.dense]
        for row in self.rows:
            layer = self.layers[row.layer]
            places = layer.index[row.group, row.output]
            found[layer.array].reshape(-1)[places] = row.keep[: len(places)]
        return found

    def least(self):
        """Return the least objective, by another method."""
        masks = self.masks

        def of(arrays):
            return self.objective(
                [jnp.where(m, a, 0.0) for a, m in zip(arrays, masks, strict=True)]
            )

        solver = optax.lbfgs()
        step = optax.value_and_grad_from_state(of)

        def body(_, carry):
            arrays, state = carry
            value, slope = step(arrays, state=state)
            updates, state = solver.update(
                slope, state, arrays, value=value, grad=slope, value_fn=of
            )
            return optax.apply_updates(arrays, updates), state

        run = jax.jit(lambda a: jax.lax.fori_loop(0, 300, body, (a, solver.init(a)))[0])
        return float(of(run(list(self.start))))


def test_one_layer_comes_to_the_ridge_regression_on_what_stays():
    problem = Problem(eqx.nn.Linear(16, 3, key=jax.random.key(0)), SquaredError(noise_scale=0.5))
    weight, bias = (np.asarray(array, np.float64) for array in problem.fitted())
    x = np.concatenate([problem.x, np.ones((ROWS, 1))], 1).astype(np.float64)
    y = np.asarray(problem.targets, np.float64)
    before = np.concatenate([np.asarray(a).reshape(3, -1) for a in problem.dense], 1)
    for output, keep in enumerate(problem.masks[0]):
        kept = np.append(keep, True)
        precision = np.append(np.full(16, PRECISION), 1e-6 * PRECISION)[kept]
        curvature = SCALE / 0.25 * x[:, kept].T @ x[:, kept] / ROWS + np.diag(precision)
        pull = SCALE / 0.25 * x[:, kept].T @ y[:, output] / ROWS + precision * before[output, kept]
        expected = np.linalg.solve(curvature, pull)
        np.testing.assert_allclose(
            np.append(weight[output], bias[output])[kept], expected, rtol=1e-3, atol=1e-3
        )
        assert (weight[output][~keep] == 0).all()


@pytest.mark.parametrize(
    ("network", "loss", "part"),
    [
        (lambda key: eqx.nn.MLP(16, 3, 12, 2, jnp.tanh, key=key), CrossEntropy(), 0.05),
        (Convolved, SquaredError(noise_scale=1.0), 0.05),
        (Convolved, BinaryCrossEntropy(), 0.05),
    ],
    ids=["perceptron", "convolution", "binary"],
)
def test_several_layers_come_near_the_least_loss(network, loss, part):
    problem = Problem(network(jax.random.key(3)), loss)
    before, after = problem.objective(problem.start), problem.objective(problem.fitted())
    least = problem.least()
    assert before - least > 0.5
    assert after - least < part * (before - least)


def test_a_layer_in_parts_is_fitted_like_one_that_is_not(monkeypatch):
    network = eqx.nn.MLP(16, 3, 8, 1, jnp.tanh, key=jax.random.key(4))
    whole = Problem(network, CrossEntropy())
    expected = float(whole.objective(whole.fitted()))
    for name, value in (("WIDEST", 12), ("NARROWEST_PART", 8), ("WIDEST_PART", 8)):
        monkeypatch.setattr(wide_layers, name, value)
    parted = Problem(network, CrossEntropy())
    assert any(layer.part is not None for layer in parted.layers)
    for row in parted.rows:  # the same weights stay
        first = 0 if parted.layers[row.layer].part is None else parted.layers[row.layer].part.start
        array = parted.layers[row.layer].array
        inputs = len(parted.layers[row.layer].index[0, 0])
        row.keep[:inputs] = whole.masks[array][row.output, first : first + inputs]
    parted.start = whole.start
    assert float(whole.objective(parted.fitted())) == pytest.approx(expected, rel=0.02)


class Wavy(Loss):
    """A loss that is not convex in the outputs, and does not say what predictions are."""

    def value(self, outputs, targets):
        return jnp.sum(1 - jnp.cos(2 * (outputs - targets)))

    def root(self, key, outputs, targets):
        return jax.random.rademacher(key, outputs.shape, outputs.dtype)


def test_a_loss_that_is_not_convex_never_ends_higher():
    problem = Problem(eqx.nn.MLP(16, 3, 12, 1, jnp.tanh, key=jax.random.key(3)), CrossEntropy())
    problem.loss = Wavy()
    problem.targets = jax.vmap(lambda x: problem.traced.capture.outputs(problem.dense, (x,)))(
        problem.x
    )
    assert problem.objective(problem.fitted()) <= problem.objective(problem.start)


def test_without_predictions_the_targets_of_the_caller_are_fitted():
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    y = np.ones((40, 1), np.float32)
    network = eqx.nn.Linear(4, 1, key=jax.random.key(0))
    ready = prepare(network, (x, y), loss=Wavy())
    loss = ready.output_loss()
    outputs = jax.vmap(network)(ready.calibrate_by.inputs[0])
    expected = float(jnp.mean(jax.vmap(Wavy().value)(outputs, jnp.ones_like(outputs))))
    assert loss.value(ready.traced.parts.arrays) == pytest.approx(expected, rel=1e-5)
