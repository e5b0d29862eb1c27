"""What a result gives back: nothing loses its masks, and spread and names come with it."""

import copy

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.contrib.module import eqx_module
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoDelta, AutoMultivariateNormal
from pruned_results import (
    COLUMNS,
    GUIDES,
    KEEP,
    ROWS,
    SIZE,
    assert_pruned,
    by_hand,
    data,
    made_up,
    program,
)

import bmrjax as bmr
from bmrjax import handlers, infer
from bmrjax.infer.pruned_guide import PrunedGuide, unpruned


# A posterior of low rank is read as the joint one, by its covariance.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if name == "low rank" else [])
        for name in GUIDES
    ],
)
def result(request):
    return made_up(GUIDES[request.param])


def test_the_obvious_calls_keep_the_masks(result):
    x, _ = data()
    key, count = jax.random.key(2), 6
    drawn = Predictive(result.guide, params=result.params, num_samples=count)(key, x)
    assert_pruned(drawn["beta"])
    drawn = result.guide.sample_posterior(key, result.params, x, sample_shape=(2, 3))
    assert drawn["beta"].shape == (2, 3, SIZE)
    assert_pruned(drawn["beta"])
    predicted = Predictive(
        result.model, guide=result.guide, params=result.params, num_samples=count
    )(key, x)
    assert predicted["y"].shape == (count, ROWS)
    # What the model makes of latent sites that it is given is pruned too.
    one = {"beta": jnp.ones((1, SIZE)), "scale": jnp.ones(1)}
    found = Predictive(result.model, one)(key, x)["mean"][0]
    np.testing.assert_allclose(found, x[:, KEEP].sum(1), rtol=1e-5)
    assert unpruned(result.guide)[0] is result.unpruned_guide
    assert unpruned(result.model)[0] is result.unpruned_model
    if result.unpruned_guide is by_hand:
        with pytest.raises(AttributeError, match="written by hand and has no median"):
            result.guide.median(result.params)
        return
    # Deterministic sites come from the pruned values.
    np.testing.assert_allclose(drawn["mean"], drawn["beta"] @ x.T, rtol=1e-4, atol=1e-5)
    median = result.guide.median(result.params)
    assert_pruned(median["beta"])
    np.testing.assert_allclose(median["mean"], x @ median["beta"], rtol=1e-4, atol=1e-5)
    quantiles = result.guide.quantiles(result.params, [0.1, 0.5, 0.9])
    assert_pruned(quantiles["beta"])
    np.testing.assert_allclose(quantiles["beta"][1], median["beta"], rtol=1e-5)
    np.testing.assert_allclose(quantiles["scale"][1], median["scale"], rtol=1e-5)
    assert result.guide.prefix == "auto"


def test_draws_are_those_of_the_posterior_given_the_zeros(result):
    """Means and covariances of the draws, for joint guides those of the conditioned joint."""
    count = 4000
    drawn = np.asarray(result.sample(jax.random.key(3), count, data()[0])["beta"])
    posterior = result.posterior(data()[0])["beta"]
    assert_pruned(posterior.loc)
    error = posterior.scale / np.sqrt(count)
    np.testing.assert_array_less(np.abs(drawn.mean(0) - posterior.loc), 5 * error + 1e-7)
    np.testing.assert_allclose(drawn.std(0)[KEEP], posterior.scale[KEEP], rtol=0.08)
    guide = result.unpruned_guide
    if not isinstance(guide, infer.JointGuide):
        return
    flat = guide.flat_keep(result.keep)
    joint = guide._joint(result.params, flat)
    if isinstance(joint, bmr.reduction.MultivariateNormal):
        covariance = joint.scale_tril @ joint.scale_tril.T
    else:
        covariance = joint.cov_factor @ joint.cov_factor.T + jnp.diag(joint.cov_diag)
    where = np.asarray(guide._split(jnp.arange(SIZE + 1))["beta"])[KEEP]
    expected = np.asarray(covariance)[np.ix_(where, where)]
    found = np.cov(drawn[:, KEEP].T)
    np.testing.assert_allclose(found, expected, atol=0.1 * expected.max())
    low, high = result.guide.quantiles(result.params, [0.05, 0.95])["beta"]
    np.testing.assert_allclose((high - low) / 2 / 1.644854, posterior.scale, rtol=1e-4)


def test_samples_are_latent_sites_only(result):
    x, _ = data()
    drawn = result.sample(jax.random.key(4), 3, x)
    assert set(drawn) == {"beta", "scale"}
    more = result.sample(jax.random.key(4), 3, x, deterministic=True)
    assert set(more) == {"beta", "scale", "mean"}
    np.testing.assert_allclose(more["mean"], more["beta"] @ x.T, rtol=1e-4, atol=1e-5)


def test_the_posterior_predictive_by_name(result):
    x, y = data()
    key = jax.random.key(5)
    found = result.predictive(key, x, num_samples=2000)
    assert {name: value.shape for name, value in found.items()} == {
        "y": (2000, ROWS),
        "mean": (2000, ROWS),
    }
    prediction = result.predict(key, x, num_samples=2000)
    error = np.asarray(prediction.std) / np.sqrt(2000)
    assert (np.abs(found["y"].mean(0) - prediction.mean) < 6 * error).all()
    np.testing.assert_allclose(found["y"].std(0), prediction.std, rtol=0.15)


def test_targets_are_drawn_anew():
    result = made_up(infer.AutoMeanField)
    x, y = data()
    found = result.predictive(jax.random.key(5), x, y, num_samples=5, sites=["y", "beta"])
    assert set(found) == {"y", "beta"}
    assert_pruned(found["beta"])
    assert (found["y"] != y).all()
    with pytest.raises(ValueError, match=r"no sites \['z'\]; there are \['beta', 'mean'"):
        result.predictive(jax.random.key(5), x, num_samples=5, sites=["z"])
    named = result.predictive(jax.random.key(5), x=x, num_samples=5)
    by_position = result.predictive(jax.random.key(5), x, num_samples=5)
    np.testing.assert_array_equal(named["y"], by_position["y"])
    with pytest.raises(TypeError, match=r"got 1 by position and \['y'\] by name"):
        result.predictive(jax.random.key(5), x, y=y)


@pytest.mark.parametrize("rows", [("0", "1"), ("x", "y")], ids=["position", "name"])
@pytest.mark.parametrize("model", [program, handlers.complete_missing(program, sites=())])
def test_arguments_in_either_form_are_predicted_row_by_row(rows, model):
    result = made_up(infer.AutoMeanField, model, row_arguments=rows, by_rows=True)
    (x, y), key = data(), jax.random.key(4)
    options = {"num_samples": 3, "batch_size": 7}
    found = [
        result.predict(key, x, y, **options).log_prob,
        result.predict(key, x=x, y=y, **options).log_prob,
        result.predict(key, x, y, num_samples=3, batch_size=ROWS).log_prob,
    ]
    np.testing.assert_allclose(found[0], found[2], rtol=1e-4)
    np.testing.assert_allclose(found[1], found[2], rtol=1e-4)


def test_the_arguments_of_a_program_fitted_on_a_dict_may_come_in_one():
    result = made_up(infer.AutoMeanField, row_arguments=("x", "y"), by_rows=True)
    (x, y), key = data(), jax.random.key(4)
    together = result.predict(key, {"x": x, "y": y}, num_samples=3)
    np.testing.assert_array_equal(
        together.log_prob, result.predict(key, x=x, y=y, num_samples=3).log_prob
    )
    found = [result.predictive(key, *given, num_samples=3)["y"] for given in ((x,), ({"x": x},))]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("rows", [("0", "1"), ("x", "y")], ids=["position", "name"])
def test_a_tuple_of_the_arguments_is_not_taken_for_the_first_of_them(rows):
    def model(x, y=None):
        program(jnp.asarray(x), y)  # which would make one row of a tuple of one array

    result = made_up(infer.AutoMeanField, model, row_arguments=rows, by_rows=True)
    (x, y), key = data(), jax.random.key(4)
    expected = result.predict(key, x, num_samples=3).mean
    for given in ((x,), [x], (x, y)):
        found = result.predict(key, given, num_samples=3).mean
        np.testing.assert_array_equal(found, expected)


def test_a_copy_predicts_like_the_result_and_does_not_change_with_it():
    result = made_up(infer.AutoMeanField, row_arguments=("0", "1"), by_rows=True)
    (x, _), key = data(), jax.random.key(4)
    expected = result.predict(key, x, num_samples=3).mean
    other = copy.deepcopy(result)
    result.params.clear()
    np.testing.assert_array_equal(other.predict(key, x, num_samples=3).mean, expected)


def test_a_program_of_one_dict_gets_it_by_itself_or_in_a_tuple():
    def model(data):
        program(data["x"], data.get("y"))

    (x, y), key = data(), jax.random.key(4)
    rows = ("0/x", "0/y")
    given = ({"x": x, "y": y},)
    result = made_up(infer.AutoMeanField, model, given=given, row_arguments=rows, by_rows=True)
    found = [result.predict(key, g, num_samples=3).mean for g in ({"x": x}, ({"x": x},))]
    np.testing.assert_array_equal(*found)
    with pytest.raises(TypeError, match=r"the program takes data, .*in a tuple: \(\{...\},\)"):
        result.evaluate(key, {"x": x})


def test_arguments_of_a_program_that_does_not_name_them_are_told_by_their_length():
    def model(*args, **named):
        program(*args, **named)

    result = made_up(infer.AutoMeanField, model, row_arguments=("x", "y"), by_rows=True)
    found = result.predict(jax.random.key(4), *data(), num_samples=3, batch_size=7)
    assert found.mean.shape == (ROWS,)


def test_posteriors_are_read_from_any_guide(result):
    found = result.posterior(data()[0])
    assert_pruned(found["beta"].loc)
    assert_pruned(found["beta"].scale)
    assert found["beta"].loc.shape == (SIZE,)


def intercept(x, y=None):
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    numpyro.sample("y", dist.Normal(level + x @ beta, 0.5), obs=y)


@pytest.mark.parametrize(
    "make_guide", [AutoMultivariateNormal, infer.AutoMultivariate, infer.AutoMeanField]
)
def test_sites_without_masks_have_posteriors_too(make_guide):
    result = made_up(make_guide, intercept)
    if make_guide is AutoMultivariateNormal:
        result.keep = {}
    found = result.posterior()
    assert set(found) == {"level", "beta"}
    drawn = result.sample(jax.random.key(0), 4000)
    for name, q in found.items():
        np.testing.assert_allclose(drawn[name].mean(0), q.loc, atol=5 * float(q.scale.max()) / 60)
        np.testing.assert_allclose(drawn[name].std(0), q.scale, rtol=0.08)


def test_point_estimates_have_no_posterior():
    result = made_up(AutoDelta, keep=KEEP)
    with pytest.raises(ValueError, match=r"point estimates of \['beta', 'scale'\].*result\.center"):
        result.posterior()
    assert_pruned(result.guide.median(result.params)["beta"])
    assert_pruned(result.sample(jax.random.key(0), 2)["beta"])


def test_a_correlated_matrix_keeps_its_masks():
    def matrix(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3, SIZE]).to_event(2))
        numpyro.sample("y", dist.Normal((x @ beta.T).sum(-1), 0.5), obs=y)

    keep = jnp.arange(3 * SIZE).reshape(3, SIZE) % 3 != 1
    result = made_up(infer.AutoMatrixNormal, matrix, keep)
    for name in ("row", "column"):
        factor = result.params[f"beta_auto_{name}_factor"]
        result.params[f"beta_auto_{name}_factor"] = factor + 0.5
    posterior = result.posterior()["beta"]
    drawn = np.asarray(result.sample(jax.random.key(0), 4000)["beta"])
    assert (drawn[:, ~keep] == 0).all()
    np.testing.assert_allclose(drawn.std(0), posterior.scale, rtol=0.08)
    low, high = result.guide.quantiles(result.params, [0.05, 0.95])["beta"]
    np.testing.assert_allclose((high - low) / 2 / 1.644854, posterior.scale, rtol=1e-4)
    assert (result.guide.median(result.params)["beta"][~keep] == 0).all()


def test_masks_of_several_handlers_combine():
    result = made_up(infer.AutoMultivariate)
    twice = handlers.prune(result.guide, {"beta": jnp.array([True, True, False, True])})
    drawn = Predictive(twice, params=result.params, num_samples=3)(jax.random.key(0))["beta"]
    assert (drawn[:, 1:] == 0).all()
    assert (drawn[:, 0] != 0).all()
    np.testing.assert_array_equal(unpruned(twice)[1]["beta"], [True, False, False, False])


def test_a_loaded_result_asks_for_inputs(tmp_path):
    result = made_up(infer.AutoMeanField, columns=COLUMNS, class_names=("no", "yes"))
    result.save(tmp_path / "saved")
    loaded = bmr.load(tmp_path / "saved", model=program)
    assert loaded.columns == COLUMNS
    assert loaded.class_names == ("no", "yes")
    with pytest.raises(ValueError, match="posterior: the guide of a loaded result has to see"):
        loaded.posterior()
    np.testing.assert_array_equal(
        loaded.posterior(data()[0][:2])["beta"].loc, result.posterior()["beta"].loc
    )
    with pytest.raises(ValueError, match="loaded without its program"):
        _ = bmr.load(tmp_path / "saved").guide


@pytest.mark.parametrize(
    "kind",
    ["joint", pytest.param("low rank", marks=pytest.mark.slow), "matrix", "mean field", "by hand"],
)
def test_a_loaded_result_finds_its_guide(kind, tmp_path):
    matrix = {"matrix": infer.AutoMatrixNormal}
    make_guide = {**GUIDES, **matrix}[kind]
    if kind == "matrix":

        def model(x, y=None):
            beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3, SIZE]).to_event(2))
            numpyro.sample("y", dist.Normal((x @ beta.T).sum(-1), 0.5), obs=y)

        result = made_up(make_guide, model, jnp.ones((3, SIZE), bool))
    else:
        model, result = program, made_up(make_guide)
    result.save(tmp_path / "saved")
    if kind == "by hand":
        with pytest.raises(ValueError, match="those of no automatic guide"):
            bmr.load(tmp_path / "saved", model=model)
        return
    loaded = bmr.load(tmp_path / "saved", model=model)
    assert type(loaded.unpruned_guide) is type(result.unpruned_guide)
    x = data()[0]
    ours, theirs = (r.sample(jax.random.key(0), 3, x)["beta"] for r in (result, loaded))
    np.testing.assert_array_equal(ours, theirs)


def test_pruned_programs_are_taken_with_their_masks():
    """A further fit and a report start from what the result removed."""
    result = made_up(infer.AutoMeanField)
    table = pd.DataFrame(np.asarray(data()[0]), columns=COLUMNS)
    again = bmr.sparsify(
        result.model,
        (table, data()[1]),
        key=jax.random.key(0),
        guide=result.guide,
        criterion=None,
        num_epochs=2,
        batch_size=None,
        steps_per_epoch=2,
        progress=False,
    )
    np.testing.assert_array_equal(again.keep["beta"], KEEP)
    assert again.unpruned_guide is result.unpruned_guide
    for point in range(len(again.path)):
        drawn = again.at(point).guide.sample_posterior(jax.random.key(0), again.params)
        assert_pruned(drawn["beta"])
    assert again.columns == COLUMNS
    predicted = again.predict(jax.random.key(0), table, num_samples=2).mean
    plain = again.predict(jax.random.key(0), data()[0], num_samples=2).mean
    np.testing.assert_array_equal(predicted, plain)
    other = table[list(reversed(COLUMNS))]
    with pytest.raises(ValueError, match=r"inputs\[0\] has the columns \['income'.*in this order"):
        again.predict(jax.random.key(0), other, num_samples=2)
    reports = [
        bmr.free_energy_report(
            program,
            guide,
            result.params,
            data(),
            key=jax.random.key(1),
            keep=keep,
            points=2,
            orders=["bmr"],
            num_samples=2,
        )
        for guide, keep in ((result.guide, None), (result.unpruned_guide, result.keep))
    ]
    assert [report.num_kept for report in reports] == [2, 2]
    assert reports[0].start == reports[1].start


def test_a_guide_can_be_copied_and_its_attributes_read():
    import copy

    pruned = PrunedGuide(infer.AutoMeanField(program), {"beta": KEEP})
    assert copy.copy(pruned).prefix == "auto"
    assert pruned.prototype_trace is None
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = pruned.no_such_thing


# --- modules among the parameters ---------------------------------------------------------


class Linear(eqx.Module):
    weight: jax.Array
    bias: jax.Array
    name: str = eqx.field(static=True)

    def __call__(self, x):
        return self.weight @ x + self.bias


def with_modules(x, y=None):
    start = Linear(jnp.ones((2, SIZE)), jnp.zeros(2), "features")
    features = jax.vmap(eqx_module("features", start))(x)
    nested = numpyro.param(
        "nested", lambda _: {"a": {"b": jnp.zeros(2)}, "c": (jnp.ones(()), None)}
    )
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    mean = features @ beta + features @ nested["a"]["b"] + nested["c"][0]
    numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def test_modules_and_nested_dicts_are_saved(tmp_path):
    from bmrjax.run.checkpoint import Checkpointer

    guide = infer.AutoMeanField(with_modules)
    x, y = data()
    svi = numpyro.infer.SVI(
        with_modules, guide, numpyro.optim.Adam(0.1), numpyro.infer.Trace_ELBO()
    )
    fitted = svi.run(jax.random.key(0), 3, x, y, progress_bar=False)
    params = {**fitted.params, "odd/key": [jnp.arange(2), None]}
    keep = {"beta": jnp.array([True, False])}
    as_numpy = jax.tree.map(np.asarray, (params, keep))
    point = bmr.Point(1, 2.0, 1, 2, {}, *as_numpy)
    result = bmr.Result(
        params=params,
        keep=keep,
        layers={},
        num_data=ROWS,
        path=[point],
        unpruned_model=with_modules,
        unpruned_guide=guide,
    )
    assert isinstance(result.at(0).params["features$params"], Linear)
    result.save(tmp_path / "saved")
    loaded = bmr.load(tmp_path / "saved", model=with_modules)
    key = jax.random.key(1)
    for here, there in ((result, loaded), (result.at(0), loaded.at(0))):
        ours, theirs = (r.predict(key, x, num_samples=3).mean for r in (here, there))
        np.testing.assert_array_equal(ours, theirs)
    loaded.posterior(x)  # gives the modules their structure back
    assert isinstance(loaded.params["features$params"], Linear)
    assert jax.tree.structure(loaded.params) == jax.tree.structure(params)
    loaded.save(tmp_path / "again")

    bare = bmr.load(tmp_path / "again")
    bare.save(tmp_path / "third")  # without the program too
    third = bmr.load(tmp_path / "third", model=with_modules)
    np.testing.assert_array_equal(third.predict(key, x, num_samples=3).mean, ours)

    def other(x, y=None):
        net = eqx_module("features", Linear(jnp.ones((3, SIZE)), jnp.zeros(3), "features"))
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(jax.vmap(net)(x)[:, :2] @ beta, 0.5), obs=y)

    for model, match in ((other, r"shapes \[\(2, 4\), \(2,\)\]"), (intercept, "none of that name")):
        with pytest.raises(ValueError, match=match):
            bmr.load(tmp_path / "saved", model=model).predict(key, x, num_samples=3)

    checkpoints = Checkpointer(tmp_path / "run", interval=0)
    checkpoints.save_point(0, point)
    numbers = {"epoch": 1, "vfe": 2.0, "kept": 1, "total": 2, "metrics": {}}
    arrays = {"memory": jnp.zeros(2)}
    checkpoints.save(arrays, {"epoch": 1, "path": [numbers]})
    checkpoints.close()
    restored = Checkpointer(tmp_path / "run", interval=0).restore(
        lambda: arrays, lambda _: {"params": params, "keep": keep}, lambda _: None
    )
    assert restored is not None
    (again,) = restored[2]
    assert isinstance(again.params["features$params"], Linear)
    for left, right in zip(jax.tree.leaves(again.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    ("method", "takes"),
    [
        ("predict", ("num_samples", "batch_size")),
        ("evaluate", ("num_samples",)),
        ("free_energy", ("num_samples", "batch_size")),
        ("sample", ("num_samples",)),
        ("predictive", ("num_samples",)),
        ("to_arviz", ("num_samples",)),
    ],
)
def test_counts_are_at_least_one(method, takes):
    call = getattr(made_up(infer.AutoMeanField), method)
    inputs = {} if method == "sample" else {"data": data()}
    if method in ("predict", "predictive"):
        inputs = {"x": data()[0]}
    for name in takes:
        for count, error, message in (
            (0, ValueError, f"Result.{method}: {name} must be at least 1, got 0"),
            (-3, ValueError, "at least 1, got -3"),
            (2.0, TypeError, f"{name} must be an integer, got 2.0"),
        ):
            with pytest.raises(error, match=message):
                call(jax.random.key(0), **inputs, **{name: count})


def tabled(x, table, degree, y=None):
    """A program with arguments that have no rows: an array, and a number."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([SIZE]).to_event(1))
    mean = (x**degree) @ (beta * table)
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.parametrize("fitted_on", [None, 8], ids=["all rows", "minibatches"])
def test_the_free_energy_counts_rows_and_leaves_other_arguments_whole(fitted_on):
    x, y = data()
    table = jnp.array([1.0, 0.5, -1.0, 2.0])
    result = bmr.sparsify(
        tabled,
        (x, table, 2, y),
        key=jax.random.key(0),
        guide=AutoDelta(tabled),
        criterion=None,
        batch_size=fitted_on,
        steps_per_epoch=20,
        num_epochs=1,
        progress=False,
    )
    assert result.row_arguments == ("0", "3")
    for rows in (ROWS, SIZE):  # as many rows as the table has entries, too
        given = (x[:rows], table, 2, y[:rows])
        log_joint, _ = numpyro.infer.util.log_density(tabled, given, {}, result.center(*given))
        sizes = [None, rows, 3] if fitted_on else [None, rows]
        for batch_size in sizes:
            found = result.free_energy(
                jax.random.key(1), given, num_samples=1, batch_size=batch_size
            )
            # A Dirac posterior: minus the log joint density there, in any number of parts.
            assert found == pytest.approx(-float(log_joint), rel=1e-5)
