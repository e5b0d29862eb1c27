"""What a first result waits for: programs that are compiled, and libraries that are loaded."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from bmrjax import criteria
from bmrjax.backend import quick_compile
from bmrjax.backend.quick_compile import has_options, options_for, quick_options
from bmrjax.criteria.order import default_order
from bmrjax.criteria.reduce_once import jit_reduce
from bmrjax.reduction import Normal

# As in the README, shorter: the run removes elements, and ends with a last pass.
FIRST_RUN = """
import sys
import jax, numpy as np, numpyro, numpyro.distributions as dist
import bmrjax as bmr

def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([20]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)

rng = np.random.default_rng(0)
x = rng.normal(size=(60, 20)).astype(np.float32)
y = (x[:, :3] @ [1.5, -2.0, 1.0] + 0.5 * rng.normal(size=60)).astype(np.float32)
key = jax.random.key(0)
made = []

def listen(event, _, **about):
    if event.endswith("backend_compile_duration"):
        made.append(about.get("fun_name"))

jax.monitoring.register_event_duration_secs_listener(listen)
result = bmr.sparsify(program, (x, y), key=key, batch_size=None, num_epochs=40, steps_per_epoch=25,
                      progress=False)
print(np.asarray(result.keep["beta"]).sum(), len(made), *made)
print(*{"equinox", "flax", "pydantic", "pandas", "matplotlib", "scipy.stats"} & {*sys.modules})
bmr.plot.path(result)
print(*{"scipy.stats"} & {*sys.modules})
"""


def test_a_first_fit_compiles_few_programs_and_loads_what_it_uses():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST_RUN],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    counts, loaded, for_plots = done.stdout.split("\n")[:3]
    kept, programs, *names = counts.split()
    assert int(kept) < 20
    assert int(programs) <= 13, names
    assert loaded == ""
    assert for_plots == ""


@pytest.mark.skipif(not has_options(), reason="this compiler has no such options")
def test_a_round_is_compiled_for_as_often_as_it_runs(monkeypatch):
    # A round over so many correlated elements takes a thousandth of a second, and a run has some ten.
    chosen = []

    def spy(*program, **settings):
        chosen.append(options_for(*program, **settings))
        return chosen[-1]

    monkeypatch.setattr(quick_compile, "options_for", spy)
    n = 130
    found = criteria.SitePosteriors(
        {"beta": Normal(jnp.zeros(n), jnp.full(n, 0.1))},
        {"beta": Normal(jnp.zeros(n), jnp.ones(n))},
        factors={"beta": 0.1 * jnp.eye(n)},
    )
    reduced = jit_reduce(criteria.SpikeAndSlab(), default_order)
    reduced(found, {"beta": jnp.ones(n, bool)}, None, np.float32(0.5))
    assert chosen == [quick_options()]
