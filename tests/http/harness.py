"""The program under test: started, watched, stopped; and the temporary files it is given.

Nothing here sleeps: every wait is for a line on standard error, for the end of the process, or for
bytes on a socket, and every wait is bounded.
"""

import contextlib
import ctypes
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from ports import free_port  # noqa: F401  pylint: disable=unused-import

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("BAGSERVE", str(ROOT / "build" / "release" / "bagserve"))

_image = pathlib.Path(PROGRAM).read_bytes() if os.path.exists(PROGRAM) else b""
# Sanitizers cost time and memory; tests that count either ask these.
ASAN = b"__asan_init" in _image
TSAN = b"__tsan_init" in _image
SANITIZED = ASAN or TSAN
del _image

# Generous: they only bound how long a failure takes.
TIMEOUT_S = 180 if SANITIZED else 60
SANITIZER_REPORT = re.compile(r"(Address|Leak|Thread|UndefinedBehavior)Sanitizer|runtime error:")
PR_SET_PDEATHSIG = 1


class Failure(AssertionError):
    """A test's finding, with everything that is needed to understand it."""


def scaled(count, at_least=1):
    """`count` as it is, or a tenth of it under a sanitizer; TEST_SCALE overrides the factor."""
    factor = float(os.environ.get("TEST_SCALE", "0.1" if SANITIZED else "1"))
    return max(at_least, int(count * factor))


def seed():
    """A seed for random input: printed, and taken from TEST_SEED to repeat a run."""
    value = int(os.environ.get("TEST_SEED", int.from_bytes(os.urandom(4), "little")))
    print(f"seed: TEST_SEED={value}", flush=True)
    return value


@functools.lru_cache(None)
def reads_chunks():
    """Whether the program's libmicrohttpd is 1.0 or newer: with older ones chunks are answered 411."""
    libraries = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout
    library = ctypes.CDLL(re.search(r"libmicrohttpd\.so\S* => (\S+)", libraries)[1])
    library.MHD_get_version.restype = ctypes.c_char_p
    return int(library.MHD_get_version().split(b".")[0]) >= 1


def environment(**changes):
    """This process's environment without the program's own variables, plus `changes`. A hard stop
    leaves threads behind on purpose, of which ThreadSanitizer would report those that have just
    ended."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BAGSERVE")}
    clean["TSAN_OPTIONS"] = (f"report_thread_leaks=0 suppressions={ROOT}/tests/http/tsan.supp "
                             + clean.get("TSAN_OPTIONS", ""))
    return clean | changes


@functools.cache
def has_openblas():
    """Whether the library is installed that models with a projection need; ./tests/run does without it."""
    return "libopenblas.so.0 " in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True,
                                                 check=True).stdout


def served(models):
    """Those of the models, by name or in a list, that this machine can serve."""
    if has_openblas():
        return models
    if isinstance(models, dict):
        return {name: model for name, model in models.items() if "projection" not in model}
    return [model for model in models if "projection" not in model]


def scratch():
    """A directory that is removed at the end of a `with` block, as a pathlib.Path."""

    @contextlib.contextmanager
    def manage():
        with tempfile.TemporaryDirectory(prefix="bagserve-test-") as name:
            yield pathlib.Path(name)

    return manage()


def write_json(path, value):
    pathlib.Path(path).write_text(json.dumps(value))
    return str(path)


def _die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run(*arguments, timeout_s=TIMEOUT_S, **options):
    """Runs the program to its end; the result has returncode, stdout and stderr as text."""
    try:
        return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                              timeout=timeout_s, env=environment(**options.pop("variables", {})),
                              preexec_fn=_die_with_parent, **options)
    except subprocess.TimeoutExpired as expired:
        raise Failure(f"{expired.cmd} did not end within {timeout_s} s; it wrote: "
                      f"{expired.stdout!r} {expired.stderr!r}") from None


def expect_equal(got, want, what="got"):
    if got != want:
        raise Failure(f"{what}: {got!r} instead of {want!r}")


def expect(condition, text):
    if not condition:
        raise Failure(text)


def expect_words(text, words):
    """Each of the words stands alone in the text."""
    missing = [w for w in words if not re.search(rf"(?<![\w-]){re.escape(w)}(?!\w)", text)]
    if missing:
        raise Failure(f"the message lacks {missing}: {text}")


class Server:
    """`bagserve serve` on a port of its own.

    Started when made; returns once the event `ready` was logged (or `until`). As a context manager
    it is stopped at the end, and a bad exit code or a sanitizer's report is a Failure.
    """

    entered = []  # as context managers, and not yet left

    def __init__(self, *arguments, until="ready", variables=None, log_format="json", **options):
        command = [PROGRAM, "serve", "--port", "0", *map(str, arguments)]
        if log_format:
            command += ["--log-format", log_format]
        self.lines = []
        self._changed = threading.Condition()
        self._ended = False  # standard error is
        self._end_checked = False
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        env=environment(**(variables or {})), preexec_fn=_die_with_parent, **options)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            listening = self.wait_event("listening")
            self.host, self.port = listening["host"], listening.get("port")  # None: not TCP
            self.url = f"http://{self.host}:{self.port}"
            self.wait_event(until)
        except BaseException:
            self.kill()
            raise

    # ---- the log ------------------------------------------------------------------------------
    def _read(self):
        for raw in self.process.stderr:
            with self._changed:
                self.lines.append(raw.decode("utf-8", "backslashreplace").rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def events(self):
        """The log lines so far that are JSON objects."""
        found = []
        for line in list(self.lines):
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(value)
        return found

    def wait_event(self, name, timeout_s=TIMEOUT_S):
        """The first log line whose `event` is `name`."""

        def find():
            return next((e for e in self.events() if e.get("event") == name), None)

        with self._changed:
            self._changed.wait_for(lambda: find() or self._ended, timeout_s)
            event = find()
        if event is None:
            raise Failure(f"no event '{name}' was logged; standard error:\n{self.log()}")
        return event

    def log(self):
        return "\n".join(self.lines)

    # ---- the process --------------------------------------------------------------------------
    def memory_bytes(self, key="VmRSS"):
        """A number of /proc/PID/status: VmRSS, VmHWM (its peak), VmSize, VmPeak."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{key}:\s+(\d+) kB$", status, re.MULTILINE).group(1)) * 1024

    def cpu_seconds(self):
        """The time that processors have spent on the process."""
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text()
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def descriptors(self):
        """How many descriptors the process has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def send(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, timeout_s=TIMEOUT_S):
        """The exit code, once all of standard error was read."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failure(f"the server did not end within {timeout_s} s; standard error:\n"
                          f"{self.log()}") from None
        self._reader.join(timeout_s)
        return code

    def kill(self):
        """Ends the server by SIGKILL; how it ended need not be checked."""
        self._end_checked = True
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(TIMEOUT_S)

    def stop(self, number=signal.SIGTERM):
        """Stops the server and checks how it ended."""
        if self.process.poll() is None:
            self.send(number)
        self.check_end()

    def check_end(self, exit_code=0):
        """Waits for the end that was asked for, and checks how it was."""
        self._end_checked = True
        code = self.wait()
        if SANITIZER_REPORT.search(self.log()):
            raise Failure(f"a sanitizer reports:\n{self.log()}")
        if code != exit_code:
            raise Failure(f"exit code {code} instead of {exit_code}; standard error:\n{self.log()}")

    def last_lines(self):
        """What there is to say about it in a failure."""
        died = self.process.poll()
        state = "is running" if died is None else f"has ended with code {died}"
        return f"the server {state}; its last lines:\n" + "\n".join(self.lines[-40:])

    def __enter__(self):
        Server.entered.append(self)
        return self

    def __exit__(self, kind, value, trace):
        Server.entered.remove(self)
        if kind is None:
            if not self._end_checked:
                self.stop()
        else:
            said = self.last_lines()
            self.kill()
            print(said, file=sys.stderr)


def wait_until(condition, text, timeout_s=TIMEOUT_S):
    """Asks until `condition()` holds; each asking must itself take the time of a request."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        expect(time.monotonic() < deadline, f"{text} after {timeout_s} s")


@contextlib.contextmanager
def beside(*works):
    """Runs each of these in a thread of its own. They get an event, which is set at the end of the block; then they are
    joined, and what one of them raised is raised here. Yields what they have raised."""
    stop, problems = threading.Event(), []

    def run_one(work):
        try:
            work(stop)
        except BaseException as problem:  # pylint: disable=broad-except
            problems.append(problem)

    threads = [threading.Thread(target=run_one, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield problems
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]


def together(work, count):
    """Runs work(0), work(1) and so on, all at once."""
    with beside(*(lambda _, number=number: work(number) for number in range(count))):
        pass
