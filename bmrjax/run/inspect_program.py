"""Looking at a program before it is fitted: which of its sites would be judged, and why."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import optax
from jaxtyping import Array
from numpyro.infer import SVI, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoGuide, AutoGuideList

from bmrjax.criteria import Criterion, SitePosteriors, SpikeAndSlab
from bmrjax.handlers import inference
from bmrjax.infer.arguments import Data, arguments, first_rows, length
from bmrjax.infer.default_guide import default_guide
from bmrjax.infer.posterior import read_posteriors
from bmrjax.infer.prior_location import prior_facts
from bmrjax.infer.program_data import program_data
from bmrjax.infer.row_sites import row_sites
from bmrjax.run.batches import Batches
from bmrjax.run.fit_options import FitOptions
from bmrjax.run.inspection import Inspection
from bmrjax.run.judged import judge
from bmrjax.run.serial import one_at_a_time


@one_at_a_time
def inspect(
    program: Callable,
    data: Data | Batches,
    *,
    guide: Callable | None = None,
    criterion: Criterion | None = SpikeAndSlab(),  # noqa: B008 - frozen, and holds no array
    sites: Sequence[str] | None = None,
    batch_size: int | None = 128,
    options: FitOptions = FitOptions(),  # noqa: B008 - frozen, and holds no array
) -> Inspection:
    """List the sites of a program: which of them `sparsify` would judge, why, and what to write instead.

    Nothing is fitted. By default `sparsify` judges a site if its prior is centred at zero, whatever the other
    latent sites are, if it has more than one element, and if its posterior is normal (or of the family that
    the criterion reads) under a prior of that family; of a normal posterior, under a Laplace prior too. The
    weights of random modules and the sites of `bmrjax.priors` are judged at any size.

    Args:
        program: NumPyro program, as for `sparsify`.
        data: Its data, as for `sparsify`.
        guide: Guide that would be fitted; by default the one that `sparsify` takes. It is not changed.
        criterion: Criterion that would judge; `criteria.SpikeAndSlab` by default, None for any.
        sites: Names of the sites that are to be judged; by default the rule above decides.
        batch_size: Rows per step, as for `sparsify`; None for all of them.
        options: The options of the fit, as for `sparsify`: its `static` arguments, and what else decides
            which guide is fitted.

    Returns:
        One report per sample site; printing them shows a table.

    Raises:
        ValueError: If `sites` has names that the program does not have.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     intercept = numpyro.sample("intercept", dist.Normal(0, 5))
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(intercept + x @ beta, 1.0), obs=y)
        >>> found = bmr.inspect(program, (jnp.ones((10, 3)), jnp.ones(10)))
        >>> found
        intercept  ()     not judged  Normal(0, 5)  one element: intercepts and other scalars are judged only
        when named
            To judge it, name it: sites=['intercept', ...].
        beta       (3,)   judged      Normal(0, 1)  more than one element, with a prior centred at zero
        y          (10,)  observed    Normal        one value per data point
        >>> found.judged
        ['beta']
    """
    refusal = ""
    if isinstance(data, Batches):
        batch = data.example()
    else:
        batch, refusal = _batch(program, data, batch_size, options.static)
    priors = prior_facts(program, batch)
    unknown = sorted(set(sites or ()) - set(priors))
    if unknown:
        raise ValueError(
            f"inspect: the program has no sites {unknown}; its sample sites are {list(priors)}."
        )
    if guide is None:
        # NumPyro's guides would enumerate discrete sites, for which they need another package.
        discrete = [n for n, p in priors.items() if p.support == "discrete" and not p.observed]
        program = _at_zero(program, discrete)
        used: Any = default_guide(
            program,
            batch,
            criterion=criterion,
            estimator=options.estimator,
            loss=options.loss,
            start=options.start,
            mesh=options.mesh,
        )(program)
    else:
        used = _copied(guide)
    found = _families(program, used, batch)
    table = judge(priors, found, criterion=criterion, sites=sites, guide=type(used).__name__)
    return _with_refusal(table, refusal) if refusal else table


def _at_zero(program: Callable, sites: Collection[str]) -> Callable:
    """Return a program whose sites of these names are zeros, and no sites any more."""
    if not sites:
        return program

    def zeros(site: dict[str, Any]) -> Array | None:
        inside = site["type"] == "sample" and site["name"] in sites
        return jnp.zeros(site["fn"].shape(), jnp.int32) if inside else None

    return numpyro.handlers.block(
        numpyro.handlers.substitute(program, substitute_fn=zeros), hide=list(sites)
    )


def _batch(
    program: Callable, data: Data, batch_size: int | None, static: Collection[str | int]
) -> tuple[Data, str]:
    """Return a batch of the data; or all of them, and why the program cannot be fitted in minibatches."""
    load = functools.partial(program_data, program, data, static=static, name="inspect")
    try:
        whole = load(batch_size=batch_size)
        if batch_size is None or batch_size >= length(whole):
            return whole, ""
        row_sites(program, whole, jax.random.key(0), name="inspect")
    except ValueError as error:
        return load(batch_size=None), str(error)
    return first_rows(whole, batch_size), ""


def _with_refusal(table: Inspection, refusal: str) -> Inspection:
    """Say at the observed sites that minibatches would change the program."""
    why = "it needs all rows in every step: batch_size=None"
    reports = [
        dataclasses.replace(site, why=why, advice=refusal) if site.observed else site
        for site in table
    ]
    return Inspection(tuple(reports))


def _families(program: Callable, guide: Callable, batch: Data) -> SitePosteriors:
    """Return the sites with a closed form, their parameters as shapes only."""

    def read(batch: Data) -> SitePosteriors:
        args, kwargs = arguments(batch)
        svi = SVI(program, guide, optax.set_to_zero(), TraceMeanField_ELBO())
        state = svi.init(jax.random.key(0), *args, **kwargs)
        params = {**svi.get_params(state), **(state.mutable_state or {})}
        with inference():
            return read_posteriors(program, guide, params, args, kwargs)

    return jax.eval_shape(read, batch)


def _copied(guide: Any) -> Any:
    """Return a copy of an automatic guide that can meet the program without changing the original."""
    if not isinstance(guide, AutoGuide):
        return guide
    twin: Any = copy.copy(guide)
    for name, value in vars(guide).items():
        if isinstance(value, dict):
            setattr(twin, name, dict(value))
    if isinstance(guide, AutoGuideList):
        twin._guides = [_copied(part) for part in guide._guides]
    return twin
