"""Draws under priors by name, and what the report says where the posterior is not normal."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer import MCMC, NUTS
from scipy import stats

import bmrjax as bmr
from bmrjax.fitted.fit_findings import evidence_off, not_exact
from bmrjax.fitted.normality import Normality, tail_shape, tail_share
from bmrjax.fitted.skewness import density_off_at_zero
from bmrjax.fitted.verification import Spread, Verification, worth_a_glance
from bmrjax.reduction import Normal

# --- draws under priors by name -----------------------------------------------------------


class _Tree:
    """A fit as Bambi writes it: a variable per term, and the levels of a factor as coordinates."""

    def __init__(self, loc, covariance):
        xr = pytest.importorskip("xarray")
        draws = np.random.default_rng(0).multivariate_normal(loc, covariance, (4, 1500))
        lead = ("chain", "draw")
        variables = {name: (lead, draws[..., i]) for i, name in enumerate(["age", "bmi"])}
        variables["region"] = ((*lead, "region_dim"), draws[..., 2:])
        variables["sigma"] = (lead, np.exp(draws[..., 0]))
        self.posterior = xr.Dataset(variables, coords={"region_dim": ["north", "south"]})


LOC = np.array([0.5, 0.05, 0.6, 0.1])
COVARIANCE = 0.02 * (np.eye(4) + 0.3)
PRIOR = {"age": Normal(0.0, 1.0), "bmi": Normal(0.0, 0.5), "region": Normal(0.0, [2.0, 2.0])}


def test_a_tree_without_a_program_goes_in_by_the_names_of_its_terms():
    found = bmr.reduce_fit(_Tree(LOC, COVARIANCE), prior=PRIOR, groups={"region": ["region"]})
    exact = bmr.reduce_fit(
        loc=LOC,
        covariance=COVARIANCE,
        prior=Normal(0.0, np.array([1.0, 0.5, 2.0, 2.0])),
        names=["age", "bmi", "north", "south"],
        groups={"region": ["north", "south"]},
    )
    assert found.candidates == ("age", "bmi", "region")
    assert found.table()["element"].tolist()[2:] == ["north", "south"]
    inclusion = np.concatenate([np.ravel(found.inclusion_prob[n]) for n in PRIOR])
    # The covariance of 6,000 draws has a relative error of 2 %.
    np.testing.assert_allclose(inclusion, exact.inclusion_prob["z"], atol=0.03)
    assert "under the priors that were given" in str(found)
    assert "the draws come without a program" in str(found)
    some = bmr.reduce_fit(_Tree(LOC, COVARIANCE), prior=PRIOR, sites=["age", "bmi"])
    assert some.candidates == ("age", "bmi")


class _Prior:
    def __init__(self, name, **args):
        self.name, self.args = name, args


class _Term:
    def __init__(self, name, prior, alias=None):
        self.name, self.prior, self.alias = name, prior, alias


class _Component:
    def __init__(self, *terms):
        self.common_terms = {term.name: term for term in terms}


class _Formula:
    """A model as Bambi has it: components of terms with priors by name, and parameters without terms."""

    def __init__(self, *terms):
        self.components = {"mu": _Component(*terms), "sigma": object()}


def test_priors_are_read_from_the_model_of_a_formula():
    spread = _Prior("Normal", mu=np.zeros(2), sigma=np.full(2, 2.0))
    formula = _Formula(
        _Term("age", _Prior("Normal", mu=np.array(0.0), sigma=np.array(1.0))),
        _Term("scale(bmi)", _Prior("Normal", mu=0, sigma=0.5), alias="bmi"),
        _Term("region", spread),
        _Term("dose", _Prior("Laplace", mu=0, b=1)),
        _Term("height", _Prior("Normal", mu=0, sigma=_Prior("HalfNormal", sigma=1))),
    )
    found = bmr.reduce_fit(_Tree(LOC, COVARIANCE), prior=formula, groups={"region": ["region"]})
    by_hand = bmr.reduce_fit(_Tree(LOC, COVARIANCE), prior=PRIOR, groups={"region": ["region"]})
    assert found.candidates == ("age", "bmi", "region")
    for name in PRIOR:
        np.testing.assert_array_equal(found.delta_f[name], by_hand.delta_f[name])


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (None, "call the model's build"),
        (_Prior("Laplace", mu=0, b=1), r"there are 'age \(Laplace\)'"),
    ],
)
def test_a_formula_without_normal_priors_is_refused(prior, message):
    with pytest.raises(ValueError, match=message):
        bmr.reduce_fit(_Tree(LOC, COVARIANCE), prior=_Formula(_Term("age", prior)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"prior": {"z": Normal(0.0, 1.0)}}, ValueError, r"no draws of \['z'\]"),
        ({"prior": {}}, ValueError, "no prior of any site"),
        ({"prior": PRIOR, "sites": ["sigma"]}, ValueError, r"no prior of \['sigma'\]"),
        ({"prior": {"age": 1.0}}, TypeError, r"prior\['age'\] is a bmrjax.reduction.Normal"),
        (
            {"prior": {"region": Normal(0.0, [1.0, 1, 1])}},
            ValueError,
            r"do not broadcast to .*\(2,\)",
        ),
        ({"prior": PRIOR, "verify": True}, TypeError, "stands for a program"),
        ({"prior": PRIOR, "data": (1,)}, TypeError, "stands for a program"),
    ],
)
def test_bad_priors_by_name_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        bmr.reduce_fit(_Tree(LOC, COVARIANCE), **options)


# --- skewness -----------------------------------------------------------------------------


def test_labels_of_a_mean_and_a_covariance_go_together():
    names, other = ["dose", "age", "height"], ["age", "dose", "height"]
    covariance = np.array([[0.02, 0.01, 0.0], [0.01, 0.05, 0.0], [0.0, 0.0, 0.03]])
    loc = np.array([0.8, 0.1, 0.0])
    prior = bmr.reduction.Normal(0.0, 1.0)
    expected = bmr.reduce_fit(loc=loc, covariance=covariance, prior=prior, names=names)
    labelled, table = pd.Series(loc, names), pd.DataFrame(covariance, names, names)
    for one, two in ((labelled, table), (labelled, covariance), (loc, table)):
        found = bmr.reduce_fit(loc=one, covariance=two, prior=prior)
        assert found.candidates == tuple(names)
        np.testing.assert_array_equal(found.inclusion_prob["z"], expected.inclusion_prob["z"])
    for one, two in ((labelled[other], table), (labelled, table[other]), (loc, table[other])):
        with pytest.raises(ValueError, match="different labels, or in another order"):
            bmr.reduce_fit(loc=one, covariance=two, prior=prior)
    # Subjects of a group whose parameters are in another order.
    turned = table.loc[other, other]
    with pytest.raises(ValueError, match="subject '1' has other parameters"):
        bmr.peb(loc=[labelled, labelled[other]], covariance=[table, turned], prior=prior)


def test_the_density_at_zero_is_that_of_a_skewed_posterior():
    shape = 12.0
    gamma = np.random.default_rng(0).gamma(shape, 1.0, (200_000, 1))
    draws = (gamma - 0.45 * shape) / np.sqrt(shape)  # zero is 1.9 deviations below the mean
    exact = stats.gamma.logpdf(0.45 * shape, shape)
    normal = stats.norm.logpdf(0.45 * shape, shape, np.sqrt(shape))
    off, _ = density_off_at_zero(draws)
    assert abs(exact - normal) > 0.3
    # The expansion has an error of the next order.
    assert float(off[0]) == pytest.approx(exact - normal, abs=0.15)


def test_draws_that_are_not_normal_at_zero_are_a_finding():
    rng = np.random.default_rng(0)
    skewed = rng.gamma(4.0, 1.0, 6000)  # two deviations above zero, where it has no density
    draws = {"a": skewed, "b": rng.normal(2.0, 1.0, 6000)}
    prior = {"a": Normal(0.0, 3.0), "b": Normal(0.0, 3.0)}
    with pytest.warns(bmr.FitWarning, match="skewed: The draws of 'a' are not normal: at zero"):
        found = bmr.reduce_fit(draws, prior=prior)
    assert [finding.code for finding in found.findings] == ["skewed"]
    draws["a"] = rng.normal(2.0, 1.0, 6000)
    assert bmr.reduce_fit(draws, prior=prior).findings == ()


# --- measured evidence of the most probable submodels -------------------------------------


@pytest.mark.parametrize("tails", [[0.2, 0.3, 1.4], [1.4, 0.3, 0.2]])
def test_measured_evidence_of_heavy_tails_is_not_relied_on(tails):
    zeros = np.zeros(3)
    found = SimpleNamespace(prob=np.array([0.7, 0.2, 0.1]))
    verification = Verification(zeros, zeros, zeros, np.array(tails))
    assert verification.reliable(found) == (tails[0] < 0.7)
    # The full model's weights do not count, nor does a long tail that holds next to nothing.
    assert replace(verification, trusted=np.array([True, False, False])).reliable(found)
    assert not replace(verification, trusted=np.array([False, True, True])).reliable(found)
    codes = [f.code for f in evidence_off(verification, reliable=verification.reliable(found))]
    assert codes == ([] if tails[0] < 0.7 else ["evidence-off"])
    spread, cases = Spread(np.array([0.2]), 0.01), [(True, True), (False, True), (False, False)]
    said = [str(not_exact(spread, ["a"], measured=m, reliable=r)[0]) for m, r in cases]
    assert "are by the measured evidence" in said[0]
    assert "verify=True" in said[1]
    assert "refit=True" in said[2]


def _logistic(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 1.5).expand([5]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


@functools.cache
def _few_rows():
    rng = np.random.default_rng([0, 50])
    x = rng.normal(size=(50, 5)).astype(np.float32)
    logits = x @ np.array([1.2, -0.7, 0.4, 0, 0])
    data = x, (rng.random(50) < 1 / (1 + np.exp(-logits))).astype(np.int32)
    mcmc = MCMC(NUTS(_logistic), num_warmup=300, num_samples=3000, progress_bar=False)
    mcmc.run(jax.random.key(0), *data)
    return mcmc.get_samples(), data


def test_probabilities_that_measured_evidence_would_change_are_a_finding():
    draws, data = _few_rows()
    with pytest.warns(bmr.FitWarning, match="not-exact"):
        found = bmr.reduce_fit(draws, model=_logistic, data=data)
    assert found.pareto_k < 0.7
    said = next(str(f) for f in found.findings if f.code == "not-exact")
    which, change = said.split("probability of '")[1][0], float(said.split("changes by ")[1][:5])
    measured = bmr.reduce_fit(draws, model=_logistic, data=data, verify=True)
    exact = measured.inclusion_prob["beta"] - measured.predicted_inclusion_prob["beta"]
    # 500 draws for each of most submodels here, 2,000 for each of all 32 there.
    assert change == pytest.approx(exact[int(which)], abs=0.04)
    assert abs(exact).max() > 0.05
    # By default, what is needed has been measured already.
    assert found.is_measured
    assert "are by the measured evidence" in said
    both = found.inclusion_prob["beta"], measured.inclusion_prob["beta"]
    np.testing.assert_allclose(*both, atol=0.01)
    # What is shown beside it follows it.
    models = found.models()
    assert models["measured_prob"].is_monotonic_decreasing
    assert not models["prob"].is_monotonic_decreasing
    # What cannot be relied on is shown, and makes no probabilities.
    unused = replace(found, is_measured=False).models()
    assert "measured" in unused
    assert "measured_prob" not in unused
    best = models.iloc[0][list(found.candidates)].to_numpy(bool)
    assert found.chosen["beta"].tolist() == best.tolist()
    drawn = found.draws(20_000)["beta"]
    np.testing.assert_allclose((drawn != 0).mean(0), found.inclusion_prob["beta"], atol=0.02)
    np.testing.assert_allclose(drawn.mean(0), found.mean["beta"], atol=0.02)
    np.testing.assert_allclose(drawn.std(0), found.sd["beta"], atol=0.02)
    with pytest.warns(bmr.FitWarning, match="verify=True, which measures"):
        left = bmr.reduce_fit(draws, model=_logistic, data=data, verify=False)
    assert not left.is_measured
    np.testing.assert_allclose(
        left.inclusion_prob["beta"], found.predicted_inclusion_prob["beta"], atol=1e-12
    )


def test_submodels_are_measured_until_the_others_have_no_weight():
    # Of 32 submodels, the last 16 may have the weight that an effect has if it is half certain.
    assert worth_a_glance(np.append(np.full(16, 0.94 / 16), np.full(16, 0.06 / 16))) == 27
    assert worth_a_glance(np.append(np.full(16, 0.99 / 16), np.full(16, 0.01 / 16))) == 16
    assert worth_a_glance(np.full(8, 0.125)) == 8
    assert worth_a_glance(np.full(4096, 1 / 4096)) == 16
    assert worth_a_glance(np.full(70, 1 / 70)) == 63


# --- tails of importance weights ------------------------------------------------------------


def _weights(shape, share, seed=0):
    """Return ln of weights of one, of which the largest 135 of 2,000 have an excess of a Pareto tail."""
    excess = stats.genpareto.rvs(shape, size=135, random_state=seed)
    # So large that the tail, with what the draws did not reach, has this share of the mean.
    excess *= share * 2000 * (1 - shape) / excess.sum()
    rng = np.random.default_rng(seed)
    return np.log(np.concatenate([1 - 1e-3 * rng.random(1865), 1 + excess]))


def test_a_long_tail_that_carries_nothing_is_harmless():
    for share, harmless in ((0.03, True), (0.5, False)):
        log_weights = _weights(0.85, share)
        shape = tail_shape(log_weights)
        assert shape is not None
        assert 0.7 < shape < 1.0
        # The share is of weights whose mean is one more than the tail's.
        expected = share * (1 - 0.85) / (1 + share * (1 - 0.85)) / (1 - shape)
        assert tail_share(log_weights, shape) == pytest.approx(expected, rel=0.1)
        own = Normality(shape, 5, "", tail_share(log_weights, shape))
        assert own.trusted is harmless


def test_a_tail_without_a_mean_is_never_harmless():
    assert tail_share(_weights(0.5, 0.01), 1.0) == np.inf
    assert Normality(1.1, 5, "", np.inf).trusted is False
