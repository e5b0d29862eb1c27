"""Install the wheel into empty environments, and check it there.

    python tools/matrix.py
    python tools/matrix.py --pythons 3.12 --dependencies oldest --quick

For each Python, and the oldest and the newest dependencies that pyproject.toml declares: make an
environment, install the wheel, and run `tools/smoke.py` and 140 of the tests there (`TESTS`, about 70 CPU
seconds). Needs uv. A Python that is not on the machine is reported as such. Only wheels are installed:
nothing is compiled. A step that takes longer than `--seconds` is a failure. Of a failure, the end of its log
is printed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
# Chosen to meet each dependency, not each line of the library: distributions (NumPyro), closed forms (JAX),
# masks and rounds of a run with its options (Equinox, Optax), checkpoints and files (safetensors), the
# entropy coder (constriction), and what is said where an extra is missing. Tests of results to the
# last bits of float32 are not among them, since another compiler rounds differently.
TESTS = (
    "tests/families/test_families.py",
    "tests/reduction/test_reduction_conjugate.py",
    "tests/criteria/test_reduce.py",
    "tests/run/test_options.py",
    "tests/test_files.py",
    "tests/test_extras.py",
    "tests/codec/test_codec_entropy.py",
)
# Of the flags that the tests set by themselves, those that every compiler knows; it stops at others.
FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# The oldest pytest that these tests need; none of the library's own dependencies.
TOOLS = ("pytest>=8.3", "hypothesis>=6.100", "platformdirs", "sybil>=9", "mpmath")


@dataclass(frozen=True)
class Outcome:
    """What was found in an environment.

    Attributes:
        python: Version asked for.
        dependencies: "oldest" or "newest".
        text: What was found, for the table.
        passed: Whether all that could be checked was right; None if there is no such Python.
    """

    python: str
    dependencies: str
    text: str
    passed: bool | None


def build(folder: Path) -> Path:
    """Return the path of a wheel that is built from the working tree."""
    _run(["uv", "build", "--quiet", "--wheel", "--out-dir", str(folder), str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def check(
    wheel: Path,
    python: str,
    dependencies: str,
    folder: Path,
    *,
    quick: bool = False,
    seconds: float = 1800.0,
) -> Outcome:
    """Make an environment in `folder`, install the wheel there, and check it.

    Args:
        wheel: To install.
        python: Version, such as "3.12".
        dependencies: "oldest" or "newest".
        folder: For the environment and the log.
        quick: Whether the tests are left out.
        seconds: Most seconds of each step.
    """
    log = folder / "log.txt"
    found = subprocess.run(
        ["uv", "python", "find", "--no-python-downloads", python], capture_output=True, text=True
    )
    if found.returncode:
        return Outcome(python, dependencies, "no such Python on this machine", None)
    environment = folder / "environment"
    binary = environment / "bin" / "python"
    # Only what is named as a dependency is as old as declared: for a wheel, that would be the wheel itself.
    versions = folder / "versions.txt"
    resolve = ["uv", "pip", "compile", "--quiet", "--no-build", "--python", str(binary)]
    resolve += ["--resolution", RESOLUTIONS[dependencies], "--output-file", str(versions)]
    install = ["uv", "pip", "install", "--quiet", "--no-build", "--python", str(binary)]
    steps = {
        "environment": [
            "uv",
            "venv",
            "--quiet",
            "--python",
            found.stdout.strip(),
            str(environment),
        ],
        "versions": [*resolve, str(ROOT / "pyproject.toml")],
        "dependencies": [*install, "--requirements", str(versions)],
        "install": [*install, "--no-deps", str(wheel)],
        "test tools": [*install, "--constraints", str(versions), *TOOLS],
        "smoke": [str(binary), str(ROOT / "tools" / "smoke.py")],
        "tests": [
            "env",
            f"XLA_FLAGS={FLAGS}",
            str(binary),
            "-X",
            "faulthandler",
            "-m",
            "pytest",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            # What other packages deprecate among themselves is not what is checked here.
            "-W",
            "default",
            # Those of missing packages are long.
            "-m",
            "slow or not slow",
            *TESTS,
        ],
    }
    # The tests must not see the package that they lie beside.
    sources = folder / "sources"
    sources.mkdir(parents=True)
    shutil.copytree(ROOT / "tests", sources / "tests")
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, sources / name)
    if quick:
        del steps["tests"], steps["test tools"]
    for name, command in steps.items():
        failure = _run(command, log=log, cwd=sources, seconds=seconds)
        if failure:
            return Outcome(python, dependencies, f"{name}: {failure} ({log})", passed=False)
    return Outcome(python, dependencies, _versions(binary), passed=True)


def _versions(binary: Path) -> str:
    """Return the versions that an environment ended up with."""
    names = ["jax", "numpyro", "equinox", "flax", "optax", "numpy"]
    code = (
        "import sys; from importlib.metadata import version; "
        f"print(sys.version.split()[0], *(f'{{n}} {{version(n)}}' for n in {names}), sep=', ')"
    )
    return subprocess.run([str(binary), "-c", code], capture_output=True, text=True).stdout.strip()


def _run(
    command: Sequence[str],
    *,
    log: Path | None = None,
    cwd: Path = ROOT,
    seconds: float | None = None,
) -> str:
    """Run a command; return the last line that it said if it failed, and else nothing."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if log is None:
        subprocess.run(command, cwd=cwd, env=outside, check=True, timeout=seconds)
        return ""
    with log.open("a") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                env=outside,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s"
    said = log.read_text(errors="replace").strip().splitlines()
    return f"{said[-1]} (exit code {done.returncode})" if done.returncode else ""


def main() -> None:
    """Check each pair, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pythons", nargs="+", default=list(PYTHONS))
    parser.add_argument("--dependencies", nargs="+", choices=RESOLUTIONS, default=list(RESOLUTIONS))
    parser.add_argument("--wheel", type=Path, help="one that is built already")
    parser.add_argument("--folder", type=Path, help="for the environments, which are then kept")
    parser.add_argument("--quick", action="store_true", help="run tools/smoke.py, and no tests")
    parser.add_argument("--seconds", type=float, default=1800.0, help="at most, for each step")
    given = parser.parse_args()
    if shutil.which("uv") is None:
        raise SystemExit("matrix: uv is needed: pip install uv")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) if given.folder is None else given.folder.resolve()
        root.mkdir(parents=True, exist_ok=True)
        wheel = build(root / "wheel") if given.wheel is None else given.wheel.resolve()
        outcomes = []
        for python in given.pythons:
            for dependencies in given.dependencies:
                place = root / f"{python}-{dependencies}"
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir()
                options = {"quick": given.quick, "seconds": given.seconds}
                outcomes.append(check(wheel, python, dependencies, place, **options))
                each = outcomes[-1]
                word = {True: "passed", False: "FAILED", None: "not checked"}[each.passed]
                print(f"{python:6} {dependencies:7} {word:12} {each.text}", flush=True)
                if each.passed is False:
                    print((place / "log.txt").read_text(errors="replace")[-3000:], flush=True)
    sys.exit(any(each.passed is False for each in outcomes))


if __name__ == "__main__":
    main()
