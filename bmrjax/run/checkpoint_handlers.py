"""The files of a checkpoint, which Orbax commits together."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from safetensors.numpy import save_file

from bmrjax.files import sync_file

# Paths in the folder of a checkpoint.
ARRAYS = "arrays/arrays.safetensors"
DOCUMENT = "document/metadata"


@dataclass(frozen=True)
class FileArguments:
    """What Orbax is given to write the files of a checkpoint.

    They are read without it: it would start threads for each, and log whatever is damaged.

    Attributes:
        save_arrays: Class of the arguments to write arrays; they are NumPy's, by name.
        save_document: Class of the arguments to write a JSON document.
    """

    save_arrays: type
    save_document: type


# Orbax would take a third of the time of loading the package, and only runs with checkpoints use it.
@functools.cache
def file_arguments() -> FileArguments:
    """Return the arguments of handlers that write arrays as one safetensors file, and a document as JSON.

    Orbax's own handler goes through TensorStore, of which ``Spec.to_json`` keeps what it returns
    for ever: 5 kB per array and restored checkpoint (TensorStore 0.1.86). And the arrays of a checkpoint are
    copies in the memory of one process, for which one file that is checked as a whole is enough.

    Each file is on the disk before Orbax gives the checkpoint its name, so that a loss of power leaves none
    that is complete by its name only.
    """
    import orbax.checkpoint as ocp

    class Arrays(ocp.CheckpointHandler):
        def save(self, directory: Any, args: Any) -> None:
            if jax.process_index() == 0:
                file = directory / Path(ARRAYS).name
                save_file(args.arrays, file)
                sync_file(file)

        def restore(self, directory: Any, args: Any) -> Any:
            raise NotImplementedError  # the interface asks for it; see `Checkpointer.restore`

    @ocp.args.register_with_handler(Arrays, for_save=True, for_restore=True)
    @dataclass
    class SaveArrays(ocp.args.CheckpointArgs):
        arrays: dict[str, Any]

    class Document(ocp.JsonCheckpointHandler):
        def save(self, directory: Any, args: Any) -> None:
            if jax.process_index() == 0:
                file = directory / Path(DOCUMENT).name
                file.write_text(json.dumps(args.document))
                sync_file(file)

        async def async_save(self, directory: Any, args: Any) -> None:
            self.save(directory, args)

    @ocp.args.register_with_handler(Document, for_save=True, for_restore=True)
    @dataclass
    class SaveDocument(ocp.args.CheckpointArgs):
        document: Any

    return FileArguments(SaveArrays, SaveDocument)
