"""How many instructions a server executes for a request, counted by valgrind's callgrind.

They are those of the program and its libraries, not the kernel's: sockets cost a server most of its
time, so that a share of these instructions overstates a share of all work. Nor are they time.
"""

import json
import pathlib
import re
import shutil
import subprocess

from servers import Bagserve, Unusable, end_with_parent

# Valgrind counts "rep stosb" once for every byte that it sets, although a processor sets many at a time.
# This tells the C library to clear memory by vectors instead.
PLAIN_MEMORY = ("glibc.cpu.x86_rep_stosb_threshold=0x7fffffff:"
                "glibc.cpu.x86_rep_movsb_threshold=0x7fffffff")
# Both runs of a turn open the same connections, so their difference has no cost of them.
FEW, MANY = 500, 2500
MODEL = "items"
TURN_S = 60


def missing():
    """What is missing to count, or nothing."""
    lacking = [name for name in ("valgrind", "callgrind_control") if not shutil.which(name)]
    return f"{' and '.join(lacking)} not found: install Debian's package valgrind" if lacking else ""


class Counted(Bagserve):
    """`bagserve serve` under callgrind."""

    def __init__(self, program, tables, arguments, name, directory):
        self.counts = pathlib.Path(directory) / f"callgrind.{name}"
        under = ["env", f"GLIBC_TUNABLES={PLAIN_MEMORY}", "valgrind", "--tool=callgrind",
                 f"--callgrind-out-file={self.counts}"]
        super().__init__(program, tables, None, arguments, name, under)

    def instructions(self):
        """Executed since this was last asked."""
        for old in self.counts.parent.glob(self.counts.name + ".*"):
            old.unlink()
        asked = subprocess.run(["callgrind_control", "--dump", str(self.pid)], capture_output=True,
                               text=True, check=False)
        dumps = list(self.counts.parent.glob(self.counts.name + ".*"))
        if asked.returncode or len(dumps) != 1:
            raise Unusable(f"callgrind wrote no figures: {asked.stderr}{asked.stdout}")
        return int(re.search(r"^totals: (\d+)$", dumps[0].read_text(), re.MULTILINE).group(1))


def ask(server, client, asked, requests):
    """Instructions for so many requests."""
    server.instructions()
    done = subprocess.run([client, "bench", "--closed", "--warmup", "0", "--report", "-", "--duration",
                           str(TURN_S), "--requests", str(requests), *asked,
                           f"http://127.0.0.1:{server.port}", MODEL], capture_output=True,
                          text=True, check=True, preexec_fn=end_with_parent)
    run, = json.loads(done.stdout)["runs"]
    if run["answered"] != requests:
        raise Unusable(f"requests failed: {run}")
    return server.instructions()


def per_request(server, client, asked):
    return (ask(server, client, asked, MANY) - ask(server, client, asked, FEW)) / (MANY - FEW)
