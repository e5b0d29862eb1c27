"""Fits from a lower temperature up to 1, where a point estimate says that the first one underfits."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from bmrjax.cli.point_estimate import best_point_estimate
from bmrjax.cli.sparsify_options import SparsifyOptions, is_verified
from bmrjax.cli.waiting import waiting
from bmrjax.errors import NonFiniteError
from bmrjax.run.choose_point import ChosenPoint
from bmrjax.run.result import Result
from bmrjax.run.sparsest import FEWEST, NoFiniteScoreError, clearly_better

# In the table of settings of docs/howto/temperature.md, the one that predicted best; then those of `anneal`.
_COLD, _WARMER = 0.25, (0.5, 1.0)


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
    plain = options.method == "bmr" and options.prior == "flat" and is_verified(options)
    return options.temperature is None and by_rows and network and plain


def fit_colder(
    choice: ChosenPoint,
    fit: Callable[[float, Result | None], ChosenPoint],
    options: SparsifyOptions,
    network: Any,
    train: Any,
    validation: Any,
    num_classes: int | None,
) -> tuple[ChosenPoint, dict[str, Any]]:
    """Return what the validation rows choose of several temperatures, and what was compared.

    The optimum of a factorised posterior of a network can underfit, and its free energy does not show it. A
    point estimate does: if it predicts the validation rows better, by more than a standard error of the
    difference and a Bayes factor of 20, there is more to learn, and a second fit is made, whose likelihood
    counts four times. It is taken if it predicts them better by as much: where there is little to learn, a
    colder posterior is far worse, and much too sure of itself. If it is taken, fits at higher temperatures go
    on from it, up to 1. The last of them that is not beaten by a colder one is kept: it has fewer weights,
    and a posterior of the program itself.

    Args:
        choice: Of the fit at temperature 1.
        fit: Makes the fit at a temperature, from an earlier result or from scratch, and chooses a point of
            its path.
        options: With what was left out filled in.
        network: What is fitted, with its weights at the start.
        train: Inputs and targets of all fits.
        validation: Those that were kept out.
        num_classes: None for a regression.

    Returns:
        One of them, and the document of the comparison: the NLL per validation row of the point estimate and
        of each fit, and the weights that each fit keeps.
    """
    with waiting("comparing with a point estimate", wanted=options.progress):
        point = best_point_estimate(
            network,
            train,
            validation,
            num_classes,
            jax.random.key(options.seed + 3),
        )
    made: list[tuple[float, ChosenPoint]] = [(1.0, choice)]

    def fit_next(temperature: float, start: Result | None) -> bool:
        try:
            made.append((temperature, fit(temperature, start)))
        except (NonFiniteError, NoFiniteScoreError) as error:
            print(f"that fit failed; the choice is among the fits before it: {error}", flush=True)
            return False
        return True

    if clearly_better(point, choice.log_prob):
        print(
            f"a point estimate predicts the validation rows better (NLL {-point.mean():.3g} for "
            f"{-choice.log_prob.mean():.3g}): fitting once more, at temperature {_COLD}",
            flush=True,
        )
        if fit_next(_COLD, None) and clearly_better(made[-1][1].log_prob, choice.log_prob):
            print(
                f"that predicts better (NLL {-made[-1][1].log_prob.mean():.3g}): going on from it, at "
                f"temperatures {' and '.join(f'{t:g}' for t in _WARMER)}",
                flush=True,
            )
            for temperature in _WARMER:
                if not fit_next(temperature, made[-1][1].result):
                    break
    index = _best([each.log_prob for _, each in made])
    fits = [
        {
            "temperature": temperature,
            "nll": -float(np.mean(each.log_prob)),
            "kept": each.result.num_kept,
            "seconds": each.result.timing["seconds"],
        }
        for temperature, each in made
    ]
    for i, each in enumerate(fits[2:], 2):
        each["start"] = fits[i - 1]["temperature"]
    compared = {"point_estimate_nll": -float(point.mean()), "fits": fits, "taken": index}
    return made[index][1], {"temperatures": compared}


def _best(log_probs: Sequence[Float[Any, " rows"]]) -> int:
    """Return which fit is taken: the first, unless the second is clearly better, or one that went on from it.

    Args:
        log_probs: Of the validation rows, by the fit at temperature 1, at the lowest, and at rising ones.
    """
    first, *later = log_probs
    if not later or not clearly_better(later[0], first):
        return 0
    held = len(later)
    for i in reversed(range(1, len(later))):
        if clearly_better(log_probs[i], log_probs[held]):
            held = i
    return held if clearly_better(log_probs[held], first) else 1
