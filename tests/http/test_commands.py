"""The commands that serve nothing and read no tables: help, completion, and health for probes."""

import contextlib
import re
import shutil
import socket
import subprocess
import threading

import pytest

from harness import (PROGRAM, TIMEOUT_S, Server, environment, expect, expect_equal, free_port, run)
from lifecycle import save


def test_help_and_version():
    for arguments, words in [
            (["--help"], ["serve", "health"]), (["serve", "-h"], ["--table"]), (["health", "-h"], ["--port"]),
            (["convert", "-h"], ["--row-format"]), (["inspect", "-h"], ["Usage"]),
            (["help", "verify"], ["Usage: bagserve verify", "--finite"]), (["help", "serve"], ["--table"]),
            (["help", "health"], ["--port"]), (["help", "bench"], ["Usage: bagserve bench"]),
            (["help", "completion"], ["Usage: bagserve completion bash|zsh|fish\n"]),
            (["help", "help"], ["Usage: bagserve help [COMMAND]\n"]), (["help", "--version"], ["--version"]),
            (["serve", "--version"], ["bagserve 0"]), (["serve", "--help"], [
                "--table", "--models", "--config", "--port", "BAGSERVE_PORT", "--help-all"]),
            (["serve", "--help-all"], ["--table", "--max-body-bytes", "BAGSERVE_MAX_BODY_BYTES"])]:
        ended = run(*arguments)
        expect_equal(ended.returncode, 0, f"{arguments}: {ended.stderr}")
        for word in words:
            expect(word in ended.stdout, f"{arguments}: no {word!r} in {ended.stdout!r}")
    said = run("--version").stdout
    words = r"bagserve \d+\.\d+\.\d+\ncommit: ([0-9a-f]{40}|unknown)\ncompiler: (gcc|clang) \d.*\n" \
            r"libraries: libmicrohttpd \d.*, libuv 1\..*, cJSON 1\..*,\n    zlib 1\..*, nettle 3\.\d+\n"
    expect(re.fullmatch(words, said), said)
    expect_equal(run("version").stdout, said)
    for arguments in ([], ["servee"], ["help", "servee"]):
        ended = run(*arguments)
        expect(ended.returncode != 0 and "serve" in ended.stderr, f"{arguments}: {ended}")
    for shell in ([], ["csh"]):
        ended = run("completion", *shell)
        expect_equal((ended.returncode, ended.stderr),
                     (2, "bagserve: completion needs the name of a shell: bash, zsh or fish\n"))
    expect("unknown command 'inspct'; did you mean 'inspect'?" in run("inspct").stderr, "no suggestion")


def test_help_of_flags():
    """A flag is found by its name, with dashes or without; of all commands that have it."""
    for topic in ("check", "--check"):
        ended = run("help", topic)
        expect_equal((ended.returncode, ended.stderr), (0, ""))
        expect("  --check\n" in ended.stdout and "An option of 'bagserve serve'" in ended.stdout, ended.stdout)
        expect("  --check N\n" in ended.stdout and "A flag of 'bagserve bench'" in ended.stdout, ended.stdout)
    expect_equal(run("help", "options").stdout, run("serve", "--help-all").stdout)
    expect_equal(run("help", "max_body_bytes").stdout, run("help", "max-body-bytes").stdout)
    ended = run("help", "sweeep")
    expect_equal((ended.returncode, ended.stdout), (2, ""))


def test_silent_if_nothing_is_near():
    """A question that does not fit is worse than none."""
    for arguments, said in ((["xyzzy"], "unknown command 'xyzzy'; 'bagserve help' lists them\n"),
                            (["serve", "--xyzzy"], "unknown flag --xyzzy; --help-all lists them\n"),
                            (["bench", "--xyzzy", "x"], "unknown flag --xyzzy; --help lists all\n")):
        ended = run(*arguments)
        expect_equal((ended.returncode, ended.stderr), (2, f"bagserve: {said}"))


@pytest.mark.parametrize("arguments", [["help"], ["serve", "--help"], ["serve", "--help-all"], ["health", "--help"]])
def test_help_fits_a_terminal(arguments):
    lines = run(*arguments).stdout.splitlines()
    expect_equal([line for line in lines if len(line) > 80 or line.endswith(" ")], [])


def test_manual_is_clean(directory):
    """groff has no warning, and no name is broken at the end of a line."""
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    (directory / "bagserve.1").write_text(run("manual").stdout)
    ended = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-rLL=78n", directory / "bagserve.1"], text=True,
                           capture_output=True, check=False, timeout=TIMEOUT_S)
    expect_equal((ended.returncode, ended.stderr), (0, ""))
    expect_equal([line for line in ended.stdout.splitlines() if line.endswith(("-", "\u2010"))], [])


COMPLETERS = {
    "bash": """source $1; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _bagserve
               printf '%s\\n' "${COMPREPLY[@]}" """,
    "zsh": """compadd() { [[ $1 == -- ]] && shift; print -rl -- ${(M)@:#${words[CURRENT]}*} }
              _files() { print -rl -- *(N) }; script=$1; shift; words=("$@"); CURRENT=$#; source $script""",
    "fish": """source $argv[1]; complete -C "$argv[2..]" | string replace -r '\\t.*' ''"""}


@pytest.mark.parametrize("shell", COMPLETERS)
def test_completions(directory, shell):
    """Commands, flags of those that take options, and the words of a flag."""
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    script = directory / "script"
    script.write_text(run("completion", shell).stdout)

    def offered(*words):
        extra = [] if shell == "fish" else [shell]
        ended = subprocess.run([shell, "-c", COMPLETERS[shell], *extra, script, "bagserve", *words],
                               text=True, capture_output=True, check=False, timeout=TIMEOUT_S, cwd=directory)
        expect_equal(ended.stderr, "")
        return set(ended.stdout.split())

    expect_equal(offered("serve", "--journal-"), {"--journal-dir", "--journal-kept-bytes", "--journal-sync"})
    expect_equal(offered("serve", "--model-control", ""), {"none", "explicit", "poll"})
    expect_equal(offered("health", "--unix-p"), {"--unix-permissions"})
    expect_equal(offered("completion", ""), {"bash", "zsh", "fish"})
    expect("convert" in offered("con"), offered("con"))
    for flag, takes_file in (("--config", True), ("--token-file", True), ("--demo", False),
                             ("--check", False), ("--help", False)):
        expect_equal("script" in offered("serve", flag, ""), takes_file, f"files behind {flag}")
    listed = set(re.findall(r"^  (--[\w-]+)", run("serve", "--help-all").stdout, re.MULTILINE))
    expect_equal(offered("serve", "--"), listed)
    for command in ("convert", "inspect", "verify"):
        text = re.sub(r"\|\n +", "|", run(command, "--help").stdout)  # values of a flag that are wrapped
        listed = re.findall(r"^  (--[\w-]+)(?: (\S+))?$", text, re.MULTILINE)
        expect(("--help", "") in listed, f"{command} --help lists {listed}")
        expect_equal(offered(command, "--"), {flag for flag, _ in listed})
        for flag, follows in listed:
            if "|" in follows:
                expect_equal(offered(command, flag, ""), set(follows.split("|")))


# ---- health -----------------------------------------------------------------------------------
def test_health_command(directory):
    path = save(directory / "items.npy")
    with Server("--table", f"items={path}") as server:
        healthy = run("health", "--port", server.port)
        expect_equal(healthy.returncode, 0, healthy.stderr)
        port = {"BAGSERVE_PORT": str(server.port)}
        expect_equal(run("health", variables=port).returncode, 0, "port by the environment")
    ended = run("health", "--port", free_port())
    expect_equal((ended.returncode, len(ended.stderr.splitlines())), (1, 1), ended.stderr)
    for wrong in (("--prot", 1), ("--port", "x"), ("--config", directory / "missing.json")):
        ended = run("health", *wrong)
        expect_equal((ended.returncode, len(ended.stderr.splitlines())), (2, 1), ended.stderr)


def health_of(answer):
    """What `bagserve health` says of a server that answers so and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(TIMEOUT_S)
        port = str(other.getsockname()[1])
        with subprocess.Popen([PROGRAM, "health", "--port", port], env=environment(),
                              stderr=subprocess.PIPE) as health:
            connection, _ = other.accept()
            with connection:
                connection.settimeout(TIMEOUT_S)
                connection.recv(4096)
                connection.sendall(answer)
            told = health.stderr.read()
            expect_equal(health.wait(TIMEOUT_S), 1, f"exit code for {answer}")
            return told


def test_health_of_strangers():
    """Not ready, no HTTP at all, and silence until the connection closes are all unhealthy; what a
    stranger sends cannot command the terminal, nor make lines of its own."""
    status = b"HTTP/1.1 503 Service Unavailable"
    for answer, told in (
            (status + b"\r\nContent-Length: 0\r\n\r\n", b"not ready: " + status),
            (status + b'\r\n\r\n{"error":"is loaded"}', b'not ready: {"error":"is loaded"}'),
            (b"hello\r\n", b"not ready: hello"),
            (b"HTTP/1.1 2000 OK\r\n\r\n", b"not ready: HTTP/1.1 2000 OK"),
            (b"\r\n \n", b"not ready: "),
            (b"", b"the connection was closed without an answer"),
            (status + b"\r\n\r\n\x1b[2J\x7f\xc2\x9bbagserve: \r\nfine\t\n", b"not ready: ?[2J???bagserve: ??fine")):
        expect_equal(health_of(answer), b"bagserve: " + told + b"\n", f"what is said of {answer}")


def test_health_waits_no_longer_than_it_says(directory):
    """Neither for an answer that comes byte by byte, nor for a server that accepts nothing."""
    stop = threading.Event()

    def drip(listener):
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            while not stop.wait(0.2):
                connection.sendall(b"H")

    with socket.create_server(("127.0.0.1", 0)) as slow, socket.socket(socket.AF_UNIX) as full, \
            socket.socket(socket.AF_UNIX) as waiting:
        dripping = threading.Thread(target=drip, args=(slow,), daemon=True)
        dripping.start()
        full.bind(str(directory / "socket"))
        full.listen(0)
        waiting.connect(str(directory / "socket"))
        for arguments in (("--port", slow.getsockname()[1]), ("--unix", directory / "socket")):
            ended = run("health", *arguments, timeout_s=20)
            expect_equal((ended.returncode, ended.stderr), (1, "bagserve: no answer within 2 seconds\n"))
        stop.set()
        dripping.join()
