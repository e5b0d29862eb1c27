"""Programs that nobody wrote for this package give what NumPyro gives, or are refused by a site's name.

All programs of `programs.PROGRAMS` are looked at; some are fitted. ``benchmarks/trust/programs.py`` fits all
of them, and compares with NUTS.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from programs import PROGRAMS, Program

import bmrjax as bmr
from bmrjax.infer.program_data import program_data
from bmrjax.infer.row_sites import row_sites

RATE, DRAWS, MEASURED = 0.03, 1000, 200

# One or two of each kind; the benchmark has the others.
MINIBATCHES = [
    "weibull_censored",
    "nested_dicts",
    "many_tables",
    "table_as_long_as_data",
    "eight_schools",
    "radon_centered",
    "baseball",
    "ar2_scan",
    "ar1_shifted",
    "local_level",
    "latent_per_row",
    "imputation",
    "hsgp",
    "gaussian_process",
    "subsampling",
    "factor_constraint",
    "summed_likelihood",
    "rows_as_event",
    "transposed",
    "standardized_inside",
    "random_flax_module",
]


def optimizer(steps: int) -> optax.GradientTransformation:
    return optax.adabelief(optax.cosine_decay_schedule(RATE, steps, alpha=0.01))


def fit(program: Program, steps: int, batch_size: int | None = None) -> bmr.Result:
    return bmr.sparsify(
        program.model,
        program.data,
        key=jax.random.key(0),
        criterion=None,
        guide=bmr.infer.AutoMeanField(program.model),
        optimizer=optimizer(steps),
        batch_size=batch_size,
        steps_per_epoch=steps // 2,
        num_epochs=2,
        progress=False,
    )


def free_energy(program: Program, guide, params) -> tuple[float, float]:
    """Return the VFE by NumPyro's ELBO, and its standard error."""

    def once(key):
        return Trace_ELBO().loss(key, params, program.model, guide, *program.args, **program.kwargs)

    values = jax.jit(jax.vmap(once))(jax.random.split(jax.random.key(1), DRAWS))
    return float(np.mean(values)), float(np.std(values)) / DRAWS**0.5


# Tolerances beyond Monte Carlo error, in nats: the plate that subsamples has a noisy loss, and a network
# has several optima.
@pytest.mark.parametrize(
    ("name", "steps", "tolerance"),
    [
        ("ar2_scan", 1500, 0.2),
        ("eight_schools_noncentered", 1000, 0.2),
        ("subsampling", 1500, 1.0),
        ("random_flax_module", 1500, 3.0),
    ],
)
@pytest.mark.slow
def test_full_batch_fits_as_numpyro_does(name, steps, tolerance):
    program = PROGRAMS[name]
    guide = AutoNormal(program.model)
    svi = SVI(program.model, guide, optimizer(steps), Trace_ELBO())
    # NumPyro starts op by op, each of which is compiled alone.
    start = jax.jit(lambda key: svi.init(key, *program.args, **program.kwargs))(jax.random.key(0))
    fitted = svi.run(
        jax.random.key(0),
        steps,
        *program.args,
        progress_bar=False,
        init_state=start,
        **program.kwargs,
    )
    theirs, their_error = free_energy(program, guide, fitted.params)
    result = fit(program, steps)
    ours, our_error = free_energy(program, result.guide, result.params)
    limit = 3 * np.hypot(our_error, their_error) + tolerance
    assert ours - theirs < limit
    # NumPyro's start may end in a worse optimum of the network.
    assert theirs - ours < limit or name == "random_flax_module"


def test_latents_by_row_are_those_of_their_rows():
    """The posterior is exact here: independent normals."""
    program = PROGRAMS["latent_per_row"]
    (y,) = program.data
    result = fit(program, 600)
    precision = 1 / 5**2 + 1 / 0.5**2
    np.testing.assert_allclose(result.params["z_auto_loc"], y / 0.5**2 / precision, atol=0.1)
    variance = 5**2 + 0.5**2
    exact = 0.5 * np.sum(y**2 / variance + np.log(2 * np.pi * variance))
    value, error = free_energy(program, result.guide, result.params)
    assert value == pytest.approx(exact, abs=0.3 + 3 * error)


@pytest.mark.parametrize("batch_size", [None, 100])
def test_a_factor_is_counted_once(batch_size):
    """The posterior mean is that of a ridge regression, whatever the batch."""
    program = PROGRAMS["factor_constraint"]
    x, y = program.data
    result = fit(program, 1000, batch_size)
    ridge = np.linalg.solve(x.T @ x + (1 + 2 * 1000) * np.eye(2), x.T @ y)
    np.testing.assert_allclose(result.params["b_auto_loc"], ridge, atol=0.01)


@pytest.mark.parametrize(
    "name",
    ["none_int_str", "imputation", "param"],
)
@pytest.mark.slow
def test_odd_arguments_are_passed_on(name):
    """The VFE that bmrjax measures is that of NumPyro's ELBO with the same parameters."""
    program = PROGRAMS[name]
    result = fit(program, 200)
    value, error = free_energy(program, result.guide, result.params)
    measured = result.free_energy(jax.random.key(2), program.data, num_samples=MEASURED)
    assert measured == pytest.approx(value, abs=5 * error * (1 + DRAWS / MEASURED) ** 0.5)


@pytest.mark.parametrize("name", MINIBATCHES)
def test_minibatches_are_accepted_or_refused_by_name(name):
    program = PROGRAMS[name]
    leaves = jax.tree.leaves((program.args, dict(program.kwargs)))
    rows = max(len(leaf) for leaf in leaves if np.ndim(leaf))

    def look() -> frozenset[str]:
        data = program_data(program.model, program.data, batch_size=rows // 3)
        return row_sites(program.model, data, jax.random.key(0))

    if program.minibatch == "ok":
        assert look()
    else:
        names = "|".join(rf"\b{re.escape(name)}\b" for name in program.minibatch)
        with pytest.raises(ValueError, match=names):
            look()


def shaped(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]))
    mixed = numpyro.sample("mixed", dist.Dirichlet(jnp.ones(3)).expand([2]))
    scale = numpyro.sample("scale", dist.HalfNormal(1).expand([2]))
    numpyro.sample("y", dist.Normal(x @ w + mixed[0, 1], scale[0]), obs=y)


def drawn_in_a_shape(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1), sample_shape=(3,))
    mixed = numpyro.sample("mixed", dist.Dirichlet(jnp.ones(3)), sample_shape=(2,))
    scale = numpyro.sample("scale", dist.HalfNormal(1), sample_shape=(2,))
    numpyro.sample("y", dist.Normal(x @ w + mixed[0, 1], scale[0]), obs=y)


@pytest.mark.parametrize(
    ("guide", "batch_size"),
    [
        (bmr.infer.AutoMeanField, 20),
        pytest.param(bmr.infer.AutoMultivariate, None, marks=pytest.mark.slow),
    ],
)
def test_sample_shape_is_the_shape_of_the_distribution(guide, batch_size):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3)).astype(np.float32)
    y = (x[:, 0] + 0.3 * rng.standard_normal(60)).astype(np.float32)
    of_shape, drawn = (
        bmr.sparsify(
            model,
            (x, y),
            key=jax.random.key(0),
            guide=guide(model),
            batch_size=batch_size,
            steps_per_epoch=20,
            num_epochs=3,
            progress=False,
        )
        for model in (shaped, drawn_in_a_shape)
    )
    # Starts are drawn in another order.
    assert drawn.vfe_per_datum == pytest.approx(of_shape.vfe_per_datum, abs=0.1)
    for name, value in drawn.center(x).items():
        assert value.shape == of_shape.center(x)[name].shape
    assert drawn.predict(jax.random.key(1), x[:4]).mean.shape == (4,)
