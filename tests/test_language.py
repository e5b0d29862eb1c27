"""Docstrings, messages, comments and documents in the field's words and the usual order."""

import re
from pathlib import Path

import pytest

import bmrjax

PACKAGE = Path(bmrjax.__file__).parent
ROOT = PACKAGE.parent
# What is written too easily, and what to write in its place.
RATES = (
    "member|fit|key|round|file|device|process|row|unit|element|step|site|layer|weight|epoch|batch|data point|"
    "subject"
)
THINGS = "array|float|latent|list|matrix|network|normal|number|parameter|path|program|result|shape|state|type"
ONWARDS = (
    "above|along|back|below|beside|beyond|by|down|from|in|into|on|out|over|there|through|to|together|up|"
    "with|wrong"
)
INSTEAD = {
    r"\ba datum\b": "a data point, or per data point",
    rf"\b(one|once|nats|masks|samples|draws|steps|seconds|bytes) an? ({RATES})\b": "per …",
    r"\b[wW]ho (stays|goes)\b": "which are kept, removed",
    r"\bgo(es)? first\b": "removed first",
    rf"\b([Ww]hat|[Nn]othing|[Ww]eights?|[Ee]lements?|[Cc]olumns?|[Uu]nits?) go(es)?(?! ({ONWARDS}))\b": (
        "is removed"
    ),
    rf"(?<!fit )\b[wW]ent\b(?! (too far|away|{ONWARDS}))": "is removed",
    r"\b(is|are|was|were) (asked|told)\b": "is evaluated, receives",
    r"\bnothing (more )?to say\b": "does not contribute",
    r"\bhand(s|ed)? back\b": "returns",
    r"\b[aA]sks? the (criterion|evidence|schedule)\b": "evaluates, calls",
    rf"(?<![tT]here )\bis no ({THINGS})\b": "is not a …",
    r"\bbetter (a|an) \w+ed one\b": "a whole sentence",
    r"\b[wW]hat is no (?!longer)": "what is not a …, unless it is a …",
    r"\b(is|are) the (run|fit|result) (it|they) would be\b": "gives the same result as … by itself",
    r"\b[dD]ecides? nothing\b": "used for reporting only",
    r"\b[oO]f what (it is|they are|a run is) made\b": "parts of …, result of …",
}
# A sentence in which the words mean something else.
ALLOWED = {"call a run finished", "nats a step costs"}


FOLDERS = "benchmarks bmrjax docs notebooks recipe tests tools .github".split()
SUFFIXES = set(".py .pyi .md .ipynb .sh .js .css .jinja .toml .yml .yaml .cff".split())


def texts():
    """Return all texts of a clone, or of the installed package, each with its lines joined."""
    files = {*PACKAGE.rglob("*")}
    if (ROOT / "docs").is_dir():
        made = {ROOT / "docs" / name for name in ("reference", "notebooks", "_build", "_links")}
        files |= {
            p for name in FOLDERS for p in (ROOT / name).rglob("*") if not made & set(p.parents)
        }
        files |= {*ROOT.glob("*"), ROOT / "Makefile"}
    found = {p for p in files if (p.suffix in SUFFIXES or p.name == "Makefile") and p.is_file()}
    return [(path, joined(path.read_text())) for path in sorted(found - {Path(__file__)})]


def joined(text):
    """Return a text in one line, without the marks that begin lines of comments, quotations and cells."""
    return re.sub(r"\\n\",\s*\"|\s*\n[\s#>*]*", " ", text)


@pytest.mark.parametrize("pattern", INSTEAD, ids=INSTEAD.values())
def test_phrases_to_avoid_do_not_come_back(pattern):
    found = []
    for path, text in texts():
        for match in re.finditer(pattern, text):
            around = text[max(match.start() - 40, 0) : match.end() + 40]
            if not any(words in around for words in ALLOWED):
                found.append(f"{path.relative_to(ROOT)}: …{around}… Write: {INSTEAD[pattern]}.")
    assert not found, "\n".join(found)


def test_the_patterns_find_what_they_are_for():
    bad = [
        "the loss of a datum",
        "nats a step",
        "who stays",
        "the smallest goes first",
        "what goes is zero",
        "which weights went, and why",
        "is asked",
        "nothing to say",
        "hands back",
        "asks the criterion",
        "x is no array",
        "better a trained one",
        "Refuse what is no PRNG key",
        "each is the run it would be alone",
        "They decide nothing",
        "of what it is made",
    ]
    assert [bool(re.search(p, text)) for p, text in zip(INSTEAD, bad, strict=True)] == [True] * 16
    assert not re.search(list(INSTEAD)[5], "how the fit went, and what went on from it")
    assert not re.search(list(INSTEAD)[10], "there is no array")


def test_results_on_pages_have_names_of_their_own():
    """`found` says nothing: a reduction, an inspection, a data set."""
    if not (ROOT / "docs").is_dir():
        pytest.skip("the documents are not installed")
    pages = [ROOT / "README.md", *(path for path, _ in texts() if ROOT / "docs" in path.parents)]
    named = re.compile(
        r"^(>>> |\.\.\. )?\s*(\w+, )*(found|begun|told|asked)(, \w+)* = ", re.MULTILINE
    )
    assert named.search(">>> agent, found = reduce(agent)")
    bad = [path.name for path in pages if path.suffix == ".md" and named.search(path.read_text())]
    assert bad == []


def test_every_kind_of_text_is_read():
    read = {path.relative_to(ROOT).as_posix() for path, _ in texts()}
    assert {"bmrjax/__init__.pyi", "bmrjax/report/page.html.jinja"} <= read
    if (ROOT / "docs").is_dir():
        assert {
            "README.md",
            "docs/index.md",
            "docs/extensions/mathml.py",
            "tests/conftest.py",
        } <= read
    if (ROOT / "notebooks").is_dir():
        assert {"notebooks/01_quickstart.ipynb", "tools/release.sh", "Makefile"} <= read
        assert ".github/ISSUE_TEMPLATE/bug.yml" in read


@pytest.mark.parametrize(
    "text", ["is\n    # asked", "is\n> asked", '"is\\n",\n    "asked"', "is\nasked"]
)
def test_phrases_are_found_across_lines(text):
    assert re.search(r"\bis asked", joined(text))
