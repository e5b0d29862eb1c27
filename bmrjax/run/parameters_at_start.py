"""What a fit takes over: parameters of an earlier fit, a point estimate, or a network."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Array
from numpyro.distributions import biject_to
from numpyro.infer.autoguide import AutoContinuous, AutoNormal

from bmrjax.errors import FitWarning, warn
from bmrjax.infer.arguments import Data
from bmrjax.infer.curvature import Curvature
from bmrjax.infer.engine import Engine
from bmrjax.infer.init import auto_guides
from bmrjax.infer.state import State
from bmrjax.run.result import Result
from bmrjax.structure.network_arrays import is_equinox, is_nnx


@dataclass(frozen=True)
class GivenStart:
    """What a fit starts from.

    Attributes:
        params: Constrained parameters and mutable sites by name.
        keep: Masks by site.
        network: A network whose weights are the means; None without one.
        latent_sites: Names of the sites that the parameters are of; None if unknown.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    keep: Mapping[str, Array] = field(default_factory=dict)
    network: Any = None
    latent_sites: Collection[str] | None = None

    def adopted(self, engine: Engine, state: State, example: Data, data: Data, key: Array) -> State:
        """Return the first state of a fit that takes this over.

        Args:
            engine: Of the fit.
            state: From its `init`.
            example: One batch of data.
            data: The data on which curvature is measured.
            key: PRNG key.
        """
        if self.params:
            _check_form(engine.constrain(state), self.params)
            if self.latent_sites is not None:
                _check_joint(engine.guide, self.params, self.latent_sites)
            state = engine.adopt(state, points_to_locations(engine.guide, self.params))
        found = engine.constrain(state)
        points = [
            site
            for site in engine.normal_sites(found, example)
            if self.network is not None
            or (site.loc in self.params and site.scale not in self.params)
        ]
        if points:
            curvature = Curvature.of(engine)
            scales = curvature(points, found, self.keep, data, key)
            state = engine.adopt(state, {**found, **scales})
        if self.params:
            warn_of_the_rest(state.params, self.params, [site.scale for site in points])
        return state


def _check_form(params: Mapping[str, Any], start: Mapping[str, Any]) -> None:
    """Refuse parameters of the other form of `priors.Flat`: the same names in other units."""
    here, there = "{}.precision_auto_loc", "{}.weight_precision_auto_loc"
    for own, other in ((here, there), (there, here)):
        end = own.format("")
        for name in params:
            layer = name.removesuffix(end)
            if (
                name.endswith(end)
                and own.format(layer) not in start
                and other.format(layer) in start
            ):
                raise ValueError(
                    f"FitOptions: start is of the other form of priors.Flat: layer '{layer}' holds weights "
                    "with collapsed=True, and weights over their scale without. Start from a network, or fit "
                    "both with the same form."
                )


def _check_joint(guide: Any, params: Mapping[str, Any], latent_sites: Collection[str]) -> None:
    """Refuse the vector of a joint posterior of other sites: it has no names, and may be as long."""
    for each in auto_guides(guide):
        if not isinstance(each, AutoContinuous) or f"{each.prefix}_loc" not in params:
            continue
        others = sorted(set(each._init_locs) - set(latent_sites))
        if others:
            raise ValueError(
                f"FitOptions: start is of the sites {sorted(latent_sites)[:5]}, and the program has others, "
                f"{others[:5]}. The elements of a joint posterior go by the names of its sites: give these "
                "the names that they had, or start from other parameters."
            )


def as_start(start: Any) -> GivenStart | None:
    """Return what a caller's `start` holds.

    Args:
        start: A result, parameters by name, a network, or None.

    Raises:
        TypeError: For anything else.
    """
    if start is None:
        return None
    if isinstance(start, Result):
        return GivenStart(start.params, start.keep, latent_sites=start.latent_sites)
    if isinstance(start, Mapping) and start and all(isinstance(name, str) for name in start):
        return GivenStart(start)
    if is_equinox(start) or is_nnx(start):
        return GivenStart(network=start)
    raise TypeError(
        f"FitOptions: start is a {type(start).__name__}; give a Result, of an earlier run or read by "
        "bmr.load(directory), a dict of parameters by name, or a network."
    )


def points_to_locations(guide: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with point estimates as locations, which are on the real line.

    A guide of points, such as NumPyro's `AutoDelta`, has a parameter of the same name for a site, and no
    scale; its values are in the site's own space.

    Args:
        guide: That takes the parameters over, and has met its model.
        params: Constrained parameters by name.
    """
    if not isinstance(guide, AutoNormal):
        return dict(params)
    trace: Any = guide.prototype_trace
    found = dict(params)
    for name in guide._init_locs:
        loc, scale = (f"{name}_{guide.prefix}_{part}" for part in ("loc", "scale"))
        if loc in params and scale not in params:
            found[loc] = biject_to(trace[name]["fn"].support).inv(params[loc])
    return found


def warn_of_the_rest(
    params: Mapping[str, Any], start: Mapping[str, Any], scales: Sequence[str] = ()
) -> None:
    """Name the parameters that begin anew, unless the program only has more than what it starts from.

    Args:
        params: Parameters of the fit.
        start: Those that it starts from.
        scales: Names of parameters that are set by the curvature.
    """
    anew = sorted(set(params) - set(start) - set(scales))
    unused = sorted(set(start) - set(params))
    if anew and unused:
        warn(
            f"start: {len(params) - len(anew)} of {len(params)} parameters go on from it; {_some(anew)} "
            f"begin anew, and {_some(unused)} of `start` fit nothing here. Parameters are taken over by "
            "name: with the guide and the site names of `start`, all of them go on.",
            FitWarning,
        )


def _some(names: Sequence[str]) -> str:
    """Return the first names of a long list."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(f"'{name}'" for name in names[:4]) + more
