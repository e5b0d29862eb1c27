"""The arrays of a checkpoint, as a file that Orbax commits together with the rest."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
from safetensors.numpy import load_file, save_file

FILE = "arrays.safetensors"


@dataclass(frozen=True)
class ArrayArguments:
    """What Orbax is given to write and read arrays.

    Attributes:
        save: Class of the arguments to write; its attribute `arrays` are NumPy's, by name.
        restore: Class of the arguments to read.
    """

    save: type
    restore: type


# Orbax would take a third of the time of loading the package, and only runs with checkpoints use it.
@functools.cache
def array_arguments() -> ArrayArguments:
    """Return the arguments of a handler that writes arrays as one safetensors file.

    Orbax's own handler goes through TensorStore, of which ``Spec.to_json`` keeps what it returns
    for ever: 5 kB per array and restored checkpoint (TensorStore 0.1.86). And the arrays of a checkpoint are
    copies in the memory of one process, for which one file that is checked as a whole is enough.
    """
    import orbax.checkpoint as ocp

    class Handler(ocp.CheckpointHandler):
        def save(self, directory: Any, args: Any) -> None:
            if jax.process_index() == 0:
                save_file(args.arrays, directory / FILE)

        def restore(self, directory: Any, args: Any) -> Any:
            del args
            return load_file(directory / FILE)

    @ocp.args.register_with_handler(Handler, for_save=True)
    @dataclass
    class Save(ocp.args.CheckpointArgs):
        arrays: dict[str, Any]

    @ocp.args.register_with_handler(Handler, for_restore=True)
    @dataclass
    class Restore(ocp.args.CheckpointArgs):
        pass

    return ArrayArguments(Save, Restore)
