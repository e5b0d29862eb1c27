"""Check the links of the built site: pages, files and anchors; no network is needed.

    python tools/links.py docs/_build

Prints each link of the site that leads nowhere, and the number of links to other sites, which
`make external-links` follows. Ends with status 1 if a link is broken.
"""

import argparse
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

# Attributes that name another file.
LINKS = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src"}


class Page(NamedTuple):
    """What a page links to, and what can be linked to in it."""

    links: list[str]
    anchors: set[str]


class _Reader(HTMLParser):
    """Collect the links and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.page = Page([], set())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take in one element."""
        values = dict(attrs)
        if target := values.get(LINKS.get(tag, "")):
            self.page.links.append(target)
        self.page.anchors.update(name for key in ("id", "name") if (name := values.get(key)))


def read(path: Path) -> Page:
    """Return the links and anchors of a file."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.page


def is_external(link: str) -> bool:
    """Return whether a link leaves the site."""
    parts = urlsplit(link)
    return bool(parts.scheme or parts.netloc)


def broken(site: Path, paths: Iterable[Path]) -> list[str]:
    """Return what is wrong with the links of pages, a line for each.

    Args:
        site: Folder of the site; a link must not lead out of it.
        paths: Its pages.
    """
    site = site.resolve()
    pages = {path.resolve(): read(path) for path in paths}
    found = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            if is_external(link):
                continue
            parts = urlsplit(link)
            name = unquote(parts.path)
            target = (path.parent / name).resolve() if name else path
            if target.is_dir():
                target = target / "index.html"
            where = f"{path.relative_to(site)}: {link}"
            if not target.is_relative_to(site) or not target.exists():
                found.append(f"{where}: there is no such file")
            elif parts.fragment and target.suffix == ".html":
                anchors = pages[target].anchors if target in pages else read(target).anchors
                if unquote(parts.fragment) not in anchors:
                    found.append(f"{where}: the page has no such anchor")
    return found


def main() -> None:
    """Check a site."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("site", type=Path, help="folder with the built pages")
    site = parser.parse_args().site
    paths = sorted(site.rglob("*.html"))
    if not paths:
        raise SystemExit(f"links: there are no pages in {site}; run `make docs` first.")
    found = broken(site, paths)
    print("\n".join(found), end="\n" if found else "")
    links = [link for path in paths for link in read(path).links]
    outside = {link.partition("#")[0] for link in links if is_external(link)}
    print(
        f"links: {len(paths)} pages, {len(links)} links, {len(found)} broken; "
        f"{len(outside)} addresses elsewhere, not followed"
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
