"""What a batch means: rows, constants, and programs that minibatches would change."""

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.contrib.module import random_flax_module
from numpyro.infer import TraceMeanField_ELBO

import bmrjax as bmr
from bmrjax.infer import FreeEnergy
from bmrjax.infer.arguments import arguments, length
from bmrjax.infer.check_data import check_data, column_names, row_paths
from bmrjax.infer.program_data import program_data
from bmrjax.infer.row_sites import row_sites

ROWS = 90
KEY = jax.random.key(0)
_rng = np.random.default_rng(0)
X = _rng.normal(size=(ROWS, 2)).astype("f4")
Y = (X @ np.array([1.0, -1.0]) + _rng.normal(size=ROWS)).astype("f4")
GROUP = _rng.integers(0, 3, ROWS)


def coefficients():
    return numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))


def regression(x, y=None):
    numpyro.sample("y", dist.Normal(x @ coefficients(), 1.0), obs=y)


def fit(program, data, **settings):
    settings = {"criterion": None, "batch_size": None, "progress": False, "key": KEY} | settings
    return bmr.sparsify(program, data, **settings)


# --- arguments ----------------------------------------------------------------------------


def test_what_has_no_rows_reaches_the_program_as_it_is():
    nested = {"x": X, "names": ["a", "b"], "scale": np.float32(2.0)}
    data = check_data((3, None, "text", nested, np.arange(7), GROUP), "data")
    seen = []

    @jax.jit
    def run(batch):
        seen.append(arguments(batch)[0])
        return jax.tree.leaves(batch)[0].sum()

    run(jax.tree.map(lambda a: a[:10], data))
    run(jax.tree.map(lambda a: a[10:20], data))
    assert len(seen) == 1  # the constants are a part of the structure, and equal
    number, none, text, found, index, group = seen[0]
    assert (number, none, text, found["names"]) == (3, None, "text", ["a", "b"])
    np.testing.assert_array_equal(np.unique(index), np.arange(7))
    assert found["x"].shape == (10, 2)
    assert group.shape == (10,)
    assert (length(data), row_paths(data)) == (ROWS, ("3/x", "5"))


def test_other_constants_are_another_structure():
    one, other = (check_data((X, scale), "data") for scale in (1.0, 2.0))
    same = check_data((X, 1.0), "data")
    structures = [jax.tree.structure(data) for data in (one, other, same)]
    assert structures[0] == structures[2]
    assert structures[0] != structures[1]
    arrays = [check_data((X, np.full(3, value)), "data") for value in (1.0, 2.0, 1.0)]
    assert jax.tree.structure(arrays[0]) == jax.tree.structure(arrays[2])
    assert jax.tree.structure(arrays[0]) != jax.tree.structure(arrays[1])


def test_static_arguments_keep_their_rows():
    data = check_data({"x": X, "group": GROUP}, "data", static=["group"])
    assert row_paths(data) == ("x",)
    np.testing.assert_array_equal(arguments(data)[1]["group"], GROUP)
    with pytest.raises(ValueError, match=r"static names \['grop'\], and the arguments are"):
        check_data({"x": X, "group": GROUP}, "data", static=["grop"])


def test_a_table_gives_its_numbers_and_its_names():
    import pandas as pd

    table = pd.DataFrame(X, columns=["height", "weight"])
    found = check_data((table, Y), "data")
    np.testing.assert_array_equal(found[0], X)
    assert column_names((table, Y)) == {"0": ("height", "weight")}
    words = pd.DataFrame({"town": ["a", "b"]})
    with pytest.raises(ValueError, match=r"data\[0\] holds object|data\[0\] holds str"):
        check_data((words, [1.0, 2.0]), "data")


def test_the_length_of_the_likelihood_says_what_has_rows():
    tables = [np.arange(7.0), np.ones(7), np.zeros(7), np.ones(7)]

    def program(a, b, c, d, group, x, y=None):
        level = coefficients()
        mean = level[0] * jnp.asarray(a + b + c + d)[group] + level[1] * x
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    data = (*tables, GROUP, X[:, 0], Y)
    assert row_paths(check_data(data, "data")) == ("0", "1", "2", "3")
    found = program_data(program, data, batch_size=None)
    assert (length(found), row_paths(found)) == (ROWS, ("4", "5", "6"))


def test_arrays_of_unequal_length_are_named_where_the_program_fails():
    with pytest.raises(ValueError, match=r"\{'0': 90, '1': 89\} rows, and the program fails"):
        fit(lambda x, y: numpyro.sample("y", dist.Normal(x[:, 0] + y, 1.0), obs=y), (X, Y[1:]))


# --- all rows in every step ---------------------------------------------------------------


def test_latent_values_belong_to_their_rows():
    y = np.r_[np.full(20, 3.0), np.zeros(20)].astype("f4")

    def program(y):
        z = numpyro.sample("z", dist.Normal(0, 5).expand([40]).to_event(1))
        numpyro.sample("y", dist.Normal(z, 0.5), obs=y)

    result = fit(program, (y,), steps_per_epoch=60, num_epochs=20)
    exact = y * 25 / 25.25
    np.testing.assert_allclose(result.params["z_auto_loc"], exact, atol=0.35)


def test_a_time_series_is_fitted_in_its_order():
    noise = _rng.normal(size=ROWS)
    y = np.zeros(ROWS, "f4")
    for t in range(1, ROWS):
        y[t] = 0.8 * y[t - 1] + noise[t]

    def program(y):
        slope = numpyro.sample("slope", dist.Normal(0, 1))

        def step(before, now):
            numpyro.sample("y", dist.Normal(slope * before, 1.0), obs=now)
            return now, None

        scan(step, y[0], y[1:])

    result = fit(program, (y,), steps_per_epoch=100, num_epochs=5)
    precision = 1 + np.sum(y[:-1] ** 2)
    exact = np.sum(y[1:] * y[:-1]) / precision
    np.testing.assert_allclose(result.params["slope_auto_loc"], exact, atol=0.05)
    with pytest.raises(ValueError, match="the log density of 'y' .*batch_size=None"):
        fit(program, (y,), batch_size=32)


def test_values_are_read_where_every_step_sees_all_rows():
    def program(x, group, y=None):
        levels = np.unique(group)
        a = numpyro.sample("a", dist.Normal(0, 1).expand([len(levels)]).to_event(1))
        numpyro.sample("y", dist.Normal(a[group] + x[:, 0], 1.0), obs=y)

    data = (X, GROUP, Y)
    found = program_data(program, data, batch_size=None)
    assert row_paths(found) == ("0", "2")
    result = fit(program, data, num_epochs=1, steps_per_epoch=2)
    assert result.params["a_auto_loc"].shape == (3,)
    assert result.predict(KEY, X[:5], GROUP[:5]).mean.shape == (5,)
    with pytest.raises(
        ValueError, match=r"reads the values .*static= of FitOptions, or fit with batch_size=None"
    ):
        fit(program, data, batch_size=30)


def test_a_program_without_arguments_is_fitted():
    def program():
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=jnp.array([1.0, 2.0, 3.0]))

    result = fit(program, (), num_epochs=5, steps_per_epoch=100)
    np.testing.assert_allclose(result.params["mean_auto_loc"], 1.5, atol=0.1)


def test_missing_values_are_left_to_a_program_that_imputes_them():
    x = X.copy()
    x[3, 0] = np.nan

    def imputing(x, y=None):
        missing = np.isnan(x)
        fill = numpyro.sample("fill", dist.Normal(0, 1).expand([int(missing.sum())]).to_event(1))
        full = jnp.asarray(np.where(missing, 0.0, x)).at[np.nonzero(missing)].set(fill)
        numpyro.sample("y", dist.Normal(full @ coefficients(), 1.0), obs=y)

    assert np.isfinite(fit(imputing, (x, Y), num_epochs=1, steps_per_epoch=2).vfe)
    with pytest.raises(ValueError, match=r"data\[0\] has NaN or infinite values in 1 of 90 rows"):
        fit(regression, (x, Y), num_epochs=1, steps_per_epoch=2)


def test_parameters_may_be_trees():
    class Network(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x):
            return flax.linen.Dense(1)(x)

    def program(x, y=None):
        network = random_flax_module("net", Network(), prior=dist.Normal(0, 1), input_shape=(2,))
        numpyro.sample("y", dist.Normal(network(x)[:, 0], 1.0), obs=y)

    result = fit(program, (X, Y), num_epochs=3, steps_per_epoch=100)
    kernel = result.params["net/Dense_0.kernel_auto_loc"]
    np.testing.assert_allclose(kernel[:, 0], [1.0, -1.0], atol=0.3)


# --- minibatches --------------------------------------------------------------------------


def penalised(x, y=None):
    b = coefficients()
    numpyro.factor("penalty", -5.0 * jnp.square(b))
    numpyro.sample("z", dist.Normal(b.sum(), 1.0), obs=0.0)
    numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def test_only_what_has_an_entry_per_row_is_scaled():
    # The factor has as many entries as a batch has rows, and belongs to no row all the same.
    assert row_sites(penalised, (X, Y), KEY) == {"y": 0}
    data = jax.tree.map(jnp.asarray, (X, Y))
    guide = bmr.infer.AutoMeanField(penalised)
    params = {"b_auto_loc": jnp.array([0.5, -0.5]), "b_auto_scale": jnp.full(2, 1e-4)}
    numpyro.handlers.seed(guide, KEY)(*data)

    def measured(size):
        options = {"loss": TraceMeanField_ELBO(), "batch_size": size, "row_sites": {"y"}}
        return FreeEnergy(penalised, guide, **options)(params, {}, data, KEY)

    exact = TraceMeanField_ELBO().loss(KEY, params, penalised, guide, *data)
    for size in (ROWS, 30, 2, 64):  # 64 leaves a batch of 26
        np.testing.assert_allclose(measured(size), exact, rtol=1e-4)


def test_a_fit_in_minibatches_is_that_of_all_rows():
    result = fit(penalised, (X, Y), batch_size=10, steps_per_epoch=100, num_epochs=8)
    # The precision of b: its prior, the factor, the observed sum, and the rows.
    precision = (1 + 10) * np.eye(2) + np.ones((2, 2)) + X.T @ X
    exact = np.linalg.solve(precision, X.T @ Y)
    np.testing.assert_allclose(result.params["b_auto_loc"], exact, atol=0.08)


def test_every_row_counts_in_a_measured_free_energy():
    result = fit(regression, (X, Y), batch_size=40, steps_per_epoch=20, num_epochs=2)
    spoilt = Y.copy()
    spoilt[80:] = 1e3
    whole = result.free_energy(KEY, (X, Y), batch_size=ROWS)
    for size in (40, 7):
        np.testing.assert_allclose(
            result.free_energy(KEY, (X, Y), batch_size=size), whole, rtol=0.01
        )
        assert result.free_energy(KEY, (X, spoilt), batch_size=size) > 4e6
    report = bmr.free_energy_report(
        regression, result.guide, result.params, (X, spoilt), key=KEY, points=2, batch_size=40
    )
    assert report.start > 4e6


def subsampling(x, y=None):
    b = coefficients()
    with numpyro.plate("N", ROWS, subsample_size=20) as index:
        numpyro.sample("y", dist.Normal(x[index] @ b, 1.0), obs=None if y is None else y[index])


def process(x, y=None):
    length = numpyro.sample("length", dist.HalfNormal(1.0))
    distance = jnp.square(x[:, :1] - x[:, 0])
    covariance = jnp.exp(-distance / length) + jnp.eye(x.shape[0])
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), covariance), obs=y)


def centred(x, y=None):
    numpyro.sample("y", dist.Normal((x - x.mean(0)) @ coefficients(), 1.0), obs=y)


def lagged(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(b * y[:-1], 1.0), obs=y[1:])


def summed(x, y=None):
    likelihood = dist.Normal(x @ coefficients(), 1.0)
    numpyro.factor("ll", likelihood.log_prob(y).sum())


def plated(x, y=None):
    b = coefficients()
    with numpyro.plate("N", ROWS):
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def local(x, y=None):
    with numpyro.plate("N", x.shape[0]):
        offset = numpyro.sample("offset", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(offset, 1.0), obs=y)


def scaled_by_hand(x, y=None):
    b = coefficients()
    with numpyro.handlers.scale(scale=ROWS / x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def weights_of_a_batch(x, y=None):
    b, weights = coefficients(), jnp.abs(x[:, 0])
    with numpyro.handlers.scale(scale=weights / weights.mean()):
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def prior_of_a_batch(x, y=None):
    b = numpyro.sample("b", dist.Normal(0, 2.5 / x.std(0)).to_event(1))
    numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def prior_of_a_number(x, y=None):
    b = numpyro.sample("b", dist.Normal(0, 1 / jnp.sqrt(x.shape[0])).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)


def counted_in_a_factor(x, y=None):
    likelihood = dist.Normal(x @ coefficients(), 1.0)
    numpyro.factor("ll", ROWS / len(x) * likelihood.log_prob(y))


REFUSED = {
    scaled_by_hand: "the log density of 'y' itself by a factor that depends on the rows or on their number",
    weights_of_a_batch: "the log density of 'y' itself by a factor that depends on the rows",
    prior_of_a_batch: "the prior of 'b' depends on the rows or on their number",
    prior_of_a_number: "the prior of 'b' depends on the rows or on their number",
    counted_in_a_factor: "the log density of 'll' at a row depends on other rows or on the row's position",
    subsampling: "plate 'N' takes 20 of 90 rows itself, so 'y' does not belong",
    process: r"the log density of 'y' depends on the rows and has shape \(\)",
    centred: "the log density of 'y' at a row depends on other rows",
    lagged: r"the log density of 'y' depends on the rows and has shape \(",
    summed: r"the log density of 'll' depends on the rows and has shape \(\)",
    plated: "runs on all 90 rows and fails on a batch of 30: the plate 'N' has size 90",
    local: r"latent sites \['offset'\] have one element per data point",
}


@pytest.mark.parametrize(
    ("program", "message"), REFUSED.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_a_program_that_minibatches_would_change_is_refused(program, message):
    with pytest.raises(ValueError, match=message) as caught:
        fit(program, (X, Y), batch_size=30)
    assert "batch_size=None" in str(caught.value)


def test_rows_that_the_program_itself_counts_are_accepted():
    def counted(x, y=None):
        b = coefficients()
        with numpyro.plate("N", ROWS, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)

    assert row_sites(counted, (X, Y), KEY) == {"y": 0}
    with_rows = fit(regression, (X, Y), batch_size=30, steps_per_epoch=10, num_epochs=2)
    with_plate = fit(counted, (X, Y), batch_size=30, steps_per_epoch=10, num_epochs=2)
    np.testing.assert_allclose(with_plate.vfe, with_rows.vfe, rtol=1e-3)


def test_weights_of_rows_are_accepted():
    def weighted(x, y=None):
        b = coefficients()
        with numpyro.handlers.scale(scale=0.5), numpyro.handlers.scale(scale=jnp.abs(x[:, 0])):
            numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)

    assert row_sites(weighted, (X, Y), KEY) == {"y": 0}


def test_randomness_of_the_program_s_own_is_no_dependence():
    def dropped(x, y=None):
        keep = jax.random.bernoulli(numpyro.prng_key(), 0.5, x.shape)
        numpyro.sample("y", dist.Normal((x * keep) @ coefficients(), 1.0), obs=y)

    assert row_sites(dropped, (X, Y), KEY) == {"y": 0}


@pytest.mark.filterwarnings("ignore:subsample_size does not match")
def test_a_plate_that_takes_more_rows_than_are_looked_at_is_named():
    def model(x, y):
        b = coefficients()
        with numpyro.plate("N", x.shape[0], subsample_size=80):
            rows = [numpyro.subsample(a, event_dim=a.ndim - 1) for a in (x, y)]
            numpyro.sample("y", dist.Normal(rows[0] @ b, 1.0), obs=rows[1])

    with pytest.raises(ValueError, match="plate 'N' takes 80 rows itself.*batch_size=None"):
        row_sites(model, (X, Y), KEY)


def test_rows_are_compared_in_full_precision():
    """In the short products of a GPU, the density of a row changes with the batch that it is in."""
    found = []

    def program(x, y=None):
        found.append(jax.config.jax_default_matmul_precision)
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    assert row_sites(program, (jnp.ones((8, 2)), jnp.ones(8)), jax.random.key(0)) == {"y": 0}
    assert "highest" in found
    assert jax.config.jax_default_matmul_precision is None


def test_a_batch_of_as_many_rows_as_outputs_is_weighted_by_row():
    """Seven rows in batches of three, whose last one counts a single row anew."""

    def outputs_first(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2, 3]).to_event(2))
        with numpyro.plate("outputs", 3, dim=-2), numpyro.plate("N", x.shape[0], dim=-1):
            numpyro.sample("y", dist.Normal((x @ beta).T, 1.0), obs=None if y is None else y.T)

    data = X[:7, :2], jnp.arange(21.0).reshape(7, 3)
    assert row_sites(outputs_first, data, KEY) == {"y": 1}
    guide = bmr.infer.AutoMeanField(outputs_first)
    params = {"beta_auto_loc": jnp.ones((2, 3)), "beta_auto_scale": jnp.full((2, 3), 1e-3)}
    result = bmr.Result(params, {}, {}, 7, unpruned_model=outputs_first, unpruned_guide=guide)
    whole, parts = (result.free_energy(KEY, data, batch_size=size) for size in (7, 3))
    assert parts == pytest.approx(whole, rel=1e-3)
