"""Programs that run once on the host."""

import jax
import jax.numpy as jnp
import numpy as np

from bmrjax.backend.on_host import on_host
from bmrjax.infer import init


def test_returns_what_the_function_does_keys_too():
    def program(key, x):
        return {"key": jax.random.split(key)[0], "y": 2.0 * x, "n": jnp.sum(x > 0)}

    key, x = jax.random.key(3), jnp.arange(3.0)
    found, expected = on_host(program, key, x), program(key, x)
    np.testing.assert_array_equal(
        jax.random.key_data(found["key"]), jax.random.key_data(expected["key"])
    )
    np.testing.assert_array_equal(found["y"], expected["y"])
    assert found["n"] == 2
    assert not found["y"].committed


def test_a_fit_starts_from_the_same_parameters(monkeypatch):
    import numpyro
    import numpyro.distributions as dist

    from bmrjax.infer import AutoMeanField, elbo

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1))
        numpyro.sample("y", dist.Normal(x @ w, scale), obs=y)

    batch = jnp.ones((8, 3)), jnp.ones(8)
    starts, calls = [], []
    monkeypatch.setattr(init, "on_host", lambda *args: calls.append(1) or on_host(*args))
    for backend in ("cpu", "an accelerator"):
        monkeypatch.setattr(init.jax, "default_backend", lambda backend=backend: backend)
        guide = AutoMeanField(model)
        start = init.initialise(model, guide, elbo("global"), jax.random.key(0), batch)
        starts.append(start.params)
    assert calls == [1]  # beside an accelerator only
    assert starts[0].keys() == starts[1].keys()
    for name, value in starts[0].items():
        np.testing.assert_array_equal(value, starts[1][name])
