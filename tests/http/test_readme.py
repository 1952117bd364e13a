"""Runs what the DOCUMENTS below tell a reader to run (pages.py), against the demo tables on 127.0.0.1:8000."""

import re
import subprocess
import urllib.request

import numpy as np
import pytest

from harness import PROGRAM, ROOT, Server, expect, expect_equal, write_json
from pages import BLOCK_TIMEOUT_S, COMMANDS, PORT, blocks_of, check_block, lay_out, pairs_of, private_network

DOCUMENTS = ("README.md", "proto/PROTOCOL.md", "server/metrics/README.md", "deploy/SCALING.md", "tests/bench/README.md")
IN_TURN = ("config/TABLES.md", "config/FRESH.md", "config/SEQUENCES.md")  # test_pages.py runs these
FOLDERS = ("kernels", "proto", "config", "server", "tests", "deploy")
PAGES = sorted(str(path.relative_to(ROOT)) for path in
               [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
# Flags of other programs, and variables of the proxies' recipes, that pages name.
OTHER_FLAGS = {"--for", "--install", "--latency", "--now", "--system-site-packages", "--unix-socket"}
OTHER_VARIABLES = {"BAGSERVE_ONE", "BAGSERVE_TWO", "BAGSERVE_THREE"}
MODULES = {"bagserve_admin", "bagserve_client", "bagserve_dcp", "bagserve_export", "bagserve_torch", "bagserve_trainers"}


PAIRS = {name: pairs_of(blocks_of((ROOT / name).read_text())) for name in DOCUMENTS}
BLOCKS = [pytest.param(block, output, id=f"{name}:{block.line} ({block.language})")
          for name, pairs in PAIRS.items() for block, output in pairs]


def lay_out_own(directory):
    """The files that a reader brings: tables, a folder of models, a configuration."""
    (directory / "models").mkdir()
    (directory / "items").mkdir()
    for name in ("items.npy", "users.npy", "models/items.npy", "items/values.npy"):
        np.save(directory / name, np.ones((3, 2), np.float32))
    np.save(directory / "items/keys.npy", np.arange(3))
    np.save(directory / "counts.npy", np.arange(3))
    write_json(directory / "config.json", {"models": [{"name": "items", "path": "items.npy"}]})
    write_json(directory / "bagserve.json", {"models": [{"name": "items", "path": "items.npy"}]})


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    lay_out(shared_directory)
    lay_out_own(shared_directory)
    arguments = ["--demo"] + (["--port", str(PORT)] if private_network() else [])
    with Server(*arguments) as server:
        yield server


@pytest.mark.parametrize("name", DOCUMENTS)
def test_has_commands(name):
    ran = [b for b, _ in PAIRS[name] if b.language in COMMANDS and not b.left_out()]
    expect(ran, f"{name} has no command that is run")


@pytest.mark.parametrize("name", [page for page in PAGES if page not in DOCUMENTS + IN_TURN])
def test_commands_of_other_pages(name):
    """None is without a test: each says which one runs the same."""
    for block in blocks_of((ROOT / name).read_text()):
        expect(block.language not in COMMANDS or block.left_out(), f"{name}:{block.line} is not run")


@pytest.mark.parametrize("name", PAGES)
def test_what_runs_instead_exists(name):
    for block in blocks_of((ROOT / name).read_text()):
        if block.language in COMMANDS and block.left_out():
            named = re.findall(r"tests/[\w./]*\w", block.above[block.above.rindex("<!--"):])
            expect(named and all((ROOT / path).exists() for path in named), f"{name}:{block.line} names {named}")
            expect(block.says_what_it_needs(), f"{name}:{block.line} does not say what it needs")


def anchors_of(markdown):
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if link.startswith(("http:", "https:")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        expect(target.exists(), f"{link}: there is no such file")
        if anchor:
            target = target / "README.md" if target.is_dir() else target
            expect(anchor in anchors_of(target.read_text()), f"{link}: there is no such heading")


@pytest.mark.parametrize("name", PAGES)
def test_named_files_exist(name):
    """Files and scripts that a page names with their folder, from the top, exist."""
    named = re.findall(r"`((?:%s)/[\w.*/-]+)(?:`| )" % "|".join(FOLDERS), (ROOT / name).read_text())
    expect(name != "CONTRIBUTING.md" or len(named) > 40, f"{named}")
    expect_equal([path for path in named if not list(ROOT.glob(path))], [])


def test_named_flags_exist():
    """Every flag and variable that a page names is one of the program, or a script here takes it."""
    helps = "".join(subprocess.run([PROGRAM, *command.split()], capture_output=True, text=True, check=True,
                                   timeout=BLOCK_TIMEOUT_S).stdout
                    for command in ("serve --help-all", "health --help", "convert --help", "inspect --help",
                                    "verify --help"))
    scripts = "".join(path.read_text(errors="replace") for folder in ("tests", "deploy", "proto/clients", "server/feed")
                      for path in (ROOT / folder).rglob("*")
                      if path.is_file() and path.suffix in ("", ".py", ".c", ".sh"))
    flag = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
    flags = {*flag.findall(helps), *flag.findall(scripts)} | OTHER_FLAGS
    variables = set(re.findall(r"BAGSERVE_[A-Z0-9_]+", helps)) | OTHER_VARIABLES
    expect({"--table", "--quick"} <= flags and "BAGSERVE_PORT" in variables, "the options were not found")
    for name in PAGES:
        text = (ROOT / name).read_text()
        expect_equal((name, set(flag.findall(text)) - flags), (name, set()))
        expect_equal((name, set(re.findall(r"BAGSERVE_[A-Z0-9_]+", text)) - variables), (name, set()))


def test_named_metrics_exist(server):
    """Every metric that a page names is one that a server has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=BLOCK_TIMEOUT_S) as reply:
        families = set(re.findall(r"^# HELP (\S+)", reply.read().decode(), re.MULTILINE))
    # Families that are written only if rows may change.
    table = (ROOT / "server" / "metrics" / "table.h").read_text()
    families |= set(re.findall(r'"(bagserve_\w+)"', table.split("#define BAG_UPDATE_METRICS")[1].split("#define")[0]))
    # Families that a server writes only if models have shards.
    families |= set(re.findall(r'"(bagserve_shard_\w+)"', (ROOT / "server" / "metrics" / "expose.c").read_text()))
    # Families of bagserve-feed, whose table has their names without the beginning.
    families |= {f"bagserve_feed_{name}" for path in (ROOT / "server" / "feed").glob("*.[ch]")
                 for name in re.findall(r"\bX\((\w+), \"", path.read_text())}
    for name in PAGES:
        named = set(re.findall(r"\b(?:bagserve|nv_inference)_[a-z0-9_]+\b(?!-)", (ROOT / name).read_text()))
        expect_equal((name, {re.sub(r"_(bucket|count|sum)$", "", metric) if metric not in families else metric
                             for metric in named} - families - MODULES), (name, set()))


@pytest.mark.parametrize("block, output", BLOCKS)
def test_block(server, shared_directory, block, output):
    for arguments in block.servers():
        with Server(*arguments, cwd=shared_directory):
            pass
    if not block.servers():
        check_block(block, output, shared_directory, server.port, {})
