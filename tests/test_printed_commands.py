"""The commands of the pages' console blocks are run as they are printed, in the order of the pages.

What installs is not run: its files, extras and targets are looked up.
"""

import os
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bmrjax import cli
from bmrjax.data import load_dataset

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = (
    "start/table.md",
    "../README.md",
    "quickstart.md",
    "small_files.md",
    "streaming.md",
    "report.md",
)
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the documents are not installed")


def blocks(text, languages):
    """Return the texts of the fenced blocks in these languages."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [block for language, block in found if language in languages]


def console(page):
    """Return the commands in the console blocks of a page, without comments."""
    lines = "".join(blocks((DOCS / page).read_text(), ("console", "bash"))).splitlines()
    return [line.removeprefix("$ ").partition("  #")[0].strip() for line in lines]


def printed(page):
    """Return the commands of bmrjax in the console blocks of a page."""
    return [line for line in console(page) if line.startswith("bmrjax ")]


COMMANDS = list(dict.fromkeys((command, page) for page in PAGES for command in printed(page)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder that all commands are run in, with the files that the pages speak of."""
    pytest.importorskip("sklearn", reason="the digits are bundled with scikit-learn")
    pytest.importorskip("matplotlib", reason="the commands write pictures")
    folder = tmp_path_factory.mktemp("printed")
    before = Path.cwd()
    os.chdir(folder)
    try:
        (table,) = blocks((DOCS / "start/table.md").read_text(), ("python",))
        exec(table, {})
        digits, rng = load_dataset("digits"), np.random.default_rng(0)
        np.savez("images.npz", x=digits.test[0][:20])
        x = rng.normal(size=(50, 3)).astype(np.float32)
        np.savez("data.npz", x=x, y=x[:, 0])
        Path("model.py").write_text(
            "import numpyro, numpyro.distributions as dist\n"
            "def program(x, y=None):\n"
            "    beta = numpyro.sample('beta', dist.Normal(0, 1).expand([3]).to_event(1))\n"
            "    numpyro.sample('y', dist.Normal(x @ beta, 1.0), obs=y)\n"
        )
        Path("posterior").mkdir()
        loc, scale = rng.normal(size=(2, 4, 5)).astype(np.float32)
        shard = {"w.loc": loc, "w.scale": np.exp(scale)}
        save_file(shard, "posterior/model.safetensors")
        yield folder
    finally:
        os.chdir(before)


def run(words):
    """Run a command; return its exit code."""
    try:
        cli.main(words)
    except SystemExit as stopped:  # the completion ends so
        return stopped.code
    return 0


@pytest.mark.skipif("BMRJAX_ALL_CHECKS" not in os.environ, reason="`make all-checks` runs it")
def test_printed_commands_run(folder, capsys):
    """One test, since later commands need what earlier ones wrote."""
    for command in dict.fromkeys(command for command, _ in COMMANDS):
        if "--to onnx" in command:
            pytest.importorskip("jax2onnx")
        words, _, target = command.partition(" > ")
        code = run(shlex.split(words)[1:])
        assert not code, f"{command}: {capsys.readouterr().err}"
        out = capsys.readouterr().out
        assert out.strip(), command
        named = re.search(r"--out (\S+)", words)
        assert named is None or Path(named[1]).exists(), command
        assert not target or "bmrjax" in out, command
        if command == COMMANDS[0][0]:
            compare(blocks((DOCS / COMMANDS[0][1]).read_text(), ("text",))[0], out)


def compare(shown, out):
    """Check that an output has the lines of the one that a page shows."""
    for line in shown.splitlines():
        label = re.split(r" {3,}", line.strip())[0]
        assert label in out
    # Which columns it uses does not depend on rounding.
    (inputs,) = (line for line in shown.splitlines() if "inputs kept" in line)
    assert inputs.strip() in out


def test_the_pages_have_commands():
    assert len(COMMANDS) >= 14
    assert COMMANDS[0][0].startswith("bmrjax sparsify --data patients.csv")
    every = {p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md") if "_build" not in p.parts}
    made = ("reference/", "notebooks/")
    assert {page for page in every if not page.startswith(made) and printed(page)} <= set(PAGES)


@pytest.mark.parametrize("page", ["../README.md", "start/install.md"])
def test_what_installs_names_targets_files_and_extras_that_are_there(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = False
    for words in map(shlex.split, console(page)):
        if words[:1] == ["make"]:
            assert set(words[1:]) <= targets, words
        elif words[:2] == ["pip", "install"]:
            assert words[2] == "-c"
            assert (ROOT / words[3]).is_file(), words
            extras = re.fullmatch(r"\.\[([\w,]+)\]", words[4])[1].split(",")
            assert set(extras) <= set(project["optional-dependencies"]), words
            # The blocks of the README and of "Get started" read scikit-learn's digits.
            assert "sklearn" in extras
            installed = True
        else:
            assert words[:1] == ["bmrjax"], words
    assert installed
