"""Held-out metrics against a direct computation with NumPyro from the same posterior samples."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import logsumexp
from numpyro.infer import Predictive, log_likelihood
from numpyro.infer.autoguide import AutoNormal

from bmrjax import metrics
from bmrjax.handlers import fast_noise, prune
from bmrjax.infer.evaluate import Evaluator
from bmrjax.run.calibration import interval_coverage, predicted_classes, reliability_bins

ROWS, SAMPLES = 25, 6


def coefficients(*shape):
    return numpyro.sample("beta", dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape)))


def normal(x, y=None):
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    numpyro.sample("y", dist.Normal(x @ coefficients(3), scale), obs=y)


def poisson(x, y=None):
    numpyro.sample("y", dist.Poisson(jnp.exp(x @ coefficients(3))), obs=y)


def bernoulli(x, y=None):
    numpyro.sample("y", dist.Bernoulli(logits=x @ coefficients(3)), obs=y)


def categorical(x, y=None):
    logits = x @ coefficients(3, 4)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


def two_outputs(x, y=None):
    numpyro.sample("y", dist.Normal(x @ coefficients(3, 2), 0.5).to_event(1), obs=y)


def two_plates(x, y=None):
    beta = coefficients(2, 3)
    with numpyro.plate("outputs", 2, dim=-2), numpyro.plate("data", x.shape[0], dim=-1):
        numpyro.sample("y", dist.Normal(beta @ x.T, 0.5), obs=y)


def two_sites(x, y=None, z=None):
    beta = coefficients(3)
    numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)
    numpyro.sample("z", dist.Poisson(jnp.exp(x @ beta)), obs=z)


def inputs():
    return jax.random.normal(jax.random.key(0), (ROWS, 3))


TARGETS = {
    normal: jnp.linspace(-1.0, 1.0, ROWS),
    poisson: jnp.arange(ROWS) % 4,
    bernoulli: jnp.arange(ROWS) % 2,
    categorical: jnp.arange(ROWS) % 4,
    two_outputs: jnp.linspace(-1.0, 1.0, 2 * ROWS).reshape(ROWS, 2),
}


def fitted(model, *data):
    """Return a guide with made-up parameters; no fit is needed to evaluate one."""
    guide = AutoNormal(model, init_scale=0.3)
    begun = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(1e-3), numpyro.infer.Trace_ELBO())
    state = begun.init(jax.random.key(1), *data)
    return guide, begun.get_params(state)


def posterior_samples(guide, params, keep, key):
    """Draw what the evaluator draws: sample i comes from fold_in(key, i)."""
    found = []
    for i in range(SAMPLES):
        guide_key, _ = jax.random.split(jax.random.fold_in(key, i))
        seeded = numpyro.handlers.seed(prune(fast_noise(guide), keep), guide_key)
        substituted = numpyro.handlers.substitute(seeded, data=params)
        trace = numpyro.handlers.trace(substituted).get_trace(inputs())
        found.append({k: s["value"] for k, s in trace.items() if s["type"] == "sample"})
    return jax.tree.map(lambda *a: jnp.stack(a), *found)


def mask(model):
    shape = {categorical: (3, 4), two_outputs: (3, 2)}.get(model, (3,))
    keep = jnp.arange(np.prod(shape)).reshape(shape) % 3 != 1
    return {"beta": keep}


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(
    ("model", "batch_size"),
    [*((model, 1000) for model in TARGETS), (normal, 10), (categorical, 10)],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_likelihood_and_mean_are_those_of_the_posterior_samples(model, batch_size):
    data, key, keep = (inputs(), TARGETS[model]), jax.random.key(2), mask(model)
    guide, params = fitted(model, *data)
    evaluator = Evaluator(model, guide, batch_size=batch_size)
    found = evaluator.predict(params, keep, data, key, num_samples=SAMPLES)

    samples = posterior_samples(guide, params, keep, key)
    expected = log_likelihood(model, samples, *data)["y"]
    expected = expected.reshape(SAMPLES, ROWS, -1).sum(-1)
    expected = logsumexp(expected, 0) - jnp.log(SAMPLES)
    np.testing.assert_allclose(found.log_prob, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.value, TARGETS[model])

    linear = jnp.einsum("ri,si...->sr...", inputs(), samples["beta"])
    means = {
        normal: lambda: linear,
        two_outputs: lambda: linear,
        poisson: lambda: jnp.exp(linear),
        bernoulli: lambda: jnp.stack([jax.nn.sigmoid(-linear), jax.nn.sigmoid(linear)], -1),
        categorical: lambda: jax.nn.softmax(linear, -1),
    }
    np.testing.assert_allclose(found.mean, means[model]().mean(0), rtol=1e-4, atol=1e-5)
    assert found.is_probability == (model in (bernoulli, categorical))


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("model", [normal, categorical, bernoulli], ids=lambda m: m.__name__)
def test_metrics_are_those_of_the_prediction(model):
    data, key = (inputs(), TARGETS[model]), jax.random.key(2)
    guide, params = fitted(model, *data)
    evaluator = Evaluator(model, guide)
    prediction = evaluator.predict(params, {}, data, key, num_samples=SAMPLES)
    found = evaluator.metrics(params, {}, data, key, num_samples=SAMPLES)
    assert found["nll"] == pytest.approx(-float(prediction.log_prob.mean()), rel=1e-6)
    if model is normal:
        error = np.sqrt(np.mean((np.asarray(prediction.mean) - np.asarray(data[1])) ** 2))
        assert found == {"nll": found["nll"], "rmse": pytest.approx(float(error), rel=1e-5)}
    else:
        right = np.asarray(prediction.mean).argmax(-1) == np.asarray(data[1])
        assert set(found) == {"nll", "accuracy", "ece"}
        assert found["accuracy"] == pytest.approx(right.mean(), abs=1e-6)
        ece = metrics.expected_calibration_error(prediction.mean, data[1])
        assert found["ece"] == pytest.approx(float(ece))


@pytest.mark.parametrize("batch_size", [1000, 10])
def test_data_on_the_last_axis(batch_size):
    # The same regression, written with the data in the last plate.
    x, y = inputs(), TARGETS[two_outputs]
    guide, params = fitted(two_plates, x, y.T)
    evaluator = Evaluator(two_plates, guide, batch_size=batch_size)
    found = evaluator.predict(params, {}, (x,), jax.random.key(3), num_samples=SAMPLES)
    assert found.value.shape == (ROWS, 2)
    assert found.log_prob.shape == (ROWS,)
    samples = posterior_samples(guide, params, {}, jax.random.key(3))["beta"]
    expected = jnp.einsum("ri,soi->ro", x, samples) / SAMPLES
    np.testing.assert_allclose(found.mean, expected, rtol=1e-4, atol=1e-5)


def test_as_many_rows_as_outputs_are_predicted_as_among_others():
    x, y = inputs(), TARGETS[two_outputs]
    guide, params = fitted(two_plates, x, y.T)
    evaluator, key = Evaluator(two_plates, guide), jax.random.key(3)
    two, three = (evaluator.predict(params, {}, (x[:n],), key, num_samples=SAMPLES) for n in (2, 3))
    np.testing.assert_allclose(two.mean, three.mean[:2], rtol=1e-4)


def with_pseudo_data(x, y=None):
    beta = coefficients(3)
    numpyro.sample("pseudo", dist.Normal(beta, 0.1), obs=jnp.ones(3))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def test_as_many_rows_as_values_of_another_site_are_predicted_as_among_others():
    x, y = inputs(), TARGETS[normal]
    guide, params = fitted(with_pseudo_data, x, y)
    evaluator, key = Evaluator(with_pseudo_data, guide), jax.random.key(3)
    three, four = (
        evaluator.predict(params, {}, (x[:n], y[:n]), key, num_samples=SAMPLES) for n in (3, 4)
    )
    np.testing.assert_allclose(three.mean, four.mean[:3], rtol=1e-4)
    np.testing.assert_allclose(three.log_prob, four.log_prob[:3], rtol=1e-4)


def test_a_plate_that_takes_rows_itself_predicts_none_that_are_given():
    def subsampling(x, y=None):
        beta = coefficients(3)
        with numpyro.plate("N", ROWS, subsample_size=5) as index:
            taken = None if y is None else y[index]
            numpyro.sample("y", dist.Normal(x[index] @ beta, 0.5), obs=taken)

    data = (inputs(), TARGETS[normal])
    guide, params = fitted(subsampling, *data)
    for rows in (5, ROWS):
        part = jax.tree.map(lambda a, n=rows: a[:n], data)
        with pytest.raises(ValueError, match="plate 'N' takes 5 of 25 rows itself"):
            Evaluator(subsampling, guide).predict(
                params, {}, part, jax.random.key(0), num_samples=2
            )


def test_a_plate_as_long_as_the_batch_predicts_all_of_it():
    def counted(x, y=None):
        beta = coefficients(3)
        with numpyro.plate("N", ROWS, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)

    x, y = inputs(), TARGETS[normal]
    guide, params = fitted(counted, x, y)
    evaluator, key = Evaluator(counted, guide), jax.random.key(3)
    found = [
        evaluator.predict(params, {}, (x[:n],), key, num_samples=SAMPLES).mean for n in (5, ROWS)
    ]
    np.testing.assert_allclose(found[0], found[1][:5], rtol=1e-4)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("likelihood", "like"),
    [
        (lambda mean: dist.Normal(mean, 0.5), normal),
        (lambda mean: dist.Bernoulli(logits=mean), bernoulli),
        (lambda mean: dist.Normal(mean, 0.5).to_event(1), two_outputs),
    ],
    ids=["normal", "bernoulli", "two outputs"],
)
def test_what_is_masked_does_not_count(likelihood, like):
    """The metrics are those of the rows that count; others hold numbers that stand for nothing."""
    counts, targets = jnp.arange(ROWS) % 3 > 0, TARGETS[like]

    def masked(x, counts, y=None):
        beta = coefficients(3, *targets.shape[1:])
        with numpyro.handlers.mask(mask=counts):
            numpyro.sample("y", likelihood(x @ beta), obs=y)

    fillers = jnp.where(counts.reshape(-1, *[1] * (targets.ndim - 1)), targets, 77)
    guide, params = fitted(masked, inputs(), counts, fillers)
    rest = tuple(a[np.flatnonzero(counts)] for a in (inputs(), counts, targets))
    found, expected = (
        Evaluator(masked, guide, batch_size=10).metrics(
            params, {}, data, jax.random.key(5), num_samples=SAMPLES
        )
        for data in ((inputs(), counts, fillers), rest)
    )
    assert found == pytest.approx(expected, rel=1e-4)
    # Nor in calibration.
    evaluator, options = Evaluator(masked, guide), {"num_samples": 50, "return_samples": True}
    calibrations = []
    for data in ((inputs(), counts, fillers), rest):
        seen = evaluator.predict(params, {}, data, jax.random.key(5), **options)
        found = (
            reliability_bins(*predicted_classes(seen))
            if seen.is_probability
            else interval_coverage(seen)
        )
        calibrations.append((int(found["count"].max()), *found["observed"]))
    if like is bernoulli:
        np.testing.assert_allclose(*calibrations)
    else:  # draws are those of other rows
        np.testing.assert_allclose(*calibrations, atol=0.15)
        assert calibrations[0][0] == rest[2].size
    data = inputs(), jnp.zeros(ROWS, bool), fillers
    with pytest.raises(ValueError, match="All rows are masked"):
        Evaluator(masked, guide).metrics(params, {}, data, jax.random.key(5), num_samples=1)


def test_several_observed_sites_add_up():
    x = inputs()
    y, z = TARGETS[normal], TARGETS[poisson]
    guide, params = fitted(two_sites, x, y, z)
    key = jax.random.key(4)
    found = Evaluator(two_sites, guide).predict(params, {}, (x, y, z), key, num_samples=SAMPLES)
    samples = posterior_samples(guide, params, {}, key)
    both = log_likelihood(two_sites, samples, x, y, z)
    expected = logsumexp(both["y"] + both["z"], 0) - jnp.log(SAMPLES)
    np.testing.assert_allclose(found.log_prob, expected, rtol=1e-4)
    assert found.site == "y"


def test_sites_without_values_do_not_count_where_others_have_some():
    x, y, z = inputs(), TARGETS[normal], TARGETS[poisson]
    guide, params = fitted(two_sites, x, y, z)
    evaluator, key = Evaluator(two_sites, guide), jax.random.key(4)
    found = evaluator.metrics(params, {}, (x, y), key, num_samples=SAMPLES)
    samples = posterior_samples(guide, params, {}, key)
    of_y = log_likelihood(two_sites, samples, x, y, z)["y"]
    expected = -(logsumexp(of_y, 0) - jnp.log(SAMPLES)).mean()
    assert found["nll"] == pytest.approx(float(expected), rel=1e-4)
    # Nothing has values: these would be the metrics of its own draws.
    with pytest.raises(ValueError, match="have no targets"):
        evaluator.metrics(params, {}, (x,), key, num_samples=SAMPLES)
    # What was looked at in between does not count.
    again = evaluator.metrics(params, {}, (x, y), key, num_samples=SAMPLES)
    assert again == found


def test_a_discrete_site_that_the_loss_sums_over_is_no_target():
    def mixture(x, y=None):
        loc = numpyro.sample("loc", dist.Normal(0, 5).expand([2]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            kind = numpyro.sample("kind", dist.Bernoulli(0.7), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(loc[kind], 1.0), obs=y)

    def guide(x, y=None):
        numpyro.sample("loc", dist.Normal(jnp.array([-1.0, 1.0]), 1e-4).to_event(1))

    x, y = inputs(), TARGETS[normal]
    evaluator, key = Evaluator(mixture, guide), jax.random.key(4)
    found = evaluator.metrics({}, {}, (x, y), key, num_samples=2000)
    of_kind = [dist.Normal(loc, 1.0).log_prob(y) for loc in (-1.0, 1.0)]
    expected = -jnp.logaddexp(jnp.log(0.3) + of_kind[0], jnp.log(0.7) + of_kind[1]).mean()
    # 2,000 draws of a kind for each of 25 rows.
    assert found["nll"] == pytest.approx(float(expected), abs=0.02)
    predicted = evaluator.predict({}, {}, (x,), key, num_samples=500)
    assert not predicted.is_probability
    np.testing.assert_allclose(predicted.mean, 0.4, atol=0.25)  # six standard errors


def test_without_targets_it_predicts_the_same():
    x, y = inputs(), TARGETS[categorical]
    guide, params = fitted(categorical, x, y)
    evaluator = Evaluator(categorical, guide)
    key = jax.random.key(5)
    seen = evaluator.predict(params, {}, (x, y), key, num_samples=SAMPLES)
    blind = evaluator.predict(params, {}, (x,), key, num_samples=SAMPLES)
    np.testing.assert_allclose(blind.mean, seen.mean, rtol=1e-6)


def test_predictive_of_numpyro_agrees():
    x, y = inputs(), TARGETS[normal]
    guide, params = fitted(normal, x, y)
    found = Evaluator(normal, guide).predict(params, {}, (x,), jax.random.key(6), num_samples=400)
    draws = Predictive(normal, guide=guide, params=params, num_samples=4000)(jax.random.key(7), x)
    # Standard errors: 0.05 of our 400 samples and 0.02 of theirs, times |x| < 4.
    np.testing.assert_allclose(found.mean, draws["y"].mean(0), atol=0.3)


def test_a_likelihood_that_is_not_by_datum_is_refused():
    def joint(x, y=None):
        numpyro.sample("y", dist.Normal(x @ coefficients(3), 1.0).to_event(1), obs=y)

    data = (inputs(), TARGETS[normal])
    guide, params = fitted(joint, *data)
    with pytest.raises(ValueError, match=r"site 'y' has log probabilities of shape \(\) for 25"):
        Evaluator(joint, guide).predict(params, {}, data, jax.random.key(0), num_samples=2)


def test_targets_in_a_column_are_refused_as_in_a_fit():
    data = (inputs(), TARGETS[normal])
    guide, params = fitted(normal, *data)
    column = data[0], data[1][:, None]
    with pytest.raises(
        ValueError, match=r"predict: the observed values of 'y' have shape \(25, 1\)"
    ):
        Evaluator(normal, guide).predict(params, {}, column, jax.random.key(0), num_samples=2)


def test_a_program_without_observations_is_refused():
    def silent(x):
        coefficients(3)

    guide, params = fitted(silent, inputs())
    with pytest.raises(ValueError, match="no observed site"):
        Evaluator(silent, guide).predict(params, {}, (inputs(),), jax.random.key(0), num_samples=2)
