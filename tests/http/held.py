"""Workers that stand still, so that what is asked of them waits, as long as a test likes."""

import contextlib
import ctypes
import os
import pathlib
import select

from harness import Failure, wait_until
from v2 import Client

TASKS_PER_WORKER = 2  # that the engine hands out, though the worker is busy (server/engine/engine.c)
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000  # of waitpid: threads, too


def nice_value(task):
    return int((task / "stat").read_text().rpartition(")")[2].split()[16])


def is_asleep(task):
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "S"


def find_workers(server):
    """Their nice value is 5 above that of the first thread, which runs a loop."""
    tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
    nice = min(nice_value(tasks / str(server.process.pid)) + 5, 19)
    return [task for task in tasks.iterdir() if nice_value(task) == nice and task.name != str(server.process.pid)]


def trace(request, worker):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(request, int(worker.name), None, None) != 0:
        raise Failure(f"ptrace {request:#x} of thread {worker.name}: {os.strerror(ctypes.get_errno())}")


def stop(worker):
    trace(PTRACE_SEIZE, worker)
    trace(PTRACE_INTERRUPT, worker)
    os.waitpid(int(worker.name), WALL)


@contextlib.contextmanager
def held_workers(server):
    """The server's workers, which have nothing to do, stand still; its loops go on. It was started with --workers."""
    arguments = server.process.args
    count = int(arguments[arguments.index("--workers") + 1])
    wait_until(lambda: len(find_workers(server)) == count, "workers have not begun")  # each sets its nice value itself
    workers = find_workers(server)
    for worker in workers:
        wait_until(lambda task=worker: is_asleep(task), "a worker has something to do")
        stop(worker)
    try:
        yield
    finally:
        for worker in workers:
            trace(PTRACE_DETACH, worker)


@contextlib.contextmanager
def held_running(server, send):
    """The server's only worker stands still in the midst of a request, which `send` sends; it returns the connection.
    The request takes some ten milliseconds at least: it is sent again where the worker has done it before."""
    wait_until(lambda: len(find_workers(server)) == 1, "the worker has not begun")
    (worker,) = find_workers(server)

    def is_running():
        wait_until(lambda: is_asleep(worker), "the worker has something to do")
        raw = send()
        while is_asleep(worker) and not has_answer(raw):
            pass
        stop(worker)
        wait_until_read(server, [raw])
        if not has_answer(raw):
            return True
        trace(PTRACE_DETACH, worker)
        raw.close()
        return False

    wait_until(is_running, "the worker is never seen to do it")
    try:
        yield
    finally:
        trace(PTRACE_DETACH, worker)


def has_answer(raw):
    return select.select([raw.socket], [], [], 0)[0] != []


def wait_until_read(server, raws):
    """Until the server's only loop has read what was sent on these connections, and ended that turn."""
    ports = {(raw.socket.getpeername()[1], raw.socket.getsockname()[1]) for raw in raws}

    def all_read():
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, remote, _, queues, *_ = line.split()
            if (int(local.split(":")[1], 16), int(remote.split(":")[1], 16)) in ports and int(queues.split(":")[1], 16):
                return False
        return True

    wait_until(all_read, "the server does not read")
    with Client(server) as client:
        client.get("/v2/health/live").expect(200)
        client.get("/v2/health/live").expect(200)  # in a later turn


def occupy(server, send, workers=1):
    """Sends as many requests as held workers take, each in a turn of its own; returns the connections."""
    raws = []
    for _ in range(workers * TASKS_PER_WORKER):
        raws.append(send())
        wait_until_read(server, raws)
    return raws
