"""Data sets of images, from the Hugging Face hub or from Parquet files of its layout."""

import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bmrjax.data.dataset import MOST_CLASSES, Dataset, Split, from_arrays

# Pixels of one image. A file of a few hundred kilobytes may hold an image of a gigabyte.
MOST_PIXELS = 2**24
# Formats of pixels. Of the others that the library reads, some are programs, which it would have run.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


def load_images(name: str, address: str, data_root: str | Path | None) -> Dataset:
    """Load images and labels.

    Args:
        name: Of the data set.
        address: On the hub.
        data_root: Folder with a folder of this name, which holds ``train.parquet`` and ``test.parquet``. By
            default the environment variable ``BMRJAX_DATA``; without either, the hub itself.

    Raises:
        ImportError: Without the optional dependencies.
        FileNotFoundError: If a file is not there.
        ConnectionError: If the hub does not answer.
        ValueError: For files that are damaged, without rows or with other columns, images that cannot be
            decoded, differ in size or are too large; names the file.
    """
    root = data_root or os.environ.get("BMRJAX_DATA")
    try:
        import PIL as PIL
        import pyarrow  # noqa: F401

        if not root:
            import datasets
    except ImportError:
        raise ImportError(
            f"'{name}' is read through pyarrow and pillow, and from the hub through Hugging Face datasets: "
            "pip install 'bmrjax[data]'."
        ) from None
    if root:
        folder = Path(root) / name
        missing = [s for s in ("train", "test") if not (folder / f"{s}.parquet").is_file()]
        if missing:
            raise FileNotFoundError(
                f"{folder} lacks {' and '.join(f'{s}.parquet' for s in missing)}. The data root (--data-root "
                f"or BMRJAX_DATA) must hold a folder '{name}' with train.parquet and test.parquet."
            )
        x_train, y_train = _decode(_parquet(folder / "train.parquet"), folder / "train.parquet")
        x_test, y_test = _decode(_parquet(folder / "test.parquet"), folder / "test.parquet")
    else:
        try:
            found = datasets.load_dataset(address)
        except Exception as error:  # Whatever a network and its libraries raise.
            raise ConnectionError(
                f"'{name}' could not be had from the Hugging Face hub ({error}). Give a data root "
                f"(--data-root or BMRJAX_DATA) that holds a folder '{name}' with train.parquet and "
                "test.parquet."
            ) from error
        x_train, y_train = _decode(found["train"].data.table, f"{name}, train")
        x_test, y_test = _decode(found["test"].data.table, f"{name}, test")
    return from_arrays(x_train, y_train, x_test, y_test, task="classification", name=name)


def _parquet(path: Path) -> Any:
    """Read a Parquet file; its rows are counted first, because none are a bare error of the library."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            if not file.metadata.num_rows:
                raise ValueError("it has no rows")
            return file.read()
    except (ArrowException, ValueError, OSError, TypeError, KeyError, MemoryError) as error:
        text = " ".join(str(error).split())
        raise ValueError(f"{path} cannot be read as Parquet ({text:.200}).") from None


def _decode(table: Any, where: Any) -> Split:
    """Decode the images of an Arrow table, whose column has the bytes of a file in each row."""
    from pyarrow.types import is_struct

    column = next((c for c in ("image", "img") if c in table.column_names), None)
    if column is None or "label" not in table.column_names:
        raise ValueError(
            f"{where} has the columns {table.column_names}; expected 'image' (or 'img') and 'label'."
        )
    kind = table.schema.field(column).type
    if not is_struct(kind) or kind.get_field_index("bytes") < 0:
        raise ValueError(
            f"{where}: the column '{column}' holds no images (it is {str(kind):.200})."
        )
    encoded = table[column].to_pylist()
    images: list[np.ndarray] = []
    size = None
    for i, one in enumerate(encoded):
        image, found = _image(one, i, where, size)
        size = size or found
        images.append(image)
    shapes = {image.shape for image in images}
    if len(shapes) != 1:
        raise ValueError(f"{where}: the images have the shapes {sorted(shapes)}; they must agree.")
    stacked = np.stack(images)
    stacked = stacked[:, None] if stacked.ndim == 3 else np.moveaxis(stacked, -1, 1)
    labels = np.asarray(table["label"])
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{where}: the labels must be whole numbers, and none may be missing.")
    most = max(MOST_CLASSES, len(labels))
    wrong = np.flatnonzero((labels < 0) | (labels >= most))
    if len(wrong):
        raise ValueError(
            f"{where}: row {wrong[0]} has the label {labels[wrong[0]]}; labels count classes from 0, and "
            f"{most:,} is most for {len(labels):,} rows."
        )
    return stacked, labels


def _image(
    one: Any, number: int, where: Any, size: tuple[int, int] | None
) -> tuple[np.ndarray, tuple[int, int]]:
    """Decode an image, if its header says that it has the size of the others; return its size too."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(one["bytes"]), formats=FORMATS)
        found = image.size
        if found[0] * found[1] > MOST_PIXELS:
            raise ValueError(
                f"it has {found[0]:,} by {found[1]:,} pixels, and {MOST_PIXELS:,} is most"
            )
        if size is not None and found != size:
            raise ValueError(
                f"it has {found} pixels, and those before have {size}; they must agree"
            )
        if image.mode in ("P", "PA"):  # its numbers are places in a table of colours
            image = image.convert("RGB" if image.mode == "P" else "RGBA")
        return np.asarray(image), found
    except Exception as error:  # whatever decoders make of damage
        text = " ".join(str(error).split())
        raise ValueError(f"{where}: image {number} cannot be decoded ({text:.200}).") from None
