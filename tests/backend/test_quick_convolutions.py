"""Convolutions in another form give what XLA's give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax.backend import quick_convolutions
from bmrjax.backend.quick_convolutions import bind_quickly, reads_all_at_once

# Input, kernels, and options of the convolution.
CASES = {
    "one channel": ((2, 1, 9, 8), (4, 1, 3, 2), {}),
    "three channels": ((2, 3, 7, 7), (5, 3, 3, 3), {}),
    "padded, spread": (
        (1, 2, 8, 9),
        (3, 2, 2, 3),
        {"padding": ((2, 1), (0, 3)), "rhs_dilation": (2, 1)},
    ),
    "channels last": ((2, 7, 6, 1), (3, 3, 1, 4), {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}),
    "moved": ((7, 2, 6, 1), (4, 3, 1, 3), {"dimension_numbers": ("HNWC", "OHIW", "CHWN")}),
    "a signal": ((3, 2, 20), (4, 2, 5), {}),
    "all at once": ((2, 6, 4, 5), (3, 6, 4, 5), {}),
    "all at once, moved": (
        (4, 2, 5, 6), (3, 4, 6, 5), {"dimension_numbers": ("HNWC", "OHIW", "CHWN")}
    ),
    "all at once, in steps": ((2, 6, 4, 5), (3, 6, 4, 5), {"window_strides": (2, 3)}),
    "steps": ((2, 1, 9, 8), (4, 1, 3, 2), {"window_strides": (2, 1)}),
    "groups": ((2, 2, 9, 8), (4, 1, 3, 2), {"feature_group_count": 2}),
    "many channels": ((2, 8, 9, 8), (4, 8, 3, 2), {}),
}  # fmt: skip
CHANGED = {name for name in CASES if name not in ("steps", "groups", "many channels")}


def _convolution(case: str):
    x_shape, w_shape, options = CASES[case]
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in (x_shape, w_shape))
    options = {"window_strides": (1,) * (x.ndim - 2), "padding": "VALID"} | options

    def convolve(x, w):
        return jax.lax.conv_general_dilated(x, w, **options)

    eqn = jax.make_jaxpr(convolve)(x, w).jaxpr.eqns[-1]
    return eqn, convolve, x, w


@pytest.mark.parametrize("case", CASES)
def test_gives_the_same_result_and_gradient(case):
    eqn, convolve, x, w = _convolution(case)
    other = lambda x, w: bind_quickly(eqn, (x, w))[0]  # noqa: E731
    expected, pull = jax.vjp(convolve, x, w)
    found, pulled = jax.vjp(other, x, w)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    along = jnp.cos(jnp.arange(found.size, dtype=jnp.float32)).reshape(found.shape)
    for a, b in zip(pulled(along), pull(along), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_changes_only_what_is_slow(case, monkeypatch):
    monkeypatch.setattr(quick_convolutions.jax, "default_backend", lambda: "cpu")
    eqn, _, x, w = _convolution(case)
    jaxpr = jax.make_jaxpr(lambda x, w: bind_quickly(eqn, (x, w))[0])(x, w)
    assert ("conv_general_dilated" not in str(jaxpr)) == (case in CHANGED)
    assert reads_all_at_once(eqn) == case.startswith("all at once")


def test_leaves_few_channels_alone_on_an_accelerator(monkeypatch):
    monkeypatch.setattr(quick_convolutions.jax, "default_backend", lambda: "gpu")
    eqn, _, x, w = _convolution("one channel")
    jaxpr = jax.make_jaxpr(lambda x, w: bind_quickly(eqn, (x, w))[0])(x, w)
    assert "conv_general_dilated" in str(jaxpr)
