"""One name for one thing, in Python and on the command line; former names; the version; completion."""

import dataclasses
import inspect
import subprocess
import sys
import typing

import pytest
from failing import fails

import bmrjax as bmr
from bmrjax import cli
from bmrjax.cli import sparsify_options
from bmrjax.cli.build import criterion_of
from bmrjax.cli.data_options import DataOptions
from bmrjax.cli.reduce_options import ReduceOptions
from bmrjax.cli.saved_options import CompactOptions, CompressOptions, PredictOptions
from bmrjax.cli.sparsify_options import SparsifyOptions

# Where in Python an option is found under its name.
PLACES = {
    "num_epochs": bmr.sparsify,
    "steps_per_epoch": bmr.sparsify,
    "batch_size": bmr.sparsify,
    "criterion": bmr.sparsify,
    "schedule": bmr.sparsify,
    "progress": bmr.sparsify,
    "hidden": bmr.zoo.MLP,
    "depth": bmr.zoo.ViT,
    "width": bmr.zoo.ViT,
    "groups": bmr.criteria.Shrinkage,
    "margin": bmr.criteria.BMRSNormal,
    "kl_weight": bmr.nn.with_noise,
    "estimator": bmr.FitOptions,
    "matmul_dtype": bmr.FitOptions,
    "mesh": bmr.FitOptions,
    "temperature": bmr.FitOptions,
    "wait": bmr.schedules.Verified,
    "refit": bmr.schedules.Verified,
    "every": bmr.schedules.Every,
    "cooldown": bmr.schedules.Verified,
    "fraction": bmr.schedules.Verified,
    "mask_prior": bmr.schedules.Verified,
    "tolerance": bmr.schedules.Verified,
    "stop_early": bmr.schedules.Verified,
    "within": bmr.Result.most_predictive,
    "validation": bmr.data.Dataset.split_train,
    "num_samples": bmr.Result.predict,
    "resume": bmr.Checkpoints,
}
# Of the command line alone: files and folders, words for programs, seeds in place of keys.
ITS_OWN = {
    "out",
    "config",
    "net",
    "method",
    "prior",
    "prior_scale",
    "learning_rate",
    "kl_warmup_epochs",
    "split_seed",
    "seed",
    "overwrite",
    "log",
}


def names(kind):
    return {field.name for field in dataclasses.fields(kind)}


def test_options_have_the_names_that_they_have_in_python():
    data = set(inspect.signature(bmr.data.load_dataset).parameters) | {"data"}
    assert names(DataOptions) - data == {"split_seed"}
    for name, place in PLACES.items():
        assert name in inspect.signature(place).parameters, name
    assert names(SparsifyOptions) - names(DataOptions) == PLACES.keys() | ITS_OWN - {"split_seed"}
    assert "num_samples" in names(PredictOptions)
    latency = inspect.signature(bmr.structure.Compact.latency).parameters
    assert {"batch_sizes", "repeats"} <= latency.keys() & names(CompactOptions)
    encode = inspect.signature(bmr.codec.encode).parameters
    assert {"quantiser", "coder", "layout"} <= encode.keys() & names(CompressOptions)
    folder = inspect.signature(bmr.streaming.reduce_folder).parameters
    shared = {"out", "criterion", "prior_scale", "layers", "workers", "progress"}
    assert shared <= folder.keys() & names(ReduceOptions)


def in_words(name):
    """Return the name of a class as an option's value has it, such as "when-converged"."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)[1:]


def test_values_are_the_names_of_classes_in_words():
    for name in typing.get_args(sparsify_options.CriterionName):
        kind = type(criterion_of(name)).__name__.replace("BMRS", "Bmrs")
        assert in_words(kind) == name
    schedules = typing.get_type_hints(SparsifyOptions)["schedule"]
    (words, _) = typing.get_args(schedules)
    classes = {in_words(name) for name in dir(bmr.schedules) if name[0].isupper()}
    assert set(typing.get_args(words)) <= classes
    networks = {in_words(name) for name in ("MLPMixer", "NNXMLP", "NNXViT")}
    assert networks == {"m-l-p-mixer", "n-n-x-m-l-p", "n-n-x-vi-t"}  # what initials become
    plain = {name.lower() for name in dir(bmr.zoo)}
    for name in typing.get_args(sparsify_options.NetName):
        assert name.replace("-", "") in plain, name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sparsify --data digits --out d --epochs 3", "--epochs is called --num-epochs"),
        ("sparsify --data digits --out d --rule=snr", "--rule is called --criterion"),
        ("sparsify --data digits --out d --reduced_prior shrinkage", "is called --criterion"),
        ("sparsify --data digits --out d --method noise", "is called --method with-noise"),
        ("sparsify --data digits --out d --schedule=converged", "--schedule when-converged"),
        ("predict d --data digits --samples 3", "--samples is called --num-samples"),
        ("reduce d --criterion spike-slab", "is called --criterion spike-and-slab"),
    ],
)
def test_former_names_say_what_they_are_called(capsys, words, message):
    line = fails(capsys, *words.split())
    assert line.startswith("bmrjax: error: ")
    assert message in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--schedule every --refit 2",
            "takes no --refit: epochs between its reductions are --every",
        ),
        ("--every 2", "--schedule verified takes no --every"),
        ("--schedule when-converged --wait 2", "it watches the VFE"),
    ],
)
def test_lengths_of_other_schedules_are_refused(tmp_path, capsys, words, message):
    out = str(tmp_path / "out")
    line = fails(capsys, "sparsify", "--data", "digits", "--out", out, *words.split())
    assert message in line


def test_the_version_is_that_of_the_package(capsys):
    cli.main(["--version"])
    assert capsys.readouterr().out == f"bmrjax {bmr.__version__}\n"


def test_a_shell_can_complete_commands_and_options():
    words = [sys.executable, "-m", "bmrjax", "--tyro-print-completion", "bash"]
    script = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for word in ("sparsify", "inspect", "--num-epochs", "when-converged"):
        assert word in script


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--help"], 0, [*cli.COMMANDS, "--version", "--tyro-print-completion"]),
        (["-h"], 0, [*cli.COMMANDS]),
        ([], 2, ["Expected one of {sparsify, inspect"]),
        (["sparsify"], 2, ["Missing from bmrjax sparsify", "--data", "--out"]),
        (["report"], 2, ["Missing from bmrjax report", "Folder of the run"]),
        (["nonsense"], 2, ["Unrecognized options: nonsense", "bmrjax --help"]),
    ],
)
def test_a_command_without_options_is_explained(capsys, arguments, status, words):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert (end.value.code or 0) == status
    shown = capsys.readouterr()
    text = " ".join((shown.out + shown.err).split())
    assert [word for word in words if word not in text] == []
    assert "bmrjax: error" not in text


def test_help_has_each_text_as_a_paragraph_and_names_no_default_that_the_text_explains(
    capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as ended:
        cli.main(["sparsify", "--help"])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert "options on the command line win." in shown  # two lines in the code
    assert "default: None" not in shown
    assert "{None}" not in shown
