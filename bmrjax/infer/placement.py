"""Where the arrays of a run live: on one device, or over a mesh of them."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from bmrjax.backend.noise import one_by_one
from bmrjax.backend.quick_compile import quick_jit

DATA, MODEL = "data", "model"
Tree = TypeVar("Tree")


class Placement:
    """Puts the data's rows along one axis of a mesh, and parameters along the other.

    Over the axis ``data``, each device takes a part of every batch. Over the axis ``model``, each keeps a
    part of every array that is shaped as a parameter: posterior, state of the optimiser, masks. An array
    is parted along the first axis that the devices divide, and kept whole where there is none. The data
    set is on every device, so that a batch is picked without talking.

    Args:
        mesh: A mesh with an axis ``data``, an axis ``model``, or both; None for one device, where nothing
            is moved.

    Raises:
        TypeError: For anything but a mesh.
        ValueError: For an axis of another name.
    """

    def __init__(self, mesh: Mesh | None = None):
        if mesh is not None and not isinstance(mesh, Mesh):
            raise TypeError(
                f"sparsify: mesh is a {type(mesh).__name__}; give a jax.sharding.Mesh, such as "
                "jax.make_mesh((4, 2), ('data', 'model'))."
            )
        if mesh is not None:
            unknown = sorted(set(mesh.axis_names) - {DATA, MODEL})
            if unknown:
                raise ValueError(
                    f"sparsify: the mesh has the axes {unknown}; the axis '{DATA}' parts batches, "
                    f"and the axis '{MODEL}' parameters. Give a mesh with one of these or both."
                )
            # Where an array is parted inside a step is XLA's to say.
            automatic = (AxisType.Auto,) * len(mesh.axis_names)
            mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=automatic)
        self.mesh = mesh

    def size(self, axis: str) -> int:
        """Return the number of devices along an axis; 1 where the mesh has no such axis."""
        return 1 if self.mesh is None else self.mesh.shape.get(axis, 1)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress, of those that share the mesh."""
        return self.mesh is None or jax.process_index() == 0

    def spec(self, shape: tuple[int, ...]) -> PartitionSpec:
        """Return how an array that is shaped as a parameter is parted."""
        devices = self.size(MODEL)
        fits = [i for i, length in enumerate(shape) if length and length % devices == 0]
        # The first axis, because a sum over all elements flattens an array, and a part of the first axis
        # stays a part then.
        return PartitionSpec(*[None] * fits[0], MODEL) if devices > 1 and fits else PartitionSpec()

    def parted(self, tree: Tree) -> Tree:
        """Put arrays that are shaped as parameters where they live."""
        return tree if self.mesh is None else _put(tree, self.places(tree))

    def places(self, tree: Tree) -> Tree:
        """Return where arrays that are shaped as parameters live, on a mesh."""
        assert self.mesh is not None
        mesh = self.mesh
        return jax.tree.map(lambda x: NamedSharding(mesh, self.spec(jnp.shape(x))), tree)

    def made(self, function: Callable[..., Tree], *args: Any) -> Tree:
        """Return ``function(*args)``, compiled; arguments and results are shaped as parameters.

        No device has one of the results whole, unless it lives there so.
        """
        if self.mesh is None:
            return quick_jit(function)(*args)
        args = self.parted(args)
        where = self.places(jax.eval_shape(function, *args))
        return quick_jit(function, out_shardings=where)(*args)

    def constrain_parted(self, tree: Tree) -> Tree:
        """Put arrays that are shaped as parameters where they live, inside a compiled program.

        What comes from no parameter, such as a prior of constants, would be whole on each device.
        """
        if self.size(MODEL) == 1:
            return tree
        return jax.lax.with_sharding_constraint(tree, self.places(tree))

    def everywhere(self, tree: Tree) -> Tree:
        """Put arrays on every device."""
        if self.mesh is None:
            return tree
        return _put(tree, NamedSharding(self.mesh, PartitionSpec()))

    def by_rows(self, batch: Tree) -> Tree:
        """Put a batch where it is computed with: its rows along the axis ``data``."""
        if self.mesh is None:
            return batch
        return _put(batch, NamedSharding(self.mesh, self._rows()))

    def constrain_rows(self, batch: Tree) -> Tree:
        """The same inside a compiled program."""
        if self.size(DATA) == 1:
            return batch
        assert self.mesh is not None
        return jax.lax.with_sharding_constraint(batch, NamedSharding(self.mesh, self._rows()))

    def _rows(self) -> PartitionSpec:
        return PartitionSpec(DATA) if self.size(DATA) > 1 else PartitionSpec()

    def check_batch(self, size: int, name: str) -> None:
        """Raise ValueError for a batch that the devices do not divide."""
        devices = self.size(DATA)
        if size % devices:
            raise ValueError(
                f"sparsify: {name} {size} cannot be divided among the {devices} devices of the mesh's axis "
                f"'{DATA}'; give batch_size, a multiple of {devices} and no more than there are data."
            )

    def fetch(self, tree: Tree) -> Tree:
        """Return arrays whole and on the host, in every process; without a mesh, as they are."""
        if self.mesh is None:
            return tree
        whole = NamedSharding(self.mesh, PartitionSpec())

        def one(x: Any) -> Any:
            if not isinstance(x, jax.Array):
                return x
            # One at a time, so that no device has more than one array whole.
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                words = np.asarray(jax.device_put(jax.random.key_data(x), whole))
                return jax.random.wrap_key_data(jnp.asarray(words), impl=jax.random.key_impl(x))
            return np.asarray(jax.device_put(x, whole))

        return jax.tree.map(one, tree)

    def agreed(self, *, mine: bool) -> bool:
        """Return the first process's answer to what each would answer for itself."""
        if self.mesh is None or jax.process_count() == 1:
            return mine
        return bool(multihost_utils.broadcast_one_to_all(np.asarray(mine)))

    def tracing(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which a program of this placement is traced."""
        return one_by_one() if self.size(MODEL) > 1 else contextlib.nullcontext()


def _put(tree: Tree, where: Any) -> Tree:
    if jax.process_count() == 1:
        # A copy, since what is put may be donated, and what it was made of may not.
        return jax.device_put(tree, where, may_alias=False)
    if isinstance(where, NamedSharding):
        where = jax.tree.map(lambda _: where, tree)
    return jax.tree.map(_put_part, tree, where)


def _put_part(x: Any, where: NamedSharding) -> Array:
    """Put this process's part of an array that every process has whole, or that is parted already."""
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return jax.device_put(x, where)
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = _put_part(jax.random.key_data(x), where)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, where, lambda index: host[index])
