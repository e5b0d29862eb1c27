"""Starting a fit in one compiled program."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoGuide, AutoGuideList, AutoLaplaceApproximation
from numpyro.infer.initialization import init_to_median
from numpyro.infer.util import constrain_fn, potential_energy, transform_fn

from bmrjax.backend.on_host import on_host
from bmrjax.backend.quick_compile import quick_options
from bmrjax.backend.shared_programs import compiled
from bmrjax.families import inside
from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.tracing import shape_of
from bmrjax.infer.within_handlers import within_handlers

# As many as NumPyro takes.
_DRAWS_FOR_MEDIAN = 15

# Attributes of an automatic guide that hold functions over the arguments of its set-up.
_REBUILT = ("model", "_potential_fn", "_potential_fn_gen", "_postprocess_fn", "_guides", "_loss_fn")


def init_to_network(site: Mapping[str, Any] | None = None) -> Any:
    """Start each site where its network or its prior says, else at the prior's median.

    A NumPyro initialisation strategy, for ``AutoNormal(model, init_loc_fn=init_to_network)``. A
    site says where to start in ``infer={"init": value}``; random modules do.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from numpyro.infer.autoguide import AutoNormal
        >>> import bmrjax as bmr
        >>> def program():
        ...     numpyro.sample("w", dist.Normal(0, 1), infer={"init": jnp.array(0.7)})
        >>> guide = AutoNormal(program, init_loc_fn=bmr.init_to_network)
        >>> trace = numpyro.handlers.trace(numpyro.handlers.seed(guide, 0)).get_trace()
        >>> trace["w_auto_loc"]["value"]
        Array(0.7, dtype=float32)
    """
    if site is None:
        return partial(init_to_network)
    start = given_start(site)
    return _at_median(site) if start is None else start


def _at_median(site: Mapping[str, Any]) -> Any:
    """Return NumPyro's ``init_to_median(site)``, which interpolates between draws."""
    is_latent = site["type"] == "sample" and not site["is_observed"]
    if not is_latent or site["value"] is not None or site["fn"].support.is_discrete:
        return init_to_median(site)
    shape = (_DRAWS_FOR_MEDIAN, *site["kwargs"].get("sample_shape", ()))
    try:
        samples = site["fn"](sample_shape=shape, rng_key=site["kwargs"].get("rng_key"))
        transform = dist.biject_to(site["fn"].support)
    except NotImplementedError:
        return init_to_median(site)  # which starts elsewhere, or says what the support lacks
    ordered = jax.numpy.sort(transform.inv(samples), axis=0)
    return transform(ordered[_DRAWS_FOR_MEDIAN // 2])


def given_start(site: Mapping[str, Any]) -> Array | None:
    """Return where a latent site says that a fit starts, shaped as the site; None if it does not."""
    if site["type"] != "sample" or site["is_observed"]:
        return None
    start = site.get("infer", {}).get("init")
    if start is None:
        return None
    value = jax.numpy.asarray(start, jax.numpy.result_type(float))
    return jax.numpy.broadcast_to(value, shape_of(site))


def at_start(model: Callable) -> Callable:
    """Return a program whose latent sites are where a fit starts, where they say so, and drawn elsewhere.

    For looking at a program before it is fitted: an improper prior has no draws, but says where to start.
    """
    return numpyro.handlers.substitute(model, substitute_fn=_start_or_point)


def _start_or_point(site: Mapping[str, Any]) -> Array | None:
    """Return where a latent site starts, or a point of the support of an improper prior without a start."""
    start = given_start(site)
    if start is not None or site["type"] != "sample" or site["is_observed"]:
        return start
    if not isinstance(inside(site["fn"], (dist.Distribution,)), dist.ImproperUniform):
        return None
    transform = dist.biject_to(site["fn"].support)
    return transform(jax.numpy.zeros(transform.inverse_shape(shape_of(site))))


class Start(NamedTuple):
    """A started fit.

    Attributes:
        params: Unconstrained variational (and model) parameters by name.
        mutable: Mutable sites by name, or None.
        constrain: Maps unconstrained to constrained parameters.
        unconstrain: Its inverse.
        transforms: From unconstrained to constrained parameters, by name.
    """

    params: dict[str, Array]
    mutable: dict[str, Any] | None
    constrain: Callable[[dict[str, Array]], dict[str, Array]]
    unconstrain: Callable[[dict[str, Array]], dict[str, Array]]
    transforms: Mapping[str, Any]


def initialise(
    model: Callable,
    guide: Callable,
    loss: Any,
    key: Array,
    batch: Data,
) -> Start:
    """Trace model and guide once, inside one compiled program, and collect their parameters.

    An automatic guide that has not met its model yet is set up in the same program; the
    prototype that it keeps is made concrete afterwards, so the guide works as usual.

    Args:
        model: NumPyro program.
        guide: Its guide.
        loss: A NumPyro ELBO.
        key: PRNG key.
        batch: The program's arguments: one batch.

    Raises:
        ValueError: If a parameter starts at a value that is not finite.
    """
    fresh = [g for g in auto_guides(guide) if g.prototype_trace is None]

    def start(key: Array, *args: Any, **kwargs: Any) -> Any:
        svi = SVI(model, guide, optax.set_to_zero(), loss)
        state = svi.init(key, *args, **kwargs)
        assert isinstance(svi.constrain_fn, partial)
        return svi.optim.get_params(state.optim_state), state.mutable_state, svi.constrain_fn.args

    params, mutable, transforms = set_up(fresh, start, key, batch)
    bad = sorted(name for name, value in params.items() if not _is_finite(value))
    if bad:
        raise ValueError(
            f"The parameters {bad} start at values that are not finite. Check the program and the "
            "data for NaNs, or give the guide another init_loc_fn."
        )
    constrain = partial(transform_fn, *transforms)
    return Start(params, mutable, constrain, partial(constrain, invert=True), transforms[0])


def _is_finite(tree: Any) -> bool:
    """Say whether all numbers of a parameter, which may be a tree of arrays, are finite."""
    arrays = [x for x in jax.tree.leaves(tree) if jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)]
    return all(np.isfinite(np.asarray(x)).all() for x in arrays)


def set_up(
    fresh: Sequence[AutoGuide],
    function: Callable[..., Any],
    key: Array,
    batch: Data,
) -> Any:
    """Call a function in one compiled program, in which automatic guides meet their model.

    Op by op, each operation of the program would be compiled on its own. What the guides learn is made
    concrete afterwards, so that they work as usual.

    Args:
        fresh: Guides that are set up when the function calls them.
        function: Takes a key and the program's arguments.
        key: The key.
        batch: The program's arguments: one batch.

    Returns:
        What the function returns, its arrays concrete.
    """
    static: list[_Static] = []

    def run(key: Array, batch: Data) -> list[Array]:
        args, kwargs = arguments(batch)
        untouched = [dict(vars(g)) for g in fresh]
        try:
            kept: list[Any] = [function(key, *args, **kwargs)]
            for g in fresh:
                kept.append({k: v for k, v in vars(g).items() if k not in _REBUILT})
        finally:
            for g, attributes in zip(fresh, untouched, strict=True):
                vars(g).clear()
                vars(g).update(attributes)
        traced, rest = _split(kept)
        static.append(rest)
        return traced

    traced = jax.make_jaxpr(run)(key, batch)
    inputs = jtu.tree_leaves((key, batch))
    # A start is also in what a guide keeps, a few times over: one array for all.
    places: dict[int, int] = {}
    firsts = [places.setdefault(id(each), i) for i, each in enumerate(traced.jaxpr.outvars)]
    distinct = sorted(set(firsts))
    values = _compiled(traced, inputs, distinct)(traced.consts, inputs)
    by_place = dict(zip(distinct, values, strict=True))
    found, *learned = _join([by_place[first] for first in firsts], static[-1])
    for g, attributes in zip(fresh, learned, strict=True):
        vars(g).update(attributes)
        rebuild(g, *arguments(batch))
    return found


def _compiled(traced: ClosedJaxpr, inputs: list[Any], which: list[int]) -> Any:
    """Return the program of some outputs of a jaxpr, compiled unless the same one is there.

    What the jaxpr closes over, such as a network's weights, are arguments: XLA takes long over large
    constants, and a program that starts at another network is the same one.
    """

    def call(consts: list[Array], inputs: list[Array]) -> list[Array]:
        outputs = jaxpr_as_fun(ClosedJaxpr(traced.jaxpr, consts))(*inputs)
        return [outputs[i] for i in which]

    if jax.default_backend() != "cpu":
        return partial(on_host, call)
    return compiled(jax.jit(call).trace(traced.consts, inputs), quick_options())


class _Static(NamedTuple):
    structure: Any
    leaves: list[Any]
    is_traced: list[bool]


def _split(tree: Any) -> tuple[list[Any], _Static]:
    """Part the leaves of `tree` into what a compiled program returns, and the rest."""
    leaves, structure = jtu.tree_flatten(tree)
    is_traced = [isinstance(leaf, Tracer) for leaf in leaves]
    pairs = list(zip(leaves, is_traced, strict=True))
    rest = [None if traced else leaf for leaf, traced in pairs]
    return [leaf for leaf, traced in pairs if traced], _Static(structure, rest, is_traced)


def _join(values: list[Any], static: _Static) -> Any:
    """Undo `_split`."""
    remaining = iter(values)
    pairs = zip(static.leaves, static.is_traced, strict=True)
    leaves = [next(remaining) if traced else leaf for leaf, traced in pairs]
    return jtu.tree_unflatten(static.structure, leaves)


def auto_guides(guide: Any) -> list[AutoGuide]:
    """Return the automatic guides that `guide` is, or is made of."""
    found: list[AutoGuide] = []
    *_, inner = within_handlers(guide)
    if isinstance(inner, AutoGuide):
        found.append(inner)
    if isinstance(inner, AutoGuideList):
        for part in inner._guides:
            found.extend(auto_guides(part))
    return found


def rebuild(guide: AutoGuide, args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Give `guide` the functions that NumPyro's own set-up closes over its arguments."""
    seeded = numpyro.handlers.seed(guide.model, jax.random.key(0))

    def postprocess(latents: dict[str, Array]) -> dict[str, Array]:
        return constrain_fn(seeded, args, dict(kwargs), latents, return_deterministic=True)

    def potential(*args: Any, **kwargs: Any) -> Callable:
        return partial(potential_energy, seeded, args, kwargs)

    def laplace_loss(params: dict[str, Array]) -> Any:
        fixed = jax.random.key(0)
        return Trace_ELBO().loss(fixed, params, guide.model, guide, *args, **kwargs)

    vars(guide)["_postprocess_fn"] = postprocess
    guide._potential_fn_gen, guide._potential_fn = potential, potential(*args, **kwargs)
    if isinstance(guide, AutoLaplaceApproximation):
        guide._loss_fn = laplace_loss
