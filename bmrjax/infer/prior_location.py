"""Where the priors of a program are centred, found without fitting it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to
from numpyro.primitives import Messenger

from bmrjax.backend.quick_compile import quick_jit
from bmrjax.families import (
    atoms_are_known,
    element_support,
    facts,
    inside,
    location,
    read_as_stored,
)
from bmrjax.handlers import inference, log_density_shape, row_axis
from bmrjax.infer.arguments import Data, arguments, length
from bmrjax.infer.init import given_start
from bmrjax.infer.tracing import shape_of, sites_of

Location = Literal["zero", "fixed", "latent"]

# Where the latent sites and the parameters are put: two points at which nothing is zero by accident, and on
# both sides of zero, where programs ask for a sign.
_SHIFTS = (0.31, -0.83)


@dataclass
class PriorFacts:
    """What is known of the prior of a site before anything is fitted.

    Attributes:
        shape: Shape of the site, plates included.
        label: Name of the distribution.
        family: Name of its family, if that has a closed form.
        support: ``"real"``, ``"positive"``, ``"discrete"`` or ``"other"``.
        layer: Layer that the site names in ``infer={"layer": ...}``.
        posterior: Posterior that it names in ``infer={"posterior": ...}``.
        observed: Whether the site is observed.
        kind: Name of the class of its family.
        location: Of a family with a location: ``"zero"``, ``"fixed"`` (constants, not all zero) or
            ``"latent"`` (it moves with other latent sites or parameters).
        loc: Its location in words.
        scale: Its scale in words.
        has_rows: Of an observed site: whether its log density has one entry per row of the batch.
        is_scaled: Of a latent site: whether the program multiplies its log density by a factor.
        num_plates: How many of its axes are plates.
    """

    shape: tuple[int, ...]
    label: str
    family: str | None
    support: str
    layer: str | None
    posterior: str | None
    observed: bool
    kind: str = ""
    location: Location | None = None
    loc: str = ""
    scale: str = ""
    has_rows: bool = False
    is_scaled: bool = False
    num_plates: int = 0
    stored: dict[str, list[Any]] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    @property
    def num_axes(self) -> int:
        """Number of axes that are not plates: 2 for the matrix of a layer, also if each group has its own."""
        return len(self.shape) - self.num_plates

    @property
    def text(self) -> str:
        """The distribution in words."""
        return f"{self.kind}({self.loc}, {self.scale})" if self.stored else self.label


def prior_facts(model: Callable, batch: Data) -> dict[str, PriorFacts]:
    """Look at the sample sites of a program, and find which locations depend on what is latent.

    The program is traced once, and its locations are evaluated with the latent sites and parameters at two
    different points. Nothing is compiled if all locations and scales are numbers.

    Args:
        model: NumPyro program.
        batch: One batch of data.

    Raises:
        ValueError: For a latent site that is drawn with ``sample_shape=``.
    """
    found: dict[str, PriorFacts] = {}

    def locate(shift: Array, seed: Array, batch: Data) -> dict[str, dict[str, Array]]:
        args, kwargs = arguments(batch)
        moved = numpyro.handlers.substitute(
            _move_parameters(model, shift), substitute_fn=lambda site: _moved(site, shift)
        )
        with inference(), atoms_are_known():
            sites = sites_of(moved, args, kwargs, key=jax.random.key(seed))
        traced: dict[str, dict[str, Array]] = {}
        for name, site in sites.items():
            if site["type"] != "sample":
                continue
            found[name] = known = _facts(site, length(batch))
            family = None if known.observed else read_as_stored(site["fn"])
            parameters = location(family)
            if parameters is None:
                continue
            for part, value in zip(("loc", "scale"), parameters, strict=True):
                if isinstance(value, Tracer):
                    traced.setdefault(name, {})[part] = _summary(value, jnp)
                else:
                    known.stored[part] = [_summary(value, np)] * 2
        return traced

    compiled = quick_jit(locate)
    traced = jax.eval_shape(compiled, *_point(0), batch)
    if traced:
        for i in range(2):
            for name, parts in compiled(*_point(i), batch).items():
                for part, value in parts.items():
                    found[name].stored.setdefault(part, []).append(np.asarray(value))
    for known in found.values():
        if known.stored:
            _describe(known)
    return found


def _point(i: int) -> tuple[Any, Any]:
    return np.float32(_SHIFTS[i]), np.int32(i)


def _summary(value: ArrayLike, library: Any) -> Any:
    """Return the least, the largest and a weighted sum of the elements."""
    flat = library.asarray(value, library.float32).reshape(-1)
    weights = np.cos(np.arange(flat.size, dtype=np.float32))
    return library.stack([library.min(flat), library.max(flat), library.sum(flat * weights)])


def _describe(known: PriorFacts) -> None:
    """Put the location and the scale into words."""
    (loc, other), (scale, other_scale) = known.stored["loc"], known.stored["scale"]
    known.loc, known.scale = (
        _in_words(loc, other, "location"),
        _in_words(scale, other_scale, "scale"),
    )
    # Columns that were centred in float32 are zero up to rounding.
    small = 1e-6 * max(float(abs(scale[1])), 1e-30)
    if known.loc == "latent location":
        known.location = "latent"
    elif max(abs(loc[0]), abs(loc[1])) <= small:
        known.location, known.loc = "zero", "0"
    else:
        known.location = "fixed"


def _in_words(here: Any, there: Any, part: str) -> str:
    if not np.array_equal(here, there, equal_nan=True):
        return f"latent {part}"
    return f"{float(here[0]):.4g}" if here[0] == here[1] else "varying"


def _facts(site: Mapping[str, Any], rows: int) -> PriorFacts:
    fn, infer = site["fn"], site.get("infer") or {}
    observed = site["is_observed"]
    return PriorFacts(
        shape=tuple(jnp.shape(site["value"])),
        label=_label(fn),
        family=None if observed else _family(fn),
        support=_support(fn),
        layer=infer.get("layer"),
        posterior=infer.get("posterior"),
        observed=observed,
        kind="" if observed else type(read_as_stored(fn)).__name__,
        has_rows=observed and row_axis(log_density_shape(site), rows) is not None,
        is_scaled=not observed and _is_scaled(site["scale"]),
        num_plates=len(site["cond_indep_stack"]),
    )


def _is_scaled(factor: ArrayLike | None) -> bool:
    return factor is not None and (isinstance(factor, Tracer) or bool(np.any(factor != 1)))


def _family(fn: Any) -> str | None:
    found = read_as_stored(fn)
    if found is None:
        return None
    said = facts(found)
    return said.posterior or said.name


def _label(fn: Any) -> str:
    fn = inside(fn)
    if isinstance(fn, dist.MaskedDistribution):
        return f"{_label(fn.base_dist)}, masked"
    name = type(fn).__name__
    if name == "TransformedDistribution":
        return f"{_label(fn.base_dist)}, transformed"
    return name


def _support(fn: Any) -> str:
    support = element_support(fn)
    if support.is_discrete:
        return "discrete"
    if support in (constraints.real, constraints.real_vector):
        return "real"
    bounds = hasattr(support, "lower_bound"), hasattr(support, "upper_bound")
    return "positive" if bounds == (True, False) else "other"


def _moved(site: Mapping[str, Any], shift: Array) -> Array | None:
    """Return a point of a latent site's support that moves with `shift`; None to draw one."""
    if site["type"] != "sample" or site["is_observed"]:
        return None
    fn = site["fn"]
    try:
        transform = biject_to(fn.support)
    except NotImplementedError:
        return None
    if fn.support.is_discrete:
        return given_start(site)
    shape = transform.inverse_shape(shape_of(site))
    return transform(_pattern(shape, shift))


def _pattern(shape: tuple[int, ...], shift: Array) -> Array:
    """Return numbers that differ from element to element."""
    size = int(np.prod(shape))
    steps = 1 + 0.5 * jnp.cos(jnp.arange(size, dtype=float)).reshape(shape)
    return shift.astype(steps.dtype) * steps


class _move_parameters(Messenger):
    """Move the parameters of a program away from where they start, which may be zero."""

    def __init__(self, fn: Callable, shift: Array):
        self._shift = shift
        super().__init__(fn)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "param" or msg["value"] is None:
            return
        constraint = msg["kwargs"].get("constraint", constraints.real)
        real = constraint is constraints.real
        transform = None if real else biject_to(constraint)

        def move(value: Any) -> Any:
            if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
                return value
            free = value if transform is None else transform.inv(value)
            moved = free + _pattern(jnp.shape(free), self._shift).astype(jnp.result_type(free))
            return moved if transform is None else transform(moved)

        msg["value"] = jax.tree.map(move, msg["value"])
