"""Damaged and made-up files of data: a data set, or one error with the file's name."""

import contextlib
import io
import os
import struct
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bmrjax.data import load_dataset
from bmrjax.data.numpy_file import read_arrays
from campaigns.child import in_children
from campaigns.codec_files import damaged
from campaigns.command import run_command, until

KINDS = ("npz", "header", "csv", "parquet")
SECONDS, MEMORY = 10.0, 1e9


def _npz(rng: np.random.Generator) -> bytes:
    made = io.BytesIO()
    rows, kind = int(rng.integers(2, 60)), rng.integers(4)
    y = rng.integers(0, 3, rows) if kind else rng.normal(size=rows)
    if kind == 1:
        y[int(rng.integers(rows))] = 10 ** int(rng.integers(0, 18))
    x = rng.normal(size=(rows, int(rng.integers(1, 5)))) * 10.0 ** rng.integers(-40, 40)
    write = np.savez_compressed if rng.random() < 0.5 else np.savez
    write(made, x=x, y=y)
    return made.getvalue()


def _header(rng: np.random.Generator) -> bytes:
    """Return an archive whose arrays have headers that tell of anything."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in ("x", "y"):
            axes = range(rng.integers(0, 4))
            sizes = [2 ** int(rng.integers(0, 70)) - int(rng.integers(3)) for _ in axes]
            kinds = ["<f8", "<i4", "|O", "<U9", "<c16", "|V7", "<M8[s]", "|b1", "[", "?"]
            kind = str(rng.choice(kinds))
            text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {tuple(sizes)}, }}"
            if rng.random() < 0.1:
                text = "[" * int(10 ** rng.uniform(1, 4))
            head = text.encode() + b"\n"
            data = rng.bytes(int(10 ** rng.uniform(0, 4)))
            archive.writestr(
                f"{name}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data
            )
    return made.getvalue()


def _csv(rng: np.random.Generator) -> bytes:
    mark = str(rng.choice([",", ";", "\t", " "]))
    quote = str(rng.choice(["", '"', "'"]))
    words = ["1.5", "-2", "1e400", "nan", "", "x", "Ж", "0x1", "1,5", "inf", "9" * 400, "\x00", '"']
    rows = [[str(rng.choice(["a", "b", "c"])) + str(i) for i in range(rng.integers(1, 5))]]
    common = rng.random(len(words)) ** 4
    common /= common.sum()
    for _ in range(int(rng.integers(0, 40))):
        width = len(rows[0]) + int(rng.random() < 0.01)
        some = [
            str(rng.normal())
            if rng.random() < 0.7
            else words[int(rng.choice(len(words), p=common))]
            for _ in range(width)
        ]
        rows.append(some)
    return "\n".join(mark.join(f"{quote}{c}{quote}" for c in row) for row in rows).encode()


def _parquet(rng: np.random.Generator) -> bytes:
    import pyarrow as pa
    from PIL import Image
    from pyarrow import parquet

    def image() -> Any:
        if rng.random() < 0.03:
            return None
        made = io.BytesIO()
        other = tuple(int(2 ** rng.integers(0, 14)) for _ in range(2))
        size = (4, 4) if rng.random() < 0.97 else other
        Image.new("L", size).save(made, "PNG")
        data = made.getvalue()
        return {"bytes": damaged(rng, data) if rng.random() < 0.03 else data, "path": None}

    rows = int(rng.integers(0, 12))
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    labels = [int(rng.integers(3)) if rng.random() < 0.98 else 10**9 for _ in range(rows)]
    table = pa.table({"image": pa.array([image() for _ in range(rows)], kind), "label": labels})
    made = io.BytesIO()
    parquet.write_table(table, made)
    return made.getvalue()


def cases(seed: int, count: int) -> Iterator[tuple[str, int, bytes]]:
    """Yield files, each with its kind and its number; a third of them are damaged."""
    make = {"npz": _npz, "header": _header, "csv": _csv, "parquet": _parquet}
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        # Parquet costs ten times as much as the others.
        kind = str(rng.choice(KINDS, p=[0.35, 0.25, 0.3, 0.1]))
        data = make[kind](rng)
        yield kind, number, damaged(rng, data) if rng.random() < 0.35 else data


def read(case: tuple[str, int, bytes]) -> str:
    """Load one file; a ValueError of one line, with the file's name, is an answer beside data."""
    kind, number, data = case
    suffix = "npz" if kind == "header" else kind
    with tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        os.environ["HF_DATASETS_CACHE"] = made
        path = Path(made, f"file.{suffix}")
        path.write_bytes(data)
        task: Any = (None, "classification", "regression")[number % 3]
        try:
            if kind == "parquet":
                for split in ("train", "test"):
                    folder = Path(made, "mnist")
                    folder.mkdir(exist_ok=True)
                    (folder / f"{split}.parquet").write_bytes(data)
                with contextlib.redirect_stderr(io.StringIO()):
                    load_dataset("mnist", data_root=made)
            else:
                if suffix == "npz" and number % 2:
                    with contextlib.suppress(ValueError):
                        read_arrays(path)
                load_dataset(str(path), task=task)
        except ValueError as error:
            message = str(error)
            # Where both splits are read, the name of the data set stands for them.
            named = path.name in message or (kind == "parquet" and "mnist" in message)
            if not named or "\n" in message or len(message) > 1500:
                raise AssertionError(f"not a line with the file's name: {message!r:.300}") from None
            return f"{kind}: refused"
    return f"{kind}: a data set"


def campaign(
    seed: int, count: int, *, minutes: float = 1e6, keep: Path | None = None
) -> dict[str, Any]:
    """Load damaged and made-up files in children with limits.

    Args:
        seed: Of the files.
        count: How many.
        minutes: After which it ends early.
        keep: Folder for the files that broke a promise.
    """
    outcomes: dict[str, int] = {}
    failures: list[dict[str, Any]] = []
    worst = {"seconds": 0.0, "megabytes": 0.0}
    begin = time.time()
    some = until(cases(seed, count), minutes)
    for (kind, number, data), cost in in_children(read, some, repeats=0):
        good = cost.survived and cost.seconds < SECONDS and cost.memory < MEMORY
        word = cost.outcome if good else "failed"
        outcomes[word] = outcomes.get(word, 0) + 1
        if cost.survived:
            worst["seconds"] = max(worst["seconds"], cost.seconds)
            worst["megabytes"] = max(worst["megabytes"], 1e-6 * cost.memory)
        if good:
            continue
        failures.append({"kind": kind, "number": number, "outcome": cost.outcome})
        print(failures[-1], file=sys.stderr, flush=True)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{seed}-{number}.{kind}").write_bytes(data)
    return {
        "campaign": "data", "seed": seed, "files": sum(outcomes.values()),
        "minutes": (time.time() - begin) / 60, "outcomes": dict(sorted(outcomes.items())),
        "worst": worst, "failures": failures,
    }  # fmt: skip


if __name__ == "__main__":
    run_command(campaign, __doc__, files=5000)
