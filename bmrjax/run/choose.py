"""One of several fits, by rows that none of them has seen."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from bmrjax.checks import check_key
from bmrjax.run.result import Result
from bmrjax.run.sparsest import clearly_better


def row_log_prob(
    result: Result, key: Array, data: Any, *, num_samples: int
) -> Float[np.ndarray, " rows"]:
    """Return the log predictive density or probability of each row."""
    checked = result._checked(data, "row_log_prob: data")
    scores = result._evaluator().scores(
        result.params, result.keep, checked, key, num_samples=num_samples
    )
    return np.asarray(scores.log_prob, np.float64)


def choose(results: Sequence[Result], key: Array, data: Any, *, num_samples: int = 100) -> Result:
    """Return the first of several results, unless a later one clearly predicts other rows better.

    For fits of the same data under different settings: temperatures, criteria, priors, seeds. A fit takes the
    place of the one that is held so far if the log predictive density of the rows is higher under it by more
    than a standard error of the difference, paired over the rows, and by more than 3 nats in all, a Bayes
    factor of 20. So put first what is to be preferred when the rows cannot tell: the sparser fit, or the
    default. The command line compares two temperatures in this way.

    Args:
        results: Of `sparsify` or `ensemble`, or points of a path (`Result.at`).
        key: PRNG key; all results see the same noise.
        data: Rows that were kept out of all fits, in the form that the programs were fitted on; of fewer than
            20 nothing is concluded. Rows that chose a point of the path before make the fits look a little
            better than they are.
        num_samples: Posterior samples.

    Returns:
        That result; its `metrics` are those on `data` (the NLL in nats per data point).

    Raises:
        TypeError: For something else than results.
        ValueError: Without results, or if none has a finite score on these rows.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 3))
        >>> data = x, 2.0 * x[:, 0]
        >>> short, long = (
        ...     bmr.sparsify(program, (x[:80], data[1][:80]), key=jax.random.key(1), num_epochs=epochs,
        ...                  batch_size=None, steps_per_epoch=20, criterion=None, progress=False)
        ...     for epochs in (1, 30)
        ... )
        >>> best = bmr.choose([short, long], jax.random.key(2), (x[80:], data[1][80:]))
        >>> best.num_data, len(best.history)
        (80, 30)
    """
    results = list(results)
    for result in results:
        if not isinstance(result, Result):
            raise TypeError(f"choose takes results of sparsify, got {type(result).__name__}.")
    if not results:
        raise ValueError("choose: there is no result to choose from.")
    check_key(key, "choose", num_samples=num_samples)
    best: tuple[Result, Any] | None = None
    for result in results:
        checked = result._checked(data, "choose: data")
        metrics, log_prob, *_ = result._evaluator().scores(
            result.params, result.keep, checked, key, num_samples=num_samples
        )
        rows = np.asarray(log_prob, np.float64)
        if np.isfinite(rows).all() and (best is None or clearly_better(rows, best[1])):
            best = dataclasses.replace(result, metrics=metrics), rows
    if best is None:
        raise ValueError(
            "choose: no result has a finite negative log likelihood on these rows. Look for values far "
            "outside what the programs were fitted on."
        )
    return best[0]
