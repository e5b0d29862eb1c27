"""How the package is laid out: one concept a file, in few levels of import, without circles."""

import ast
import re
import tomllib
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

import bmrjax

PACKAGE = Path(bmrjax.__file__).parent
MOST_LINES, MOST_TEST_LINES = 400, 600
MOST_LEVELS = 9
# Longer than they should be: (file, reason). A file that has been split leaves the list.
LONGER: dict[str, str] = {}


def levels(imports):
    """Return the level of each node of a graph of imports: one more than the highest that it imports."""
    found = {}
    for node in TopologicalSorter(imports).static_order():
        found[node] = 1 + max((found[other] for other in imports.get(node, ())), default=0)
    return found


@pytest.fixture(scope="module")
def imports():
    """Each module of the package, and those of the package that it imports, anywhere in its file."""
    graph = grimp.build_graph("bmrjax", cache_dir=None)
    modules = graph.modules - {"bmrjax"}
    return {m: graph.find_modules_directly_imported_by(m) - {"bmrjax"} for m in modules}


def test_no_file_is_longer_than_one_concept_takes():
    counts = {
        str(path.relative_to(PACKAGE)): len(path.read_text().splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    assert len(counts) > 300
    assert {name for name, lines in counts.items() if lines > MOST_LINES} == set(LONGER)


def test_no_file_of_tests_is_longer_than_one_subject_takes():
    files = list(Path(__file__).parent.rglob("*.py"))
    assert len(files) > 150
    assert not [f.name for f in files if len(f.read_text().splitlines()) > MOST_TEST_LINES]


def test_files_import_each_other_without_circles(imports):
    assert len(imports) > 300
    levels(imports)


def test_packages_import_each_other_without_circles_and_in_few_levels(imports):
    packages = defaultdict(set)
    for module, others in imports.items():
        own = module.split(".")[1]
        packages[own] |= {other.split(".")[1] for other in others} - {own}
    found = levels(packages)
    assert found["run"] > found["infer"] > found["families"] > found["reduction"] == 1
    assert max(found.values()) <= MOST_LEVELS, found


def test_levels_are_counted_and_circles_found():
    assert levels({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": 3, "b": 2, "c": 1}
    with pytest.raises(CycleError):
        levels({"a": {"b"}, "b": {"a"}})


ARCHITECTURE = PACKAGE.parent / "docs" / "architecture.md"
JOURNEY = re.compile(r"^\d+\. `([\w/]+\.py)`: `(\w+)`", re.MULTILINE)


@pytest.mark.skipif(not ARCHITECTURE.is_file(), reason="the documents are not installed")
def test_the_map_is_true_and_short(imports):
    text = ARCHITECTURE.read_text()
    assert len(text.split()) < 1300
    journeys = [JOURNEY.findall(part) for part in text.split("### ")[1:]]
    assert [len(steps) > 5 for steps in journeys] == [True] * 3
    for steps in journeys:
        files = [file for file, _ in steps]
        assert len(files) <= 12
        assert len(set(files)) == len(files)  # without turning back
        for file, name in steps:
            tree = ast.parse((PACKAGE / file).read_text())
            assert name in {getattr(node, "name", None) for node in tree.body}, (file, name)
    named = set(re.findall(r"`(\w+)`", text[text.index("## Packages") : text.index("## Three")]))
    packages = {module.split(".")[1] for module in imports}
    assert packages <= named | {"__main__"}
    for path in re.findall(r"`([\w/]+\.py)`", text):
        assert (PACKAGE / path).exists() or (PACKAGE.parent / path).exists(), path


@pytest.mark.skipif(not ARCHITECTURE.is_file(), reason="the documents are not installed")
def test_the_table_of_packages_has_the_rows_that_the_linter_checks():
    tools = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]
    (layers,) = (c["layers"] for c in tools["importlinter"]["contracts"] if "layers" in c)
    text = ARCHITECTURE.read_text()
    rows = re.findall(r"^\| \d[\d, ]* \| (.*) \|$", text, re.MULTILINE)
    packages = set(re.findall(r"\w+", " ".join(layers)))
    # What a package is for, in brackets, may name functions.
    listed = [set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", row))) for row in rows]
    expected = [set(row.split(" | ")) for row in reversed(layers)]
    expected[-2:] = [expected[-2] | expected[-1]]
    assert listed == expected
    assert set().union(*listed) == packages


def test_asserts_only_look():
    """`python -O` leaves them out, with what they assign."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                assigned = [n for n in ast.walk(node) if isinstance(n, ast.NamedExpr)]
                assert not assigned, f"{path}:{node.lineno} assigns in an assert"


def test_functions_import_nothing_of_the_package():
    """A function that imports is a circle in disguise; what needs an optional extra is the exception."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                found |= {
                    (str(path.relative_to(PACKAGE)), f"{node.module}.{alias.name}")
                    for node in ast.walk(function)
                    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bmrjax")
                    for alias in node.names
                }
    assert found == {("cli/run_report.py", "bmrjax.plot")}  # matplotlib
