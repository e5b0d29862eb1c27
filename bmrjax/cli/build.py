"""From words to objects: networks, programs, schedules."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from numpyro.infer.autoguide import AutoDelta

from bmrjax import callbacks, criteria, nn, priors, programs, reduction, schedules, structure, zoo
from bmrjax.cli.sparsify_options import (
    BLOCK_NETS,
    IMAGE_NETS,
    NOISE_RATE,
    CriterionName,
    SparsifyOptions,
    kl_warmup_epochs_of,
    learning_rate_of,
    schedule_of,
)
from bmrjax.infer import AutoMeanField, init_to_network


def build_network(options: SparsifyOptions, input_shape: tuple[int, ...], outputs: int) -> Any:
    """Return the network that the options name."""
    dropout = 0.2 if options.method == "map" else 0.0
    key = jax.random.key(options.seed)
    if options.net in IMAGE_NETS and len(input_shape) != 3:
        raise ValueError(
            f"{options.net} takes images; '{options.data}' has inputs of {input_shape}."
        )
    if options.net == "lenet5":
        wide = {"conv_features": (18, 48, 360), "hidden": 256} if input_shape[0] == 3 else {}
        return zoo.LeNet5(input_shape[0], outputs, dropout=dropout, key=key, **wide)
    if options.net == "lenet5-caffe":
        return zoo.LeNet5Caffe(input_shape[0], outputs, dropout=dropout, key=key)
    if options.net in BLOCK_NETS:
        return _block_network(options, input_shape, outputs, dropout, key)
    if options.net == "gru":
        if len(input_shape) != 2:
            raise ValueError(
                f"gru takes sequences, (length, features) per data point; '{options.data}' has inputs of "
                f"{input_shape}."
            )
        return zoo.GRU(input_shape[1], _given(options.hidden)[0], outputs, key=key)
    in_size = math.prod(input_shape)
    if options.net == "nnx-mlp":
        from flax import nnx

        rngs = nnx.Rngs(options.seed)
        return zoo.NNXMLP(in_size, _given(options.hidden), outputs, dropout=dropout, rngs=rngs)
    return zoo.MLP(in_size, _given(options.hidden), outputs, dropout=dropout, key=key)


def _given(setting: Any) -> Any:
    """Return a setting that `in_proportion` fills in."""
    assert setting is not None, "options come through in_proportion first"
    return setting


def _block_network(
    options: SparsifyOptions, input_shape: tuple[int, ...], outputs: int, dropout: float, key: Any
) -> Any:
    size: dict[str, Any] = {"image_size": input_shape[1:]}
    if options.depth is not None:
        size["depth"] = options.depth
    if options.net == "mlp-mixer":
        # Without dropout, for a point estimate too, as published.
        if (width := options.width) is not None:
            size |= {"width": width, "token_hidden": 2 * width, "channel_hidden": 2 * width}
        return zoo.MLPMixer(input_shape[0], outputs, key=key, **size)
    if (width := options.width) is not None:
        size |= {"width": width, "hidden": 2 * width}
    if options.net == "vit":
        return zoo.ViT(input_shape[0], outputs, dropout=dropout, key=key, **size)
    from flax import nnx

    rngs = nnx.Rngs(options.seed)
    return zoo.NNXViT(input_shape[0], outputs, dropout=dropout, rngs=rngs, **size)


def build_schedule(options: SparsifyOptions) -> Any:
    """Return the schedule that the options name."""
    given: dict[str, Any] = {
        name: value
        for name in ("wait", "refit", "every", "cooldown", "fraction")
        if (value := getattr(options, name)) is not None
    }
    log_uniform = options.prior == "log-uniform"
    schedule = schedule_of(options)
    if log_uniform and schedule == "every":
        # Once the divergence is there, weights need as long again to leave.
        warm = kl_warmup_epochs_of(options)
        given.setdefault("wait", min(2 * warm, max(_given(options.num_epochs) - 1, 0)))
    if options.mask_prior and schedule != "verified":
        raise ValueError("--mask-prior goes with --schedule verified.")
    takes = {
        "verified": {"wait", "refit", "cooldown", "fraction"},
        "every": {"wait", "every", "cooldown", "fraction"},
        "when-converged": {"cooldown", "fraction"},
        "iterative": set(),
    }[schedule]
    if unknown := sorted(set(given) - takes):
        other = {"every": "--every", "verified": "--refit"}.get(schedule)
        why = f"epochs between its reductions are {other}" if other else "it watches the VFE"
        raise ValueError(f"--schedule {schedule} takes no --{unknown[0]}: {why}.")
    if schedule == "verified":
        for name in ("tolerance", "stop_early"):
            if getattr(options, name) is not None:
                given[name] = getattr(options, name)
        return schedules.Verified(**given, mask_prior=options.mask_prior)
    if schedule == "every":
        return schedules.Every(**given)
    if schedule == "iterative":
        return schedules.Iterative()
    return schedules.WhenConverged(**given)


def build_programs(
    options: SparsifyOptions, input_shape: tuple[int, ...], outputs: int, num_classes: int | None
) -> tuple:
    """Return the program and its guide."""
    network = build_network(options, input_shape, outputs)
    build = programs.classifier if num_classes else programs.regression
    if options.method == "with-noise":
        model = build(nn.with_noise(network, kl_weight=options.kl_weight), None)
        return model, AutoMeanField(model)
    model = build(network, build_prior(options))
    if options.prior == "log-uniform":
        return model, AutoMeanField(model, init_scale=math.exp(-5))
    if options.method == "map":
        return model, AutoDelta(model, init_loc_fn=init_to_network)
    return model, AutoMeanField(model)


def build_prior(options: SparsifyOptions) -> Any:
    """Return the prior that the options name."""
    if options.prior == "log-uniform":
        return priors.LogUniformPrior()
    kind = {
        "flat": priors.Flat,
        "collapsed-flat": functools.partial(priors.Flat, collapsed=True),
        "regularized-horseshoe": priors.RegularizedHorseshoePrior,
        "spike-and-slab": priors.SpikeAndSlabPrior,
    }[options.prior]
    if options.prior_scale is not None:
        return kind(options.prior_scale)
    return kind(0.1) if options.prior == "spike-and-slab" else kind()


def build_optimizer(options: SparsifyOptions) -> Any:
    """Return AdaBelief, with a rate of its own for the parameters of noise."""
    rate = learning_rate_of(options)
    if options.method != "with-noise":
        return optax.adabelief(rate)

    def label(params: dict[str, Any]) -> dict[str, str]:
        return {name: "noise" if ".value_auto_" in name else "weights" for name in params}

    rates: dict[Any, Any] = {
        "weights": optax.adabelief(rate),
        "noise": optax.adabelief(NOISE_RATE * rate),
    }
    return optax.partition(rates, label)


def build_criterion(options: SparsifyOptions, input_shape: tuple[int, ...], outputs: int) -> Any:
    """Return the criterion that the options name, or None."""
    if options.method == "with-noise":
        return criterion_of(options.criterion or "bmrs-uniform", margin=options.margin or 0.0)
    if options.method != "bmr":
        return None
    if options.groups is not None:
        units = _units(options, input_shape, outputs)
        kind = criteria.Shrinkage if options.criterion == "shrinkage" else criteria.SpikeAndSlab
        return kind(groups=units)
    if options.prior == "log-uniform":
        return criteria.DropoutRate()
    if options.prior == "spike-and-slab":
        return criteria.Inclusion()
    return criterion_of(_given(options.criterion))


def criterion_of(name: CriterionName, *, margin: float = 0.0) -> Any:
    """Return the criterion of a name.

    Args:
        name: In words, as on the command line.
        margin: See `criteria.BMRSNormal`.
    """
    made: dict[CriterionName, Callable[[], Any]] = {
        "spike-and-slab": criteria.SpikeAndSlab,
        "shrinkage": criteria.Shrinkage,
        "regularized-horseshoe": criteria.RegularizedHorseshoe,
        "bmrs-uniform": lambda: criteria.BMRSUniform(8),
        "bmrs-normal": lambda: criteria.BMRSNormal(margin=margin),
        "signal-to-noise": lambda: criteria.SignalToNoise(
            threshold=1.0, family=reduction.LogNormal
        ),
    }
    return made[name]()


def _units(options: SparsifyOptions, input_shape: tuple[int, ...], outputs: int) -> Any:
    network, example = build_network(options, input_shape, outputs), jnp.zeros(input_shape)
    along: Any = options.groups
    if options.net.startswith("nnx-"):
        return structure.unit_groups(network, example[None], along=along)
    return structure.unit_groups(network, example, along=along)


def build_callbacks(options: SparsifyOptions) -> list[Any]:
    """Return what logs the run, if anything does."""
    if options.log is None:
        return []
    kinds = {".jsonl": callbacks.JSONLines, ".csv": callbacks.CSV}
    return [kinds[options.log.suffix](options.log)]


def num_outputs(found: Any) -> int:
    """Return how many outputs the network has."""
    return found.num_classes or math.prod(found.train[1].shape[1:])


def build_mesh(options: SparsifyOptions) -> Any:
    """Return the mesh that ``--mesh`` asks for, or None without it."""
    if options.mesh is None:
        return None

    sizes: dict[str, int] = {}
    for part in options.mesh.split(","):
        axis, _, length = part.strip().partition("=")
        if axis not in ("data", "model") or not length.isdecimal() or not int(length):
            raise ValueError(
                f"--mesh {options.mesh}: '{part}' is not data=N or model=N; give, say, data=4,model=2."
            )
        if axis in sizes:
            raise ValueError(f"--mesh {options.mesh} names {axis} twice.")
        sizes[axis] = int(length)
    wanted, found = math.prod(sizes.values()), jax.device_count()
    if wanted > found:
        platform = jax.default_backend()
        virtual = f" XLA_FLAGS=--xla_force_host_platform_device_count={wanted} makes virtual ones."
        raise ValueError(
            f"--mesh {options.mesh} asks for {wanted} devices, and there are {found} ({platform})."
            + (virtual if platform == "cpu" else "")
        )
    devices = jax.devices()[:wanted]
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), devices=devices)
