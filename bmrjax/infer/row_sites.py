"""Which observed sites of a program have a log density per row, and whether rows may be split up."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array

from bmrjax.backend.quick_compile import quick_jit
from bmrjax.backend.random_keys import fold_in
from bmrjax.handlers import draws, inference, log_density_shape, row_axis
from bmrjax.infer.arguments import Data, arguments, first_rows, length
from bmrjax.infer.check_data import row_paths
from bmrjax.infer.init import at_start
from bmrjax.infer.tracing import sites_of

# So many rows show how a log density moves with its row.
_ROWS = 64
_TOLERANCE = 1e-4

# What a program raises that reads the value of an argument while it is traced.
NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class _Look(NamedTuple):
    """What a program says of a batch.

    Attributes:
        log_density: Log densities of the observed sites, in nats, without factors on them.
        factor: Factors that the program itself puts on them, without those of plates that subsample.
        prior: Parameters of the distributions of the latent sites.
    """

    log_density: dict[str, Array]
    factor: dict[str, Array]
    prior: dict[str, list[Array]]


def row_sites(model: Callable, data: Data, key: Array, *, name: str = "sparsify") -> dict[str, int]:
    """Return the observed sites whose log density has one entry per row, if rows may be split up.

    A site has rows if each of its log densities moves with its row when rows are exchanged and one is left
    out; a site whose log density does not change then (a `numpyro.factor` on coefficients, an observed
    global) belongs to no row.

    Args:
        model: NumPyro program.
        data: Its arguments: at least two rows, of which at most 64 are looked at.
        key: PRNG key of the latent values at which the program is compared.
        name: Which function was called, for messages.

    Returns:
        Name of each to the axis of the rows in its log density.

    Raises:
        ValueError: For a program that minibatches would change: with latent sites per row, with a log
            density that depends on other rows or on the position of a row, with a prior or a factor that
            depends on the rows or their number, with plates that subsample, or of a fixed number of rows.
            The message names the site.
    """
    rows = length(data)
    size = min(rows, _ROWS)
    if size < 2:
        return _by_shape(model, data, key)
    part = jax.tree.map(np.asarray, first_rows(data, size))
    plates: dict[str, tuple[int, int]] = {}

    def drawn(batch: Data, key: Array) -> dict[str, Array]:
        sites = sites_of(_quiet(model), *arguments(batch), key=key)
        return {n: s["value"] for n, s in sites.items() if _is_latent(s)}

    def look(batch: Data, held: dict[str, Array], noise: Array) -> _Look:
        # The same latent values under other random numbers: what still varies is the program's own.
        again = sites_of(_quiet(model), *arguments(batch), key=noise, values=held)
        plates.update(subsampling(again))
        observed = {n: s for n, s in again.items() if _is_observed(s)}
        densities = {n: jnp.asarray(s["fn"].log_prob(s["value"])) for n, s in observed.items()}
        factors = {n: _own_factor(s, again) for n, s in observed.items()}
        priors = {n: jax.tree.leaves(s["fn"]) for n, s in again.items() if _is_latent(s)}
        return _Look(densities, factors, priors)

    check_on_batch(model, jax.tree.map(lambda a: a[:-1], part), part, name)
    _check_latents(drawn, part, key, name)
    order = np.random.default_rng(0).integers(0, size, size - 1)

    def compared(batches: tuple[Data, ...], noise: Array) -> tuple[_Look, ...]:
        # Parameters start once, whatever their start is made of.
        sites = sites_of(_quiet(model), *arguments(batches[0]), key=key)
        held = {n: s["value"] for n, s in sites.items() if _is_latent(s) or s["type"] == "param"}
        return tuple(look(batch, held, noise) for batch in batches)

    def looks(batches: tuple[Data, ...], noise: Array) -> tuple[_Look, ...]:
        # In the short products of a GPU (TensorFloat-32), the same row has other densities in another batch.
        with jax.default_matmul_precision("highest"):
            return quick_jit(compared)(batches, noise)

    first, moved = looks((part, jax.tree.map(lambda a: a[order], part)), key)
    if not plates:
        _check_priors(first.prior, moved.prior, name)
    found: dict[str, int] = {}
    failed: list[str] = []
    for site, before in first.log_density.items():
        axes = _axis_that_moves(before, moved.log_density[site], order)
        if axes:
            found[site] = axes[0]
        elif not _close(before, moved.log_density[site]):
            failed.append(site)
    if failed and not plates:
        # Dropout, say, is tied to positions too, and harmless.
        (other,) = looks((part,), fold_in(key, np.uint32(1)))
        random = [s for s in failed if not _close(first.log_density[s], other.log_density[s])]
        by_length = {s: row_axis(jnp.shape(first.log_density[s]), size) for s in random}
        found |= {site: axis for site, axis in by_length.items() if axis is not None}
        failed = [s for s in failed if s not in found]
    if failed:
        raise ValueError(_why_not(name, failed, first.log_density, size, rows, plates))
    _check_factors(first.factor, moved.factor, order, name, plates)
    return found


def _quiet(model: Callable) -> Callable:
    """Return the program at a start, without the noise and the batch statistics of training."""
    return draws(inference(at_start(model)), at_mean=True)


def _is_latent(site: dict[str, Any]) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _is_observed(site: dict[str, Any]) -> bool:
    return site["type"] == "sample" and site["is_observed"]


def subsampling(sites: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the plates that take fewer rows than they have, with both numbers.

    Args:
        sites: All of a program, as NumPyro describes them, by name.
    """
    plates = {n: s["args"] for n, s in sites.items() if s["type"] == "plate"}
    return {n: (a[0], a[1]) for n, a in plates.items() if a[1] is not None and a[0] != a[1]}


def _by_shape(model: Callable, data: Data, key: Array) -> dict[str, int]:
    """Return the observed sites whose log density is as long as the data."""
    shapes: dict[str, tuple[int, ...]] = {}

    def look(data: Data) -> None:
        for name, site in sites_of(_quiet(model), *arguments(data), key=key).items():
            if _is_observed(site):
                shapes[name] = log_density_shape(site)

    jax.eval_shape(look, data)
    rows = length(data)
    by_length = {name: row_axis(shape, rows) for name, shape in shapes.items()}
    return {name: axis for name, axis in by_length.items() if axis is not None}


def _check_latents(drawn: Callable, part: Data, key: Array, name: str) -> None:
    """Refuse a program with latent sites per row, which minibatches cannot carry."""

    def shapes(batch: Data) -> dict[str, Any]:
        return jax.tree.map(jnp.shape, jax.eval_shape(drawn, batch, key))

    whole = shapes(part)
    less = jax.tree.map(lambda a: a[:-1], part)
    fewer = shapes(less)
    local = sorted(site for site in whole if whole[site] != fewer.get(site))
    if local:
        raise ValueError(
            f"{name}: the latent sites {local} have one element per data point, so minibatches would mix "
            "them up. Fit with batch_size=None (all data in every step), or marginalise them."
        )


def _own_factor(site: dict[str, Any], sites: dict[str, Any]) -> Array:
    """Return the factor on the log density of a site that is not of plates that subsample."""
    plates = subsampling(sites)
    taken = [plates[f.name] for f in site["cond_indep_stack"] if f.name in plates]
    factor = jnp.asarray(1.0 if site["scale"] is None else site["scale"])
    return factor / np.prod([total / part for total, part in taken])


def _check_factors(
    before: dict[str, Array],
    after: dict[str, Array],
    order: np.ndarray,
    name: str,
    plates: Mapping[str, tuple[int, int]],
) -> None:
    """Refuse factors on log densities that depend on which rows there are, or on how many."""
    larger = [plate for plate, (total, taken) in plates.items() if taken > total]
    for site, factor in before.items():
        if _axis_that_moves(factor, after[site], order) or _close(factor, after[site]):
            continue
        if larger:
            raise ValueError(_taken(name, site, larger[0], plates[larger[0]][1]))
        raise ValueError(
            f"{name}: the program multiplies the log density of '{site}' itself by a factor that depends on "
            "the rows or on their number (numpyro.handlers.scale, of len(x) or of weights divided by their "
            f"sum, say), and minibatches are scaled by {name} as well. Write the program for all rows: leave "
            "a factor of rows per batch out, and compute others from all rows before; or fit with "
            "batch_size=None."
        )


def _check_priors(before: dict[str, list[Array]], after: dict[str, list[Array]], name: str) -> None:
    """Refuse priors that depend on which rows there are, or on how many."""
    moved = [
        site
        for site, leaves in before.items()
        if len(leaves) != len(after[site])
        or not all(_close(one, other) for one, other in zip(leaves, after[site], strict=True))
    ]
    if moved:
        raise ValueError(
            f"{name}: the prior of '{moved[0]}' depends on the rows or on their number (x.std(0) or len(x) "
            "in it, say), so each minibatch would have a prior of its own. Compute what it needs from all "
            "rows before, and let the program refer to it; or fit with batch_size=None."
        )


def _axis_that_moves(before: Array, after: Array, order: np.ndarray) -> list[int]:
    """Return the axes, first or last, along which the entries moved with their rows."""
    shape = jnp.shape(before)
    axes = {0, len(shape) - 1} if shape else set()
    taken = [
        (axis, np.take(np.asarray(before), order, axis))
        for axis in axes
        if shape[axis] > len(order)
    ]
    return [axis for axis, values in taken if _close(values, after)]


def _close(a: Array | np.ndarray, b: Array) -> bool:
    one, other = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if one.shape != other.shape:
        return False
    finite = one[np.isfinite(one)]
    typical = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
    near = {"rtol": _TOLERANCE, "atol": _TOLERANCE * typical}
    return bool(np.allclose(one, other, equal_nan=True, **near))


def _why_not(
    name: str,
    failed: list[str],
    found: dict[str, Array],
    size: int,
    rows: int,
    plates: dict[str, tuple[int, int]],
) -> str:
    if plates:
        plate, (total, taken) = next(iter(plates.items()))
        return _taken(name, failed[0], plate, f"{taken} of {total}")
    shapes = {site: jnp.shape(found[site]) for site in failed}
    whole = [site for site, shape in shapes.items() if row_axis(shape, size) is None]
    if whole:
        return (
            f"{name}: the log density of '{whole[0]}' depends on the rows and has shape "
            f"{shapes[whole[0]]}, without one entry per row, so it cannot be scaled from a batch to "
            f"{rows} rows. Give it one entry per row (a likelihood without to_event over the rows, or a "
            "numpyro.factor of one value per row), or fit with batch_size=None."
        )
    return (
        f"{name}: the log density of '{failed[0]}' at a row depends on other rows or on the row's position "
        "(as in a time series, or with statistics of the batch), so minibatches would fit another model. Fit "
        "with batch_size=None (all data in every step)."
    )


def _taken(name: str, site: str, plate: str, taken: Any) -> str:
    return (
        f"{name}: the plate '{plate}' takes {taken} rows itself, so '{site}' does not belong to the rows of "
        "a batch. Fit with batch_size=None: the program then takes its own minibatches."
    )


def check_on_batch(model: Callable, batch: Data, data: Data, name: str) -> None:
    """Refuse a program that runs on all rows and fails on a batch of them.

    Raises:
        ValueError: Saying what it failed with, and at which site or argument.
    """
    rows, fixed = length(data), []
    reached: list[str] = []

    def runs(data: Data) -> None:
        noted = numpyro.handlers.substitute(at_start(model), substitute_fn=note)
        sites = sites_of(noted, *arguments(data), key=jax.random.key(0))
        plates = {n: s["args"][0] for n, s in sites.items() if s["type"] == "plate"}
        fixed.extend(
            f"the plate '{n}' has size {size}; " for n, size in plates.items() if size == rows
        )
        for site in filter(_is_observed, sites.values()):
            reached.append(f"at the observed site '{site['name']}'")
            site["fn"].log_prob(site["value"])

    def note(site: dict[str, Any]) -> None:
        if site["type"] == "sample":
            reached.append(f"at or after the site '{site['name']}'")

    try:
        jax.eval_shape(runs, batch)
    except NEEDS_VALUES as error:
        raise ValueError(
            f"{name}: the program reads the values of {_read_arguments(model, batch)} (as np.unique does), "
            "which minibatches cannot give. Compute what it needs before and name it in static= of "
            f"FitOptions, or fit with batch_size=None. ({str(error).splitlines()[0]})"
        ) from None
    except (TypeError, ValueError, IndexError) as error:
        where = f"{reached[-1]}: " if reached else ""
        try:
            jax.eval_shape(runs, data)
        except (TypeError, ValueError, IndexError):
            raise error from None
        raise ValueError(
            f"{name}: the program runs on all {rows} rows and fails on a batch of {length(batch)}: "
            f"{''.join(fixed)}{where}{str(error).splitlines()[0].rstrip('.')}. Write its sizes as "
            "x.shape[0], or fit with batch_size=None."
        ) from None


def _read_arguments(model: Callable, batch: Data) -> str:
    """Return the names of the arguments that a program cannot take as traced arrays."""
    leaves, structure = jax.tree.flatten(batch)
    parameters = list(inspect.signature(model).parameters)
    found = []
    for i, path in enumerate(row_paths(batch)):

        def runs(leaf: Array, i: int = i) -> None:
            others = [leaf if k == i else np.asarray(each) for k, each in enumerate(leaves)]
            sites_of(at_start(model), *arguments(jax.tree.unflatten(structure, others)))

        try:
            jax.eval_shape(runs, leaves[i])
        except NEEDS_VALUES:
            by_position = path.isdecimal() and int(path) < len(parameters)
            found.append(f"'{parameters[int(path)] if by_position else path}'")
    return f"the argument {', '.join(found)}" if found else "its arguments"
