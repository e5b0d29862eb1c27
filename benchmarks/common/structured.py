"""What the benchmarks of structured pruning share: a fit with noise layers, and the network left of it."""

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
from benchmarks.common.networks import score
from bmrjax import criteria, nn, reduction, schedules

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


VALIDATION = "training rows to score on, in place of the test set, for choosing settings"
# Multiply-adds, in thousands, that LeNet-5-Caffe saves without one unit: a filter of its first convolution
# takes 25 * 24 * 24 of them, and what reads it 50 * 25 * 8 * 8.
SAVED_BY_CAFFE = {"convs.0": 94.4, "convs.1": 40.0, "linears.0": 0.5, "linears.1": 0.81}


def every_input(path: str, layer: Any) -> str:
    """Put the noise on the inputs of every layer."""
    del path, layer
    return "inputs"


def channels_and_inputs(path: str, layer: Any) -> str:
    """Put the noise on the channels of a convolution and the inputs of a linear layer."""
    del layer
    return "outputs" if path.startswith("convs") else "inputs"


@dataclass(frozen=True)
class Fit:
    """How a network is fitted.

    `saved` has, by the path of a layer, what `kl_weight` is multiplied by: the multiply-adds, in thousands,
    that the dense network saves without one unit of its noise; layers without a number have 1.
    """

    epochs: int = 50  # of one pass over the data each
    batch_size: int = 128
    rate: float = 1e-3  # Adam's, of the weights
    noise_rate: float = 1e-3  # the same of the parameters of the noise
    wait: int = 1  # epochs before the first reduction
    tune: int = 10  # last epochs, without reductions, over which the learning rates fall to zero
    pretrain: int = 0  # epochs without noise before
    weight_decay: float = 0.0  # while they last
    kl_weight: float = 1.0  # factor on the divergence of the noise
    saved: dict[str, float] = field(default_factory=dict)
    average: bool = False  # divide each layer's factor by its number of units

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


def run(
    network: eqx.Module, where: Callable[[str, Any], Any] | None, data: Any, rule: Any, fit: Fit, seed: int
) -> tuple[dict[str, Any], Any]:  # fmt: skip
    """Fit a network with noise, prune it while it trains, take it apart; return a row, and it.

    Args:
        network: An Equinox network.
        where: See `bmrjax.nn.with_noise`.
        data: Training and test data, each inputs and labels.
        rule: A key of `CRITERIA`, or a criterion.
        fit: How.
        seed: Of everything drawn.
    """
    train, test = (tuple(map(jnp.asarray, split)) for split in data)
    begin = time.perf_counter()
    plain, key = network, jax.random.key
    if fit.pretrain:
        pretrained = bmr.sparsify(
            bmr.programs.classifier(network, None),
            train,
            key=key(seed + 1000),
            num_epochs=fit.pretrain,
            criterion=None,
            schedule=schedules.Every(cooldown=fit.pretrain // 2),
            optimizer=optax.adamw(fit.rate, weight_decay=fit.weight_decay),
            batch_size=fit.batch_size,
            progress=False,
        )
        network = pretrained.network(train[0][:2])["net"]
    none = rule == "none"
    noisy = network if none else nn.with_noise(network, where, kl_weight=fit.weigh)
    result = bmr.sparsify(
        bmr.programs.classifier(noisy, None),
        train,
        key=key(seed),
        num_epochs=fit.epochs,
        criterion=CRITERIA.get(rule) if isinstance(rule, str) else rule,
        schedule=schedules.Every(wait=fit.wait, cooldown=fit.tune),
        optimizer=optax.adam(fit.rate) if none else optimizer(fit),
        batch_size=fit.batch_size,
        progress=False,
    )
    example = train[0][0]
    fitted = nn.without_noise(result.network(train[0][:2])["net"])
    small = bmr.compact(fitted, example, drop_inputs=True)
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
