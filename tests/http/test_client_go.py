"""The Go client: the table of cases that all clients pass (proto/clients/cases.json), its own tests in go/, which
say what becomes of connections, and its example."""

import json
import os
import shutil
import subprocess

import pytest

from cases import CASES, check, read_line, serve_cases
from clients import Proxy, address, serve_with_tokens  # noqa: F401
from harness import ROOT, TIMEOUT_S, expect, expect_equal

HERE = ROOT / "tests" / "http" / "go"
pytestmark = pytest.mark.skipif(not shutil.which("go"), reason="golang-go is not installed")


def run_go(*arguments, **variables):
    """What the tool prints; it asks no network."""
    done = subprocess.run(["go", *map(str, arguments)], cwd=HERE, capture_output=True, text=True, check=False,
                          timeout=10 * TIMEOUT_S, env=os.environ | {
                              "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"} | variables)
    expect_equal((done.returncode, done.stderr), (0, ""), f"go {arguments[0]}: {done.stdout}")
    return done.stdout


def test_cases(directory):
    run_go("build", "-o", directory / "cases", ".")
    (directory / "served").mkdir()
    with serve_cases(directory / "served") as (inference, admin):
        done = subprocess.run([directory / "cases", ROOT / "proto" / "clients" / "cases.json", inference, admin],
                              capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    expect_equal((done.returncode, done.stderr), (0, ""), "the program")
    for case, line in zip(CASES, done.stdout.splitlines(), strict=True):
        check(case, read_line(line))


def test_connections(guarded, directory):
    """go/connections_test.go, with a server that wants tokens, plain and behind TLS."""
    with Proxy(guarded, directory) as proxy:
        said = run_go("test", "-count=1", "-v", "./...", BAGSERVE_GUARDED=f"http://{address(guarded)}",
                      BAGSERVE_TLS=proxy.url, BAGSERVE_CERTIFICATE=str(proxy.certificate))
    expect("--- PASS" in said and "--- SKIP" not in said, said)


def test_layout():
    """As gofmt lays it out, and without what vet finds."""
    files = [ROOT / "proto" / "clients" / "go" / "bagserve.go", *HERE.glob("*.go")]
    done = subprocess.run(["gofmt", "-l", *files], capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    expect_equal(done.stdout, "", "files that gofmt would change")
    run_go("vet", "./...", "bagserve")
