"""How widely the posterior of a run spreads each weight of its network."""

from typing import Any

import jax
import numpy as np

from bmrjax.codec.codec_error import CodecError
from bmrjax.reduction import LogNormal
from bmrjax.structure import named_arrays


def posterior_scales(result: Any, *inputs: Any) -> dict[str, np.ndarray]:
    """Return the posterior standard deviation of each weight of a random module, 0 for those removed.

    A site holds a weight in a unit of its own, such as the learned scale of its layer. What the unit is
    follows from the network at the posterior mean, by division; where that is zero, from the rest of the
    array.

    Args:
        result: Of `sparsify`, with one random module.
        *inputs: Arguments of the program: one batch, as for `Result.network`.

    Returns:
        Path of an array in the network, such as ``"layers.0.weight"``, to standard deviations, shaped as it.

    Raises:
        CodecError: If the program has no random module, or several.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(3, (8,), 2, key=jax.random.key(0))
        >>> program = bmr.programs.classifier(network, bmr.priors.NormalPrior(1.0))
        >>> data = jax.random.normal(jax.random.key(1), (64, 3)), jnp.arange(64) % 2
        >>> result = bmr.sparsify(
        ...     program, data, key=jax.random.key(2), num_epochs=2, criterion=None, progress=False
        ... )
        >>> found = bmr.codec.posterior_scales(result, data[0])
        >>> {name: scale.shape for name, scale in found.items()}
        {'layers.0.weight': (8, 3), 'layers.0.bias': (8,), 'layers.1.weight': (2, 8), 'layers.1.bias': (2,)}
    """
    name, network = only_network(result, *inputs)
    try:
        posterior = result.posterior(*inputs)
    except ValueError:
        if result.keep:
            raise
        posterior = {}  # a fit of point estimates has no spread
    found = {}
    for path, array in named_arrays(network).items():
        site = posterior.get(f"{name}.{path}")
        # Of noise there is no weight.
        if site is None or isinstance(site, LogNormal) or site.loc.shape != array.shape:
            continue
        parts = (array, site.loc, site.standard_deviation)
        weight, loc, scale = (np.asarray(jax.device_get(a), np.float64) for a in parts)
        known = np.abs(loc) > 1e-6 * np.abs(loc).max(initial=0.0)
        unit = np.abs(np.divide(weight, loc, out=np.zeros_like(weight), where=known))
        usual = float(np.median(unit[known])) if known.any() else 1.0
        found[path] = (scale * np.where(known, unit, usual)).astype(np.float32)
    return found


def only_network(result: Any, *inputs: Any) -> tuple[str, Any]:
    """Return the one random module of a result, at the posterior mean, and its name.

    Raises:
        CodecError: If there is none, or several.
    """
    if not inputs:
        raise CodecError(
            "encode: a result needs one batch of its program's arguments, without the targets: "
            "inputs=(x[:2],)."
        )
    networks = result.network(*inputs)
    if len(networks) != 1:
        raise CodecError(
            f"encode: the program has {len(networks)} random modules ({', '.join(networks)}); take one of "
            "result.network(...) and encode that."
        )
    return next(iter(networks.items()))
