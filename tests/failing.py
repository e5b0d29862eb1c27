"""A command that is refused."""

import pytest

from bmrjax import cli


def fails(capsys, *arguments):
    with pytest.raises(SystemExit, match="2"):
        cli.main([str(argument) for argument in arguments])
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line
