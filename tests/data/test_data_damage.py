"""Files of data that ask for too much, or are damaged: one error with the file's name, before any work."""

import io
import struct
import sys
import zipfile
import zlib

import numpy as np
import pytest
from saved_document import DOCUMENT

from bmrjax import cli
from bmrjax.data import from_arrays, load_dataset
from bmrjax.data.csv_file import read_csv
from bmrjax.data.images import MOST_PIXELS, _image
from bmrjax.data.numpy_file import read_arrays


def header(shape):
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(11 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npz(path, **files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("dtype", ["<f8", "|S0"])
@pytest.mark.parametrize(
    "shape", [(2**40,), (2**20, 2**20), (0, 2**62), (2**32, 0), (-1,), (2**70,), (300,)]
)
def test_a_header_that_the_file_does_not_hold(tmp_path, shape, dtype):
    content = header(shape).replace(b"<f8", dtype.encode())
    path = npz(tmp_path / "a.npz", x=content, y=content)
    with pytest.raises(ValueError, match=r"a\.npz") as caught:
        load_dataset(str(path))
    assert "\n" not in str(caught.value)


def test_an_array_without_rows_is_read(tmp_path):
    path = tmp_path / "a.npz"
    given = {"x": np.zeros((5, 784)), "x_test": np.zeros((0, 784)), "none": np.zeros((5, 0))}
    np.savez(path, **given)
    found = read_arrays(path)
    assert {name: each.shape for name, each in found.items()} == {
        name: each.shape for name, each in given.items()
    }
    npz(path, x=header((2**32, 0)))
    with pytest.raises(ValueError, match=r"a\.npz .*holds no bytes, and 4,194,304 rows times"):
        read_arrays(path)


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


def test_an_underscore_makes_a_name(tmp_path):
    # Python would read 2020_01 as 202001.
    (tmp_path / "t.csv").write_text("month,y\n2020_01,1\n2020_02,3\n")
    assert list(read_csv(tmp_path / "t.csv")["month"]) == ["2020_01", "2020_02"]


def test_a_form_feed_ends_no_line(tmp_path):
    (tmp_path / "t.csv").write_text("word,y\na\x0cb,1\nc\u2028d,2\ne\x85f,3\n")
    found = read_csv(tmp_path / "t.csv")
    assert found.shape == (3, 2)
    assert list(found.index) == [2, 3, 4]


def test_an_apostrophe_stays(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n'tis,1\nrock 'n' roll,2\n'x' and 'y',3\n")
    assert read_csv(tmp_path / "a.csv")["a"].tolist() == ["'tis", "rock 'n' roll", "'x' and 'y'"]


def image(width, height):
    """Return a PNG file that says it is that large; what it holds of a large one is a few pixels."""
    from PIL import Image

    made = io.BytesIO()
    Image.new("L", (min(width, 9), min(height, 9))).save(made, "PNG")
    header = b"IHDR" + struct.pack(">II", width, height) + made.getvalue()[24:29]
    return (
        made.getvalue()[:12] + header + struct.pack(">I", zlib.crc32(header)) + made.getvalue()[33:]
    )


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
        ([SMALL, SMALL], [0, 10**9], "row 1 has the label 1000000000; labels count"),
        ([SMALL, SMALL], [-1, 0], "row 0 has the label -1; labels count"),
        ([SMALL, SMALL], ["a", "b"], "the labels must be whole numbers"),
    ],
)
def test_images_and_labels_that_cannot_be_used(tmp_path, images, labels, message):
    parquet(tmp_path, images, labels)
    with pytest.raises(ValueError, match=rf"train\.parquet.*{message}") as caught:
        load_dataset("mnist", data_root=tmp_path)
    assert "\n" not in str(caught.value)


def file_of(picture, kind):
    made = io.BytesIO()
    picture.save(made, kind)
    return made.getvalue()


def test_an_image_with_a_table_of_colours_has_colours():
    Image = pytest.importorskip("PIL.Image")
    colours = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    indexed = Image.fromarray(colours).quantize(16)
    assert indexed.mode == "P"
    found, _ = _image({"bytes": file_of(indexed, "PNG")}, 0, "f", None)
    np.testing.assert_array_equal(found, colours)


def test_what_is_a_program_is_no_image(monkeypatch):
    pytest.importorskip("PIL.Image")
    from PIL import EpsImagePlugin

    def interpreter(*args, **kwargs):
        raise AssertionError("an interpreter is started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", interpreter)
    text = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(ValueError, match="f: image 0 cannot be decoded .*cannot identify"):
        _image({"bytes": text}, 0, "f", None)


def test_damaged_images_are_one_error():
    Image = pytest.importorskip("PIL.Image")
    rng, refused = np.random.default_rng(7), []
    picture = Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8))
    whole = [file_of(picture, kind) for kind in ("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP")]
    for number in range(900):
        data = bytearray(whole[number % len(whole)])
        for place in rng.integers(0, len(data), rng.integers(1, 5)):
            data[place] = rng.integers(256)
        try:
            _image({"bytes": bytes(data[: rng.integers(1, 2 * len(data))])}, 0, "f", None)
        except ValueError as error:
            refused.append(str(error))
    assert 300 < len(refused) < 900
    assert all(each.startswith("f: image 0 cannot be decoded") for each in refused)


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


@pytest.mark.parametrize("part", ["x", "y"])
def test_a_single_number_is_no_data(tmp_path, part):
    arrays = {"x": np.ones((20, 3)), "y": np.ones(20), part: np.float64(1.0)}
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(ValueError, match=f"d.npz: {part} is a single number"):
        load_dataset(str(tmp_path / "d.npz"))
