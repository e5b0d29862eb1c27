"""Smaller pages: icons as characters in place of a script of 1.5 MB, pictures in fewer colours.

A page that is above `LIMIT` all the same, with its pictures, scripts and styles, ends the build.
"""

import re
from pathlib import Path

from PIL import Image
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

# What the theme draws by Font Awesome; `site.css` has the characters.
NO_SCRIPT = "/* The icons are characters; see site.css. */\n"
# Bytes of a page with all that a browser loads for it.
LIMIT = 1_000_000
# What only the page of the search uses; the theme loads it on all.
_SEARCH = re.compile(
    r'\s*<script src="[^"]*(?:searchtools|language_data|searchindex)\.js[^"]*"></script>'
)
_LOADED = re.compile(
    r'<(?:script|img|source)\b[^>]*\ssrc="([^"]+)"'
    r'|<link\b(?=[^>]*\brel="(?:stylesheet|preload|icon)")[^>]*\bhref="([^"]+)"'
)
_LOADED_BY_STYLE = re.compile(r"url\(\s*[\"']?([^)\"']+)")


def slim(folder: Path) -> None:
    """Make the files of a built site smaller, in place."""
    (folder / "_static" / "scripts" / "fontawesome.js").write_text(NO_SCRIPT)
    for path in (folder / "_static" / "styles").glob("pydata*.css"):
        text = re.sub(r"(?<=})\.fa-[^{}@]*{[^{}]*}", "", path.read_text())
        path.write_text(re.sub(r"@font-face{[^{}]*fontawesome[^{}]*}", "", text))
    # Templates of the theme that are copied along are no pages.
    for pattern in ("*.map", "fa-*.woff2", "*webpack-macros.html"):
        for path in (folder / "_static").rglob(pattern):
            path.unlink()
    for path in folder.rglob("*.html"):
        text = named(path.read_text())
        path.write_text(text if path.name == "search.html" else _SEARCH.sub("", text))
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


def named(text: str) -> str:
    """Return a page whose buttons and parts have names, as WCAG 2 wants them."""
    toggle = '<summary><span class="toctree-toggle"'
    text = text.replace(toggle, toggle.replace(">", ' aria-label="Pages of this section">', 1))
    # The name of the site, above the search; a page of an earlier build has it already.
    part, home = '<div class="sidebar-primary-item">', ' role="navigation" aria-label="Home">'
    if home not in text:
        text = text.replace(part, part.replace(">", home), 1)
    # The text inside is the name; another one hides it.
    return re.sub(
        r'(<button class="btn search-button-field[^>]*?) aria-label="Search"', r"\1", text
    )


def weight(page: Path) -> int:
    """Return the bytes of a page with all files of the site that a browser loads for it."""
    seen: set[Path] = set()
    waiting = [page.resolve()]
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        if path.suffix not in (".html", ".css"):
            continue
        text = path.read_text()
        found = _LOADED.findall(text) if path.suffix == ".html" else _LOADED_BY_STYLE.findall(text)
        names = ["".join(name).split("?")[0].split("#")[0] for name in found]
        waiting += [(path.parent / name).resolve() for name in names if name and ":" not in name]
    return sum(path.stat().st_size for path in seen)


def too_heavy(folder: Path) -> dict[str, int]:
    """Return the pages of a site that are above the limit, with their bytes."""
    found = {str(path.relative_to(folder)): weight(path) for path in folder.rglob("*.html")}
    return {name: size for name, size in found.items() if size > LIMIT}


def _finished(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.name == "html":
        slim(Path(app.outdir))
        if found := too_heavy(Path(app.outdir)):
            raise SphinxError(
                f"These pages are above {LIMIT:,} bytes with what they load: {found}. Split them, or make "
                "their pictures smaller."
            )


def setup(app: Sphinx) -> dict[str, bool]:
    """Do so when the pages are written."""
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
