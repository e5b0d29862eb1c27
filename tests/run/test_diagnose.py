"""What is wrong with a run: found, said, stored, and warned of."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import bmrjax as bmr
from bmrjax.run.diagnose import warn_of
from bmrjax.run.facts import Examination

ROWS = 60
X = jax.random.normal(jax.random.key(0), (ROWS, 3))
Y = X @ jnp.array([2.0, -1.5, 0.0]) + 0.3 * jax.random.normal(jax.random.key(1), (ROWS,))


def regression(x, y=None):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(intercept + x @ beta, 0.3), obs=y)


def fit(model=regression, data=(X, Y), **options):
    settings = {
        "key": jax.random.key(2),
        "num_epochs": 12,
        "batch_size": None,
        "steps_per_epoch": 60,
        "optimizer": optax.adabelief(3e-2),
        "schedule": bmr.schedules.Verified(wait=5, refit=1, cooldown=4),
        "progress": False,
    }
    return bmr.sparsify(model, data, **{**settings, **options})


def codes(result):
    return [finding.code for finding in result.diagnose()]


# --- runs ---------------------------------------------------------------------------------


def test_a_healthy_fit_has_no_finding():
    with warnings.catch_warnings():
        warnings.simplefilter("error", bmr.FitWarning)
        result = fit(held_out=(X[:20], Y[:20]))
    assert result.keep["beta"].tolist() == [True, True, False]
    assert result.diagnose() == []
    assert "findings" not in repr(result)
    facts = result.facts
    assert facts["held_out"]
    assert (facts["inputs"], facts["targets"], facts["rows"]) == (["x"], ["y"], 20)
    assert facts["nll"] == result.metrics["nll"]
    assert facts["trivial_rmse"] == pytest.approx(float(Y[:20].std()), rel=1e-5)
    assert facts["dependence"] > 1


def test_a_fit_that_was_stopped_too_early(tmp_path):
    message = "not-converged: The loss was still falling.*Take about .* steps more than the 60"
    schedule = bmr.schedules.Verified(wait=9, cooldown=1)  # a round after nine epochs
    slow = {"steps_per_epoch": 5, "optimizer": optax.adabelief(1e-2), "schedule": schedule}
    with pytest.warns(bmr.FitWarning, match=message):
        result = fit(**slow)
    assert "not-converged" in codes(result)
    assert "    not-converged: The loss was still" in repr(result)
    result.save(tmp_path / "saved")
    assert bmr.load(tmp_path / "saved").diagnose() == result.diagnose()


def test_a_network_that_collapses_to_a_constant():
    """Targets that are pure noise end in a constant, which says so."""
    noise = jax.random.normal(jax.random.key(3), (ROWS,))
    network = bmr.zoo.MLP(3, (4,), 1, key=jax.random.key(0))
    model = bmr.programs.regression(network, bmr.priors.Flat())
    with pytest.warns(
        bmr.FitWarning, match="constant: The predictions do not depend on the inputs"
    ) as caught:
        result = fit(model, (X, noise), num_epochs=25)
    assert {warning.filename for warning in caught} == {
        __file__
    }  # the line of the call, not one of ours
    assert "constant" in codes(result)
    assert result.facts["dependence"] < 1e-6


# --- facts --------------------------------------------------------------------------------


def point(x, y=None):
    loc = numpyro.param("loc", jnp.zeros(3))
    numpyro.sample("intercept", dist.Delta(numpyro.param("at", 0.0)))
    numpyro.sample("beta", dist.Delta(loc, event_dim=1))


def examine(loc, data=(X, Y), model=regression, guide=point, **options):
    params = {"loc": jnp.asarray(loc), "at": jnp.zeros(())}
    settings = {"keep": {"beta": jnp.ones(3, bool)}, "whole": False, **options}
    return Examination(model, guide)(params, data=data, **settings)


def diagnosed(facts, **more):
    made = bmr.Result({}, more.pop("keep", {}), more.pop("layers", {}), ROWS, facts=facts, **more)
    return codes(made)


def test_predictions_are_compared_with_the_mean_of_the_targets():
    good = examine([2.0, -1.5, 0.0])
    residual = np.asarray(Y - X @ jnp.array([2.0, -1.5, 0.0]))
    assert good["rmse"] == pytest.approx(np.sqrt(np.mean(residual**2)), rel=1e-5)
    assert good["trivial_rmse"] == pytest.approx(float(Y.std()), rel=1e-5)
    density = dist.Normal(Y.mean(), Y.std()).log_prob(Y)
    assert good["trivial_nll"] == pytest.approx(-float(density.mean()), rel=1e-5)
    assert diagnosed(good) == []
    nothing = examine([2.0, -1.5, 0.0], keep={"beta": jnp.zeros(3, bool)})
    assert nothing["dependence"] == 0.0
    assert diagnosed(nothing) == ["constant"]
    wrong = examine([0.0, 0.0, 1.0])
    assert wrong["dependence"] > 0
    assert diagnosed(wrong) == ["no-better-than-trivial"]


def test_classes_are_compared_with_the_largest_one():
    def classifier(x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.sample("intercept", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    labels = (X[:, 0] > 0.4).astype(int)
    good = examine([3.0, 0.0, 0.0], (X, labels), classifier)
    share = float(max(labels.mean(), 1 - labels.mean()))
    assert good["trivial_accuracy"] == pytest.approx(share)
    entropy = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    assert good["trivial_nll"] == pytest.approx(entropy, rel=1e-5)
    predicted = np.asarray(X[:, 0] > 0)
    assert good["accuracy"] == pytest.approx(float(np.mean(predicted == np.asarray(labels))))
    assert diagnosed(good) == []
    bad = examine([0.0, 0.3, 0.0], (X, labels), classifier)
    assert diagnosed(bad) == ["no-better-than-trivial"]


def test_the_program_sees_all_rows_if_it_has_to():
    rows = 1200
    x = jnp.linspace(-1.0, 1.0, 3 * rows).reshape(rows, 3)
    y = x @ jnp.array([1.0, 0.0, 0.0])

    def local(x, y=None):
        regression(x, y)
        if x.shape[0] != rows:
            raise ValueError("all rows, please")

    for model, whole, seen in ((regression, False, 500), (local, True, rows)):
        facts = examine([1.0, 0.0, 0.0], (x, y), model, whole=whole)
        assert facts["rows"] == seen
        assert facts["rmse"] < 1e-6
    assert (
        examine([1.0, 0.0, 0.0], (x, y), local)["not_predictable"] == "ValueError: all rows, please"
    )


def test_without_inputs_nothing_is_said_of_them():
    def series(y):
        regression(jnp.zeros((ROWS, 3)), y)

    facts = examine([1.0, 0.0, 0.0], (Y,), series, guide=lambda y: point(y))
    assert "dependence" not in facts
    assert diagnosed(facts) == []


def test_scales_name_argument_and_columns():
    x = np.asarray(X) * [1.0, 300.0, 1.0] + [0.0, 0.0, 50.0]
    facts = examine([0.0, 0.0, 0.0], (x.astype(np.float32), 1e4 + Y))
    inputs, targets = facts["scales"]
    assert (inputs["argument"], inputs["columns"], inputs["role"]) == ("x", [1, 2], "input")
    assert (targets["argument"], targets["columns"], targets["role"]) == ("y", [], "target")
    assert inputs["most"] == pytest.approx(float(x[:, 1:].max()))
    found = bmr.Result({}, {}, {}, ROWS, facts={"scales": facts["scales"]}).diagnose()
    assert [finding.code for finding in found] == ["scale", "scale"]
    assert "columns 1, 2 of 'x' range from" in found[0].message
    assert "The targets are far from unit scale: 'y' range" in found[1].message
    ones = examine([0.0, 0.0, 0.0], (jnp.ones((ROWS, 3)), Y), keep={})
    assert ones["scales"] == []  # a constant column has no scale


def test_complex_numbers_have_no_scale():
    def of_real_parts(z, y):
        regression(z.real, y)

    z = np.asarray(X) * np.complex64(1 + 300j)
    facts = examine([0.0, 0.0, 0.0], (z, Y), of_real_parts)
    assert facts["scales"] == []


def test_correlated_columns_want_a_joint_posterior():
    near = X.at[:, 1].set(X[:, 0] + 0.1 * X[:, 1])
    facts = examine([2.0, 0.0, 0.0], (near, near[:, 0] * 2))
    assert facts["correlated"] == [0, 1]
    keep = {"beta": np.array([True, True, False])}
    assert diagnosed(facts, keep=keep) == ["other-guide"]
    assert diagnosed({**facts, "joint": True}, keep=keep) == []
    assert diagnosed(facts, keep={"other": np.array([True, False])}) == []


# --- findings on what a run records ---------------------------------------------------------


def history(losses, *, kept=9, rate=1.0, steps=50, **more):
    rates = np.broadcast_to(rate, len(losses))
    return [
        {
            "vfe": float(v),
            "kept": kept,
            "rate": float(r),
            "steps": steps,
            "taken_back": False,
            **more,
        }
        for v, r in zip(losses, rates, strict=True)
    ]


EPOCHS = np.arange(40)
NOISE = np.random.default_rng(0).normal(size=40)
SLOW = 500 + 2000 * np.exp(-EPOCHS / 30)
COOLING = np.r_[np.ones(30), np.linspace(1, 0.1, 10)]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (history(SLOW + 5 * NOISE), True),
        (history(SLOW + 5 * NOISE, rate=COOLING), True),
        (history(500 + 2000 * np.exp(-EPOCHS / 3) + 5 * NOISE), False),
        (history(500 + 5 * NOISE), False),
        (history(500 - 0.01 * EPOCHS), False),  # a hundredth of a nat an epoch
        (history(500 + 300 * NOISE - 3 * EPOCHS), False),  # less than its noise
        (history(SLOW[:3]), False),  # too few epochs to say
        # A loss that falls because elements are removed, or because the rate does.
        ([row for k in range(13) for row in history([500 - 20 * k] * 3, kept=40 - k)], False),
        (history(np.r_[np.full(30, 500.0), np.linspace(500, 300, 10)], rate=COOLING), False),
    ],
)
def test_convergence(rows, found):
    made = bmr.Result({}, {}, {}, 100, history=rows)
    assert codes(made) == (["not-converged"] if found else [])


def test_the_number_of_steps_that_are_missing_is_of_the_right_size():
    made = bmr.Result({}, {}, {}, 100, history=history(SLOW))
    (finding,) = made.diagnose()
    more = int(finding.advice.split("about ")[1].split()[0])
    # From e^(-40/30) · 2000 = 527 down to 2 nats takes 30 ln(527 / 2) = 167 epochs.
    assert 0.5 * 167 * 50 < more < 2 * 167 * 50


def test_rounds_and_steps():
    whole = {"beta": np.ones(9, bool)}
    rows = history([500.0] * 5, reduce_seconds=0.1)
    made = bmr.Result({}, whole, {}, 100, history=rows)
    assert codes(made) == ["nothing-removed"]
    rows[-1]["taken_back"] = True
    # What was trained beside a reduced state is no round.
    assert codes(made) == ["nothing-removed"]
    rows[-1]["kept"] = 5
    assert codes(made) == ["rounds-taken-back"]
    made.keep = {"beta": np.arange(9) > 3}
    assert codes(made) == []
    assert codes(bmr.Result({}, whole, {}, 100, history=history([500.0] * 5))) == []
    early = bmr.Result({}, whole, {}, 100, history=history(SLOW, reduce_seconds=0.1))
    assert codes(early) == ["not-converged", "nothing-removed"]
    assert "the fit had not converged" in early.diagnose()[1].message
    skipped = bmr.Result({}, {}, {}, 100, history=history([500.0] * 5), num_skipped=3)
    assert skipped.diagnose()[0].message.startswith("3 of 250 steps were skipped")


def test_a_dead_layer():
    weights, gone = np.ones((4, 3), bool), np.zeros((4, 4), bool)
    keep = {"net.0.weight": weights, "net.1.weight": gone, "net.1.bias": np.ones(4, bool)}
    layers = {name: name.rsplit(".", 1)[0] for name in keep}
    (finding,) = bmr.Result({}, keep, layers, 100).diagnose()
    assert finding.code == "dead-layer"
    assert "All weights of 'net.1' were removed" in finding.message
    assert "'net.0' still has 12" in finding.message
    passes = {"dependence": 0.5, "rows": 10}  # as by the connection around a residual block
    assert diagnosed(passes, keep=keep, layers=layers) == []
    assert diagnosed({}, keep={**keep, "net.1.weight": ~gone}, layers=layers) == []


def test_a_point_that_the_prior_on_masks_chose():
    def made(vfe, kept=2, *, taken_back=False):
        path = [
            bmr.Point(1, 100.0, 9, 9, {}, {}, {}, 4.0, taken_back),
            bmr.Point(2, vfe, kept, 9, {}, {}, {}, 1.0),
        ]
        keep = {"effects": np.arange(9) < kept}
        return bmr.Result({}, keep, {}, 100, path=path, vfe=vfe)

    (finding,) = made(112.0).diagnose()
    assert finding.code == "many-small-effects"
    assert "With 9 of 9 elements the free energy was 12 nats lower than with 2." in finding.message
    assert "result.at(0)" in finding.advice
    assert codes(made(104.0)) == []
    assert codes(made(112.0, taken_back=True)) == []


def test_a_point_that_predicts_worse_than_the_path():
    def at(nll, kept, vfe):
        return bmr.Point(1, vfe, kept, 9, {"nll": nll}, {}, {})

    def made(nll, criterion="SpikeAndSlab"):
        path = [at(0.30, 9, 200.0), at(nll, 2, 100.0)]
        keep = {"beta": np.arange(9) < 2}
        return bmr.Result({}, keep, {}, 100, path=path, vfe=100.0, facts={"criterion": criterion})

    assert codes(made(0.40)) == ["worse-than-unreduced"]
    assert "is 0.4 nats per data point with 2 elements, and was 0.3 with 9" in str(
        made(0.40).diagnose()
    )
    assert codes(made(0.33)) == ["other-criterion"]
    assert codes(made(0.33, "Shrinkage")) == []
    assert codes(made(0.31)) == []
    few = made(0.40)
    few.facts["rows"] = 16  # too few to tell a tenth of a nat from chance
    assert codes(few) == []


def test_what_is_warned_of():
    findings = [bmr.Finding("scale", "mild.", "a"), bmr.Finding("constant", "bad.", "b")]
    with pytest.warns(bmr.FitWarning, match="sparsify: constant: bad. b") as caught:
        warn_of(findings)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=bmr.FitWarning)  # as the docstring says
        warn_of(findings)
