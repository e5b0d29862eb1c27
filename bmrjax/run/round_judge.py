"""What decides whether a round is kept, where that is not the free energy itself."""

from typing import get_args

import jax.numpy as jnp
from jaxtyping import Array

from bmrjax.infer.arguments import length
from bmrjax.infer.correlated import CorrelatedGuide
from bmrjax.infer.evaluate import Evaluator
from bmrjax.infer.predictive_scores import PredictiveScores
from bmrjax.infer.scaled_precision import ScaledPrecision, moved_sites
from bmrjax.run.fit import Fit
from bmrjax.run.fit_state import FitState
from bmrjax.run.held_out import HeldOut
from bmrjax.schedules import Judge

# Of the overcharge. The same random numbers are used for all states, so that most of the error cancels.
_PROBES, _STEPS, _SAMPLES = 8, 24, 8


class RoundJudge:
    """Measure what a schedule's `judge` names.

    Args:
        judge: See `bmrjax.schedules.Schedule`.
        fit: The program with its data.
        evaluator: What computes metrics on held-out data.
        held_out: Data kept out, if any.

    Raises:
        ValueError: If there is nothing to judge by, or nothing to correct.
    """

    def __init__(self, judge: Judge, fit: Fit, evaluator: Evaluator, held_out: HeldOut | None):
        if judge not in get_args(Judge):
            raise ValueError(
                f"sparsify: the schedule's judge must be one of {', '.join(map(repr, get_args(Judge)))}, got "
                f"{judge!r}."
            )
        if judge == "held-out" and held_out is None:
            raise ValueError(
                "sparsify: judge='held-out' judges rounds by rows that are kept out; give them as held_out=."
            )
        if judge == "corrected" and isinstance(fit.guide, CorrelatedGuide):
            raise ValueError(
                f"sparsify: judge='corrected' takes off what a factorised posterior overcharges, and "
                f"{type(fit.guide).__name__} has correlations. Use judge='vfe', or guide=infer.AutoMeanField."
            )
        self.judge: Judge = judge
        self._fit, self._evaluator, self._held_out = fit, evaluator, held_out
        self._precision: ScaledPrecision | None = None

    def __call__(self, now: FitState, vfe: float, key: Array) -> float | None:
        """Return what decides, in nats for all data; None where it is the VFE.

        Args:
            now: The state; kept intact.
            vfe: Its VFE.
            key: PRNG key.
        """
        if self.judge == "corrected":
            return vfe - self._overcharge(now, key)
        if self.judge == "held-out":
            # Rows that the program masks count for nothing, as they do in the VFE.
            rows = length(self._of_held_out.data)
            return -self._fit.num_data * float(jnp.sum(self._scores(now, key).log_prob)) / rows
        return None

    def metrics(self, now: FitState, key: Array) -> dict[str, float]:
        """Return the metrics of a state on the data kept out."""
        return self._scores(now, key).metrics

    def _scores(self, now: FitState, key: Array) -> PredictiveScores:
        params, data = self._fit.params(now), self._of_held_out.data
        samples = self._of_held_out.samples
        assert samples is not None
        return self._evaluator.scores(params, now.keep, data, key, num_samples=samples)

    @property
    def _of_held_out(self) -> HeldOut:
        assert self._held_out is not None
        return self._held_out

    def _overcharge(self, now: FitState, key: Array) -> float:
        fit, params = self._fit, self._fit.params(now)
        if self._precision is None:
            sites = moved_sites(fit.engine.guide, params, fit.example)
            if not sites:
                raise ValueError(
                    "sparsify: judge='corrected' needs latent sites with independent normal posteriors, and "
                    "the guide has none. Use infer.AutoMeanField, or judge='vfe'."
                )
            self._precision = ScaledPrecision(fit.engine.free_energy, sites, num_samples=_SAMPLES)
        steps = {"num_probes": _PROBES, "num_steps": _STEPS}
        found, _ = self._precision.overcharge(params, now.keep, fit.arrays, key, **steps)
        return found.value
