"""Convolutions as matrix products and sums of shifted images: other forms of XLA's own."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Images = Float[Array, "n channels *space"]
Kernels = Float[Array, "kernels channels *taps"]

# Numbers that stay in the cache.
_NEAR = 2**19


@dataclass(frozen=True)
class Convolution:
    """What an operation ``conv_general_dilated`` computes, with axes in the order of PyTorch.

    Attributes:
        num_images: Images.
        channels: Channels of each; sums go over them.
        kernels: Kernels, and channels of the result.
        image: Height and width of the images, or of as many axes as there are.
        taps: Size of a kernel.
        positions: Size of the results.
        padding: Rows and columns added before and after each axis; negative to take some away.
        strides: Between two positions.
        image_dilation: Between two pixels of an image: 1 for neighbours.
        kernel_dilation: Between two pixels that a kernel reads.
        has_groups: Whether some channels see some kernels only.
        is_float32: Whether it is in float32 throughout.
        precision: Of its products, as in `jax.lax.dot_general`; so is `result`, the type of the sums.
    """

    num_images: int
    channels: int
    kernels: int
    image: tuple[int, ...]
    taps: tuple[int, ...]
    positions: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    strides: tuple[int, ...]
    image_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]
    has_groups: bool
    is_float32: bool
    precision: Any
    result: Any

    @classmethod
    def of(cls, eqn: Any) -> "Convolution":
        """Read an operation of a jaxpr.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> from bmrjax.backend.convolution_forms import Convolution
            >>> x, w = jnp.ones((8, 3, 9, 9)), jnp.ones((4, 3, 2, 2))
            >>> convolve = lambda x, w: jax.lax.conv(x, w, (1, 1), "VALID")
            >>> Convolution.of(jax.make_jaxpr(convolve)(x, w).jaxpr.eqns[0]).positions
            (8, 8)
        """
        params, (x, w), out = eqn.params, [v.aval for v in eqn.invars], eqn.outvars[0].aval
        numbers = params["dimension_numbers"]
        num_images, channels, *image = [x.shape[d] for d in numbers.lhs_spec]
        kernels, _, *taps = [w.shape[d] for d in numbers.rhs_spec]
        return cls(
            num_images,
            channels,
            kernels,
            image=tuple(image),
            taps=tuple(taps),
            positions=tuple(out.shape[d] for d in numbers.out_spec[2:]),
            padding=tuple(params["padding"]),
            strides=tuple(params["window_strides"]),
            image_dilation=tuple(params["lhs_dilation"]),
            kernel_dilation=tuple(params["rhs_dilation"]),
            has_groups=not params["feature_group_count"] == params["batch_group_count"] == 1,
            is_float32=x.dtype == w.dtype == out.dtype == jnp.float32,
            precision=params["precision"],
            result=params["preferred_element_type"],
        )

    @property
    def is_empty(self) -> bool:
        """Whether it reads or computes no number."""
        return 0 in (self.num_images, self.channels, self.kernels, *self.taps, *self.positions)

    @property
    def is_plain(self) -> bool:
        """Whether it is in float32 and without groups."""
        return self.is_float32 and not self.has_groups

    @property
    def columns(self) -> int:
        """Number of products of a pixel with a number of the kernels that may read it."""
        return self.num_images * prod(self.image) * prod(self.taps) * self.kernels

    @property
    def reads_all_at_once(self) -> bool:
        """Whether each kernel is as large as an image, and has one position."""
        return (
            not self.has_groups
            and {*self.image_dilation, *self.kernel_dilation} == {1}
            and all(pair == (0, 0) for pair in self.padding)
            and self.image == self.taps
        )

    @property
    def goes_by_rows(self) -> bool:
        """Whether images have two axes, along which it goes by steps of one without leaving any out."""
        steps = {*self.image_dilation, *self.kernel_dilation, *self.strides}
        return len(self.image) == 2 and steps == {1}

    def under_taps(self, x: Images) -> Iterator[tuple[tuple[int, ...], Images]]:
        """Yield each place in a kernel, and what it reads at all positions: ``[n, channels, *positions]``."""
        x = self.padded(x)
        for place in _places(self.taps):
            axes = zip(place, self.kernel_dilation, self.positions, self.strides, strict=True)
            parts = [slice(i * d, i * d + (n - 1) * step + 1, step) for i, d, n, step in axes]
            yield place, x[(slice(None), slice(None), *parts)]

    def padded(self, x: Images) -> Images:
        """Return the images with what is added around them and between their pixels."""
        space = zip(self.padding, self.image_dilation, strict=True)
        edges = [(0, 0, 0)] * 2 + [(low, high, n - 1) for (low, high), n in space]
        return jax.lax.pad(x, jnp.zeros((), x.dtype), edges)


def as_product(what: Convolution, x: Images, w: Kernels) -> Images:
    """Convolve kernels as large as the images: a matrix product."""
    contracted = tuple(range(1, x.ndim))
    some = {"precision": what.precision, "preferred_element_type": what.result}
    found = jax.lax.dot_general(x, w, ((contracted, contracted), ((), ())), **some)
    return found.reshape(*found.shape, *what.positions)


def shifted_images(what: Convolution, x: Images, w: Kernels) -> Images:
    """Add up shifted images, each times the number of the kernel that reads it there: for few channels."""

    def image(kernel: Array) -> Array:
        terms = (
            kernel[(channel, *place)] * part[:, channel]
            for place, part in what.under_taps(x)
            for channel in range(what.channels)
        )
        return reduce(jnp.add, terms)

    # A loop over the kernels. As one expression, it would be merged with what reads the images, and computed
    # again there for each of their neighbours.
    return jnp.moveaxis(jax.lax.map(image, w), 0, 1)


def summed_columns(what: Convolution, x: Images, w: Kernels) -> Images:
    """Multiply each pixel with all numbers that read it, and add these up where they belong.

    For few kernels: so is the gradient by the input of a convolution that has few channels, or that reads all
    of an image at once.
    """
    columns = jnp.moveaxis(w, (0, 1), (-1, 0))

    def images(x: Images) -> Images:
        found = jnp.tensordot(jnp.moveaxis(x, 1, -1), columns, 1)
        parts = ((place, found[(..., *place, slice(None))]) for place in _places(what.taps))
        return jnp.moveaxis(_added_where_read(what, parts), -1, 1)

    # In a loop over blocks of images: they stay in the cache, and are not computed again by what reads them.
    divides = (k for k in range(2, what.num_images + 1) if what.num_images % k == 0)
    blocks = next((k for k in divides if what.columns <= k * _NEAR), 1)
    found = jax.lax.map(images, x.reshape(blocks, -1, *x.shape[1:]))
    return found.reshape(-1, *found.shape[2:])


def _added_where_read(
    what: Convolution, parts: Iterable[tuple[tuple[int, ...], Array]]
) -> Float[Array, "n *space kernels"]:
    """Add up what each place in the kernels makes of all pixels, at the positions where it reads them."""
    terms = []
    for place, part in parts:
        edges = [(0, 0, 0)]
        for axis, i in enumerate(place):
            apart = what.image_dilation[axis]
            low = what.padding[axis][0] - i * what.kernel_dilation[axis]
            length = (what.image[axis] - 1) * apart + 1
            edges.append((low, what.positions[axis] - low - length, apart - 1))
        terms.append(jax.lax.pad(part, jnp.zeros((), part.dtype), [*edges, (0, 0, 0)]))
    return reduce(jnp.add, terms)


def _places(counts: Sequence[int]) -> Iterable[tuple[int, ...]]:
    return product(*map(range, counts))


def banded_product(what: Convolution, x: Images, w: Kernels) -> Images:
    """Multiply whole rows with whole rows, and add up where the products belong: for gradients by kernels.

    A product of matrices has, for each pair of columns of the two images, the sum over all images and rows. A
    number of the kernel is the sum of those pairs that are as far apart as it says. Pairs further apart than
    the kernel is wide are computed in vain, but in large matrix products, which pays for one channel.
    """
    *_, rows, columns = w.shape
    x = jnp.swapaxes(what.padded(x), 1, 3)  # [channels, column, row, n]
    others = jnp.moveaxis(w, (0, 1), (-1, 1)).reshape(rows * what.channels, -1)
    found = []
    for first in range(what.positions[0]):
        some = x[:, :, first : first + rows].reshape(-1, rows * what.channels)
        pairs = (some @ others).reshape(what.num_images, -1, columns, what.kernels)
        found += [
            jnp.einsum("iccj->ij", pairs[:, apart : apart + columns])
            for apart in range(what.positions[1])
        ]
    found = jnp.stack(found, axis=-1)
    return found.reshape(what.num_images, what.kernels, *what.positions)


FORMS: dict[str, Callable[[Convolution, Images, Kernels], Images]] = {
    "product": as_product,
    "shifted images": shifted_images,
    "summed columns": summed_columns,
    "banded product": banded_product,
}
"""Names of the forms, which all compute the same up to the rounding of sums."""


def possible_forms(what: Convolution, most_terms: int = 80) -> list[str]:
    """Return the names of the forms that a convolution has, with at most so many terms to compile."""
    if not what.is_plain or what.is_empty:
        return []
    taps, positions = prod(what.taps), prod(what.positions)
    return [
        name
        for name, possible in {
            "product": what.reads_all_at_once,
            "shifted images": taps * what.channels <= most_terms,
            "summed columns": taps <= most_terms and {*what.strides} <= {1},
            "banded product": what.goes_by_rows and positions <= most_terms,
        }.items()
        if possible
    ]
