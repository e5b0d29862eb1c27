"""Formulas as MathML: browsers draw them without a script, without a network, and read them aloud."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

# Docstrings are read in terminals too, so they have some symbols as characters.
COMMANDS = {
    "≥": r"\ge ",
    "≤": r"\le ",
    "≈": r"\approx ",
    "∝": r"\propto ",
    "→": r"\to ",
    "∞": r"\infty ",
    "∈": r"\in ",
    "·": r"\cdot ",
    "×": r"\times ",
    "−": "-",
    "½": r"\tfrac12 ",
    "¼": r"\tfrac14 ",
    "…": r"\ldots ",
    "Δ": r"\Delta ",
    "∂": r"\partial ",
    r"\Big": "",
}
_log = logging.getLogger(__name__)


def _markup(node: Any, *, as_block: bool) -> str:
    """Return a formula as MathML; warn of one that cannot be read, and show it as it is."""
    text = node.astext().strip()
    for character, command in COMMANDS.items():
        text = text.replace(character, command)
    text = re.sub(r"\\([td]?)frac(\d)(\d)", r"\\\1frac{\2}{\3}", text)
    try:
        return tex2mathml(text, as_block=as_block)
    except MathError as error:
        _log.warning("formula %r: %s", text, error, location=node)
        return f"<code>{text}</code>"


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_markup(node, as_block=False))
    raise nodes.SkipNode


def _display(writer: Any, node: nodes.math_block) -> None:
    writer.body.append('<div class="formula" tabindex="0">')
    writer.body.append(_markup(node, as_block=True))
    writer.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
