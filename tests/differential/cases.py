"""Cases one after the other, each from a seed of its own: what coordinator_matrix and requests share."""

import argparse
import collections
import os
import pathlib
import sys
import time
import traceback


def run_case(make, seed, requests, repeat):
    """Returns what was counted, and a text that says what differs or None."""
    from harness import Failure, scratch
    with scratch() as folder:
        case = None
        try:
            case = make(seed, folder)
            case.run(requests)
            return case.counts, None
        except Exception as problem:  # pylint: disable=broad-except
            trace = "" if isinstance(problem, Failure) else traceback.format_exc()
            lines = [f"DIFFERENCE in case {seed}: {problem}", *(case.documents() if case else ()), trace,
                     f"repeat: {repeat} --seed {seed} --cases 1 --requests {requests}", ""]
            return case.counts if case else {}, "\n".join(lines)


def main(find_case, description, requests):
    """Runs cases as the command line says, and ends the process. `find_case` imports and returns their class, after
    the program is known."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, help="of the first case; each further case has the next number")
    parser.add_argument("--cases", type=int, default=2**62, help="so many at most")
    parser.add_argument("--requests", type=int, default=requests, help="of a case")
    parser.add_argument("--program", help="in place of that of BAGSERVE")
    parser.add_argument("--keep-going", action="store_true", help="after a difference")
    chosen = parser.parse_args()
    if chosen.program:
        os.environ["BAGSERVE"] = chosen.program
    first = chosen.seed
    if first is None:
        first = int(os.environ.get("TEST_SEED", int.from_bytes(os.urandom(4), "little")))
    print(f"the first case is seed {first}", flush=True)
    make, repeat = find_case(), f"tests/{pathlib.Path(sys.argv[0]).name}"
    ends, cases, differences, totals = time.monotonic() + chosen.seconds, 0, 0, collections.Counter()
    while cases < chosen.cases and time.monotonic() < ends and (chosen.keep_going or not differences):
        counts, difference = run_case(make, first + cases, chosen.requests, repeat)
        cases += 1
        totals.update(counts)
        if difference:
            differences += 1
            print(difference, flush=True)
    told = ", ".join(f"{number} {what}" for what, number in sorted(totals.items()))
    print(f"{cases} cases from seed {first}, {differences} with differences: {told}")
    sys.exit(1 if differences else 0)
