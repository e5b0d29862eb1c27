"""Runs that several files of tests read."""

import pytest
from callback_runs import Recorder, ensemble, run

from bmrjax.callbacks import (
    CSV,
    JSONLines,
    TensorBoard,
)


@pytest.fixture(scope="session")
def plain():
    return run()


@pytest.fixture(scope="session")
def logged(tmp_path_factory):
    folder, records = tmp_path_factory.mktemp("logged"), Recorder()
    result = run(records, JSONLines(folder / "deep" / "run.jsonl"), CSV(folder / "run.csv"))
    return result, records, folder


@pytest.fixture(scope="session")
def members(tmp_path_factory):
    folder, records = tmp_path_factory.mktemp("members"), Recorder()
    results = ensemble(
        records,
        JSONLines(folder / "run.jsonl"),
        CSV(folder / "run.csv"),
        TensorBoardIfThere(folder),
    )
    return results, records, folder


def TensorBoardIfThere(folder):  # noqa: N802
    try:
        return TensorBoard(folder)
    except ImportError:
        return lambda record: None
