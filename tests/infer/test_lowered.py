"""An epoch lowered for devices that are not here: one program, its buffers reused, nothing from the host."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

from bmrjax import criteria, infer, priors, programs, zoo
from bmrjax.infer import AutoMeanField, AutoMultivariate, Engine
from bmrjax.reduction import Normal

KEY = jax.random.key(0)
ROWS, BATCH, STEPS = 12, 4, 3
HOST = r"callback|infeed|outfeed|stablehlo\.(send|recv)"
DOUBLE = r"[x<]f64>"


class SmallConv(eqx.Module):
    """A convolution and a linear layer."""

    conv: eqx.nn.Conv2d
    linear: eqx.nn.Linear

    def __init__(self):
        self.conv = eqx.nn.Conv2d(1, 2, 3, key=KEY)
        self.linear = eqx.nn.Linear(2 * 4 * 4, 3, key=KEY)

    def __call__(self, x):
        return self.linear(jax.nn.relu(self.conv(x)).ravel())


def regression(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)


def classes(shape):
    x = jax.random.normal(KEY, (ROWS, *shape))
    return x, jnp.arange(ROWS) % 3


def classifier(network):
    return programs.classifier(network, priors.Flat())


MLP = zoo.MLP(5, (4,), 3, key=KEY)
OF = {
    "mlp": (classifier(MLP), classes((5,)), AutoMeanField, infer.elbo("global"), None),
    "mlp by local": (classifier(MLP), classes((5,)), AutoMeanField, infer.elbo("local"), None),
    "mlp in bfloat16": (
        classifier(MLP),
        classes((5,)),
        AutoMeanField,
        infer.elbo("global"),
        "bfloat16",
    ),
    "convolutions": (
        classifier(SmallConv()),
        classes((1, 6, 6)),
        AutoMeanField,
        infer.elbo("global"),
        None,
    ),
    "joint": (
        regression,
        (jax.random.normal(KEY, (ROWS, 5)), jnp.ones(ROWS)),
        AutoMultivariate,
        infer.elbo("global"),
        None,
    ),
}


def traced(name):
    """Return the traced program of an epoch, and the state that it starts from."""
    model, data, guide, loss, matmul_dtype = OF[name]
    engine = Engine(
        model,
        guide(model),
        optimizer=optax.adabelief(1e-2),
        loss=loss,
        num_data=ROWS,
        batch_size=BATCH,
        loop="fused",
        matmul_dtype=matmul_dtype,
    )
    state = engine.init(KEY, jax.tree.map(lambda a: a[:BATCH], data))
    keep = {name: jnp.ones(q.loc.shape, bool) for name, q in posteriors(engine, state, data)}
    carry = state, engine.steps.unwritten(STEPS)
    order = jnp.zeros(STEPS * BATCH, jnp.int32)
    return engine._epoch.traced(carry, data, order, keep, KEY, jnp.ones(())), carry


def posteriors(engine, state, data):
    batch = jax.tree.map(lambda a: a[:BATCH], data)
    found = engine.site_posteriors(state, batch).posterior
    return [(name, q) for name, q in found.items() if hasattr(q, "loc")]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", OF)
def test_an_epoch_is_one_program_of_the_device(name):
    program, carry = traced(name)
    for platform in ("cuda", "tpu"):
        text = program.lower(lowering_platforms=(platform,)).as_text()
        # All steps are in one loop of the program.
        assert "stablehlo.while" in text
        assert not re.search(HOST, text)
        assert not re.search(DOUBLE, text)
        main = next(line for line in text.splitlines() if "func.func public @main" in line)
        reused = len(re.findall(r"jax.buffer_donor = true|tf.aliasing_output", main))
        assert reused == len(jax.tree.leaves(carry))
        # Noise is computed once, not in each kernel that uses it.
        assert "joint" in name or "stablehlo.optimization_barrier" in text


def test_the_checks_see_what_they_look_for():
    def bad(x):
        jax.debug.callback(lambda y: None, x.sum())
        return x * 2

    text = jax.jit(bad).lower(jnp.ones(3)).as_text()
    assert re.search(HOST, text)
    assert not re.search(r"buffer_donor|aliasing_output", text)
    with jax.enable_x64(new_val=True):
        text = jax.jit(lambda x: x + 1).trace(np.ones(3)).lower(lowering_platforms=("tpu",))
        assert re.search(DOUBLE, text.as_text())


@pytest.mark.parametrize(
    "criterion", [criteria.SpikeAndSlab(), criteria.Shrinkage(), criteria.RegularizedHorseshoe()]
)
def test_a_reduction_is_one_program_of_the_device(criterion):
    model, data, guide, loss, _ = OF["mlp"]
    engine = Engine(
        model,
        guide(model),
        optimizer=optax.adabelief(1e-2),
        loss=loss,
        num_data=ROWS,
        batch_size=BATCH,
    )
    batch = jax.tree.map(lambda a: a[:BATCH], data)
    sites = engine.site_posteriors(engine.init(KEY, batch), batch)
    keep = {name: jnp.ones(q.loc.shape, bool) for name, q in sites.posterior.items()}
    inputs, structure = jax.tree.flatten((sites, keep, criterion.init(sites.posterior)))

    def reduced(*inputs):
        sites, keep, memory = jax.tree.unflatten(structure, inputs)
        return jax.tree.leaves(criterion(sites, keep, memory))

    for platform in ("cuda", "tpu"):
        text = jax.jit(reduced).trace(*inputs).lower(lowering_platforms=(platform,)).as_text()
        assert not re.search(HOST, text)
        assert not re.search(DOUBLE, text)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="counts what the CPU's compiler makes")
@pytest.mark.parametrize(
    ("criterion", "fusions"), [(criteria.Shrinkage(), 3), (criteria.SpikeAndSlab(), 4)]
)
def test_a_reduction_reads_its_weights_a_few_times(criterion, fusions):
    size = 2**16
    loc = jax.random.normal(KEY, (size,))
    posterior = {"w": Normal(loc, jnp.full(size, 0.05))}
    sites = criteria.SitePosteriors(
        posterior, {"w": Normal(jnp.zeros(size), jnp.ones(size))}, {"w": "w"}
    )
    memory = criterion.init(posterior)
    program = jax.jit(lambda sites, keep: criterion(sites, keep, memory).keep)
    compiled = program.lower(sites, {"w": jnp.ones(size, bool)}).compile()
    # What is done with all weights, and not within one loop over them with what comes before or after.
    body = compiled.as_text().split("ENTRY")[1]
    results = re.findall(rf"= \w+\[{size}\]\S* ([\w-]+)\(", body)
    assert set(results) == {"parameter", "fusion"}
    assert results.count("fusion") <= fusions
    # Their four moments and the masks are 17 bytes per weight; nothing but two arrays is written in between.
    assert compiled.memory_analysis().temp_size_in_bytes <= 8.1 * size
