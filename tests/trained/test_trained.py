"""`reduce_network` on networks that were trained, from data to the reduced network."""

import dataclasses
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from sklearn.datasets import load_digits
from test_trained_layers import NETWORKS

import bmrjax as bmr
from bmrjax.trained.choice import PathPoint, as_good, chosen_point
from bmrjax.trained.points import is_over


@pytest.fixture(scope="module")
def digits():
    """Return rows to train on, rows that are kept out, and a perceptron trained on the former."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int32)
    network = eqx.nn.MLP(64, 10, 24, 1, key=jax.random.key(0))
    optimizer = optax.adam(1e-2)
    state = optimizer.init(eqx.filter(network, eqx.is_array))

    def loss(network, x, y):
        logits = jax.vmap(network)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @eqx.filter_jit
    def step(network, state, x, y):
        updates, state = optimizer.update(eqx.filter_grad(loss)(network, x, y), state)
        return eqx.apply_updates(network, updates), state

    rng = np.random.default_rng(0)
    for _ in range(150):
        some = rng.integers(0, 1200, 200)
        network, state = step(network, state, x[some], y[some])
    return (x[:1200], y[:1200]), (x[1200:], y[1200:]), network


@pytest.fixture(scope="module")
def reduced(digits):
    data, held_out, network = digits
    return bmr.reduce_network(network, data, held_out=held_out, smallest=0.1)


def scores(network, rows):
    log_probs = jax.nn.log_softmax(jax.vmap(network)(rows[0]))
    right = jnp.argmax(log_probs, 1) == rows[1]
    return float(right.mean()), -float(jnp.take_along_axis(log_probs, rows[1][:, None], 1).mean())


class TestDigits:
    """What comes out of the default call."""

    def test_the_network_is_the_masked_one_of_the_same_class(self, digits, reduced):
        network = digits[2]
        assert type(reduced.network) is type(network)
        assert jax.tree.structure(reduced.network) == jax.tree.structure(network)
        for k, layer in enumerate(reduced.network.layers):
            mask = reduced.masks[f"layers.{k}.weight"]
            assert not np.asarray(layer.weight)[~mask].any()
            assert np.asarray(layer.weight)[mask].all()
            assert layer.weight.dtype == network.layers[k].weight.dtype
        total = sum(mask.size for mask in reduced.masks.values())
        stay = sum(int(mask.sum()) for mask in reduced.masks.values())
        assert reduced.kept == pytest.approx(stay / total)

    def test_half_goes_and_held_out_rows_do_not_notice(self, digits, reduced):
        before, after = scores(digits[2], digits[1]), scores(reduced.network, digits[1])
        assert reduced.kept < 0.65
        assert after[0] > before[0] - 0.01
        point = reduced.path[reduced.chosen]
        assert point.as_good
        dense = -jax.nn.log_softmax(jax.vmap(digits[2])(digits[1][0]))
        dense = np.take_along_axis(np.asarray(dense), digits[1][1][:, None], 1)
        known = dense.std(ddof=1) / np.sqrt(len(dense))
        assert point.measured + 1.6449 * point.standard_error <= 0.25 * known + 1e-6
        assert point.metrics["loss"] == pytest.approx(after[1], abs=1e-5)
        assert point.metrics["accuracy"] == pytest.approx(after[0], abs=1e-6)
        assert point.measured == pytest.approx(after[1] - before[1], abs=1e-5)

    def test_the_evidence_stops_where_the_loss_sets_in(self, reduced):
        gain = [point.delta_f for point in reduced.path]
        assert gain[0] == 0 < gain[1]
        best = reduced.path[reduced.evidence_point]
        assert 0 < reduced.evidence_point < len(reduced.path) - 1
        assert best.measured < 0.05
        assert reduced.path[-1].delta_f < best.delta_f

    def test_predictions_are_those_that_are_measured(self, reduced):
        far = [point for point in reduced.path if 0.02 < point.predicted < 0.1]
        assert far
        for point in far:
            assert 0.4 < point.measured / point.predicted < 2.5

    def test_the_report_has_the_path_and_what_each_array_lost(self, reduced, tmp_path):
        text = reduced.report(tmp_path / "page.html").read_text()
        kept = sum(int(mask.sum()) for mask in reduced.masks.values())
        assert f"{kept:,} of " in text
        lost = reduced.removals().groupby("array")["delta_f"].sum()
        assert set(lost.index) == set(reduced.masks)
        for name, gain in lost.items():
            row = text[text.index(f">{name}</th>") :]
            assert f"{gain:+.3g}" in row[: row.index("</tr>")]
        assert '"mark":"this network"' in text

    def test_the_path_can_be_walked(self, digits, reduced):
        assert scores(reduced.network_at(0), digits[1]) == scores(digits[2], digits[1])
        for i in (2, len(reduced.path) - 1):
            accuracy, nll = scores(reduced.network_at(i), digits[1])
            assert nll == pytest.approx(reduced.path[i].metrics["loss"], abs=1e-5)
            zeros = sum(int(jnp.sum(layer.weight == 0)) for layer in reduced.network_at(i).layers)
            assert zeros == round((1 - reduced.path[i].kept) * 1776)
        with pytest.raises(IndexError, match="has points 0 to"):
            reduced.network_at(len(reduced.path))

    def test_each_removal_has_a_receipt(self, reduced):
        receipts = reduced.removals()
        gone = {
            (name, int(i))
            for name, mask in reduced.masks.items()
            for i in np.flatnonzero(~mask.ravel())
        }
        assert set(zip(receipts["array"], receipts["index"], strict=True)) == gone
        assert len(receipts) == len(gone)
        total = receipts["delta_f"].sum()
        assert total == pytest.approx(reduced.path[reduced.chosen].delta_f)
        table = reduced.table()
        assert table["chosen"].sum() == 1
        assert list(reduced.layers()["weights"]) == [64 * 24, 240]
        assert "judged weights stay" in repr(reduced)
        assert reduced.not_judged["layers.0.bias"] == "it is added, and multiplies nothing"

    def test_it_beats_other_choices_from_the_same_rows(self, digits, reduced):
        data, held_out, network = digits
        i = len(reduced.path) - 1
        kept = reduced.path[i].kept
        ours = scores(reduced.network_at(i), held_out)
        for method in bmr.trained.METHODS:
            (other,) = bmr.trained.reduce_by(network, data, method, keep=[kept], held_out=held_out)
            assert other.kept == pytest.approx(kept, abs=0.02)
            stay = sum(int(mask.sum()) for mask in other.masks.values())
            assert stay == round(other.kept * 1776)
            assert ours[1] < scores(other.network, held_out)[1], method


class TestOptions:
    """What a caller can ask for."""

    def test_keep(self, digits):
        data, held_out, network = digits
        found = bmr.reduce_network(network, data, held_out=held_out, keep=0.4)
        assert found.kept == pytest.approx(0.4, abs=1e-3)
        assert found.chosen == len(found.path) - 1

    def test_leave(self, digits):
        data, held_out, network = digits
        found = bmr.reduce_network(
            network, data, held_out=held_out, keep=0.5, leave=("layers.0.*",)
        )
        np.testing.assert_array_equal(found.network.layers[0].weight, network.layers[0].weight)
        np.testing.assert_array_equal(found.network.layers[0].bias, network.layers[0].bias)
        assert list(found.masks) == ["layers.1.weight"]
        assert found.not_judged["layers.0.weight"] == "left alone, as asked"
        assert found.kept == pytest.approx(0.5, abs=0.01)

    def test_two_of_four(self, digits):
        data, held_out, network = digits
        found = bmr.reduce_network(network, data, held_out=held_out, pattern=(2, 4))
        for mask in found.masks.values():
            assert (mask.reshape(len(mask), -1, 4).sum(-1) == 2).all()
        assert scores(found.network, held_out)[0] > scores(network, held_out)[0] - 0.03

    def test_lose_at_most(self, digits, reduced):
        data, held_out, network = digits
        found = bmr.reduce_network(network, data, held_out=held_out, lose_at_most=3.0, smallest=0.1)
        lost = found.path[0].metrics["accuracy"] - found.path[found.chosen].metrics["accuracy"]
        assert lost <= 0.03 + 1e-6
        assert found.kept <= reduced.kept

    def test_without_targets_the_network_teaches_itself(self, digits):
        (x, _), held_out, network = digits
        found = bmr.reduce_network(network, (x, None), loss=bmr.trained.CrossEntropy(), keep=0.5)
        same = jnp.argmax(jax.vmap(found.network)(held_out[0]), 1) == jnp.argmax(
            jax.vmap(network)(held_out[0]), 1
        )
        assert float(same.mean()) > 0.97
        with pytest.raises(ValueError, match="the loss must be named"):
            bmr.reduce_network(network, (x, None))
        with pytest.raises(ValueError, match="noise_scale"):
            bmr.reduce_network(network, (x, None), loss=bmr.trained.SquaredError())

    def test_a_function_is_a_loss(self, digits):
        data, held_out, network = digits

        def loss(outputs, label):
            return -jax.nn.log_softmax(outputs)[label]

        found = bmr.reduce_network(network, data, held_out=held_out, loss=loss, keep=0.5)
        assert scores(found.network, held_out)[0] > scores(network, held_out)[0] - 0.02
        assert set(found.path[0].metrics) == {"loss"}

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"keep": 1.5}, "keep is a share between 0 and 1"),
            ({"keep": 0.5, "lose_at_most": 1.0}, "give one of keep, lose_at_most and pattern"),
            ({"lose_at_most": -1.0}, "lose_at_most is not negative"),
            ({"pattern": (4, 2)}, "0 < n < m"),
            ({"leave": ("nothing",)}, "no array is called 'nothing'; there are layers.0.weight"),
            ({"leave": ("*",)}, "leave leaves nothing to judge"),
            ({"num_data": 0}, "num_data is at least 1"),
            ({"held_out": (np.ones((3, 9), np.float32), np.ones(3, int))}, "held_out must be like"),
        ],
    )
    def test_options_out_of_range(self, digits, options, match):
        data, _, network = digits
        with pytest.raises(ValueError, match=match):
            bmr.reduce_network(network, data, **options)

    def test_zeros_and_ones_that_could_belong_to_several_losses(self, digits):
        (x, y), _, network = digits
        call = bmr.reduce_network
        for one_hot in (np.eye(10, dtype=np.float32)[y], np.eye(10, dtype=int)[y]):
            with pytest.raises(
                ValueError, match=r"rows with a single one.*CrossEntropy\(\) of one"
            ):
                call(network, (x, one_hot))
        single = eqx.nn.Sequential([network, eqx.nn.Lambda(lambda logits: logits[:1])])
        with pytest.raises(
            ValueError, match=r"zeros and ones of dtype float32.*BinaryCrossEntropy"
        ):
            call(single, (x, (y[:, None] == 0).astype(np.float32)))
        pair = eqx.nn.Sequential([network, eqx.nn.Lambda(lambda logits: logits[:2])])
        labels = (y == 0).astype(np.float32)
        with pytest.raises(
            ValueError, match=r"float32, one per 2 outputs\. Give integers for class"
        ):
            call(pair, (x, labels))
        known = [single, eqx.nn.Lambda(lambda z: jax.nn.sigmoid(z))]
        with pytest.raises(ValueError, match="leave the sigmoid out"):
            call(eqx.nn.Sequential(known), (x, y[:, None] == 0))

    def test_data_that_do_not_fit(self, digits):
        (x, y), _, network = digits
        call = bmr.reduce_network
        with pytest.raises(TypeError, match=r"data is a pair \(inputs, targets\)"):
            call(network, x)
        with pytest.raises(ValueError, match="as many targets as inputs"):
            call(network, (x, y[:-1]))
        with pytest.raises(ValueError, match="not finite"):
            call(network, (np.where(x > 0.99, np.nan, x), y))
        with pytest.raises(ValueError, match="one of the inputs of data is a masked array"):
            call(network, (np.ma.masked_greater(x, 0.99), y))
        with pytest.raises(ValueError, match="one of the targets of held_out is a masked array"):
            call(network, (x.astype(">f8"), y), held_out=(x, np.ma.masked_greater(y, 8)))
        with pytest.raises(ValueError, match="does not run on"):
            call(network, (x[:, :3], y))
        with pytest.raises(ValueError, match="labels run from 0 to 10, but there are 10 classes"):
            call(network, (x, np.where(y == 3, 10, y)))
        with pytest.raises(ValueError, match="do not fit outputs"):
            call(network, (x, x[:, :7]))
        for labels in (np.where(y == 3, -1, y), y.astype(np.float32)):
            with pytest.raises(ValueError, match="targets of held_out: labels"):
                call(network, (x, y), held_out=(x, labels))
        with pytest.raises(TypeError, match="expected an Equinox module"):
            call(lambda x: x, (x, y))
        with pytest.raises(ValueError, match="outputs are probabilities"):
            call(eqx.nn.Sequential([network, eqx.nn.Lambda(jax.nn.softmax)]), (x, y))


def test_targets_with_their_channels_elsewhere():
    network = eqx.nn.Conv2d(3, 3, 3, padding=1, key=jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(60, 3, 6, 6)).astype(np.float32)
    y = np.asarray(jax.vmap(network)(x)) + np.float32(0.1)
    last = y.transpose(0, 2, 3, 1)
    with pytest.raises(ValueError, match=r"\(6, 6, 3\) a row have their axes in another order"):
        bmr.reduce_network(network, (x, last))
    with pytest.raises(ValueError, match="targets of held_out of shape .* in another order"):
        bmr.reduce_network(network, (x, y), held_out=(x, last))
    binary = bmr.trained.BinaryCrossEntropy()
    with pytest.raises(ValueError, match="in another order"):
        bmr.reduce_network(network, (x, last > 0), loss=binary)
    # Neighbouring axes may be one, and ones do not count.
    metrics = [
        bmr.reduce_network(network, (x, y.reshape(60, *shape)), keep=0.9).path[0].metrics
        for shape in ((3, 6, 6), (108,), (3, 36, 1))
    ]
    assert metrics[0] == metrics[1] == metrics[2]


def curve():
    """Return rows of a regression of one variable."""
    x = np.random.default_rng(0).uniform(-2, 2, (600, 1)).astype(np.float32)
    noise = 0.1 * np.random.default_rng(1).normal(size=x.shape)
    return x, (np.sin(2 * x) + noise).astype(np.float32)


def test_regression_with_flax():
    x, y = curve()
    rngs = nnx.Rngs(0)
    network = nnx.Sequential(nnx.Linear(1, 40, rngs=rngs), jnp.tanh, nnx.Linear(40, 1, rngs=rngs))
    optimizer = nnx.Optimizer(network, optax.adam(2e-2), wrt=nnx.Param)

    @nnx.jit
    def step(network, optimizer):
        optimizer.update(network, nnx.grad(lambda n: jnp.mean((n(x) - y) ** 2))(network))

    for _ in range(300):
        step(network, optimizer)
    before = float(jnp.mean((network(x) - y) ** 2))
    found = bmr.reduce_network(network, (x, y))
    assert isinstance(found.network, nnx.Sequential)
    assert float(jnp.mean((network(x) - y) ** 2)) == before
    assert found.kept < 0.6
    assert float(jnp.mean((found.network(x) - y) ** 2)) < 1.15 * before
    assert found.path[0].metrics["mse"] == pytest.approx(before, rel=0.3)


def test_equinox_with_state_and_convolutions():
    make = eqx.nn.make_with_state(
        lambda key: eqx.nn.Sequential(
            [
                eqx.nn.Conv1d(2, 8, 3, padding=1, key=key),
                eqx.nn.BatchNorm(8, "batch", mode="batch"),
                eqx.nn.Lambda(jax.nn.relu),
                eqx.nn.Lambda(jnp.ravel),
                eqx.nn.Linear(40, 2, key=key),
            ]
        )
    )
    network, state = make(jax.random.key(0))
    x = np.asarray(jax.random.normal(jax.random.key(1), (300, 2, 5)))
    run = jax.vmap(network, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
    _, state = run(x, state)
    teacher = eqx.nn.inference_mode(network)
    logits = jax.vmap(lambda x: teacher(x, state)[0])(x)
    y = np.asarray(jnp.argmax(logits, 1))
    found = bmr.reduce_network((network, state), (x, y), keep=0.7)
    assert isinstance(found.network, tuple)
    assert sorted(found.masks) == ["layers.0.weight", "layers.4.weight"]
    reduced = eqx.nn.inference_mode(found.network[0])
    fresh = jax.vmap(lambda x: reduced(x, found.network[1])[0])(x)
    assert float(jnp.mean(jnp.argmax(fresh, 1) == y)) > 0.93


def test_small_noise_is_safe_in_single_precision():
    x, _ = curve()
    x = np.concatenate([x, x + 1e-4, 1e3 + 0 * x], 1).astype(np.float32)
    network = eqx.nn.MLP(3, 1, 8, 1, activation=jnp.tanh, key=jax.random.key(0))
    network = eqx.tree_at(
        lambda n: n.layers[0].weight, network, replace_fn=lambda w: w.at[:, 2].set(0)
    )
    targets = jax.vmap(network)(x)
    found = bmr.reduce_network(
        network, (x, np.asarray(targets)), loss=bmr.trained.SquaredError(1e-4), keep=0.5
    )
    error = jax.vmap(found.network)(x) - targets
    assert float(jnp.mean(error**2)) < 1e-4 * float(jnp.var(targets))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "name",
    [
        "residual",
        "attention",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("recurrent", "stacked")),
    ],
)
def test_networks_of_other_layouts(name):
    make, shape, _ = NETWORKS[name]
    network = make()
    x = np.asarray(jax.random.normal(jax.random.key(1), (600, *shape)))
    options = {"loss": bmr.trained.SquaredError(0.1), "seed": 1}
    found = bmr.reduce_network(network, (x, None), keep=0.6, **options)
    (other,) = bmr.trained.reduce_by(network, (x, None), "magnitude", keep=[0.6], **options)
    assert jax.tree.structure(found.network) == jax.tree.structure(network)
    fresh = np.asarray(jax.random.normal(jax.random.key(2), (300, *shape)))
    exact, ours, theirs = (
        np.asarray(jax.vmap(some)(fresh)) for some in (network, found.network, other.network)
    )
    assert np.mean((ours - exact) ** 2) < 0.5 * np.mean((theirs - exact) ** 2)


def test_few_rows_are_a_finding():
    x, y = curve()
    network = eqx.nn.MLP(1, 1, 8, 1, key=jax.random.key(0))
    with pytest.warns(bmr.FitWarning, match="chosen on 25 rows"):
        found = bmr.reduce_network(network, (x[:100], y[:100]), keep=0.5)
    assert found.findings[0].code == "few-rows"


def test_a_result_does_not_depend_on_how_often_it_is_computed(digits):
    data, held_out, network = digits
    with warnings.catch_warnings():
        a, b = (bmr.reduce_network(network, data, held_out=held_out, keep=0.6) for _ in range(2))
    assert jax.tree.all(jax.tree.map(np.array_equal, a.masks, b.masks))


class TestChoice:
    """Which point of a path is taken."""

    def point(self, *, good=False, accuracy=0.9):
        metrics = {"loss": 0.0, "accuracy": accuracy}
        return PathPoint(0.5, 0.0, 0.0, 0.0, 0.0, metrics, as_good=good)

    def test_the_path_is_followed_to_the_first_point_that_is_worse(self):
        good = [True, True, True, False, True, False, True]
        points = [self.point(good=x) for x in good]
        assert chosen_point(points, lose_at_most=None, keep=None) == 2
        assert chosen_point(points[:1], lose_at_most=None, keep=None) == 0
        assert chosen_point(points, lose_at_most=None, keep=0.3) == 6

    @pytest.mark.parametrize(
        ("good", "gain", "over"),
        [
            # Three rounds after the first point that is worse, two after the highest evidence.
            ([True, True, False, False, False, False], [0, 1, 2, 3, 2, 1], True),
            ([True, True, True, False, False, False], [0, 1, 2, 3, 2, 1], False),
            ([True, True, False, False, False, False], [0, 1, 2, 3, 4, 3], False),
            ([True, True, True, True, True, True], [0, 1, 0, 0, 0, 0], False),
            ([True, False, True, True, True, True], [0, 1, 0, 0, 0, 0], True),
        ],
    )
    def test_a_path_ends_where_nothing_speaks_for_going_on(self, good, gain, over):
        points = [
            dataclasses.replace(self.point(good=x), delta_f=float(y))
            for x, y in zip(good, gain, strict=True)
        ]
        assert is_over(points, None) is over

    def test_the_default_path_is_a_longer_one_cut(self, digits, reduced):
        data, held_out, network = digits
        path = bmr.reduce_network(network, data, held_out=held_out).path
        assert len(path) < len(reduced.path)
        assert [point.kept for point in path] == [p.kept for p in reduced.path[: len(path)]]
        assert not any(is_over(path[:i], None) for i in range(1, len(path)))
        assert is_over(path, None)

    def test_points_of_accuracy(self):
        points = [self.point(accuracy=accuracy) for accuracy in (0.9, 0.898, 0.896, 0.893, 0.88)]
        assert chosen_point(points, lose_at_most=0.5, keep=None) == 2

    def test_paired_rows_tell_what_unpaired_ones_cannot(self):
        rng = np.random.default_rng(0)
        loss = rng.normal(size=400) ** 2
        noise = 0.01 * rng.normal(size=400)
        dense = {"loss": loss, "accuracy": np.ones(400)}
        assert as_good(dense, dense | {"loss": loss + noise})
        # A quarter of the standard error of the dense loss is 0.0189.
        assert loss.std(ddof=1) / 20 / 4 == pytest.approx(0.0189, abs=1e-4)
        assert as_good(dense, dense | {"loss": loss + noise + 0.015})
        assert not as_good(dense, dense | {"loss": loss + noise + 0.02})
        # Rows that cannot tell do not speak for a network.
        assert not as_good(dense, dense | {"loss": rng.permutation(loss)})
        wrong = lambda n: {"accuracy": np.where(np.arange(400) < n, 0.0, 1.0)}  # noqa: E731
        assert as_good(dense, dense | wrong(1))
        assert not as_good(dense, dense | wrong(8))
        # An accuracy of 0.9 is known to 0.015: two rows more are within that, and six are not.
        assert as_good(dense | wrong(40), dense | wrong(42))
        assert not as_good(dense | wrong(40), dense | wrong(46))
        # A small difference that rows show for certain is no reason to stop.
        assert as_good(dense | wrong(40), dense | wrong(41) | {"loss": loss + 0.001})

    def test_a_worse_network_is_taken_in_one_of_twenty_cases_at_most(self):
        rng = np.random.default_rng(1)
        rows, cases, wrong, right = 300, 1000, 0, 0
        margin = 0.25 / np.sqrt(rows)
        # Of a path of which the third point loses just the margin, all later ones more.
        losses = np.array([0.0, 0.2, 1.0, 1.05, 1.1, 1.2]) * margin
        for _ in range(cases):
            dense = rng.normal(size=rows)
            dense = {"loss": (dense - dense.mean()) / dense.std(ddof=1)}
            noise = 0.05 * rng.normal(size=(len(losses), rows))
            others = [
                {"loss": dense["loss"] + at + some} for at, some in zip(losses, noise, strict=True)
            ]
            points = [self.point(good=True), *(self.point(good=as_good(dense, x)) for x in others)]
            taken = chosen_point(points, lose_at_most=None, keep=None)
            wrong += taken >= 3
            right += taken == 2
        assert wrong / cases <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / cases)
        assert wrong / cases > 0.02
        assert right / cases > 0.8


@pytest.mark.parametrize("rounding", [0.0, 1e-7])
def test_targets_that_the_network_reproduces_need_a_scale(rounding):
    network = eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    y = np.asarray(jax.vmap(network)(x)) * (1 + rounding)
    with pytest.raises(ValueError, match="reproduces its targets, so .*noise_scale"):
        bmr.reduce_network(network, (x, y))
    loss = bmr.trained.SquaredError(noise_scale=0.1)
    assert bmr.reduce_network(network, (x, y), loss=loss, keep=0.5).kept == pytest.approx(
        0.5, abs=0.03
    )
