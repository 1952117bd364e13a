"""Folders that trainers wrote and something damaged: each is exported, or refused in one line that names a file.

    tests/run-one http/test_damaged_exports.py --folders 20000
"""

import shutil
import sys

import numpy as np
import pytest

from damage import damage, names_of
from harness import ROOT, expect, seed

sys.path.insert(0, str(ROOT / "proto" / "clients" / "python"))
import bagserve_export  # noqa: E402
from dcp import Stored, write_dcp, write_dcp_safetensors  # noqa: E402
from test_dcp import BY_ROWS, FILMS, USERS, bags, exported  # noqa: E402
from test_trainers import A, B, EBC, EC, KEYS, DEFAULT, both, dump, dynamic, quantise, rtp, shards  # noqa: E402
from trainers import write_torcheasyrec  # noqa: E402

CHECKPOINT = bags(films=Stored(FILMS, BY_ROWS), users=Stored(USERS, [(0, 0, 0, 12, 7), (1, 0, 7, 12, 9)]),
                  half=Stored(FILMS.astype(np.float16), strides="F"))
WRITERS = {"shards": shards, "dynamic": dynamic, "a rank without": lambda folder: dynamic(folder, second=False),
           "default": lambda folder: dynamic(folder, DEFAULT), "both": both, "rtp": rtp, "dump": dump,
           "int8": lambda folder: write_torcheasyrec(folder, [{EBC + "cut": quantise(A), EC + "users": (KEYS, quantise(B))}]),
           "checkpoint": lambda folder: write_dcp(folder, CHECKPOINT),
           "checkpoint by ranks": lambda folder: write_dcp(folder, CHECKPOINT, by_rank=True, file_a_chunk=True),
           "checkpoint of safetensors": lambda folder: write_dcp_safetensors(folder, CHECKPOINT)}


def export_damaged(source, target):
    """Returns the line of a refusal, or None if the folder was exported."""
    try:
        bagserve_export.main([str(source), str(target), "--reduction", "sum"])
    except SystemExit as ended:
        return str(ended.code)
    return None


def same(one, other, name):
    return (other / name).is_file() and (one / name).read_bytes() == (other / name).read_bytes()


@pytest.mark.parametrize("writer", WRITERS)
def test_damaged_folders(directory, writer, request):
    """By seed: never a traceback, nothing written by a refusal, and many damages are refused (dumps have no checksums)."""
    whole, count, refused = directory / "whole", request.config.getoption("--folders") // len(WRITERS), 0
    WRITERS[writer](whole)
    start = seed()
    for number in range(count):
        source, target, case = directory / "source", directory / "models", f"{start} {writer} {number}"
        shutil.copytree(whole, source)
        done = damage(source, case)
        try:
            line = export_damaged(source, target)
        except Exception as problem:
            raise AssertionError(f"seed '{case}': {done}") from problem
        names = names_of(whole) | names_of(source) | {".metadata"}  # of which each rank may have its own
        expect(line is None or "\n" not in line and any(name in line for name in names) or "has no files of" in line,
               f"seed '{case}': {done}: {line}")
        expect((line is None) == bool(list(target.glob("*"))), f"seed '{case}': {done}: {line}, {list(target.glob('*'))}")
        refused += line is not None
        if line is None and writer == "checkpoint" and same(whole, source, ".metadata"):  # CRC-32 guards all rows
            for name, rows in (("films", FILMS), ("users", USERS), ("half", FILMS.astype(np.float16))):
                expect(np.array_equal(exported(target, name)[1], rows), f"seed '{case}': {done}: '{name}' has other rows")
        shutil.rmtree(source)
        shutil.rmtree(target, ignore_errors=True)
    expect(refused * 4 > count, f"only {refused} were refused")
