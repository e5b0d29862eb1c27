"""Each name of a class, function, constant or module stands for one thing."""

import ast
from collections import defaultdict
from pathlib import Path

import bmrjax

PACKAGE = Path(bmrjax.__file__).parent

# A package says in `base.py` what its members are.
CONTRACT = {"base"}
# A distribution has its formulas in `reduction/`, what the library knows of it in `families/`, the prior in
# `priors/` and the criterion that puts it in the place of a prior in `criteria/`.
DISTRIBUTIONS = {
    "horseshoe",
    "joint_normal",
    "laplace",
    "log_normal",
    "log_uniform",
    "matrix_normal",
    "normal",
    "spike_slab",
}
OF_DISTRIBUTIONS = {"reduction", "families", "priors", "criteria", "fitted"}
# Questions of `reduction/removal.py`, with the answer of each distribution in its own file.
QUESTIONS = {"delta_f_each", "remove"}


def sources():
    return {p.relative_to(PACKAGE): ast.parse(p.read_text()) for p in PACKAGE.rglob("*.py")}


def assigned(node):
    """Return the names that a statement at the top of a module binds, other than by importing them."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [t.id for t in targets if isinstance(t, ast.Name)]


def repeated(places):
    return {name: where for name, where in places.items() if len(where) > 1}


def test_no_two_classes_functions_or_constants_have_one_name():
    places = defaultdict(list)
    for path, tree in sources().items():
        for name in {name for node in tree.body for name in assigned(node)}:
            if not name.startswith("_"):
                places[name].append(path)
    assert len(places) > 1000
    found = repeated(places)
    assert set(found) == QUESTIONS, found
    assert all(path.parts[0] == "reduction" for name in QUESTIONS for path in found[name])


def test_no_two_modules_have_one_name_unless_they_mean_the_same():
    places = defaultdict(list)
    for path in sources():
        if path.name == "__init__.py":
            places[path.parent.name].append(path.parent)
        elif path.name != "__main__.py":
            places[path.stem].append(path)
    found = repeated(places)
    assert set(found) == CONTRACT | DISTRIBUTIONS, found
    for name in DISTRIBUTIONS:
        assert {path.parts[0] for path in found[name]} <= OF_DISTRIBUTIONS
