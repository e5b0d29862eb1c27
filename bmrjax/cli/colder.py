"""A second fit at a lower temperature, where a point estimate says that the first one underfits."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bmrjax.cli.point_estimate import best_point_estimate
from bmrjax.cli.sparsify_options import SparsifyOptions, is_verified
from bmrjax.cli.waiting import waiting
from bmrjax.errors import NonFiniteError
from bmrjax.run.choose_point import ChosenPoint
from bmrjax.run.sparsest import FEWEST, clearly_better

# In the table of settings of docs/howto/temperature.md, the one that predicted best.
_TEMPERATURE = 0.25


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
    fit: Callable[[float], ChosenPoint],
    options: SparsifyOptions,
    network: Any,
    train: Any,
    validation: Any,
    num_classes: int | None,
) -> tuple[ChosenPoint, dict[str, Any]]:
    """Return what the validation rows choose of two temperatures, and what was compared.

    The optimum of a factorised posterior of a network can underfit, and its free energy does not show it. A
    point estimate does: if it predicts the validation rows better, by more than a standard error of the
    difference and a Bayes factor of 20, there is more to learn, and a second fit is made, whose likelihood
    counts four times. It is taken if it predicts them better by as much: where there is little to learn, a
    colder posterior is far worse, and much too sure of itself.

    Args:
        choice: Of the fit at temperature 1.
        fit: Makes the fit at a temperature, and chooses a point of its path.
        options: With what was left out filled in.
        network: What is fitted, with its weights at the start.
        train: Inputs and targets of both fits.
        validation: Those that were kept out.
        num_classes: None for a regression.

    Returns:
        One of both, and the document of the comparison: the NLL per validation row of the point estimate and
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
    choices = {1.0: choice}
    if clearly_better(point, choice.log_prob):
        print(
            f"a point estimate predicts the validation rows better (NLL {-point.mean():.3g} for "
            f"{-choice.log_prob.mean():.3g}): fitting once more, at temperature {_TEMPERATURE}",
            flush=True,
        )
        try:
            choices[_TEMPERATURE] = fit(_TEMPERATURE)
        except (NonFiniteError, ValueError) as error:
            print(f"that fit failed, and the first one stands: {error}", flush=True)
    index = 0
    if _TEMPERATURE in choices:
        index = int(clearly_better(choices[_TEMPERATURE].log_prob, choice.log_prob))
    fits = [
        {
            "temperature": temperature,
            "nll": -float(np.mean(each.log_prob)),
            "kept": each.result.num_kept,
            "seconds": each.result.timing["seconds"],
        }
        for temperature, each in choices.items()
    ]
    compared = {"point_estimate_nll": -float(point.mean()), "fits": fits, "taken": index}
    return list(choices.values())[index], {"temperatures": compared}
