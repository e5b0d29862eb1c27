"""The clusters that soft weight sharing learned."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.codec.codec_error import CodecError
from bmrjax.codec.quantise import Mixture, to_bfloat16
from bmrjax.codec.scales import only_network
from bmrjax.distributions import mixture_log_prob
from bmrjax.structure import named_arrays


def learned_mixture(result: Any, *inputs: Any) -> Mixture:
    """Return the quantiser that puts every weight at the mean of its component.

    A weight belongs to the component of the largest π_k N(w; μ_k, 1/λ_k); those of the one at zero go. The
    means are rounded to bfloat16.

    Args:
        result: Of a program with one random module under `priors.SoftWeightSharing`.
        *inputs: Arguments of the program: one batch, as for `Result.network`.

    Raises:
        CodecError: If the program has no such network.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> network = bmr.zoo.MLP(3, (8,), 2, key=jax.random.key(0))
        >>> sharing = bmr.priors.SoftWeightSharing(components=5, dropout=False)
        >>> model = bmr.programs.classifier(network, sharing)
        >>> data = jax.random.normal(jax.random.key(1), (64, 3)), jnp.arange(64) % 2
        >>> result = bmr.sparsify(
        ...     model, data, key=jax.random.key(2), num_epochs=2, criterion=None, progress=False
        ... )
        >>> bmr.codec.learned_mixture(result, data[0]).means.shape
        (5,)

    References:
        Ullrich, Meeds and Welling (2017), section 3; Federici, Ullrich and Welling (2017), section 3.
    """
    name, network = only_network(result, *inputs)
    found = result.center(*inputs)
    parts = [found.get(f"{name}.sharing.{part}") for part in ("log_weight", "mean", "precision")]
    if any(part is None for part in parts):
        raise CodecError(
            f"learned_mixture: '{name}' has no mixture; give its weights priors.SoftWeightSharing."
        )
    log_weight, mean, precision = parts
    components = log_weight, mean, jnp.log(precision)

    @jax.jit
    def assign(array: Any) -> Any:
        return jnp.argmax(mixture_log_prob(array, *components), axis=-1)

    # Arrays that are no weights under the mixture have no site.
    assigned = {
        path: np.asarray(assign(array))
        for path, array in named_arrays(network).items()
        if f"{name}.{path}" in found
    }
    return Mixture(to_bfloat16(np.asarray(mean)), assigned)
