"""Which parameters a fit takes over from an earlier result."""

from collections.abc import Mapping, Sequence
from typing import Any

from bmrjax.errors import FitWarning, warn


def warn_of_the_rest(params: Mapping[str, Any], start: Mapping[str, Any]) -> None:
    """Name the parameters that begin anew, unless the program only has more than the earlier result."""
    anew, unused = sorted(set(params) - set(start)), sorted(set(start) - set(params))
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
