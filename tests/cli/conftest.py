"""What tests of the command line share."""

import pytest


@pytest.fixture(autouse=True)
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the plots out of the runs that a test starts itself: drawing costs more than a short fit.

    Fixtures of a module start before this one, so that their runs have the plots.
    """
    monkeypatch.setattr("bmrjax.cli.run_sparsify.write_plots", lambda *_: None)
