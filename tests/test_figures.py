"""The site's pictures, the numbers that they show, and what pages say of them agree."""

import html
import json
import math
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SCRIPTS = [
    DOCS / "images/digits.py",
    *(
        DOCS / f"figures/{name}.py"
        for name in "claims evidence mean_field plots verification".split()
    ),
]
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the pages are not installed")


def numbers_of(script):
    return json.loads(script.with_suffix(".json").read_text())


def everything():
    """Return what each picture shows, by name."""
    found = {}
    for script in SCRIPTS:
        found |= numbers_of(script)
    return found


def leaves(value):
    """Return the numbers and texts of nested dicts and lists, with the names of dicts."""
    if isinstance(value, dict):
        return [leaf for pair in value.items() for each in pair for leaf in leaves(each)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in leaves(each)]
    return [value]


def in_text(text):
    """Return the numbers of a text as they are written, without those of names such as LeNet-5."""
    text = re.sub(r"\b[A-Za-z]+-\d[\d-]*", "", text)
    return [found.replace(",", "") for found in re.findall(r"\d(?:[\d,]*\d)?(?:\.\d+)?", text)]


def numbers(value):
    found = []
    for leaf in leaves(value):
        found += [float(n) for n in in_text(leaf)] if isinstance(leaf, str) else [abs(float(leaf))]
    return found


def is_one_of(written, known):
    """Return whether a number, as it is written, is one of those known, rounded to its digits."""
    digits = len(written.partition(".")[2])
    half = 0.5 * 10**-digits * (1 + 1e-9)
    return any(abs(scale * value - float(written)) <= half for value in known for scale in (1, 100))


def said():
    """Return (page, picture, what the page says of it): the description, and a caption in italics."""
    found = []
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        text = page.read_text()
        for match in re.finditer(r"!\[([^]]*)\]\(([^)\s]+)\)\n*(\*[^*\n][^\n]*\*$)?", text, re.M):
            picture = Path(match[2]).stem
            found.append(
                (page.relative_to(ROOT).as_posix(), picture, f"{match[1]} {match[3] or ''}")
            )
    return found


def test_numbers_are_found_and_compared_as_they_are_written():
    text = "LeNet-300-100 keeps 1,950 of 17,610 weights: 97.5 %, not .5 (3.)"
    assert in_text(text) == ["1950", "17610", "97.5", "5", "3"]
    assert is_one_of("97.5", [97.49])
    assert is_one_of("94", [0.9444])
    assert not is_one_of("97.5", [96.9])
    assert numbers({"knee: 62.9 %": [-3.0, "a 5"]}) == [62.9, 3.0, 5.0]


def test_pages_say_of_pictures_what_they_show():
    known, wrong, seen = everything(), [], set()
    for page, picture, text in said():
        if picture in known:
            seen.add(picture)
            allowed = numbers(known[picture])
            wrong += [f"{page}, {picture}: {n}" for n in in_text(text) if not is_one_of(n, allowed)]
    assert wrong == []
    assert seen >= set(known) - {"code"}


def test_the_page_on_mean_field_has_the_counts_of_its_script():
    found = numbers_of(DOCS / "figures/mean_field.py")["removal"]
    text = " ".join((DOCS / "theory/mean_field.md").read_text().split())
    sentence = re.search(
        r"fewer columns than the exact evidence in (\d+), with as many in (\d+)", text
    )
    assert sentence is not None
    counts = [found["data sets, fewer"], found["data sets, as many"]]
    assert [int(n) for n in sentence.groups()] == counts
    assert found["data sets, more"] == 0


def words(picture):
    """Return all words of a picture in SVG."""
    found = re.findall(r"<(?:text|tspan)\b[^>]*>([^<]+)<", picture.read_text())
    return " ".join(html.unescape(" ".join(found)).split())


def test_pictures_of_the_gallery_have_the_texts_that_were_written_with_them():
    for name, texts in numbers_of(DOCS / "figures/plots.py").items():
        if name != "code":
            shown = words(DOCS / f"figures/{name}.svg")
            assert [text for text in texts if text not in shown] == [], name


def test_pictures_of_the_gallery_are_of_the_code_on_the_page():
    plots = module("plots")
    text = (DOCS / "plots.md").read_text()
    code = numbers_of(DOCS / "figures/plots.py")["code"]
    assert code == plots.digest(text), "run `python docs/figures/plots.py` and look at the pictures"
    assert plots.digest(text.replace("most=7", "most=8")) != code


def test_the_picture_of_the_readme_is_the_one_that_its_numbers_are_of():
    data, at, found = (DOCS / "images/digits.png").read_bytes(), 8, {}
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        if data[at + 4 : at + 8] == b"tEXt":
            name, _, text = data[at + 8 : at + 8 + size].partition(b"\0")
            found[name] = text
        at += size + 12
    assert json.loads(found[b"Description"]) == numbers_of(DOCS / "images/digits.py")["digits"]


def module(name):
    """Import a script of the figures, without its style for other figures."""
    plt = pytest.importorskip("matplotlib.pyplot")
    sys.path.insert(0, str(DOCS / "figures"))
    try:
        with plt.rc_context():
            return __import__(name)
    finally:
        sys.path.remove(str(DOCS / "figures"))


def test_charts_of_claims_show_the_committed_rows():
    claims, style = module("claims"), module("style")
    import matplotlib.pyplot as plt

    found = numbers_of(DOCS / "figures/claims.py")
    for name, draw in claims.CLAIMS.items():
        figure, ax = plt.subplots()
        drawn = style.rounded(draw(ax))
        plt.close(figure)
        assert differences(drawn, found[f"claim_{name}"], rtol=1e-3) == [], name


def differences(computed, committed, *, rtol=0.05):
    """Return where two files of numbers differ.

    Numbers may differ by a share, and those below one by 0.02 as well: networks end elsewhere on another
    processor. Texts have to be the same but for their numbers.
    """
    if isinstance(computed, dict) and isinstance(committed, dict) and [*computed] == [*committed]:
        pairs = [(name, computed[name], committed[name]) for name in computed]
        return [f"{n}: {d}" for n, a, b in pairs for d in differences(a, b, rtol=rtol)]
    if (
        isinstance(computed, list)
        and isinstance(committed, list)
        and len(computed) == len(committed)
    ):
        pairs = list(zip(computed, committed, strict=True))
        return [d for a, b in pairs for d in differences(a, b, rtol=rtol)]
    if isinstance(computed, str) and isinstance(committed, str):
        skeletons = [re.sub(r"\d[\d,.]*", "#", text) for text in (computed, committed)]
        values = zip(numbers(computed), numbers(committed), strict=False)
        same = skeletons[0] == skeletons[1] and not any(
            differences(a, b, rtol=rtol) for a, b in values
        )
        return [] if same else [f"{computed!r} now, {committed!r} in the file"]
    if isinstance(computed, int | float) and isinstance(committed, int | float):
        near = math.isclose(computed, committed, rel_tol=rtol, abs_tol=0.02)
        return [] if near else [f"{computed} now, {committed} in the file"]
    return [f"{computed} now, {committed} in the file"]


def test_differences_are_found():
    assert differences({"a": [1.0, "4 of 10"]}, {"a": [1.01, "4 of 10"]}) == []
    assert differences([96.9], [90.0]) == ["96.9 now, 90.0 in the file"]
    assert differences(["3 of 10 kept"], ["4 of 10 kept"]) != []
    assert differences({"a": 1}, {"b": 1}) != []
    assert differences(["bmi", "bp"], ["bmi", "bp", "s1"]) != []


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_compute_the_numbers_of_the_pictures(script, tmp_path):
    # With the compiler's defaults, as a reader runs them.
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run([sys.executable, "-W", "ignore", script, tmp_path], env=env, check=True)
    computed = json.loads((tmp_path / f"{script.stem}.json").read_text())
    found = differences(computed, numbers_of(script))
    assert found == [], f"run `python {script.relative_to(ROOT)}` and look at the pictures"
