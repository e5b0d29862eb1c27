"""A guide set up on the data of a reduction, and checked against its parameters and its program."""

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np
import numpyro
from numpyro.infer.autoguide import AutoGuide, AutoGuideList

from bmrjax.fitted.whole_plates import with_all_rows
from bmrjax.infer.arguments import Data, arguments
from bmrjax.infer.init import auto_guides, rebuild, set_up
from bmrjax.infer.tracing import is_latent, sites_of


def guide_on_data(guide: Callable, data: Data) -> Callable:
    """Return a guide whose own functions are those of these data.

    An automatic guide keeps the arguments that it was first called with: Laplace's approximation takes its
    Hessian there, and AutoDAIS its gradients. A copy of the guide is set up on the given data, anew if it
    never was; the guide itself stays as it is. Any other guide is returned.

    Args:
        guide: NumPyro guide, without removed elements.
        data: Arguments of the program.
    """
    if not isinstance(guide, AutoGuide):
        return guide
    twin = _copied(guide)
    parts = auto_guides(twin)
    if any(part.prototype_trace is None for part in parts):

        def run(key: Any, *args: Any, **kwargs: Any) -> None:
            numpyro.handlers.seed(twin, key)(*args, **kwargs)

        set_up(parts, run, jax.random.key(0), data)
    for part in parts:
        part.model = with_all_rows(part.model, data)
        rebuild(part, *arguments(data))
    return twin


def _copied(guide: Any) -> Any:
    twin = copy.copy(guide)
    if isinstance(guide, AutoGuideList):
        twin._guides = [_copied(part) for part in guide._guides]
    return twin


def check_guide(
    guide: Callable,
    params: Mapping[str, Any],
    data: Data,
    latent: Mapping[str, tuple[int, ...]],
    discrete: Collection[str],
) -> None:
    """Raise ValueError unless guide, parameters, data and program belong together, as far as shapes tell.

    Args:
        guide: NumPyro guide, as `guide_on_data` returns it.
        params: Its constrained parameters.
        data: Arguments of the program.
        latent: Latent site of the program to shape.
        discrete: Those that are discrete, which a guide may leave to enumeration.
    """
    needed: dict[str, Any] = {}
    drawn: dict[str, tuple[int, ...]] = {}

    def look(data: Data) -> None:
        for name, site in sites_of(guide, *arguments(data)).items():
            if site["type"] == "param":
                needed[name] = _shapes(site["value"])
            elif is_latent(site):
                drawn[name] = np.shape(site["value"])

    try:
        jax.eval_shape(look, data)
    except (TypeError, ValueError, AssertionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"reduce_fit: the guide does not run on `data`: {reason} Give the data "
            "that it was fitted on."
        ) from error
    missing = sorted(set(needed) - set(params))
    if missing:
        raise ValueError(
            f"reduce_fit: params lacks {missing}; it has {sorted(params)}. Give the params of the SVI that "
            "fitted this guide: svi_result.params."
        )
    for name, shapes in needed.items():
        given = _shapes(params[name])
        if given != shapes:
            raise ValueError(
                f"reduce_fit: params has '{name}' of shape {given}, and the guide's is "
                f"{shapes}. These are the parameters of another guide, program or data set."
            )
        if not all(np.isfinite(np.asarray(x)).all() for x in _floats(params[name])):
            raise ValueError(
                f"reduce_fit: params has values of '{name}' that are not finite, so the fit has failed. "
                "Fit it again, with a smaller step size."
            )
    absent = sorted(set(latent) - set(drawn) - set(discrete))
    if absent:
        raise ValueError(
            f"reduce_fit: the guide has no sites {absent}, which the program has; the guide's are "
            f"{sorted(drawn)}. It was made for another program."
        )
    for name, shape in latent.items():
        if name in drawn and drawn[name] != shape:
            raise ValueError(
                f"reduce_fit: '{name}' has shape {drawn[name]} in the guide and {shape} in the program on "
                "these data. Give the arguments that the guide was fitted on."
            )


def _shapes(tree: Any) -> Any:
    return jax.tree.map(np.shape, tree)


def _floats(tree: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(tree) if np.issubdtype(np.asarray(x).dtype, np.floating)]
