import json
from argparse import Namespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import TraceMeanField_ELBO

import bmrjax as bmr
from bmrjax import priors, programs, zoo
from bmrjax.infer.init import initialise

REASON = "the benchmarks are not part of this distribution"
script = pytest.importorskip("benchmarks.papers.markovic2024", reason=REASON)


@pytest.fixture(scope="module")
def started():
    """Return a posterior of the horseshoe in which the layer's scale is wide."""
    prior = priors.RegularizedHorseshoePrior(0.1)
    network = zoo.MLP(4, [3], 2, key=jax.random.key(0))
    model = programs.classifier(network, prior)
    guide = bmr.infer.AutoMeanField(model)
    batch = jax.random.normal(jax.random.key(1), (8, 4)), jnp.zeros(8, jnp.int32)
    loss = TraceMeanField_ELBO()
    start = initialise(model, guide, loss, jax.random.key(2), batch)
    params = start.constrain(start.params)
    params["net.layers.0.global.log_a_auto_scale"] = jnp.asarray(3.0)
    return network, prior, bmr.Result(params, {}, {}, 8, unpruned_model=model, unpruned_guide=guide)


@pytest.mark.slow
def test_posterior_means_carry_the_horseshoes_scale(started):
    network, prior, result = started
    key = jax.random.key(3)
    found = script.weights.posterior_means(network, prior, result, key, num_draws=8000)
    assert list(found) == ["layers.0", "layers.1"]
    rng = np.random.default_rng(0)

    def scales(noise):
        def draw(site):
            name = f"net.layers.0.{site}_auto"
            loc, scale = (np.asarray(result.params[f"{name}_{p}"]) for p in ("loc", "scale"))
            return loc + scale * noise * rng.standard_normal((100_000, *loc.shape))

        log_variance = 2 * np.log(0.1) + draw("global.log_a") - draw("global.log_b")
        of_rows = log_variance[:, None] + draw("row.log_a") - draw("row.log_b")
        return 1 / np.sqrt(np.exp(draw("slab_precision"))[:, None] + np.exp(-of_rows))

    drawn, (at_centre, *_) = scales(1.0), scales(0.0)
    loc = np.asarray(result.params["net.layers.0.weight_auto_loc"])
    # Four standard errors of the mean over 8000 draws.
    tolerance = 4 * (drawn.std(0) / drawn.mean(0)).max() / np.sqrt(8000)
    expected = drawn.mean(0)[:, None] * loc
    np.testing.assert_allclose(found["layers.0"]["weight"], expected, rtol=tolerance)
    # The scale at the centre of the posterior is another one: the test can tell.
    assert np.abs(at_centre / drawn.mean(0) - 1).min() > 2 * tolerance


def test_quantiles_are_of_all_tensors_of_a_layer():
    means = {"a": {"weight": np.arange(-50.0, 50.0), "bias": np.asarray([-100.0])}}
    found = script.weights.quantiles(means)["a"]
    assert len(found) == 101
    assert found[0] == 0.0
    assert found[-1] == 100.0
    assert found == sorted(found)
    np.testing.assert_allclose(found[50], 25.0)


def test_the_first_layer_becomes_pictures():
    filters = np.arange(50.0).reshape(2, 1, 5, 5)
    picture = script.weights.first_layer({"convs.0": {"weight": filters}}, (1, 28, 28))
    np.testing.assert_array_equal(picture, filters.astype(np.float16))
    rows = np.zeros((30, 12))
    rows[7], rows[3] = np.arange(12.0), 1.0
    largest = script.weights.first_layer({"layers.0": {"weight": rows}}, (1, 3, 4))
    assert largest.shape == (24, 1, 3, 4)
    np.testing.assert_array_equal(largest[0, 0], np.arange(12.0).reshape(3, 4))
    np.testing.assert_array_equal(largest[1], np.ones((1, 3, 4)))
    # A patch has its channels last.
    patch = script.weights.first_layer({"patches": {"weight": rows}}, (3, 32, 32))
    np.testing.assert_array_equal(patch[0, :, 0, 1], [3.0, 4.0, 5.0])


def row(method="BMR-S&S", seed=0, epochs=2, **more):
    history = [
        {"epoch": e + 1, "accuracy": 0.8, "nll": 0.5, "ece": 0.1, "sparsity": 0.2 * e}
        for e in range(epochs)
    ]
    what = {"data": "fashion_mnist", "network": "lenet5", "method": method, "seed": seed}
    what |= {"epochs": epochs, "steps_per_epoch": 5, "samples": 100, "num_data": 60_000}
    if "failed" in more:
        return what | more
    scores = {"accuracy": 0.8 + 0.1 * seed, "nll": 0.5, "ece": 0.1, "sparsity": 0.25}
    rest = {"vfe_per_datum": 0.7, "step_ms": 1.5, "history": history}
    return what | scores | rest | {"cdf": {"convs.0": list(np.linspace(0, 1, 101))}} | more


def cells(path):
    lines = [line.strip("| ").split(" | ") for line in path.read_text().splitlines()]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_the_table_has_the_papers_figures_beside_ours(tmp_path):
    rows = script.Rows(tmp_path)
    rows.add(row(seed=0))
    rows.add(row(seed=1))
    rows.add(row(seed=2, failed="5 steps in a row"))
    rows.add(row(method="Flat-MAP", vfe_per_datum=None))
    rows.add(row(epochs=5000, samples=20, num_data=512))
    timed = {"data": "fashion_mnist", "network": "lenet5"}
    steps = {"BMR-S&S": [1.0, 9.0, 2.5], "Flat-MAP": [0.5]}
    script.Rows(tmp_path / "speed").add({**timed, "milliseconds_a_step": steps})
    script.report.write_table(rows)
    first, ours, long = cells(tmp_path / "table.md")
    assert (first["method"], first["ACC, paper"], first["the paper's figures"]) == (
        "Flat-MAP",
        "–",
        "–",
    )
    assert first["VFE, nats per data point"] == "–"
    assert ours["ACC"] == "0.8500 ± 0.0500"
    assert (ours["step, ms"], first["step, ms"]) == ("2.5", "0.5")
    published = [ours[f"{name}, paper"] for name in ("ACC", "NLL", "sparsity")]
    assert published == ["0.90", "0.28", "0.81"]
    assert ours["seeds"] == "2 (1 failed)"
    assert ours["epochs × steps"] == "2 × 5, shorter than the paper's 50 × 500"
    assert (
        long["epochs × steps"]
        == "5000 × 5; 512 images to train and to test on; 20 samples for its 100"
    )


def test_figures_are_written_for_what_there_is(tmp_path):
    rows = script.Rows(tmp_path)
    rows.add(row(seed=2, failed="5 steps in a row"))
    script.report.write_figures(rows)
    assert not list(tmp_path.glob("*.png"))
    rows.add(row())
    name = script.weights.name_of(row())
    script.weights.store(tmp_path, name, np.ones((6, 1, 5, 5), np.float16))
    script.weights.store(tmp_path, "another", np.zeros(2, np.float16))
    assert set(script.weights.load(tmp_path)) == {name, "another"}
    script.report.write_figures(rows)
    written = {path.name for path in tmp_path.glob("*.png")}
    one = {"fig1_fashion_mnist.png", "fig2.png", "fig3_fashion_mnist.png"}
    assert written == one | {"fig4_fashion_mnist_lenet5.png"}


def test_rows_that_are_there_are_not_run_again(tmp_path):
    args = Namespace(seeds=2, data=["fashion_mnist"], nets=["lenet5"], methods=["map", "bmr"])
    args.epochs, args.steps, args.vmap = 2, 5, False
    rows = script.Rows(tmp_path)
    rows.add(row(seed=1))
    rows.add(row(method="Flat-MAP", failed="5 steps in a row"))

    def left():
        waiting = script.missing(args, rows)
        return [[(what["method"], what["seed"]) for what in whats] for whats, _ in waiting]

    assert left() == [[("BMR-S&S", 0)], [("Flat-MAP", 1)]]
    args.epochs = 3
    assert len(left()) == 4
    args.vmap = True
    assert left() == [[(name, seed) for seed in range(2)] for name in ("Flat-MAP", "BMR-S&S")]


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_run_that_diverges_is_a_row_of_its_own(monkeypatch, seeds):
    """Alone, and in a program with others."""
    error = bmr.NonFiniteError(21, 1, bmr.Result({}, {}, {}, 8))
    good = bmr.Result({}, {}, {}, 8)
    results = [error.result if seed == 0 else good for seed in range(seeds)]

    def diverge(*_, **__):
        raise error if seeds == 1 else bmr.EnsembleError(results, {0: error})

    monkeypatch.setattr(script.bmr, "sparsify" if seeds == 1 else "ensemble", diverge)
    network = zoo.MLP(16, [3], 2, key=jax.random.key(0))
    settings = Namespace(epochs=2, steps=5, samples=100, eval_samples=4, eval_every=1)
    data = np.zeros((8, 1, 4, 4), np.float32), np.zeros(8, np.int32)
    found = script.fit(
        script.METHODS["bmr"], [network] * seeds, data, data, [*range(seeds)], settings
    )
    assert found == [error, *[good] * (seeds - 1)]
    monkeypatch.setattr(script, "fit", lambda *_: found[:1])
    what = {k: row()[k] for k in ("data", "method", "seed")} | {"network": "mlp"}
    ((failed, units),) = script.run([what], script.METHODS["bmr"], data, data, settings)
    assert units is None
    assert failed["failed"].startswith("21 steps in a row")
    json.dumps(failed, allow_nan=False)


def test_last_epoch_has_the_metrics_of_the_path():
    scores = [{"accuracy": a, "nll": n, "ece": 0.1} for a, n in ((0.5, 1.0), (0.6, np.inf))]
    history = [
        {"epoch": 1, "kept": 4, "taken_back": True, **scores[0]},
        {"epoch": 2, "kept": 1, "taken_back": False},
    ]
    path = [bmr.Point(2, 1.0, 1, 4, scores[1], {}, {})]
    result = bmr.Result({}, {"w": np.arange(4) < 1}, {}, 8, history=history, path=path)
    first, last = script.epochs_of(result)
    assert (first["accuracy"], first["sparsity"], first["taken_back"]) == (0.5, 0.0, True)
    assert (last["accuracy"], last["nll"], last["sparsity"]) == (0.6, None, 0.75)
