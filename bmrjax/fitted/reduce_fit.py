"""Bayesian model reduction of a fit that is finished."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool
from threadpoolctl import threadpool_limits

from bmrjax.errors import FitWarning, warn
from bmrjax.fitted.assemble import fit_reduction
from bmrjax.fitted.fit_findings import (
    MOST_CHANGE,
    OF_COVARIANCE,
    evidence_off,
    mean_elsewhere,
    not_exact,
    not_normal,
    not_of_the_program,
    wider_than_prior,
)
from bmrjax.fitted.fit_reduction import FitReduction
from bmrjax.fitted.formula_priors import formula_priors, is_formula_model
from bmrjax.fitted.given_groups import GivenGroups
from bmrjax.fitted.heredity import HeredityOption
from bmrjax.fitted.joint_normal import check_joint_normal
from bmrjax.fitted.layout import Names
from bmrjax.fitted.model_prior import ModelPrior
from bmrjax.fitted.nodes import Nodes
from bmrjax.fitted.normality import Normality, measure_normality
from bmrjax.fitted.refit_submodels import MANY_DATA, Refit, count_observed, refit_submodels
from bmrjax.fitted.search import most_probable, search
from bmrjax.fitted.source import Source, from_draws, from_fit, source_from_arrays
from bmrjax.fitted.submodel_options import SubmodelOptions
from bmrjax.fitted.swept import Precision
from bmrjax.fitted.verification import (
    Spread,
    given_zeros,
    measure_spread,
    verify_submodels,
)
from bmrjax.reduction import Normal
from bmrjax.run.serial import one_at_a_time

_Answer = TypeVar("_Answer")

# Elements up to which one thread does the linear algebra: threads that wait for each other's small matrices
# take 46 CPU seconds instead of 8 on a loaded machine of two cores, with 500 elements.
ONE_THREAD = 1000


@one_at_a_time
def reduce_fit(
    fit: Any = None,
    *,
    model: Callable | None = None,
    data: Any = (),
    params: Mapping[str, Any] | None = None,
    loc: Any = None,
    covariance: Any = None,
    prior: Normal | Mapping[str, Normal] | Any = None,
    sites: Sequence[str] | None = None,
    names: Names = None,
    groups: GivenGroups = None,
    forced: Sequence[str | int] = (),
    heredity: HeredityOption = False,
    expected: float | None = None,
    seed: int = 0,
    verify: bool | None = None,
    refit: bool | None = None,
) -> FitReduction:
    r"""Say which elements of a fitted model the evidence needs, from its posterior alone.

    The posterior of the judged elements is taken to be a joint normal q, with all
    other latent variables marginalised. A submodel puts a set S of elements at zero; under the normal
    prior p its evidence is then known in closed form,

    .. math::  ΔF = \ln q_S(0) - \ln p_S(0),

    in nats, positive in favour of the submodel; exact if the posterior is normal. Up to 12 candidates, all
    submodels are computed. Beyond, a greedy search finds the most probable one, and a Gibbs sampler over
    submodels gives the averages. The arithmetic is in double precision.

    Whether the posterior is normal enough is measured: the program is evaluated at draws from the joint
    normal of *all* latent elements, on their unconstrained space, and the tail of the importance weights
    shows whether the normal covers the posterior (`FitReduction.pareto_k`). The evidence of
    the most probable submodels is measured with the program, too, at a fraction of the draws of `verify`.
    If inclusion probabilities may change by more than 0.03, it is measured with all draws; if they do, that
    is a finding.

    Args:
        fit: A `numpyro.infer.MCMC` that has run; draws, as a dict of arrays by site with draws, or chains and
            draws, on the leading axes; a DataTree of ArviZ; a guide (with `params`); or a `bmrjax.Result`.
            A guide that has no joint normal in closed form is drawn from 4,000 times; for more, give draws.
        model: NumPyro program. An MCMC, an automatic guide and a result know theirs.
        data: Arguments of the program: a tuple of positional ones, or a dict of keyword arguments, targets
            included.
        params: Constrained parameters of the guide and of the program (`numpyro.param`), as in
            ``svi_result.params``. With draws of a program that has parameters, their values.
        loc: Without `fit`: posterior mean, (n,).
        covariance: Without `fit`: posterior covariance, (n, n).
        prior: Without `fit`: the prior that it was fitted under; broadcasts to (n,). With draws that come
            without a program: a dict from each site that is to be judged to its prior, or the
            `bambi.Model` that was fitted, whose common terms with normal priors are judged.
        sites: Sites to judge. By default those of `inspect`: with more than one element and a prior centred
            at zero. The prior has to be normal with constant parameters.
        names: Names of the columns, for the last axis of the sites that are as long; or a dict from site to
            names. By default those of a table among the arguments, or the labels of `loc`.
        groups: Name of a group to its elements (names, or numbers where one site is judged), which are in a
            submodel together.
        forced: Elements or groups that are in every submodel.
        heredity: Name of a candidate to the candidates without which it is in no submodel, such as
            ``{"age:bmi": ["age", "bmi"]}``. True reads this from the names: ``"age:bmi"``, ``"age bmi"`` and
            ``"age^2"`` are in only with the candidates that are parts of them. ``"weak"`` reads the names as
            well, and asks for one of the parts only. By default there is no such rule.
        expected: Expected number of candidates that are in, before the data, each independently of the
            others; with `heredity`, before the submodels that it excludes are left out. By default the
            candidates share a probability that is uniform between 0 and ½: many without effect make
            each ask for more evidence, which corrects for their number, and none has prior odds above
            one. A group counts as one candidate, and what is forced does not count. With `heredity`,
            candidates that may not come in yet do not count as left out.
        seed: Of all draws.
        refit: Whether to condition on the other latent variables where submodels have them, not where the
            full model has them. By default, of a program that is normal in the judged elements given the
            others, such as a linear model: if it has fewer than 20 data points per element, so that the full
            model explains part of the noise away, or if its posterior is not normal enough. True expands
            other programs anew as well, which is Laplace's approximation; measure it with `verify`.
        verify: Whether to measure the evidence of the most probable submodels with the program, by importance
            sampling; 64 of them at most. By default, if by a rougher measurement inclusion
            probabilities may change by more than 0.03, and if `pareto_k` is between 0.7 and 1. False leaves
            it at the rougher one.

    Returns:
        Inclusion probabilities, `delta_f`, averages over submodels, and the submodels themselves.

    Raises:
        TypeError: For a fit of another kind, or arguments that do not go together.
        ValueError: For sites that cannot be judged, with the reasons; draws that are too few, of the wrong
            shape or not finite; a singular covariance; or names that are not there.

    Warns:
        FitWarning: If the posterior is not normal enough to be trusted (`pareto_k` above 0.7) or wider than
            its prior, if the draws are few or the chains disagree, or if the measured evidence is not the
            predicted one.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from numpyro.infer import MCMC, NUTS
        >>> import bmrjax as bmr
        >>> def model(x, y):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (50, 3))
        >>> y = 0.8 * x[:, 0] + 0.5 * jax.random.normal(jax.random.key(1), (50,))
        >>> mcmc = MCMC(NUTS(model), num_warmup=200, num_samples=1000, progress_bar=False)
        >>> mcmc.run(jax.random.key(2), x, y)
        >>> found = bmr.reduce_fit(mcmc, data=(x, y), names=["dose", "age", "height"])
        >>> found.chosen["beta"]
        array([ True, False, False])
        >>> bool(found.inclusion_prob["beta"][0] > 0.99)
        True

    References:
        Scott and Berger (2010), Annals of Statistics 38, for the prior on the number of effects;
        Friston, Parr and Zeidman (2019), arXiv:1805.07092; Friston and Penny (2011), NeuroImage 56, for the
        search over submodels; Dickey (1971), Annals of Mathematical Statistics 42.
    """
    if is_formula_model(prior):
        prior = formula_priors(prior)
    if fit is None:
        if sites is not None or verify or refit:
            raise TypeError(
                "reduce_fit: arrays have no program, so sites, verify and refit do not apply."
            )
        source = source_from_arrays(loc, covariance, prior, names)
    elif isinstance(prior, Mapping):
        if any(x is not None for x in (loc, covariance, model, params, refit)) or data or verify:
            raise TypeError(
                "reduce_fit: prior= by site stands for a program; model, data, params, verify, refit, loc "
                "and covariance do not go with it."
            )
        source = from_draws(fit, prior, names=names, sites=sites)
    else:
        if loc is not None or covariance is not None or prior is not None:
            raise TypeError(
                "reduce_fit: loc, covariance and prior stand for a fit; leave them out where `fit` is given. "
                "For draws without a program, prior is a dict from site to prior."
            )
        source = from_fit(fit, model, data, params, sites=sites, names=names, seed=seed)
    options = SubmodelOptions(groups, forced, heredity, expected)
    return reduce_source(source, options, seed=seed, verify=verify, refit=refit)


def _in_few_threads(function: Callable[..., _Answer]) -> Callable[..., _Answer]:
    """Keep the matrices of a small fit on one thread: sharing them out takes longer than to multiply."""

    @functools.wraps(function)
    def limited(source: Source, *args: Any, **options: Any) -> _Answer:
        limit = 1 if source.layout.size <= ONE_THREAD else None
        with threadpool_limits(limit, user_api="blas"):
            return function(source, *args, **options)

    return limited


@one_at_a_time
@_in_few_threads
def reduce_source(
    source: Source,
    options: SubmodelOptions,
    *,
    seed: int = 0,
    verify: bool | None = None,
    refit: bool | None = None,
) -> FitReduction:
    """Reduce what was read from a fit; see `reduce_fit` for the arguments."""
    layout, normal, whole = source.layout, source.normal, source.whole
    units, nodes, of_submodels = _submodels(source, options)
    rng = np.random.default_rng(seed)
    text, submodel, elsewhere = source.text, None, []
    normality, verification = Normality(math.nan, reason=str(whole)), None
    spread: Spread | None = None
    reliable = True  # as far as it is known
    if source.model is None or isinstance(whole, str):
        found = search(nodes, of_submodels, rng)
    else:
        program = (source.model, source.data)
        submodel, again = given_zeros(whole, layout), ""
        arguments = (source, whole, nodes.precisions[0], of_submodels, rng)
        if refit or (refit is None and count_observed(*program) < MANY_DATA * layout.size):
            again = refit_submodels(*arguments, by_default=refit is None)
        if not isinstance(again, Refit):
            found = search(nodes, of_submodels, rng)
            normality = measure_normality(whole, *program, rng)
            elsewhere = mean_elsewhere(normality, source)
            if refit is None and not again and normality.trusted is False:
                again = refit_submodels(*arguments, by_default=True)
        if isinstance(again, Refit):
            nodes, normal, submodel = again.nodes, again.normal, again.whole
            found = search(nodes, of_submodels, rng)
            chosen = submodel(nodes.elements(found.masks[0]))
            normality = measure_normality(chosen, *program, rng)
            elsewhere = not_of_the_program(again, source)
        text += f", {again}" if again else ""
        inside = nodes.elements(found.masks)
        if not verify and normality.trusted:
            spread = measure_spread(found, inside, normal, submodel, *program, rng)
        # What follows from a fit of other data says nothing of how normal it is.
        spread = None if elsewhere else spread
        # Above 1, the weights have no mean, and the fit may be one of other data.
        doubtful = normality.trusted is False and normality.pareto_k < 1.0
        doubtful |= spread is not None and spread.largest > MOST_CHANGE
        doubtful &= verify is None and not elsewhere
        if verify or doubtful:
            verification = verify_submodels(found.delta_f, inside, normal, submodel, *program, rng)
            reliable = verification is None or verification.reliable(found)
        if doubtful and reliable and verification is not None:
            spread = verification.spread(found)
        elif doubtful:
            verification = None
    findings = (
        # What is refitted does not use the covariance of the draws.
        *(f for f in source.findings if normal is source.normal or f.code not in OF_COVARIANCE),
        *wider_than_prior(source),
        *not_normal(normality, measured=verification is not None and reliable),
        *elsewhere,
        *not_exact(spread, list(units), measured=verification is not None, reliable=reliable),
        *(evidence_off(verification, reliable=reliable) if verify and verification else ()),
    )
    for finding in findings:
        warn(f"reduce_fit: {finding}", FitWarning)
    return fit_reduction(
        layout,
        units,
        normal,
        found,
        prior=of_submodels,
        text=text,
        normality=normality,
        findings=findings,
        inspection=source.inspection,
        verification=verification,
        nodes=nodes,
        source=source,
        submodel=submodel,
    )


@one_at_a_time
@_in_few_threads
def choose_elements(
    source: Source, options: SubmodelOptions
) -> tuple[Bool[np.ndarray, " n"], float]:
    """Return the elements of the most probable submodel alone, and ln of its prior up to a constant.

    Beyond 12 candidates it is the best one that a greedy search finds.
    """
    _, nodes, of_submodels = _submodels(source, options)
    mask = most_probable(nodes, of_submodels)
    return nodes.elements(mask), float(of_submodels.log_prob(mask))


def _submodels(
    source: Source, options: SubmodelOptions
) -> tuple[dict[str, Any], Nodes, ModelPrior]:
    """Return the candidates with their elements, the joint normal, and the prior on submodels."""
    normal = source.normal
    check_joint_normal(normal, source.layout.label, rounding=source.rounding)
    units, prior = options.submodels(source.layout)
    return units, Nodes.one(Precision(normal, list(units.values()))), prior
