"""The bars of the columns that a network reads."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx

import bmrjax as bmr
from bmrjax import Result, plot
from bmrjax.run.input_paths import input_paths

ROWS = jnp.ones((2, 3))


class Plain(eqx.Module):
    """Two layers whose names are not those of a network of the library."""

    read: jax.Array
    write: eqx.nn.Linear

    def __call__(self, x):
        return self.write(jnp.tanh(self.read @ x))


def plain():
    weights = jnp.array([[3.0, 0.5, 7.0], [4.0, 9.0, 0.1]])
    write = eqx.nn.Linear(2, 1, key=jax.random.key(0))
    return Plain(weights, eqx.tree_at(lambda w: w.weight, write, jnp.array([[1.0, 1.0]])))


def fitted(network, keep, **given):
    """Return a result whose posterior means are the weights of a network."""
    program = bmr.programs.regression(network, bmr.priors.NormalPrior(1.0))
    sites = numpyro.handlers.trace(numpyro.handlers.seed(program, 0)).get_trace(ROWS)
    arrays = bmr.structure.named_arrays(network)
    means = {
        name: arrays[name.removeprefix("net.")]
        for name, site in sites.items()
        if site["type"] == "sample" and name.startswith("net.")
    }

    def guide(*args, **kwargs):
        for name, mean in means.items():
            numpyro.sample(name, dist.Normal(mean, 0.1).to_event(mean.ndim))
        numpyro.sample("noise", dist.LogNormal(jnp.zeros(1), 0.1).to_event(1))

    masks = {name: keep.get(name, jnp.ones(mean.shape, bool)) for name, mean in means.items()}
    return Result({}, masks, {}, 10, unpruned_model=program, unpruned_guide=guide, **given)


def bars(figure):
    (axes,) = figure.axes
    texts = [text.get_text().strip() for text in axes.texts]
    return axes.get_title(loc="left"), [bar.get_width() for bar in axes.patches], texts


@pytest.mark.parametrize("library", ["equinox", "flax"])
def test_bars_are_of_the_weights_that_lead_to_an_output(library):
    first = jnp.array([[True, True, False], [True, False, False]])
    if library == "equinox":
        network, read, write = plain(), "net.read", "net.write.weight"
    else:
        network = bmr.zoo.NNXMLP(3, [2], 1, rngs=nnx.Rngs(0))
        network.layers[0].kernel[...] = plain().read.T
        network.layers[1].kernel[...] = jnp.ones((2, 1))
        first, read, write = first.T, "net.layers.0.kernel", "net.layers.1.kernel"

    def drawn(second):
        second = jnp.array([second]) if library == "equinox" else jnp.array([second]).T
        result = fitted(network, {read: first, write: second}, columns=("a", "b", "c"))
        return bars(plot.inputs(result, ROWS))

    title, widths, texts = drawn([True, True])
    assert (title, texts) == ("2 of 3 inputs used", ["2", "1", "removed"])
    np.testing.assert_allclose(widths, [5.0, 0.5, 0.0], rtol=1e-6)
    # The first unit leads nowhere: what reads "b" has no influence.
    title, widths, texts = drawn([False, True])
    assert (title, texts) == ("1 of 3 inputs used", ["1", "removed", "removed"])
    np.testing.assert_allclose(widths, [4.0, 0.0, 0.0], rtol=1e-6)


def test_a_network_of_the_library_has_the_inputs_that_its_masks_say():
    network = bmr.zoo.MLP(3, [8, 8], 1, key=jax.random.key(0))
    rng = np.random.default_rng(1)
    keep = {
        f"net.{name}": jnp.asarray(rng.uniform(size=a.shape) > (0.75 if a.ndim == 2 else 0))
        for name, a in bmr.structure.named_arrays(network).items()
    }
    leads = input_paths(keep).leads.sum(0)
    assert 0 < (leads > 0).sum() < 3
    _, _, texts = bars(plot.inputs(fitted(network, keep), ROWS, names="abc"))
    assert texts == [str(count) if count else "removed" for count in leads]


def site(shape, name="w"):
    """Return a result of a program that is written by hand: its own positions, those below 3 removed."""
    weights = jnp.arange(float(np.prod(shape))).reshape(shape)

    def program():
        numpyro.sample(name, dist.Normal(jnp.zeros(shape), 1.0).to_event(len(shape)))

    def guide():
        numpyro.sample(name, dist.Normal(weights, 0.1).to_event(len(shape)))

    return Result({}, {name: weights >= 3}, {}, 10, unpruned_model=program, unpruned_guide=guide)


@pytest.mark.parametrize(
    ("shape", "names", "widths", "texts"),
    [
        ((5,), "abcde", [0, 0, 0, 3, 4], ["removed"] * 3 + ["1", "1"]),
        ((2, 3), "abc", [3, 4, 5], ["1"] * 3),
        ((2, 3), "ab", [0, np.sqrt(9 + 16 + 25)], ["removed", "3"]),
    ],
)
def test_a_site_is_drawn_by_name_along_the_axis_of_its_inputs(shape, names, widths, texts):
    _, found, shown = bars(plot.inputs(site(shape), site="w", names=names))
    np.testing.assert_allclose(found, widths, rtol=1e-6)
    assert shown == texts


@pytest.mark.parametrize(
    ("shape", "name", "names", "message"),
    [
        ((5,), "v", "abcde", r"no site 'v'; there are \['w'\]"),
        ((5,), "w", "abc", r"shape \(5,\), and no axis is as long as 3 names; give names="),
        ((3, 3), "w", "abc", r"shape \(3, 3\), and either axis may be that of the inputs"),
        ((2, 3, 4), "w", "abc", r"shape \(2, 3, 4\); it draws vectors and matrices"),
    ],
)
def test_sites_that_cannot_be_drawn_are_refused(shape, name, names, message):
    with pytest.raises(ValueError, match=message):
        plot.inputs(site(shape), site=name, names=names)


def test_other_programs_and_missing_names_are_refused():
    result = fitted(plain(), {})
    with pytest.raises(ValueError, match="reads 3 inputs, and there are 0 names; give names="):
        plot.inputs(result, ROWS)
    with pytest.raises(ValueError, match=r"two rows: plot\.inputs\(result, x\[:2\]\)"):
        plot.inputs(result, names="abc")
    images = eqx.nn.Conv2d(1, 2, 3, key=jax.random.key(0))
    convolution = bmr.programs.regression(images, bmr.priors.NormalPrior(1.0))
    guide = numpyro.infer.autoguide.AutoDelta(convolution)
    given = {"unpruned_model": convolution, "unpruned_guide": guide}
    with pytest.raises(
        ValueError, match=r"'net': the operation 'conv_general_dilated'.* Give site="
    ):
        plot.inputs(Result({}, {}, {}, 10, **given), jnp.ones((2, 1, 28, 28)), names="abc")


def test_two_networks_are_not_mixed_up():
    def program(x, y=None):
        loc, scale = (
            bmr.random_module(n, plain(), bmr.priors.NormalPrior(1.0)) for n in ("loc", "scale")
        )
        numpyro.sample("y", dist.Normal(loc(x), jnp.exp(scale(x))).to_event(2), obs=y)

    guide = numpyro.infer.autoguide.AutoDelta(program)
    result = Result({}, {}, {}, 10, unpruned_model=program, unpruned_guide=guide)
    with pytest.raises(ValueError, match=r"several networks read inputs: \['loc', 'scale'\]"):
        plot.inputs(result, ROWS, names="abc")


def test_texts_lie_beside_the_bars_without_a_blank():
    figure = plot.inputs(
        fitted(plain(), {"net.read": jnp.eye(2, 3, dtype=bool)}), ROWS, names="abc"
    )
    texts = figure.axes[0].texts
    assert [text.get_text() for text in texts] == ["1", "1", "removed"]
    assert all(text.get_position() == (4, 0) for text in texts)
    assert [text.xy[0] for text in texts] == [3.0, 9.0, 0.0]
