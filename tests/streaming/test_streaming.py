import functools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from bmrjax import cli, criteria, reduction
from bmrjax.criteria import SitePosteriors
from bmrjax.streaming import pilot, reduce_folder, streamed_layer
from bmrjax.streaming.pilot import Guess, blocks_of
from bmrjax.streaming.solve import included_at, solve, zeta_of
from bmrjax.streaming.sums import TILE, delta_f_double, powers_of

PRIOR_SCALE = 0.3
CHUNK = 2 * TILE
run = functools.partial(reduce_folder, chunk=CHUNK, workers=2)


def mixture(rng, shape, alive=0.2):
    """Return means and scales of which a part is far from zero, whole rows of it."""
    rows = rng.random((shape[0], *[1] * (len(shape) - 1))) < alive
    loc = rng.normal(size=shape) * np.where(rows, 0.3, 0.02)
    return loc.astype(np.float32), np.exp(rng.normal(-3.5, 0.7, shape)).astype(np.float32)


def write(folder, files):
    folder.mkdir()
    for name, tensors in files.items():
        save_file(tensors, folder / f"{name}.safetensors")
    return folder


def masks_of(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.update(load_file(path))
    return found


def in_memory(criterion, posterior, prior_scale=PRIOR_SCALE, layers=None):
    """Return the decision in double precision, in memory."""
    with jax.enable_x64(new_val=True):
        q = {
            n: reduction.Normal(*(jnp.asarray(a, jnp.float64) for a in pair))
            for n, pair in posterior.items()
        }
        p = {
            n: reduction.Normal(jnp.zeros_like(x.loc), jnp.full_like(x.loc, prior_scale))
            for n, x in q.items()
        }
        decision = criterion(SitePosteriors(q, p, layers))
        keep = {n: np.asarray(k) for n, k in decision.keep.items()}
        return keep, {n: np.asarray(d) for n, d in decision.delta_f.items()}


def check(found, out, keep, delta_f, *, scale_error=0.0):
    """Hold a streamed reduction against one in memory."""
    masks, differ = masks_of(out), 0
    assert set(masks) == {f"{name}.keep" for name in keep}
    for each in found.layers.values():
        total = 0.0
        for name in each.tensors:
            mine = masks[f"{name}.keep"]
            assert mine.dtype == bool
            assert mine.shape == keep[name].shape
            other = mine != keep[name]
            differ += other.sum()
            np.testing.assert_array_less(
                abs(delta_f[name][other] - each.zeta), each.error_bound + scale_error + 1e-12
            )
            total += delta_f[name][~mine].sum()
        assert each.kept == sum(masks[f"{name}.keep"].sum() for name in each.tensors)
        np.testing.assert_allclose(each.delta_f, total, rtol=2e-5, atol=1e-3)
    assert differ <= found.unproven
    assert found.kept == sum(m.sum() for m in masks.values())


CRITERIA = {
    "spike-slab": criteria.SpikeAndSlab(),
    "counts": criteria.SpikeAndSlab(alpha=0.5, beta=20.0, num_steps=7),
    "one step": criteria.SpikeAndSlab(alpha=2.0, num_steps=1),
    "two steps": criteria.SpikeAndSlab(num_steps=2),
    "shrinkage": criteria.Shrinkage(),
    "wide shrinkage": criteria.Shrinkage(1e-3),
    "spike": criteria.Shrinkage(0.0),
}


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("name", CRITERIA)
def test_agrees_with_the_criterion_in_memory(tmp_path, name, monkeypatch):
    # A sample that is a part of the layer, so that the guess is off.
    monkeypatch.setattr(pilot, "LEAST", 4096)
    rng = np.random.default_rng(0)
    posterior = {
        "a": mixture(rng, (700, 300)),
        "b": mixture(rng, (40, 50, 20), 0.9),
        "c": mixture(rng, (CHUNK + 1,), 0.01),
        "bias": mixture(rng, (7,)),
    }
    tensors = {}
    for key, (loc, scale) in posterior.items():
        tensors |= {f"{key}.loc": loc, f"{key}.scale": scale}
    folder = write(tmp_path / "in", {"model": tensors})
    found = run(folder, tmp_path / "out", CRITERIA[name], prior_scale=PRIOR_SCALE)
    keep, delta_f = in_memory(CRITERIA[name], posterior)
    check(found, tmp_path / "out", keep, delta_f)
    assert 0 < found.kept < found.total
    assert found.unproven <= 2
    assert all(each.error_bound < 1e-4 for each in found.layers.values())
    assert json.loads((tmp_path / "out" / "reduction.json").read_text()) == found.document()


@pytest.mark.first_cases(6)
@pytest.mark.parametrize("kind", ["scale", "variance", "precision"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_reads_any_float_and_any_width(tmp_path, kind, dtype):
    loc, scale = mixture(np.random.default_rng(1), (300, 130))
    scale = np.maximum(scale, 0.01)  # the precision fits float16
    width = {"scale": scale, "variance": scale**2, "precision": scale**-2.0}[kind].astype(dtype)
    # Another dtype for the other half of a pair, and another file.
    files = {"1": {"w.loc": loc.astype(dtype)}, "2": {f"w.{kind}": width}}
    folder = write(tmp_path / "in", files)
    loc, width = loc.astype(dtype).astype(np.float64), width.astype(np.float64)
    scale = {"scale": width, "variance": width**0.5, "precision": width**-0.5}[kind]
    for name in ("spike-slab", "shrinkage"):
        out = tmp_path / name
        found = run(folder, out, CRITERIA[name], prior_scale=PRIOR_SCALE)
        keep, delta_f = in_memory(CRITERIA[name], {"w": (loc, scale)})
        check(found, out, keep, delta_f)
        assert sorted(p.name for p in out.iterdir()) == ["1.safetensors", "reduction.json"]


def test_runs_in_double_precision_mode(tmp_path, x64):
    loc, scale = mixture(np.random.default_rng(1), (300, 130))
    folder = write(tmp_path / "in", {"m": {"w.loc": loc, "w.scale": scale}})
    for name in ("spike-slab", "shrinkage"):
        found = run(folder, tmp_path / name, CRITERIA[name], prior_scale=PRIOR_SCALE)
        check(found, tmp_path / name, *in_memory(CRITERIA[name], {"w": (loc, scale)}))


def test_a_layer_spans_shards_and_prior_scales_go_by_pattern(tmp_path):
    rng = np.random.default_rng(2)
    posterior = {n: mixture(rng, (k, 90)) for n, k in (("x.w", 900), ("x.b", 3), ("y.w", 500))}
    files = {
        "model-00001-of-00002": {"x.w.loc": posterior["x.w"][0], "y.w.loc": posterior["y.w"][0]},
        "model-00002-of-00002": {
            "x.w.scale": posterior["x.w"][1],
            "x.b.loc": posterior["x.b"][0],
            "x.b.scale": posterior["x.b"][1],
            "y.w.scale": posterior["y.w"][1],
            "running.mean": np.zeros(3, np.float32),
        },
    }
    folder = write(tmp_path / "in", files)
    (folder / "model.safetensors.index.json").write_text("{}")
    layers = {"x.w": "x", "x.b": "x", "y.w": "y"}
    found = run(
        folder,
        tmp_path / "out",
        CRITERIA["spike-slab"],
        prior_scale={"y.*": 2.0, "*": 0.1},
        layers=layers,
    )
    assert found.ignored == ["running.mean"]
    assert set(load_file(tmp_path / "out/model-00001-of-00002.safetensors")) == {
        "x.w.keep",
        "y.w.keep",
    }
    keep, delta_f = {}, {}
    for members, scale in ((("x.w", "x.b"), 0.1), (("y.w",), 2.0)):
        part = {n: posterior[n] for n in members}
        found_here = in_memory(CRITERIA["spike-slab"], part, scale, {n: layers[n] for n in members})
        keep, delta_f = keep | found_here[0], delta_f | found_here[1]
    check(found, tmp_path / "out", keep, delta_f)
    assert list(found.layers) == ["x", "y"]


def hard_cases():
    rng = np.random.default_rng(3)
    n = 3 * CHUNK + 11
    noise, scale = rng.normal(size=n), np.exp(rng.normal(-4, 0.5, n))
    few = np.where(np.arange(n) % 60000 == 123, 3.0, 0.001 * noise)
    rows = np.where(np.arange(n) // 30000 % 2 == 0, 1.0, 1e-4)
    return {
        "all dead": (1e-5 * noise, scale),
        "all alive": (3.0 + 0.1 * noise, scale),
        "few in many": (few, scale),
        "half of the rows": (rows * (1 + 0.1 * noise), scale),
        "all alike": (np.full(n, 0.05), np.full(n, 0.02)),
        "as the prior": (1e-9 * noise, np.full(n, PRIOR_SCALE)),
        "extreme scales": (noise * 1e-3, 10.0 ** rng.uniform(-15, 3, n)),
        "huge means": (noise * 1e15, scale),
        "tiny means": (noise * 1e-25, scale),
        "dense bar": (0.045 + 1e-5 * noise, np.full(n, 0.02)),
    }


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("name", hard_cases())
def test_hard_posteriors(tmp_path, name, monkeypatch):
    monkeypatch.setattr(pilot, "LEAST", 4096)
    loc, scale = (a.astype(np.float32) for a in hard_cases()[name])
    folder = write(tmp_path / "in", {"m": {"w.loc": loc, "w.scale": scale}})
    for which in ("spike-slab", "shrinkage"):
        found = run(folder, tmp_path / which, CRITERIA[which], prior_scale=PRIOR_SCALE)
        check(found, tmp_path / which, *in_memory(CRITERIA[which], {"w": (loc, scale)}))
        (each,) = found.layers.values()
        # A posterior that is the prior lies at the threshold, all of it.
        assert each.unproven <= each.total * 1e-4 or name == "as the prior"
        assert each.reads <= 2


@pytest.mark.parametrize("off", [0.5, -3.0])
def test_a_bad_guess_costs_a_second_read_and_no_mask(tmp_path, off, monkeypatch):
    loc, scale = mixture(np.random.default_rng(4), (1000, 200))
    folder = write(tmp_path / "in", {"m": {"w.loc": loc, "w.scale": scale}})

    def wrong(*args, **kwargs):
        found = pilot.guess(*args, **kwargs)
        centers = found.centers + off * (np.arange(len(found.centers)) > 0)
        return Guess(centers, (centers[-1] - 0.01, centers[-1] + 0.01), found.sampled)

    monkeypatch.setattr("bmrjax.streaming.stream.guess", wrong)
    found = run(folder, tmp_path / "out", CRITERIA["spike-slab"], prior_scale=PRIOR_SCALE)
    assert found.layers["w"].reads == 2
    check(found, tmp_path / "out", *in_memory(CRITERIA["spike-slab"], {"w": (loc, scale)}))


def small_layers(tmp_path, count):
    rng = np.random.default_rng(6)
    posterior = {f"l{i}": mixture(rng, (300, 300)) for i in range(count)}
    tensors = {
        f"{n}.{k}": a
        for n, pair in posterior.items()
        for k, a in zip(("loc", "scale"), pair, strict=True)
    }
    return write(tmp_path / "in", {"m": tensors}), posterior


@pytest.mark.parametrize("workers", [1, 5])
def test_layers_are_reread_while_others_go_on(tmp_path, workers, monkeypatch):
    folder, posterior = small_layers(tmp_path, 6)
    wrong_for = {"l1", "l4"}

    def guess(members, *args, **kwargs):
        found = pilot.guess(members, *args, **kwargs)
        if members[0][0].name not in wrong_for:
            return found
        return Guess(found.centers - 2.0, (-9.0, -8.0), found.sampled)

    monkeypatch.setattr("bmrjax.streaming.stream.guess", guess)
    criterion = CRITERIA["spike-slab"]
    found = run(folder, tmp_path / "out", criterion, prior_scale=PRIOR_SCALE, workers=workers)
    assert {name for name, each in found.layers.items() if each.reads == 2} == wrong_for
    check(found, tmp_path / "out", *in_memory(criterion, posterior))


@pytest.mark.parametrize("workers", [1, 5])
def test_what_a_thread_raises_comes_out_and_leaves_nothing(tmp_path, workers, monkeypatch):
    folder, _ = small_layers(tmp_path, 6)

    def guess(members, *args, **kwargs):
        if members[0][0].name == "l3":
            raise ValueError("a disk went away")
        return pilot.guess(members, *args, **kwargs)

    monkeypatch.setattr("bmrjax.streaming.stream.guess", guess)
    with pytest.raises(ValueError, match="a disk went away"):
        run(
            folder,
            tmp_path / "out",
            CRITERIA["spike-slab"],
            prior_scale=PRIOR_SCALE,
            workers=workers,
        )
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_no_more_weights_wait_than_there_is_room_for(tmp_path, monkeypatch):
    loc, scale = mixture(np.random.default_rng(5), (1000, 200))
    folder = write(tmp_path / "in", {"m": {"w.loc": loc, "w.scale": scale}})
    waiting, add = [], streamed_layer.StreamedLayer.add
    monkeypatch.setattr(pilot, "LEAST", 4096)
    monkeypatch.setattr(streamed_layer, "MOST_UNDECIDED", 5)

    def watched(self, name, piece):
        answer = add(self, name, piece)
        waiting.append(sum(len(e) for f in self._undecided.values() for _, e in f))
        return answer

    monkeypatch.setattr(streamed_layer.StreamedLayer, "add", watched)
    found = run(folder, tmp_path / "out", CRITERIA["spike-slab"], prior_scale=PRIOR_SCALE)
    assert max(waiting) <= 5
    assert found.layers["w"].reads == 2
    keep, delta_f = in_memory(CRITERIA["spike-slab"], {"w": (loc, scale)})
    other = masks_of(tmp_path / "out")["w.keep"] != keep["w"]
    assert other.sum() <= found.unproven
    # All that may differ lies at the threshold.
    assert (abs(delta_f["w"][other] - found.layers["w"].zeta) < 1e-3).all()


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    center=st.floats(-12, 12),
    delta=st.one_of(st.floats(-1e-3, 1e-3), st.floats(-6, 6)),
    spread=st.sampled_from([0.0, 0.1, 3.0, 40.0]),
    middle=st.floats(-15, 15),
    moments=st.sampled_from([2, 3]),
)
def test_the_sum_is_enclosed(seed, center, delta, spread, middle, moments):
    delta_f = np.random.default_rng(seed).normal(middle, spread, 200)

    def probs(zeta):
        return 1 / (1 + np.exp(np.clip(delta_f - zeta, -700, 700)))

    q = probs(center)
    sums = np.array([(q**k).sum() for k in range(1, moments + 1)])
    found = included_at(center + delta, center, sums, 200.0)
    exact, slack = probs(center + delta).sum(), 1e-11 * (1 + abs(sums).max())
    assert found.low - slack <= exact <= found.high + slack
    if moments == 3:
        assert found.high - found.low <= 2 * 200 * abs(delta) ** 3 / 48 + 2 * slack


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10**6),
    alive=st.sampled_from([0.0, 0.001, 0.1, 0.5, 1.0]),
    gap=st.floats(0.1, 60),
    off=st.floats(-0.5, 0.5),
    alpha=st.floats(0.1, 30),
    beta=st.floats(0.1, 30),
)
def test_the_fixed_point_is_enclosed(seed, alive, gap, off, alpha, beta):
    rng = np.random.default_rng(seed)
    n, steps = 3000, 4
    delta_f = np.where(rng.random(n) < alive, -gap, gap / 4) + rng.normal(size=n)

    def probs(zeta):
        return 1 / (1 + np.exp(delta_f - zeta))

    zeta = [zeta_of(0.0, 0.0, alpha, beta)]
    for _ in range(steps - 1):
        zeta.append(zeta_of(probs(zeta[-1]).sum(), n, alpha, beta))
    centers = np.array(zeta) + off * rng.random(steps) * (np.arange(steps) > 0)
    moments = [
        np.array([(probs(c) ** k).sum() for k in range(1, power + 1)])
        for c, power in zip(centers, powers_of(steps), strict=True)
    ]
    found = solve(centers, moments, n, alpha=alpha, beta=beta, rounding=0.0)
    for interval, exact in zip(found.zeta, zeta, strict=True):
        assert interval.low - 1e-9 <= exact <= interval.high + 1e-9
    assert found.included.low - 1e-6 <= probs(zeta[-1]).sum() <= found.included.high + 1e-6
    rounded = solve(centers, moments, n, alpha=alpha, beta=beta, rounding=1e-6)
    assert rounded.zeta[-1].radius >= found.zeta[-1].radius >= 0
    assert found.truncation == found.zeta[-1].radius


@given(size=st.integers(1, 10**6), part=st.floats(0, 1.2))
def test_samples_stay_within_a_tensor(size, part):
    found = blocks_of(size, int(part * size), np.random.default_rng(0))
    assert all(0 <= begin < end <= size for begin, end in found)
    if part >= 1:
        assert sum(end - begin for begin, end in found) == size
    else:
        assert sum(e - b for b, e in found) <= max(part * size + pilot.BLOCK, pilot.BLOCK)


def test_delta_f_is_that_of_the_library(x64):
    rng = np.random.default_rng(0)
    loc, scale = rng.normal(size=50), np.exp(rng.normal(size=50) - 2)
    for variance in (0.0, 1e-16, 0.01):
        narrow = reduction.Normal(jnp.zeros(50), jnp.full(50, variance**0.5))
        prior = reduction.Normal(jnp.zeros(50), jnp.full(50, 0.7))
        expected = reduction.normal(reduction.Normal(loc, scale), prior, narrow).delta_f
        mine = delta_f_double(loc, scale, "scale", 0.7, variance)
        np.testing.assert_allclose(mine, expected, rtol=1e-10)


def test_empty_tensors_and_numbers(tmp_path):
    tensors = {
        "none.loc": np.zeros((0, 3), np.float32),
        "none.scale": np.zeros((0, 3), np.float32),
        "one.loc": np.array(2.0, np.float32),
        "one.scale": np.array(0.01, np.float32),
    }
    folder = write(tmp_path / "in", {"m": tensors})
    (tmp_path / "out").mkdir()
    found = run(folder, tmp_path / "out", CRITERIA["spike-slab"], prior_scale=1.0)
    masks = masks_of(tmp_path / "out")
    assert masks["none.keep"].shape == (0, 3)
    assert masks["one.keep"].shape == ()
    assert masks["one.keep"]
    assert (found.kept, found.total) == (1, 1)


GOOD = {"w.loc": np.ones((3, 4), np.float32), "w.scale": np.ones((3, 4), np.float32)}


def changed(name, at, value):
    array = GOOD[name].copy()
    array[at] = value
    return {"m": {**GOOD, name: array}}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no .safetensors file"),
        ({"m": {"a": GOOD["w.loc"]}}, "no tensor is named NAME.loc"),
        ({"m": {"w.loc": GOOD["w.loc"]}}, r"'w.loc' in .*m.safetensors has no width.*'w.variance'"),
        ({"m": {"w.scale": GOOD["w.scale"]}}, r"'w.scale' in .*m.safetensors has no 'w.loc'"),
        ({"m": {**GOOD, "w.precision": GOOD["w.loc"]}}, "has 'w.scale' and 'w.precision'"),
        ({"m": {**GOOD, "w.scale": np.ones((4, 3), np.float32)}}, r"\(3, 4\), .* \(4, 3\)"),
        ({"m": {**GOOD, "w.scale": np.ones((3, 4), np.int32)}}, "'w.scale' in .* is not a float"),
        ({"m": GOOD, "n": {"w.loc": GOOD["w.loc"]}}, "both in m.safetensors and in n.safetensors"),
        (changed("w.loc", (1, 2), np.nan), r"'w.loc' in .*m.safetensors is nan at \(1, 2\)"),
        (changed("w.loc", (2, 0), -np.inf), r"is -inf at \(2, 0\): means must be finite"),
        (changed("w.scale", (0, 1), 0.0), r"'w.scale' .* is 0.0 at \(0, 1\): a scale must be pos"),
        (changed("w.scale", (0, 1), -2.0), r"is -2.0 at \(0, 1\)"),
        (changed("w.scale", (0, 1), np.inf), r"is inf at \(0, 1\)"),
        (changed("w.scale", (0, 1), np.nan), r"is nan at \(0, 1\)"),
    ],
)
@pytest.mark.parametrize("criterion", ["spike-slab", "shrinkage"])
def test_bad_folders_are_refused_and_nothing_is_left(tmp_path, files, message, criterion):
    folder = write(tmp_path / "in", files)
    with pytest.raises(ValueError, match=message):
        run(folder, tmp_path / "out", CRITERIA[criterion], prior_scale=1.0)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_damaged_files_are_refused(tmp_path):
    folder = write(tmp_path / "in", {"m": GOOD})
    path = folder / "m.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="m.safetensors is no safetensors file, or damaged"):
        run(folder, tmp_path / "out", CRITERIA["spike-slab"], prior_scale=1.0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"prior_scale": 0.0}, ValueError, "must be positive"),
        ({"prior_scale": {"v": 1.0}}, ValueError, "no pattern of .* fits 'w'"),
        ({"prior_scale": {"*": 1.0, "v": 1.0}}, ValueError, "'v'.* fits no tensor"),
        ({"chunk": 1000}, ValueError, "multiple of 32,768"),
        ({"workers": 0}, ValueError, "at least 1"),
        ({"layers": {"v": "x"}}, ValueError, "names no layer for the sites"),
        ({"criterion": criteria.SignalToNoise(1.0)}, TypeError, "takes criteria.SpikeAndSlab or"),
        ({"criterion": criteria.SpikeAndSlab(alpha=1e-3)}, ValueError, "counts of 0.05 or more"),
        ({"criterion": criteria.Shrinkage(4.0)}, ValueError, "wider than the prior"),
        (
            {"criterion": criteria.Shrinkage(groups=criteria.Groups({}, 1))},
            ValueError,
            "without groups",
        ),
        ({"out": "in"}, ValueError, "not within the other"),
        ({"out": "in/masks"}, ValueError, "not within the other"),
        ({"out": "."}, ValueError, "not within the other"),
        ({"out": "taken"}, ValueError, "is not empty"),
        ({"out": "file"}, ValueError, "is a file"),
        ({"folder": "nowhere"}, ValueError, "nowhere is no folder"),
    ],
)
def test_options_that_do_not_fit(tmp_path, options, error, message):
    write(tmp_path / "in", {"m": GOOD})
    write(tmp_path / "taken", {"m": GOOD})
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    options = {
        "folder": "in",
        "out": "out",
        "criterion": CRITERIA["spike-slab"],
        "prior_scale": 1.0,
        "chunk": CHUNK,
        **options,
    }
    folder, out = (tmp_path / options.pop(name) for name in ("folder", "out"))
    with pytest.raises(error, match=message):
        reduce_folder(folder, out, options.pop("criterion"), **options)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_is_stopped_leaves_nothing(tmp_path, monkeypatch):
    folder = write(tmp_path / "in", {"m": GOOD})

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(streamed_layer.StreamedLayer, "settle", stop)
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "out", CRITERIA["spike-slab"], prior_scale=1.0)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


MEMORY = """
import resource, sys, numpy as np
from bmrjax import criteria
from bmrjax.streaming import reduce_folder
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
options = dict(prior_scale=0.3, chunk=2**17, workers=2)
reduce_folder(sys.argv[1], sys.argv[2] + "-small", criteria.SpikeAndSlab(), **options)
before = peak()
reduce_folder(sys.argv[3], sys.argv[2], criteria.SpikeAndSlab(), **options)
print("PEAK", peak() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_tensor(tmp_path):
    rng = np.random.default_rng(0)
    loc, scale = mixture(rng, (1000, 250))
    small = write(tmp_path / "small", {"m": {"w.loc": loc, "w.scale": scale}})
    tensors = {"w.loc": np.tile(loc, (50, 1)), "w.scale": np.tile(scale, (50, 1))}
    large = write(tmp_path / "large", {"m": tensors})
    words = [sys.executable, "-c", MEMORY, str(small), str(tmp_path / "out"), str(large)]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    # 100 MB of input, 12 MB of masks.
    assert float(found.split("PEAK")[1]) < 50


def test_command(tmp_path, capsys):
    rng = np.random.default_rng(0)
    posterior = {"x.w": mixture(rng, (300, 50)), "x.b": mixture(rng, (50,))}
    tensors = {}
    for name, (loc, scale) in posterior.items():
        tensors |= {f"{name}.loc": loc, f"{name}.scale": scale}
    folder = write(tmp_path / "in", {"m": tensors})
    words = ["reduce", str(folder), "--prior-scale", "x.*=0.3", "--no-progress", "--out"]
    cli.main([*words, str(tmp_path / "a"), "--layers", "modules", "--num-steps", "6"])
    criterion = criteria.SpikeAndSlab(num_steps=6)
    expected, _ = in_memory(criterion, posterior, 0.3, dict.fromkeys(posterior, "x"))
    for name, keep in expected.items():
        np.testing.assert_array_equal(masks_of(tmp_path / "a")[f"{name}.keep"], keep)
    kept = sum(k.sum() for k in expected.values())
    printed = capsys.readouterr().out
    assert f"x  {kept:,} of 15,050 kept" in printed
    assert f"kept {kept:,} of 15,050 weights in 1 layers" in printed
    cli.main([*words, str(tmp_path / "b"), "--criterion", "shrinkage", "--variance", "1e-6"])
    expected, _ = in_memory(criteria.Shrinkage(1e-6), posterior, 0.3)
    for name, keep in expected.items():
        np.testing.assert_array_equal(masks_of(tmp_path / "b")[f"{name}.keep"], keep)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prior-scale", "x=y"], "PATTERN=NUMBER"),
        (["--prior-scale", "1", "2"], "two scales for"),
        (["--prior-scale"], "--prior-scale needs a number"),
        (["--prior-scale", "1", "--variance", "1e-3"], "--variance goes with"),
        (["--prior-scale", "1", "--criterion", "shrinkage", "--alpha", "2"], "--alpha goes with"),
        (["--prior-scale", "1"], "holds no .safetensors file"),
    ],
)
def test_errors_of_the_command_are_one_line(tmp_path, words, message, capsys):
    folder = write(tmp_path / "in", {})
    with pytest.raises(SystemExit, match="2"):
        cli.main(["reduce", str(folder), "--out", str(tmp_path / "out"), *words])
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
