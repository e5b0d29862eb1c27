"""Files of data that ask for too much, or are damaged: one error with the file's name, before any work."""

import io
import struct
import sys
import zipfile

import numpy as np
import pytest
from saved_document import DOCUMENT

from bmrjax import cli
from bmrjax.data import from_arrays, load_dataset
from bmrjax.data.csv_file import read_csv
from bmrjax.data.images import MOST_PIXELS


def header(shape):
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(11 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npz(path, **files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("shape", [(2**40,), (2**20, 2**20), (0, 2**62), (-1,), (2**70,), (3,)])
def test_a_header_that_the_file_does_not_hold(tmp_path, shape):
    path = npz(tmp_path / "a.npz", x=header(shape), y=header(shape))
    with pytest.raises(ValueError, match=r"a\.npz") as caught:
        load_dataset(str(path))
    assert "\n" not in str(caught.value)


def test_predict_reads_no_more_than_the_file_holds(tmp_path, capsys):

    from bmrjax.cli.documents import write_json

    write_json(tmp_path / "results.json", DOCUMENT)
    (tmp_path / "x.npy").write_bytes(header((2**40, 2)))
    with pytest.raises(SystemExit, match="2"):
        cli.main(["predict", str(tmp_path), "--data", str(tmp_path / "x.npy")])
    assert "x.npy cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("label", [10**9, 2**62, 10_000])
def test_a_label_of_a_thousand_million(label):
    x, y = np.zeros((40, 2)), np.arange(40) % 3
    high = np.where(np.arange(40) == 7, label, y)
    with pytest.raises(ValueError, match=f"^t: y_train has the label {label} in row 7"):
        from_arrays(x, high, x, y, task="classification", name="t")
    assert (
        from_arrays(x, np.minimum(high, 9_999), x, y, task="classification").num_classes == 10_000
    )


@pytest.mark.parametrize("mark", ['"', "'", '"""'])
def test_quoted_numbers_are_numbers(tmp_path, mark):
    path = tmp_path / "a.csv"
    rows = [f"{mark}{i}.5{mark},{mark}{i * i}{mark}" for i in range(4)]
    path.write_text(f"{mark}a{mark},{mark}b{mark}\n" + "\n".join(rows))
    frame = read_csv(path)
    assert list(frame.columns) == ["a", "b"]
    assert frame["a"].tolist() == [0.5, 1.5, 2.5, 3.5]


def test_an_apostrophe_stays(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n'tis,1\nrock 'n' roll,2\n'x' and 'y',3\n")
    assert read_csv(tmp_path / "a.csv")["a"].tolist() == ["'tis", "rock 'n' roll", "'x' and 'y'"]


def image(width, height):
    from PIL import Image

    made = io.BytesIO()
    Image.new("L", (width, height)).save(made, "PNG")
    return made.getvalue()


def parquet(folder, images, labels):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    rows = [None if data is None else {"bytes": data, "path": None} for data in images]
    table = pyarrow.table({"image": pyarrow.array(rows, kind), "label": pyarrow.array(labels)})
    (folder / "mnist").mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        parquet.write_table(table, folder / "mnist" / f"{split}.parquet")


SMALL = image(4, 4)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ([], np.zeros(0, np.int64), "it has no rows"),
        ([SMALL, image(20_000, 20_000)], [0, 1], "image 1 cannot be decoded .*400000000 pixels"),
        (
            [image(4097, 4096)],
            [0],
            f"image 0 .* 4,097 by 4,096 pixels, and {MOST_PIXELS:,} is most",
        ),
        ([SMALL, image(5, 4)], [0, 1], r"image 1 .* has \(5, 4\) pixels"),
        ([SMALL, None], [0, 1], "image 1 cannot be decoded"),
        ([SMALL, SMALL[:40]], [0, 1], "image 1 cannot be decoded"),
        ([SMALL, SMALL], [0, None], "the labels must be whole numbers"),
        ([SMALL, SMALL], ["a", "b"], "the labels must be whole numbers"),
    ],
)
def test_images_and_labels_that_cannot_be_used(tmp_path, images, labels, message):
    parquet(tmp_path, images, labels)
    with pytest.raises(ValueError, match=rf"train\.parquet.*{message}") as caught:
        load_dataset("mnist", data_root=tmp_path)
    assert "\n" not in str(caught.value)


def test_files_at_hand_are_read_without_hugging_face_datasets(tmp_path, monkeypatch):
    parquet(tmp_path, [SMALL, image(4, 4)], [1, 0])
    monkeypatch.setitem(sys.modules, "datasets", None)
    found = load_dataset("mnist", data_root=tmp_path)
    assert len(found.train[0]) == 2
    np.testing.assert_array_equal(found.test[1], [1, 0])
    monkeypatch.delenv("BMRJAX_DATA", raising=False)
    with pytest.raises(ImportError, match=r"from the hub through Hugging Face datasets"):
        load_dataset("mnist")


def test_a_damaged_parquet_file_is_named(tmp_path):
    parquet(tmp_path, [SMALL, SMALL], [0, 1])
    path = tmp_path / "mnist" / "test.parquet"
    path.write_bytes(path.read_bytes()[:-9] + b"123456789")
    with pytest.raises(ValueError, match=r"test\.parquet cannot be read as Parquet"):
        load_dataset("mnist", data_root=tmp_path)
