"""Saving and loading: bit for bit, all or nothing, and clear errors."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal
from safetensors.numpy import load_file, save_file

import bmrjax as bmr
from bmrjax.run import save_result as storage
from bmrjax.run.digests import DIGEST


def program(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    scale = numpyro.sample("group/scale", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x @ beta, scale), obs=y)


@pytest.fixture(scope="module")
def data():
    x = jax.random.normal(jax.random.key(0), (40, 4))
    return x, 2.0 * x[:, 0] + 0.3 * jax.random.normal(jax.random.key(1), (40,))


@pytest.fixture(scope="module")
def result(data):
    return bmr.sparsify(
        program,
        data,
        key=jax.random.key(2),
        guide=bmr.infer.AutoMeanField(program),
        num_epochs=8,
        batch_size=20,
        steps_per_epoch=40,
        held_out=bmr.HeldOut(data, final_samples=5),
        schedule=bmr.schedules.Verified(wait=2, refit=1, cooldown=0, mask_prior=True),
        progress=False,
    )


@pytest.fixture
def folder(result, tmp_path):
    result.save(tmp_path / "saved")
    return tmp_path / "saved"


def arrays_of(result):
    points = [(point.params, point.keep) for point in result.path]
    return jax.tree.leaves((result.params, dict(result.keep), points))


def assert_same(a, b):
    for left, right in zip(arrays_of(a), arrays_of(b), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    for name in ("history", "metrics", "layers", "num_data", "vfe", "num_skipped", "timing"):
        assert getattr(a, name) == getattr(b, name), name
    names = ("epoch", "vfe", "kept", "total", "metrics", "mask_cost", "taken_back")
    numbers = [[[getattr(p, n) for n in names] for p in r.path] for r in (a, b)]
    assert numbers[0] == numbers[1]


def test_a_round_trip_is_exact(result, folder):
    assert len(result.path) > 1
    assert_same(bmr.load(folder), result)
    assert sorted(p.name for p in folder.iterdir()) == ["arrays.safetensors", "result.json"]
    assert [p.name for p in folder.parent.iterdir()] == ["saved"]


def test_a_loaded_result_predicts_the_same(result, folder, data):
    key = jax.random.key(5)
    loaded = bmr.load(folder, model=program, guide=AutoNormal(program))
    ours = result.predict(key, *data, num_samples=7)
    theirs = loaded.predict(key, *data, num_samples=7)
    for left, right in zip(ours[:3], theirs[:3], strict=True):
        np.testing.assert_array_equal(left, right)
    assert loaded.evaluate(key, data, num_samples=7) == result.evaluate(key, data, num_samples=7)
    # Without a guide the default one is meant; it draws from the same parameters.
    default = bmr.load(folder, model=program).predict(key, data[0], num_samples=7)
    np.testing.assert_array_equal(default.mean, ours.mean)


def test_a_loaded_result_refuses_another_guide(folder, data):
    loaded = bmr.load(folder, model=program, guide=bmr.infer.AutoMultivariate(program))
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"AutoMultivariate.*'auto_scale_tril'.* that were fitted"
        ):
            loaded.predict(jax.random.key(0), data[0], num_samples=2)


def test_points_of_a_loaded_path_can_be_restored(result, folder):
    loaded = bmr.load(folder)
    for index in range(len(result.path)):
        point = loaded.at(index)
        assert point.vfe == result.path[index].vfe
        for name, value in result.path[index].params.items():
            np.testing.assert_array_equal(point.params[name], value)


def test_a_result_without_its_program_says_so(folder):
    loaded = bmr.load(folder)
    with pytest.raises(ValueError, match="loaded without its program"):
        loaded.predict(jax.random.key(0), jnp.ones((2, 4)))


def test_odd_arrays_come_back(tmp_path):
    params = {
        "a/b": jnp.ones((2, 0)),
        "array": {"array": jnp.float32(3.5), "b": jnp.arange(3)},
        "half": jnp.array([1.5, jnp.inf], jnp.bfloat16),
        "nan": jnp.array(jnp.nan),
    }
    history = [{"epoch": 1, "vfe": float("nan"), "taken_back": False}]
    odd = bmr.Result(params=params, keep={}, layers={}, num_data=3, history=history)
    odd.save(tmp_path / "deep" / "er")
    loaded = bmr.load(tmp_path / "deep" / "er")
    assert jax.tree.structure(loaded.params) == jax.tree.structure(params)
    for left, right in zip(jax.tree.leaves(loaded.params), jax.tree.leaves(params), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))
    assert np.isnan(loaded.history[0]["vfe"])


# --- damage -------------------------------------------------------------------------------


def rewrite(folder, **changes):
    path = folder / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("name", ["result.json", "arrays.safetensors"])
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is not there; .*no saved result"):
        bmr.load(folder)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("name", ["result.json", "arrays.safetensors"])
def test_a_file_that_is_cut_short(folder, name, share):
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=rf"{name} is damaged or cut short"):
        bmr.load(folder)


@pytest.mark.parametrize("name", ["result.json", "arrays.safetensors"])
def test_a_file_of_noise(folder, name):
    (folder / name).write_bytes(np.random.default_rng(0).bytes(500))
    with pytest.raises(ValueError, match=rf"{name} is damaged or cut short"):
        bmr.load(folder)


@pytest.mark.parametrize("version", [storage.FORMAT + 1, None, "1"])
def test_an_unknown_format(folder, version):
    rewrite(folder, format=version)
    with pytest.raises(ValueError, match=f"has format {version!r}; this version.*reads format 1"):
        bmr.load(folder)


def test_json_that_is_no_result(folder):
    (folder / "result.json").write_text("[1, 2]")
    with pytest.raises(bmr.DamagedFileError, match="holds no JSON object"):
        bmr.load(folder)
    (folder / "result.json").write_text(json.dumps({"format": storage.FORMAT}))
    with pytest.raises(ValueError, match="damaged or cut short: 'layers'"):
        bmr.load(folder)


@pytest.mark.parametrize("change", [{"params": 5}, {"path": [{}]}, {"path": 3}, {"keep": None}])
def test_json_of_another_structure(folder, change):
    rewrite(folder, **change)
    with pytest.raises(bmr.DamagedFileError, match=rf"damaged or cut short: '{next(iter(change))}"):
        bmr.load(folder)


def test_an_array_of_another_shape_or_dtype(folder):
    path = folder / "arrays.safetensors"
    arrays = load_file(path)
    save_file({**arrays, "params/beta_auto_loc": np.zeros(5, np.float32)}, path)
    with pytest.raises(ValueError, match=r"float32\(5,\), expected float32\(4,\)"):
        bmr.load(folder)
    save_file({**arrays, "keep/beta": np.zeros(4, np.float32)}, path)
    with pytest.raises(ValueError, match=r"'keep/beta' is float32\(4,\), expected bool\(4,\)"):
        bmr.load(folder)


def test_an_array_that_is_missing(folder):
    path = folder / "arrays.safetensors"
    arrays = load_file(path)
    del arrays["keep/beta"]
    save_file(arrays, path)
    with pytest.raises(ValueError, match="the array 'keep/beta' is missing"):
        bmr.load(folder)


# --- all or nothing -----------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["save_file", "dumps", "second rename"])
def test_a_failed_save_leaves_the_old_result(result, folder, monkeypatch, broken):
    def fail(*args, **kwargs):
        raise OSError("no space left")

    def fail_second(*args):
        renames.append(args)
        if len(renames) == 2:
            fail()
        return replace(*args)

    renames, replace = [], os.replace
    if broken == "second rename":
        monkeypatch.setattr("bmrjax.files._exchanged", lambda *_: False)  # as it is off Linux
        monkeypatch.setattr("bmrjax.files.os.replace", fail_second)
    elif broken == "dumps":
        monkeypatch.setattr(storage.json, "dumps", fail)
    else:
        monkeypatch.setattr(storage, "save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        result.at(0).save(folder)
    monkeypatch.undo()
    assert_same(bmr.load(folder), result)
    assert [p.name for p in folder.parent.iterdir()] == ["saved"]


def test_saving_again_replaces_the_old_result(result, folder):
    result.at(0).save(folder)
    assert_same(bmr.load(folder), result.at(0))
    assert [p.name for p in folder.parent.iterdir()] == ["saved"]


def test_a_folder_with_other_files_is_left_alone(result, folder):
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"more than a saved result \(\['notes.txt'\]\)"):
        result.save(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    with pytest.raises(ValueError, match="is a file; give a folder"):
        result.save(folder / "notes.txt")


def test_an_empty_folder_is_fine(result, tmp_path):
    (tmp_path / "empty").mkdir()
    result.save(str(tmp_path / "empty"))
    assert_same(bmr.load(str(tmp_path / "empty")), result)


def effects(x, y=None):
    with numpyro.plate("rows", len(x)):
        e = numpyro.sample("e", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x[:, 0] * e, 0.5), obs=y)


PER_ROW = jnp.linspace(1.0, 2.0, 12).reshape(6, 2)


@pytest.fixture(scope="module")
def per_row():
    data = (PER_ROW, 3.0 - PER_ROW[:, 1])
    options = {"num_epochs": 1, "steps_per_epoch": 4, "batch_size": None, "progress": False}
    return bmr.sparsify(effects, data, key=jax.random.key(0), **options)


@pytest.fixture
def per_row_folder(per_row, tmp_path):
    per_row.save(tmp_path / "per_row")
    return tmp_path / "per_row"


@pytest.mark.parametrize("inputs", [(PER_ROW,), (PER_ROW, PER_ROW[:, 0])])
def test_latents_per_row_are_no_targets_of_a_loaded_result(per_row, per_row_folder, inputs):
    loaded = bmr.load(per_row_folder, model=effects)
    assert loaded.latent_sites == ("e",)
    drawn, expected = (r.sample(jax.random.key(1), 3, *inputs) for r in (loaded, per_row))
    assert list(drawn) == ["e"]
    np.testing.assert_array_equal(drawn["e"], expected["e"])


def test_a_loaded_result_with_latents_per_row_predicts_the_same(per_row, per_row_folder):
    loaded = bmr.load(per_row_folder, model=effects)
    found, expected = (
        r.predict(jax.random.key(1), PER_ROW, num_samples=4) for r in (loaded, per_row)
    )
    np.testing.assert_array_equal(found.mean, expected.mean)


def test_names_of_latent_sites_are_kept_by_a_result_without_its_program(per_row_folder):
    bmr.load(per_row_folder).save(per_row_folder)
    loaded = bmr.load(per_row_folder, model=effects)
    np.testing.assert_array_equal(loaded.center(PER_ROW)["e"], loaded.params["auto_loc"])
    loaded = bmr.load(per_row_folder, model=effects)
    with pytest.raises(ValueError, match="has 6 elements.*as many rows as in the fit"):
        loaded.center(PER_ROW[:2])


def test_an_older_file_needs_the_targets_to_tell_latents_per_row(per_row_folder):
    document = json.loads((per_row_folder / "result.json").read_text())
    del document["latent_sites"], document[DIGEST]
    (per_row_folder / "result.json").write_text(json.dumps(document))
    loaded = bmr.load(per_row_folder, model=effects)
    with pytest.raises(ValueError, match=r"\['e', 'y'\] are latent.*Give the targets too"):
        loaded.center(PER_ROW)
    found = loaded.center(PER_ROW, PER_ROW[:, 0])
    np.testing.assert_array_equal(found["e"], loaded.params["auto_loc"])
