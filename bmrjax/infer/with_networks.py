"""A program whose random modules hold other networks than it was written with."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from typing import Any

from numpyro.primitives import Messenger

_NETWORKS: ContextVar[Mapping[str, Any]] = ContextVar("with_networks")


class with_networks(Messenger):
    """Let the random modules of a program hold smaller networks, such as `compact` returns.

    Everything else of the program stays, its priors among them: a prior that depends on how many inputs a
    unit has goes by the network that the program was written with.

    Args:
        fn: NumPyro program with calls of `random_module`.
        networks: By the name of the random module, a network of the same class with the same layers.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro
        >>> import bmrjax as bmr
        >>> keys = jax.random.split(jax.random.key(0))
        >>> large, small = (bmr.zoo.MLP(4, (n,), 2, key=key) for n, key in zip((8, 3), keys))
        >>> program = bmr.programs.classifier(large, bmr.priors.NormalPrior(1.0))
        >>> smaller = bmr.infer.with_networks(program, {"net": small})
        >>> with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as trace:
        ...     smaller(jnp.ones((5, 4)))
        >>> trace["net.layers.0.weight"]["value"].shape
        (3, 4)
    """

    def __init__(self, fn: Callable | None = None, networks: Mapping[str, Any] | None = None):
        super().__init__(fn)
        self.networks: dict[str, Any] = dict(networks or {})
        self._tokens: list[Token] = []

    def __enter__(self) -> None:
        """Start to replace."""
        # Those of a handler further out replace those of one further in.
        token = _NETWORKS.set({**self.networks, **_NETWORKS.get({})})
        self._tokens.append(token)
        super().__enter__()

    def __exit__(self, *args: Any) -> None:
        """Replace no longer."""
        super().__exit__(*args)
        _NETWORKS.reset(self._tokens.pop())

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy is made of."""
        return vars(self) | {"_tokens": []}


def network_in_place(name: str) -> Any:
    """Return the network that `with_networks` gives a random module, or None.

    Args:
        name: Of the random module.
    """
    return _NETWORKS.get({}).get(name)
