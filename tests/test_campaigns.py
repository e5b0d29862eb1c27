"""The campaigns of `make campaigns`, in a short form: a few hundred cases instead of a hundred thousand."""

import shutil

import numpy as np
import pytest
from campaigns import kills
from campaigns.child import in_children
from campaigns.codec import campaign
from campaigns.codec_files import within
from campaigns.soak import WARM, growth


def test_any_file_of_the_codec_is_an_error_or_a_network_within_bounds():
    found = campaign(seed=0, count=160)
    # The bound on time is that of a core at its usual speed. Tests run on slower ones, side by side.
    broken = [
        failure
        for failure in found["failures"]
        if not within(failure["bytes"], failure["milliseconds"] / 3e3, 1e6 * failure["megabytes"])
    ]
    assert broken == []
    assert sum(found["outcomes"].values()) == 160
    # All kinds of files were there, and some got far.
    for kind in ("damaged: refused", "resealed: refused", "resealed: a network"):
        assert found["outcomes"][kind] > 2
    assert found["outcomes"]["grammar: refused"] > 25


@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="needs a C compiler")
@pytest.mark.slow
def test_runs_that_are_killed_go_on_and_end_bit_identically():
    """One by SIGKILL before a write, one within it, and one with the power cut off."""
    found = kills.campaign(seed=0, count=3)
    assert found["failures"] == []
    assert sum(found["outcomes"].values()) == 3
    # At one of the calls that they certainly make.
    for kind in ("killed", "cut", "power"):
        words = [word for word in found["outcomes"] if word.startswith(kind)]
        assert len(words) == 1
        assert "too late" not in words[0]


def explode(case):
    if case == "memory":
        return str(len(bytearray(2**33)))
    if case == "signal":
        import os

        os.kill(os.getpid(), 9)
    if case == "large":
        return str(len(b"a" * 10**8))
    return "fine"


@pytest.mark.slow
def test_what_blows_up_is_noticed():
    costs = dict(in_children(explode, ["fine", "memory", "signal", "large", "last"]))
    assert costs["fine"].outcome == costs["last"].outcome == "fine"
    assert costs["memory"].outcome.startswith("traceback MemoryError")
    assert costs["signal"].outcome == "died of signal 9"
    assert costs["large"].memory > 9e7 > 1e7 > costs["fine"].memory


def test_growth_of_memory_is_a_slope_within_workers():
    # One that is larger than the other does not grow.
    rows = [
        {"pid": pid, "memory": 1e9 * pid + 5000 * max(0, fit - WARM) + 100 * (fit % 2)}
        for pid in (1, 2)
        for fit in range(WARM + 20)
    ]
    slope, error = growth(rows)
    assert abs(slope - 5000) < 3 * error < 50
    assert np.isnan(growth(rows[: WARM + 5])[0])  # too few to tell
