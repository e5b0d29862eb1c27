"""Open every page of the built site at the width of a phone, and name what is cut off.

    python tools/phone.py docs/_build

Needs Chromium, its driver, and selenium. What scrolls by itself, such as a table, may be wider. Ends with
status 1 if a page is wider than the screen.
"""

import argparse
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTH = 390
# The width of the page, and the first element that reaches beyond the screen.
MEASURE = """
const scrolls = e => ["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowX);
const cut = e => {
  if (!e.getBoundingClientRect().width || e.getBoundingClientRect().right <= WIDTH + 1) return false;
  for (let q = e.parentElement; q; q = q.parentElement)
    if (scrolls(q) && q.getBoundingClientRect().right <= WIDTH + 1) return false;
  return true;
};
const found = [...document.querySelectorAll("#main-content *")].filter(
  e => !e.closest(".bd-sidebar-secondary") && !e.children.length && cut(e));
return [document.documentElement.scrollWidth, found.length ? found[0].textContent.slice(0, 80) : ""];
""".replace("WIDTH", str(WIDTH))


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Start Chromium with a window of a phone; SystemExit where there is none."""
    found = [shutil.which(name) for name in ("chromium", "chromedriver")]
    try:
        from selenium import webdriver
    except ImportError:
        found = [None]
    if None in found:
        raise SystemExit(
            "phone: needs Chromium, its driver, and pip install selenium; nothing was checked."
        )
    options = webdriver.ChromeOptions()
    options.binary_location = str(found[0])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in ("headless", "no-sandbox", "disable-gpu", f"user-data-dir={profile}"):
            options.add_argument(f"--{flag}")
        page = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(found[1])))
        try:
            size = {"width": WIDTH, "height": 800, "deviceScaleFactor": 1, "mobile": True}
            page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            yield page
        finally:
            page.quit()


def main() -> None:
    """Check a site."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("site", type=Path, help="folder with the built pages")
    site = parser.parse_args().site
    # Pages of source code scroll as a whole.
    paths = [p for p in sorted(site.rglob("*.html")) if "_modules" not in p.parts]
    if not paths:
        raise SystemExit(f"phone: there are no pages in {site}; run `make docs` first.")
    wide = 0
    with browser() as page:
        for path in paths:
            page.get(path.resolve().as_uri())
            width, text = page.execute_script(MEASURE)
            if width > WIDTH or text:
                wide += 1
                print(f"{path.relative_to(site)}: {width} pixels wide; the first beyond: {text!r}")
    print(f"phone: {len(paths)} pages at {WIDTH} pixels, {wide} too wide")
    sys.exit(bool(wide))


if __name__ == "__main__":
    main()
