"""Networks as people write them, at small width: what `structure` is tested on."""

from . import attention, images, sequences

__all__ = ["attention", "images", "sequences"]
