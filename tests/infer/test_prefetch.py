import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax.infer.prefetch import prefetch


def waiting():
    return [t for t in threading.enumerate() if t.name == "bmrjax-prefetch"]


def test_order_is_kept():
    assert list(prefetch(range(50))) == list(range(50))
    assert not waiting()


def test_it_reads_ahead_and_no_further():
    read = []

    def source():
        for i in range(100):
            read.append(i)
            yield i

    ready = prefetch(source(), ahead=3)
    assert next(ready) == 0
    deadline = time.monotonic() + 10
    while len(read) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    # One is given out, three wait, and one is in the thread's hands.
    assert len(read) == 5
    ready.close()
    assert not waiting()


def test_an_error_comes_after_what_was_before_it():
    def source():
        yield from (1, 2)
        raise OSError("the disk is gone")

    ready = prefetch(source())
    assert [next(ready), next(ready)] == [1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(ready)
    assert not waiting()


def test_computing_goes_on_while_the_source_is_slow():
    def slow():
        for i in range(5):
            time.sleep(0.05)
            yield i

    begin = time.perf_counter()
    for _ in prefetch(slow()):
        time.sleep(0.05)
    # Ten sleeps one after the other are half a second.
    assert time.perf_counter() - begin < 0.45


def test_a_source_may_fill_its_array_again():
    def source():
        held = np.zeros(3)
        for i in range(5):
            held[:] = i
            yield {"x": held, "y": jnp.full(2, i), "n": i}

    found = list(prefetch(source()))
    assert [batch["x"].tolist() for batch in found] == [[i] * 3 for i in range(5)]
    assert [(int(batch["y"][0]), batch["n"]) for batch in found] == [(i, i) for i in range(5)]
