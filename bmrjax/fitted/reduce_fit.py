"""Bayesian model reduction of a fit that is finished."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bmrjax.errors import FitWarning, warn
from bmrjax.fitted.assemble import fit_reduction
from bmrjax.fitted.fit_reduction import FitReduction
from bmrjax.fitted.formula_priors import formula_priors, is_formula_model
from bmrjax.fitted.given_groups import GivenGroups, units_of
from bmrjax.fitted.heredity import HeredityOption, heredity_of
from bmrjax.fitted.joint_normal import check_joint_normal, wide_elements
from bmrjax.fitted.layout import Names
from bmrjax.fitted.model_average import average
from bmrjax.fitted.model_prior import model_prior
from bmrjax.fitted.normality import TRUSTED_PARETO_K, Normality, measure_normality
from bmrjax.fitted.search import search
from bmrjax.fitted.source import Source, from_draws, from_fit, source_from_arrays
from bmrjax.fitted.swept import Precision, Swept
from bmrjax.fitted.verification import Spread, Verification, measure_spread, verify_submodels
from bmrjax.reduction import Normal
from bmrjax.run.diagnose import Finding
from bmrjax.run.serial import one_at_a_time

# Change of an inclusion probability by measured evidence that is let pass.
_MOST_CHANGE = 0.03

# Distance of the mean of the fit from that of the program, in standard deviations, that is let pass.
_MOST_SHIFT = 0.35


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
    num_draws: int = 4000,
    seed: int = 0,
    verify: bool = False,
) -> FitReduction:
    r"""Say which elements of a fitted model the evidence needs, from its posterior alone.

    Nothing is fitted again. The posterior of the judged elements is taken to be a joint normal q, with all
    other latent variables marginalised. A submodel puts a set S of elements at zero; under the normal
    prior p its evidence is then known in closed form,

    .. math::  ΔF = \ln q_S(0) - \ln p_S(0),

    in nats, positive in favour of the submodel; exact if the posterior is normal. Up to 12 candidates, all
    submodels are computed. Beyond, a greedy search finds the most probable one, and a Gibbs sampler over
    submodels gives the averages. The arithmetic is in double precision.

    Whether the posterior is normal enough is measured: the program is evaluated at draws from the joint
    normal of *all* latent elements, on their unconstrained space, and the tail of the importance weights
    shows whether the normal covers the posterior (`FitReduction.pareto_k`). The evidence of
    the most probable submodels is measured with the program, too, at a fraction of the draws of `verify`,
    and it is a finding if inclusion probabilities would change by more than 0.03.

    Args:
        fit: A `numpyro.infer.MCMC` that has run; draws, as a dict of arrays by site with draws, or chains and
            draws, on the leading axes; a DataTree of ArviZ; a guide (with `params`); or a `bmrjax.Result`.
        model: NumPyro program. An MCMC, an automatic guide and a result know theirs.
        data: Arguments of the program: a tuple of positional ones, or a dict of keyword arguments, targets
            included.
        params: Constrained parameters of the guide, as in ``svi_result.params``.
        loc: Without `fit`: posterior mean, (n,).
        covariance: Without `fit`: posterior covariance, (n, n).
        prior: Without `fit`: the prior that it was fitted under; broadcasts to (n,). With draws that come
            without a program: a dict from each site that is to be judged to its prior, or the
            `bambi.Model` that was fitted, whose common terms with normal priors are judged.
        sites: Sites to judge. By default those of `inspect`: with more than one element and a prior centred
            at zero. The prior has to be normal with constant parameters.
        names: Names of the columns, for the last axis of the sites that are as long; or a dict from site to
            names. By default those of a table among the arguments.
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
        num_draws: Draws from a guide that has no joint normal in closed form.
        seed: Of all draws.
        verify: Whether to measure the evidence of the most probable submodels with the program, by importance
            sampling; 64 of them at most.

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
        if sites is not None or verify:
            raise TypeError("reduce_fit: arrays have no program, so sites and verify do not apply.")
        source = source_from_arrays(loc, covariance, prior, names)
    elif isinstance(prior, Mapping):
        if any(x is not None for x in (loc, covariance, model, params)) or data or verify:
            raise TypeError(
                "reduce_fit: prior= by site stands for a program; model, data, params, verify, loc and "
                "covariance do not go with it."
            )
        source = from_draws(fit, prior, names=names, sites=sites)
    else:
        if loc is not None or covariance is not None or prior is not None:
            raise TypeError(
                "reduce_fit: loc, covariance and prior stand for a fit; leave them out where `fit` is given. "
                "For draws without a program, prior is a dict from site to prior."
            )
        source = from_fit(
            fit, model, data, params, sites=sites, names=names, num_draws=num_draws, seed=seed
        )
    layout, normal, whole = source.layout, source.normal, source.whole
    check_joint_normal(normal, layout.label, rounding=source.rounding)
    units = units_of(layout, groups, forced)
    rng = np.random.default_rng(seed)
    precision = Precision(normal, list(units.values()))
    free = {i for members in units.values() for i in members}
    in_all = [label for i, label in enumerate(layout.label) if i not in free]
    rule = heredity_of(list(units), heredity, forced=in_all)
    of_submodels = model_prior(expected, len(units), rule)
    found = search(precision, of_submodels, rng)
    normality, verification = Normality(math.nan, reason=str(whole)), None
    spread: Spread | None = None
    if source.model is not None:
        normality = measure_normality(whole, source.model, source.data, rng)
        inside, program = precision.elements(found.masks), (source.model, source.data)
        if not isinstance(whole, str) and not verify and normality.trusted:
            spread = measure_spread(found, inside, normal, layout, whole, *program, rng)
        if verify and not isinstance(whole, str):
            verification = verify_submodels(
                found.delta_f, inside, normal, layout, whole, *program, rng
            )
    elsewhere = _elsewhere(normality, source)
    findings = (
        *source.findings,
        *_wide(source),
        *_not_normal(normality),
        *elsewhere,
        # What follows from a fit of other data says nothing of how normal it is.
        *([] if elsewhere else _spread(spread, list(units))),
        *_off(verification),
    )
    for finding in findings:
        warn(f"reduce_fit: {finding}", FitWarning)
    return fit_reduction(
        layout,
        units,
        normal,
        found,
        average(found),
        -Swept(precision, np.ones(len(units), bool)).log_bayes_factors(),
        -Swept(precision, found.masks[0]).log_bayes_factors(),
        prior=of_submodels,
        text=source.text,
        normality=normality,
        findings=findings,
        inspection=source.inspection,
        verification=verification,
        precision=precision,
        source=source,
    )


def _wide(source: Source) -> list[Finding]:
    """Return that the posterior is wider than its prior, if it is."""
    wide = wide_elements(source.normal, source.layout.label, source.independent_draws)
    if wide is None:
        return []
    return [
        Finding(
            "wider-than-prior",
            f"The posterior of {wide[1]} is wider than the prior: along one direction its variance is "
            f"{wide[0]:.2f} times as large.",
            "Check that `prior` is the prior of this fit, in the same units; a guide may not have converged.",
        )
    ]


def _off(verification: Verification | None) -> list[Finding]:
    """Return that the measured evidence is another than the predicted one, if it is by more than a nat."""
    if verification is None:
        return []
    difference = float(verification.predicted[0] - verification.measured[0])
    if abs(difference) <= 1.0 + 3 * float(verification.standard_error[0]):
        return []
    return [
        Finding(
            "evidence-off",
            f"The predicted delta_f of the chosen submodel is {difference:+.1f} nats from the measured one "
            f"(Pareto k {verification.pareto_k[0]:.2f}).",
            "Do not rely on the probabilities: take more draws, or fit the guide until it has converged.",
        )
    ]


def _elsewhere(normality: Normality, source: Source) -> list[Finding]:
    """Return that the posterior of the program lies elsewhere than the fit, if it does."""
    if normality.trusted is not True or isinstance(source.whole, str):
        return []
    at = source.whole.positions(source.layout)
    shift, error = normality.shift[at], normality.shift_error[at]
    clear = np.abs(shift) - 3 * error
    worst = int(np.argmax(clear))
    if clear[worst] <= _MOST_SHIFT:
        return []
    return [
        Finding(
            "elsewhere",
            f"The posterior mean of '{source.layout.label[worst]}' by the program and `data` is "
            f"{shift[worst]:+.1f} standard deviations from that of the fit.",
            "Check that `data` and the program are those of the fit; a guide may not have converged.",
        )
    ]


def _spread(spread: Spread | None, candidates: Sequence[str]) -> list[Finding]:
    """Return that measured evidence would change an inclusion probability, if it would by much."""
    if spread is None:
        return []
    worst = int(np.argmax(np.abs(spread.change)))
    change = float(spread.change[worst])
    if abs(change) <= _MOST_CHANGE + spread.error:
        return []
    return [
        Finding(
            "not-exact",
            "The joint normal is not exact enough for these probabilities: by the measured evidence of the "
            f"most probable submodels, that of '{candidates[worst]}' changes by {change:+.2f}.",
            "Call reduce_fit with verify=True, and report measured_inclusion_prob.",
        )
    ]


def _not_normal(normality: Normality) -> list[Finding]:
    if normality.trusted is not False:
        return []
    return [
        Finding(
            "not-normal",
            f"Do not trust this: the joint normal does not cover the posterior (Pareto k "
            f"{normality.pareto_k:.2f}, above {TRUSTED_PARETO_K}).",
            "Check that `data` are those of the fit. Take more draws if there are fewer than 100 for each "
            "latent element; else fit the submodels that matter and compare their evidence, or write the "
            "program so that its posterior is closer to a normal.",
        )
    ]
