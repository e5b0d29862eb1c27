"""Docstrings, messages, comments and documents in the field's words and the usual order."""

import re
from pathlib import Path

import pytest

import bmrjax

PACKAGE = Path(bmrjax.__file__).parent
ROOT = PACKAGE.parent
# What is written too easily, and what to write in its place.
RATES = "member|fit|row|unit|element|step|site|layer|weight|epoch|batch|data point|subject"
THINGS = "array|float|latent|list|matrix|network|normal|number|parameter|path|program|result|shape|state|type"
INSTEAD = {
    r"\ba datum\b": "a data point, or per data point",
    rf"\b(one|once|nats|masks|samples|draws|steps|seconds|bytes) an? ({RATES})\b": "per …",
    r"\b[wW]ho (stays|goes)\b": "which are kept, removed",
    r"\bgo(es)? first\b": "removed first",
    r"\b(is|are|was|were) (asked|told)\b": "is evaluated, receives",
    r"\bnothing (more )?to say\b": "does not contribute",
    r"\bhand(s|ed)? back\b": "returns",
    r"\b[aA]sks? the (criterion|evidence|schedule)\b": "evaluates, calls",
    rf"(?<![tT]here )\bis no ({THINGS})\b": "is not a …",
    r"\bbetter (a|an) \w+ed one\b": "a whole sentence",
}
# A sentence in which the words mean something else.
ALLOWED = {"call a run finished", "nats a step costs"}


def texts():
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]
    if (ROOT / "docs").is_dir():
        made = {"reference", "notebooks", "_build"}  # by the build of the site
        pages = (ROOT / "docs").rglob("*.md")
        files += [p for p in pages if not made & set(p.relative_to(ROOT / "docs").parts)]
        files += (ROOT / "notebooks").glob("*.ipynb")
        files += ROOT.glob("*.md")
        files += (ROOT / "benchmarks").rglob("*.md")
    return [(path, path.read_text()) for path in files]


@pytest.mark.parametrize("pattern", INSTEAD, ids=INSTEAD.values())
def test_phrases_to_avoid_do_not_come_back(pattern):
    found = []
    for path, text in texts():
        for match in re.finditer(pattern, text):
            around = text[max(match.start() - 40, 0) : match.end() + 40].replace("\n", " ")
            if not any(words in around for words in ALLOWED):
                found.append(f"{path.relative_to(ROOT)}: …{around}… Write: {INSTEAD[pattern]}.")
    assert not found, "\n".join(found)


def test_the_patterns_find_what_they_are_for():
    bad = [
        "the loss of a datum",
        "nats a step",
        "who stays",
        "the smallest goes first",
        "is asked",
        "nothing to say",
        "hands back",
        "asks the criterion",
        "x is no array",
        "better a trained one",
    ]
    assert [bool(re.search(p, text)) for p, text in zip(INSTEAD, bad, strict=True)] == [True] * 10
    assert not re.search(list(INSTEAD)[8], "there is no array")
