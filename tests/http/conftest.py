"""Fixtures and options that all scripts here share.

The program under test is the one that the environment variable BAGSERVE names, or
build/release/bagserve. A script that has one server for all of its tests defines a fixture `server`
of its own, with the scope "module"; `client` connects to that one.
"""

import numpy as np
import pytest

import harness
from fixtures import empty_directory, pytest_runtest_makereport, root, shared_directory  # noqa: F401
from v2 import Client


def pytest_addoption(parser):
    group = parser.getgroup("bagserve")
    group.addoption("--requests", type=int, help="test_drain.py: how many requests a round has")
    group.addoption("--rounds", type=int, default=3, help="test_drain.py: how many rounds")
    group.addoption("--clients", type=int, help="test_vanish.py: how many clients vanish")
    group.addoption("--folders", type=int, default=400, help="test_damaged_exports.py: how many are damaged")
    group.addoption("--versions", type=int, default=12, help="test_hour.py: how many are trained")
    group.addoption("--period", type=float, default=0.0, help="test_hour.py: seconds from one to the next, at least")
    group.addoption("--server-option", action="append", default=[], metavar="OPTION",
                    help="test_drain.py: one more argument for the server; may be repeated")


@pytest.fixture(scope="module")
def rng():
    """Random numbers; the seed is printed with a failure."""
    return np.random.default_rng(harness.seed())


@pytest.fixture(name="client")
def connect(server):
    """A connection for each test, so that a broken answer does not reach the next one."""
    with Client(server) as client:
        yield client
