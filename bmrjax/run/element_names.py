"""Names of the elements of a site, where its axes stand for columns or classes of a table."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

AxisNames = Sequence[str] | None


def named_axes(
    sites: Mapping[str, tuple[int, ...]], columns: AxisNames, class_names: AxisNames
) -> dict[str, list[AxisNames]]:
    """Return the names along each axis of each site, None along an axis that has none.

    An axis stands for the columns if it is the last one and as long as there are columns, or if it is the
    first one and the last stands for the classes. Of the sites of one network, whose names have a dot,
    only the first matrix can be; a hidden layer may have as many units as there are columns.

    Args:
        sites: Site name to shape.
        columns: Names of the columns of the inputs.
        class_names: Names of the classes of the targets.
    """
    found: dict[str, list[AxisNames]] = {}
    networks: set[str] = set()
    for name, shape in sites.items():
        found[name] = [None] * len(shape)
        network, _, rest = name.partition(".")
        if rest:
            if len(shape) < 2 or network in networks:
                continue
            networks.add(network)
        if not shape:
            continue
        if columns is not None and shape[-1] == len(columns):
            found[name][-1] = columns
        elif class_names is not None and shape[-1] == len(class_names) and not rest:
            found[name][-1] = class_names
            if columns is not None and len(shape) == 2 and shape[0] == len(columns):
                found[name][0] = columns
    return found


def element_names(shape: tuple[int, ...], axes: Sequence[AxisNames]) -> list[str]:
    """Return a name for each element of a site, in the order of the flat array.

    Args:
        shape: Of the site.
        axes: Names along each axis, or None for numbers.

    Example:
        >>> from bmrjax.run.element_names import element_names
        >>> element_names((2, 2), [None, ("age", "height")])
        ['0, age', '0, height', '1, age', '1, height']
    """
    labels: list[Iterable[str]] = [
        map(str, range(size)) if names is None else names
        for size, names in zip(shape, axes, strict=True)
    ]
    return [", ".join(parts) for parts in itertools.product(*labels)]
