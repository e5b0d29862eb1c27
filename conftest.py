"""The blocks of the README and of the site's pages, run as they are printed."""

import doctest
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser


@pytest.fixture(scope="module")
def in_a_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let a document write its files elsewhere."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("document"))
    yield
    os.chdir(before)


options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_documents: Any = Sybil(
    parsers=[PythonCodeBlockParser(doctest_optionflags=options), SkipParser()],
    patterns=[
        "docs/start/*.md",
        "docs/howto/*.md",
        "docs/theory/*.md",
        "README.md",
        "docs/quickstart.md",
        "docs/guide.md",
        "docs/loops.md",
        "docs/variables.md",
        "docs/fitted.md",
        "docs/groups.md",
        "docs/trained.md",
        "docs/report.md",
        "docs/small_files.md",
        "docs/pytorch.md",
        "docs/plots.md",
        "docs/scale.md",
        "docs/streaming.md",
    ],
    fixtures=["in_a_folder_of_its_own"],
)
pytest_collect_file = _documents.pytest()
