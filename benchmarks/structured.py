"""What the two benchmarks of structured pruning share: one fit with noise layers, and what is left of it."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import bmrjax as bmr
from bmrjax import criteria, metrics, nn, reduction, schedules

# The rules of the papers, and ours; a schedule with each.
CRITERIA: dict[str, Any] = {
    "none": None,
    "snr": criteria.SignalToNoise(threshold=1.0, family=reduction.LogNormal),
    "mean": criteria.Magnitude(threshold=0.1, family=reduction.LogNormal),
    "bmrs-n": criteria.BMRSNormal(),
    # As its authors' code has it.
    "bmrs-n, margin": criteria.BMRSNormal(margin=0.5 * math.log(2 * math.pi)),
    "bmrs-u8": criteria.BMRSUniform(8),
    "bmrs-u4": criteria.BMRSUniform(4),
}


@dataclass(frozen=True)
class Fit:
    """How a network is fitted.

    Attributes:
        epochs: Epochs, of one pass over the data each.
        batch_size: Data a step.
        rate: Adam's learning rate of the weights.
        noise_rate: The same of the parameters of the noise.
        wait: Epochs before the first reduction.
        tune: Last epochs, without reductions, over which the learning rates fall to zero.
        every: Epochs between reductions.
        pretrain: Epochs without noise before.
        weight_decay: While they last.
        kl_weight: Factor on the divergence of the noise.
        saved: Path of a layer to what that factor is multiplied by: the multiply-adds, in thousands, that the
            dense network saves without one unit of its noise. Layers without a number have 1.
        average: Divide each layer's factor by its number of units.
        finetune: Epochs without noise after, of the compacted network, at a learning rate that falls from
            three tenths of `rate` to zero.
    """

    epochs: int = 50
    batch_size: int = 128
    rate: float = 1e-3
    noise_rate: float = 1e-3
    wait: int = 1
    tune: int = 10
    every: int = 1
    pretrain: int = 0
    weight_decay: float = 0.0
    kl_weight: float = 1.0
    saved: dict[str, float] = field(default_factory=dict)
    average: bool = False
    finetune: int = 0

    def weigh(self, path: str, layer: Any) -> float:
        """Return the factor of a layer with noise on its outputs."""
        units = layer.weight.shape[0] if self.average else 1
        return self.kl_weight * self.saved.get(path, 1.0) / units


def optimizer(fit: Fit) -> optax.GradientTransformation:
    """Return Adam with a rate for the weights and one for the noise."""

    def label(params: Any) -> Any:
        return {
            name: "noise" if "value_auto" in name or name.endswith("value") else "weights"
            for name in params
        }

    return optax.partition(
        {"weights": optax.adam(fit.rate), "noise": optax.adam(fit.noise_rate)}, label
    )


def images(found: bmr.data.Dataset, *, rows: int | None, flat: bool) -> tuple[Any, Any]:
    """Return training and test data as arrays on the device."""

    def cut(split: Any) -> Any:
        x, y = (part[:rows] for part in split)
        return jnp.asarray(x.reshape(len(x), -1) if flat else x), jnp.asarray(y)

    return cut(found.train), cut(found.test)


def run(
    network: eqx.Module,
    where: Callable[[str, Any], Any] | None,
    train: Any,
    test: Any,
    rule: str,
    fit: Fit,
    seed: int,
    *,
    progress: bool = False,
) -> tuple[dict[str, Any], Any]:
    """Fit a network with noise, prune it while it trains, take it apart; return a row, and it.

    Args:
        network: An Equinox network.
        where: See `bmrjax.nn.with_noise`.
        train: Inputs and labels.
        test: The same.
        rule: A key of `CRITERIA`.
        fit: How.
        seed: Of everything drawn.
        progress: Show a bar.
    """
    begin = time.perf_counter()
    key = jax.random.key(seed)
    plain = network
    if fit.pretrain:
        network = _pretrained(network, train, fit, seed)
    if rule == "none":
        noisy = network
    else:
        noisy = nn.with_noise(network, where, kl_weight=fit.weigh)
    program = bmr.programs.classifier(noisy, None)
    result = bmr.sparsify(
        program,
        train,
        key=key,
        num_epochs=fit.epochs,
        criterion=CRITERIA[rule],
        schedule=schedules.Every(wait=fit.wait, every=fit.every, cooldown=fit.tune),
        optimizer=optimizer(fit) if rule != "none" else optax.adam(fit.rate),
        batch_size=fit.batch_size,
        progress=progress,
    )
    example = train[0][0]
    fitted = nn.without_noise(result.network(train[0][:2])["net"])
    small = bmr.compact(fitted, example)
    if fit.finetune:
        small = bmr.compact(_finetuned(small.network, train, fit, seed), example)
    full = bmr.compact(plain, example, drop_inputs=False)
    row = {
        **score(small.network, test),
        "units": {name: int(np.sum(mask)) for name, mask in result.keep.items()},
        "compression": 100 * (1 - small.after.parameters / full.before.parameters),
        "units_removed": 100 * result.sparsity,
        "parameters": small.after.parameters,
        "parameters_before": full.before.parameters,
        "flops": small.after.flops,
        "flops_before": full.before.flops,
        "flops_ratio": full.before.flops / max(small.after.flops, 1.0),
        "shapes": {a.name: list(a.after) for a in small.arrays},
        "vfe": result.vfe,
        "compile_seconds": result.timing["compile_seconds"],
        "seconds": time.perf_counter() - begin,
        "curve": [
            {"epoch": i + 1, "vfe": h["vfe"], "kept": h["kept"]}
            for i, h in enumerate(result.history)
        ],
    }
    return row, (small, result)


def _pretrained(network: eqx.Module, train: Any, fit: Fit, seed: int) -> eqx.Module:
    """Train without noise, with weight decay."""
    program = bmr.programs.classifier(network, None)
    result = bmr.sparsify(
        program,
        train,
        key=jax.random.key(seed + 1000),
        num_epochs=fit.pretrain,
        criterion=None,
        schedule=schedules.Every(cooldown=fit.pretrain // 2),
        optimizer=optax.adamw(fit.rate, weight_decay=fit.weight_decay),
        batch_size=fit.batch_size,
        progress=False,
    )
    return result.network(train[0][:2])["net"]


def _finetuned(network: eqx.Module, train: Any, fit: Fit, seed: int) -> eqx.Module:
    """Train without noise, from where the network is."""
    result = bmr.sparsify(
        bmr.programs.classifier(network, None),
        train,
        key=jax.random.key(seed + 2000),
        num_epochs=fit.finetune,
        criterion=None,
        schedule=schedules.Every(cooldown=fit.finetune),
        optimizer=optax.adam(0.3 * fit.rate),
        batch_size=fit.batch_size,
        progress=False,
    )
    return result.network(train[0][:2])["net"]


def score(network: eqx.Module, data: Any, batch_size: int = 1000) -> dict[str, float]:
    """Return accuracy in percent and NLL in nats per data point of a plain network."""
    x, y = data
    apply = eqx.filter_jit(lambda net, rows: jax.vmap(net)(rows))
    logits = jnp.concatenate(
        [apply(network, x[i : i + batch_size]) for i in range(0, len(x), batch_size)]
    )
    log_probs = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probs, y[:, None].astype(jnp.int32), 1)[:, 0]
    labels = y.astype(jnp.int32)
    return {
        "accuracy": 100 * float(metrics.accuracy(jnp.exp(log_probs), labels)),
        "nll": float(metrics.negative_log_likelihood(chosen)),
    }
