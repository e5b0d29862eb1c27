"""The reduction of a finished fit as a tree of data sets, the format of ArviZ."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bmrjax.fitted.layout import ElementLayout


def reduction_tree(
    draws: Mapping[str, Any],
    inclusion_prob: Mapping[str, Any],
    delta_f: Mapping[str, Any],
    layout: ElementLayout,
) -> Any:
    """Return an `xarray.DataTree`; see `FitReduction.to_arviz`.

    Args:
        draws: Site to draws, along a leading axis.
        inclusion_prob: Site to the inclusion probability of each element.
        delta_f: Site to the `delta_f` of each element.
        layout: The elements; sites with one axis have their names as coordinates.
    """
    try:
        import xarray as xr
    except ImportError as error:
        raise ImportError(
            f"to_arviz needs the package xarray ({error}). Install it by pip install 'bmrjax[arviz]'."
        ) from None
    names = {
        site: [e for e, s in zip(layout.element, layout.site, strict=True) if s == site]
        for site in layout.index
    }

    def dataset(variables: Mapping[str, Any], lead: tuple[str, ...], suffix: str = "") -> Any:
        found, coords = {}, {}
        for site, values in variables.items():
            shape = values.shape[len(lead) :]
            dims = [f"{site}_dim_{i}" for i in range(len(shape))]
            found[site + suffix] = ((*lead, *dims), values)
            if len(shape) == 1 and len(names[site]) == shape[0]:
                coords[dims[0]] = names[site]
        for dim, size in zip(lead, next(iter(variables.values())).shape, strict=False):
            coords[dim] = np.arange(size)
        return xr.Dataset(found, coords=coords)

    of_reduction = dataset(inclusion_prob, (), "_inclusion_prob")
    of_reduction = of_reduction.merge(dataset(delta_f, (), "_delta_f"))
    of_chain = {site: values[None] for site, values in draws.items()}
    return xr.DataTree.from_dict(
        {"posterior": dataset(of_chain, ("chain", "draw")), "reduction": of_reduction}
    )
