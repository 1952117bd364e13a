"""What a table holds after loads and updates: its rows as they are served, batches of rows, and the versions
of a model."""

import dataclasses

import numpy as np

from numerics import CONVERTIBLE, Storage
from pooling import Rejected, Rules, need
from tables import Snapshot

POOLING = ("reduction", "default_index", "padding_idx", "include_last_offset", "weighted_mean", "prune_invalid",
           "unsorted_segments", "require_zero_first_offset", "require_matching_index_types", "output_datatype",
           "out_of_range", "missing", "hash_rows", "projection")


@dataclasses.dataclass
class Batch:
    """Rows put, or keys removed where `stored` is None; rows as `storage` has them. It stands for all updates
    from `first`, the next one when it was taken, to `sequence`."""

    first: int
    sequence: int
    ids: list
    storage: Storage
    stored: np.ndarray | None
    may_repeat: bool = False  # an id; the last place counts
    may_be_gone: bool = False  # a key that is removed


class LiveTable:
    """A loaded version: its file's rows, and all updates since."""

    def __init__(self, snapshot, spare_rows=0, kept_rows=0):
        self.storage, self.shape = snapshot.storage, snapshot.shape
        self.keys_datatype, self.through = snapshot.keys_datatype, snapshot.through
        self.file_rows, self.spare_rows, self.kept_rows = len(snapshot), spare_rows, kept_rows
        spare = np.zeros((spare_rows, snapshot.stored.shape[1]), snapshot.stored.dtype)
        self.stored = np.concatenate([snapshot.stored, spare])
        self.where = None
        if snapshot.keys is not None:
            self.where = {int(key): row for row, key in enumerate(snapshot.keys)}
        self.free = list(range(len(self.stored) - 1, len(snapshot) - 1, -1))
        self.given_up = set()  # rows of keys that were removed
        self.first_reused = len(self.stored)  # the first row that was one key's and is another's
        self._values = None

    def __len__(self):
        return self.file_rows

    @property
    def elements(self):
        return int(np.prod(self.shape, dtype=np.int64))

    def values(self):
        if self._values is None:
            self._values = self.storage.decode(self.stored, self.elements)
        return self._values

    def check(self, batch, protected=()):
        """Raises Rejected for what the server must refuse."""
        need(batch.may_repeat or len(set(batch.ids)) == len(batch.ids), "an id twice")
        if self.where is None:
            need(batch.stored is not None, "rows of a dense table cannot be removed")
            need(all(0 <= i < len(self) for i in batch.ids), "a row outside the table")
        elif batch.stored is None:
            need(batch.may_be_gone or all(key in self.where for key in batch.ids),
                 "a key that is not there is removed")
            need(not set(batch.ids) & set(protected), "a default key is removed")
        else:
            need(len(set(batch.ids) - set(self.where)) <= len(self.free), "no spare row")

    def apply(self, batch):
        """Of a version that lacks what the batch names, as far as it can; raises Rejected where it cannot."""
        if batch.stored is None:
            for key in batch.ids:
                row = self.where.pop(key, -1)
                if row >= self.kept_rows:
                    self.free.append(row)
                    self.given_up.add(row)
        else:
            self._put(batch.ids, converted(batch, self.storage, self.elements))
        self.through = batch.sequence
        self._values = None

    def _put(self, ids, stored):
        if self.where is None:
            need(all(row < len(self) for row in ids), "an update of a row that the version lacks")
            for row, values in zip(ids, stored):
                self.stored[row] = values
            return
        need(len(set(ids) - set(self.where)) <= len(self.free), "no spare row")
        for key, values in zip(ids, stored):
            if key not in self.where:
                self.where[key] = self._take_row()
            self.stored[self.where[key]] = values

    def _take_row(self):
        row = self.free.pop()
        if row in self.given_up:
            self.first_reused = min(self.first_reused, row)
        return row

    def keep(self, rows):
        """Keeps so many rows, from the first, from new keys from here on; whether they were."""
        if rows > self.first_reused:
            return False
        self.kept_rows = max(rows, self.kept_rows)
        self.free = [row for row in self.free if row >= self.kept_rows]
        return True

    def snapshot(self):
        """As a trainer would write it who knows of all updates."""
        if self.where is None:
            return Snapshot(self.storage, self.shape, self.stored.copy(), through=self.through)
        keys = np.array(list(self.where), np.uint64)
        rows = self.stored[list(self.where.values())]
        return Snapshot(self.storage, self.shape, rows, keys, self.keys_datatype, self.through)


def converted(batch, storage, elements):
    """The batch's rows as another version stores them."""
    if batch.storage == storage:
        return batch.stored
    need(batch.storage.datatype in CONVERTIBLE and storage.datatype in (*CONVERTIBLE, "FP64"),
         "rows of another datatype")
    stored = storage.encode(batch.storage.decode(batch.stored, elements))
    need(stored is not None, "a value that does not fit")
    return stored


@dataclasses.dataclass
class Version:
    """One that is in a model's folder. `is_bad`: it cannot be loaded, whatever there is beside it."""

    number: int
    snapshot: Snapshot
    settings: dict
    folder: object = None
    writer: object = None
    is_bad: bool = False
    converts: bool = True  # a command line can name it
    deltas: dict = dataclasses.field(default_factory=dict)  # number -> batch

    @property
    def is_mapped(self):
        return self.settings.get("load") == "map" and len(self.snapshot) > 0

    def pooling(self):
        return {k: v for k, v in self.settings.items() if k in POOLING}


class TableModel:
    """A table's model: its versions, and the stream of its updates."""

    def __init__(self, name, in_folder, keeps_journal):
        self.name, self.in_folder, self.keeps_journal = name, in_folder, keeps_journal
        self.versions, self.batches, self.readers = {}, [], []
        self.served, self.live = None, None
        self.floor = 0  # what the journal may have dropped: updates that a loaded version had in its file
        self.earlier, self.holds = [], False  # rules that versions had; whether some are held
        self.hashes, self.base_rows, self.reserved_keys = False, 0, set()

    # -- rules
    def rules(self):
        return Rules(self.served.pooling(), self.live)

    def protected_keys(self):
        own = [Rules(self.served.pooling(), self.live)] + [
            Rules(self.served.pooling() | settings, self.live) for settings in self.readers]
        return {r.default for r in own if r.default is not None}

    def perhaps_protected_keys(self):
        """Default keys of versions that may be held, to go back to."""
        rules = [Rules(settings, self.live) for settings in self.earlier]
        return {r.default for r in rules if r.default is not None} if self.holds else set()

    def kept_rows(self, version):
        return max(settings.get("hash_rows", 0) if settings.get("missing") == "hash" else 0
                   for settings in (version.settings, *(version.settings | r for r in self.readers)))

    # -- loading
    def replay(self, version):
        """The version's table with all updates; raises Rejected where it cannot have them."""
        need(not version.is_bad, "a bad version")
        if version.is_mapped:
            last = self.batches[-1].sequence if self.batches else 0
            need(version.snapshot.through + 1 not in version.deltas, "a mapped version lacks a delta")
            need(last <= version.snapshot.through, "a mapped version lacks updates")
            return LiveTable(version.snapshot)
        keyed = version.snapshot.keys is not None
        live = LiveTable(version.snapshot, version.settings.get("spare_rows", 0),
                         self.kept_rows(version) if keyed else 0)
        for batch in self.batches:
            if batch.sequence > live.through:
                while batch.first > live.through + 1:
                    need(live.through + 1 in version.deltas, "updates are missing")
                    live.apply(version.deltas[live.through + 1])
                live.apply(batch)
        need(self.has_defaults(version, live), "a default key is not there")
        return live

    def has_defaults(self, version, live):
        """Whether the default keys of all that read the table are there."""
        rules = [Rules(version.pooling() | settings, live) for settings in ({}, *self.readers)]
        return all(not r.keyed or r.default is None or r.default in live.where for r in rules)

    def can_serve(self, version):
        """True, False, or None where it depends on what the journal still has."""
        try:
            self.replay(version)
        except Rejected:
            return False
        needs_journal = any(b.sequence > version.snapshot.through for b in self.batches)
        if self.keeps_journal and needs_journal and version.snapshot.through < self.floor:
            return None
        return True

    def serve(self, version):
        """It is loaded now."""
        self.earlier.append(version.pooling())
        self.live, self.served = self.replay(version), version
        self.floor = max(self.floor, version.snapshot.through)

    def take_deltas(self):
        """Those beside the version that follow; why one that does cannot be applied, or None."""
        while not self.served.is_mapped and self.sequence + 1 in self.served.deltas:
            batch = self.served.deltas[self.sequence + 1]
            try:
                self.live.check(batch, self.protected_keys())
            except Rejected as why:
                return str(why)
            self.live.apply(batch)
            self.batches.append(batch)
        return None

    def forget(self):
        """The process ends."""
        if not self.keeps_journal:
            self.batches, self.floor = [], 0
        self.served, self.live, self.earlier = None, None, []

    @property
    def sequence(self):
        return self.live.through

    @property
    def takes_updates(self):
        return self.live is not None and not self.served.is_mapped
