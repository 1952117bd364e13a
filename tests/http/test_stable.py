"""What deploy/RELEASES.md promises: no stable name disappears without a word, and what earlier versions wrote is read."""

import json
import re
import shutil

import pytest

import written

from harness import ROOT, expect, expect_equal
from stable import names

VERSIONS = sorted(path.name for path in (ROOT / "tests/stable").iterdir() if path.is_dir())
SNAPSHOT = json.loads((ROOT / "tests/stable/names.json").read_text())


def removed():
    """The names that CHANGELOG lists under "Removed"."""
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^### Removed\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([^`]+)`", "".join(sections)))


@pytest.fixture(scope="module", name="now")
def names_now():
    return names()


@pytest.mark.parametrize("subject", SNAPSHOT)
def test_stable_names_are_there(now, subject):
    expect(len(SNAPSHOT[subject]) > 10, f"the snapshot has too few {subject}")
    gone = set(SNAPSHOT[subject]) - set(now[subject]) - removed()
    expect_equal(sorted(gone), [], f"{subject} that are gone, and not under \"Removed\" in CHANGELOG.md")


def test_every_subject_is_kept(now):
    expect_equal(sorted(now), sorted(SNAPSHOT))


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_a_version_are_read(directory, version):
    """The configuration, journal, delta, converted table and report that it wrote."""
    folder = directory / version
    shutil.copytree(ROOT / "tests/stable" / version, folder)
    written.check(folder)


def test_this_version_writes_what_it_reads(directory):
    written.write(directory / "now")
    written.check(directory / "now")
