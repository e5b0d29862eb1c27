"""The notebooks as pages, and their gallery: title, question and a picture of each."""

import base64
import io
import json
import re
from pathlib import Path

from PIL import Image

WIDTH = 480


def _text(cell: dict) -> str:
    return "".join(cell["source"])


def _pictures(cells: list[dict]) -> list[bytes]:
    """Return the PNGs among the outputs."""
    found = []
    for cell in cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {}).get("image/png")
            if data:
                found.append(base64.b64decode("".join(data)))
    return found


def _thumbnail(picture: bytes, path: Path) -> None:
    """Write a picture in the width of a card, in few colours."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.thumbnail((WIDTH, WIDTH))
    card = Image.new("RGB", (WIDTH, 3 * WIDTH // 5), "white")
    image.thumbnail(card.size)
    card.paste(image, ((card.width - image.width) // 2, (card.height - image.height) // 2))
    card.quantize(64).save(path, optimize=True)


def _plain(text: str) -> str:
    """Return the first paragraph after the title, without links."""
    paragraph = next(part for part in text.split("\n\n")[1:] if part.strip())
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))


def card(path: Path, folder: Path) -> str:
    """Return the card of a notebook, and write its thumbnail."""
    cells = json.loads(path.read_text())["cells"]
    first = _text(cells[0])
    title = first.splitlines()[0].lstrip("# ")
    lines = [f":::{{grid-item-card}} {title}", f":link: {path.stem}", ":link-type: doc"]
    pictures = _pictures(cells)
    if pictures:
        _thumbnail(pictures[0], folder / f"{path.stem}.png")
        lines += [f":img-top: {path.stem}.png", f":img-alt: A figure of the notebook “{title}”"]
    return "\n".join([*lines, "", _plain(first), ":::"])


def write(source: Path, folder: Path) -> None:
    """Copy the notebooks beside a page with a card for each."""
    folder.mkdir(exist_ok=True)
    paths = sorted(source.glob("[0-9]*.ipynb"))
    for old in folder.iterdir():
        if old.suffix == ".ipynb" and not (source / old.name).exists():
            old.unlink()
    for path in paths:
        copy = folder / path.name
        # The copy lies among the pages that the notebook links to.
        content = path.read_bytes().replace(b"](../docs/", b"](../")
        if not copy.exists() or copy.read_bytes() != content:
            copy.write_bytes(content)
    cards = "\n".join(card(path, folder) for path in paths)
    tree = "\n".join(path.stem for path in paths)
    text = f"""# Notebooks

Each starts with a question and ends with an answer. They lie in the folder `notebooks`,
and run as they are printed.

::::{{grid}} 1 2 2 3
:gutter: 3

{cards}
::::

```{{toctree}}
:hidden:

{tree}
```
"""
    page = folder / "index.md"
    if not page.exists() or page.read_text() != text:
        page.write_text(text)
