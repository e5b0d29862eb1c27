"""Repeating a step: fused and dispatched loops, compiled once, with the carry donated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax.infer.loop import Loop


def logistic(carry, i, rate):
    return rate * carry * (1.0 - carry) + 1e-3 * i


def convolve(carry, i, kernel):
    def one(image):
        return jax.lax.conv(image, kernel, (1, 1), "SAME") + i

    return jax.jit(one)(carry)  # a convolution inside an inner program is found too


@pytest.mark.parametrize("mode", ["fused", "dispatch"])
def test_it_runs_the_step_n_times(mode):
    loop = Loop(logistic, mode)
    expected = np.linspace(0.1, 0.9, 5, dtype=np.float32)
    for i in range(7):
        expected = np.float32(3.0) * expected * (1 - expected) + np.float32(1e-3) * np.float32(i)
    found = loop(jnp.linspace(0.1, 0.9, 5), 7, jnp.float32(3.0))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(loop(jnp.ones(5), 0, jnp.float32(3.0)), np.ones(5))


@pytest.mark.parametrize("mode", ["fused", "dispatch"])
def test_one_compilation_for_any_length_and_one_more_for_another_shape(mode):
    traces = []

    def counted(carry, i, rate):
        traces.append(1)
        return logistic(carry, i, rate)

    loop = Loop(counted, mode)
    for n in (1, 5, 50):
        loop(jnp.ones(5), n, jnp.float32(n))
    assert (loop.num_compilations, len(traces)) == (1, 1)
    assert loop.compile_seconds > 0
    loop(jnp.ones(6), 3, jnp.float32(1.0))
    assert loop.num_compilations == 2


def test_the_carry_is_donated():
    carry, rate = jnp.ones(5), jnp.float32(3.0)
    Loop(logistic, "fused")(carry, 2, rate)
    assert carry.is_deleted()
    assert not rate.is_deleted()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="only CPU convolutions dislike loops")
def test_auto_dispatches_convolutions_and_fuses_the_rest():
    convolutions, dense = Loop(convolve), Loop(logistic)
    assert convolutions.mode == dense.mode == "auto"
    convolutions(jnp.ones((1, 1, 4, 4)), 2, jnp.ones((1, 1, 3, 3)))
    dense(jnp.ones(5), 2, jnp.float32(1.0))
    assert (convolutions.mode, dense.mode) == ("dispatch", "fused")


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="only a CPU has faster forms")
@pytest.mark.parametrize("mode", ["fused", "dispatch"])
def test_convolutions_take_a_faster_form_where_arrays_are_on_one_device(mode):
    def step(carry, i, kernels):
        del i
        return carry + jnp.mean(jax.lax.conv(carry, kernels, (1, 1), "SAME"))

    images, kernels = jnp.ones((8, 1, 9, 9)), jnp.ones((6, 1, 5, 5))
    here = Loop(step, mode).traced(images, kernels)
    assert "conv_general_dilated" not in str(here.jaxpr)
    mesh = jax.sharding.Mesh(jax.devices()[:1], "data")
    placed = jax.device_put(images, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    assert "conv_general_dilated" in str(Loop(step, mode).traced(placed, kernels).jaxpr)


def test_modes_agree_on_convolutions():
    found = [
        Loop(convolve, mode)(jnp.ones((1, 1, 4, 4)), 3, jnp.full((1, 1, 3, 3), 0.1))
        for mode in ("fused", "dispatch")
    ]
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_unknown_modes_are_refused():
    with pytest.raises(ValueError, match="'auto', 'fused' or 'dispatch', got 'quick'"):
        Loop(logistic, "quick")


@pytest.mark.parametrize("mode", ["fused", "dispatch"])
def test_a_watched_loop_reports_its_steps_and_gives_the_same_bits(mode, monkeypatch):
    monkeypatch.setattr("bmrjax.infer.loop._LONG", 0.0)
    monkeypatch.setattr("bmrjax.infer.loop._PART", 1e-9)
    plain, watched, seen = Loop(logistic, mode), Loop(logistic, mode), []
    expected = plain(jnp.linspace(0.1, 0.9, 5), 20, jnp.float32(3.7))
    watched.watch = seen.append
    found = watched(jnp.linspace(0.1, 0.9, 5), 20, jnp.float32(3.7))
    np.testing.assert_array_equal(found, expected)
    assert seen == list(range(1, 21))
    assert watched.num_compilations == 1


@pytest.mark.parametrize("enough_at", [0, 6, 7])
def test_a_watched_loop_ends_where_another_ends(monkeypatch, enough_at):
    monkeypatch.setattr("bmrjax.infer.loop._LONG", 0.0)
    monkeypatch.setattr("bmrjax.infer.loop._PART", 1e-9)

    def until(carry, i):
        return carry, i >= enough_at

    found = []
    for watch in (None, lambda done: None):
        loop = Loop(lambda carry, i: carry + i, "fused", until=until, patience=3)
        loop.watch = watch
        found.append(int(loop(jnp.int32(0), 20)))
    # It is evaluated before every third step.
    steps = {0: 0, 6: 6, 7: 9}[enough_at]
    assert found == [sum(range(steps))] * 2


def test_short_calls_are_not_split():
    loop, seen = Loop(logistic, "fused"), []
    loop.watch = seen.append
    for _ in range(2):
        loop(jnp.ones(5), 50, jnp.float32(3.0))
    # The first step says how long one takes.
    assert seen == [1, 50, 50]
