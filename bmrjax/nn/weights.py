"""Weights of a network in a safetensors file."""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bmrjax.backend.on_device import held_on_device
from bmrjax.files import write_atomically
from bmrjax.structure.network_arrays import Parts, is_numeric, parts_of

Network = TypeVar("Network")
Rename = Mapping[str, str | None] | Callable[[str], str | None]
Translate = Callable[[str, np.ndarray], Mapping[str, np.ndarray]]


def save_weights(network: Any, path: str | Path) -> None:
    """Write all arrays of a network to a safetensors file, running statistics and counters among them.

    Args:
        network: An Equinox module, an ``(equinox module, equinox.nn.State)`` pair, or a Flax NNX module.
        path: The file; one that is there is replaced, once the new one is whole.

    Raises:
        TypeError: For anything but a network.
        ValueError: If two arrays have the same path.

    Example:
        >>> import pathlib, tempfile
        >>> from flax import nnx
        >>> from safetensors.numpy import load_file
        >>> from bmrjax import nn
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "layer.safetensors"
        >>> nn.save_weights(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), path)
        >>> {name: array.shape for name, array in load_file(path).items()}
        {'bias': (3,), 'kernel': (2, 3)}
    """
    path = Path(path)
    parts = _parts(network, "save_weights")
    arrays = [np.ascontiguousarray(np.asarray(a)) for a in parts.arrays]
    path.parent.mkdir(parents=True, exist_ok=True)
    named = dict(zip(parts.names, arrays, strict=True))
    write_atomically(path, lambda staged: save_file(named, staged))


def load_weights(
    network: Network,
    path: str | Path | Mapping[str, Any],
    *,
    rename: Rename | None = None,
    translate: Translate | None = None,
    keep: Sequence[str] = (),
    cast: bool = False,
) -> Network:
    """Return a network with the weights of a safetensors file, or of a state dict, in place of its own.

    The file has to fit: every array of the network is in it, with its shape and dtype, and nothing else
    is. Axes of size one do not count, and integers may be of any width that holds them.

    Args:
        network: An Equinox module, an ``(equinox module, equinox.nn.State)`` pair, or a Flax NNX module.
            It is not changed.
        path: The file, or a dict of tensors by name, such as ``model.state_dict()`` of PyTorch. Names are
            those of `structure.named_arrays`, as `save_weights` writes them.
        rename: For files with other names: from a name in the file to the one here, as a table or a
            function. None leaves a tensor out; names that a table lacks stay. `torchvision_resnet` and
            `torchvision_vgg` are two.
        translate: For files with other tensors: from a (renamed) name and its tensor to arrays by
            their names here. `timm_vit` is one, `from_torch` returns one for layers of PyTorch.
        keep: Patterns, as ``"head.*"``, of names here that keep the network's own values; the file may
            have them or not. With `rename` or `translate`, integers (counters of batches) that the file lacks
            are kept too, because other libraries have none.
        cast: Whether floating-point numbers of another precision are converted to the network's.

    Returns:
        The network, of the same kind.

    Raises:
        FileNotFoundError: If there is no such file.
        TypeError: For anything but a network, and for values that are not tensors.
        ValueError: If the file is not a whole safetensors file, or does not fit; the message names the first
            tensor that does not.

    Example:
        >>> import jax, tempfile
        >>> from bmrjax import nn, zoo
        >>> first, second = (zoo.MLP(4, (3,), 2, key=jax.random.key(i)) for i in (0, 1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nn.save_weights(first, f"{folder}/weights.safetensors")
        ...     loaded = nn.load_weights(second, f"{folder}/weights.safetensors")
        >>> bool((loaded.layers[0].weight == first.layers[0].weight).all())
        True
    """
    parts = _parts(network, "load_weights")
    if isinstance(path, Mapping):
        where, tensors = "load_weights", {name: _as_array(name, t) for name, t in path.items()}
    else:
        where, tensors = f"load_weights: {path}", _read(Path(path))
    found, source = _translated(tensors, rename, translate, where)
    foreign = rename is not None or translate is not None
    problems: list[str] = []
    arrays: list[Array] = []
    own = dict(zip(parts.names, parts.arrays, strict=True))
    kept = {name for name in own if any(fnmatch.fnmatchcase(name, p) for p in keep)}
    extra = [name for name in found if name not in own]
    for name, array in own.items():
        counts = foreign and not jnp.issubdtype(array.dtype, jnp.floating)
        if name in kept or (name not in found and counts):
            arrays.append(array)
            continue
        if name not in found:
            hint = f" The file has '{source[extra[0]]}', which the network lacks." if extra else ""
            problems.append(
                f"'{name}' ({array.dtype}{array.shape}) is missing.{hint} Names that differ can be given by "
                "rename=; what the file need not have, by keep=."
            )
            continue
        label = f"'{name}'" if source[name] == name else f"'{name}' (from '{source[name]}')"
        value = _fitted(found[name], array, cast=cast)
        if isinstance(value, str):
            problems.append(f"{label} {value}")
        else:
            arrays.append(value)
    problems += [
        f"'{source[name]}' is not in the network{_as(name, source[name])}; its arrays start with "
        f"{list(own)[:3]}. What is not wanted can be left out by rename=."
        for name in extra
    ]
    if problems:
        more = f" {len(problems) - 1} more do not fit." if len(problems) > 1 else ""
        raise ValueError(f"{where}: {problems[0]}{more}")
    return parts.build(arrays)


def _as(name: str, source: str) -> str:
    return "" if name == source else f" as '{name}'"


def _parts(network: Any, caller: str) -> Parts:
    parts = parts_of(network, is_numeric, caller=caller)
    twice = next((n for n in parts.names if parts.names.count(n) > 1), None)
    if twice is not None:
        raise ValueError(
            f"{caller}: two arrays of the network have the path '{twice}', because keys of a dict have dots "
            "in them; give them other keys."
        )
    return parts


def _as_array(name: Any, tensor: Any) -> np.ndarray:
    """Return an array, or a tensor of PyTorch on any device, as an array of NumPy."""
    if not isinstance(name, str):
        raise TypeError(f"load_weights: names of tensors are texts, got {name!r:.80}.")
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        # NumPy has no bfloat16.
        tensor = (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()
    found = np.asarray(tensor)
    if found.dtype == object:
        raise TypeError(
            f"load_weights: '{name}' is a {type(tensor).__name__}, expected a tensor. Of a checkpoint with "
            "more in it, give the state dict, often checkpoint['model'] or checkpoint['state_dict']."
        )
    return found


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise FileNotFoundError(f"load_weights: {path} is not there.")
    if path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise ValueError(
            f"load_weights: {path} is a file of PyTorch, which only PyTorch reads. Give its tensors: "
            f"load_weights(network, torch.load('{path.name}', weights_only=True), ...), or write them by "
            "safetensors.torch.save_file."
        )
    try:
        return load_file(path)
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise ValueError(
            f"load_weights: {path} is not a safetensors file, or is damaged or cut short ({error})."
        ) from None


def _translated(
    tensors: dict[str, np.ndarray], rename: Rename | None, translate: Translate | None, where: str
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors by the names here, and for each name the one in the file."""
    found: dict[str, np.ndarray] = {}
    source: dict[str, str] = {}
    for name, tensor in tensors.items():
        new = name
        if rename is not None:
            new = rename(name) if callable(rename) else rename.get(name, name)
        if new is None:
            continue
        for own, array in (translate(new, tensor) if translate else {new: tensor}).items():
            if own in found:
                raise ValueError(f"{where}: '{source[own]}' and '{name}' both become '{own}'.")
            found[own], source[own] = np.asarray(array), name
    return found, source


def _fitted(value: np.ndarray, own: Array, *, cast: bool) -> Array | str:
    """Return a tensor as the network has it, or what is wrong with it."""
    strip = [tuple(n for n in shape if n != 1) for shape in (value.shape, own.shape)]
    if strip[0] != strip[1]:
        return f"has shape {value.shape}, expected {own.shape}."
    value = value.reshape(own.shape)
    kinds = jnp.floating, jnp.integer
    floats, integers = ([jnp.issubdtype(d, k) for d in (value.dtype, own.dtype)] for k in kinds)
    if value.dtype == own.dtype or (all(floats) and cast):
        return held_on_device(value.astype(own.dtype, copy=False))
    if all(integers) and np.array_equal(value.astype(own.dtype), value):
        return held_on_device(value.astype(own.dtype, copy=False))
    hint = " Give cast=True to convert it." if all(floats) else ""
    return f"is {value.dtype}, expected {own.dtype}.{hint}"
