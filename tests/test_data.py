import io
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from bmrjax import data

X, Y = np.arange(40.0).reshape(10, 4) % 7, np.arange(10) % 3


def test_digits_are_standardised_and_split():
    found = data.load("digits")
    assert found.train[0].shape == (1438, 1, 8, 8)
    assert found.test[0].shape == (359, 1, 8, 8)
    assert found.num_classes == 10
    np.testing.assert_allclose(found.train[0].mean(), 0.0, atol=1e-5)
    np.testing.assert_allclose(found.train[0].std(), 1.0, rtol=1e-5)
    again = data.load("digits", seed=1)
    assert not np.array_equal(found.train[1], again.train[1])


def test_diabetes_reports_the_unit_of_its_target():
    found = data.load("diabetes")
    assert found.num_classes is None
    assert 60 < found.target_scale[0] < 90  # the raw target has a standard deviation of 77
    np.testing.assert_allclose(found.train[0].std(0), 1.0, rtol=1e-4)
    np.testing.assert_allclose(found.train[1].std(), 1.0, rtol=1e-4)


def write_images(folder, count=6, column="image", shape=(5, 5)):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (count, *shape), dtype=np.uint8)
    for split in ("train", "test"):
        rows = []
        for image in images:
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, format="PNG")
            rows.append({"bytes": buffer.getvalue(), "path": None})
        table = pa.table({column: rows, "label": [i % 2 for i in range(count)]})
        pq.write_table(table, folder / f"{split}.parquet")
    return images


@pytest.mark.parametrize(("name", "shape"), [("mnist", (5, 5)), ("cifar10", (5, 5, 3))])
def test_images_come_from_a_local_folder(tmp_path, monkeypatch, name, shape):
    images = write_images(tmp_path / name, column="img", shape=shape)
    monkeypatch.setenv("BMRJAX_DATA", str(tmp_path))
    found = data.load(name)
    raw = images[:, None] if images.ndim == 3 else np.moveaxis(images, -1, 1)
    mean, scale = raw.mean((0, 2, 3), keepdims=True), raw.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(found.test[0], (raw - mean) / scale, atol=1e-5)
    assert found.test[1].tolist() == [0, 1, 0, 1, 0, 1]


def test_real_images(data_root):
    found = data.load("fashion_mnist", data_root=data_root)
    assert found.train[0].shape == (60000, 1, 28, 28)
    assert np.bincount(found.test[1]).tolist() == [1000] * 10


def test_npz_and_csv(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    found = data.load(str(tmp_path / "a.npz"))
    assert (found.num_classes, len(found.train[0]), len(found.test[0])) == (3, 9, 1)
    np.savez(tmp_path / "b.npz", x_train=X, y_train=Y * 1.0, x_test=X, y_test=Y * 1.0)
    assert data.load(str(tmp_path / "b.npz")).num_classes is None
    for separator in (",", ";", "\t", "  "):
        lines = [separator.join(str(v) for v in row) for row in X]
        (tmp_path / "c.csv").write_text("\n".join(["a b c d".replace(" ", separator), *lines]))
        found = data.from_csv(tmp_path / "c.csv", num_targets=2)
        assert found.train[0].shape == (9, 2)
        assert found.train[1].shape == (9, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "has a header and no rows"),
        ("1,2\n3\n", "line 2: 1 cells, expected 2"),
        ("1,2\n3,x\n", "line 2: could not convert .* Give numbers only"),
        ("1,2\n3,\n", "1 cells are empty, NaN or infinite, first in line 2, column 2"),
        ("1,NA,3\n1,2,3\n", "line 1: could not convert"),
        ("1,2\n\n\n3,x\n", "line 4: could not convert"),
        ("a,b\n\n1,2\n3,\n", "first in line 4, column 2"),
        ("1\n2\n", "has 1 columns, too few for 1 target"),
        ("1,2\n", "has 1 rows; a split needs at least 2"),
    ],
)
def test_bad_tables_are_explained(tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        data.load(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": Y[:-1]}, "x_train has 10 rows and y_train has 9"),
        ({"x_test": X[:, :3]}, r"training inputs have shape \(4,\) a datum"),
        ({"x_train": np.where(X == 3, np.nan, X)}, "x_train has NaN or infinite values in .* rows"),
        ({"y_train": Y - 1}, "y_train has the label -1; labels start at 0"),
        ({"y_test": Y + 5}, "y_test has the label 7, but the training labels end at 2"),
        ({"y_train": Y + 0.5, "task": "classification"}, "labels that are not whole numbers"),
        ({"y_train": np.eye(10, dtype=int)}, "give one label a datum, not one-hot rows"),
        ({"y_train": Y * 0, "y_test": Y * 0}, "every training label is 0"),
        ({"x_train": np.where(X == 3, 1e300, X)}, "NaN or infinite values in 6 of 10 rows"),
        ({"x_train": X[:, :0], "x_test": X[:, :0]}, r"x_train has shape \(10, 0\)"),
        ({"y_train": np.stack([Y, Y], 1) * 1.0, "y_test": Y * 1.0}, r"y_train has shape \(10, 2\)"),
        ({"y_train": Y + 20}, r"whole numbers up to 22 in 10 rows.* \(--task\)"),
        ({"task": "clasification"}, "task must be 'classification' or 'regression'"),
        ({"x_train": X[:0]}, r"x_train has shape \(0, 4\); give one row a datum"),
        ({"x_train": X.astype(str)}, "x_train holds .* values; give numbers"),
    ],
)
def test_bad_arrays_are_explained(change, message):
    arguments = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y, **change}
    with pytest.raises(ValueError, match=message):
        data.from_arrays(**arguments)


def test_many_classes_are_fine_when_they_are_asked_for_or_have_rows():
    many = np.arange(400) % 30
    x = np.zeros((400, 2)) + many[:, None]
    assert data.from_arrays(x, many, x, many).num_classes == 30
    assert data.from_arrays(X, Y + 20, X, Y, task="classification").num_classes == 23
    assert data.from_arrays(X, Y + 20, X, Y, task="regression").num_classes is None


def test_missing_sources_are_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="Unknown data set 'mnits'. Known names: digits"):
        data.load("mnits")
    for name in ("no.csv", "no.npz"):
        with pytest.raises(FileNotFoundError, match=f"There is no file .*{name}"):
            data.load(str(tmp_path / name))
    with pytest.raises(FileNotFoundError, match="lacks train.parquet and test.parquet"):
        data.load("mnist", data_root=tmp_path)
    np.savez(tmp_path / "odd.npz", a=X)
    with pytest.raises(ValueError, match=r"holds the arrays \['a'\]; expected x_train"):
        data.load(str(tmp_path / "odd.npz"))
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(ValueError, match=r"is no \.npz file, or is cut short"):
        data.load(str(tmp_path / "cut.npz"))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install 'bmrjax\[data\]'"):
        data.load("digits")


def test_awkward_columns_keep_their_meaning():
    x = np.stack([np.full(10, 0.1), 1e7 + 0.05 * np.arange(10), np.arange(10) * 1.0], 1)
    y = np.stack([np.arange(10) * 0.01, np.arange(10) * 100.0], 1)
    found = data.from_arrays(x, y, x, y)
    np.testing.assert_allclose(found.train[0].std(0), [0, 1, 1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.train[1].std(0), 1.0, rtol=1e-5)
    raw = found.test[0] * found.input_scale + found.input_mean
    np.testing.assert_allclose(raw, x, rtol=1e-6, atol=1e-6)


def test_images_that_cannot_be_read_are_named(tmp_path):
    write_images(tmp_path / "mnist")
    good = pq.read_table(tmp_path / "mnist" / "test.parquet")
    rows = good.column("image").to_pylist()
    rows[2]["bytes"] = b"no image"
    broken = good.set_column(0, "image", pa.array(rows))
    pq.write_table(broken, tmp_path / "mnist" / "test.parquet")
    with pytest.raises(ValueError, match="mnist: image 2 cannot be decoded"):
        data.load("mnist", data_root=tmp_path)
    pq.write_table(good.rename_columns(["image", "digit"]), tmp_path / "mnist" / "test.parquet")
    with pytest.raises(ValueError, match=r"columns \['image', 'digit'\]; expected .* 'label'"):
        data.load("mnist", data_root=tmp_path)


def test_the_hub_is_asked_only_without_a_data_root_and_its_failure_says_what_to_do(monkeypatch):
    import datasets

    asked = []

    def unreachable(name):
        asked.append(name)
        raise OSError("no route")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    monkeypatch.delenv("BMRJAX_DATA", raising=False)
    with pytest.raises(
        ConnectionError, match=r"no route.*data root .*'cifar10' with train.parquet"
    ):
        data.load("cifar10")
    assert asked == ["uoft-cs/cifar10"]


def test_csv_targets_by_name(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(",".join(map(str, row)) for row in X))
    found = data.load(str(tmp_path / "t.csv"), num_targets=3)
    assert found.train[0].shape == (9, 1)
    assert found.train[1].shape == (9, 3)


def test_statistics_over_more_rows_than_a_slice():
    x = np.random.default_rng(0).normal(3, 5, (9000, 2))
    found = data.from_arrays(x, x[:, 0], x, x[:, 0])
    np.testing.assert_allclose(found.input_mean, x.mean(0, keepdims=True), rtol=1e-10)
    np.testing.assert_allclose(found.input_scale, x.std(0, keepdims=True), rtol=1e-10)
    expected = (x - x.mean(0)) / x.std(0)
    np.testing.assert_allclose(found.test[0], expected, rtol=1e-5, atol=1e-6)
