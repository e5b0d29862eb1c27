"""Names and spread in what a result gives back: the summary, and a tree for ArviZ."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from pruned_results import COLUMNS, KEEP, SIZE, assert_pruned, data, made_up

import bmrjax as bmr
from bmrjax import infer

# --- names --------------------------------------------------------------------------------


def test_the_summary_has_names_and_moments():
    result = made_up(infer.AutoMeanField, columns=COLUMNS)
    table = result.summary()
    assert list(table.columns) == ["site", "element", "kept", "mean", "sd", "5 %", "95 %"]
    assert list(table["element"]) == list(COLUMNS)
    assert list(table["kept"]) == KEEP.tolist()
    posterior = result.posterior()["beta"]
    np.testing.assert_allclose(table["mean"], posterior.loc)
    np.testing.assert_allclose(table["sd"], posterior.scale)
    expected = posterior.loc + 1.644854 * posterior.scale
    np.testing.assert_allclose(table["95 %"], expected, rtol=1e-5)
    assert (table.loc[~table["kept"], ["mean", "sd", "5 %", "95 %"]] == 0).all(axis=None)
    scored = result.summary(data()[0][:2], criterion=bmr.criteria.SpikeAndSlab())
    assert list(scored.columns)[-2:] == ["delta_f", "inclusion_prob"]
    q, p = (
        bmr.reduction.Normal(loc, scale)
        for loc, scale in ((posterior.loc, posterior.scale), (0.0, 1.0))
    )
    mask, expected = np.asarray(KEEP), np.asarray(bmr.reduction.delta_f_each(q, p))
    np.testing.assert_allclose(scored["delta_f"][mask], expected[mask], rtol=1e-4)
    assert np.isnan(scored["delta_f"][~mask]).all()
    assert (scored["inclusion_prob"][mask] > 0.9).all()
    ids = np.arange(mask.size)
    grouped = bmr.criteria.Shrinkage(groups=bmr.criteria.Groups({"beta": ids}, mask.size))
    again = result.summary(data()[0][:2], criterion=grouped)
    np.testing.assert_allclose(again["delta_f"][mask], expected[mask], rtol=1e-4)
    with pytest.raises(ValueError, match=r"summary: the program or its guide needs arguments"):
        result.summary(criterion=bmr.criteria.Shrinkage())
    with pytest.raises(ValueError, match="Inclusion reads ZeroOrNormal posteriors, and no site"):
        result.summary(data()[0], criterion=bmr.criteria.Inclusion())
    ax = bmr.plot.coefficients(result).axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["age", "weight"]
    assert ax.get_title(loc="left") == "2 of 4 kept"
    np.testing.assert_allclose(ax.collections[1].get_offsets()[:, 0], posterior.loc[KEEP])
    with pytest.raises(ValueError, match=r"no site 'gamma'; there are \['beta'\]"):
        bmr.plot.coefficients(result, site="gamma")
    wide = result.summary(prob=0.5)
    assert list(wide.columns)[-2:] == ["25 %", "75 %"]
    result.columns = None
    result.keep = {"beta": jnp.zeros(SIZE, bool)}
    with pytest.raises(ValueError, match="nothing is kept"):
        bmr.plot.coefficients(result)
    assert list(result.summary()["element"]) == ["0", "1", "2", "3"]


def test_the_summary_of_atoms_has_inclusion_probabilities():
    def spiked(x, y=None):
        beta = bmr.priors.SpikeAndSlabPrior().sample("beta", (SIZE,))
        numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)

    result = made_up(infer.AutoMeanField, spiked)
    result.params["beta_auto_logits"] = jnp.array([2.0, 0.0, -1.0, 0.0])
    table = result.summary()
    np.testing.assert_allclose(table["inclusion_prob"], [0.880797, 0, 0.268941, 0], rtol=1e-5)
    drawn = np.asarray(result.sample(jax.random.key(0), 20_000)["beta"])
    np.testing.assert_allclose(table["mean"], drawn.mean(0), atol=0.02)
    np.testing.assert_allclose(table["sd"], drawn.std(0), rtol=0.02)
    np.testing.assert_allclose(table["95 %"], np.quantile(drawn, 0.95, axis=0), atol=0.02)


def test_names_are_for_axes_that_stand_for_columns():
    from bmrjax.run.element_names import named_axes

    columns, classes = ("a", "b"), ("x", "y", "z")
    shapes = {
        "beta": (2,),
        "logits": (2, 3),
        "net.0.weight": (2, 2),
        "net.0.bias": (2,),
        "net.1.weight": (2, 2),
        "scalar": (),
    }
    found = named_axes(shapes, columns, classes)
    assert found["beta"] == [columns]
    assert found["logits"] == [columns, classes]
    assert found["net.0.weight"] == [None, columns]
    assert found["net.0.bias"] == [None]
    assert found["net.1.weight"] == [None, None]
    assert found["scalar"] == []


# --- ArviZ --------------------------------------------------------------------------------


def test_a_tree_for_arviz():
    import arviz_stats

    result = made_up(infer.AutoMeanField, columns=COLUMNS)
    x, y = data()
    tree = result.to_arviz(jax.random.key(0), x, y, num_samples=200, prior_samples=50)
    assert set(tree.children) == {
        "posterior",
        "posterior_predictive",
        "log_likelihood",
        "observed_data",
        "prior",
        "masks",
    }
    assert tree["posterior"]["beta"].dims == ("chain", "draw", "beta_dim_0")
    assert tree["posterior"]["beta"].shape == (1, 200, SIZE)
    assert list(tree["masks"]["beta_dim_0"].values) == list(COLUMNS)
    np.testing.assert_array_equal(tree["masks"]["beta"], KEEP)
    assert_pruned(tree["posterior"]["beta"])
    assert (tree["prior"]["beta"].values != 0).all()
    np.testing.assert_array_equal(tree["observed_data"]["y"], y)
    drawn = {name: tree["posterior"][name].values[0] for name in ("mean", "scale")}
    expected = dist.Normal(drawn["mean"], drawn["scale"][:, None]).log_prob(y)
    np.testing.assert_allclose(tree["log_likelihood"]["y"][0], expected, rtol=1e-4, atol=1e-4)
    table = arviz_stats.summary(tree, var_names=["beta"], kind="stats")
    assert list(table.index) == [f"beta[{name}]" for name in COLUMNS]
    blind = result.to_arviz(jax.random.key(0), x, num_samples=5)
    assert set(blind.children) == {"posterior", "predictions", "masks"}
    assert set(result.to_arviz(jax.random.key(0), num_samples=5).children) == {"posterior", "masks"}
