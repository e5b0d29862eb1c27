"""Help in terminals of any width: no line is longer, and no word is broken."""

import pytest

from bmrjax import cli
from bmrjax.cli.fold_help import fold


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "command", [[], ["sparsify"], ["export"]], ids=lambda words: " ".join(words)
)
def test_no_line_of_help_is_longer_than_the_terminal(command, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit, match="0"):
        cli.main([*command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: bmrjax")
    assert max(map(len, lines)) <= columns
    assert not any("(default: )" in line for line in lines)


def test_words_and_colours_are_kept_whole():
    text = (
        "\x1b[1musage:\x1b[0m bmrjax [-h]\n  Example: bmrjax sparsify --data-root NAME\n│ a frame │"
    )
    folded = fold(text, 30)
    assert folded.replace("\n  ", " ").split() == text.split()
    assert folded.splitlines()[0] == text.splitlines()[0]
    assert folded.splitlines()[2].startswith("  ")
