"""The guide of a program for which none is given."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bmrjax.criteria import Criterion
from bmrjax.errors import FitWarning, warn
from bmrjax.families import is_real, location, read_as_stored
from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.estimate import Estimator
from bmrjax.infer.guide import AutoMeanField
from bmrjax.infer.init import at_start
from bmrjax.infer.joint_guide import AutoLowRank, AutoMultivariate
from bmrjax.infer.matrix_guide import AutoMatrixNormal
from bmrjax.infer.readable_guide import ReadableGuide
from bmrjax.infer.tracing import sites_of
from bmrjax.reduction import Normal

# A joint posterior over n elements has n (n + 1) / 2 numbers in its factor, and a step costs O(n²).
LARGEST_JOINT = 300


# Each says whether parameters are its own; the parameters of later ones may look like those of earlier ones.
_GUIDES: tuple[type[ReadableGuide], ...] = (
    AutoMultivariate,
    AutoLowRank,
    AutoMatrixNormal,
    AutoMeanField,
)


def default_guide(
    model: Callable,
    data: Data,
    *,
    criterion: Criterion | None,
    estimator: Estimator = "global",
    loss: Any = None,
    start: Any = None,
    mesh: Any = None,
    factorised: bool = False,
) -> Callable[[Callable], Any]:
    """Return what makes the guide that `sparsify` uses for a program if none is given.

    A joint normal posterior knows which elements can stand in for each other, and moves the others when one
    is removed. It is chosen where it can be fitted well: for programs with at most 300 latent elements, at
    least one of which can be removed, and no random module, if nothing in the settings asks for a factorised
    posterior. Otherwise the posterior is factorised.

    Args:
        model: NumPyro program.
        data: Its arguments.
        criterion: What reduces; without one, the posterior is factorised.
        estimator: Of the expected log likelihood; all but ``"global"`` need a factorised posterior.
        loss: A NumPyro ELBO, if one is given.
        start: An earlier result to go on from, whose posterior decides.
        mesh: Devices to spread the run over, if any; the posterior is then factorised, with a warning where
            it would be a joint one on one device.
        factorised: Whether the optimiser is one of factorised posteriors.

    Returns:
        `infer.AutoMultivariate` or `infer.AutoMeanField`; with a start, the guide of its parameters.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from bmrjax import criteria
        >>> from bmrjax.infer.default_guide import default_guide
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> data = (jnp.ones((5, 3)), jnp.ones(5))
        >>> default_guide(program, data, criterion=criteria.Shrinkage()).__name__
        'AutoMultivariate'
        >>> default_guide(program, data, criterion=None).__name__
        'AutoMeanField'
    """
    if start is not None:
        return guide_of(getattr(start, "params", start)) or AutoMeanField
    if factorised or criterion is None or criterion.family is not Normal:
        return AutoMeanField
    if estimator != "global" or loss is not None or not _is_small_and_plain(model, data):
        return AutoMeanField
    if mesh is None:
        return AutoMultivariate
    warn(
        "Over a mesh the posterior is factorised, and on one device this program would have a joint one, so "
        "the two runs differ. For the same posterior in both, give guide=bmr.infer.AutoMeanField(program).",
        FitWarning,
    )
    return AutoMeanField


def guide_of(params: Mapping[str, Any]) -> Callable[[Callable], Any] | None:
    """Return what makes the automatic guide with these parameters, or None if they are those of none.

    Args:
        params: Parameters by name, with the default prefix ``auto``.
    """
    made = (kind.with_params(params) for kind in _GUIDES)
    return next((make for make in made if make is not None), None)


def _is_small_and_plain(model: Callable, data: Data) -> bool:
    found: list[bool] = []  # what the trace says is not an array

    def look(data: Data) -> None:
        sites = sites_of(at_start(model), *arguments(data), key=jax.random.key(0)).values()
        latent = [s for s in sites if s["type"] == "sample" and not s["is_observed"]]
        size = sum(math.prod(site["fn"].shape()) for site in latent)
        removable = any(_can_be_removed(site["fn"]) for site in latent)
        found.append(size <= LARGEST_JOINT and removable and all(map(_is_plain, latent)))

    jax.eval_shape(look, data)
    return found[0]


def _can_be_removed(fn: Any) -> bool:
    return location(read_as_stored(fn)) is not None and is_real(fn)


def _is_plain(site: dict[str, Any]) -> bool:
    """Return whether nothing about a latent site asks for a factorised posterior."""
    fn, infer = site["fn"], site.get("infer", {})
    # A prior that is sampled by itself, for plain coefficients, is a layer of the site's own name.
    if infer.get("layer", site["name"]) != site["name"]:
        return False
    # A collapsed posterior is the best factorised one; a joint one has no need of it.
    if infer.get("posterior", "collapsed") != "collapsed":
        return False
    family = read_as_stored(fn)
    # A family without a location, as of noise or with indicators, needs a posterior of its own.
    return (family is None or location(family) is not None) and not fn.support.is_discrete
