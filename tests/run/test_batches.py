"""Data as arrays or as an endless source of batches."""

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from bmrjax.infer.arguments import arguments
from bmrjax.infer.placed_batch import placed
from bmrjax.infer.placement import Placement
from bmrjax.run.batches import Batches, check_data


def test_arrays_of_any_kind_go_to_the_device():
    found = check_data((np.arange(3), [1.0, 2.0, 3.0], jnp.ones((3, 2))), "data")
    assert [type(a) for a in found] == [type(jnp.ones(1))] * 3
    assert [a.shape for a in found] == [(3,), (3,), (3, 2)]
    assert list(check_data({"b": np.ones(2), "a": np.zeros(2)}, "data")) == ["b", "a"]


MASKED = np.ma.masked_greater(np.arange(4.0), 2.5)

REFUSED = {
    "masked": ((MASKED,), ValueError, r"data\[0\] is a masked array, with 1 of 4 entries masked"),
    "an array": (
        np.ones(3),
        TypeError,
        r"data: expected a tuple of arrays.*For one array write \(x,\)",
    ),
    "a number": (1.0, TypeError, "got float"),
    "no rows": ((np.ones((0, 3)),), ValueError, r"has shape \(0, 3\)"),
    "words": (({"x": np.array(["a"])}), ValueError, r"data\['x'\] holds <U1 values; give numbers"),
    "objects": ((np.array([None, 1]),), ValueError, "holds object values"),
    "NaN": (
        (np.ones(4), np.array([0.0, 1.0, np.nan, np.inf])),
        ValueError,
        r"data\[1\] has NaN or infinite values in 2 of 4 rows, first in row 2",
    ),
    "too large": ((np.array([1.0, 1e300]),), ValueError, "infinite values in 1 of 2 rows"),
    "too large to count": (
        {"time": np.array([2**40 + 5, 3])},
        ValueError,
        r"data\['time'\] holds whole numbers from 3 to 1099511627781, which wrap around in int32",
    ),
    "too small to count": ((np.array([0, -(2**31) - 1]),), ValueError, "wrap around in int32"),
    "too large without a sign": ((np.array([2**32], np.uint64),), ValueError, "in uint32"),
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize(("data", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_with_the_data_is_said(data, error, message):
    with pytest.raises(error, match=message):
        check_data(data, "data")


def test_whole_numbers_that_fit_are_taken_whatever_their_type():
    limits = np.array([-(2**31), 2**31 - 1])
    (found,) = check_data((limits,), "data")
    np.testing.assert_array_equal(np.asarray(found), limits)


@pytest.mark.parametrize("given", [">f4", ">i2", np.ma.masked_array(np.arange(4.0))])
def test_arrays_of_other_machines_and_without_masked_entries_are_taken(given):
    array = np.arange(4).astype(given) if isinstance(given, str) else given
    _, found = arguments(check_data({"x": array, "scales": array[:3]}, "data", rows=["x"]))
    for name, value in found.items():
        assert value.dtype.isnative
        assert not isinstance(value, np.ma.MaskedArray)
        np.testing.assert_array_equal(value, np.arange(len(value)), err_msg=name)


@pytest.mark.parametrize("batch_axis", ["x", "x and table"])
def test_the_data_may_change_afterwards(batch_axis):
    memory = np.zeros(4 * 24 + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    data = {"x": memory[begin : begin + 96].view(np.float32).reshape(8, 3)}
    if "table" in batch_axis:
        data |= {"table": np.zeros(3, np.float32), "frame": pandas.DataFrame({"a": [0.0, 0.0]})}
    _, found = arguments(check_data(data, "data"))
    for value in data.values():
        value += 1
    assert {
        name: float(np.sum(np.asarray(value))) for name, value in found.items()
    } == dict.fromkeys(data, 0)


def test_whole_numbers_of_a_batch_that_wrap_around_are_refused():
    with pytest.raises(ValueError, match=r"A batch holds whole numbers from 0 to 4294967296"):
        placed((np.array([2**32, 0]),), Placement())


def test_data_that_are_traced_are_refused():
    with pytest.raises(
        TypeError, match=r"data\[0\] has no values: this was called within jax\.jit"
    ):
        jax.jit(lambda x: check_data((x,), "data"))(jnp.ones(3))


def test_arrays_that_are_known_to_have_rows_share_their_length():
    with pytest.raises(ValueError, match=r"\{0: 3, 1: 4\} rows; they must share"):
        check_data((np.ones(3), np.ones(4)), "data", rows=("0", "1"))
    with pytest.raises(ValueError, match=r"\{'x': 3, 'y': 4\} rows"):
        check_data({"x": np.ones(3), "y": np.ones(4)}, "data", rows=("x", "y"))


def numbers(epoch, batches, steps):
    return [int(batch[0][0]) for batch in batches.epoch(epoch, steps)]


def test_a_list_is_read_on_from_epoch_to_epoch():
    batches = Batches([(np.full(2, i),) for i in range(5)], num_data=10)
    assert numbers(0, batches, 3) == [0, 1, 2]
    assert numbers(1, batches, 3) == [3, 4, 0]
    assert numbers(2, batches, 3) == [1, 2, 3]
    assert int(batches.example()[0][0]) == 0


def test_reading_on_does_not_start_again():
    class Counted(list):
        starts = 0

        def __iter__(self):
            self.starts += 1
            return super().__iter__()

    source = Counted((np.full(2, i),) for i in range(6))
    batches = Batches(source, num_data=12)
    for epoch in range(3):
        numbers(epoch, batches, 2)
    assert source.starts == 1


def test_a_list_goes_on_where_a_killed_run_was():
    source = [(np.full(2, i),) for i in range(5)]
    first, resumed = Batches(source, num_data=10), Batches(source, num_data=10)
    for epoch in range(3):
        expected = numbers(epoch, first, 4)
    assert numbers(2, resumed, 4) == expected
    assert numbers(0, first, 4) == [0, 1, 2, 3]  # and a new run begins at the beginning


def test_a_callable_gets_the_epoch_and_starts_again():
    def source(epoch):
        for i in range(2):
            yield (np.full(2, 10 * epoch + i),)

    batches = Batches(source, num_data=4)
    assert numbers(0, batches, 3) == [0, 1, 0]
    assert numbers(2, batches, 1) == [20]
    assert numbers(2, batches, 2) == [20, 21]


@pytest.mark.parametrize("source", [lambda epoch: iter(()), []])
def test_a_source_without_batches_is_an_error(source):
    batches = Batches(source, num_data=4)
    with pytest.raises(ValueError, match="the source gave no batch"):
        batches.example()
    with pytest.raises(ValueError, match="the source gave no batch"):
        list(batches.epoch(0, 2))


def test_an_error_of_the_source_comes_through_and_can_be_tried_again():
    class Flaky:
        broken = True

        def __iter__(self):
            yield (np.zeros(2),)
            if self.broken:
                raise OSError("disk gone")
            yield (np.ones(2),)

    flaky = Flaky()
    batches = Batches(flaky, num_data=4)
    with pytest.raises(OSError, match="disk gone"):
        list(batches.epoch(0, 2))
    flaky.broken = False
    assert numbers(0, batches, 2) == [0, 1]


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="num_data must be at least 1, got 0"):
        Batches([], num_data=0)
    with pytest.raises(TypeError, match="give an iterable or a callable, got int"):
        Batches(3, num_data=1)
    with pytest.raises(TypeError, match="an iterator can be read only once"):
        Batches(iter([]), num_data=1)
    with pytest.raises(ValueError, match="batch.*has NaN"):
        Batches([(np.array([np.nan]),)], num_data=1).example()


def dataset():
    source = [{"x": np.full(2, i, np.float32), "y": np.float32(i)} for i in range(12)]
    return grain.MapDataset.source(source).shuffle(seed=3).batch(4)


def test_grain_data_sets():
    batches = Batches(dataset(), num_data=12)
    assert {k: v.shape for k, v in batches.example().items()} == {"x": (4, 2), "y": (4,)}
    seen = [batch["y"] for batch in batches.epoch(0, 3)]
    assert sorted(np.concatenate(seen)) == list(range(12))
    assert np.concatenate(seen).tolist() != list(range(12))


def test_grain_loaders():
    loader = grain.DataLoader(
        data_source=[{"x": np.full(2, i)} for i in range(12)],
        sampler=grain.samplers.IndexSampler(12, shuffle=True, seed=1, num_epochs=1),
        operations=[grain.transforms.Batch(4)],
    )
    batches = Batches(loader, num_data=12)
    for epoch in range(2):
        seen = np.concatenate([batch["x"][:, 0] for batch in batches.epoch(epoch, 3)])
        assert sorted(seen) == list(range(12))


@pytest.fixture
def parquet(tmp_path):
    """Forty rows in a file with row groups of eight."""
    table = pyarrow.table({"x": np.arange(80.0).reshape(40, 2).tolist(), "y": list(range(40))})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=8)
    rows = grain.experimental.ParquetIterDataset(str(tmp_path / "rows.parquet"))
    arrays = rows.map(lambda row: (np.asarray(row["x"], np.float32), np.int32(row["y"])))
    return grain.experimental.WindowShuffleIterDataset(arrays, window_size=16, seed=0).batch(10)


def test_grain_over_parquet(parquet):
    source = Batches(parquet, num_data=40)
    seen = [batch for epoch in range(2) for batch in source.epoch(epoch, 4)]
    for x, y in seen:
        assert x.shape == (10, 2)
        np.testing.assert_array_equal(x[:, 0], 2 * y)
    for half in (seen[:4], seen[4:]):
        assert sorted(np.concatenate([y for _, y in half])) == list(range(40))
    assert list(seen[0][1]) != list(range(10))
