"""Putting multiplicative noise into an Equinox network, and folding it into the weights again."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.nn.multiplicative_noise import MultiplicativeNoise
from bmrjax.structure.network_arrays import path_name

Place = Literal["inputs", "outputs", "both"]
_LAYERS = (eqx.nn.Linear, eqx.nn.Conv, eqx.nn.BatchNorm)


class Noisy(eqx.Module):
    """A layer with multiplicative noise on its inputs or outputs.

    Attributes:
        layer: The layer.
        before: Noise on its inputs; None for none.
        after: Noise on its outputs; None for none.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> from bmrjax import nn
        >>> linear = eqx.nn.Linear(3, 2, key=jax.random.key(0))
        >>> noise = nn.MultiplicativeNoise((3,))
        >>> layer = nn.Noisy(linear, before=noise, after=None)
        >>> bool((layer(jnp.ones(3)) == linear(jnp.ones(3))).all())  # until a program draws the noise
        True
    """

    layer: Any
    before: MultiplicativeNoise | None
    after: MultiplicativeNoise | None

    def __call__(self, x: Array, *args: Any, **kwargs: Any) -> Any:
        """Apply to what the layer takes."""
        return self.around(lambda x: self.layer(x, *args, **kwargs), x)

    def around(self, function: Callable[[Array], Any], x: Array) -> Any:
        """Apply a function in place of the layer, such as the layer on many rows, between the noises."""
        if self.before is not None:
            x = self.before(x)
        found = function(x)
        if self.after is None:
            return found
        if isinstance(found, tuple):  # with the running statistics
            return self._times(self.after, found[0]), *found[1:]
        return self._times(self.after, found)

    def _times(self, noise: MultiplicativeNoise, x: Array) -> Array:
        if isinstance(self.layer, eqx.nn.BatchNorm):
            # Channels come first, and any number of axes behind them.
            return x * noise.value.reshape(-1, *(1,) * (x.ndim - 1))
        return noise(x)

    def __getattr__(self, name: str) -> Any:
        """Tell a network that reads what is in the layer, past the noise, why it cannot."""
        layer = self.__dict__.get("layer")
        if name.startswith("_") or not hasattr(layer, name):
            raise AttributeError(f"'Noisy' object has no attribute '{name}'")
        raise AttributeError(
            f"The network reads '{name}' of a {type(layer).__name__} that has multiplicative noise around "
            f"it, and so would miss the noise. Let the network call the layer, let `where` of "
            f"nn.with_noise return None for it, or read '.layer.{name}' if the noise does not matter there."
        )


def with_noise(
    network: Any,
    where: Callable[[str, Any], Place | None] | None = None,
    *,
    kl_weight: float | Callable[[str, Any], float] = 1.0,
    **options: Any,
) -> Any:
    """Return an Equinox network with multiplicative noise around its layers.

    Noise comes on neurons and channels: the features that a linear layer takes or gives, the channels of a
    convolution or of a batch normalisation. Before a rectifier it does what it would do behind it. The
    tokens of a `ViT` and the rows of an `MLPMixer` share the noise of a layer. A recurrent cell takes none:
    for a `GRU` give ``lambda path, layer: "inputs"``, which puts it on the last state.

    Args:
        network: An Equinox module, or a pair of module and state.
        where: Takes a layer's path and the layer (`equinox.nn.Linear`, `Conv` or `BatchNorm`), and
            returns where noise goes: ``"inputs"``, ``"outputs"``, ``"both"`` or None. By default on the
            outputs of each but the last, and not on a convolution where the network has batch
            normalisation, which would undo it: there it follows the normalisation.
        kl_weight: Of `MultiplicativeNoise`, or a function of a layer's path and the layer that returns it.
            A removed channel saves many more operations than a removed neuron, yet the divergence counts
            both alike: where operations matter, let it count more in convolutions. At 1 the objective is
            the bound of the evidence, whose data soon outweigh a divergence of a few hundred units; the
            published code of BMRS takes means of both, so that its weight is the number of data over
            that of layers and of the layer's units, and removes far more.
        options: Further ones of `MultiplicativeNoise`.

    Returns:
        The network, each such layer within a `Noisy`; `without_noise` is the way back.

    Raises:
        TypeError: For something else than an Equinox network.
        ValueError: If no layer gets noise.

    Example:
        >>> import jax
        >>> from bmrjax import nn, zoo
        >>> network = nn.with_noise(zoo.MLP(784, (500, 300), 10, key=jax.random.key(0)))
        >>> [layer.after.value.shape for layer in network.layers[:-1]]
        [(500,), (300,)]

    References:
        Neklyudov et al. (2017), section 5, on inputs; Wright, Igel and Selvan (2024), section 5, on outputs.
    """
    if isinstance(network, tuple):
        module, state = network
        return with_noise(module, where, kl_weight=kl_weight, **options), state
    if not isinstance(network, eqx.Module):
        raise TypeError(
            f"with_noise takes an Equinox network, got {type(network).__name__}. Put "
            "nn.MultiplicativeNoise (for Flax NNX, nn.NNXMultiplicativeNoise) between its layers."
        )
    found = [
        (path_name(path), layer)
        for path, layer in jax.tree_util.tree_flatten_with_path(network, is_leaf=_is_layer)[0]
        if _is_layer(layer)
    ]
    place = _by_default(found) if where is None else where
    weigh = kl_weight if callable(kl_weight) else lambda path, layer: kl_weight
    noisy = [
        _noisy(layer, place(path, layer), {**options, "kl_weight": weigh(path, layer)})
        for path, layer in found
    ]
    if all(new is old for new, (_, old) in zip(noisy, found, strict=True)):
        raise ValueError(
            f"with_noise: none of the layers {[path for path, _ in found]} gets noise; let `where` return "
            "'inputs' or 'outputs' for some."
        )
    fresh = iter(noisy)
    return jax.tree.map(
        lambda node: next(fresh) if _is_layer(node) else node, network, is_leaf=_is_layer
    )


def without_noise(network: Any) -> Any:
    """Return a network with its noise folded into the weights: the same function, of the class it had.

    Args:
        network: From `with_noise`, fitted or not: an Equinox module, or a pair of module and state.

    Example:
        A unit whose noise is zero is removed from the weights:

        >>> import equinox as eqx, jax, jax.numpy as jnp
        >>> from bmrjax import nn, zoo
        >>> noisy = nn.with_noise(zoo.MLP(4, (3,), 2, key=jax.random.key(0)))
        >>> noisy = eqx.tree_at(
        ...     lambda n: n.layers[0].after.value, noisy, jnp.array([1.0, 0.0, 0.5])
        ... )
        >>> network = nn.without_noise(noisy)
        >>> type(network.layers[0]).__name__
        'Linear'
        >>> bool(jnp.allclose(network(jnp.ones(4)), noisy(jnp.ones(4)), atol=1e-6))
        True
    """

    def fold(node: Any) -> Any:
        return _folded(node) if isinstance(node, Noisy) else node

    return jax.tree.map(fold, network, is_leaf=lambda node: isinstance(node, Noisy))


def _is_layer(node: Any) -> bool:
    return isinstance(node, _LAYERS)


def _by_default(found: list[tuple[str, Any]]) -> Callable[[str, Any], Place | None]:
    normalised = any(isinstance(layer, eqx.nn.BatchNorm) for _, layer in found)
    last = found[-1][0] if found else None

    def place(path: str, layer: Any) -> Place | None:
        if path == last or (normalised and isinstance(layer, eqx.nn.Conv)):
            return None
        return "outputs"

    return place


def _shapes(layer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of noise on what a layer takes and on what it gives."""
    if isinstance(layer, eqx.nn.Linear):
        return (layer.weight.shape[1],), (layer.weight.shape[0],)
    if isinstance(layer, eqx.nn.Conv):
        flat = (1,) * layer.num_spatial_dims
        return (layer.in_channels, *flat), (layer.out_channels, *flat)
    both = (layer.weight.shape[0], 1, 1)
    return both, both


def _noisy(layer: Any, place: Place | None, options: dict[str, Any]) -> Any:
    if place is None:
        return layer
    if place not in ("inputs", "outputs", "both"):
        raise ValueError(
            f"with_noise: `where` returned {place!r}; give 'inputs', 'outputs', 'both' or None."
        )
    if isinstance(layer, eqx.nn.BatchNorm) and (place != "outputs" or layer.weight is None):
        raise ValueError(
            "with_noise: a batch normalisation undoes what comes before it, and without a gain nothing can "
            "take noise up; put noise on the outputs of one with channelwise_affine=True."
        )
    before, after = (MultiplicativeNoise(shape, **options) for shape in _shapes(layer))
    return Noisy(
        layer,
        before if place in ("inputs", "both") else None,
        after if place in ("outputs", "both") else None,
    )


def _folded(noisy: Noisy) -> Any:
    layer = noisy.layer
    weight, bias = layer.weight, layer.bias
    if noisy.before is not None:
        inputs = noisy.before.value.ravel()
        if isinstance(layer, eqx.nn.Conv) and layer.groups > 1:
            each = inputs.reshape(layer.groups, 1, -1)
            rows = jnp.repeat(each, weight.shape[0] // layer.groups, 1)
            inputs = rows.reshape(weight.shape[0], -1)
        else:
            inputs = inputs[None]
        weight = weight * inputs.reshape(*inputs.shape, *(1,) * (weight.ndim - 2))
    if noisy.after is not None:
        outputs = noisy.after.value.ravel()
        weight = weight * outputs.reshape(-1, *(1,) * (weight.ndim - 1))
        bias = None if bias is None else bias * outputs.reshape(-1, *(1,) * (bias.ndim - 1))
    return eqx.tree_at(
        lambda node: (node.weight, node.bias), layer, (weight, bias), is_leaf=lambda x: x is None
    )
