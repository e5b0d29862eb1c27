"""Programs that subsample their data, with all of the data."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from numpyro.primitives import Messenger

from bmrjax.fitted.program_function import look_at_sites
from bmrjax.infer.arguments import Data


class AllRows(Messenger):
    """Let plates that subsample have all their rows, so that a log density is not that of a random part."""

    def process_message(self, msg: dict[str, Any]) -> None:
        """Replace the rows that a plate would draw."""
        if msg["type"] == "plate":
            size, _ = msg["args"]
            msg["args"], msg["value"] = (size, size), jnp.arange(size)


def with_all_rows(model: Callable, data: Data) -> Callable:
    """Return a program whose plates do not subsample; the program itself if none does.

    Args:
        model: NumPyro program.
        data: Its arguments.

    Raises:
        ValueError: If the program does not run on these data without, as on one batch of them.
    """

    def subsampled(sites: Any) -> list[str]:
        return [
            f"'{name}' has {site['args'][0]:,} rows and draws {site['args'][1]:,}"
            for name, site in sites.items()
            if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0])
        ]

    found = look_at_sites(subsampled, model, data)
    if not found:
        return model
    whole = AllRows(model)
    try:
        look_at_sites(subsampled, whole, data)
    except (TypeError, ValueError, IndexError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"reduce_fit: a plate of the program subsamples ({'; '.join(found)}), and without that the "
            f"program does not run on `data`: {reason} Evidence is that of all data: give all of them, and a "
            "program that takes any number of rows."
        ) from error
    return whole
