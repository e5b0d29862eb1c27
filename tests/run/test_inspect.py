"""Which sites are judged by default, why the others are not, and what to write instead."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.distributions import transforms
from numpyro.handlers import reparam
from numpyro.infer.autoguide import AutoDelta, AutoGuideList, AutoMultivariateNormal, AutoNormal
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

import bmrjax as bmr
from bmrjax.distributions import normal_parameters

GROUPS, ROWS = 4, 12
GROUP = jnp.arange(ROWS) % GROUPS
X = jax.random.normal(jax.random.key(0), (ROWS, 3))
Y = jnp.linspace(-1.0, 1.0, ROWS)
DATA = (GROUP, X, Y)


def affine(loc, scale):
    return dist.TransformedDistribution(
        dist.Normal(0.0, 1.0), transforms.AffineTransform(loc, scale)
    )


def radon(group, x, y=None):
    """A centred hierarchy beside every other kind of site."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    learned = numpyro.param("learned", 0.0)
    with numpyro.plate("groups", GROUPS):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        moved = numpyro.sample("moved", affine(mu, tau))
        by_hand = mu + tau * numpyro.sample("by_hand", dist.Normal(0.0, 1.0))
        empirical = numpyro.sample("empirical", dist.Normal(learned, 1.0))
        stretched = numpyro.sample("stretched", affine(0.0, -2.0))
        shifted = numpyro.sample("shifted", dist.Normal(3.0, 1.0))
    numpyro.sample("total", dist.Normal(theta.sum(), 1.0), obs=0.0)
    total = theta + moved + by_hand + empirical + stretched + shifted
    numpyro.sample("y", dist.Normal(total[group] + x[:, 0], 1.0), obs=y)


@pytest.fixture(scope="module")
def hierarchy():
    return bmr.inspect(radon, DATA)


def test_a_hierarchy_is_judged_where_it_is_centred_at_zero(hierarchy):
    assert hierarchy.judged == ["by_hand", "stretched"]
    assert [site.name for site in hierarchy] == hierarchy.names
    assert len(hierarchy) == 10
    assert hierarchy["by_hand"].posterior == "normal"
    assert hierarchy["stretched"].prior == "Normal(0, 2)"
    assert hierarchy["theta"].prior == "Normal(latent location, latent scale)"
    assert hierarchy["theta"].shape == (GROUPS,)
    with pytest.raises(KeyError, match="no sample site 'gamma'; it has \\['mu'"):
        hierarchy["gamma"]


@pytest.mark.parametrize(
    ("name", "why", "advice"),
    [
        ("mu", "one element", "name it: sites=['mu', ...]"),
        ("tau", "it is positive (HalfNormal)", ""),
        (
            "theta",
            "location of its prior is latent",
            "LocScaleReparam(centered=0)}) does; 'theta_dec",
        ),
        ("moved", "location of its prior is latent", "TransformReparam()}) does; 'moved_base'"),
        ("empirical", "latent or learned", "'empirical_decentered' is then judged"),
        ("shifted", "centred at 3, not at zero", "Write the deviation from there"),
        ("y", "one value per data point", ""),
        ("total", "one value for the whole data set", ""),
    ],
)
def test_each_site_has_its_reason(hierarchy, name, why, advice):
    site = hierarchy[name]
    assert not site.judged
    assert why in site.why
    assert advice in site.advice
    assert bool(advice) == bool(site.advice)
    assert site.observed == (name in ("y", "total"))
    lines = repr(hierarchy).splitlines()
    (line,) = (i for i, text in enumerate(lines) if text.startswith(f"{name} "))
    assert site.why in lines[line]
    assert not site.advice or site.advice in lines[line + 1]


def test_the_advice_is_right():
    config = {"theta": LocScaleReparam(centered=0), "moved": TransformReparam()}
    found = bmr.inspect(reparam(radon, config=config), DATA)
    assert found["theta_decentered"].judged
    assert found["moved_base"].judged
    # With a learned centring the location is one of the parameters'.
    partly = bmr.inspect(reparam(radon, config={"theta": LocScaleReparam()}), DATA)
    assert "latent or learned" in partly["theta_decentered"].why


def priors(group, x, y=None):
    """Priors of all kinds, each centred at zero."""
    del group
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0).expand([3]).to_event(1))
    anchor = numpyro.sample("anchor", dist.ImproperUniform(dist.constraints.real, (), ()))
    total = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    total += x @ numpyro.sample("horseshoe", dist.Normal(0.0, scale).to_event(1))
    total += x @ numpyro.sample("laplace", dist.Laplace(0.0, 1.0).expand([3]).to_event(1))
    total += x @ numpyro.sample("student", dist.StudentT(3.0).expand([3]).to_event(1))
    total += x @ numpyro.sample("joint", dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3)))
    total += x @ numpyro.sample("uniform", dist.Uniform(-1.0, 1.0).expand([3]).to_event(1))
    mask = jnp.array([True, False, True])
    total += x @ numpyro.sample("masked", dist.Normal(jnp.zeros(3), 1.0).mask(mask))
    total += x @ numpyro.sample("anchored", dist.Normal(anchor, 1.0).expand([3]).to_event(1))
    total += x @ numpyro.sample(
        "point", dist.Normal(0.0, 1.0).expand([3]), infer={"posterior": "point"}
    )
    total += bmr.priors.Flat().sample("single", ())
    total += x @ bmr.priors.RegularizedHorseshoePrior().sample("regular", (3,))
    total += x @ bmr.priors.SpikeAndSlabPrior().sample("spiked", (3,))

    def step(before, _):
        state = numpyro.sample("state", dist.Normal(0.9 * before, 1.0))
        return state, state

    scan(step, 0.0, None, length=2)
    numpyro.sample("y", dist.Normal(total, 1.0), obs=y)


def test_priors_that_are_read_and_priors_that_are_not():
    found = bmr.inspect(priors, DATA)
    # The scalar of `bmr.priors` is there because of its prior.
    assert found.judged == ["horseshoe", "laplace", "single", "regular"]
    assert found["horseshoe"].prior == "Normal(0, latent scale)"
    assert found["laplace"].prior == "Laplace(0, 1)"
    assert found["laplace"].posterior == "normal"
    horseshoe = bmr.inspect(priors, DATA, criterion=bmr.criteria.RegularizedHorseshoe(0.1))
    assert horseshoe["laplace"].why == (
        "its prior is Laplace, which criteria.RegularizedHorseshoe does not read"
    )
    assert not horseshoe["laplace"].judged
    assert "Gamma(df / 2, df / 2)" in found["student"].advice
    assert "Cholesky factor" in found["joint"].advice
    assert found["uniform"].why == "its prior is Uniform, which no criterion reads"
    # Zero may not even be a value of such a site.
    assert found["uniform"].advice.startswith("Where its elements may be zero")
    assert found["masked"].why == "its prior is Normal, masked, which no criterion reads"
    assert "Sample the site outside of numpyro.handlers.mask" in found["masked"].advice
    assert "latent or learned" in found["anchored"].why
    assert "latent or learned" in found["state"].why
    assert found["point"].why == "it asks for a point posterior"
    assert "which criteria.SpikeAndSlab does not read" in found["spiked"].why
    assert found["spiked"].advice.startswith("Use criteria.Inclusion()")
    auxiliary = {site.name for site in found if site.auxiliary}
    assert {"single.precision", "regular.slab_precision", "spiked.inclusion"} <= auxiliary
    assert not auxiliary & {site.name for site in found.not_judged}
    inclusion = bmr.inspect(priors, DATA, criterion=bmr.criteria.Inclusion())
    assert inclusion.judged == ["spiked"]
    assert "Use criteria.SpikeAndSlab() or criteria.Shrinkage()" in inclusion["horseshoe"].advice
    named = bmr.inspect(priors, DATA, sites=["intercept"])
    assert named.judged == ["intercept"]
    assert named["horseshoe"].why == "not named in `sites`"
    with pytest.raises(ValueError, match=r"the program has no sites \['gamma'\]"):
        bmr.inspect(priors, DATA, sites=["gamma"])


def regression(group, x, y=None):
    del group
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(intercept + x @ beta, 1.0), obs=y)


def test_what_a_guide_makes_readable():
    for kind in (AutoNormal, bmr.infer.AutoMultivariate):
        guide = kind(regression)
        assert bmr.inspect(regression, DATA, guide=guide).judged == ["beta"]
        assert guide.prototype_trace is None  # looked at by a copy
    for kind in (AutoDelta, AutoMultivariateNormal):
        found = bmr.inspect(regression, DATA, guide=kind(regression))
        assert found.judged == []
        assert found["beta"].why == f"{kind.__name__} gives it no normal posterior of its own"
    guides = AutoGuideList(regression)
    guides.append(AutoNormal(regression))
    assert bmr.inspect(regression, DATA, guide=guides).judged == ["beta"]
    assert guides[0].prototype_trace is None


@pytest.mark.parametrize(
    "prior", [bmr.priors.NormalPrior(), bmr.priors.SoftWeightSharing(components=3)]
)
def test_networks_are_judged_whole(prior):
    network = bmr.zoo.MLP(3, (4,), 1, key=jax.random.key(0))
    program = bmr.programs.regression(network, prior)
    found = bmr.inspect(program, {"x": X, "y": Y}, batch_size=None)
    assert found["net.layers.1.bias"].shape == (1,)  # a single element
    layers = [f"net.layers.{i}.{part}" for i in range(2) for part in ("weight", "bias")]
    assert found.judged == layers


def test_noise_is_judged_by_its_own_criteria():
    network = bmr.nn.with_noise(bmr.zoo.MLP(3, (4,), 1, key=jax.random.key(0)))
    program = bmr.programs.regression(network, bmr.priors.NormalPrior())
    found = bmr.inspect(program, (X, Y), criterion=bmr.criteria.BMRSNormal())
    assert found.judged
    assert {found[name].posterior for name in found.judged} == {"log-normal"}


def test_a_program_that_minibatches_would_change():
    def walk(y):
        steps = numpyro.sample("steps", dist.Normal(0.0, 0.1).expand([ROWS]).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.cumsum(steps), 1.0), obs=y)

    found = bmr.inspect(walk, (Y,), batch_size=6)
    assert found["y"].why == "it needs all rows in every step: batch_size=None"
    assert "batch_size=None" in found["y"].advice
    assert found["steps"].shape == (ROWS,)  # looked at as a whole
    assert bmr.inspect(walk, (Y,), batch_size=None)["y"].why == "one value per data point"


# --- runs ---------------------------------------------------------------------------------


def fit(model=regression, data=DATA, **options):
    settings = {"key": jax.random.key(1), "num_epochs": 3, "batch_size": None, "progress": False}
    return bmr.sparsify(model, data, **{**settings, **options})


@pytest.mark.slow
def test_a_run_judges_what_inspect_says(tmp_path):
    result = fit()
    assert set(result.keep) == {"beta"}
    assert result.inspection == bmr.inspect(regression, DATA)
    assert "judged: 'beta' " in repr(result)
    assert "not judged: 'intercept': one element" in repr(result)
    result.save(tmp_path / "saved")
    loaded = bmr.load(tmp_path / "saved")
    assert loaded.inspection == result.inspection
    assert loaded.facts == result.facts
    assert repr(loaded) == repr(result)
    # What an earlier run removed stays removed, whether it is judged by default or not.
    start = fit(sites=["intercept"], schedule=bmr.schedules.Every(), num_epochs=1)
    start.keep["intercept"] = jnp.zeros((), bool)
    later = fit(options=bmr.FitOptions(start=start))
    assert set(later.keep) == {"intercept", "beta"}
    assert later.inspection["intercept"].why == "elements of it were removed before"


def test_a_prior_under_a_factor_is_not_the_one_that_is_written():
    """exp(.5 ln N(0, 1)) is N(0, sqrt(2)): evidences would be off by ln(2) / 2 per element."""

    def program(factor, x, y=None):
        with numpyro.handlers.scale(scale=factor):
            b = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)

    data = X, X[:, 0]
    assert bmr.inspect(program, (1.0, *data)).judged == ["b"]
    found = bmr.inspect(program, (0.5, *data))
    assert found.judged == []
    assert "a factor on its log density" in found.not_judged[0].why
    draws = {"b": jax.random.normal(jax.random.key(1), (100, 3))}
    with pytest.raises(ValueError, match="'b': a factor on its log density"):
        bmr.reduce_fit(draws, model=program, data=(0.5, *data))


def test_a_scale_that_the_sign_of_a_latent_site_chooses_is_latent():
    def program(y):
        switch = numpyro.sample("switch", dist.Normal(0, 1))
        scale = jnp.where(switch > 0, 1.0, 0.1)
        beta = numpyro.sample("beta", dist.Normal(0, scale).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(beta.sum(), 1), obs=y)

    found = {site.name: site for site in bmr.inspect(program, (jnp.zeros(3),)).sites}
    assert found["beta"].prior == "Normal(0, latent scale)"
    rng = np.random.default_rng(0)
    draws = {"switch": rng.normal(size=99), "beta": rng.normal(size=(99, 2))}
    with pytest.raises(ValueError, match="the scale of its prior is latent"):
        bmr.reduce_fit(draws, model=program, data=(jnp.zeros(3),))


def test_a_site_that_is_drawn_with_a_sample_shape_is_judged_as_one_with_this_shape():
    def program(x, y=None):
        b = numpyro.sample("b", dist.Normal(0, 1), sample_shape=(3,))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0), sample_shape=(2,))
        under = numpyro.sample("under", dist.Normal(0, scale), sample_shape=(3,))
        numpyro.sample("y", dist.Normal(x @ (b + under.sum(1)), 1.0), obs=y)

    found = bmr.inspect(program, (X, X[:, 0]))
    assert found.judged == ["b", "under"]
    assert (found["b"].shape, found["under"].shape) == ((3,), (3, 2))
    assert found["b"].prior == "Normal(0, 1)"
    assert found["under"].prior == "Normal(0, latent scale)"


@pytest.mark.slow
def test_errors_carry_the_reasons():
    with pytest.raises(ValueError, match=r"\['theta'\] cannot be") as caught:
        fit(reparam(radon, config={"theta": LocScaleReparam(0)}), sites=["theta"])
    assert "'theta': it is not a latent site of the program" in str(caught.value)
    assert "'theta_decentered'" in str(caught.value)
    message = r"\['heavy'\] cannot be reduced(.|\n)*'heavy': its prior is Cauchy, which no"

    def heavy(group, x, y=None):
        beta = numpyro.sample("heavy", dist.Cauchy(0.0, 1.0).expand([3]).to_event(1))
        regression(group, x, y + x @ beta)

    with pytest.raises(ValueError, match=message):
        fit(heavy, sites=["heavy"])
    message = r"no site of the program is judged by default(.|\n)*'mu': one element(.|\n)*'theta': "

    def centred(group, x, y=None):
        del x
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0).expand([GROUPS]))
        numpyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)

    with pytest.raises(ValueError, match=message):
        fit(centred)
    assert set(fit(centred, sites=["theta"]).keep) == {"theta"}  # named, it is judged as before


def test_an_affine_transform_of_a_normal_is_a_normal():
    fn = affine(jnp.array([[1.0], [2.0]]), jnp.array([-0.5, 4.0, 1.0]))
    loc, scale = normal_parameters(fn)
    draws = fn.sample(jax.random.key(0), (100_000,))
    np.testing.assert_allclose(loc, draws.mean(0), atol=5 * 4.0 / np.sqrt(100_000))
    np.testing.assert_allclose(scale, draws.std(0), rtol=0.02)
    value = jnp.array([[0.3, -1.0, 2.0]])
    np.testing.assert_allclose(
        dist.Normal(loc, scale).log_prob(value), fn.log_prob(value), rtol=1e-5
    )
    event = dist.TransformedDistribution(
        dist.Normal(0.0, 1.0).expand([3]).to_event(1),
        [transforms.AffineTransform(1.0, 2.0), transforms.AffineTransform(0.0, 3.0)],
    )
    loc, scale = normal_parameters(event)
    np.testing.assert_array_equal(loc, jnp.full(3, 3.0))
    np.testing.assert_array_equal(scale, jnp.full(3, 6.0))
    assert normal_parameters(dist.LogNormal(0.0, 1.0)) is None
    exp = [transforms.AffineTransform(1.0, 2.0), transforms.ExpTransform()]
    assert normal_parameters(dist.TransformedDistribution(dist.Normal(0.0, 1.0), exp)) is None
