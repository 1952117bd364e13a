"""Runs the pages that go from a trained model to what is served, from the top to the end (pages.py).

The server that a block starts serves until the next such block or the end. TorchRec and Keras are not among
Debian's packages: stand_ins/ holds what the pages use of them.
"""

import numpy as np
import pytest

from harness import ROOT, Server, expect, expect_equal, run
from pages import COMMANDS, PORT, blocks_of, check_block, lay_out, pairs_of, private_network

pytest.importorskip("torch", reason="python3-torch is not installed")
DOCUMENTS = ("config/TABLES.md", "config/FRESH.md", "config/SEQUENCES.md")


@pytest.fixture(scope="module", name="port")
def choose_port():
    return PORT if private_network() else 0


def test_pip_is_that_of_a_virtual_environment():
    """Debian refuses to install into its own Python (PEP 668)."""
    for page in ROOT.rglob("*.md"):
        if "build" not in page.relative_to(ROOT).parts:
            for line in page.read_text().splitlines():
                expect("pip install" not in line.replace("venv/bin/pip install", ""), f"{page}: {line}")


def test_first_page_of_the_reference(directory):
    """Its file and its rules are valid, with a table and tokens beside them."""
    config, rules = (block.text for block in blocks_of((ROOT / "config/examples/README.md").read_text())[:3]
                     if block.language == "json")
    folder = directory / "models" / "items" / "1"
    folder.mkdir(parents=True)
    np.save(folder / "table.npy", np.ones((3, 2), np.float32))
    (folder / "config.json").write_text(rules)
    (directory / "tokens").touch(0o600)
    (directory / "tokens").write_text("infer 0123456789abcdef\n")
    (directory / "bagserve.json").write_text(config)
    ended = run("serve", "--config", directory / "bagserve.json", "--check")
    expect("The configuration is valid: 1 model, 24 bytes" in ended.stdout, ended.stderr)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_page(directory, port, name):
    lay_out(directory)
    server, ran, variables = None, 0, {}
    try:
        for block, output in pairs_of(blocks_of((ROOT / name).read_text())):
            for arguments in block.servers():
                if server:
                    server.stop()
                server = Server(*arguments, "--port", port, cwd=directory)
            if not block.servers():
                check_block(block, output, directory, server.port if server else PORT, variables)
            ran += block.language in COMMANDS and not block.left_out()
        expect(server and ran > 5, f"{ran} commands were run")
        server.stop()
        if name == DOCUMENTS[0]:
            installed = directory.glob("venv/lib/python3*/site-packages/bagserve_*.py")
            expect_equal({path.stem for path in installed}, {"bagserve_client", "bagserve_dcp", "bagserve_export", "bagserve_torch",
                                                                  "bagserve_trainers"})
    except BaseException:
        if server:
            print(server.last_lines())
            server.kill()
        raise
