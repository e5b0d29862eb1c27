"""Damaged saved results and documents of runs: one error, when they are read and when they are used."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from campaigns.saved import damage, mutated
from safetensors.numpy import load_file, save_file
from saved_document import DOCUMENT

import bmrjax as bmr
from bmrjax import cli
from bmrjax.cli.documents import write_json
from bmrjax.cli.run_documents import read_results
from bmrjax.run.digests import DIGEST, document_digest
from bmrjax.run.point import Point


def a_result():
    params = {"w_auto_loc": jnp.arange(4.0), "w_auto_scale": (jnp.ones(4), [jnp.ones(())])}
    keep = {"w": jnp.array([True, False, True, True])}
    rows = [{"vfe": 100.0 / (i + 1), "steps": 10, "kept": 4, "taken_back": i > 4} for i in range(8)]
    facts = {"rows": 30, "guide": "AutoMeanField", "joint": False, "criterion": "SpikeAndSlab",
             "dependence": 0.5, "nll": 1.0, "trivial_nll": 2.0, "rmse": 1.0, "trivial_rmse": 2.0,
             "correlation": 0.9, "correlated": [0, 1], "correlated_in": "x", "num_columns": 4,
             "scales": [{"argument": "x", "role": "input", "columns": [1], "num_columns": 1,
                         "least": 0.0, "most": 99.0}]}  # fmt: skip
    site = bmr.SiteReport("w", (4,), "Normal(0, 1)", "normal", judged=True, why="normal")
    points = [Point(i, 50.0 - i, 3, 4, {"nll": 1.0}, params, keep) for i in range(2)]
    return bmr.Result(
        params, keep, {"w": "layer"}, 30, history=rows, path=points, facts=facts, vfe=49.0,
        metrics={"nll": 1.0}, inspection=bmr.Inspection((site,)),
    )  # fmt: skip


def use(result):
    repr(result)
    repr(result.inspection)
    _ = result.diagnose(), result.sparsity_per_layer, result.vfe_per_datum
    for i in range(len(result.path)):
        repr(result.at(i))
    result.smallest(vfe_within=0.1)


def test_a_result_comes_back_whole(tmp_path):
    a_result().save(tmp_path / "model")
    found = bmr.load(tmp_path / "model")
    assert repr(found) == repr(a_result())
    use(found)


def test_damage_of_any_kind_is_one_error(tmp_path):
    errors = []
    for number in range(150):
        rng = np.random.default_rng(number)
        a_result().save(tmp_path / "model")
        damage(rng, tmp_path)
        try:
            use(bmr.load(tmp_path / "model"))
        except (bmr.DamagedFileError, FileNotFoundError) as error:
            errors.append(str(error))
    assert 100 < len(errors) < 150
    assert not any("\n" in error or len(error) > 800 for error in errors)


@pytest.mark.parametrize("where", ["keep", "params", "path"])
def test_one_array_in_place_of_named_ones_is_damage(tmp_path, where):
    a_result().save(tmp_path / "model")
    path = tmp_path / "model" / "result.json"
    document = json.loads(path.read_text())
    array = document["keep"]["w"]
    if where == "path":
        document["path"][0]["params"] = array
    else:
        document[where] = array
    document[DIGEST] = document_digest(document)
    path.write_text(json.dumps(document))
    with pytest.raises(bmr.DamagedFileError, match="must have names"):
        bmr.load(tmp_path / "model")


def test_rows_without_steps_load_and_are_diagnosed(tmp_path):
    a_result().save(tmp_path / "model")
    path = tmp_path / "model" / "result.json"
    document = json.loads(path.read_text())
    for row in document["history"]:
        del row["steps"]
    del document[DIGEST]
    path.write_text(json.dumps(document))
    use(bmr.load(tmp_path / "model"))


@pytest.mark.parametrize("name", ["result.json", "arrays.safetensors"])
def test_a_single_changed_digit_is_noticed(tmp_path, name):
    a_result().save(tmp_path / "model")
    path = tmp_path / "model" / name
    if name == "result.json":
        path.write_text(path.read_text().replace("49.0", "48.0"))
    else:
        arrays = load_file(path)
        arrays["params/w_auto_loc"][1] += 1
        save_file(arrays, path)
    with pytest.raises(bmr.DamagedFileError, match=f"{name} is not what was written"):
        bmr.load(tmp_path / "model")


def test_a_result_of_before_has_no_digests_and_loads(tmp_path):
    a_result().save(tmp_path / "model")
    path = tmp_path / "model" / "result.json"
    document = json.loads(path.read_text())
    del document[DIGEST], document["arrays_digest"]
    path.write_text(json.dumps(document))
    assert bmr.load(tmp_path / "model").num_kept == 3


def test_info_of_damaged_documents_is_one_line(tmp_path, capsys):
    write_json(tmp_path / "results.json", DOCUMENT)
    cli.main(["info", str(tmp_path), "--path"])
    assert "in the unit of y" in capsys.readouterr().out
    assert read_results(tmp_path) == DOCUMENT
    ends = []
    for number in range(150):
        tree = mutated(np.random.default_rng(number), DOCUMENT)
        tree[DIGEST] = document_digest(tree)
        (tmp_path / "results.json").write_text(json.dumps(tree))
        try:
            cli.main(["info", str(tmp_path), "--path"])
        except SystemExit as ended:
            said = capsys.readouterr().err
            ends.append((ended.code, said[:14], said.count("\n")))
    assert set(ends) == {(2, "bmrjax: error:", 1)}
    assert 75 < len(ends) < 150


def test_depth_and_numbers_are_bounded(tmp_path, capsys):
    deep = "[" * 100_000
    for text, message in (
        (deep, "recursion"),
        (json.dumps({**DOCUMENT, "kept": 10**400}), "less than or equal to"),
        (json.dumps({**DOCUMENT, "outputs": 0}), "'outputs' is 0"),
        (json.dumps({**DOCUMENT, "input_scale": [[1.0, 0.0]]}), "'input_scale' does not fit"),
    ):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(SystemExit, match="2"):
            cli.main(["info", str(tmp_path)])
        assert message in capsys.readouterr().err
