"""A version every hour, by the scripts of deploy/kubernetes/overlays/hourly: they run as processes, with servers that serve the
folder, as a cluster runs them in containers."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from harness import ROOT, TIMEOUT_S, Server, expect, expect_equal, wait_until
from ports import free_port

sys.path.insert(0, str(ROOT / "proto" / "clients" / "python"))
import bagserve_client as bc  # noqa: E402
from bagserve_export import Export  # noqa: E402

SCRIPTS = ROOT / "deploy" / "kubernetes" / "overlays" / "hourly"
ROWS, DIM = 40, 4
pytestmark = pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")


def rows_of(hour):
    return np.full((ROWS, DIM), hour, np.float32)


def train(models, hour, complete=True):
    """What a trainer writes to .incoming: a table, one that stays as it is, and a collection over both."""
    exported = Export()
    exported.table("films", rows_of(hour), "sum")
    exported.table("genres", rows_of(7), "sum")
    exported.collection("sparse", {"seen": "films", "genre": "genres"})
    exported.write(models / ".incoming" / str(hour), hour)
    if complete:
        (models / ".incoming" / str(hour) / "complete").touch()


def publish(models, code=0, **variables):
    """What publish.sh prints."""
    done = subprocess.run(["sh", SCRIPTS / "publish.sh"], env=os.environ | {"MODELS": str(models)} | variables,
                          capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    expect_equal(done.returncode, code, done.stderr)
    return done.stdout + done.stderr


def hours_in(folder):
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


class Pod:
    """A server, and load.sh beside it."""

    def __init__(self, directory, models, tokens, name):
        self.models, self.tokens, self.log = models, tokens, directory / f"{name}.log"
        self.admin_port = free_port()
        self.server = Server("--models", models, "--model-control", "explicit", "--admin-port", self.admin_port,
                             "--token-file", tokens)
        self.client = bc.Client(f"{self.server.host}:{self.server.port}", token=tokens.read_text().split()[1])
        self.loader = None

    def begin_to_load(self):
        variables = {"SERVER": f"http://127.0.0.1:{self.admin_port}", "MODELS": str(self.models),
                     "TOKEN_FILE": str(self.tokens), "POLL_S": "0.1", "RETRY_S": "1"}
        with open(self.log, "ab") as log:
            self.loader = subprocess.Popen(["sh", SCRIPTS / "load.sh"], env=os.environ | variables, stdout=log, stderr=log,
                                           start_new_session=True)

    def said(self):
        return self.log.read_text()

    def hours(self):
        """{model: its versions that are served}."""
        found = {}
        with bc.Client(f"127.0.0.1:{self.admin_port}", token=self.tokens.read_text().split()[1]) as admin:
            index = admin.index()
        for version in index:
            if version["state"] == "READY":
                found.setdefault(version["name"], []).append(int(version["version"]))
        return {name: sorted(versions) for name, versions in found.items()}

    def answer(self, version=None):
        """The hour whose rows a request gets, of the collection and of its table."""
        of = self.client.collection("sparse", {"seen": [[7]], "genre": [[0]]}, version=version)["seen"][0, 0]
        return int(of), int(self.client.bags("films", [[7]], version=version)[0, 0])

    def wait_for(self, hour):
        wait_until(lambda: self.answer() == (hour, hour), f"hour {hour} is not served: {self.said()}")

    def close(self):
        self.client.close()
        if self.loader:
            os.killpg(self.loader.pid, signal.SIGTERM)
            self.loader.wait(TIMEOUT_S)
        self.server.stop()


@pytest.fixture(name="tokens")
def make_tokens(directory):
    path = directory / "tokens"
    path.touch(0o600)
    path.write_text(f"admin {secrets.token_hex(16)}\n")
    return path


@contextlib.contextmanager
def pods_of(directory, models, tokens, count=2):
    with contextlib.ExitStack() as stack:
        pods = []
        for number in range(count):
            pods.append(Pod(directory, models, tokens, f"pod-{number}"))
            stack.callback(pods[-1].close)
            pods[-1].begin_to_load()
        yield pods


def test_hours(directory, tokens):
    """The published hour takes the place of the one before; one that is damaged changes nothing; one goes back."""
    models = directory / "models"
    train(models, 101)
    expect_equal(publish(models), "published 101: films genres sparse\n")
    expect(not list((models / ".incoming").iterdir()), "left behind")
    with pods_of(directory, models, tokens) as pods:
        for hour in (102, 103):
            train(models, hour, complete=False)
            expect_equal(publish(models), f"published {hour - 1}: films genres sparse\n")  # the last one again
            (models / ".incoming" / str(hour) / "complete").touch()
            publish(models)
            for pod in pods:
                pod.wait_for(hour)
                expect_equal(pod.hours(), {"films": [hour], "genres": [hour], "sparse": [hour]})
                expect_equal(pod.answer(hour), (hour, hour), "by its number")

        train(models, 104)
        table = models / ".incoming/104/films/104/table.safetensors"
        table.write_bytes(table.read_bytes()[:-8])
        publish(models)
        for pod in pods:
            wait_until(lambda pod=pod: "cannot load 104" in pod.said() and "table.safetensors" in pod.said(), pod.said())
            expect_equal((pod.answer(), pod.server.process.poll()), ((103, 103), None))
        late = Pod(directory, models, tokens, "late")  # a server that starts meanwhile
        try:
            expect_equal(late.answer()[1], 103)
        finally:
            late.close()

        train(models, 105)
        publish(models)
        for pod in pods:
            pod.wait_for(105)
        publish(models, HOUR="103")
        for pod in pods:
            pod.wait_for(103)
        train(models, 106)
        expect_equal(publish(models, HOUR="103"), "published 103: films genres sparse\n")  # until HOUR is unset
        late = Pod(directory, models, tokens, "later")
        try:
            expect_equal(late.answer(), (103, 103), "what starts after going back")
        finally:
            late.close()
        publish(models)
        for pod in pods:
            pod.wait_for(106)


def test_hours_that_stay(directory):
    """KEEP hours, and never fewer than are served. A table that stays as it is, is one file."""
    models = directory / "models"
    for hour in range(201, 207):
        train(models, hour)
        publish(models, KEEP="3")
    expect_equal((hours_in(models / "films"), hours_in(models / "sparse")), ([204, 205, 206],) * 2)
    expect_equal([(models / name / "206/table.safetensors").stat().st_nlink for name in ("films", "genres")], [1, 3])
    publish(models, HOUR="204", KEEP="1")
    expect_equal(hours_in(models / "films"), [204, 206])
    expect_equal((models / "films" / "config.json").read_text(), '{"version_policy": {"specific": [204]}}\n')
    publish(models, KEEP="2")
    expect_equal((models / "films" / "config.json").read_text(), '{"version_policy": {"latest": 1}}\n')
    said = publish(models, code=1, HOUR="205")
    expect_equal(said, f"hour '205' is in no model of {models}\n")


def test_a_publisher_that_died(directory):
    """Whatever was moved already is published with the rest; nothing is published where nothing is."""
    models = directory / "models"
    models.mkdir()
    expect_equal(publish(models, code=1), f"hour '' is in no model of {models}\n")
    train(models, 301)
    publish(models)
    train(models, 302)
    (models / ".incoming/302/films/302").rename(models / "films/302")
    expect_equal((models / "published").read_text(), "301 films genres sparse\n")
    expect_equal(publish(models), "published 302: films genres sparse\n")
    for name in ("films", "genres", "sparse"):
        expect_equal(hours_in(models / name), [301, 302], name)
