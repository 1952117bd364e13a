"""What all scripts get that run the program, whatever they ask it by: directories, and the servers' last words."""

import pytest

import harness


@pytest.fixture(name="directory")
def empty_directory():
    """An empty directory for one test."""
    with harness.scratch() as path:
        yield path


@pytest.fixture
def root(directory):
    """The folder of models there, which the test makes."""
    return directory / "models"


@pytest.fixture(scope="module")
def shared_directory():
    """An empty directory for all tests of a file."""
    with harness.scratch() as path:
        yield path


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Adds what the servers of fixtures logged last to a failure; others print it themselves."""
    report = (yield).get_result()
    if report.failed:
        for server in harness.Server.entered:
            report.sections.append((f"log of server {server.process.pid}", server.last_lines()))
