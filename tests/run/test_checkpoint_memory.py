"""Checkpoints are written and read for hours: nothing may be left behind in memory."""

import ctypes
import gc

import jax.numpy as jnp
import numpy as np
import pytest
from campaigns.child import resident

from bmrjax.run.checkpoint import Checkpointer


def round_trip(folder, arrays, document):
    """Write three checkpoints as a run does, and read the last as a resumed run does."""
    first = Checkpointer(folder, interval=0)
    for _ in range(3):
        first.save(arrays, document)
    first.close()
    second = Checkpointer(folder, interval=0)
    found = second.restore(lambda: arrays, lambda _: {"params": {}, "keep": {}}, lambda _: None)
    second.close()
    np.testing.assert_array_equal(found[1]["site_00"], arrays["site_00"])


def containers():
    """Count lists and dicts."""
    gc.collect()
    return sum(type(each) in (list, dict) for each in gc.get_objects())


@pytest.mark.slow
def test_checkpoints_leave_nothing_in_memory(tmp_path):
    arrays = {f"site_{i:02d}": jnp.full((6,), float(i)) for i in range(40)}
    document = {"path": [], "history": [{"epoch": i, "vfe": 1.0} for i in range(20)]}
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
    counts, memory = [], []
    for i in range(11):
        round_trip(tmp_path / "run", arrays, document)
        if i >= 4:
            counts.append(containers())
            trim(0)
            memory.append(resident("VmRSS"))
    # Nine for each array and restored checkpoint were kept when TensorStore read them.
    assert (counts[-1] - counts[0]) / (len(counts) - 1) < 10
    assert np.polyfit(np.arange(len(memory)), memory, 1)[0] < 60e3
