"""Turning a network into random weights inside a NumPyro program."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import lazy_loader
import numpyro
from jaxtyping import Array
from numpyro.primitives import apply_stack, mutable

from bmrjax.distributions import PerDatum, TruncatedLogUniform
from bmrjax.handlers import noise_draws
from bmrjax.infer.network_at_start import network_at_start
from bmrjax.infer.with_networks import network_in_place
from bmrjax.nn.adapter import Adapter, Values
from bmrjax.nn.equinox_adapter import EquinoxAdapter
from bmrjax.priors import Prior
from bmrjax.priors.layer import Layer, Tensor
from bmrjax.structure.network_arrays import is_equinox, is_nnx
from bmrjax.structure.no_network import no_network

_nnx_adapter: Any = lazy_loader.load("bmrjax.nn.nnx_adapter", suppress_warning=True)  # loads Flax


class RandomModule:
    """A network whose weights are random: what `random_module` returns.

    Call it on a batch: ``net(x)`` with a leading batch axis, for Equinox networks (which are
    written for one data point, and are vmapped here) and for Flax NNX networks alike.

    Attributes:
        name: The name given to `random_module`.
        values: Layer path to tensor name to the value sampled in this execution.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp, numpyro
        >>> import bmrjax as bmr
        >>> network = eqx.nn.MLP(4, 3, width_size=8, depth=1, key=jax.random.key(0))
        >>> def program(x):
        ...     net = bmr.random_module("net", network, bmr.priors.NormalPrior(1.0))
        ...     return net, net(x)
        >>> net, outputs = numpyro.handlers.seed(program, 0)(jnp.ones((5, 4)))
        >>> outputs.shape, sorted(net.values), type(net.module).__name__
        ((5, 3), ['layers.0', 'layers.1'], 'MLP')
    """

    def __init__(self, name: str, adapter: Adapter, values: Values, num_data: int | None = None):
        self.name = name
        self.values = values
        self._adapter = adapter
        self._num_data = num_data

    @property
    def module(self) -> Any:
        """The network itself, of its own class, holding the sampled weights."""
        return self._adapter.build(self.values)

    @property
    def buffers(self) -> dict[str, Array]:
        """The running statistics of the network as it was given, by name; empty without any."""
        return self._adapter.buffers()

    def whole(self, buffers: Mapping[str, Array] | None = None) -> Any:
        """Return the network as it was given (module, or module and state), holding the sampled weights.

        Args:
            buffers: Running statistics, the value of the mutable site ``"{name}.buffers"``; the network's own
                by default.
        """
        return self._adapter.whole(self.values, buffers or self._adapter.buffers())

    def __call__(self, *args: Any) -> Any:
        """Apply the network to a batch.

        Args:
            *args: The network's inputs: arrays with a leading batch axis, or dicts and tuples of them.

        Returns:
            Its outputs, with a leading batch axis.
        """
        message = {
            "type": "apply_network",
            "network": self,
            "fn": self._apply,
            "args": args,
            "kwargs": {"inference": False},
            "value": None,
        }
        return apply_stack(message)["value"]

    def _apply(self, *args: Any, inference: bool) -> Any:
        rows = jax.tree.leaves(args)[0].shape[0]
        if self._num_data is not None and rows != self._num_data:
            raise ValueError(
                f"random_module('{self.name}'): its noise is drawn for each of {self._num_data} data, and "
                f"it is called on {rows}. Call it on the whole batch, or make the noise one draw "
                "a batch: MultiplicativeNoise(..., per_datum=False)."
            )
        # A program run by hand, without handlers around it, has no source of randomness.
        key = None if inference else numpyro.prng_key()
        buffers = self._adapter.buffers()
        if not buffers:
            return self._adapter.apply(self.values, {}, args, inference=inference, key=key)[0]
        start: Any = dict(buffers)
        holder: Any = mutable(f"{self.name}.buffers", start)
        outputs, updated = self._adapter.apply(
            self.values, dict(holder), args, inference=inference, key=key
        )
        if not inference:
            holder.update(updated)
        return outputs


def random_module(
    name: str,
    network: Any,
    prior: Prior | None,
    *,
    random: Callable[[str], bool] | None = None,
) -> RandomModule:
    """Give a network random weights; call it inside a NumPyro program.

    Every floating array of every layer becomes the site (or the sites) that the prior makes of
    it: weights and biases of linear and convolution layers, gains of normalisation layers,
    embeddings, and the arrays that a module of your own holds. Sites are named after the path to
    the layer, such as ``"net.layers.0.weight"``, and start at the network's own values. Dropout
    draws from the program's key; the running statistics of batch normalisation are mutable state
    that `numpyro.infer.SVI` and `bmrjax.sparsify` carry. A `nn.MultiplicativeNoise` brings its own prior: its
    site ``"….value"`` is random whatever becomes of the weights.

    Args:
        name: Prefix of the sites.
        network: An Equinox module, an ``(equinox module, equinox.nn.State)`` pair as
            `equinox.nn.make_with_state` returns it, or a Flax NNX module.
        prior: Draws the tensors of one layer at a time; None for weights that are point estimates, as
            `numpyro.param` sites.
        random: Takes a layer's path (without `name`); the layers for which it is false stay
            deterministic, noise as well. By default all are random.

    Returns:
        A callable from a batch of inputs to a batch of outputs.

    Raises:
        TypeError: For an object that is not a network, a network without floating arrays, or a
            layer whose weights cannot be random; the message names it.

    Example:
        >>> import equinox as eqx, jax, jax.numpy as jnp, numpyro
        >>> import bmrjax as bmr
        >>> network = eqx.nn.MLP(4, 3, width_size=8, depth=1, key=jax.random.key(0))
        >>> def program(x):
        ...     net = bmr.random_module("net", network, bmr.priors.Flat())
        ...     return net(x)
        >>> numpyro.handlers.seed(program, jax.random.key(1))(jnp.ones((5, 4))).shape
        (5, 3)
    """
    if prior is not None and not isinstance(prior, Prior):
        raise TypeError(
            f"random_module('{name}'): the prior is a {type(prior).__name__}; give a bmrjax prior "
            "such as priors.Flat() or priors.NormalPrior(1.0), or None for point estimates."
        )
    adapter = _adapter(name, network)
    layers = adapter.layers()
    smaller = network_in_place(name)
    if smaller is not None:
        adapter = _adapter(name, smaller)
        layers = _with_fan_in(name, adapter.layers(), layers)
    other = network_at_start()
    if other is not None:
        started = _adapter(name, other)
        _check_alike(name, layers, started.layers())
        adapter, layers = started, _with_fan_in(name, started.layers(), layers)
    if not layers:
        raise TypeError(
            f"random_module('{name}'): {type(network).__name__} has no floating-point arrays."
        )
    parts = {
        path: Layer(
            f"{name}.{path}" if path else name, tensors, kind=kind, index=i, depth=len(layers)
        )
        for i, (path, (kind, tensors)) in enumerate(layers.items())
    }
    noises, drawn = {}, []
    for path, layer in parts.items():
        stays = random is not None and not random(path)
        noise = [part for part, tensor in layer.tensors.items() if tensor.noise is not None]
        if noise and not stays:
            noises[path] = noise
        elif not stays and prior is not None:
            drawn.append(path)
    begun = (
        prior.begin(name, [parts[path] for path in drawn]) if prior is not None and drawn else prior
    )
    values: dict[str, dict[str, Array]] = {}
    num_data, num_drawn = noise_draws().num_data, None
    for path, layer in parts.items():
        if path in noises:
            values[path] = {part: _noise(layer, part, num_data) for part in noises[path]}
            each = any(_each(layer.tensors[part]) for part in noises[path])
            num_drawn = num_data if each else num_drawn
        elif path in drawn:
            assert begun is not None
            values[path] = begun.layer(layer)
            _check_drawn(name, begun, layer, values[path])
        else:
            values[path] = {
                part: jnp.asarray(numpyro.param(f"{layer.name}.{part}", tensor.init))
                for part, tensor in layer.tensors.items()
            }
    return RandomModule(name, adapter, values, num_drawn)


def _with_fan_in(name: str, layers: Mapping[str, Any], of: Mapping[str, Any]) -> dict[str, Any]:
    """Return layers whose tensors count as many inputs as those of other layers, on which priors depend."""
    places, others = (
        {path: list(tensors) for path, (_, tensors) in found.items()} for found in (layers, of)
    )
    if places != others:
        differs = sorted({*places} ^ {*others}) or [p for p in places if places[p] != others[p]]
        raise ValueError(
            f"random_module('{name}'): the network that with_networks gives has other layers than the "
            f"program's: '{differs[0]}' is not the same in both. Give a network of the same class."
        )
    return {
        path: (kind, {k: replace(t, fan_in=of[path][1][k].fan_in) for k, t in tensors.items()})
        for path, (kind, tensors) in layers.items()
    }


def _check_alike(name: str, layers: Mapping[str, Any], start: Mapping[str, Any]) -> None:
    """Refuse a network to start from that has other arrays than the program's."""
    mine, theirs = (
        {
            f"{path}.{part}" if path else part: tensor.shape
            for path, (_, tensors) in of.items()
            for part, tensor in tensors.items()
        }
        for of in (layers, start)
    )
    if mine != theirs:
        differs = sorted({*mine.items()} ^ {*theirs.items()})[0][0]
        raise ValueError(
            f"random_module('{name}'): the network in `start` has other arrays than the program's: "
            f"'{differs}' is {theirs.get(differs, 'missing')} in it, and {mine.get(differs, 'missing')} in "
            "the program. Start from a network of the same layers."
        )


def _each(tensor: Tensor) -> bool:
    return tensor.noise is not None and tensor.noise.per_datum


def _noise(layer: Layer, part: str, num_data: int | None) -> Array:
    """Sample multiplicative noise under its own prior; a draw per data point with a leading axis of them."""
    tensor = layer.tensors[part]
    noise = tensor.noise
    assert noise is not None
    bounds = (jnp.full(tensor.shape, bound) for bound in (noise.low, noise.high))
    prior = PerDatum(
        TruncatedLogUniform(*bounds),
        num_data=num_data if noise.per_datum else None,
        at_mean=noise_draws().at_mean,
        kl_weight=noise.kl_weight,
        is_per_datum=noise.per_datum,
    )
    infer = {"layer": layer.name, "init": 1.0}
    return jnp.asarray(numpyro.sample(layer.site(part), prior, infer=infer))


def _check_drawn(name: str, prior: Prior, layer: Layer, drawn: Mapping[str, Array]) -> None:
    for part, tensor in layer.tensors.items():
        if part not in drawn or jnp.shape(drawn[part]) != tensor.shape:
            got = jnp.shape(drawn[part]) if part in drawn else "nothing"
            raise ValueError(
                f"random_module('{name}'): {type(prior).__name__} returned {got} for tensor '{part}' of "
                f"layer '{layer.name}', which has shape {tensor.shape}."
            )


def _adapter(name: str, network: Any) -> Any:
    if is_equinox(network):
        module, state = network if isinstance(network, tuple) else (network, None)
        return EquinoxAdapter(name, module, state)
    if is_nnx(network):
        return _nnx_adapter.NNXAdapter(name, network)
    raise no_network(f"random_module('{name}')", network)
