"""A program and its data, looked at before anything is fitted."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer
from jaxtyping import Array
from numpyro.distributions import constraints
from numpyro.distributions.kl import kl_divergence

from bmrjax.families import element_support, own_density, spike_and_slab_parameters
from bmrjax.handlers import missing_outcomes
from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.init import at_start
from bmrjax.infer.tracing import sites_of


def check_program(
    model: Callable,
    batch: Data,
    data: Data,
    key: Array,
    *,
    discrete: bool = False,
    atoms: bool = True,
    divergences: bool = True,
) -> list[str]:
    """Refuse a program that observes nothing, or targets that its likelihood is not made for.

    Args:
        model: NumPyro program.
        batch: One batch: its arguments.
        data: All data that are at hand; targets among them are looked at as a whole.
        key: PRNG key.
        discrete: Whether latent sites may be discrete; no automatic guide has a posterior of these.
        atoms: Whether they may be spike-and-slab ones, which a loss of densities cannot fit.
        divergences: Whether the loss takes divergences of pairs of distributions by their class.

    Returns:
        Names of the latent sites of outcomes that are missing by ``obs_mask=``, for `complete_missing`.

    Raises:
        ValueError: If a latent site is discrete or spike-and-slab and may not be, or has a log density that
            its divergence would not be of, if no site is observed,
            if targets and likelihood would broadcast against each other, or if targets lie outside its
            support.
    """
    columns = jax.tree.leaves(data)
    supports: list[tuple[str, Any, Any]] = []  # they hold numbers, no tracers
    missing: list[str] = []

    def look(batch: Data) -> None:
        sampled = {
            name: site
            for name, site in sites_of(at_start(model), *arguments(batch), key=key).items()
            if site["type"] == "sample"
        }
        observed = {name: site for name, site in sampled.items() if site["is_observed"]}
        missing.extend(missing_outcomes(sampled))
        if not observed:
            raise ValueError(
                "sparsify: the program observes nothing, so there is nothing to fit. Give the data their "
                "site, as in numpyro.sample('y', distribution, obs=y), and the targets with the data."
            )
        counted = [
            name
            for name, site in sampled.items()
            if name not in observed and site["fn"].support.is_discrete
        ]
        if counted and not discrete:
            raise ValueError(
                f"sparsify: the latent sites {counted} are discrete, and have no normal posterior. Sum over "
                "them in the likelihood (dist.MixtureSameFamily does for mixtures), or give a guide and a "
                "loss that are made for them."
            )
        spiked = [
            name
            for name, site in sampled.items()
            if name not in observed and spike_and_slab_parameters(site["fn"]) is not None
        ]
        if spiked and not atoms:
            raise ValueError(
                f"sparsify: the sites {spiked} are spike-and-slab, of which this loss sees draws alone, and "
                "has no gradient for the indicators. Leave `loss` out: TraceMeanField_ELBO, the default, "
                "takes their divergence as a whole."
            )
        if divergences:
            _check_densities({n: s["fn"] for n, s in sampled.items() if n not in observed})
        rows = jax.tree.leaves(batch)
        for name, site in observed.items():
            check_observed_shape(name, site["fn"], site["value"])
            position = [i for i, row in enumerate(rows) if row is site["value"]]
            if position:
                support = _support(site["fn"])
                if support is not None:
                    supports.append((name, columns[position[0]], support))

    jax.eval_shape(look, batch)
    for name, column, support in supports:
        _check_support(name, column, support)
    return missing


def _check_densities(priors: Mapping[str, Any]) -> None:
    """Refuse priors of which NumPyro would take the divergence of the class that theirs is derived from."""
    registered = {kind for pair in kl_divergence.funcs for kind in pair}
    for name, fn in priors.items():
        kind = own_density(fn)
        if kind is None or kind in registered:
            continue
        if getattr(dist, kind.__name__, None) is not kind:
            raise ValueError(
                f"sparsify: the prior of '{name}' is {kind.__name__}, which has a log_prob of its own and "
                "is derived from a distribution whose divergence from the posterior NumPyro has in closed "
                "form: the fit would use that one. Derive it from dist.Distribution instead; its divergence "
                "is then sampled."
            )


def check_observed_shape(name: str, fn: Any, value: Any, *, caller: str = "sparsify") -> None:
    """Refuse a value and a distribution each of which would be repeated along the other.

    Args:
        name: Of the observed site.
        fn: Its distribution.
        value: Its value.
        caller: Of the function, for the message.

    Raises:
        ValueError: With both shapes.
    """
    shape, batch = jnp.shape(value), tuple(fn.batch_shape)
    values = shape[: len(shape) - fn.event_dim]
    shapes = (
        f"{caller}: the observed values of '{name}' have shape {shape}, and their distribution has batch "
        f"shape {batch} and event shape {tuple(fn.event_shape)}: "
    )
    try:
        joint = jnp.broadcast_shapes(values, batch)
    except ValueError:
        raise ValueError(
            f"{shapes}these do not go together. Give one value per data point."
        ) from None
    if len(joint) and joint not in (values, batch) and len(values) and len(batch):
        raise ValueError(
            f"{shapes}together they would be {joint}, every value under every likelihood. Give "
            "both one shape, as with net(x)[:, 0] or y[:, 0]."
        )


def _support(fn: Any) -> Any:
    """Return the support of one element; None where that depends on parameters, or some do not count."""
    base = fn
    while hasattr(base, "base_dist"):
        if isinstance(base, dist.MaskedDistribution):
            return None
        base = base.base_dist
    support = element_support(fn)
    bounds = [getattr(support, name, 0) for name in ("lower_bound", "upper_bound")]
    plain = not any(isinstance(b, Tracer) or jnp.ndim(b) for b in bounds)
    return support if plain else None


def _on_the_host(support: Any) -> Any:
    """Return a constraint that NumPy can check, which compiles nothing."""
    # Some of NumPyro's are the only one of their class, which even a copy is.
    own = object.__new__(type(support))
    vars(own).update(vars(support))
    for name in ("lower_bound", "upper_bound"):
        if hasattr(support, name):
            setattr(own, name, np.asarray(getattr(support, name)))
    return own


def _check_support(name: str, values: Any, support: Any) -> None:
    """Refuse values outside an interval, and labels that are no integers."""
    is_label = support == constraints.boolean or hasattr(support, "upper_bound")
    if not (is_label or hasattr(support, "lower_bound")):
        return
    low, high = getattr(support, "lower_bound", 0), getattr(support, "upper_bound", None)
    reach = f"at least {low}" if high is None else f"from {low} to {high}"
    if support == constraints.boolean:
        reach = "0 or 1"
    values = np.asarray(values)
    if not np.all(_on_the_host(support)(values)):
        advice = "Check the targets, and which likelihood they are for."
        if support.is_discrete and high is not None:
            advice = (
                "Labels start at 0, and a classifier needs as many outputs as there are classes."
            )
        raise ValueError(
            f"sparsify: the observed values of '{name}' have to be {reach}"
            f"{' and whole' if support.is_discrete else ''}; they go from {np.min(values)} to "
            f"{np.max(values)}. {advice}"
        )
    if is_label and high is not None and support.is_discrete:
        if jnp.issubdtype(values.dtype, jnp.inexact):
            raise ValueError(
                f"sparsify: the labels of '{name}' have dtype {values.dtype}; give integers, as by "
                "y.astype(int)."
            )
