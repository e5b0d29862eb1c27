"""The check of the built site's links, and the links from source code to the reference."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKS = ROOT / "tools" / "links.py"
pytestmark = pytest.mark.skipif(not LINKS.exists(), reason="the tools are not installed")


def loaded(path):
    """Import a script that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def links():
    return loaded(LINKS)


@pytest.fixture
def site(tmp_path):
    """A site with one broken link of each kind."""
    site = tmp_path / "site"
    (site / "more").mkdir(parents=True)
    (tmp_path / "outside.html").write_text("")
    (site / "picture.png").write_text("")
    (site / "index.html").write_text(
        '<h1 id="top">a</h1><a href="#top">1</a><a href="#gone">2</a><a href="more/b.html#x%20y">3</a>'
        '<a href="more/b.html#z">4</a><a href="c.html">5</a><img src="picture.png"><img src="no.png">'
        '<a href="https://example.org/no">6</a><a href="mailto:a@example.org">7</a><a href="more/">8</a>'
        '<a href="../outside.html">9</a>'
    )
    (site / "more" / "b.html").write_text('<p id="x y"></p><a href="../index.html#top">1</a>')
    (site / "more" / "index.html").write_text("")
    return site


def test_links_that_lead_nowhere_are_found_and_no_others(links, site):
    assert links.broken(site, site.rglob("*.html")) == [
        "index.html: #gone: the page has no such anchor",
        "index.html: more/b.html#z: the page has no such anchor",
        "index.html: c.html: there is no such file",
        "index.html: no.png: there is no such file",
        "index.html: ../outside.html: there is no such file",
    ]


def test_the_command_counts_and_fails(links, site, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["links.py", str(site)])
    with pytest.raises(SystemExit) as stopped:
        links.main()
    assert stopped.value.code == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "links: 3 pages, 12 links, 5 broken; 2 addresses elsewhere, not followed"
    (site / "index.html").write_text('<a href="more/b.html">1</a>')
    (site / "more" / "b.html").write_text("")
    with pytest.raises(SystemExit) as stopped:
        links.main()
    assert stopped.value.code == 0
    monkeypatch.setattr(sys, "argv", ["links.py", str(site / "none")])
    with pytest.raises(SystemExit, match="run `make docs` first"):
        links.main()


def test_links_from_source_code_lead_to_the_anchor_that_is_there(tmp_path):
    pytest.importorskip("sphinx")
    source_links = loaded(ROOT / "docs" / "extensions" / "source_links.py")
    (tmp_path / "reference.html").write_text(
        '<dt id="bmrjax.handlers.hide"><dt id="bmrjax.Result">'
    )
    page = tmp_path / "code.html"
    names = ("Result", "hide", "gone")
    page.write_text(
        "".join(
            f'<a class="viewcode-back" href="reference.html#bmrjax.{name}">[docs]</a>'
            for name in names
        )
    )
    assert source_links.mended(page) == (
        '<a class="viewcode-back" href="reference.html#bmrjax.Result">[docs]</a>'
        '<a class="viewcode-back" href="reference.html#bmrjax.handlers.hide">[docs]</a>[docs]'
    )


@pytest.mark.parametrize(("text", "status"), [("short words " * 40, 0), ("w" * 200, 1)])
def test_a_page_wider_than_a_phone_is_named(tmp_path, text, status):
    pytest.importorskip("selenium")
    if None in (shutil.which("chromium"), shutil.which("chromedriver")):
        pytest.skip("Chromium and its driver are not installed")
    head = '<!doctype html><meta name="viewport" content="width=device-width, initial-scale=1">'
    table = '<div style="overflow-x: auto"><table><tr><td>' + "w" * 200 + "</td></tr></table></div>"
    (tmp_path / "index.html").write_text(
        f'{head}<main id="main-content"><p>{text}</p>{table}</main>'
    )
    tool = Path(__file__).parents[1] / "tools" / "phone.py"
    run = subprocess.run([sys.executable, str(tool), str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == status, run.stderr
    assert f"phone: 1 pages at 390 pixels, {status} too wide" in run.stdout
    assert ("index.html: " in run.stdout) == bool(status)
