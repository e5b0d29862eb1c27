"""The pages of the site: messages that they quote, pages that can be reached, names in the reference."""

import ast
import re
import sys
from pathlib import Path

import pytest

import bmrjax

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the documents are not installed")


def messages():
    """Return all texts of the code; what is filled in is a zero character."""
    found = set()
    for path in (ROOT / "bmrjax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [v.value if isinstance(v, ast.Constant) else "\0" for v in node.values]
                found.add("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def quoted(text):
    """Return the messages on a page: each is a block quotation of its own."""
    found = re.findall(r"(?:^> .*\n)+", text, re.MULTILINE)
    return [" ".join(line.removeprefix("> ") for line in block.splitlines()) for block in found]


def says(message, texts):
    """Whether one text of the code has the parts of a message in their order; "…" is filled in."""
    parts = [re.escape(part) for part in message.strip(" …").split("…")]
    pattern = re.compile(".*?".join(parts), re.DOTALL)
    return any(pattern.search(text) for text in texts)


def test_the_code_says_the_messages_of_the_troubleshooting_page():
    texts = messages()
    found = quoted((DOCS / "howto" / "troubleshooting.md").read_text())
    assert len(found) > 35
    assert [message for message in found if not says(message, texts)] == []
    assert not says("sparsify: … is a teapot", texts)


def finding_codes():
    """Return the codes of the findings that the package makes."""
    calls = [
        node
        for path in (ROOT / "bmrjax").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding"
    ]
    return {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}


def test_the_troubleshooting_page_has_every_finding():
    page = (DOCS / "howto" / "troubleshooting.md").read_text()
    headings = " ".join(re.findall(r"^### (.*)$", page, re.MULTILINE))
    codes = finding_codes()
    assert {"not-converged", "few-draws", "scales-not-integrated", "not-reached"} <= codes
    assert {code for code in codes if f"`{code}`" not in headings} == set()


def test_pages_link_to_terms_that_the_glossary_has():
    glossary = (DOCS / "glossary.md").read_text()
    body = glossary.partition(":::{glossary}\n")[2].partition("\n:::")[0]
    terms = {line.strip("`") for line in body.splitlines() if line and not line.startswith(" ")}
    assert {"held-out rows", "joint posterior", "finding", "delta_f"} <= terms
    unknown, pages = [], 0
    for page in written():
        used = re.findall(r"\{term\}`(?:[^`<]*<)?([^`<>]+)>?`", page.read_text())
        pages += bool(used)
        unknown += [f"{page.name}: {term}" for term in used if term not in terms]
    assert unknown == []
    assert pages >= 9


def entries(page):
    """Return the pages that the tables of contents of a page name."""
    blocks = re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(":")]


def written():
    """Return the committed pages; those that the build makes are not among them."""
    made = {DOCS / "reference", DOCS / "notebooks", DOCS / "_build"}
    return {p for p in DOCS.rglob("*.md") if not made & set(p.parents)}


def test_every_page_can_be_reached_from_the_home_page():
    found = {DOCS / "index.md"}
    waiting = [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        for entry in entries(page):
            path = page.parent / f"{entry}.md"
            if path in found or "*" in entry or entry.startswith("notebooks/"):
                continue
            assert path.exists(), f"{page.name} names {entry}, which is not there"
            found.add(path)
            waiting.append(path)
    assert written() == found


def test_links_between_pages_lead_to_a_page():
    broken = []
    for page in [*written(), ROOT / "README.md"]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            made = target.startswith(("http", "mailto")) or {"reference", "notebooks"} & set(
                Path(target).parts[:-1]
            )
            if not made and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_pictures_have_a_description():
    for page in [*written(), ROOT / "README.md"]:
        for text, target in re.findall(r"!\[([^]]*)\]\(([^)\s]+)\)", page.read_text()):
            assert len(text) > 30, f"{page.name}: {target}"


def test_the_readme_fits_on_two_screens():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert "](docs/images/digits.png)" in text


def test_pictures_of_the_site_are_small():
    pictures = [*(DOCS / "figures").glob("*.svg"), *(DOCS / "images").glob("*.png")]
    assert len(pictures) >= 10
    assert max(path.stat().st_size for path in pictures) < 150_000


@pytest.fixture(scope="module")
def extensions():
    sys.path.insert(0, str(DOCS / "extensions"))
    yield
    sys.path.remove(str(DOCS / "extensions"))


@pytest.fixture(scope="module")
def reference_pages(extensions):
    return __import__("reference_pages")


@pytest.fixture(scope="module")
def slim_pages(extensions):
    pytest.importorskip("sphinx")
    pytest.importorskip("PIL")
    return __import__("slim_pages")


def test_every_public_name_is_on_a_page_of_the_reference(reference_pages):
    pages = reference_pages.pages()
    shown = [value for page in pages.values() for value in page.names.values()]
    assert len(shown) > 240
    for name in bmrjax.__all__:
        value = getattr(bmrjax, name)
        if type(value).__name__ == "module":
            assert name in pages, name
        elif name != "__version__":
            assert any(value is other for other in shown), name


def test_a_page_of_the_reference_shows_examples_and_where_names_are_used(reference_pages):
    page = reference_pages.pages()["criteria"]
    everything = {n: v for p in reference_pages.pages().values() for n, v in p.names.items()}
    text = reference_pages.page_text(page, everything)
    assert ".. autoclass:: bmrjax.criteria.SpikeAndSlab" in text
    assert reference_pages.has_example(bmrjax.criteria.SpikeAndSlab)
    # Of those that return a result; the page names the first three.
    one = {"bmrjax.sparsify": bmrjax.sparsify}
    assert reference_pages.used_by("bmrjax.Result", bmrjax.Result, one) == ["bmrjax.sparsify"]
    assert len(reference_pages.used_by("bmrjax.Result", bmrjax.Result, everything)) == 3


def test_every_public_name_has_an_example_of_its_own(reference_pages):
    everything = {n: v for p in reference_pages.pages().values() for n, v in p.names.items()}
    missing = [
        name for name, v in everything.items() if not reference_pages.has_example(v, everything)
    ]
    assert missing == []
    # What another class has does not count, nor does prose.
    record = bmrjax.callbacks.Record
    assert not reference_pages.has_example(type("Kind", (record,), {}), {"Record": record})


def test_pages_lose_what_they_do_not_use_and_are_weighed(slim_pages, tmp_path):
    style = "@font-face{src:url(x/fontawesome/a.woff2)}a{color:red}.fa-x{top:0}b{background:url(../big.png)}"
    (tmp_path / "_static/styles").mkdir(parents=True)
    (tmp_path / "_static/scripts").mkdir()
    (tmp_path / "_static/styles/pydata.css").write_text(style)
    (tmp_path / "_static/big.png").write_bytes(bytes(slim_pages.LIMIT))
    page = '<link href="_static/styles/pydata.css" rel="stylesheet" /><script src="searchindex.js"></script>'
    (tmp_path / "index.html").write_text(page + '<summary><span class="toctree-toggle"></span>')
    (tmp_path / "search.html").write_text('<script src="searchindex.js"></script>')
    (tmp_path / "searchindex.js").write_text("1234567890")
    slim_pages.slim(tmp_path)
    left = "a{color:red}b{background:url(../big.png)}"
    assert (tmp_path / "_static/styles/pydata.css").read_text() == left
    text = (tmp_path / "index.html").read_text()
    assert "searchindex" not in text
    assert '<summary aria-label="Pages of this section">' in text
    assert slim_pages.weight(tmp_path / "search.html") == 48
    once = slim_pages.named(2 * '<div class="sidebar-primary-item">')
    assert once.count('aria-label="Home"') == 1
    assert slim_pages.named(once) == once  # pages of an earlier build
    assert slim_pages.too_heavy(tmp_path) == {
        "index.html": slim_pages.LIMIT + len(left) + len(text)
    }


def test_charts_draw_the_committed_rows():
    plt = pytest.importorskip("matplotlib.pyplot")
    sys.path.insert(0, str(DOCS / "figures"))
    try:
        with plt.rc_context():  # the site's style is not that of other figures
            claims = __import__("claims")
    finally:
        sys.path.remove(str(DOCS / "figures"))
    table = (ROOT / "benchmarks/results/summary/table.md").read_text()
    figure, ax = plt.subplots()
    try:
        for name, ratio in claims.files(ax)["bmrjax"].items():
            assert re.search(rf"{name} .*\| {ratio:.0f} ± ", table), name
        for name, ratio in claims.units(ax)["bmrjax"].items():
            assert re.search(rf"{name} .*\| {ratio:.1f} ± ", table), name
        removed, accuracy = claims.while_training(ax)["bmrjax"]
        assert f"accuracy {accuracy:.1f} ±" in table
        assert f"{removed:.1f} ±" in table
    finally:
        plt.close(figure)
