"""A program run once, to see its sites."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpyro
from jaxtyping import Array


def sites_of(
    program: Callable,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    key: Array | None = None,
    values: Mapping[str, Any] | None = None,
) -> Any:
    """Run a program or a guide and return its sites, as NumPyro describes them, by name.

    Args:
        program: NumPyro program or guide.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        key: Of what it draws; the same one each time by default.
        values: Sites and parameters that are given rather than drawn or started.
    """
    seeded = numpyro.handlers.seed(program, jax.random.key(0) if key is None else key)
    given = numpyro.handlers.substitute(seeded, data=dict(values or {}))
    return numpyro.handlers.trace(given).get_trace(*args, **kwargs)


def shape_of(site: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a sample site's value, before it is drawn: `sample_shape` comes first.

    Args:
        site: The site, as NumPyro describes it.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> def program():
        ...     numpyro.sample("beta", dist.Normal(0, 1).expand([2]), sample_shape=(3,))
        >>> shape_of(sites_of(program, (), {})["beta"])
        (3, 2)
    """
    return tuple(site["kwargs"].get("sample_shape", ())) + tuple(site["fn"].shape())


def is_latent(site: Mapping[str, Any]) -> bool:
    """Say whether a site is a latent variable of the model: neither observed nor auxiliary to a guide."""
    is_auxiliary = site.get("infer", {}).get("is_auxiliary", False)
    return site["type"] == "sample" and not site["is_observed"] and not is_auxiliary
