"""The code of Marković et al. (2024), github.com/dimarkov/bmr4pml, and its steps, where a clone is given.

Nothing of it is in this repository: what stops it from starting without a GPU and without TensorFlow
Probability is replaced here, at run time, and its functions run as they are.
"""

import subprocess
import sys
import types
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer import SVI


def quantile_calibration_error(hit: Any, log_confidence: Any, num_buckets: int) -> tuple[float]:
    """Return the expected calibration error over buckets of equal count."""
    hit, log_confidence = np.asarray(hit, float), np.asarray(log_confidence, float)
    order = np.argsort(log_confidence, kind="stable")
    gaps = hit[order] - np.exp(log_confidence[order])
    return (sum(abs(part.sum()) for part in np.array_split(gaps, num_buckets)) / hit.size,)


def import_peer(where: str) -> types.SimpleNamespace:
    """Import bmr4pml from the folder of a clone, or from where it is ``"installed"``."""
    if where != "installed":
        sys.path.insert(0, where)
    parts = ["tensorflow_probability", "substrates", "jax", "stats"]
    names = [".".join(parts[: i + 1]) for i in range(len(parts))]
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    for parent, name in zip(names[:-1], names[1:], strict=True):
        setattr(sys.modules[parent], name.rsplit(".", 1)[1], sys.modules[name])
    stats: Any = sys.modules[names[-1]]
    stats.expected_calibration_error_quantiles = quantile_calibration_error
    # Equinox may drop the names that it deprecated.
    if not hasattr(eqx, "static_field"):
        eqx.static_field = lambda: eqx.field(static=True)
    if not hasattr(eqx, "tree_inference"):
        eqx.tree_inference = eqx.nn.inference_mode
    real = jax.devices
    jax.devices = lambda backend=None: [] if backend == "gpu" else real(backend)
    try:
        from bmr4pml import inference, models, nn
    finally:
        jax.devices = real
    return types.SimpleNamespace(inference=inference, models=models, nn=nn, eqx=eqx)


def commit(where: str) -> str:
    """Return the commit of a clone."""
    if where == "installed":
        return where
    words = ["git", "-C", where, "rev-parse", "--short", "HEAD"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def padded(x: Any) -> Any:
    """Return images with two rows and columns of zeros around, as its LeNet takes them."""
    return jnp.pad(jnp.asarray(x), ((0, 0), (0, 0), (2, 2), (2, 2)))


def steppers(where: str, net: str, data: Any, batch: int) -> dict[str, Any]:
    """Return functions that take n steps: reduced, and both forms of the horseshoe.

    Its own run retraces on every call; here its update is compiled once and dispatched.
    """
    peer, (x, y), key = import_peer(where), data, jax.random.PRNGKey(0)
    if net == "lenet5":
        x = padded(x)
        network = peer.nn.LeNet((1, 32, 32), activation=jax.nn.tanh, dropout_rate=0.0, key=key)
    else:
        network = peer.zoo.MLP(784, 10, 400, 5, activation=jax.nn.swish, dropout_rate=0.0, key=key)
    network = peer.eqx.tree_inference(network, value=True)

    def stepper(kind: Any, more: dict[str, Any], *, tiered: bool) -> Any:
        regression = kind(
            network, regtype="multinomial", optim_kwargs={"learning_rate": 5e-3}, **more
        )
        scaled = (handlers.scale(f, 1 / len(x)) for f in (regression.model, regression.guide))
        svi = SVI(*scaled, regression.optim, regression.loss)
        given = {"batch_size": batch, "with_hyperprior": tiered}
        update = jax.jit(lambda state, x, y: svi.update(state, x, y=y, **given)[0])
        box = [svi.init(key, x, y=y, **given)]

        def run(n: int) -> None:
            for _ in range(n):
                box[0] = update(box[0], x, y)
            jax.block_until_ready(box[0])

        return run

    mean_field = {"autoguide": "mean-field"}
    plain, full = {**mean_field, "reduced": True}, {**mean_field, "reduced": False}
    models = peer.models
    return {
        "bmr4pml, BMR": stepper(models.BMRRegression, {"posterior": "normal"}, tiered=False),
        "bmr4pml, Tiered": stepper(models.SVIRegression, plain, tiered=True),
        "bmr4pml, Tiered, full": stepper(models.SVIRegression, full, tiered=True),
    }
