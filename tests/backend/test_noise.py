import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

from bmrjax.backend import noise
from bmrjax.fast_noise import normal_shapes
from bmrjax.handlers import fast_noise
from bmrjax.infer import AutoMeanField

SHAPES = [(), (0,), (1,), (7,), (33, 5), (2, 3, 4), (10_001,)]


@pytest.mark.parametrize("shape", SHAPES)
def test_gives_the_numbers_of_jax_for_other_generators(shape):
    key = jax.random.key(11, impl="rbg")
    np.testing.assert_array_equal(noise.normal_noise(key, shape), jax.random.normal(key, shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_or_not_on_any_backend_the_numbers_are_the_same(shape):
    key = jax.random.key(11)
    drawn = noise.normal_noise(key, shape)
    assert drawn.shape == shape
    assert drawn.dtype == jnp.float32
    np.testing.assert_allclose(
        jax.jit(lambda k: noise.normal_noise(k, shape))(key), drawn, rtol=1e-5
    )
    # The kernel of other backends.
    count = -(-drawn.size // 2)
    pairs = jax.jit(lambda k: noise._all_pairs(jax.random.key_data(k), count, noise._normal_pair))(
        key
    )
    flat = np.concatenate([pairs.real, pairs.imag])[: drawn.size]
    np.testing.assert_allclose(flat.reshape(shape), drawn, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("draw", [noise.normal_noise, noise.uniform])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (33, 5), (2, 3, 4)])
def test_one_by_one_they_are_the_same_numbers(draw, shape):
    key = jax.random.key(4)
    with noise.one_by_one():
        found = jax.jit(lambda k: draw(k, shape))(key)
    np.testing.assert_allclose(found, draw(key, shape), rtol=1e-5, atol=1e-6)


def test_sine_and_cosine():
    turns = np.linspace(0, 1, 100_001, dtype=np.float32)
    sine, cosine = noise._sine_and_cosine(jnp.asarray(turns))
    np.testing.assert_allclose(sine, np.sin(2 * np.pi * turns.astype(float)), atol=5e-7)
    np.testing.assert_allclose(cosine, np.cos(2 * np.pi * turns.astype(float)), atol=5e-7)


def test_takes_raw_keys_and_double_precision(x64):
    key = jax.random.PRNGKey(3)
    expected = jax.random.normal(key, (9,), jnp.float64)
    np.testing.assert_array_equal(noise.normal_noise(key, (9,), jnp.float64), expected)


def test_is_what_normal_sites_draw():
    fn = dist.Normal(jnp.arange(3.0), 2.0).to_event(1)
    key = jax.random.key(5)
    fast = noise.with_fast_noise(fn)
    expected = jnp.arange(3.0) + 2.0 * noise.normal_noise(key, (3,))
    np.testing.assert_allclose(fast.sample(key), expected, rtol=1e-6)
    np.testing.assert_allclose(fast.log_prob(jnp.ones(3)), fn.log_prob(jnp.ones(3)), rtol=1e-6)
    other = dist.Gamma(2.0, 1.0)
    assert noise.with_fast_noise(other) is other


def test_vmaps_over_keys():
    keys = jax.random.split(jax.random.key(0), 4)
    rows = jnp.stack([noise.normal_noise(k, (6,)) for k in keys])
    batched = jax.jit(jax.vmap(lambda k: noise.normal_noise(k, (6,))))(keys)
    np.testing.assert_allclose(batched, rows, rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_takes_raw_keys(compiled):
    key = jax.random.PRNGKey(3)
    draw = (
        jax.jit(lambda k: noise.normal_noise(k, (9,)))
        if compiled
        else lambda k: noise.normal_noise(k, (9,))
    )
    np.testing.assert_allclose(draw(key), noise.normal_noise(jax.random.key(3), (9,)), rtol=1e-5)


def test_keeps_low_precision():
    key = jax.random.key(4)
    mine = noise.normal_noise(key, (9,), jnp.bfloat16)
    np.testing.assert_array_equal(mine, jax.random.normal(key, (9,), jnp.bfloat16))
    assert mine.dtype == jnp.bfloat16


def test_is_standard_normal():
    draws = np.asarray(noise.normal_noise(jax.random.key(0), (100_000,)), np.float64)
    assert len(np.unique(draws)) > 99_000
    assert stats.kstest(draws, "norm").pvalue > 0.01
    # Four standard errors of the mean, the variance and the fourth moment.
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (4, 3, 96)):
        assert abs(np.mean(draws**power) - moment) < 4 * np.sqrt(spread / 100_000)
    neighbours = np.corrcoef(draws[:-1], draws[1:])[0, 1]
    assert abs(neighbours) < 4 / np.sqrt(100_000)
    # The two members of a pair share a radius and an angle.
    first, second = draws[:50_000], draws[50_000:]
    for power in (1, 2, 3):
        together = np.corrcoef(first**power, second**power)[0, 1]
        assert abs(together) < 4 / np.sqrt(50_000)


def test_extreme_draws_are_finite():
    draws = noise.normal_noise(jax.random.key(1), (3_000_000,))
    assert np.isfinite(draws).all()
    # The largest of three million normals lies between 4.5 and 6.5 almost surely.
    assert 4.5 < np.abs(draws).max() < 6.5


@pytest.mark.parametrize(
    "fn",
    [
        dist.Normal(0.5, 2.0),
        dist.Normal(0.5, 2.0).expand([4]),
        dist.Normal(jnp.arange(3.0)[:, None], jnp.ones(4)).to_event(1),
        dist.Normal(jnp.arange(4.0), 2.0).expand([3, 4]).to_event(2),
    ],
)
def test_normal_sites_keep_shapes_and_parameters(fn):
    key = jax.random.key(6)
    fast = noise.with_fast_noise(fn)
    assert (fast.batch_shape, fast.event_shape) == (fn.batch_shape, fn.event_shape)
    for sample_shape in ((), (5,), (2, 3)):
        mine, theirs = fast.sample(key, sample_shape), fn.sample(key, sample_shape)
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        unit = (mine - fn.mean) / jnp.sqrt(fn.variance)
        expected = noise.normal_noise(key, mine.shape)
        np.testing.assert_allclose(unit, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fast.log_prob(mine), fn.log_prob(mine), rtol=1e-6)


def test_gradients_of_draws_are_those_of_the_parameters():
    key = jax.random.key(7)

    def total(loc, scale):
        return noise.with_fast_noise(dist.Normal(loc, scale)).sample(key).sum()

    loc, scale = jax.grad(total, argnums=(0, 1))(jnp.zeros(5), jnp.ones(5))
    np.testing.assert_array_equal(loc, 1.0)
    np.testing.assert_allclose(scale, noise.normal_noise(key, (5,)), rtol=1e-5)


ARRAYS = {"a": (3, 5), "b": (), "c": (8,), "d": (2, 0), "e": (4, 2)}


def test_noise_of_several_arrays_is_that_of_one_cut_into_parts():
    key = jax.random.key(2)
    drawn = noise.normal_noises(key, ARRAYS)
    assert {name: x.shape for name, x in drawn.items()} == ARRAYS
    flat = np.concatenate([np.ravel(x) for x in drawn.values()])
    np.testing.assert_array_equal(flat, noise.normal_noise(key, (len(flat),)))
    with noise.one_by_one():
        alone = jax.jit(lambda k: noise.normal_noises(k, ARRAYS))(key)
    for name, x in drawn.items():
        np.testing.assert_allclose(alone[name], x, rtol=1e-5, atol=1e-6)


def test_noise_of_several_arrays_from_another_generator():
    drawn = noise.normal_noises(jax.random.key(2, impl="rbg"), ARRAYS)
    assert {name: x.shape for name, x in drawn.items()} == ARRAYS
    flat = np.concatenate([np.ravel(x) for x in drawn.values()])
    assert len(np.unique(flat)) == len(flat)


def sites(shapes, program):
    seeded = numpyro.handlers.seed(fast_noise(program, shapes=shapes), jax.random.key(0))
    trace = numpyro.handlers.trace(seeded).get_trace()
    return {name: np.asarray(site["value"]) for name, site in trace.items()}


def test_a_site_of_another_shape_than_was_said_is_drawn_by_itself():
    def program():
        numpyro.sample("u", dist.Normal(0, 1).expand([4]).to_event(1))
        numpyro.sample("v", dist.Normal(0, 1).expand([4]).to_event(1))
        numpyro.sample("w", dist.LogNormal(0, 1).expand([4]).to_event(1))
        numpyro.sample("k", dist.Gamma(2.0, 1.0))

    right, wrong = ({n: (size,) for n in "uvw"} for size in (4, 5))
    for shapes in (right, wrong, {}):
        found = sites(shapes, program)
        values = np.concatenate([found["u"], found["v"], np.log(found["w"])])
        assert len(np.unique(values)) == 12  # none is drawn twice
    drawn = sites(right, program)
    assert drawn["k"] == sites(wrong, program)["k"]
    given = noise.normal_noises(_first_key(right), right)
    np.testing.assert_array_equal(drawn["v"], given["v"])


def _first_key(shapes):
    key = numpyro.handlers.seed(numpyro.prng_key, jax.random.key(0))()
    return jax.random.split(key, 1 + len(shapes) + 64)[0]


def test_shapes_of_a_guide_leave_plates_out_that_subsample():
    def program():
        numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("scale", dist.LogNormal(0, 1))
        numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("rows", 1000, subsample_size=10):
            numpyro.sample("z", dist.Normal(0, 1))

    guide = AutoMeanField(program)
    assert normal_shapes(guide) == {}
    numpyro.handlers.seed(guide, jax.random.key(0))()
    assert normal_shapes(guide) == {"w": (3,), "scale": ()}
    assert normal_shapes(program) == {}
