"""The line on terminals of several widths."""

import fcntl
import os
import re
import struct
import sys
import termios

import pytest

from bmrjax.run.progress_line import ProgressLine, drawn

LAST = "3 rounds in 2 s; " + "a line that is longer than the terminal is wide, " * 2 + "to its end"


class Counted(ProgressLine):
    def _now(self):
        return 0.5, "counting", ["about 2 s"]

    def _end(self):
        return LAST


def seen_at(monkeypatch, lines, columns):
    """Return what a terminal of some size has received."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with drawn(Counted, 1.0, text="starting", wanted=True) as line:
            line.draw()
        terminal.flush()
        found = ""
        while not found.endswith("\n"):
            found += os.read(ours, 100_000).decode()
    os.close(ours)
    return [part.rstrip() for part in re.split(r"[\r\n]", found) if part.strip()]


@pytest.mark.parametrize(("lines", "columns", "width"), [(24, 100, 99), (0, 0, 80), (0, 60, 59)])
def test_a_line_is_as_wide_as_the_terminal_and_its_last_one_is_whole(
    monkeypatch, lines, columns, width
):
    shown = seen_at(monkeypatch, lines, columns)
    assert shown[0].startswith("starting   0%|")
    assert re.fullmatch(r"counting  50%\|.*\| 00:00, about 2 s", shown[1])
    assert len(shown[1]) == width
    assert shown[2:] == [LAST]
