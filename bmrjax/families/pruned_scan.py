"""Removed elements of sites inside NumPyro's `scan`."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax.typing import ArrayLike
from numpyro.primitives import Messenger

from bmrjax.backend.inside_scan import ScanStep, enter


class prune_step(Messenger):
    """Zero removed elements of the latent sites of one step, whether drawn or given.

    Args:
        fn: The step.
        keep: Masks of whole sites by name, True stays; their first axis is that of the steps.
        at: Which step it is.

    Raises:
        ValueError: For a mask of a site inside a scan that runs backwards.
    """

    def __init__(self, fn: Callable, keep: Mapping[str, ArrayLike], at: ScanStep):
        self._keep = keep
        self._at = at
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Go into a scan or a branch within the step, with the part of the masks that is this step's."""
        if msg["type"] != "control_flow":
            return
        own = {name: jnp.asarray(keep) for name, keep in self._keep.items()}
        step, length = self._at.step, self._at.length
        if step is not None:
            own = {name: keep[step] for name, keep in own.items() if keep.shape[:1] == (length,)}
        outer = self._at.reverse
        enter(msg, lambda fn, at: prune_step(fn, own, at._replace(reverse=at.reverse or outer)))

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Zero what is removed before the step goes on with it."""
        name = str(msg.get("name"))
        if name not in self._keep or msg["type"] != "sample" or msg["is_observed"]:
            return
        if self._at.reverse:
            raise ValueError(
                f"prune: site '{name}' is inside a scan with reverse=True, of which NumPyro records steps in "
                "another order than it takes values for them. Reverse the inputs instead, and what the scan "
                "returns."
            )
        keep = jnp.asarray(self._keep[name])
        if self._at.step is not None:
            if keep.shape[:1] != (self._at.length,):
                return  # the whole site is looked at after the scan, and refuses the mask
            keep = keep[self._at.step]
        shape = jnp.shape(msg["value"])
        if keep.size == jnp.size(msg["value"]):
            msg["value"] = jnp.where(keep.reshape(shape), msg["value"], 0)
