"""Smaller pages: icons as characters in place of a script of 1.5 MB, and pictures in fewer colours."""

import re
from pathlib import Path

from PIL import Image
from sphinx.application import Sphinx

# What the theme draws by Font Awesome; `site.css` has the characters.
NO_SCRIPT = "/* The icons are characters; see site.css. */\n"


def slim(folder: Path) -> None:
    """Make the files of a built site smaller, in place."""
    (folder / "_static" / "scripts" / "fontawesome.js").write_text(NO_SCRIPT)
    for path in (folder / "_static" / "styles").glob("pydata*.css"):
        path.write_text(re.sub(r"(?<=})\.fa-[^{}@]*{[^{}]*}", "", path.read_text()))
    for path in (folder / "_static").rglob("*.map"):
        path.unlink()
    for path in (folder / "_images").glob("*.png"):
        before = path.stat().st_size
        if before < 30_000:
            continue
        few = Image.open(path).convert("RGBA").quantize(128, Image.Quantize.FASTOCTREE)
        again = path.with_suffix(".few")
        few.save(again, format="PNG", optimize=True)
        if again.stat().st_size < before:
            again.replace(path)
        else:
            again.unlink()


def _finished(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.name == "html":
        slim(Path(app.outdir))


def setup(app: Sphinx) -> dict[str, bool]:
    """Do so when the pages are written."""
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
