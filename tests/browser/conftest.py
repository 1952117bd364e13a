"""The browser, one for all tests, and what each test leaves behind: no error in its console, and no request to
elsewhere than to the server."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "http"))

from fixtures import empty_directory, pytest_runtest_makereport, shared_directory  # noqa: E402,F401
from page import Browser  # noqa: E402


@pytest.fixture(scope="session", name="one_browser")
def start_browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(name="browser")
def use_browser(one_browser):
    one_browser.begin()
    yield one_browser
    one_browser.check_end()
