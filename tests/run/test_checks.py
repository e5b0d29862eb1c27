"""What is refused before a fit, with a message that says what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import constraints
from numpyro.infer import MCMC, NUTS, RenyiELBO, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoNormal

import bmrjax as bmr
from bmrjax import infer, programs
from bmrjax.cli.run_report import why_nothing_went

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 5)).astype(np.float32)
Y = 2 * X[:, 0]
LABELS = np.arange(60) % 3


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([5]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def column(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([5, 1]).to_event(2))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def unobserved(x, y=None):
    del y
    program(x)


def discrete(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([5]).to_event(1))
    shifted = numpyro.sample("shifted", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(x @ beta + shifted, 0.5), obs=y)


class Peaked(dist.Normal):
    def log_prob(self, value):
        return super().log_prob(value) - 10 * jnp.abs(value)


class Laplace(dist.Normal):
    """Of the same name as a distribution of NumPyro."""

    def log_prob(self, value):
        return super().log_prob(value) - 10 * jnp.abs(value)


def of_a_known_name(x, y=None):
    beta = numpyro.sample("beta", Laplace(jnp.zeros(5), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def derived(x, y=None):
    beta = numpyro.sample("beta", Peaked(jnp.zeros(5), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def positive(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([5]).to_event(1))
    numpyro.sample("y", dist.Gamma(2.0, jnp.exp(x @ beta)), obs=y)


def binary(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([5]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def classifier():
    network = bmr.zoo.MLP(5, (4,), 3, key=jax.random.key(0))
    return programs.classifier(network, bmr.priors.Flat())


def fit(model, data, **options):
    defaults = {"key": jax.random.key(0), "num_epochs": 2, "progress": False}
    return bmr.sparsify(model, data, **{**defaults, **options})


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (program, (X, Y[:, None]), r"'y' have shape \(60, 1\).*together they would be \(60, 60\)"),
        (column, (X, Y), r"batch shape \(60, 1\).*net\(x\)\[:, 0\]"),
        (unobserved, (X, Y), r"observes nothing.*obs=y"),
        (program, (X,), r"observes nothing.*targets with the data"),
        (discrete, (X, Y), r"latent sites \['shifted'\] are discrete.*Sum over them"),
        (
            derived,
            (X, Y),
            r"prior of 'beta' is Peaked, which has a log_prob.*from dist\.Distribution",
        ),
        (of_a_known_name, (X, Y), r"prior of 'beta' is Laplace, which has a log_prob"),
        (positive, (X, Y), r"'y' have to be at least 0\.0; they go from -.*Check the targets"),
        (binary, (X, LABELS), r"'y' have to be 0 or 1 and whole; they go from 0 to 2"),
        (
            classifier(),
            (X, np.arange(60) % 7),
            r"from 0 to 2 and whole; they go from 0 to 6.*outputs",
        ),
        (classifier(), (X, LABELS - 1), r"they go from -1 to 1\. Labels start at 0"),
        (classifier(), (X, LABELS.astype(np.float32)), r"dtype float32; give integers"),
        (classifier(), (X, np.eye(3)[LABELS]), r"shape \(60, 3\).*do not go together.*one value"),
    ],
)
@pytest.mark.parametrize("batch_size", [None, 60])
def test_what_the_program_observes(model, data, message, batch_size):
    with pytest.raises(ValueError, match=message):
        fit(model, data, batch_size=batch_size)


def test_a_loss_of_densities_takes_those_of_derived_classes():
    result = fit(derived, (X, Y), criterion=None, options=bmr.FitOptions(loss=Trace_ELBO()))
    assert np.isfinite(result.vfe)


def test_discrete_sites_are_listed_before_they_are_refused():
    found = bmr.inspect(discrete, (X, Y))
    assert found.judged == ["beta"]
    assert "sum over it in the likelihood" in found["shifted"].advice


def test_the_constraints_of_numpyro_stay_as_they_are():
    fit(positive, (X, np.abs(Y) + 0.1), criterion=None)
    for constraint in (constraints.positive, constraints.nonnegative):
        assert type(constraint.lower_bound) is float


def test_labels_behind_the_first_batch_are_seen_too():
    late = np.concatenate([LABELS[:-1], [3]])
    with pytest.raises(ValueError, match="go from 0 to 3"):
        fit(classifier(), (X, late), batch_size=16)


def test_targets_that_do_not_count_are_not_looked_at():
    seen = LABELS.copy()
    seen[::2] = -1

    def partly(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([5, 3]).to_event(2))
        mask = True if y is None else y >= 0
        numpyro.sample("y", dist.Categorical(logits=x @ beta).mask(mask), obs=y)

    assert np.isfinite(fit(partly, (X, seen), batch_size=None).vfe)


def test_one_value_for_all_and_whole_numbers_as_floats_are_fine():
    def penalty(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([5]).to_event(1))
        numpyro.sample("zero", dist.Normal(x @ beta, 1.0), obs=0.0)
        numpyro.sample("y", dist.Poisson(jnp.exp(0.1 * x @ beta)), obs=y)

    result = fit(penalty, (X, LABELS.astype(np.float32)), batch_size=None)
    assert np.isfinite(result.vfe)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criterion": "bmr"}, r"criteria\.SpikeAndSlab\(\), got 'bmr'"),
        ({"criterion": bmr.criteria.Shrinkage}, r"an object like criteria\.SpikeAndSlab\(\)"),
        ({"schedule": "every"}, r"schedules\.Verified\(\), got 'every'"),
        ({"num_epochs": "4"}, "num_epochs must be a whole number, got '4'"),
        ({"batch_size": 2.5}, r"batch_size must be a whole number, got 2\.5"),
        ({"key": 3}, r"jax\.random\.key\(0\); got 3"),
        ({"guide": infer.AutoMultivariate}, r"AutoMultivariate\(model\)"),
        ({"sites": "beta"}, r"sites=\['beta'\]"),
    ],
)
def test_kinds_of_arguments(options, message):
    with pytest.raises(TypeError, match=message):
        fit(program, (X, Y), **options)


def test_a_short_run_that_ends_in_steps_that_are_not_finite_fails():
    with pytest.raises(bmr.NonFiniteError, match="Lower the learning rate") as caught:
        fit(program, (X, Y), steps_per_epoch=5, optimizer=optax.adabelief(1e30))
    assert caught.value.result.num_skipped > 0


@pytest.mark.slow
def test_a_run_that_diverged_is_no_better_when_it_is_resumed(tmp_path):
    options = {"steps_per_epoch": 5, "optimizer": optax.adabelief(1e30)}
    for resume in (False, True):
        with pytest.raises(bmr.NonFiniteError, match="Lower the learning rate"):
            fit(
                program,
                (X, Y),
                checkpoints=bmr.Checkpoints(tmp_path / "one", resume=resume),
                **options,
            )
        with pytest.raises(bmr.EnsembleError) as caught:
            bmr.ensemble(
                [program] * 2,
                (X, Y),
                keys=[jax.random.key(i) for i in range(2)],
                num_epochs=2,
                progress=False,
                checkpoints=bmr.Checkpoints(tmp_path / "two", resume=resume),
                **options,
            )
        assert set(caught.value.failures) == {0, 1}


def test_a_result_prints_what_it_is():
    network = bmr.zoo.MLP(5, (4,), 1, key=jax.random.key(0))
    result = fit(
        programs.regression(network, bmr.priors.Flat()), (X, Y), num_epochs=3, held_out=(X, Y)
    )
    printed = repr(result)
    head, rest = printed.split("  findings:\n")
    assert len(head.splitlines()) == 7
    assert f"{result.num_kept} of {result.num_total} elements kept" in head
    assert f"rmse {result.metrics['rmse']:.4g}" in head
    assert "net.layers.0" in head
    kept = int(result.keep["net.layers.0.weight"].sum())
    assert f"judged: 'net.layers.0.weight' {kept} of 20" in head
    assert "not judged: 'noise': it is positive (HalfNormal)" in head
    assert "precision" not in head  # the scales of the layers are a part of their prior
    assert rest.splitlines() == [f"    {finding}" for finding in result.diagnose()]
    with pytest.raises(IndexError, match="points, and no 99"):
        result.at(99)
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        result.smallest(vfe_within=-1)


def test_a_run_is_not_resumed_to_an_earlier_end(tmp_path):
    fit(program, (X, Y), num_epochs=3, checkpoints=tmp_path)
    with pytest.raises(ValueError, match="has done 3 epochs, and num_epochs is 2"):
        fit(program, (X, Y), num_epochs=2, checkpoints=bmr.Checkpoints(tmp_path, resume=True))
    assert (
        len(
            fit(
                program, (X, Y), num_epochs=3, checkpoints=bmr.Checkpoints(tmp_path, resume=True)
            ).history
        )
        == 3
    )


def test_a_run_is_not_resumed_on_other_data(tmp_path):
    fit(program, (X, Y), num_epochs=1, checkpoints=tmp_path)
    with pytest.raises(ValueError, match=r"had data \(their digest\)"):
        fit(program, (X, Y + 1), num_epochs=2, checkpoints=bmr.Checkpoints(tmp_path, resume=True))
    assert (
        len(
            fit(
                program, (X, Y), num_epochs=2, checkpoints=bmr.Checkpoints(tmp_path, resume=True)
            ).history
        )
        == 2
    )


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"taken_back": False, "reduce_seconds": 1e-6}] * 3, "fitted into 3 epochs"),
        ([{"taken_back": False}] * 2, "fitted into 2 epochs"),
        ([{"taken_back": True, "reduce_seconds": 0.1}], "was taken back"),
        ([{"taken_back": False, "reduce_seconds": 0.1}], "proposed anything"),
    ],
)
def test_a_run_that_removes_nothing_says_why(rows, reason):
    dense = {"kept": 9, "total": 9}
    assert reason in why_nothing_went(rows, [dense])
    # Held-out data may choose the start of a path that goes on.
    assert "chose the point before" in why_nothing_went(rows, [dense, {"kept": 4, "total": 9}])


def test_a_report_needs_all_parameters_of_the_fit():
    result = fit(program, (X, Y), num_epochs=1, guide=bmr.infer.AutoMeanField(program))
    assert result.guide is not None
    some = {name: value for name, value in result.params.items() if "scale" not in name}
    with pytest.raises(ValueError, match=r"\['beta_auto_scale'\].* are missing\. Give all"):
        bmr.free_energy_report(program, result.guide, some, (X, Y), key=jax.random.key(0), points=3)


def test_predictions_are_of_finite_data_under_a_key():
    result = fit(program, (X, Y), num_epochs=1)
    with pytest.raises(TypeError, match=r"Result\.predict: key.*got an array of float32"):
        result.predict(X)
    for told, ask in (
        ("Result.evaluate", lambda: result.evaluate(3, (X, Y))),
        ("Result.free_energy", lambda: result.free_energy(3, (X, Y))),
        ("Result.sample", lambda: result.sample(3, 10)),
        (
            "free_energy_report",
            lambda: bmr.free_energy_report(program, result.guide, result.params, (X, Y), key=3),
        ),
    ):
        with pytest.raises(TypeError, match=rf"{told}: key must be .* got 3\."):
            ask()
    missing = X.copy()
    missing[3, 1] = np.nan
    for run in (
        lambda: result.predict(jax.random.key(0), missing),
        lambda: result.evaluate(jax.random.key(0), (missing, Y)),
        lambda: result.free_energy(jax.random.key(0), (missing, Y)),
    ):
        with pytest.raises(
            ValueError, match=r"\[0\] has NaN or infinite values in 1 of 60 rows, first in row 3"
        ):
            run()


def spiked(x, y=None):
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    beta = bmr.priors.SpikeAndSlabPrior().sample("beta", (5,))
    numpyro.sample("y", dist.Normal(intercept + x @ beta, 0.5), obs=y)


@pytest.mark.parametrize(
    "make_guide", [AutoNormal, AutoDelta, infer.AutoMultivariate, infer.AutoLowRank]
)
def test_guides_that_know_nothing_of_atoms_refuse_them(make_guide):
    with pytest.raises(NotImplementedError, match=r"Fit it with bmrjax\.infer\.AutoMeanField"):
        fit(spiked, (X, Y), guide=make_guide(spiked), criterion=None)


def test_mcmc_refuses_atoms():
    with pytest.raises(NotImplementedError, match=r"or use priors\.RegularizedHorseshoe"):
        MCMC(NUTS(spiked), num_warmup=1, num_samples=1).run(jax.random.key(0), X, Y)


@pytest.mark.parametrize("loss", [Trace_ELBO(), RenyiELBO()])
def test_a_loss_of_densities_does_not_fit_atoms(loss):
    with pytest.raises(ValueError, match=r"\['beta'\] are spike-and-slab.* Leave `loss` out"):
        fit(spiked, (X, Y), options=bmr.FitOptions(loss=loss), criterion=None)


@pytest.mark.slow
def test_a_criterion_that_does_not_judge_atoms_names_the_one_that_does():
    with pytest.warns(UserWarning, match=r"criteria\.Inclusion\(\) judges the spike-and-slab"):
        fit(half_spiked, (X, Y))
    reason = r"'beta': its posterior is spike-and-slab, .* Use criteria\.Inclusion\(\)"
    for model in (spiked, only_spiked):  # the intercept of `spiked` is judged only when named
        with pytest.raises(ValueError, match=reason):
            fit(model, (X, Y))


def half_spiked(x, y=None):
    gamma = numpyro.sample("gamma", dist.Normal(0, 1).expand([2]).to_event(1))
    beta = bmr.priors.SpikeAndSlabPrior().sample("beta", (3,))
    mean = x[:, :2] @ gamma + x[:, 2:] @ beta
    numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def only_spiked(x, y=None):
    beta = bmr.priors.SpikeAndSlabPrior().sample("beta", (5,))
    numpyro.sample("y", dist.Normal(x @ beta, 0.5), obs=y)


def test_without_a_mean_there_is_no_error_of_it():
    def heavy(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([5]).to_event(1))
        numpyro.sample("y", dist.Cauchy(x @ beta, 0.5), obs=y)

    metrics = fit(heavy, (X, Y), held_out=(X, Y)).metrics
    assert np.isfinite(metrics["nll"])
    assert "rmse" not in metrics
