import io
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from bmrjax import data
from bmrjax.data.csv_file import read_csv

X, Y = np.arange(40.0).reshape(10, 4) % 7, np.arange(10) % 3


def test_digits_are_standardised_and_split():
    found = data.load_dataset("digits")
    assert found.train[0].shape == (1438, 1, 8, 8)
    assert found.test[0].shape == (359, 1, 8, 8)
    assert found.num_classes == 10
    np.testing.assert_allclose(found.train[0].mean(), 0.0, atol=1e-5)
    np.testing.assert_allclose(found.train[0].std(), 1.0, rtol=1e-5)
    again = data.load_dataset("digits", seed=1)
    assert not np.array_equal(found.train[1], again.train[1])


def test_diabetes_reports_the_unit_of_its_target():
    found = data.load_dataset("diabetes")
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
    found = data.load_dataset(name)
    raw = images[:, None] if images.ndim == 3 else np.moveaxis(images, -1, 1)
    mean, scale = raw.mean((0, 2, 3), keepdims=True), raw.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(found.test[0], (raw - mean) / scale, atol=1e-5)
    assert found.test[1].tolist() == [0, 1, 0, 1, 0, 1]


def test_real_images(data_root):
    found = data.load_dataset("fashion_mnist", data_root=data_root)
    assert found.train[0].shape == (60000, 1, 28, 28)
    assert np.bincount(found.test[1]).tolist() == [1000] * 10


def test_npz_and_csv(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    found = data.load_dataset(str(tmp_path / "a.npz"))
    assert (found.num_classes, len(found.train[0]), len(found.test[0])) == (3, 9, 1)
    np.savez(tmp_path / "b.npz", x_train=X, y_train=Y * 1.0, x_test=X, y_test=Y * 1.0)
    assert data.load_dataset(str(tmp_path / "b.npz")).num_classes is None
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
        (
            "1,NA,3\n2,2,4\n3,5,6\n4,6,8\n",
            "1 cells are empty, NaN or infinite, first in line 1, column 2",
        ),
        ("1,2\n\n\n3,x\n", "line 4: could not convert"),
        ("a,b\n\n1,2\n3,\n", "first in line 4, column 2"),
        ("1\n2\n", "has 1 columns, too few for 1 target"),
        ("1,2\n", "has 1 rows; a split needs at least 2"),
        (
            "a,b\n1,2\n3,2\n",
            "bad.csv: the target 'b' is '2' in every row; there is nothing to predict",
        ),
        ('1,"2\n3,4\n', "bad.csv, line 2: unexpected end of data"),
        ("a,b\n7,1.5\n7,2.5\n7,3.5\n", "no column to predict from: 'a' left out: constant"),
        (
            "a,b\n" + "".join(f"n{i},{i}.5\n" for i in range(30)),
            "'a' is left out: it holds 27 different",
        ),
    ],
)
def test_bad_tables_are_explained(tmp_path, content, message):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        data.load_dataset(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": Y[:-1]}, "x_train has 10 rows and y_train has 9"),
        ({"x_test": X[:, :3]}, r"training inputs have shape \(4,\) per data point"),
        ({"x_train": np.where(X == 3, np.nan, X)}, "x_train has NaN or infinite values in .* rows"),
        ({"y_train": Y - 1}, "y_train has the label -1; labels start at 0"),
        ({"y_test": Y + 5}, "y_test has the label 7, but the training labels end at 2"),
        ({"y_train": Y + 0.5, "task": "classification"}, "labels that are not whole numbers"),
        ({"y_train": np.eye(10, dtype=int)}, "give one label per data point, not one-hot rows"),
        ({"y_train": Y * 0, "y_test": Y * 0}, "every training label is 0"),
        ({"x_train": np.where(X == 3, 1e300, X)}, "NaN or infinite values in 6 of 10 rows"),
        ({"x_train": X[:, :0], "x_test": X[:, :0]}, r"x_train has shape \(10, 0\)"),
        ({"y_train": np.stack([Y, Y], 1) * 1.0, "y_test": Y * 1.0}, r"y_train has shape \(10, 2\)"),
        ({"y_train": Y + 20}, r"whole numbers up to 22 in 10 rows.* \(--task\)"),
        ({"task": "clasification"}, "task must be 'classification' or 'regression'"),
        ({"x_train": X[:0]}, r"x_train has shape \(0, 4\); give one row per data point"),
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
        data.load_dataset("mnits")
    for name in ("no.csv", "no.npz"):
        with pytest.raises(FileNotFoundError, match=f"There is no file .*{name}"):
            data.load_dataset(str(tmp_path / name))
    with pytest.raises(FileNotFoundError, match="lacks train.parquet and test.parquet"):
        data.load_dataset("mnist", data_root=tmp_path)
    np.savez(tmp_path / "odd.npz", a=X)
    with pytest.raises(ValueError, match=r"holds the arrays \['a'\]; expected x_train"):
        data.load_dataset(str(tmp_path / "odd.npz"))
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(ValueError, match=r"cannot be read as .npz or .npy, or is cut short"):
        data.load_dataset(str(tmp_path / "cut.npz"))
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install 'bmrjax\[data\]'"):
        data.load_dataset("digits")


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
    with pytest.raises(ValueError, match="test.parquet: image 2 cannot be decoded"):
        data.load_dataset("mnist", data_root=tmp_path)
    pq.write_table(good.rename_columns(["image", "digit"]), tmp_path / "mnist" / "test.parquet")
    with pytest.raises(ValueError, match=r"columns \['image', 'digit'\]; expected .* 'label'"):
        data.load_dataset("mnist", data_root=tmp_path)


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
        data.load_dataset("cifar10")
    assert asked == ["uoft-cs/cifar10"]


def test_csv_targets_by_name(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(",".join(map(str, row)) for row in X))
    found = data.load_dataset(str(tmp_path / "t.csv"), num_targets=3)
    assert found.train[0].shape == (9, 1)
    assert found.train[1].shape == (9, 3)


def test_statistics_over_more_rows_than_a_slice():
    x = np.random.default_rng(0).normal(3, 5, (9000, 2))
    found = data.from_arrays(x, x[:, 0], x, x[:, 0])
    np.testing.assert_allclose(found.input_mean, x.mean(0, keepdims=True), rtol=1e-10)
    np.testing.assert_allclose(found.input_scale, x.std(0, keepdims=True), rtol=1e-10)
    expected = (x - x.mean(0)) / x.std(0)
    np.testing.assert_allclose(found.test[0], expected, rtol=1e-5, atol=1e-6)


def people(rows=60):
    """A table with a number, categories of two and of three values, a constant and a counter."""
    places = ["Oslo", "Rome", "Paris"]
    return [
        f'"{20 + i}",{places[i % 3]},{"yes" if i % 2 else "no"},7,{0.5 * i}' for i in range(rows)
    ]


HEADER = "age,place,member,unit,score"


def written(tmp_path, lines, name="people.csv"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_text_becomes_named_categories_and_constants_are_left_out(tmp_path):
    found = data.load_dataset(str(written(tmp_path, [HEADER, *people()])))
    assert found.columns == ("age", "place=Oslo", "place=Paris", "place=Rome", "member=yes")
    assert (found.target_names, found.class_names) == (("score",), None)
    assert any("'unit' left out: constant in the training rows" in note for note in found.notes)
    raw = found.train[0] * found.input_scale + found.input_mean
    np.testing.assert_allclose(raw[:, 1:4].sum(1), 1.0, atol=1e-5)
    age = np.round(raw[:, 0]).astype(int) - 20
    np.testing.assert_allclose(raw[:, 3], age % 3 == 1, atol=1e-5)
    np.testing.assert_allclose(raw[:, 4], age % 2, atol=1e-5)
    score = found.train[1] * found.target_scale[0] + found.target_mean[0]
    np.testing.assert_allclose(score, 0.5 * age, atol=1e-4)


@pytest.mark.parametrize(
    ("target", "task", "classes"),
    [
        ("place", None, ("Oslo", "Paris", "Rome")),
        ("member", "classification", ("no", "yes")),
        ("age", None, None),
        ("age", "regression", None),
    ],
)
def test_the_target_is_named_and_its_kind_is_found(tmp_path, target, task, classes):
    path = written(tmp_path, [HEADER, *people()])
    found = data.load_dataset(str(path), target=target, task=task, drop=("unit",))
    assert (found.target_names, found.class_names) == ((target,), classes)
    assert not {target, "unit"} & set(found.columns)
    assert found.num_classes == (len(classes) if classes else None)


def test_few_whole_numbers_are_classes_whatever_they_are(tmp_path):
    lines = [f"{i},{(-1, 1, 5)[i % 3]}" for i in range(60)]
    found = data.load_dataset(str(written(tmp_path, lines)))
    assert found.class_names == ("-1", "1", "5")
    assert sorted(np.unique(found.train[1])) == [0, 1, 2]
    assert "3 different whole numbers, taken as classes; --task regression" in found.notes[0]
    assert data.load_dataset(str(written(tmp_path, lines)), task="regression").num_classes is None
    many = data.load_dataset(str(written(tmp_path, [f"{i},{i % 30}" for i in range(60)])))
    assert many.num_classes is None


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        (None, ("column 1", "column 2=Oslo")),
        ("0,1,2,3,4", ("0", "1=Oslo")),
        (",place,member,unit,score", ("column 1", "place=Oslo")),
        ("a,a,b,c,d", ("a", "a.2=Oslo")),
    ],
)
def test_headers_of_all_kinds(tmp_path, header, columns):
    lines = people() if header is None else [header, *people()]
    found = data.load_dataset(str(written(tmp_path, lines)))
    assert found.columns[:2] == columns
    assert len(found.train[0]) + len(found.test[0]) == 60


def test_a_column_that_counts_the_rows_is_left_out(tmp_path):
    lines = ["," + HEADER, *(f"{i},{line}" for i, line in enumerate(people()))]
    found = data.load_dataset(str(written(tmp_path, lines)))
    assert found.columns[0] == "age"
    assert "it counts the rows" in found.notes[-1]


def test_decimal_commas_between_semicolons(tmp_path):
    found = data.load_dataset(
        str(written(tmp_path, [f"{i},5;x{i % 2};{2 * i},25" for i in range(30)]))
    )
    np.testing.assert_allclose(found.target_mean[0], 29.25, atol=4)
    assert found.columns == ("column 1", "column 2=x1")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1.234", "2.500,5", "17", "", "-1.234.567,25"], [1234, 2500.5, 17, np.nan, -1234567.25]),
        (["1.234", "2.5"], [1.234, 2.5]),
        (["0.125", "1,5"], [0.125, 1.5]),
        ([",5", "1,5e3"], [0.5, 1500]),
    ],
)
def test_points_in_a_column_of_decimal_commas_separate_thousands(tmp_path, cells, expected):
    path = written(tmp_path, ["n;p", *(f"{i};{cell}" for i, cell in enumerate(cells))])
    assert read_csv(path)["p"].tolist() == pytest.approx(expected, nan_ok=True)


def test_commas_between_thousands_are_no_decimal_commas(tmp_path):
    found = read_csv(written(tmp_path, ["n;p", "1;1,234.50", "2;2,500.25"]))
    assert found["p"].tolist() == ["1,234.50", "2,500.25"]  # read as formatted numbers later


def test_missing_cells_are_named_or_filled_in_where_that_is_said(tmp_path):
    path = written(tmp_path, [HEADER, *people(), ",Rome,yes,7,2.0", "NA,,no,7,3.0"])
    with pytest.raises(
        ValueError,
        match=r"people.csv: 2 cells .* first in line 62, column 1: 'age' \(2: line 62, 63",
    ):
        data.load_dataset(str(path))
    found = data.load_dataset(str(path), impute=True)
    assert "place=missing" in found.columns
    assert any("'age': the median, " in note for note in found.notes)
    # A target is never filled in.
    with pytest.raises(ValueError, match="line 62, column 5.*A target is never filled in"):
        data.load_dataset(str(written(tmp_path, [HEADER, *people(), "3,Rome,yes,7,"])), impute=True)


def test_numbers_and_text_in_one_column_need_a_word(tmp_path):
    path = written(tmp_path, [f"{'A1' if i % 2 else 7},{i}.5" for i in range(30)])
    with pytest.raises(ValueError, match="line 2: could not convert 'A1'.*--categories"):
        data.load_dataset(str(path))
    found = data.load_dataset(str(path), categories=("column 1",))
    assert found.columns == ("column 1=A1",)
    with pytest.raises(ValueError, match="has no column 'kind'. It has 'column 1', 'column 2'"):
        data.load_dataset(str(path), categories=("kind",))


def test_every_class_is_on_both_sides_of_a_split():
    labels = np.repeat([0, 1, 2], [90, 9, 1])
    train, test = data.split_rows(100, 0.2, 3, labels=labels)
    assert sorted([*train, *test]) == list(range(100))
    assert np.bincount(labels[test], minlength=3).tolist() == [18, 2, 0]
    plain = data.split_rows(100, 0.2, 3)
    assert plain[1].tolist() == np.random.default_rng(3).permutation(100)[:20].tolist()


def test_a_frame_keeps_its_dtypes():
    import pandas as pd

    frame = pd.DataFrame(
        {
            "kind": pd.Categorical(["x", "y", "z"] * 20),
            "flag": [True, False] * 30,
            "count": pd.array(list(range(60)), dtype="Int64"),
            "won": ["no", "yes"] * 30,
        }
    )
    found = data.from_frame(frame, target="won")
    assert found.columns == ("kind=x", "kind=y", "kind=z", "flag", "count")
    assert found.class_names == ("no", "yes")
    x = found.encoding.encode(frame, name="frame")
    np.testing.assert_array_equal(x[:4, 3], [1, 0, 1, 0])
    # A category that was not there for training is none of the known ones.
    other = frame.assign(kind="w")
    assert found.encoding.encode(other, name="other")[:, :3].sum() == 0
    assert found.encoding.unknown(frame) == ()
    (note,) = found.encoding.unknown(other)
    assert "'kind': 60 cells, such as 'w', are none of the 3 categories" in note
    with pytest.raises(ValueError, match="other lacks 'flag', which the network reads"):
        found.encoding.encode(other.drop(columns="flag"), name="other")
    dates = frame.assign(when=pd.date_range("2020", periods=60))
    with pytest.raises(ValueError, match="column 'when' cannot be read as numbers"):
        data.from_frame(dates, target="won")
    with pytest.raises(ValueError, match="the target 'won' holds text, such as 'no'"):
        data.from_frame(frame, target="won", task="regression")


def test_of_two_categories_another_one_is_said_to_count_as_the_first():
    import pandas as pd

    frame = pd.DataFrame({"kind": ["x", "y"] * 20, "size": range(40), "price": np.arange(40) / 7})
    encoding = data.from_frame(frame, target="price").encoding
    other = frame.assign(kind=["z", None, "x", "y"] * 10)
    (note,) = encoding.unknown(other)
    assert "'kind': 20 cells, such as 'z'" in note
    assert note.endswith("they count as 'x', the value without an input")
    np.testing.assert_array_equal(encoding.encode(other, name="other")[:4, 0], [0, 0, 0, 1])


def test_digits_are_those_of_scikit_learn_without_importing_it():
    found = data.load_dataset("digits", seed=3)
    theirs = pytest.importorskip("sklearn.datasets").load_digits()
    expected = data.dataset.split_arrays(
        theirs["images"][:, None], theirs["target"], 0.2, "classification", 3, "digits"
    )
    for mine, other in zip(
        (*found.train, *found.test), (*expected.train, *expected.test), strict=True
    ):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)
    code = (
        "import sys, bmrjax; bmrjax.data.load_dataset('digits'); sys.exit('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
