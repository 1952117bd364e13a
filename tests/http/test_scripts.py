"""The scripts of tests/ that people run: each says what it does, and takes the options that pages name with it."""

import os
import re
import subprocess

import pytest

from harness import ROOT, TIMEOUT_S, expect, expect_equal
from pages import blocks_of

SCRIPTS = sorted(str(path.relative_to(ROOT)) for folder in ("tests", "tests/bench", "tests/deploy", "tests/kernels")
                 for path in (ROOT / folder).iterdir() if path.is_file() and os.access(path, os.X_OK))
# CTest runs these.
INTERNAL = {"tests/kernels/aarch64", "tests/kernels/encoders", "tests/kernels/pytorch", "tests/kernels/symbols"}
PAGES = ("CONTRIBUTING.md", "tests/README.md", "tests/bench/README.md", "deploy/RELEASES.md")


def commands_of(page):
    """Commands in the prose and in blocks, without what stands in quotes and what follows `--`."""
    text = (ROOT / page).read_text()
    lines = re.findall(r"`([^`\n]+)`", text)
    lines += [line for block in blocks_of(text) if block.language in ("sh", "")
              for line in block.text.replace("\\\n", "").splitlines()]
    return [re.sub(r"""\s+--\s.*|\s+#.*|"[^"]*"|'[^']*'""", "", line) for line in lines]


@pytest.mark.parametrize("script", [script for script in SCRIPTS if script not in INTERNAL])
def test_help(script):
    ended = subprocess.run([ROOT / script, "--help"], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    expect_equal((ended.returncode, ended.stderr), (0, ""), script)
    expect(os.path.basename(script) in ended.stdout, ended.stdout)
    named = {flag for page in PAGES for command in commands_of(page)
             for arguments in re.findall(rf"(?:^|[\s;])(?:\./)?{script}(?=\s|$)(.*)", command)
             for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", arguments)}
    expect_equal(sorted(flag for flag in named if not re.search(rf"{flag}(?![\w-])", ended.stdout)), [], script)


def test_scripts_that_a_release_runs():
    """They begin with the name of their interpreter."""
    for script in re.findall(r"`(tests/http/\w+\.py)", (ROOT / "deploy/RELEASES.md").read_text()):
        if not os.path.basename(script).startswith("test_"):
            expect(os.access(ROOT / script, os.X_OK) and (ROOT / script).read_text().startswith("#!/usr/bin/python3\n"), script)
