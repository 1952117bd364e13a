"""An hour in small (hour.py): versions that a trainer writes, a publisher loads, and a client with their dense parts scores.
No score is of a mixture of two, and a version that is damaged is in the reply, the log and the metric. The collection serves
two versions at a time, and pins the tables of both.

    tests/run-one http/test_hour.py --versions 60 --period 1
"""

import json
import signal
import subprocess
import sys

import pytest

import hour
from harness import TIMEOUT_S, Server, expect, expect_equal, wait_until, write_json
from v2 import Client


def check_notes(directory, server, failed, versions):
    """Each version was published, or its damage is in the reply, the log, the index and the metric."""
    notes = [json.loads(line) for line in (directory / "published").read_text().splitlines()]
    expect_equal([note["version"] for note in notes], list(range(1, versions + 1)))
    reasons = {note["version"]: note["reason"] for note in notes if note["reason"]}
    expect_equal(list(reasons), list(filter(hour.is_damaged, range(1, versions + 1))))
    wanted = [(", ".join(f"{name}/{version}" for name in hour.MODELS), reason) for version, reason in reasons.items()]

    def logged():
        return [(event["models"], event["reason"]) for event in server.events() if event["event"] == "change failed"]

    wait_until(lambda: len(logged()) >= len(wanted), "a failure is not logged")
    expect_equal(logged(), wanted)
    # Each version once: what is damaged, and the collection over it, which its policy would serve beside the next one.
    expect_equal(failed, sum(1 if hour.damaged_model(version) == "sparse" or version == versions else 2
                             for version in reasons))


def check_scores(counts, versions):
    """What was served by default, and by its number beside the next one."""
    by_default, by_number = (set(map(int, counts[way])) for way in ("default", "number"))
    good = {version for version in range(1, versions + 1) if not hour.is_damaged(version)}
    last = {max(good), max(good) - 1} & good  # asked after all was published
    expect(by_default <= good and max(good) in by_default and last <= by_number <= good, f"{counts}")


@pytest.fixture(name="processes")
def end_processes():
    processes = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_hour(directory, processes, request):
    versions, period_s = request.config.getoption("--versions"), request.config.getoption("--period")
    dies_in, timeout_s = versions // 2 + 1, TIMEOUT_S + versions * period_s
    models, socket = directory / "models", directory / "admin.sock"
    for folder in ("models/sparse", "trained"):
        (directory / folder).mkdir(parents=True)
    write_json(models / "sparse" / "config.json", {"version_policy": {"latest": 2}})
    (directory / "published").touch()

    def start(role, *arguments):
        process = subprocess.Popen([sys.executable, hour.__file__, role, directory, *map(str, arguments)],
                                   stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    def end(process, code=0):
        _, said = process.communicate(timeout=timeout_s)
        expect_equal(process.returncode, code, said)

    with Server("--models", models, "--model-control", "explicit", "--admin-socket", socket) as server, \
            Client(server) as client:
        before = client.counted("bagserve_failed_model_changes_total")  # the folder without a version
        trainer = start("train", versions, period_s)
        publisher = start("publish", socket, versions, dies_in)
        wait_until(lambda: client.get("/v2/models/sparse/ready").status == 200, "the first version is not served", timeout_s)
        scorer = start("score", f"{server.host}:{server.port}")
        end(publisher, -signal.SIGKILL)
        end(start("publish", socket, versions))
        end(trainer)
        (directory / "ended").touch()
        end(scorer)
        check_notes(directory, server, client.counted("bagserve_failed_model_changes_total") - before, versions)
        check_scores(json.loads((directory / "scores.json").read_text()), versions)
