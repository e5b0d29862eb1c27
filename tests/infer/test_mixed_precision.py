"""Products in bfloat16: what is rounded, what is not, and that a fit is none the worse for it."""

import re
from dataclasses import replace

import jax
import jax.extend.core as jec
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import bmrjax as bmr
from bmrjax import infer, nn, priors, programs, zoo
from bmrjax.backend import quick_compile
from bmrjax.cli.check_options import check_options
from bmrjax.cli.documents import write_json
from bmrjax.cli.run_folder import config_of
from bmrjax.cli.sparsify_options import SparsifyOptions
from bmrjax.infer.engine import Engine
from bmrjax.infer.mixed_precision import of_program, with_low_matmuls
from bmrjax.infer.svi_step import SVIStep

# Long for what they add; `make all-checks` runs them.
pytestmark = pytest.mark.slow

PRODUCTS = ("dot_general", "conv_general_dilated")
LOW = ("bfloat16", "bfloat16", "float32")
FULL = ("float32", "float32", "float32")


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def rounded(x):
    """Return what is left of numbers in bfloat16, in double precision."""
    return np.asarray(jnp.asarray(x).astype(jnp.bfloat16).astype(jnp.float32), np.float64)


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jec.jaxprs_in_params(eqn.params):
            yield from equations(inner)


def dtypes(eqn):
    return tuple(str(v.aval.dtype) for v in (*eqn.invars, *eqn.outvars))


def products(function, *args):
    """Return the dtypes of each product in a function."""
    found = equations(jax.make_jaxpr(function)(*args).jaxpr)
    return [dtypes(eqn) for eqn in found if eqn.primitive.name in PRODUCTS]


# --- values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["_QUICK", "_MIDDLE", "_DEFAULT"])
@pytest.mark.parametrize("sizes", [(1, 3, 2, 1), (8, 4, 8, 3), (128, 64, 100, 10)])
def test_the_compiler_knows_these_products_with_all_its_settings(options, sizes):
    rows, inputs, hidden, outputs = sizes
    weights = normal(0, inputs, hidden), normal(1, hidden, outputs)

    def loss(weights, x):
        return jnp.sum(jnp.tanh(x @ weights[0]) @ weights[1])

    def steps(weights, x):
        gradient = with_low_matmuls(jax.grad(of_program(loss)))
        update = lambda _, w: jax.tree.map(lambda a, g: a - 1e-3 * g, w, gradient(w, x))  # noqa: E731
        return jax.lax.fori_loop(0, 2, update, weights)

    x = normal(2, rows, inputs)
    settings = getattr(quick_compile, options)
    found = jax.jit(steps).lower(weights, x).compile(settings)(weights, x)
    expected = weights
    for _ in range(2):
        gradient = jax.grad(loss)(expected, x)
        expected = jax.tree.map(lambda a, g: a - 1e-3 * g, expected, gradient)
    for one, other in zip(found, expected, strict=True):
        # A part in 256 of what two steps move.
        moved = float(jnp.max(jnp.abs(other)))
        np.testing.assert_allclose(one, other, atol=4e-3 * max(moved, 1.0))


def test_a_product_is_that_of_the_rounded_operands():
    a, b = normal(0, 40, 300), normal(1, 300, 20)
    low = with_low_matmuls(of_program(jnp.matmul))
    expected = rounded(a) @ rounded(b)
    for found in (low(a, b), jax.jit(low)(a, b)):
        assert found.dtype == jnp.float32
        # Sums of 300 in float32: had they been taken in bfloat16, this would be off by 1e-2.
        np.testing.assert_allclose(found, expected, atol=1e-4)
    # Each factor is off by 2^-9 of itself at most.
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    bound = 2.0**-8 * 1.01 * np.abs(np.asarray(a, np.float64)) @ np.abs(np.asarray(b, np.float64))
    assert np.all(np.abs(found - exact) <= bound)
    assert np.max(np.abs(found - exact)) > 1e-3


def test_gradients_are_products_of_rounded_numbers_too():
    a, b, cotangent = normal(0, 6, 50), normal(1, 50, 4), normal(2, 6, 4)

    def loss(a, b):
        return jnp.sum(cotangent * (a @ b))

    found = jax.jit(with_low_matmuls(jax.grad(of_program(loss), (0, 1))))(a, b)
    expected = rounded(cotangent) @ rounded(b).T, rounded(a).T @ rounded(cotangent)
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
def test_a_convolution_and_its_gradients(strides):
    x, kernel = normal(0, 3, 4, 9, 8), normal(1, 5, 4, 3, 3)
    cotangent = normal(2, *jax.lax.conv(x, kernel, strides, "SAME").shape)

    def loss(x, kernel):
        return jnp.sum(cotangent * jax.lax.conv(x, kernel, strides, "SAME"))

    low = with_low_matmuls(jax.value_and_grad(of_program(loss), (0, 1)))
    value, found = jax.jit(low)(x, kernel)
    near = [jnp.asarray(rounded(part), jnp.float32) for part in (x, kernel, cotangent)]
    np.testing.assert_allclose(value, loss(*near[:2]), rtol=1e-4)
    # The same linear map, of rounded numbers.
    _, back = jax.vjp(lambda x, k: jax.lax.conv(x, k, strides, "SAME"), *near[:2])
    for mine, other in zip(found, back(near[2]), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-4)
    assert products(low, x, kernel) == 3 * [LOW]


# --- everything that holds a function --------------------------------------------------------


@jax.custom_jvp
def own_forward(h, w):
    return h @ w


@own_forward.defjvp
def _own_forward(primals, tangents):
    (h, w), (dh, dw) = primals, tangents
    return own_forward(h, w), 2.0 * (dh @ w) + h @ dw


@jax.custom_vjp
def own_backward(h, w):
    return h @ w


own_backward.defvjp(
    lambda h, w: (h @ w, (h, w)), lambda rest, ct: (3.0 * (ct @ rest[1].T), rest[0].T @ ct)
)


HOLDERS = {
    "jit": lambda h, w: jax.jit(jnp.matmul)(h, w),
    "scan": lambda h, w: jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), c @ w), h, None, length=3)[1],
    "fori_loop": lambda h, w: jax.lax.fori_loop(0, 2, lambda _, h: h @ w, h),
    "cond": lambda h, w: jax.lax.cond(h[0, 0] > 0, lambda: h @ w, lambda: h @ (2.0 * w)),
    "checkpoint": lambda h, w: jax.checkpoint(lambda h: jnp.tanh(h @ w) @ w)(h),
    "custom_jvp": own_forward,
    "custom_vjp": own_backward,
    "vmap": lambda h, w: jax.vmap(jnp.matmul, (0, None))(h, w),
    "einsum": lambda h, w: jnp.einsum("ij,jk,lk->il", h, w, h),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS.keys())
def test_products_are_found_wherever_they_are(hold):
    h, w = normal(0, 4, 4), 0.5 * normal(1, 4, 4)
    full = jax.value_and_grad(of_program(lambda h, w: jnp.sum(hold(h, w) ** 2)), (0, 1))
    low = with_low_matmuls(full)
    count = len(products(full, h, w))
    assert count >= 3
    assert products(low, h, w) == count * [LOW]
    exact, found = jax.jit(full)(h, w), jax.jit(low)(h, w)
    # The derivatives that the functions above have of their own are twice and three times the true ones.
    largest = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(exact))
    for mine, other in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(mine, other, atol=0.03 * largest)
        assert mine.dtype == other.dtype


def test_a_while_loop():
    def grow(h, w):
        return jax.lax.while_loop(lambda h: jnp.sum(h @ w) < 100.0, lambda h: h @ w, h)

    h, w = jnp.ones((3, 3)), jnp.ones((3, 3))
    low = with_low_matmuls(of_program(grow))
    assert products(low, h, w) == 2 * [LOW]
    np.testing.assert_array_equal(low(h, w), grow(h, w))


def test_vmap_is_a_loop():
    gradient = with_low_matmuls(jax.grad(of_program(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2))))
    w, x = normal(0, 3, 5, 4), normal(1, 3, 6, 5)
    found = jax.vmap(gradient)(w, x)
    np.testing.assert_allclose(
        found, [gradient(a, b) for a, b in zip(w, x, strict=True)], rtol=1e-5
    )
    assert set(products(jax.vmap(gradient), w, x)) == {LOW}


def test_what_stays_as_it_is(x64):
    def program(a, b, counts):
        precise = jnp.matmul(a, a, precision="highest")
        return a @ a + precise, b @ b, counts @ counts

    a, b, counts = normal(0, 3, 3).astype(jnp.float32), jnp.ones((3, 3)), jnp.ones((2, 2), int)
    low = with_low_matmuls(of_program(program))
    assert products(low, a, b, counts) == [FULL, LOW, 3 * ("float64",), 3 * ("int64",)]
    # What no program does is left alone.
    assert products(with_low_matmuls(program), a, b, counts)[:2] == 2 * [FULL]


# --- the training step -----------------------------------------------------------------------

IMAGES = 8, 1, 12, 12


def classes():
    return jnp.arange(8) % 3


def small_conv():
    import equinox as eqx

    keys = jax.random.split(jax.random.key(0))
    return eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 3, 5, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(192, 3, key=keys[1]),
        ]
    )


def gru():
    return zoo.GRU(2, 4, 3, key=jax.random.key(0))


def engine_of(model, data, guide=None, **options):
    guide = infer.AutoMeanField(model) if guide is None else guide(model)
    rows = len(data[0])
    options = {"loss": infer.elbo("global"), **options}
    optimizer = optax.adabelief(1e-2)
    return Engine(model, guide, optimizer=optimizer, num_data=4 * rows, batch_size=rows, **options)


def step_of(model, data, guide=None, **options):
    """Return a training step and its arguments."""
    engine = engine_of(model, data, guide, **options)
    state = engine.init(jax.random.key(0), data)
    rate = jnp.ones(())
    return engine.steps.on_batch, ((state, jnp.zeros(1)), 0, data, {}, jax.random.key(1), rate)


STEPS = {
    "global, convolutions": (small_conv, IMAGES, "global"),
    "local, convolutions": (small_conv, IMAGES, "local"),
    "moments, convolutions": (small_conv, IMAGES, "moments"),
    "local, recurrent": (gru, (8, 5, 2), "local"),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("make", "shape", "estimator"),
    [
        pytest.param(*step, id=name, marks=[pytest.mark.slow] if "local, conv" in name else [])
        for name, step in STEPS.items()
    ],
)
def test_all_products_of_a_step_and_nothing_else(make, shape, estimator):
    data = normal(0, *shape), classes()
    model = programs.classifier(make(), priors.Flat())
    run, args = step_of(model, data, loss=infer.elbo(estimator), matmul_dtype="bfloat16")
    found = list(equations(jax.make_jaxpr(run)(*args).jaxpr))
    multiplied = [dtypes(eqn) for eqn in found if eqn.primitive.name in PRODUCTS]
    assert len(multiplied) >= 5
    assert set(multiplied) == {LOW}
    # The only operation that makes a bfloat16 number is the rounding in front of a product.
    makes = {e.primitive.name for e in found for v in e.outvars if v.aval.dtype == jnp.bfloat16}
    assert makes == {"convert_element_type"}
    reads = {
        e.primitive.name
        for e in found
        for v in e.invars
        if getattr(v.aval, "dtype", None) == jnp.bfloat16
    }
    assert reads <= set(PRODUCTS)
    text = jax.jit(run).lower(*args).as_text()
    lines = [x for x in text.splitlines() if re.search("stablehlo.(dot_general|convolution)", x)]
    assert len(lines) >= 5
    assert all(re.search(r"xbf16>, tensor<[^>]*bf16>\) -> tensor<[^>]*f32>", x) for x in lines)


def test_noise_layers():
    network = nn.with_noise(zoo.MLP(6, [5], 3, key=jax.random.key(0)))
    model = programs.classifier(network, None)
    run, args = step_of(model, (normal(0, 8, 6), classes()), matmul_dtype="bfloat16")
    assert set(products(run, *args)) == {LOW}


def test_a_network_without_the_option_has_no_bfloat16():
    model = programs.classifier(small_conv(), priors.Flat())
    run, args = step_of(model, (normal(0, *IMAGES), classes()))
    assert set(products(run, *args)) == {FULL}


def regression(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def test_the_products_of_a_guide_stay_as_they_are():
    data = normal(0, 8, 3), normal(1, 8)

    def guide(model):
        return infer.AutoLowRank(model, rank=2)

    plain = products(*_flat(step_of(regression, data, guide)))
    found = products(*_flat(step_of(regression, data, guide, matmul_dtype="bfloat16")))
    # x @ beta, and its derivative for beta.
    assert found.count(LOW) == 2
    assert found.count(FULL) == len(plain) - 2 > 0


def _flat(step):
    return step[0], *step[1]


# --- runs ------------------------------------------------------------------------------------


def fit(data, **options):
    network = zoo.MLP(64, [20], 10, key=jax.random.key(0))
    return bmr.sparsify(
        programs.classifier(network, priors.Flat()),
        data.train,
        key=jax.random.key(0),
        num_epochs=8,
        steps_per_epoch=60,
        schedule=bmr.schedules.Every(wait=4, fraction=0.5),
        progress=False,
        **options,
    )


@pytest.fixture(scope="module")
def digits():
    return bmr.data.load_dataset("digits")


@pytest.mark.slow
def test_a_run_is_as_good_and_compiles_once(digits):
    full, low = fit(digits), fit(digits, options=bmr.FitOptions(matmul_dtype="bfloat16"))
    assert low.num_compilations == 1
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(low.params))
    assert low.num_skipped == 0
    # Not the same numbers, but a fit as good.
    assert low.history[0]["vfe"] != full.history[0]["vfe"]
    np.testing.assert_allclose(low.vfe_per_datum, full.vfe_per_datum, rtol=0.05)
    assert abs(low.sparsity - full.sparsity) < 0.1
    assert low.sparsity > 0.0


def test_what_is_measured_is_measured_in_full():
    data = normal(0, 8, 3), normal(1, 8)
    engine = engine_of(regression, data, matmul_dtype="bfloat16")
    state = engine.init(jax.random.key(0), data)
    measure = engine.free_energy._step
    args = jnp.zeros(()), 0, engine.constrain(state), {}, data, jax.random.key(1)
    assert products(measure, *args) == [FULL]


LOWERED = bmr.FitOptions(matmul_dtype="bfloat16")


def small(run=bmr.sparsify, **options):
    x = normal(0, 100, 3)
    fixed = {"batch_size": 50, "steps_per_epoch": 20, "criterion": None, "progress": False}
    if run is bmr.sparsify:
        options = {"key": jax.random.key(1), **options}
    return run(regression, (x, 2.0 * x[:, 0]), **{"num_epochs": 4, **fixed, **options})


def test_an_ensemble(monkeypatch):
    keys = jax.random.split(jax.random.key(1), 3)
    seen = []
    step = SVIStep.update_of_many

    def update(self, *args, shared):
        seen.extend(products(lambda *args: step(self, *args, shared=shared), *args))
        return step(self, *args, shared=shared)

    monkeypatch.setattr(SVIStep, "update_of_many", update)
    found = small(bmr.ensemble, keys=keys, options=LOWERED)
    assert seen
    assert set(seen) == {LOW}
    assert [r.num_compilations for r in found] == 3 * [1]
    alone = small(key=keys[0], options=LOWERED)
    # Another order of sums may round a number the other way.
    np.testing.assert_allclose(found[0].vfe_per_datum, alone.vfe_per_datum, rtol=1e-3)


def test_steps_that_are_not_finite_are_skipped_as_ever():
    x = normal(0, 100, 3).at[7, 1].set(jnp.finfo(jnp.float32).max)  # past the range of bfloat16
    result = bmr.sparsify(
        regression,
        (x, 2.0 * x[:, 0]),
        key=jax.random.key(1),
        num_epochs=2,
        batch_size=10,
        steps_per_epoch=10,
        criterion=None,
        progress=False,
        options=bmr.FitOptions(matmul_dtype="bfloat16"),
    )
    assert result.num_skipped == 2  # one batch an epoch
    assert all(jnp.all(jnp.isfinite(value)) for value in result.params.values())


def test_a_run_goes_on_in_its_own_precision(tmp_path):
    checkpoints = bmr.Checkpoints(tmp_path, interval=0.0)
    small(checkpoints=checkpoints, num_epochs=2, options=LOWERED)
    checkpoints = replace(checkpoints, resume=True)
    with pytest.raises(ValueError, match="matmul_dtype bfloat16, this one has None"):
        small(checkpoints=checkpoints)
    found = small(checkpoints=checkpoints, options=LOWERED)
    assert len(found.history) == 4


def test_the_command_line_keeps_it(tmp_path):
    before = SparsifyOptions(data="digits", out=tmp_path, matmul_dtype="bfloat16")
    write_json(tmp_path / "run.json", config_of(before))
    check_options(replace(before, resume=True))
    with pytest.raises(ValueError, match="--matmul-dtype was bfloat16"):
        check_options(replace(before, resume=True, matmul_dtype=None))


@pytest.mark.parametrize("name", ["float16", "bf16", jnp.float32])
def test_other_names_are_refused(name):
    with pytest.raises(
        ValueError, match="matmul_dtype must be None or 'bfloat16'.*Give 'bfloat16'"
    ):
        small(options=bmr.FitOptions(matmul_dtype=name))
