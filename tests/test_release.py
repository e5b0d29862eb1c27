"""The files of a release agree: versions, dependencies, and what goes into the sdist."""

import re
import tomllib
from pathlib import Path

import bmrjax

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# What conda-forge calls it otherwise.
CONDA = {
    "constriction": "python-constriction",
    "docstring-parser": "docstring_parser",
    "typing-extensions": "typing_extensions",
}


def test_one_version_is_named_everywhere():
    version = bmrjax.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'version = "{version}"' in (ROOT / "recipe" / "meta.yaml").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE)


def test_the_recipe_has_the_dependencies_of_the_package():
    recipe = (ROOT / "recipe" / "meta.yaml").read_text()
    run = recipe.partition("  run:\n")[2].partition("\ntest:")[0]
    listed = {line.strip("- ") for line in run.splitlines() if line.strip()} - {"python >=3.11"}
    declared = set()
    for line in PROJECT["project"]["dependencies"]:
        name, bounds = re.fullmatch(r"([\w-]+)(.*)", line).groups()
        declared.add(f"{CONDA.get(name, name)} {bounds}")
    assert listed == declared


def test_the_sdist_has_what_its_tests_read():
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for name in included:
        assert (ROOT / name).exists(), name
    assert {"tests", "conftest.py", "CITATION.cff", "recipe"} <= set(included)
    # What the page about installation gives to pip.
    assert {"docs", "constraints.txt"} <= set(included)


def test_forms_of_issues_are_complete():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert [form.stem for form in forms] == ["bug", "config", "feature", "question"]
    for form in forms:
        text = form.read_text()
        keys = ("name:", "description:", "body:") if form.stem != "config" else ("blank",)
        assert all(re.search(rf"^{key}", text, re.MULTILINE) for key in keys), form


def test_the_page_about_installation_has_every_extra():
    page = (ROOT / "docs" / "start" / "install.md").read_text()
    extras = set(PROJECT["project"]["optional-dependencies"]) - {"dev", "docs", "release"}
    assert {name for name in extras if f"`{name}`" not in page} == set()


def test_each_paper_to_cite_has_an_entry():
    page = (ROOT / "docs" / "cite.md").read_text()
    table = page.partition("| you used | cite |")[2]
    cited = re.findall(r"\| (\w+)[^|()]*\((\d{4})\) \|", table.encode("ascii", "ignore").decode())
    entries = re.findall(r"^@\w+\{(\w+),", page, re.MULTILINE)
    assert len(cited) >= 6
    for name, year in cited:
        assert any(e.endswith(year) and e.startswith(name[:5].lower()) for e in entries), name
