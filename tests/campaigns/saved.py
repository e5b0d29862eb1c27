"""Damage saved runs and checkpoints: what is damaged is one error, when it is read and when it is used."""

import contextlib
import functools
import io
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

import bmrjax as bmr
from bmrjax import cli
from bmrjax.cli.run_sparsify import CONSTANT
from bmrjax.run.checkpoint import CheckpointWarning
from bmrjax.run.digests import DIGEST, document_digest
from bmrjax.run.save_result import file_digest
from campaigns.child import in_children
from campaigns.codec_files import damaged
from campaigns.command import run_command, until
from campaigns.saved_runs import RUNS, make_runs, python_run
from campaigns.saved_runs import command as _command_of

# Of the cases, so many go through one of the commands that compile, too, or go on with the run.
USED_EVERY = 12
USES = ("predict", "compact", "compress", "export", "report", "resume")
VALUES: list[Any] = [
    None, True, "", "x", "\u2028", -1, 0, 1, 1.5, 2**53, 2**70, 10**400, 1e308, float("nan"),
    float("inf"), [], {}, [[[]]], {"array": "x"}, {"sequence": "list", "items": 1},
]  # fmt: skip


def mutated(rng: np.random.Generator, tree: Any) -> Any:
    """Return a JSON document with one to three values replaced, removed, moved or added."""
    tree = json.loads(json.dumps(tree))
    for _ in range(int(rng.integers(1, 4))):
        places: list[tuple[Any, Any]] = []

        def walk(node: Any, depth: int, places: list[tuple[Any, Any]]) -> None:
            items = list(node.items() if isinstance(node, dict) else enumerate(node))
            # A history is long, and all of its rows are alike.
            for name, inner in items[:40]:
                places.append((node, name))
                if isinstance(inner, dict | list) and depth < 8:
                    walk(inner, depth + 1, places)

        walk(tree, 0, places)
        tops = [place for place in places if place[0] is tree]
        some = tops if rng.random() < 0.3 and tops else places
        if not some:
            return tree
        node, name = some[int(rng.integers(len(some)))]
        kind = rng.integers(7)
        if kind == 0:
            del node[name]
        elif kind == 1:
            other, at = places[int(rng.integers(len(places)))]
            node[name] = json.loads(json.dumps(other[at]))
        elif kind == 2 and isinstance(node, list):
            node.extend([node[name]] * int(10 ** rng.uniform(0, 3)))
        elif kind == 3 and isinstance(node, dict):
            node[str(rng.choice(["x", "array", "sequence", "leaves", "shape"]))] = node[name]
        elif kind == 4 and type(node[name]) in (int, float):
            factor = 10 ** float(rng.integers(-12, 13))
            value = node[name] * factor * float(rng.choice([-1, 1]))
            integral = isinstance(node[name], int) and abs(value) < 1e15
            node[name] = int(value) if integral else value
        elif kind == 5 and rng.random() < 0.1:
            deep: Any = 0
            for _ in range(int(rng.choice([150, 400]))):
                deep = [deep]
            node[name] = deep
        else:
            node[name] = VALUES[int(rng.integers(len(VALUES)))]
    return tree


def _damage_json(rng: np.random.Generator, path: Path) -> str:
    if rng.random() < 0.4:
        path.write_bytes(damaged(rng, path.read_bytes()))
        return "bytes"
    tree = mutated(rng, json.loads(path.read_text()))
    if rng.random() < 0.01:
        path.write_text("[" * int(10 ** rng.uniform(2, 6)))
        return "depth"
    if rng.random() < 0.8 and isinstance(tree, dict):
        tree[DIGEST] = document_digest(tree)
    path.write_text(json.dumps(tree))
    return "values"


def _damage_arrays(rng: np.random.Generator, path: Path, document: Path | None) -> str:
    if rng.random() < 0.5:
        path.write_bytes(damaged(rng, path.read_bytes()))
        kind = "bytes"
    else:
        arrays = load_file(path)
        name = sorted(arrays)[int(rng.integers(len(arrays)))]
        array, change = arrays[name], int(rng.integers(6))
        if change == 0:
            del arrays[name]
        elif change == 1:
            arrays[name] = array.astype(rng.choice(["float64", "int8", "bool"]))
        elif change == 2:
            arrays[name] = np.concatenate([array.ravel()] * 2)
        elif change == 3:
            arrays[name] = array[..., None]
        elif change == 4:
            arrays[name] = np.zeros((0, *array.shape[1:]), array.dtype)
        elif array.size and array.dtype.kind == "f":
            array.ravel()[int(rng.integers(array.size))] = rng.choice([np.nan, np.inf, 1e38])
        save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path)
        kind = "arrays"
        if document is not None and rng.random() < 0.5:
            _describe_again(json.loads(document.read_text()), arrays, document)
    if document is not None and rng.random() < 0.7:
        found = json.loads(document.read_text())
        found["arrays_digest"] = file_digest(path.read_bytes())
        found[DIGEST] = document_digest(found)
        document.write_text(json.dumps(found))
    return kind


def _describe_again(found: Any, arrays: dict[str, np.ndarray], document: Path) -> None:
    """Let a document say the shapes and types that the arrays have."""

    def walk(node: Any) -> None:
        if (
            isinstance(node, dict)
            and isinstance(node.get("array"), str)
            and node["array"] in arrays
        ):
            array = arrays[node["array"]]
            node["shape"], node["dtype"] = list(array.shape), str(array.dtype)
        for inner in node.values() if isinstance(node, dict) else node:
            if isinstance(inner, dict | list):
                walk(inner)

    walk(found)
    document.write_text(json.dumps(found))


def damage(rng: np.random.Generator, folder: Path) -> str:
    """Damage one file of a run; return which and how."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".png", ".csv"))
    documents = [
        p for p in files if p.suffix == ".json" and p.parent.parent in (folder, folder.parent)
    ]
    kind = rng.integers(5)
    if kind <= 1 and documents:
        path = documents[int(rng.integers(len(documents)))]
        return f"{path.name}: {_damage_json(rng, path)}"
    arrays = folder / "model" / "arrays.safetensors"
    if kind == 2 and arrays.exists():
        return f"{arrays.name}: {_damage_arrays(rng, arrays, arrays.with_name('result.json'))}"
    path = files[int(rng.integers(len(files)))]
    where = "checkpoint" if "checkpoints" in path.parts else path.parent.name
    if rng.random() < 0.2:
        path.unlink()
        return f"{where}: removed"
    if rng.random() < 0.1:
        other = files[int(rng.integers(len(files)))]
        path.write_bytes(other.read_bytes())
        return f"{where}: another file"
    path.write_bytes(damaged(rng, path.read_bytes()))
    return f"{where}: bytes"


ERRORS = (bmr.DamagedFileError, FileNotFoundError)


@functools.cache
def _parsed(*arguments: str) -> Any:
    """Return the options of a command, which are the same for all cases and cost more than some of them."""
    return cli._parsed(list(arguments))  # pyright: ignore[reportPrivateUsage]


def _command(*arguments: str) -> str:
    """Run a command; a traceback, or an error that is not one line, is a failure."""
    printed, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            cli._run(_parsed(*arguments))  # pyright: ignore[reportPrivateUsage]
    except SystemExit as ended:
        if ended.code == 2:
            lines = errors.getvalue().strip().splitlines()
            if len(lines) != 1 or not lines[0].startswith("bmrjax: error:"):
                raise AssertionError(
                    f"no error of one line: {errors.getvalue()[-300:]!r}"
                ) from None
            if len(lines[0]) > 2000:
                raise AssertionError(f"a line of {len(lines[0])}: {lines[0][:200]}") from None
            return "refused"
        if ended.code == CONSTANT:
            return "read"
        if ended.code != 1 or "damaged: " not in printed.getvalue():
            raise AssertionError(f"status {ended.code}") from None
        return "refused"
    return "read"


def _use(result: Any) -> None:
    """Do what needs no program with a loaded result."""
    repr(result)
    repr(result.inspection)
    _ = result.diagnose(), result.sparsity, result.sparsity_per_layer, result.vfe_per_datum
    for i in range(len(result.path)):
        repr(result.at(i))
    if result.path:
        result.smallest(vfe_within=0.1)


def read(case: tuple[int, int, str]) -> str:
    """Damage a copy of a run, read it, and use what was read."""
    seed, number, runs = case
    rng = np.random.default_rng((seed, number))
    name = RUNS[int(rng.integers(len(RUNS)))]
    # The same folder for all cases of a process, so that commands are parsed once.
    made = Path(runs).with_name(f"{Path(runs).name}-{os.getpid()}")
    shutil.rmtree(made, ignore_errors=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", bmr.FitWarning)
        folder = Path(shutil.copytree(Path(runs, name), made / name))
        how = damage(rng, folder)
        refused = False
        try:
            _use(bmr.load(folder / "model"))
        except ERRORS:
            refused = True
        if name != "python":
            refused |= _command("info", str(folder), "--path") == "refused"
        refused |= _command("check", str(folder)) == "refused"
        if number % USED_EVERY == 0:
            refused |= _used(rng, folder, Path(runs, name), how)
    return f"{how}: {'refused' if refused else 'read'}"


def _used(rng: np.random.Generator, folder: Path, whole: Path, how: str) -> bool:
    """Run a command that uses all of a run, or go on with it; return whether something was refused."""
    if whole.name == "python":
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CheckpointWarning)
                python_run(folder, resume=True)
        except ValueError as error:
            if "no checkpoint can be used" not in str(error):
                raise
            return True
        return False
    use = str(rng.choice(USES))
    if use == "resume":
        return _resumed(folder, whole, how)
    words = {
        "predict": ["--data", str(folder / "data.csv")],
        "compact": ["--repeats", "0"],
        "compress": ["--out", str(folder / "f.bmr")],
        "export": ["--to", "stablehlo", "--out", str(folder / "f.stablehlo")],
        "report": ["--out", str(folder / "f.html"), "--no-costs"],
    }
    return _command(use, str(folder), *words[use]) == "refused"


def _resumed(folder: Path, whole: Path, how: str) -> bool:
    """Go on with a run: to the same answer, or it is refused and nothing is changed."""
    before = _contents(folder)
    words = _command_of(whole.name, folder, whole / "data.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        outcome = _command(*words, "--resume")
    if outcome == "refused":
        assert _contents(folder) == before, "a refused --resume changed files"
        return True
    # Options that were left out are those of the document, and others may lead elsewhere.
    if not how.startswith("run.json"):
        assert _answer(folder) == _answer(whole), "another answer than that of the whole run"
    return False


def _contents(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def _answer(folder: Path) -> Any:
    found = json.loads((folder / "results.json").read_bytes())
    return [found[name] for name in ("kept", "nll", "rmse", "vfe_per_datum")]


def cases(seed: int, count: int, runs: Path) -> Iterator[tuple[int, int, str]]:
    """Yield the numbers of the cases with the folder of the runs."""
    for number in range(count):
        yield seed, number, str(runs)


def campaign(
    seed: int, count: int, *, minutes: float = 1e6, keep: Path | None = None
) -> dict[str, Any]:
    """Damage copies of the runs in children with limits.

    Args:
        seed: Of the damage.
        count: How many.
        minutes: After which it ends early.
        keep: Folder for the numbers of the cases that broke a promise.
    """
    outcomes: dict[str, int] = {}
    failures: list[dict[str, Any]] = []
    worst = {"seconds": 0.0, "megabytes": 0.0}
    begin = time.time()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder, "runs")
        runs.mkdir()
        make_runs(runs)
        some = until(cases(seed, count, runs), minutes)
        for (_, number, _), cost in in_children(read, some, repeats=0):
            word = cost.outcome if cost.survived else "failed"
            outcomes[word] = outcomes.get(word, 0) + 1
            if cost.survived:
                worst["seconds"] = max(worst["seconds"], cost.seconds)
                worst["megabytes"] = max(worst["megabytes"], 1e-6 * cost.memory)
                continue
            failures.append({"number": number, "outcome": cost.outcome})
            print(failures[-1], file=sys.stderr, flush=True)
    if keep is not None and failures:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"saved-{seed}.json").write_text(json.dumps(failures, indent=1))
    return {
        "campaign": "saved runs", "seed": seed, "files": sum(outcomes.values()),
        "minutes": (time.time() - begin) / 60,
        "outcomes": dict(sorted(outcomes.items())), "worst": worst, "failures": failures,
    }  # fmt: skip


def again(seed: int, numbers: list[int], runs: Path) -> None:
    """Run single cases in this process, with whole tracebacks, to look into failures."""
    for number in numbers:
        try:
            print(number, read((seed, number, str(runs))))
        except Exception:
            print(number, traceback.format_exc())


if __name__ == "__main__":
    run_command(campaign, __doc__, files=20_000)
