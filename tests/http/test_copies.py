"""Files without a header while they are copied: half of a copy is a valid table of another shape. A poll
publishes them only if something confirms their sizes: the version that is served, the configuration, a
ready_file. A request and a start take them as they are."""

import signal

import numpy as np
import pytest

from control import serve
from example import i64
from harness import expect, expect_equal, wait_until, write_json
from numerics import F32

KEYS = np.arange(8)
WIDTH = 4
PAIRS = {"HugeCTR": ("key", "emb_vector"),
         "dynamicemb": ("t_emb_keys.rank_0.world_size_1", "t_emb_values.rank_0.world_size_1")}
SETTLE = "may still be copied"


@pytest.fixture(params=PAIRS)
def names(request):
    return PAIRS[request.param]


def write_keys(folder, names):
    folder.mkdir(parents=True)
    KEYS.tofile(folder / names[0])


def write_rows(folder, names, number, width=WIDTH):
    """The vectors of all keys, or the first part of them: as many bytes as rows of this width take."""
    np.full(KEYS.size * width, number, F32).tofile(folder / names[1])


def publish(folder, names, number, width=WIDTH):
    write_keys(folder, names)
    write_rows(folder, names, number, width)


def answer(server, model="t"):
    """The shape of a row, its number, and the version of the answer; or the status."""
    reply = server.client.infer(model, [i64("indices", [[3]])])
    if reply.status != 200:
        return reply.status
    row = reply.embeddings()
    return row.shape[1], float(row[0, 0]), reply.json()["model_version"]


def reason_of(server, version, model="t"):
    return server.admin.index().get((model, version), ("", ""))[1]


def polling(directory, *arguments):
    return serve(directory, "--poll-seconds", 0.1, *arguments, mode="poll")


def test_poll_waits_for_the_width_that_is_served(directory, root, names):
    """Keys first, then vectors that grow: their sizes fit rows of 1, 2 and 3 elements before they fit 4."""
    publish(root / "t" / "1", names, 1)
    with polling(directory) as server:
        folder = root / "t" / "2"
        write_keys(folder, names)
        for width in range(1, WIDTH):
            write_rows(folder, names, 2, width)
            wait_until(lambda w=width: f"rows have {w} elements" in reason_of(server, "2"), f"no word of {width}")
            reason = reason_of(server, "2")
            expect(SETTLE in reason and "those that are served have 4" in reason and "row_elements" in reason, reason)
            expect_equal(answer(server), (WIDTH, 1, "1"))
        write_rows(folder, names, 2)
        wait_until(lambda: answer(server) == (WIDTH, 2, "2"), "version 2 is not served")


def test_request_takes_another_width(directory, root, names):
    publish(root / "t" / "1", names, 1)
    with polling(directory) as server:
        publish(root / "t" / "2", names, 2, WIDTH + 1)
        wait_until(lambda: SETTLE in reason_of(server, "2"), "version 2 is not refused")
        server.admin.load("t").expect()
        expect_equal(answer(server), (WIDTH + 1, 2, "2"))
        publish(root / "t" / "3", names, 3, WIDTH + 1)
        wait_until(lambda: answer(server) == (WIDTH + 1, 3, "3"), "version 3 is not served")


def test_start_takes_what_there_is(directory, root, names):
    publish(root / "t" / "1", names, 1)
    publish(root / "t" / "2", names, 2, WIDTH + 1)
    with polling(directory) as server:
        expect_equal(answer(server), (WIDTH + 1, 2, "2"))


def test_configured_width_is_trusted(directory, root, names):
    """With row_elements, sizes that fit no such rows are wrong, and those that do are whole."""
    publish(root / "t" / "1", names, 1)
    with polling(directory) as server:
        folder = root / "new" / "1"
        folder.parent.mkdir()
        write_json(root / "new" / "config.json", {"row_elements": 6})
        publish(folder, names, 5, 3)
        wait_until(lambda: "row_elements is 6" in reason_of(server, "1", "new"), "new is not refused")
        write_rows(folder, names, 5, 6)
        wait_until(lambda: answer(server, "new") == (6, 5, "1"), "new is not served")


def test_poll_publishes_no_first_version_without_a_word(directory, root, names):
    """Nothing is served to compare its width with."""
    publish(root / "t" / "1", names, 1)
    with polling(directory) as server:
        publish(root / "new" / "1", names, 5, 3)
        wait_until(lambda: "nothing is served" in reason_of(server, "1", "new"), "new is not refused")
        expect_equal(answer(server, "new"), 503)
        server.admin.load("new").expect()
        expect_equal(answer(server, "new"), (3, 5, "1"))


def test_ready_file_is_trusted(directory, root, names):
    publish(root / "t" / "1", names, 1)
    (root / "t" / "1" / "_READY").touch()
    with polling(directory, "--ready-file", "_READY") as server:
        publish(root / "t" / "2", names, 2, WIDTH + 1)
        wait_until(lambda: "_READY" in reason_of(server, "2"), "version 2 is not waited for")
        (root / "t" / "2" / "_READY").touch()
        wait_until(lambda: answer(server) == (WIDTH + 1, 2, "2"), "version 2 is not served")


@pytest.mark.parametrize("first", [-1, 6])
def test_rows_by_the_size_of_a_file(directory, root, first):
    """A shape that begins with -1: a poll takes more rows, and not fewer; SIGHUP takes both. A shape of all sizes
    says what is whole."""
    root.mkdir()
    np.save(root / "other.npy", np.zeros((1, 1), F32))

    def write(number, rows):
        new = directory / "new"
        np.full((rows, WIDTH), number, F32).tofile(new)
        new.rename(directory / "t.bin")

    write(1, 6)
    config = write_json(directory / "c.json", {"models": [
        {"name": "t", "path": "t.bin", "shape": [first, WIDTH], "datatype": "FP32"}]})
    with polling(directory, "--config", config) as server:
        write(2, 5)
        wait_until(lambda: "5 rows by" in reason_of(server, "1"), "fewer rows are not refused")
        expect_equal(answer(server), (WIDTH, 1, "1"))
        expect((SETTLE in reason_of(server, "1")) == (first < 0), reason_of(server, "1"))
        write(3, 7 if first < 0 else first)
        wait_until(lambda: answer(server) == (WIDTH, 3, "1"), "the file is not served")
        if first < 0:
            write(4, 5)
            wait_until(lambda: "7 are served" in reason_of(server, "1"), "fewer rows are not refused")
            server.send(signal.SIGHUP)
            wait_until(lambda: answer(server) == (WIDTH, 4, "1"), "SIGHUP does not take them")
