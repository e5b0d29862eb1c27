"""The commands that documents print are read by the parsers of today; none is run."""

import argparse
import dataclasses
import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

from bmrjax import cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the documents are not installed")

# Words that a command needs, for those in running text that leave them out.
NEEDED = {
    "sparsify": ["--data", "digits", "--out", "DIR"],
    "inspect": ["--data", "digits"],
    "predict": ["DIR", "--data", "FILE"],
    "info": ["DIR"],
    "report": ["DIR"],
    "check": ["DIR"],
    "compact": ["DIR"],
    "compress": ["DIR", "--out", "FILE"],
    "export": ["DIR", "--to", "onnx", "--out", "FILE"],
    "reduce": ["DIR", "--prior-scale", "1", "--criterion", "shrinkage", "--out", "FILE"],
}
COMMAND = re.compile(r"(?:\$ |!)?(bmrjax [a-z-].*|python3? -m (?:bmrjax|benchmarks)\b.*)")
FENCE = re.compile(r"^\s*```+(\w*)")
SHELLS = ("", "bash", "sh", "console", "text")


def texts():
    """Return the documents: path to text, of notebooks that of their cells."""
    made = {DOCS / "reference", DOCS / "notebooks", DOCS / "_build"}
    pages = [
        p for p in DOCS.rglob("*.md") if not made & set(p.parents) and p.name != "changelog.md"
    ]
    found = {path: path.read_text() for path in [ROOT / "README.md", *pages]}
    for path in (ROOT / "CONTRIBUTING.md", *sorted((ROOT / "benchmarks").rglob("*.md"))):
        if path.exists():
            found[path] = path.read_text()
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        found[path] = "\n".join("".join(cell["source"]) for cell in cells)
    return found


def commands(text):
    """Return the commands of a text, in blocks and between backticks; lines that go on are joined."""
    lines, words, language = [], [], None
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if fence := FENCE.match(line):
            language = fence[1] if language is None else None
        elif language in SHELLS or line.startswith("!"):  # the latter in a notebook
            lines.append(line.strip())
        elif language is None:
            words.append(line)
    inline = re.findall(r"(?<!`)`([^`]+)`(?!`)", "\n".join(words))
    found = [COMMAND.fullmatch(" ".join(each.split())) for each in [*lines, *inline]]
    # What comes after the command on its line is not of it.
    cut = [re.split(r"\s+(?:#|\||&&|>)\s*", each[1])[0] for each in found if each is not None]
    return [each.rstrip(".,;:") for each in cut]


FOUND = sorted(
    {
        (command, path.relative_to(ROOT).as_posix())
        for path, t in texts().items()
        for command in commands(t)
    }
    if DOCS.is_dir()
    else ()
)
OURS = [pair for pair in FOUND if not pair[0].startswith("python -m benchmarks")]
BENCHMARKS = [pair for pair in FOUND if pair[0].startswith("python -m benchmarks")]


def read(words):
    """Return what the command line makes of words, with what it needs beside them."""
    if words[-1] in ("--help", "--version") or words[0] == "--tyro-print-completion":
        return None
    name = words[0]
    assert name in cli.COMMANDS, name
    given = set(words[1:])
    needed = list(NEEDED[name])
    if needed[0] not in given and (len(words) == 1 or words[1].startswith("--")):
        words = [name, *needed, *words[1:]]
    for option, value in zip(needed, needed[1:], strict=False):
        if option.startswith("--") and option not in words and "--config" not in words:
            words = [*words, option, value]
    return cli._parsed(words)


@pytest.mark.parametrize(("command", "page"), OURS)
def test_the_command_line_reads_what_is_printed(command, page, monkeypatch):
    words = shlex.split(command)
    words = words[3:] if words[0].startswith("python") else words[1:]
    if "--config" in words:  # a file that a run wrote
        monkeypatch.setattr(cli, "read_config", lambda path: {"data": "digits"})
    try:
        options = read(words)
    except SystemExit:
        pytest.fail(f"{page}: {command}")
    assert options is None or dataclasses.is_dataclass(options)


class Read(Exception):  # noqa: N818
    """The words of a command are read."""


@pytest.mark.parametrize(("command", "page"), BENCHMARKS)
def test_a_benchmark_reads_what_is_printed(command, page, monkeypatch):
    words = shlex.split(command)[2:]
    if words[0].endswith(".NAME"):  # any of them
        return
    parse = argparse.ArgumentParser.parse_args

    def only_read(parser, args=None, namespace=None):
        parse(parser, words[1:])
        raise Read

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only_read)
    try:
        with pytest.raises(Read):
            importlib.import_module(words[0]).main()
    except SystemExit:
        pytest.fail(f"{page}: {command}")


def test_many_commands_are_found_and_an_old_one_is_refused(capsys):
    assert len(OURS) > 25
    assert len(BENCHMARKS) > 30
    with pytest.raises(SystemExit):
        read(["sparsify", "--epochs", "3"])
    assert "--num-epochs" in capsys.readouterr().err
    text = "see `bmrjax check DIR`.\n```bash\n$ bmrjax info a \\\n    --path\n```"
    assert commands(text) == ["bmrjax info a --path", "bmrjax check DIR"]
