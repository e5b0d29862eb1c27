"""The error for a value that is given for a network, and is something else."""

from typing import Any


def no_network(caller: str, given: Any, also: str = "") -> TypeError:
    """Return the error for anything but a network, with what to give in its place where that is known.

    Args:
        caller: Name of the calling function; may be empty.
        given: The value.
        also: What the function takes besides networks, as ``", a result"``.
    """
    return TypeError(
        f"{caller and caller + ': '}expected an Equinox module, an (Equinox module, State) pair or a Flax "
        f"NNX module{also}, got {type(given).__name__}.{_hint(given)}"
    )


def _hint(given: Any) -> str:
    made_by = {cls.__module__.partition(".")[0] for cls in type(given).__mro__}
    if "bmrjax" in made_by and hasattr(given, "network"):
        return " Give its network: the attribute .network."
    first = given[0] if isinstance(given, tuple) and given else given
    if any(cls.__module__.startswith("flax.linen") for cls in type(first).__mro__):
        return (
            " Flax Linen modules are not supported. An NNX module of one, with its trained weights: "
            "network = nnx.bridge.ToNNX(module, rngs=nnx.Rngs(0)).lazy_init(x); "
            'nnx.update(network, variables["params"]).'
        )
    return ""
