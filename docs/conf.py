"""Sphinx configuration: `make docs` builds the site into docs/_build."""

from importlib.metadata import version as _version

project = "bmrjax"
author = "The bmrjax authors"
version = release = _version("bmrjax")
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_nb",
]
html_theme = "sphinx_book_theme"
html_title = "bmrjax"
exclude_patterns = ["_build"]
nb_execution_mode = "off"  # the committed outputs are what CI checked
autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_ivar = True
myst_enable_extensions = ["dollarmath"]
