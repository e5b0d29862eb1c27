"""Pages in headless Chromium."""

import contextlib
import shutil

import pytest


@contextlib.contextmanager
def opened(path, folder, *, width=1200, dark=False):
    """Open a file in a browser of its own, and skip the test where there is none.

    Args:
        path: Of the page.
        folder: An empty one, for the browser.
        width: Of the window, in pixels.
        dark: Whether the reader prefers dark pages.
    """
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if browser is None or driver is None:
        pytest.skip("Chromium and its driver are not installed (Debian: chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (
        "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
        f"disable-component-update disable-sync user-data-dir={folder}"
    ).split():
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    page = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        page.get(path.absolute().as_uri())
        yield page
    finally:
        page.quit()
