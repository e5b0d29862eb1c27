"""Arrays that were given one by one are an error that says how they go together."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

import bmrjax as bmr

X, Y, KEY = jnp.ones((8, 2)), jnp.zeros(8), jax.random.key(0)


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bmr.sparsify(program, X, Y, key=KEY), "sparsify takes model and data by position"),
        (lambda: bmr.ensemble(program, X, Y, keys=[KEY]), "ensemble takes model and data by"),
        (lambda: bmr.reduce_fit({"beta": X}, program, (X, Y)), "reduce_fit takes fit by position"),
        (lambda: bmr.reduce_network(program, X, Y), "reduce_network takes network and data by"),
        (lambda: bmr.Fit(program, (X, Y)).init(KEY, X), r"init takes key by .* got 2 arguments"),
    ],
)
def test_arrays_one_by_one_are_refused_with_what_to_write(call, message):
    with pytest.raises(TypeError, match=f"{message}.*one argument, such as .x, y.; the others"):
        call()
