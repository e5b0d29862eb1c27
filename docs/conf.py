"""Sphinx configuration: `make docs` builds the site into docs/_build."""

import re
import sys
from html import escape
from importlib.metadata import version as _version
from pathlib import Path
from textwrap import shorten

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))
import notebook_pages  # noqa: E402
import reference_pages  # noqa: E402

project = "bmrjax"
author = "The bmrjax authors"
version = release = _version("bmrjax")
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_nb",
    "sphinx_design",
    "mathml",
    "slim_pages",
    "source_links",
]
exclude_patterns = ["_build", "_links", "jupyter_execute", "extensions", "figures/*.py"]
language = "en"

html_theme = "sphinx_book_theme"
html_title = "bmrjax"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
html_js_files = [("copy.js", {"defer": "defer"})]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "navbar_persistent": [],  # the search is in the sidebar
}
html_math_renderer = "mathml"

nb_execution_mode = "off"  # the committed outputs are shown; `make notebooks` runs the notebooks
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_ivar = True
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
myst_update_mathjax = False
default_role = "py:obj"
linkcheck_ignore = [r"http://localhost"]


def _write_pages(app: Sphinx) -> None:
    """Write what is made from the code and from the notebooks."""
    reference_pages.write(HERE / "reference")
    notebook_pages.write(HERE.parent / "notebooks", HERE / "notebooks")


def _by_its_end(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """Find `Result` or `criteria.Magnitude` by the end of the whole name, if one name has it."""
    if node.get("reftype") != "obj":
        return None
    ending = "." + node["reftarget"].removeprefix("bmr.").removesuffix("()")
    objects = env.domaindata["py"]["objects"]
    found = [name for name in objects if name.endswith(ending) and not objects[name].aliased]
    if not found:
        return None
    name = min(found, key=len)
    if sum(len(other) == len(name) for other in found) > 1:
        return None
    entry = objects[name]
    return make_refnode(
        app.builder, str(node["refdoc"]), entry.docname, entry.node_id, content, name
    )


def _fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    """Write the version where a page has ``@version@``, and the changelog on its page."""
    source[0] = source[0].replace("@version@", version)
    if docname == "changelog":
        text = (HERE.parent / "CHANGELOG.md").read_text().replace("](docs/", "](./")
        # Of what the site does not have, only the words.
        source[0] = re.sub(r"\[([^]]+)\]\((?!\./|http)[^)]+\)", r"\1", text)


def _describe(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None
) -> None:
    """Give a page its first paragraph as its description, which searches show."""
    first = next(iter(doctree.findall(nodes.paragraph)), None) if doctree is not None else None
    if first is not None:
        text = shorten(" ".join(first.astext().split()), 160, placeholder=" …")
        tag = f'<meta name="description" content="{escape(text)}" />'
        context["metatags"] = context.get("metatags", "") + tag


def _plain_returns(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Keep words before a colon under "Returns:" from being read as a type, which the annotation gives."""
    for i, line in enumerate(lines[:-1]):
        if line.strip() == "Returns:" and re.match(r"\s+[A-Z][^:`\[]* [^:`\[]*:", lines[i + 1]):
            lines[i + 1] = re.sub(r"(?<=\s)(?=\S)", ": ", lines[i + 1], count=1)


def setup(app: Sphinx) -> None:
    """Write pages before anything is read; resolve short names."""
    app.connect("autodoc-process-docstring", _plain_returns, priority=400)  # before napoleon
    app.connect("builder-inited", _write_pages)
    app.connect("source-read", _fill_in)
    app.connect("html-page-context", _describe)
    app.connect("missing-reference", _by_its_end)
