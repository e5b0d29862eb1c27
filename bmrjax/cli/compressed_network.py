"""Predictions of the files that `bmrjax compress` writes."""

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.cli.network_cost import MOST_AXES_RUN, affordable_rows, check_modules
from bmrjax.cli.run_documents import fits
from bmrjax.codec import CodecError
from bmrjax.codec.network import open_bytes
from bmrjax.codec.network_files import read_file
from bmrjax.structure.network_arrays import equinox_batched, is_equinox, nnx_batched

# What goes with a network: how its inputs were standardised, and what its outputs mean.
STORED = ("input_shape", "input_mean", "input_scale", "num_classes", "target_mean", "target_scale")


class CompressedNetwork:
    """A network from a file, with what is stored beside it.

    Args:
        path: Of a file that `bmrjax compress` wrote.

    Raises:
        CodecError: If it is none, or damaged.
    """

    def __init__(self, path: Path):
        data = read_file(path)
        opened = open_bytes(data)
        check_modules(opened.modules, len(data))
        self.network: Any = opened.network
        self.about: dict[str, Any] = _checked(opened.extra, path)
        self._path = path

    def predict(self, x: Any) -> Any:
        """Return class probabilities, or outputs in standard units, for standardised inputs."""
        batched = equinox_batched if is_equinox(self.network) else nnx_batched
        try:
            with warnings.catch_warnings():  # about the network's own code
                warnings.simplefilter("ignore")
                function = batched(self.network)
                rows = affordable_rows(function, x.shape[1:], x.dtype)
                run = jax.jit(function)
                parts = [run(jnp.asarray(x[i : i + rows])) for i in range(0, len(x), rows)]
                outputs = np.concatenate(parts)
            self._check_outputs(outputs, len(x))
        except Exception as error:  # of the network's own code, whatever it raises
            text = " ".join(str(error).split())
            raise CodecError(f"the network in {self._path} does not run: {text:.500}") from None
        if self.about["num_classes"] is not None:
            return np.asarray(jax.nn.softmax(jnp.asarray(outputs)))
        # One target is a vector, as the run has it.
        return outputs[:, 0] if outputs.shape[1:] == (1,) else outputs

    def _check_outputs(self, outputs: Any, rows: int) -> None:
        classes = self.about["num_classes"]
        if len(outputs) != rows or not np.issubdtype(outputs.dtype, np.floating):
            raise CodecError(f"its outputs are {outputs.dtype}{outputs.shape} for {rows} rows.")
        if classes is not None and outputs.shape[1:] != (classes,):
            raise CodecError(f"its outputs are {outputs.shape[1:]} for {classes} classes.")
        for part in () if classes is not None else ("mean", "scale"):
            value = self.about[f"target_{part}"]
            if not fits(value, (1, *outputs.shape[1:]), positive=part == "scale"):
                raise CodecError(
                    f"the {part} of its targets does not fit outputs {outputs.shape[1:]}."
                )


def _checked(extra: Any, path: Path) -> dict[str, Any]:
    """Return what `bmrjax compress` stores beside a network, if it is that; nothing else of it is used."""
    about = {name: extra.get(name) for name in STORED} if isinstance(extra, dict) else {}
    shape: Any = about.get("input_shape")
    classes = about.get("num_classes")
    good = isinstance(shape, list) and 1 <= len(shape) <= MOST_AXES_RUN
    good = good and all(type(n) is int and n > 0 for n in shape)
    good = good and (classes is None or (type(classes) is int and classes > 0))
    good = good and fits(about["input_mean"], (1, *shape), positive=False)
    good = good and fits(about["input_scale"], (1, *shape), positive=True)
    if not good or (classes is None and None in (about["target_mean"], about["target_scale"])):
        raise CodecError(
            f"{path} holds a network without its data's shape and units, which bmrjax compress writes. In "
            "Python, codec.load_network reads it."
        )
    seed = extra.get("split_seed", 0)
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise CodecError(f"{path}: the seed of its data's split is no whole number from 0.")
    return about | {"split_seed": seed}
