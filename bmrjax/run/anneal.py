"""A fit that begins with a cold posterior and ends at temperature 1."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jaxtyping import Array

from bmrjax.callbacks import Callback
from bmrjax.checks import check_key
from bmrjax.errors import FitWarning
from bmrjax.infer.arguments import Data
from bmrjax.run.batches import Batches
from bmrjax.run.checkpoint_options import Checkpoints, as_checkpoints
from bmrjax.run.continued import prepared
from bmrjax.run.fit_options import FitOptions
from bmrjax.run.result import Result
from bmrjax.run.sparsify import sparsify


def anneal(
    model: Callable,
    data: Data | Batches,
    *,
    key: Array,
    num_epochs: int = 100,
    temperatures: Sequence[float] = (0.25, 0.5, 1.0),
    checkpoints: str | Path | Checkpoints | None = None,
    callbacks: Sequence[Callback] = (),
    options: FitOptions = FitOptions(),  # noqa: B008 - frozen, and holds no array
    **settings: Any,
) -> Result:
    """Fit and prune a program as `sparsify` does, at one temperature after the other.

    A factorised posterior of a network that starts from scratch can end in a poor optimum of its free energy:
    weights fall back to the prior before others have learned what to do with them. At a low temperature they
    do not, and what has been learned, and reduced, is a better start for the next temperature. The last fit
    is of the program itself. Where there is much to learn, it may predict better than `sparsify` for as many
    epochs, with more weights; its free energy is seldom lower. `choose` compares both by other rows.

    Half of the epochs are those of the first temperature, and the others share the rest. What one has removed
    stays removed.

    Args:
        model: A NumPyro program.
        data: As for `sparsify`.
        key: PRNG key.
        num_epochs: Epochs of all fits together.
        temperatures: Of the likelihood; see `FitOptions`. The last one should be 1.
        checkpoints: The folder where checkpoints go, or `Checkpoints`; each temperature has a folder in it.
        callbacks: Called for the last fit only, as if it were alone.
        options: What is set less often. Its start and its ``kl_warmup`` are those of the first fit; the later
            ones begin with the whole divergence.
        **settings: Of `sparsify`.

    Returns:
        The result of the last temperature, with its own path and history; see `Result`.

    Raises:
        ValueError: For fewer epochs than temperatures, for an empty list of them, or for one in `options`;
            and as `sparsify` does.

    Warns:
        FitWarning: What the last fit warns of; see `Result.diagnose`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import bmrjax as bmr
        >>> x = jax.random.uniform(jax.random.key(0), (400, 1), minval=-1)
        >>> y = jnp.sin(6 * x[:, 0])
        >>> network = bmr.zoo.MLP(1, (20,), 1, key=jax.random.key(1))
        >>> program = bmr.programs.regression(network, bmr.priors.Flat())
        >>> settings = {"key": jax.random.key(2), "num_epochs": 10, "progress": False}
        >>> annealed = bmr.anneal(program, (x, y), temperatures=(0.1, 1.0), **settings)
        >>> annealed.temperature, annealed.history[-1]["epoch"]
        (1.0, 5)

    References:
        Bowman et al. (2016), for a divergence that comes in slowly; Mandt et al. (2016), for variational
        tempering; Wenzel et al. (2020), for cold posteriors.
    """
    check_key(key, "anneal")
    temperatures = [float(t) for t in temperatures]
    if not temperatures or not all(t > 0 for t in temperatures):
        raise ValueError(f"anneal: temperatures must be positive numbers, got {temperatures}.")
    if options.temperature != 1.0:
        raise ValueError(
            "anneal: give temperatures=(...) in place of FitOptions(temperature=...); a fit at one "
            "temperature is sparsify's."
        )
    if num_epochs < len(temperatures):
        raise ValueError(
            f"anneal: {num_epochs} epochs are not enough for {len(temperatures)} temperatures."
        )
    found: Result | None = None
    given = as_checkpoints(checkpoints)
    for i, (temperature, epochs) in enumerate(shares(temperatures, num_epochs)):
        is_last = i + 1 == len(temperatures)
        changed: dict[str, Any] = {"temperature": temperature}
        if found is not None:
            changed |= {"start": found, "kl_warmup": 0}
        own = given
        if given is not None:
            name = f"temperature-{i}-{temperature:g}"
            own = replace(given, directory=Path(given.directory) / name)
            own = own if found is None else prepared(own, found)
        with warnings.catch_warnings():
            if not is_last:
                # They are of a state that the next fit goes on from.
                warnings.simplefilter("ignore", FitWarning)
            found = sparsify(
                model,
                data,
                key=jax.random.fold_in(key, i),
                num_epochs=epochs,
                checkpoints=own,
                callbacks=callbacks if is_last else (),
                options=replace(options, **changed),
                **settings,
            )
    assert found is not None
    return found


def shares(temperatures: Sequence[float], num_epochs: int) -> list[tuple[float, int]]:
    """Return each temperature with its epochs: half of them for the first, the others share the rest.

    Args:
        temperatures: In their order.
        num_epochs: Of all together, at least one for each.
    """
    first, *later = temperatures
    if not later:
        return [(first, num_epochs)]
    each = max(num_epochs // (2 * len(later)), 1)
    return [(first, num_epochs - each * len(later)), *((t, each) for t in later)]
