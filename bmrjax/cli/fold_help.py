"""Help whose long lines are broken between words, at the width of the terminal."""

import contextlib
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

# What a terminal does not show.
_STYLES = re.compile(r"\x1b\[[0-9;]*m")


class _Kept(io.StringIO):
    """Text that is kept, styled as on what it will be written to."""

    def __init__(self, terminal: bool):  # noqa: FBT001
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        """Return whether the text ends on a terminal."""
        return self._terminal


def fold(text: str, width: int) -> str:
    """Break lines that are longer than `width` between words; lines of frames have their width already.

    Args:
        text: Lines, with or without codes for colours.
        width: Characters in a line of the terminal.

    Returns:
        The text; what continues a line is indented as the line is, and below the program of a usage line.

    Example:
        >>> print(fold("usage: bmrjax [-h] {sparsify,info}", 25))
        usage: bmrjax [-h]
            {sparsify,info}
    """
    lines = []
    for line in text.split("\n"):
        shown = _STYLES.sub("", line)
        if len(shown) <= width:
            lines.append(line)
            continue
        indent = "    " if shown.startswith("usage:") else shown[: len(shown) - len(shown.lstrip())]
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


@contextlib.contextmanager
def folded_help(arguments: Sequence[str]) -> Iterator[None]:
    """Fold what is printed in this context to the width of the terminal, if the arguments ask for help.

    Args:
        arguments: Words of the command line.
    """
    if not {"-h", "--help"} & set(arguments):
        yield
        return
    theirs = sys.stdout
    kept = _Kept(theirs.isatty())
    try:
        with contextlib.redirect_stdout(kept):
            yield
    finally:
        theirs.write(fold(kept.getvalue(), max(shutil.get_terminal_size().columns, 40)))
