"""What the benchmarks share, and the committed tables, which are made from the committed rows."""

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
tables = pytest.importorskip(
    "benchmarks.tables", reason="the benchmarks are not part of this distribution"
)
options, processes, rerun, rows = (
    import_module(f"benchmarks.{name}")
    for name in ("common.options", "common.processes", "rerun", "common.rows")
)


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """Return a folder with the committed rows, and no table."""
    folder = tmp_path_factory.mktemp("results") / "results"
    shutil.copytree(tables.RESULTS, folder, ignore=shutil.ignore_patterns("*.png", "*.md"))
    return folder


@pytest.mark.parametrize("module", tables.TABLES)
def test_the_committed_table_is_made_from_the_committed_rows(copied, module):
    where = tables.TABLES[module]
    found = tables.rows_of(where, copied)
    assert found.rows
    import_module(f"benchmarks.{module}").write_table(found)
    name = found.path.with_suffix(".md").name if "." in where else "table.md"
    made = found.path.with_name(name)
    committed = tables.RESULTS / made.relative_to(copied)
    assert made.read_text() == committed.read_text()


@pytest.mark.parametrize("name", tables.PAGES)
def test_the_pages_hold_the_committed_tables(name):
    page = (ROOT / "docs" / name).read_text()
    names = [line.split()[2] for line in page.splitlines() if line.startswith("<!-- table:")]
    assert names
    assert all((tables.RESULTS / name / "table.md").read_text() in page for name in names)


def test_the_summary_is_made_from_the_committed_rows(copied):
    assert (tables.RESULTS / "summary/table.md").read_text() == tables.summary(copied)
    assert "<!-- table: summary -->" in (ROOT / "docs/results.md").read_text()


def test_rows_are_there_again_after_a_stop(tmp_path):
    first = rows.Rows(tmp_path)
    first.add({"seed": 0, "data": "a"})
    again = rows.Rows(tmp_path)
    assert again.has(seed=0, data="a")
    assert not again.has(seed=0, data="b")
    again.add({"seed": 1, "data": "a"})
    assert [row["seed"] for row in rows.Rows(tmp_path).where(data="a")] == [0, 1]


def test_rows_that_share_their_environment_are_read_like_others(tmp_path):
    rows.Rows(tmp_path, shared=True).add({"seed": 3})
    assert set(json.loads((tmp_path / "results.json").read_text())) == {"environment", "rows"}
    found = rows.Rows(tmp_path)
    assert found.rows == [{"seed": 3}]
    assert "numpyro" in found.environment["versions"]


def test_the_folders_of_a_machine_are_in_no_row(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x.py", "--data-root", str(tmp_path), "--seeds", "2"])
    command = rows.environment()["command"]
    assert command.endswith("--data-root DIR --seeds 2")
    assert str(tmp_path) not in command


def test_means_have_errors_where_there_are_several_values():
    found = [{"a": 1.0}, {"a": 3.0, "b": 2.0}, {"a": None}]
    assert rows.means(found, a=1, b=0, c=2) == ["2.0 ± 1.0", "2", "–"]
    assert rows.table("x | y", [["1", "2"]]) == "| x | y |\n| --- | --- |\n| 1 | 2 |\n"
    assert list(rows.group([{"a": 2}, {"a": 1}, {"a": 2}], "a")) == [2, 1]


def test_quick_runs_do_not_write_beside_committed_rows(monkeypatch):
    def parsed(*words):
        monkeypatch.setattr(sys, "argv", ["x.py", *words])
        return options.parse(options.parser(None, "codec", quick="less", jobs=True))

    assert parsed().out == options.RESULTS / "codec"
    quick = parsed("--quick")
    assert (quick.out, quick.runs) == (Path("runs/codec_quick"), Path("runs/codec_quick"))
    assert parsed("--out", "elsewhere").out == Path("elsewhere")


def test_commands_run_side_by_side_and_a_failure_ends_them(tmp_path):
    done = {}
    words = {n: ["-c", f"print('first'); print('ROW {{\"n\": {n}}}')"] for n in range(3)}
    processes.run_all(words, 2, lambda key, text: done.update({key: processes.printed_row(text)}))
    assert done == {n: {"n": n} for n in range(3)}
    with pytest.raises(SystemExit, match="broken failed with exit code 3"):
        processes.run_all({"broken": ["-c", "raise SystemExit(3)"]}, 1, done.update)
    with pytest.raises(SystemExit, match="printed no row"):
        processes.printed_row("nothing")


def test_a_rerun_says_what_is_the_same_and_how_far_it_is_else(tmp_path):
    old, others = [{"a": {"b": 2.0}}], [{"a": {"b": v}} for v in (1.0, 2.0, 3.0)]
    same = rerun.compared("a.b", old, [{"a": {"b": 2.0}}], others)
    other = rerun.compared("a.b", old, [{"a": {"b": 2.5}}], others)
    assert (other["same"], other["standard_errors"]) == (0, 0.5)
    several = rerun.compared("a.b", others, [*others[:2], {"a": {"b": 4.0}}], others)
    # The error of the difference of two means of three values each.
    assert several["standard_errors"] == pytest.approx((1 / 3) / (2 / 3) ** 0.5)
    found = rows.Rows(tmp_path)
    found.rows = [{"case": "a case", **row} for row in (same, other, several)]
    rerun.write_table(found)
    cells = [line.split(" | ")[-1] for line in (tmp_path / "table.md").read_text().splitlines()]
    assert cells[2] == "to the last digit |"
    assert cells[3] == "+0.5, 0.50 standard errors |"
    assert cells[4] == "+0.33, 0.41 standard errors; 2 of 3 rows the same |"


@pytest.mark.parametrize("name", rerun.CASES)
def test_what_is_run_again_is_committed(name):
    case = rerun.CASES[name]
    found = tables.rows_of(case.where).where(**case.row)
    assert len(found) == {"beckers2024, an ensemble": 10, "federici2017": 3}.get(name, 1)
    assert all(rerun.value(found[0], figure) is not None for figure in case.figures.split())


@pytest.mark.parametrize("name", ["MLP 5x400", "LeNet-300-100", "LeNet-5", "LeNet-5-Caffe"])
def test_networks_have_the_sizes_of_the_papers(name):
    networks = import_module("benchmarks.common.networks")
    sizes = {"MLP 5x400": 957_600, "LeNet-300-100": 266_200, "LeNet-5": 61_470}
    kept, total = networks.weights(networks.build(name, 1))
    assert kept == total == sizes.get(name, 430_500)
    smaller = {"hidden": (5, 4)} if name.startswith(("MLP", "LeNet-3")) else {"hidden": 20}
    assert networks.weights(networks.build(name, **smaller))[1] < total


def test_all_submodels_of_a_regression_are_enumerated_exactly():
    enumeration = import_module("benchmarks.trust.enumeration")
    by_rows = import_module("benchmarks.trust.finished_fits").enumerated
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 6)) + rng.normal(size=(30, 1))
    y = 0.5 * x[:, 1] - 0.4 * x[:, 4] + rng.normal(size=30)
    value = enumeration.log_evidences(x, y, 1.0, 0.8)
    weight = np.exp(value - value.max())
    masks = np.arange(64)[:, None] >> np.arange(6) & 1
    np.testing.assert_allclose(weight @ masks / weight.sum(), by_rows(x, y, 0.8), rtol=1e-12)


def test_enumeration_integrates_the_noise():
    enumeration = import_module("benchmarks.trust.enumeration")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12, 3))
    y = x[:, 0] + 0.7 * rng.normal(size=12)
    noise = np.exp(np.linspace(np.log(0.05), np.log(20), 4000))
    # In ln of the noise: its prior is HalfNormal(1).
    each = [enumeration.log_evidences(x, y, s) + np.log(s) - 0.5 * s**2 for s in noise]
    evidence = np.exp(np.array(each) - np.max(each)).sum(0)
    masks = np.arange(8)[:, None] >> np.arange(3) & 1
    # Even odds: no submodel is preferred before the data.
    found, best = enumeration.enumerate_linear(x, y, expected=1.5)
    np.testing.assert_allclose(found, evidence @ masks / evidence.sum(), atol=1e-4)
    np.testing.assert_array_equal(best, masks[np.argmax(evidence)] == 1)
