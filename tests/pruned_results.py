"""Results of made-up fits with some elements removed, for tests of what they give back."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal
from starting import started

import bmrjax as bmr
from bmrjax import infer

ROWS, SIZE = 30, 4
KEEP = jnp.array([True, False, True, False])
COLUMNS = ("age", "height", "weight", "income")


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    mean = numpyro.deterministic("mean", x @ beta)
    numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def by_hand(x=None, y=None):
    loc = numpyro.param("loc", jnp.linspace(1.0, 2.0, SIZE))
    spread = numpyro.param("spread", jnp.full(SIZE, 0.3), constraint=dist.constraints.positive)
    extra = numpyro.sample("extra", dist.Normal(0.0, 1.0), infer={"is_auxiliary": True})
    numpyro.sample("beta", dist.Normal(loc + 0 * extra, spread).to_event(1))
    numpyro.sample("scale", dist.LogNormal(numpyro.param("log_scale", jnp.array(-1.0)), 0.1))


GUIDES = {
    "mean field": infer.AutoMeanField,
    "numpyro": AutoNormal,
    "joint": infer.AutoMultivariate,
    "low rank": lambda model: infer.AutoLowRank(model, rank=2),
    "by hand": lambda _: by_hand,
}


def made_up(make_guide, model=program, keep=KEEP, given=None, **options):
    """Return a result with parameters that are made up; no fit is needed to look at what it returns."""
    guide = make_guide(model)
    params = dict(started(model, guide, *(given or data())))
    rng = np.random.default_rng(0)
    for name, value in params.items():
        if name.endswith("scale_tril"):
            n = value.shape[0]
            noise = jnp.asarray(rng.standard_normal((n, n)), jnp.float32)
            params[name] = jnp.linalg.cholesky(0.04 * (noise @ noise.T + jnp.eye(n)))
        elif name.endswith("cov_factor"):
            params[name] = jnp.asarray(0.5 * rng.standard_normal(value.shape), jnp.float32)
        elif name.endswith("loc"):
            params[name] = value + jnp.asarray(
                1 + 0.2 * rng.standard_normal(value.shape), jnp.float32
            )
    masks = {"beta": keep}
    if isinstance(guide, infer.CorrelatedGuide):
        params = guide.condition(params, {}, masks)
    return bmr.Result(
        params=params,
        keep=masks,
        layers={},
        num_data=ROWS,
        unpruned_model=model,
        unpruned_guide=guide,
        **options,
    )


def data():
    x = jax.random.normal(jax.random.key(0), (ROWS, SIZE))
    return x, 1.5 * x[:, 0] - x[:, 2] + 0.3 * jax.random.normal(jax.random.key(1), (ROWS,))


def assert_pruned(values):
    """Removed elements are zero, and those that are kept are not."""
    values = np.asarray(values)
    assert (values[..., ~KEEP] == 0).all()
    assert (values[..., KEEP] != 0).all()
