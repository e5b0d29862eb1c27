"""Many seeds and settings of a program, fitted and pruned side by side in one compiled program."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array
from numpyro.infer.autoguide import AutoGuide

from bmrjax.infer.arguments import Data
from bmrjax.infer.default_guide import default_guide
from bmrjax.infer.guide import AutoMeanField
from bmrjax.infer.natural_gradient import NaturalGradient
from bmrjax.infer.program_data import program_data
from bmrjax.run.batches import Batches
from bmrjax.run.hyperparameter import GridPoint, points_of
from bmrjax.run.one_run import Member
from bmrjax.run.parameters_at_start import as_start
from bmrjax.run.progress import showing
from bmrjax.run.result import Result
from bmrjax.run.same_programs import check_same_programs
from bmrjax.run.serial import one_at_a_time
from bmrjax.run.settings import Settings, check_kinds
from bmrjax.run.training import Training


@one_at_a_time
def ensemble(
    model: Callable | Sequence[Callable],
    data: Data,
    *,
    keys: Sequence[Array] | Array,
    grid: Mapping[str, Sequence[Any]] | None = None,
    guide: Callable[[Callable], Callable] | None = None,
    progress: bool = True,
    **settings: Any,
) -> list[Result]:
    """Run `sparsify` once per key and point of a grid, with all training vectorised into one program.

    Each member is what `sparsify` with its key and its settings would be, to rounding: it has its own
    start, noise, masks, rounds and learning rate. Compiling happens once. Small programs, whose steps
    cost more to start than to compute, gain most; on CPU a network with convolutions loses, because XLA runs
    convolutions with several sets of filters slowly there. Memory grows with the number of members.

    Args:
        model: NumPyro program; or one per member, which may differ in the network that they start
            from, and in nothing else.
        data: Arrays with a common leading axis, shared by the members.
        keys: PRNG keys, one per member.
        grid: Values by name: of a `hyperparameter` of the program; of ``"kl_weight"``, factors on the
            divergence; of ``"rate"``, factors on the optimiser's updates; or of ``"criterion"``, criteria,
            whose reductions are compiled one by one. There is a member for every combination.
        guide: Makes a member's guide from its program; by default, the class that `sparsify` would take for
            the first program, `infer.AutoMultivariate` or `infer.AutoMeanField`.
        progress: Whether to show how far the members are; see `sparsify`.
        **settings: All others of `sparsify`. Its `callbacks` are shared by the members, and each record has
            its ``member``.

    Returns:
        One result per member: a point of the grid after the other, the last name's values side by side, and
        the keys in order at each. A result's ``hyperparameters`` say what the grid gave it.

    Raises:
        TypeError: For a setting that `sparsify` does not have.
        ValueError: As `sparsify`, or if the numbers of programs and keys differ.
        EnsembleError: When members diverged; it holds every member's result.
        CallbackError: If a callback raised; its `result` is the list of what the members had reached.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> import bmrjax as bmr
        >>> def program(x, y=None):
        ...     beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        ...     numpyro.sample("y", dist.Normal(x @ beta, 0.1), obs=y)
        >>> x = jax.random.normal(jax.random.key(0), (100, 3))
        >>> results = bmr.ensemble(
        ...     program, (x, 2.0 * x[:, 0]), keys=jax.random.split(jax.random.key(1), 4),
        ...     num_epochs=10, batch_size=None, steps_per_epoch=100, progress=False,
        ...     schedule=bmr.schedules.Every(wait=5),
        ... )
        >>> [result.num_kept for result in results]
        [1, 1, 1, 1]
    """
    if isinstance(data, Batches):
        raise TypeError("ensemble: the members share arrays; Batches are for single runs.")
    unknown = sorted(settings.keys() - {field.name for field in fields(Settings)})
    if unknown:
        raise TypeError(f"ensemble() got an unexpected keyword argument '{unknown[0]}'")
    given = Settings(**settings)
    check_kinds(given, None)
    if given.options.mesh is not None:
        raise ValueError(
            "ensemble: members share one device; mesh is for single runs, of sparsify."
        )
    if isinstance(guide, AutoGuide):
        raise TypeError(
            f"ensemble: guide makes each member's guide; give {type(guide).__name__} itself, or "
            "a function, not one that is made."
        )
    if not isinstance(keys, Sequence) and jnp.ndim(keys) == 0:
        raise ValueError("ensemble: give several keys, such as jax.random.split(key, 5).")
    keys = list(keys)
    models = list(model) if isinstance(model, Sequence) else [model] * len(keys)
    if not keys or len(models) != len(keys):
        raise ValueError(
            f"ensemble: give one program, or one per key: there are {len(models)} programs for "
            f"{len(keys)} keys."
        )
    points = points_of(grid)
    if points[0].criterion is not None:
        given = replace(given, criterion=points[0].criterion)
    programs = [
        (point, key, point.given(program))
        for point in points
        for key, program in zip(keys, models, strict=True)
    ]
    with showing(given.num_epochs, wanted=progress) as shown:
        if len({id(each) for each in models}) > 1:
            check_same_programs(models, _batch(models[0], data, given))
        if guide is None:
            guide = _default_guide(programs[0][2], data, given, points)
        members = [
            Member(program, guide(program), key, point, index)
            for index, (point, key, program) in enumerate(programs)
        ]
        # The fit's guide is that of a member, which meets its program before the training step is traced.
        return Training(models[0], members[0].guide, data, given).many(members, shown)


def _default_guide(
    program: Callable, data: Data, given: Settings, points: list[GridPoint]
) -> Callable[[Callable], Callable]:
    """Return the class of guide that serves all criteria of the grid."""
    options, start = given.options, as_start(given.options.start)
    found = {
        default_guide(
            program,
            _batch(program, data, given),
            criterion=given.criterion if point.criterion is None else point.criterion,
            estimator=options.estimator,
            loss=options.loss,
            start=None if start is None else start.params,
            factorised=isinstance(given.optimizer, NaturalGradient),
        )
        for point in points
    }
    return found.pop() if len(found) == 1 else AutoMeanField


def _batch(program: Callable, data: Data, given: Settings) -> Data:
    """Return the data as the program takes them."""
    return program_data(program, data, batch_size=given.batch_size, static=given.options.static)
