"""Starting a fit in one compiled program."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpyro
import optax
from jaxtyping import Array
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoGuide, AutoGuideList
from numpyro.infer.initialization import init_to_median
from numpyro.infer.util import constrain_fn

_CLOSURES = ("_potential_fn", "_potential_fn_gen", "_postprocess_fn", "_guides")


def init_to_network(site: Mapping[str, Any] | None = None) -> Any:
    """Start each site where its network or its prior says, else at the prior's median.

    A NumPyro initialisation strategy, for ``AutoNormal(model, init_loc_fn=init_to_network)``. A
    site says where to start in ``infer={"init": value}``; lifted networks do.
    """
    if site is None:
        return partial(init_to_network)
    if site["type"] == "sample" and not site["is_observed"]:
        start = site.get("infer", {}).get("init")
        if start is not None:
            return jax.numpy.broadcast_to(
                jax.numpy.asarray(start, jax.numpy.result_type(float)), site["fn"].shape()
            )
    return init_to_median(site)


class Start(NamedTuple):
    """A started fit.

    Attributes:
        params: Unconstrained variational (and model) parameters by name.
        mutable: Mutable sites by name, or None.
        constrain: Maps unconstrained to constrained parameters.
    """

    params: dict[str, Array]
    mutable: dict[str, Any] | None
    constrain: Callable[[dict[str, Array]], dict[str, Array]]


def initialise(
    model: Callable, guide: Callable, loss: Any, key: Array, args: tuple, kwargs: Mapping[str, Any]
) -> Start:
    """Trace model and guide once, inside one compiled program, and collect their parameters.

    An automatic guide that has not met its model yet is set up in the same program; the
    prototype that it keeps is made concrete afterwards, so the guide works as usual.

    Args:
        model: NumPyro program.
        guide: Its guide.
        loss: A NumPyro ELBO.
        key: PRNG key.
        args: Positional arguments of the program: one batch.
        kwargs: Its keyword arguments.

    Raises:
        ValueError: If a parameter starts at a value that is not finite.
    """
    svi = SVI(model, guide, optax.set_to_zero(), loss)
    fresh = [g for g in _auto_guides(guide) if g.prototype_trace is None]
    static: list[tuple[Any, list[tuple[int, Any]], int]] = []

    def start(key: Array, args: tuple, kwargs: dict[str, Any]) -> Any:
        state = svi.init(key, *args, **kwargs)
        traced: list[list[Any]] = []
        static.clear()
        for g in fresh:
            kept = {k: v for k, v in vars(g).items() if k not in _CLOSURES and k != "model"}
            leaves, structure = jtu.tree_flatten(kept)
            is_traced = [isinstance(leaf, jax.core.Tracer) for leaf in leaves]
            traced.append([x for x, t in zip(leaves, is_traced, strict=True) if t])
            rest = [(i, x) for i, (x, t) in enumerate(zip(leaves, is_traced, strict=True)) if not t]
            static.append((structure, rest, len(leaves)))
        return svi.optim.get_params(state.optim_state), state.mutable_state, traced

    params, mutable, traced = jax.jit(start)(key, args, dict(kwargs))
    for g, (structure, rest, size), values in zip(fresh, static, traced, strict=True):
        leaves: list[Any] = [None] * size
        for i, leaf in rest:
            leaves[i] = leaf
        remaining = iter(values)
        known = {i for i, _ in rest}
        leaves = [leaves[i] if i in known else next(remaining) for i in range(size)]
        vars(g).update(jtu.tree_unflatten(structure, leaves))
        _restore_closures(g, args, kwargs)
    bad = sorted(k for k, v in params.items() if not bool(jax.numpy.all(jax.numpy.isfinite(v))))
    if bad:
        raise ValueError(
            f"The parameters {bad} start at values that are not finite. Check the program and the "
            "data for NaNs, or give the guide another init_loc_fn."
        )
    assert svi.constrain_fn is not None
    return Start(params, mutable, svi.constrain_fn)


def _auto_guides(guide: Any) -> list[AutoGuide]:
    found: list[AutoGuide] = []
    while not isinstance(guide, AutoGuide) and isinstance(guide, numpyro.primitives.Messenger):
        guide = guide.fn
    if isinstance(guide, AutoGuide):
        found.append(guide)
    if isinstance(guide, AutoGuideList):
        for part in guide._guides:
            found.extend(_auto_guides(part))
    return found


def _restore_closures(guide: AutoGuide, args: tuple, kwargs: Mapping[str, Any]) -> None:
    def postprocess(latents: dict[str, Array]) -> dict[str, Array]:
        seeded = numpyro.handlers.seed(guide.model, jax.random.key(0))
        return constrain_fn(seeded, args, dict(kwargs), latents, return_deterministic=True)

    guide._postprocess_fn = postprocess
    guide._potential_fn = guide._potential_fn_gen(*args, **kwargs)
