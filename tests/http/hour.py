#!/usr/bin/python3
"""The processes of an hour in small, which test_hour.py runs beside a server. Each turn a trainer writes a checkpoint of
two tables and of the dense part that was trained with them, a publisher exports it as a version and has it loaded, and a
client scores with the dense part of the version that answers, and compares with the same version in one process.

    hour.py train FOLDER VERSIONS PERIOD_S
    hour.py publish FOLDER ADMIN_SOCKET VERSIONS [VERSION TO DIE IN]
    hour.py score FOLDER SERVER
"""

import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto" / "clients" / "python"))
from bagserve_client import Client, NotFound, ServerError  # noqa: E402
from bagserve_export import Export  # noqa: E402

FILMS, USERS, DIM, BATCH = 400, 90, 8, 4
MODELS = ("films", "users", "sparse")
DAMAGED_EVERY = 10


# ---- a version --------------------------------------------------------------------------------
def tables_of(version):
    """The films of each version are others, the users change in every third. Sums of such numbers are exact."""
    films, users = np.random.default_rng([version, 1]), np.random.default_rng([version // 3, 2])
    return (films.integers(-999, 999, (FILMS, DIM)).astype(np.float32),
            users.integers(-999, 999, (USERS, DIM)).astype(np.float32))


def dense_of(version):
    """The matrix behind the pooled vectors of both features."""
    return np.random.default_rng([version, 3]).integers(-9, 9, 2 * DIM).astype(np.float32)


def scores_of(dense, seen, user):
    return np.hstack([seen, user]) @ dense


def scores_in_one_process(version, bags):
    films, users = tables_of(version)
    pooled = [np.stack([table[bag].sum(0, np.float32) for bag in bags[name]])
              for name, table in (("seen", films), ("user", users))]
    return scores_of(dense_of(version), *pooled)


def is_damaged(version):
    return version % DAMAGED_EVERY == 0


def write_whole(path, content):
    new = path.with_name(f".{path.name}")
    new.write_bytes(content)
    new.rename(path)


# ---- the trainer ------------------------------------------------------------------------------
def train(folder, versions, period_s):
    """A checkpoint for each version, at this rate at most."""
    began = time.monotonic()
    for version in range(1, int(versions) + 1):
        time.sleep(max(0, began + (version - 1) * float(period_s) - time.monotonic()))
        films, users = tables_of(version)
        with open(folder / ".checkpoint", "wb") as file:
            np.savez(file, films=films, users=users, dense=dense_of(version))
        (folder / ".checkpoint").rename(folder / "trained" / f"{version}.npz")


# ---- the publisher ----------------------------------------------------------------------------
def publish(folder, socket, versions, dies_in="0"):
    """Publishes each checkpoint that it has not published, and notes what became of it. What a publisher left that
    died is removed first: versions are not written over."""
    done = {json.loads(line)["version"] for line in (folder / "published").read_text().splitlines()}
    with Client(f"unix:{socket}") as admin, open(folder / "published", "a", buffering=1) as notes:
        for version in range(1, int(versions) + 1):
            if version not in done:
                checkpoint = wait_for(folder / "trained" / f"{version}.npz")
                remove_version(folder / "models", version)
                export(folder / "models", np.load(checkpoint), version, version == int(dies_in))
                if is_damaged(version):
                    damage(folder / "models", version)
                note = {"version": version, "reason": None}
                try:
                    admin.load(*((name, version) for name in MODELS))
                except ServerError as problem:
                    note["reason"] = str(problem)
                notes.write(json.dumps(note) + "\n")


def wait_for(path):
    while not path.exists():
        time.sleep(0.01)
    return path


def remove_version(models, version):
    for path in (*models.glob(f"*/{version}"), *models.glob(".export-*")):
        shutil.rmtree(path)


def export(models, checkpoint, version, dies):
    exported = Export()
    exported.table("films", checkpoint["films"], "sum")
    exported.table("users", checkpoint["users"], "sum")
    exported.collection("sparse", {"seen": "films", "user": "users"})
    if dies:
        pathlib.Path.rename = die_after_the_first(pathlib.Path.rename)
    exported.write(models, version)


def die_after_the_first(rename):
    def renamed(*arguments):
        rename(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    return renamed


def damaged_model(version):
    return MODELS[(version // DAMAGED_EVERY - 1) % len(MODELS)]


def damage(models, version):
    """A table that is cut, a rule that is none, or a pin to nothing. What is linked from other versions is left as it is."""
    name = damaged_model(version)
    folder = models / name / str(version)
    if name == "films":
        table = folder / "table.safetensors"
        write_whole(table, table.read_bytes()[:-8])
    elif name == "users":
        write_whole(folder / "config.json", b'{"reduction": "median"}')
    else:
        write_whole(folder / "config.json", b'{"features": [{"name": "seen", "model": "films", "version": 999999}]}')


# ---- the client -------------------------------------------------------------------------------
def score(folder, server):
    """Scores until the file `ended` appears and once more, and writes how often each version answered, by default and by
    its number; ends with an error at the first difference."""
    rng, counts = np.random.default_rng(), {"default": {}, "number": {}}
    with Client(server) as client:
        for ended in itertools.chain(iter((folder / "ended").exists, True), [True]):
            bags = {"seen": [rng.integers(0, FILMS, rng.integers(0, 6)) for _ in range(BATCH)],
                    "user": [rng.integers(0, USERS, 1) for _ in range(BATCH)]}
            version = ask(client, bags, None, counts)
            for number in (version - 1, version):
                with contextlib.suppress(NotFound):  # of a version that is damaged, or that is gone by now
                    ask(client, bags, number, counts)
    (folder / "scores.json").write_text(json.dumps(counts))


def ask(client, bags, number, counts):
    answer = client.collection("sparse", bags, version=number, table_versions=True)
    version = int(answer.model_version)
    if number not in (None, version):
        sys.exit(f"version {number} was asked for, and {version} answered")
    if answer.table_versions != {"seen": str(version), "user": str(version)}:
        sys.exit(f"version {version} is answered from {answer.table_versions}")
    got, want = scores_of(dense_of(version), answer["seen"], answer["user"]), scores_in_one_process(version, bags)
    if not np.array_equal(got, want):
        sys.exit(f"version {version}: {got} instead of {want}, bags {bags}")
    place = counts["default" if number is None else "number"]
    place[version] = place.get(version, 0) + 1
    return version


if __name__ == "__main__":
    {"train": train, "publish": publish, "score": score}[sys.argv[1]](pathlib.Path(sys.argv[2]), *sys.argv[3:])
