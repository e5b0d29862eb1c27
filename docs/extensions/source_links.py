"""Links from the pages of source code back to the reference, mended where they lead to no anchor.

Sphinx remembers one name per source file. Where some of its objects are documented under the name of the
package (`bmrjax.Result`) and others under that of a module (`bmrjax.handlers.scale_elbo`), it writes all
links of the file with the one name.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

_BACK = re.compile(r'<a class="viewcode-back" href="([^"#]+)#([^"]+)">(.*?)</a>')
_ANCHOR = re.compile(r'\bid="([^"]+)"')


def mended(page: Path) -> str:
    """Return the text of a page whose links to the reference lead to anchors that are there.

    A link is led to the anchor that ends as it does; where there is none, or several, its text stays without
    a link.
    """
    anchors: dict[Path, list[str]] = {}

    def link(match: re.Match) -> str:
        name, anchor, text = match.groups()
        target = (page.parent / name).resolve()
        if target not in anchors:
            anchors[target] = _ANCHOR.findall(target.read_text())
        if anchor in anchors[target]:
            return match[0]
        ending = "." + anchor.removeprefix("bmrjax.")
        found = [each for each in anchors[target] if each.endswith(ending)]
        return match[0].replace(f"#{anchor}", f"#{found[0]}") if len(found) == 1 else text

    return _BACK.sub(link, page.read_text())


def _finished(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.name == "html":
        for page in (Path(app.outdir) / "_modules").rglob("*.html"):
            page.write_text(mended(page))


def setup(app: Sphinx) -> dict[str, bool]:
    """Do so when the pages are written."""
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
