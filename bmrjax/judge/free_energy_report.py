"""Where a reduction in one go would lead: its predicted free energy against the actual one."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bmrjax import reduction
from bmrjax.backend.quick_compile import quick_jit
from bmrjax.checks import check_key
from bmrjax.criteria import (
    Criterion,
    Magnitude,
    Shrinkage,
    SignalPlusRobustness,
    SignalToNoise,
    SitePosteriors,
)
from bmrjax.infer.arguments import Keep, length
from bmrjax.infer.correlated import CorrelatedGuide
from bmrjax.infer.estimate import elbo
from bmrjax.infer.free_energy import FreeEnergy
from bmrjax.infer.posterior import compiled_posteriors
from bmrjax.infer.prepare_guide import check_params, prepare_guide
from bmrjax.infer.program_data import program_data
from bmrjax.infer.pruned_guide import unpruned
from bmrjax.infer.row_sites import row_sites
from bmrjax.reduction import Normal
from bmrjax.run.fit_options import FitOptions
from bmrjax.run.serial import one_at_a_time

# Which elements are removed first: the lowest score, of a site by its name, posterior and prior.
ORDERS: dict[str, Callable[[str, Any, Any], Array]] = {
    "bmr": lambda name, q, p: -reduction.delta_f_each(q, p),
    "snr": lambda name, q, p: SignalToNoise(fraction=0.0).score(name, q),
    "spr": lambda name, q, p: SignalPlusRobustness(fraction=0.0).score(name, q),
    "magnitude": lambda name, q, p: Magnitude(fraction=0.0).score(name, q),
}


@dataclass(frozen=True)
class FreeEnergyCurve:
    """The free energy as elements go one after another, by one order, without re-fitting.

    Attributes:
        removed: How many elements are gone at each point, those gone before not counted.
        predicted: VFE by Bayesian model reduction: the first one less the sum of ΔF; nats for all data.
        actual: VFE measured on the data; nats.
        expected_nll: Its part that is minus the expected log likelihood, the negative accuracy; nats. The
            rest is the divergence from the prior, the complexity.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> curve = bmr.FreeEnergyCurve(
        ...     removed=np.array([0, 10, 20]),
        ...     predicted=np.array([100.0, 90.0, 81.0]),
        ...     actual=np.array([100.0, 91.0, 95.0]),
        ...     expected_nll=np.array([40.0, 41.0, 56.0]),
        ... )
        >>> int(curve.removed[curve.actual.argmin()]), (curve.actual - curve.predicted).tolist()
        (10, [0.0, 1.0, 14.0])
    """

    removed: Int[np.ndarray, " points"]
    predicted: Float[np.ndarray, " points"]
    actual: Float[np.ndarray, " points"]
    expected_nll: Float[np.ndarray, " points"]


@dataclass(frozen=True)
class FreeEnergyReport:
    """Predicted and actual free energy over the pruning rate; see `free_energy_report`.

    Attributes:
        curves: One an order: ``"bmr"`` (largest ΔF first), ``"snr"``, ``"spr"`` and ``"magnitude"``,
            as asked for.
        num_kept: Elements that the program keeps before the reduction.
        proposed: How many of them the criterion would remove.
        proposed_vfe: The VFE measured once they are gone; nats.
        num_data: Data that the VFE is of.

    Example:
        >>> import numpy as np
        >>> import bmrjax as bmr
        >>> curve = bmr.FreeEnergyCurve(
        ...     removed=np.array([0, 10, 20]),
        ...     predicted=np.array([100.0, 90.0, 81.0]),
        ...     actual=np.array([100.0, 91.0, 95.0]),
        ...     expected_nll=np.array([40.0, 41.0, 56.0]),
        ... )
        >>> report = bmr.FreeEnergyReport(
        ...     {"bmr": curve}, num_kept=40, proposed=20, proposed_vfe=95.0, num_data=50
        ... )
        >>> report.best(), report.overshoot, report.overshoots()
        ((0.25, 91.0), 4.0, True)
        >>> print(report.summary())
        A reduction in one go removes 20 of 40 elements ... It overshoots by 4.0 nats: ...
    """

    curves: dict[str, FreeEnergyCurve]
    num_kept: int
    proposed: int
    proposed_vfe: float
    num_data: int

    @property
    def rate(self) -> float:
        """Fraction of what is kept that the criterion would remove."""
        return self.proposed / max(self.num_kept, 1)

    @property
    def start(self) -> float:
        """The VFE before the reduction, nats."""
        return float(next(iter(self.curves.values())).actual[0])

    def best(self, order: str = "bmr") -> tuple[float, float]:
        """Return the pruning rate with the lowest actual VFE, and that VFE in nats."""
        curve = self.curves[order]
        lowest = int(np.nanargmin(curve.actual))
        return float(curve.removed[lowest] / max(self.num_kept, 1)), float(curve.actual[lowest])

    @property
    def overshoot(self) -> float:
        """How far the proposed reduction ends above the lowest VFE on the way to it, nats; at least 0."""
        above = self.proposed_vfe - self._on_the_way()[2]
        return above if math.isnan(above) else max(above, 0.0)

    def _on_the_way(self) -> tuple[str, float, float]:
        """Return order, rate and VFE of the lowest point that removes no more than is proposed."""
        found = []
        for order, curve in self.curves.items():
            passed = curve.removed <= self.proposed
            i = int(np.nanargmin(np.where(passed, curve.actual, np.nan)))
            found.append((order, curve.removed[i] / max(self.num_kept, 1), float(curve.actual[i])))
        return min(found, key=lambda point: point[2])

    def overshoots(self, tolerance: float = 0.01) -> bool:
        """Say whether reducing in one go would go too far.

        Args:
            tolerance: Least `overshoot` that counts, nats per data point.
        """
        return not self.overshoot <= tolerance * self.num_data

    def summary(self) -> str:
        """Return in words what a reduction in one go would do, and what to do instead."""
        change = self.proposed_vfe - self.start
        summary = (
            f"A reduction in one go removes {self.proposed:,} of {self.num_kept:,} elements "
            f"({self.rate:.1%}) and takes the VFE from {self.start:,.1f} to {self.proposed_vfe:,.1f} nats "
            f"({change:+,.1f}), before anything is fitted again."
        )
        if not self.overshoots():
            return f"{summary} It does not overshoot."
        order, rate, lowest = self._on_the_way()
        return (
            f"{summary} It overshoots by {self.overshoot:,.1f} nats: by the order '{order}', the VFE is "
            f"lowest at {rate:.1%} ({lowest:,.1f} nats). Reduce in rounds instead, with "
            "schedules.Verified() or schedules.Iterative()."
        )


@one_at_a_time
def free_energy_report(
    model: Callable,
    guide: Callable,
    params: Mapping[str, Any],
    data: Any,
    *,
    key: Array,
    keep: Keep | None = None,
    criterion: Criterion | None = None,
    orders: Sequence[str] = ("bmr", "snr", "spr", "magnitude"),
    points: int = 101,
    batch_size: int | None = 128,
    num_samples: int = 100,
    options: FitOptions = FitOptions(),  # noqa: B008 - frozen, and holds no array
) -> FreeEnergyReport:
    """Compare what a reduction predicts with what it does, at every pruning rate.

    Elements go one after another, without re-fitting, and the VFE is measured on the data at evenly
    spaced rates: by default in steps of 1 %. Bayesian model reduction takes each removal as
    independent of the others, which a mean-field posterior cannot judge, so the two part ways; where
    the actual VFE turns up before the criterion stops, reducing in one go would overshoot.

    Args:
        model: NumPyro program, as for `sparsify`.
        guide: Its guide, with independent normals for what may go: one that `sparsify` fitted, or that
            `numpyro.infer.SVI` did.
        params: The fitted (constrained) parameters.
        data: What it was fitted on: a tuple or dict of arrays with a common leading axis.
        key: PRNG key; all points see the same noise.
        keep: Masks by site; what they remove stays removed. By default those of `guide`, if it is that of
            a result (`Result.guide`).
        criterion: Whose proposal is looked at; `criteria.Shrinkage` by default.
        orders: Which curves; see `FreeEnergyReport`.
        points: Points of a curve, from nothing removed to everything.
        batch_size: Data at a time; None for all, which a program needs whose rows depend on each other.
        num_samples: Posterior samples at least that a measured VFE averages over.
        options: Those of the fit, of which the `estimator`, the `loss` and the `static` arguments count.

    Returns:
        The curves, the criterion's stop, and a `summary`; `plot.free_energy` draws it.

    Raises:
        TypeError: If `key` is not a JAX PRNG key.
        ValueError: For settings or data that cannot be used, a program without independent normal
            sites, or one whose VFE is not finite; the message says what to do.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 3))
        >>> data = (x, 2.0 * x[:, 0])
        >>> fit = bmr.sparsify(
        ...     program, data, key=jax.random.key(1), num_epochs=10, batch_size=None,
        ...     steps_per_epoch=100, criterion=None, progress=False,
        ... )
        >>> report = bmr.free_energy_report(
        ...     program, fit.guide, fit.params, data, key=jax.random.key(2), orders=["bmr"]
        ... )
        >>> report.proposed, report.overshoots()
        (2, False)

    References:
        Beckers et al. (2024), figures 2 and 3.
    """
    check_key(key, "free_energy_report")
    unknown = sorted(set(orders) - set(ORDERS))
    if unknown or not orders:
        raise ValueError(
            f"free_energy_report: unknown orders {unknown}; give some of {', '.join(ORDERS)}."
        )
    if points < 2:
        raise ValueError(f"free_energy_report: points must be at least 2, got {points}.")
    for name, value in (("batch_size", batch_size), ("num_samples", num_samples)):
        if value is not None and value < 1:
            raise ValueError(f"free_energy_report: {name} must be at least 1, got {value}.")
    criterion = Shrinkage() if criterion is None else criterion
    if criterion.family is not Normal:
        raise ValueError(
            f"free_energy_report: {type(criterion).__name__} reads no normal posteriors, and the report is "
            "of these. Use criteria.Shrinkage or criteria.SpikeAndSlab."
        )
    (model, _), (guide, masks) = unpruned(model), unpruned(guide)
    keep, params = masks if keep is None else keep, dict(params)
    data = program_data(
        model,
        data,
        batch_size=batch_size,
        static=options.static,
        name="free_energy_report: data",
    )
    rows = length(data)
    batch_size = rows if batch_size is None else min(batch_size, rows)
    sites = None
    if batch_size < rows:
        sites = row_sites(model, data, jax.random.key(0), name="free_energy_report")
    batch = jax.tree.map(lambda a: a[:batch_size], data)
    prepare_guide(model, guide, params, batch)
    check_params(model, guide, params, batch, caller="free_energy_report")
    found = _normal_sites(model, guide, params, batch, keep)
    names = list(found.posterior)
    shapes = {name: q.loc.shape for name, q in found.posterior.items()}
    before = {name: jnp.ones(shapes[name], bool) for name in names} | dict(keep or {})
    loss = elbo(options.estimator) if options.loss is None else options.loss
    measure = _Measure(model, guide, params, data, key, loss, batch_size, num_samples, sites)

    was = np.concatenate([np.asarray(before[name]).ravel() for name in names])
    kept = int(was.sum())
    delta_f, scores = quick_jit(_delta_f_and_scores, static_argnums=1)(found, tuple(orders))
    delta_f = _flat(delta_f)
    counts = np.unique(np.round(np.linspace(0, kept, points)).astype(int))
    start = measure(before)
    if not math.isfinite(start[0]):
        raise ValueError(
            "free_energy_report: the VFE of this program with these parameters is not finite, so there is "
            "nothing to compare with. Look for values that are not finite in the parameters and the data."
        )
    curves = {}
    for order in orders:
        # What is gone already comes last, and is never reached.
        sequence = np.lexsort((_flat(scores[order]), ~was))
        gains = np.concatenate([[0.0], np.cumsum(delta_f[sequence][:kept])])
        actual, nll = np.empty(len(counts)), np.empty(len(counts))
        for i, count in enumerate(counts):
            now = was.copy()
            now[sequence[:count]] = False
            actual[i], nll[i] = (
                start if count == 0 else measure(_split(now, shapes) | _rest(before, names))
            )
        curves[order] = FreeEnergyCurve(counts, start[0] - gains[counts], actual, nll)
    # A criterion may hold arrays, and is not hashed.
    decide = quick_jit(lambda *state: criterion(*state), num_calls=1)
    decided = decide(found, {n: before[n] for n in names}).keep
    stays = {name: before[name] & decided[name] for name in names}
    proposed = kept - sum(int(mask.sum()) for mask in stays.values())
    vfe = measure(before | stays)[0]
    return FreeEnergyReport(curves, kept, proposed, vfe, rows)


class _Measure:
    """Measure the VFE under masks, and its part that comes from the data."""

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        params: Mapping[str, Any],
        data: Any,
        key: Array,
        loss: Any,
        batch_size: int,
        num_samples: int,
        row_sites: dict[str, int] | None,
    ):
        rows = length(data)
        self._vfe = FreeEnergy(model, guide, loss=loss, batch_size=batch_size, row_sites=row_sites)
        self._params, self._data, self._key = dict(params), data, key
        self._samples = num_samples
        self._draws: int | None = None  # of the divergence
        self._passes = -(-num_samples // -(-rows // batch_size))

    def __call__(self, keep: Keep) -> tuple[float, float]:
        args = (self._params, keep, self._data)
        vfe = self._vfe(*args, self._key, num_passes=self._passes)
        if self._draws is None:
            keys = self._key, jax.random.fold_in(self._key, 1)
            one, other = (self._vfe.divergence(*args, key) for key in keys)
            self._draws = 1 if one == other else self._samples
        # Without a closed form, it is averaged over as many samples as the VFE.
        return vfe, vfe - self._vfe.divergence(*args, self._key, num_samples=self._draws)


def _normal_sites(
    model: Callable, guide: Callable, params: Mapping[str, Any], batch: Any, keep: Keep | None
) -> SitePosteriors:
    found = compiled_posteriors(model, guide, batch)(params, keep or {})
    names = [name for name, q in found.posterior.items() if isinstance(q, Normal)]
    if not names or isinstance(guide, CorrelatedGuide):
        raise ValueError(
            "free_energy_report: it adds up ΔF over elements, which needs latent sites whose prior and "
            "posterior are independent normals. Use infer.AutoMeanField or AutoNormal as the guide."
        )
    return found.only(names)


def _delta_f_and_scores(found: SitePosteriors, orders: tuple[str, ...]) -> tuple[Any, Any]:
    sites = [(name, q, found.prior[name]) for name, q in found.posterior.items()]
    delta_f = {name: reduction.delta_f_each(q, p) for name, q, p in sites}
    return delta_f, {order: {site[0]: ORDERS[order](*site) for site in sites} for order in orders}


def _flat(values: Mapping[str, Array]) -> np.ndarray:
    return np.concatenate([np.asarray(value, np.float64).ravel() for value in values.values()])


def _split(flat: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    found, begin = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        found[name] = jnp.asarray(flat[begin : begin + size].reshape(shape))
        begin += size
    return found


def _rest(keep: Mapping[str, Array], names: list[str]) -> dict[str, Array]:
    return {name: mask for name, mask in keep.items() if name not in names}
