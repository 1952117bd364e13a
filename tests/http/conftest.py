"""Fixtures and options that all scripts here share.

The program under test is the one that the environment variable BAGSERVE names, or
build/release/bagserve. A script that has one server for all of its tests defines a fixture `server`
of its own, with the scope "module"; `client` connects to that one.
"""

import numpy as np
import pytest

import harness
from v2 import Client


def pytest_addoption(parser):
    group = parser.getgroup("bagserve")
    group.addoption("--requests", type=int, help="test_drain.py: how many requests a round has")
    group.addoption("--rounds", type=int, default=3, help="test_drain.py: how many rounds")
    group.addoption("--clients", type=int, help="test_vanish.py: how many clients vanish")
    group.addoption("--server-option", action="append", default=[], metavar="OPTION",
                    help="test_drain.py: one more argument for the server; may be repeated")


@pytest.fixture(name="directory")
def empty_directory():
    """An empty directory for one test."""
    with harness.scratch() as path:
        yield path


@pytest.fixture(scope="module")
def shared_directory():
    """An empty directory for all tests of a file."""
    with harness.scratch() as path:
        yield path


@pytest.fixture(scope="module")
def rng():
    """Random numbers; the seed is printed with a failure."""
    return np.random.default_rng(harness.seed())


@pytest.fixture(name="client")
def connect(server):
    """A connection for each test, so that a broken answer does not reach the next one."""
    with Client(server) as client:
        yield client


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Adds what the servers of fixtures logged last to a failure; others print it themselves."""
    report = (yield).get_result()
    if report.failed:
        for server in harness.Server.entered:
            report.sections.append((f"log of server {server.process.pid}", server.last_lines()))
