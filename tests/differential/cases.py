"""Cases one after the other, each from a seed of its own: what features, coordinator_matrix and requests share."""

import argparse
import collections
import multiprocessing
import os
import pathlib
import signal
import sys
import time
import traceback

REPORT_S = 600


def run_case(make, seed, size, repeat):
    """Returns what was counted, and a text that says what differs or None."""
    from harness import Failure, scratch
    with scratch() as folder:
        case = None
        try:
            case = make(seed, folder)
            case.run(size)
            return case.counts, None
        except Exception as problem:  # pylint: disable=broad-except
            trace = "" if isinstance(problem, Failure) else traceback.format_exc()
            lines = [f"DIFFERENCE in case {seed}: {problem}", *(case.documents() if case else ()), trace,
                     f"repeat: {repeat} --seed {seed} --cases 1", ""]
            return case.counts if case else {}, "\n".join(lines)


def work(options, make, repeat, first, found):
    """Runs every jobs-th case from the first, until the time is over or something differs."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for seed in range(first, options.seed + options.cases, options.jobs):
        counts, difference = run_case(make, seed, options.size, repeat)
        found.put((counts, difference))
        if time.monotonic() > options.ends or (difference and not options.keep_going):
            break
    found.put(None)


class Totals:
    def __init__(self, options):
        self.seed, self.counts, self.cases, self.differences = options.seed, collections.Counter(), 0, 0
        self.begun = self.reported = time.monotonic()

    def take(self, counts, difference):
        self.counts.update(counts)
        self.cases += 1
        if difference:
            self.differences += 1
            print(difference, flush=True)
        if time.monotonic() - self.reported > REPORT_S:
            self.reported = time.monotonic()
            self.report("so far: ")

    def report(self, when=""):
        told = ", ".join(f"{number} {what}" for what, number in sorted(self.counts.items()))
        times = os.times()
        print(f"{when}{self.cases} cases from seed {self.seed}, {self.differences} with differences; "
              f"{time.monotonic() - self.begun:.0f} s, {times.children_user + times.children_system:.0f} of CPU: {told}", flush=True)


def main(find_case, description, size_name, size, **more):
    """Runs cases as the command line says, and ends the process. `find_case(options)` imports and returns what makes a
    case of a seed and a folder, after the program is known. Each case has `size` steps or requests; `more` are further
    options, which are numbers, with their help texts."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, help="of the first case; each further case has the next number")
    parser.add_argument("--cases", type=int, default=2**62, help="so many at most")
    parser.add_argument(f"--{size_name}", dest="size", type=int, default=size, help="of a case")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with servers of its own")
    parser.add_argument("--program", help="in place of that of BAGSERVE")
    parser.add_argument("--keep-going", action="store_true", help="after a difference")
    for name, text in more.items():
        parser.add_argument(f"--{name}", type=int, default=0, help=text)
    options = parser.parse_args()
    if options.program:
        os.environ["BAGSERVE"] = options.program
    if options.seed is None:
        options.seed = int(os.environ.get("TEST_SEED", int.from_bytes(os.urandom(4), "little")))
    options.ends = time.monotonic() + options.seconds
    print(f"the first case is seed {options.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    given = [f"--{size_name} {options.size}", *(f"--{name} {value}" for name in more if (value := getattr(options, name)))]
    make, repeat = find_case(options), " ".join([f"tests/{pathlib.Path(sys.argv[0]).name}", *given])
    apart = multiprocessing.get_context("fork")
    found, totals = apart.Queue(), Totals(options)
    processes = [apart.Process(target=work, args=(options, make, repeat, options.seed + i, found)) for i in range(options.jobs)]
    for process in processes:
        process.start()
    try:
        left = options.jobs
        while left:
            result = found.get()
            if result:
                totals.take(*result)
            else:
                left -= 1
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        totals.report()
    sys.exit(1 if totals.differences else 0)
