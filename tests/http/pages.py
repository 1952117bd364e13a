"""Markdown whose commands are run: what the tests of pages share.

The convention for all pages:

- a block ```sh is run by bash, in order, each in a clean shell; it must succeed. ```python is run
  by Debian's python3. Both see the repository's files and may leave files of their own behind.
- a block ```sh of nothing but `export` sets variables for all blocks below it.
- a block ```sh of nothing but `bagserve serve` starts a server for each line.
- ```json or ```text directly below is what it prints: compared as JSON values, or as text.
- <!-- not run: what runs it instead, or why nothing does --> directly above a block leaves it out, together
  with its output. The text above such a block says what its commands need.
- any other ```json must be JSON, and any ```python must compile. ```bash, ```shell, ```console and blocks
  without a language or without a fence are not used, so that no command escapes.

The server's port is 8000 in a network namespace of the test's own; where the system gives none,
another port takes the place of 8000 in the blocks.
"""

import ctypes
import dataclasses
import fcntl
import json
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess

from harness import PROGRAM, ROOT, Failure, expect, expect_equal

PORT = 8000
BLOCK_TIMEOUT_S = 60
COMMANDS = {"sh": ["bash", "-eu", "-c"], "python": ["/usr/bin/python3", "-c"]}
REFUSED = ("", "bash", "shell", "console")
NOT_RUN = re.compile(r"<!-- not run: [^>]*-->\s*$")
SERVE = re.compile(r"(?:\S*/)?bagserve serve (?!.*--check)")
STAND_INS = str(ROOT / "tests" / "http" / "stand_ins")
UNFENCED = re.compile(r"^(?: {4,}|\t)(?:\S*/)?(?:apt-get|bagserve|curl|docker|pip|python3)\b", re.MULTILINE)
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

    def says_what_it_needs(self):
        """Whether a reader of a block that is left out, who sees no comment, is told what its commands need."""
        return re.search(r"\bneeds?\b", re.sub(r"<!--.*?-->", "", self.above, flags=re.DOTALL))

    def servers(self):
        """The arguments of each server that the block starts; none if it does anything else."""
        lines = self.text.splitlines() if self.language == "sh" and not self.left_out() else []
        return [shlex.split(line, comments=True)[2:] for line in lines] if all(map(SERVE.match, lines)) else []


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


def check_block(block, output, directory, port, variables):
    """Runs a block in the directory, where a server listens on the port. `variables` of its environment are
    those that blocks above it exported, to which it adds its own."""
    expect(block.language not in REFUSED, f"```{block.language}: use ```sh")
    expect(not UNFENCED.search(block.above), f"a command without a fence above line {block.line}")
    if block.left_out():
        expect(block.says_what_it_needs(), "the text above the block does not say what it needs")
    elif block.language == "sh" and all(line.startswith("export ") for line in block.text.splitlines()):
        shell = dataclasses.replace(block, text=f"{block.text}env -0\n")
        pairs = run_block(shell, directory, port, variables).split("\0")
        variables |= dict(pair.split("=", 1) for pair in pairs if pair.startswith(("PATH=", "PYTHONPATH=")))
    elif block.language in COMMANDS:
        check_output(run_block(block, directory, port, variables), output)
    elif block.language == "json":
        json.loads(block.text)


def run_block(block, directory, port, variables):
    text = block.text.replace(f":{PORT}", f":{port}")
    # Pages find what is neither NumPy nor PyTorch among STAND_INS, and pip finds setuptools here.
    clean = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(directory), "LANG": "C.UTF-8",
             "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"} | variables
    clean["PYTHONPATH"] = ":".join(filter(None, [clean.get("PYTHONPATH"), STAND_INS]))
    if port != PORT:
        clean["BAGSERVE_PORT"] = str(port)
    done = subprocess.run(COMMANDS[block.language] + [text], cwd=directory, env=clean, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=BLOCK_TIMEOUT_S)
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
        if entry.name == "proto":  # where pip leaves files
            shutil.copytree(entry, directory / "proto", ignore=shutil.ignore_patterns("__pycache__"))
        elif entry.name not in ("build", ".git"):
            (directory / entry.name).symlink_to(entry)
    (directory / "build" / "release").mkdir(parents=True)
    (directory / "build" / "release" / "bagserve").symlink_to(PROGRAM)
