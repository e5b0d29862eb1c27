"""Further fits of a table, where a point estimate says that the first one underfits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from bmrjax.cli.point_estimate import best_point_estimate
from bmrjax.cli.run_folder import COLDER, SLOWLY, WARMER, FurtherFit
from bmrjax.cli.sparsify_options import FLAT, SparsifyOptions, is_verified
from bmrjax.cli.waiting import waiting
from bmrjax.errors import NonFiniteError
from bmrjax.run.choose_point import ChosenPoint
from bmrjax.run.result import Result
from bmrjax.run.sparsest import FEWEST, NoFiniteScoreError, clearly_better


def may_be_colder(options: SparsifyOptions, rows: int, input_shape: tuple[int, ...]) -> bool:
    """Say whether a run compares temperatures: one on a table, with rows to compare by.

    With more columns than rows, a point estimate is no guide, and neither are a few validation rows.

    Args:
        options: With what was left out filled in.
        rows: Training rows, validation rows included.
        input_shape: Shape of one input.
    """
    by_rows = (options.validation or 0.0) * rows >= FEWEST and bool(options.within)
    network = options.net == "mlp" and len(input_shape) == 1 and input_shape[0] <= rows
    plain = options.method == "bmr" and options.prior in FLAT and is_verified(options)
    return options.temperature is None and by_rows and network and plain


def fit_colder(
    choice: ChosenPoint,
    fit: Callable[[FurtherFit, Result | None], ChosenPoint],
    options: SparsifyOptions,
    network: Any,
    train: Any,
    validation: Any,
    num_classes: int | None,
    *,
    slowly: bool = True,
) -> tuple[ChosenPoint, dict[str, Any]]:
    """Return what the validation rows choose of several fits, and what was compared.

    The optimum of a factorised posterior of a network can underfit, and its free energy does not show it. A
    point estimate does: if it predicts the validation rows better, by more than a standard error of the
    difference and a Bayes factor of 20, there is more to learn. First the divergence comes in more slowly. If
    the point estimate is still better, the likelihood counts four times. A fit is taken if it predicts the
    rows better than the one before by as much: where there is little to learn, a colder posterior is far
    worse, and much too sure of itself, and one that was warmed up slowly has more weights. If the colder one
    is taken, fits at higher temperatures go on from it, up to 1. The last of them that is not beaten by a
    colder one is kept: it has fewer weights, and a posterior of the program itself.

    Args:
        choice: Of the fit at temperature 1.
        fit: Makes one of the further fits, from an earlier result or from scratch, and chooses a point of
            its path.
        options: With what was left out filled in.
        network: What is fitted, with its weights at the start.
        train: Inputs and targets of all fits.
        validation: Those that were kept out.
        num_classes: None for a regression.
        slowly: Whether one may have another warm-up than the first.

    Returns:
        One of them, and the document of the comparison: the NLL per validation row of the point estimate and
        of each fit, the weights that each fit keeps, and whether the point estimate is better than the one
        that is returned.
    """
    with waiting("comparing with a point estimate", wanted=options.progress):
        point = best_point_estimate(
            network,
            train,
            validation,
            num_classes,
            jax.random.key(options.seed + 3),
        )
    fits = [_Fit(FurtherFit("", 1.0), choice)]

    def fit_next(refit: FurtherFit, start: _Fit | None = None) -> bool:
        """Make a fit, and say whether there is one."""
        try:
            found = fit(refit, None if start is None else start.choice.result)
        except (NonFiniteError, NoFiniteScoreError) as error:
            print(f"that fit failed; the choice is among the fits before it: {error}", flush=True)
            return False
        fits.append(_Fit(refit, found, start))
        return True

    def underfits(fit: _Fit, how: str) -> bool:
        """Say whether a point estimate shows that there is more to learn, and what is done about it."""
        if not clearly_better(point, fit.log_prob):
            return False
        print(
            f"a point estimate predicts the validation rows better (NLL {-point.mean():.3g} for "
            f"{-fit.log_prob.mean():.3g}): fitting once more, {how}",
            flush=True,
        )
        return True

    taken = fits[0]
    if slowly and underfits(taken, "with a slow warm-up") and fit_next(SLOWLY):
        taken = _better(fits[-1], taken)
    if underfits(taken, f"at temperature {COLDER.temperature:g}") and fit_next(COLDER):
        cold = fits[-1]
        if clearly_better(cold.log_prob, taken.log_prob):
            print(
                f"that predicts better (NLL {-cold.log_prob.mean():.3g}): going on from it, at "
                f"temperatures {' and '.join(f'{each.temperature:g}' for each in WARMER)}",
                flush=True,
            )
            for refit in WARMER:
                if not fit_next(refit, fits[-1]):
                    break
            taken = _warmest(fits[fits.index(cold) :], taken)
    compared = {
        "point_estimate_nll": -float(point.mean()),
        "fits": [each.document() for each in fits],
        "taken": fits.index(taken),
        "underfits": clearly_better(point, taken.log_prob),
    }
    return taken.choice, {"temperatures": compared}


@dataclass(frozen=True, eq=False)
class _Fit:
    """A fit that is compared, and the one from which it went on."""

    refit: FurtherFit
    choice: ChosenPoint
    start: "_Fit | None" = None

    @property
    def log_prob(self) -> Float[Any, " rows"]:
        """Of the validation rows."""
        return self.choice.log_prob

    def document(self) -> dict[str, Any]:
        """Return what results.json says of it."""
        document = {
            "temperature": self.refit.temperature,
            "nll": -float(np.mean(self.log_prob)),
            "kept": self.choice.result.num_kept,
            "seconds": self.choice.result.timing["seconds"],
        }
        if self.start is not None:
            document["start"] = self.start.refit.temperature
        if self.refit.slowly:
            document["slow_warm_up"] = True
        return document


def _better(fit: _Fit, before: _Fit) -> _Fit:
    return fit if clearly_better(fit.log_prob, before.log_prob) else before


def _warmest(rising: Sequence[_Fit], before: _Fit) -> _Fit:
    """Return the warmest of several fits that no colder one beats, as long as it beats the fit before them.

    Args:
        rising: One at the lowest temperature, which beats it, and those that went on from it.
        before: At temperature 1, from scratch.
    """
    held = rising[-1]
    for fit in reversed(rising[:-1]):
        held = _better(fit, held)
    return held if clearly_better(held.log_prob, before.log_prob) else rising[0]
