"""Each form of a convolution gives what XLA's gives, on convolutions and on their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax.backend.convolution_forms import FORMS, Convolution, possible_forms
from bmrjax.backend.quick_convolutions import form_of, in_form, with_quick_convolutions

# Images, kernels, and options.
LAYERS = {
    "plain": ((4, 1, 9, 8), (5, 1, 3, 2), {}),
    "padded": ((3, 2, 7, 7), (4, 2, 3, 3), {"padding": ((1, 1), (2, 0))}),
    "in steps": ((3, 2, 9, 9), (4, 2, 3, 3), {"window_strides": (2, 2), "padding": "SAME"}),
    "spread": ((2, 3, 9, 9), (4, 3, 2, 2), {"rhs_dilation": (2, 3)}),
    "all at once": ((6, 3, 4, 5), (7, 3, 4, 5), {}),
    "channels last": (
        (4, 8, 7, 2), (3, 3, 2, 5), {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    ),
    "a signal": ((4, 2, 20), (4, 2, 5), {"padding": ((2, 3),)}),
    "a volume": ((2, 2, 5, 6, 4), (3, 2, 2, 3, 2), {}),
}  # fmt: skip


def _layer(name):
    x_shape, w_shape, options = LAYERS[name]
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in (x_shape, w_shape))
    options = {"window_strides": (1,) * (x.ndim - 2), "padding": "VALID"} | options
    return lambda x, w: jax.lax.conv_general_dilated(x, w, **options), x, w


def _operations(name):
    """Return the convolution of a layer, and those of its gradients."""
    convolve, x, w = _layer(name)
    y = jax.eval_shape(convolve, x, w)
    functions = [
        lambda x, w, y: convolve(x, w),
        lambda x, w, y: jax.vjp(lambda x: convolve(x, w), x)[1](y),
        lambda x, w, y: jax.vjp(lambda w: convolve(x, w), w)[1](y),
    ]
    for function in functions:
        jaxpr = jax.make_jaxpr(function)(x, w, y).jaxpr
        yield [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "conv_general_dilated"][-1]


@pytest.mark.parametrize("name", LAYERS)
def test_all_forms_agree(name):
    rng = np.random.default_rng(1)
    used = set()
    for eqn in _operations(name):
        args = [jnp.asarray(rng.normal(size=v.aval.shape), jnp.float32) for v in eqn.invars]
        expected = eqn.primitive.bind(*args, **eqn.params)
        for form in possible_forms(Convolution.of(eqn)):
            found = jax.jit(lambda x, w, form=form, eqn=eqn: in_form(form, eqn, x, w))(*args)
            np.testing.assert_allclose(found, expected, atol=2e-5, err_msg=form)
            used.add(form)
    assert used


def test_every_form_is_tested():
    operations = [eqn for name in LAYERS for eqn in _operations(name)]
    assert {form for eqn in operations for form in possible_forms(Convolution.of(eqn))} == {*FORMS}


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((4, 2, 6, 6), (4, 1, 3, 3), {"feature_group_count": 2}),
        ((4, 2, 6, 6), (2, 2, 3, 3), {"batch_group_count": 2}),
        ((0, 2, 6, 6), (2, 2, 3, 3), {}),
    ],
)
def test_groups_and_empty_images_have_no_other_form(x, w, options):
    def convolve(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", **options)

    eqn = jax.make_jaxpr(convolve)(jnp.ones(x), jnp.ones(w)).jaxpr.eqns[0]
    assert possible_forms(Convolution.of(eqn)) == []
    assert form_of(Convolution.of(eqn)) is None


def test_other_precisions_keep_their_convolution():
    x, w = jnp.ones((4, 1, 9, 9), jnp.bfloat16), jnp.ones((2, 1, 3, 3), jnp.bfloat16)
    eqn = jax.make_jaxpr(lambda x, w: jax.lax.conv(x, w, (1, 1), "VALID"))(x, w).jaxpr.eqns[0]
    assert form_of(Convolution.of(eqn)) is None


def _network(params, images):
    x = jax.nn.relu(jax.lax.conv(images, params["first"], (1, 1), "SAME"))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = jax.nn.relu(jax.lax.conv(x, params["second"], (1, 1), "VALID"))
    return jnp.sum(jnp.tanh(jax.lax.conv(x, params["third"], (1, 1), "VALID")) ** 2)


def test_gradients_of_a_network_agree_and_have_other_forms():
    rng = np.random.default_rng(2)
    shapes = {"first": (6, 1, 5, 5), "second": (16, 6, 5, 5), "third": (20, 16, 3, 3)}
    params = {
        name: jnp.asarray(0.2 * rng.normal(size=s), jnp.float32) for name, s in shapes.items()
    }
    images = jnp.asarray(rng.normal(size=(32, 1, 14, 14)), jnp.float32)
    gradient = jax.value_and_grad(_network)
    quick = with_quick_convolutions(gradient)

    def count(function):
        return str(jax.make_jaxpr(function)(params, images)).count("conv_general_dilated")

    assert (count(gradient), count(quick)) == (8, 3)
    expected, found = jax.jit(gradient)(params, images), jax.jit(quick)(params, images)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))
