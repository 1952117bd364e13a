"""What deploy/RELEASES.md promises: no stable name disappears without a word, and what earlier versions wrote is read."""

import json
import re

import pytest

from harness import ROOT, expect, expect_equal
from stable import names

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
