"""Runs what the DOCUMENTS below tell a reader to run, against the demo tables on 127.0.0.1:8000.

The convention for all:

- a block ```sh is run by bash, in order, each in a clean shell; it must succeed. ```python is run
  by Debian's python3. Both see the repository's files and may leave files of their own behind.
- ```json or ```text directly below is what it prints: compared as JSON values, or as text.
- <!-- not run: why --> directly above a block leaves it out, together with its output.
- any other ```json must be JSON, and any ```python must compile. ```bash, ```shell and ```console
  are not used, so that no command escapes.

The server's port is 8000 in a network namespace of this test's own; where the system gives none,
another port takes the place of 8000 in the blocks.
"""

import ctypes
import dataclasses
import fcntl
import json
import os
import pathlib
import re
import socket
import struct
import subprocess
import urllib.request

import pytest

from harness import PROGRAM, ROOT, Failure, Server, expect, expect_equal

PORT = 8000
DOCUMENTS = ("README.md", "proto/PROTOCOL.md", "server/metrics/README.md")
FOLDERS = ("kernels", "proto", "config", "server", "tests", "deploy")
PAGES = sorted(str(path.relative_to(ROOT)) for path in
               [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
# Flags of other programs, and variables of the proxies' recipes, that pages name.
OTHER_FLAGS = {"--install", "--latency", "--unix-socket"}
OTHER_VARIABLES = {"BAGSERVE_ONE", "BAGSERVE_TWO", "BAGSERVE_THREE"}
MODULES = {"bagserve_admin", "bagserve_client", "bagserve_export", "bagserve_torch"}
BLOCK_TIMEOUT_S = 60
COMMANDS = {"sh": ["bash", "-eu", "-c"], "python": ["/usr/bin/python3", "-c"]}
REFUSED = ("bash", "shell", "console")
NOT_RUN = re.compile(r"<!-- not run: \S.*-->\s*$", re.DOTALL)
CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


@dataclasses.dataclass
class Block:
    line: int
    language: str
    text: str
    above: str  # what is between this block and the one before

    def left_out(self):
        return bool(NOT_RUN.search(self.above))


def blocks_of(markdown):
    """The fenced blocks of a document, in order."""
    found, above, opened = [], [], None
    for number, line in enumerate(markdown.splitlines(), 1):
        fence = re.fullmatch(r"```(\w*)\s*", line)
        if opened is None and fence:
            opened = Block(number, fence.group(1), "", "\n".join(above))
        elif opened is not None and line.rstrip() == "```":
            found.append(opened)
            above, opened = [], None
        elif opened is not None:
            opened.text += line + "\n"
        else:
            above.append(line)
    if opened is not None:
        raise Failure(f"the block in line {opened.line} has no end")
    return found


def pairs_of(blocks):
    """Each block with the block that shows its output, or None."""
    pairs, i = [], 0
    while i < len(blocks):
        block, below = blocks[i], blocks[i + 1] if i + 1 < len(blocks) else None
        shows = (block.language in COMMANDS and below is not None and not below.above.strip()
                 and below.language in ("json", "text"))
        pairs.append((block, below if shows else None))
        i += 2 if shows else 1
    return pairs


def check_block(block, output, directory, port):
    expect(block.language not in REFUSED, f"```{block.language}: use ```sh")
    if block.left_out():
        return
    if block.language in COMMANDS:
        check_output(run_block(block, directory, port), output)
    elif block.language == "json":
        json.loads(block.text)


def run_block(block, directory, port):
    text = block.text.replace(f":{PORT}", f":{port}")
    path = f"{pathlib.Path(PROGRAM).parent}:/usr/local/bin:/usr/bin:/bin"
    clean = {"PATH": path, "HOME": str(directory), "LANG": "C.UTF-8"}
    if port != PORT:
        clean["BAGSERVE_PORT"] = str(port)
    done = subprocess.run(COMMANDS[block.language] + [text], cwd=directory, env=clean, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, check=False,
                          timeout=BLOCK_TIMEOUT_S)
    if done.returncode:
        raise Failure(f"exit code {done.returncode}\n{text}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_output(printed, output):
    if output is None:
        return
    if output.language == "text":
        expect_equal(printed.strip(), output.text.strip(), f"output (line {output.line})")
        return
    try:
        value = json.loads(printed)
    except ValueError:
        raise Failure(f"printed {printed!r} instead of the JSON of line {output.line}") from None
    expect_equal(value, json.loads(output.text), f"output (line {output.line})")


def private_network():
    """Whether this process now has a network of its own, with nothing but loopback."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        print(f"no network namespace ({os.strerror(ctypes.get_errno())}): another port is put in")
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        flags, = struct.unpack_from("h", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))
    return True


def lay_out(directory):
    """The repository as a reader sees it, where files may be written that are gone afterwards."""
    for entry in ROOT.iterdir():
        if entry.name not in ("build", ".git"):
            (directory / entry.name).symlink_to(entry)
    (directory / "build" / "release").mkdir(parents=True)
    (directory / "build" / "release" / "bagserve").symlink_to(PROGRAM)


PAIRS = {name: pairs_of(blocks_of((ROOT / name).read_text())) for name in DOCUMENTS}
BLOCKS = [pytest.param(block, output, id=f"{name}:{block.line} ({block.language})")
          for name, pairs in PAIRS.items() for block, output in pairs]


@pytest.fixture(scope="module", name="server")
def serve(shared_directory):
    lay_out(shared_directory)
    arguments = ["--demo"] + (["--port", str(PORT)] if private_network() else [])
    with Server(*arguments) as server:
        yield server


@pytest.mark.parametrize("name", DOCUMENTS)
def test_has_commands(name):
    ran = [b for b, _ in PAIRS[name] if b.language in COMMANDS and not b.left_out()]
    expect(ran, f"{name} has no command that is run")


def anchors_of(markdown):
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
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
    scripts = "".join(path.read_text(errors="replace") for folder in ("tests", "deploy", "proto/clients")
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
    # Those that are written only where rows may change.
    table = (ROOT / "server" / "metrics" / "table.h").read_text()
    families |= set(re.findall(r'"(bagserve_\w+)"', table.split("#define BAG_UPDATE_METRICS")[1].split("#define")[0]))
    for name in PAGES:
        named = set(re.findall(r"\b(?:bagserve|nv_inference)_[a-z0-9_]+\b(?!-)", (ROOT / name).read_text()))
        expect_equal((name, {re.sub(r"_(bucket|count|sum)$", "", metric) if metric not in families else metric
                             for metric in named} - families - MODULES), (name, set()))


@pytest.mark.parametrize("block, output", BLOCKS)
def test_block(server, shared_directory, block, output):
    check_block(block, output, shared_directory, server.port)
