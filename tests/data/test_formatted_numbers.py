"""Tables with numbers that are written for people: currencies, percentages, thousands."""

import numpy as np
import pandas as pd
import pytest

import bmrjax as bmr
from bmrjax.data.csv_file import read_csv
from bmrjax.data.formatted_numbers import formatted_numbers


def _table() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    income = generator.normal(50_000, 9_000, 60).round(2)
    return pd.DataFrame({"income": income, "y": 1e-4 * income + generator.normal(size=60)})


@pytest.mark.parametrize("written", ["{:,.2f}", "${:,.2f}", "{:.2f}%", "{:,.2f} EUR"])
def test_formatted_columns_are_read_as_their_numbers(tmp_path, written):
    plain = _table()
    table = plain.assign(income=[written.format(value) for value in plain["income"]])
    table.to_csv(tmp_path / "table.csv", index=False)
    expected = bmr.data.from_frame(plain)
    for found in (bmr.data.from_frame(table), bmr.data.from_csv(tmp_path / "table.csv")):
        assert found.columns == ("income",)
        np.testing.assert_allclose(found.train[0], expected.train[0], rtol=1e-6)
        assert any("'income': texts such as" in note for note in found.notes)
        # New rows are written the same way.
        rows = found.encoding.encode(read_csv(tmp_path / "table.csv"), name="rows")
        np.testing.assert_allclose(rows[:, 0], plain["income"])


def test_thousands_have_commas_where_the_cells_are_large_enough(tmp_path):
    lines = [f'{i},"{1200.5 * i:,.2f}"' if 1200.5 * i > 999 else f"{i},7.25" for i in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["y,income", *lines]))
    found = bmr.data.from_csv(tmp_path / "table.csv", target="y")
    rows = np.asarray(found.train[0] * found.input_scale + found.input_mean)[:, 0]
    truth = np.where(np.arange(60) > 0, 1200.5 * np.arange(60), 7.25)
    assert np.isclose(rows[:, None], truth, rtol=1e-4).any(1).all()


def test_a_formatted_target_is_an_amount():
    plain = _table()
    table = plain.assign(y=[f"${value:,.4f}" for value in plain["y"]])
    found = bmr.data.from_frame(table, target="y")
    assert found.num_classes is None
    np.testing.assert_allclose(
        found.train[1], bmr.data.from_frame(plain).train[1], rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize(
    "cells",
    [["1,250", "2,500"], ["010", "020"], ["$5", "€6"], ["5%", "6"], ["a", "$6"], ["--5%"], []],
)
def test_what_may_mean_something_else_stays_text(cells):
    assert formatted_numbers(cells) is None


def test_categories_by_name_stay_categories(tmp_path):
    table = _table().assign(band=["$5", "$10"] * 30)[["band", "income", "y"]]
    table.to_csv(tmp_path / "table.csv", index=False)
    assert "band" in bmr.data.from_csv(tmp_path / "table.csv").columns
    found = bmr.data.from_csv(tmp_path / "table.csv", categories=["band"])
    assert found.columns == ("band=$5", "income")


def test_notes_name_row_numbers_and_dates():
    days = pd.date_range("2024-01-01", periods=60).astype(str)
    notes = bmr.data.from_frame(_table().assign(day=days, id=range(7, 67)), target="y").notes
    assert "'id' counts the rows; leave it out by --drop id (drop=) unless it is a time" in notes
    assert any("'day' is left out" in note and "turn them into numbers" in note for note in notes)


def test_row_names_that_pandas_has_read_are_left_out():
    numbered = _table()
    numbered.insert(0, "Unnamed: 0", range(1, 61))
    found = bmr.data.from_frame(numbered, target="y")
    assert found.columns == bmr.data.from_frame(_table(), target="y").columns
    assert any(note.startswith("'Unnamed: 0'") and "left out" in note for note in found.notes)

    asked = bmr.data.from_frame(numbered, target="y", drop=["Unnamed: 0"])
    assert not any("Unnamed: 0" in note for note in asked.notes)
    # Elsewhere, or with gaps, it may be anything.
    gaps = numbered.assign(**{"Unnamed: 0": [*range(59), 100]})
    assert "Unnamed: 0" in bmr.data.from_frame(gaps, target="y").columns


def test_a_column_of_names_some_of_which_are_numbers_is_text(tmp_path):
    drive = (["4"] * 9 + ["f"] * 6 + ["r"] * 5) * 3
    model = ["900" if i % 7 == 0 else f"model {i}" for i in range(60)]
    _table().assign(drive=drive, model=model)[["drive", "model", "income", "y"]].to_csv(
        tmp_path / "cars.csv", index=False
    )

    found = bmr.data.from_csv(tmp_path / "cars.csv", target="y")

    assert found.columns == ("drive=4", "drive=f", "drive=r", "income")
    assert "'drive': 27 of 60 cells are numbers; it is taken as text" in found.notes
    assert any(note.startswith("'model' is left out") for note in found.notes)


def test_formatted_numbers_are_not_said_to_be_text(tmp_path):
    prices = ["1,203.50", "853.20", "2,410.00"] * 20
    _table().assign(price=prices)[["price", "y"]].to_csv(tmp_path / "a.csv", index=False)
    notes = bmr.data.from_csv(tmp_path / "a.csv", target="y").notes
    assert any("'price'" in note and "read as numbers" in note for note in notes)
    assert not any("taken as text" in note for note in notes)


def test_numbers_with_some_text_among_them_are_refused(tmp_path):
    cylinders = ["4"] * 31 + ["rotary"] * 29
    _table().assign(cylinders=cylinders)[["cylinders", "y"]].to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(ValueError, match="'rotary'.*31 of 60 cells are numbers.*--categories"):
        bmr.data.from_csv(tmp_path / "a.csv", target="y")


def test_a_name_of_two_words_is_quoted_for_the_shell():
    notes = bmr.data.from_frame(_table().assign(**{"row id": range(7, 67)}), target="y").notes
    assert any("--drop 'row id' (drop=)" in note for note in notes)


def test_another_encoding_says_what_to_do(tmp_path):
    (tmp_path / "table.csv").write_bytes("stadt,y\nKöln,1\nWien,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match="Save it as UTF-8"):
        bmr.data.from_csv(tmp_path / "table.csv")
