"""Conversions: `bagserve convert` of what a version's files say, and what its output must be."""

import dataclasses

import numpy as np

from harness import expect, expect_equal, run
from numerics import F32, ROW_FORMATS, Storage, quiet
from pooling import differs
from table_files import read_safetensors
from tables import Snapshot, argument

CONVERTED = ("FP32", "FP16", "BF16")


class Conversion:
    """Of one version, with random flags; `result` is the snapshot that its output is, None where it must be
    refused. Between versions of which one has a format whose parameters are searched for, updates could not be
    computed here: there `changes_storage` is false."""

    def __init__(self, rng, version, path, hash_rows, changes_storage):
        self.rng, self.version, self.path = rng, version, path
        self.source = source = version.snapshot
        self.flags, self.order, self.hash_rows = [], None, hash_rows
        self.storage = source.storage
        if source.storage.is_float and changes_storage and rng.integers(3):
            self._choose_storage()
        if source.keys is not None and rng.integers(3) == 0:
            self._choose_order()
        self.result = self._result()

    def _choose_storage(self):
        formats = [f for f in ROW_FORMATS if not Storage("FP32", f).is_searched]
        if self.rng.integers(2) and len(self.source.shape) == 1:
            self.storage = Storage("FP32", str(self.rng.choice(formats)))
            self.flags += ["--row-format", self.storage.row_format]
        else:
            self.storage = Storage(str(self.rng.choice(CONVERTED)))
            self.flags += ["--datatype", self.storage.datatype]

    def _choose_order(self):
        counts = self.rng.integers(0, 5, len(self.source))
        path = self.path.with_name("counts.npy")
        np.save(path, counts)
        self.order = np.argsort(-counts, kind="stable")
        self.flags += ["--order-by", path]

    @quiet
    def _result(self):
        source = self.source
        if source.keys is not None and len(np.unique(source.keys)) < len(source):
            return None
        stored = source.stored
        if self.storage != source.storage:
            stored = self.storage.encode(source.values().astype(F32))
        if stored is None:
            return None
        keys = source.keys
        if self.order is not None:
            stored, keys = stored[self.order], keys[self.order]
        return Snapshot(self.storage, source.shape, stored, keys, source.keys_datatype, source.through)

    def run(self):
        """Whether there is an output, which then is right."""
        text = argument(self.version.folder, self.version.writer)
        if self.hash_rows:
            text += f",missing=hash,hash_rows={self.hash_rows}"
        done = run("convert", *self.flags, text, self.path)
        self.said = f"convert {text} {self.flags}: {done.returncode} {done.stderr}"
        if self.result is None or (done.returncode and self.order is not None and self.hash_rows):
            expect(done.returncode in (1, 2) and not self.path.exists(), f"is not refused: {self.said}")
            return False
        expect_equal(done.returncode, 0, self.said)
        self._check_file()
        return True

    def _check_file(self):
        """What the format's own description finds in it."""
        metadata, tensors, _ = read_safetensors(self.path)
        result, storage = self.result, self.storage
        expect_equal(list(tensors), ["values"] if result.keys is None else ["values", "keys"], self.said)
        want = {"row_format": storage.row_format, "row_elements": str(result.elements)}
        want |= {"updates_through": str(result.through)} if result.through else {}
        expect_equal({k: metadata.get(k) for k in want}, want, self.said)
        stored = tensors["values"].reshape(len(result), storage.width(result.elements)).view(storage.stored)
        got = dataclasses.replace(result, stored=stored)
        self._check_rows(got, tensors)

    def _check_rows(self, got, tensors):
        result = self.result
        if self.order is not None and self.hash_rows:
            # Where the rows that missing keys get are known, they stay.
            place = {int(key): row for row, key in enumerate(tensors["keys"].view(np.uint64))}
            result = self.result = dataclasses.replace(
                result, stored=result.stored[np.argsort([place[int(k)] for k in result.keys])],
                keys=tensors["keys"].view(np.uint64))
            expect_equal([int(k) for k in result.keys[:self.hash_rows]],
                         [int(k) for k in self.source.keys[:self.hash_rows]], f"fallback rows: {self.said}")
        elif result.keys is not None:
            expect_equal(tensors["keys"].view(np.uint64).tolist(), result.keys.tolist(), self.said)
        wrong = differs(got.values(), result.values(), "FP32")
        expect(not wrong.any(), f"{int(wrong.sum())} elements differ: {self.said}")
        self.result = dataclasses.replace(result, stored=got.stored)  # a NaN has many bits, and rows keep them

