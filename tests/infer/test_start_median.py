"""Sites without a start of their own begin where NumPyro's ``init_to_median`` puts them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.initialization import init_to_median

from bmrjax.infer import init_to_network


def started(strategy, fn):
    def program():
        with numpyro.plate("groups", 3):
            numpyro.sample("z", fn)

    seeded = numpyro.handlers.seed(program, jax.random.key(3))
    given = numpyro.handlers.substitute(seeded, substitute_fn=strategy())
    return numpyro.handlers.trace(given).get_trace()["z"]["value"]


@pytest.mark.parametrize(
    "fn",
    [
        dist.Normal(1.0, 2.0),
        dist.HalfCauchy(1.0),
        dist.Gamma(0.5, 2.0),
        dist.Beta(2.0, 3.0),
        dist.Dirichlet(jnp.ones(4)),
        dist.LKJCholesky(3),
        dist.TransformedDistribution(dist.Normal(0.0, 1.0), dist.transforms.ExpTransform()),
        dist.ImproperUniform(dist.constraints.positive, (), ()),
    ],
    ids=lambda fn: type(fn).__name__,
)
def test_the_start_is_numpyros(fn):
    found, expected = started(init_to_network, fn), started(init_to_median, fn)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.shape == expected.shape
