"""One real browser for all tests."""

import shutil

import pytest

SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)


@pytest.fixture(scope="session")
def browser():
    """The installed Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=found, args=list(SWITCHES))
        yield chromium
        chromium.close()
