"""Tables as files: random rows and keys, and every format that a table may come in."""

import dataclasses
import json

import numpy as np

from numerics import CONVERTIBLE, INTEGERS, ROW_FORMATS, Storage, exact_rows, random_stored
from table_files import write_safetensors

MASK = 2**64 - 1
SAFETENSORS = {"FP64": "F64", "FP32": "F32", "FP16": "F16", "BF16": "BF16", "INT8": "I8", "INT16": "I16",
               "INT32": "I32", "INT64": "I64", "UINT8": "U8", "UINT16": "U16", "UINT32": "U32", "UINT64": "U64"}
# Keys that something might take for a sign, a mark, or the same as another one.
ODD_KEYS = [0, 1, 5, 2**31 - 1, 2**31, 2**32, 2**32 + 5, 2**53, 2**53 + 1, 2**53 - 1, 2**63 - 1, 2**63,
            2**63 + 1, MASK, MASK - 1, MASK - 4, 2**64 - 2**31, 2**64 - 2**53 - 1]


@dataclasses.dataclass
class Snapshot:
    """What a table's files say."""

    storage: Storage
    shape: tuple  # of a row
    stored: np.ndarray  # [rows, storage.width(elements)]
    keys: np.ndarray | None = None  # uint64
    keys_datatype: str = "INT64"
    through: int = 0

    @property
    def elements(self):
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self):
        return len(self.stored)

    def values(self):
        return self.storage.decode(self.stored, self.elements)

    def array(self):
        """As a file of elements holds it."""
        shape = self.stored.shape[1:] if self.storage.quantised else self.shape
        return np.ascontiguousarray(self.stored).reshape(len(self), *shape)

    def keys_array(self):
        return self.keys.view(np.int64) if self.keys_datatype == "INT64" else self.keys


# ---- random tables ---------------------------------------------------------------------------------
def random_storage(rng):
    kind = rng.random()
    if kind < 0.35:
        return Storage("FP32", str(rng.choice(list(ROW_FORMATS))))
    if kind < 0.85:
        return Storage(str(rng.choice(["FP32", "FP32", "FP32", "FP16", "BF16", "FP64"])))
    return Storage(str(rng.choice(INTEGERS)))


def random_keys(rng, count):
    """Different ones, in any order: small and large, beside those that are odd."""
    wide = rng.integers(0, MASK, 2 * count, np.uint64, endpoint=True)
    near = rng.integers(-2 * count - 5, 2 * count + 5, count).astype(np.int64).view(np.uint64)
    keys = np.unique(np.concatenate([np.array(ODD_KEYS, np.uint64), wide, near]))
    return rng.permutation(keys)[:count]


def random_shape(rng, storage):
    kind = rng.random()
    if kind < 0.12 and not storage.quantised:
        return [(), (2, 3), (1, 1, 5), (3, 1)][rng.integers(4)]
    return (int(rng.choice([1, 2, 3, 4, 7, 8, 15, 16, 17, 24, 33, 64, 65])),)


def random_snapshot(rng, storage=None, shape=None, keyed=None):
    storage = storage or random_storage(rng)
    shape = random_shape(rng, storage) if shape is None else shape
    count = int(rng.choice([0, 1, 1, 2, 2, 5, 9, 20, 40, 90, 90, 300]))
    keyed = bool(rng.integers(2)) if keyed is None else keyed
    table = Snapshot(storage, shape, None)
    table.stored = random_stored(rng, storage, count, table.elements)
    if keyed:
        table.keys = random_keys(rng, count)
        table.keys_datatype = str(rng.choice(["INT64", "UINT64"]))
    return table


def random_rows(rng, table, count):
    """New rows for an update: (tensor's array, its datatype, how they are stored), the first in the table's
    shape. FP32, or as the table has them."""
    storage = table.storage
    takes_f32 = storage.datatype in CONVERTIBLE or storage.datatype == "FP64"
    if takes_f32 and rng.integers(3):
        values, stored = exact_rows(rng, storage, count, table.elements)
        return values.reshape(count, *table.shape), "FP32", stored
    stored = random_stored(rng, storage, count, table.elements)
    if storage.quantised:
        return stored, "UINT8", stored
    return stored.reshape(count, *table.shape), storage.datatype, stored


# ---- files -----------------------------------------------------------------------------------------
class Writer:
    """Writes a snapshot into a folder of its own, as one of FORMATS. `settings` are then the keys that its
    configuration needs; `tail` what a command line has behind the path; `path` the table, relative to the
    folder ("": the folder itself)."""

    def __init__(self, rng, folder, table, mapped=False, in_folder=True):
        self.rng, self.folder, self.table = rng, folder, table
        self.mapped, self.in_folder = mapped, in_folder
        self.path, self.settings, self.in_file = "", {}, False
        fitting = [f for f in FORMATS if FORMATS[f][0](self)]
        self.format = fitting[rng.integers(len(fitting))]
        folder.mkdir(parents=True, exist_ok=True)
        FORMATS[self.format][1](self)
        if table.through and not self.in_file:
            self.settings["updates_through"] = table.through

    # -- what formats share
    def _describe_rows(self):
        storage = self.table.storage
        if storage.quantised:
            self.settings |= {"row_format": storage.row_format, "row_elements": self.table.elements}

    def _describe(self):
        """NumPy's files know neither BF16 nor row formats."""
        if self.table.storage.datatype == "BF16":
            self.settings["datatype"] = "BF16"
        self._describe_rows()

    def _array(self):
        array = self.table.array()
        if not self.mapped and self.rng.integers(4) == 0:
            array = np.asfortranarray(array)
        if not self.mapped and array.dtype.itemsize > 1 and self.rng.integers(4) == 0:
            array = array.astype(array.dtype.newbyteorder(">"))
        return array

    def _names(self):
        """Of the array and of its keys."""
        if self.rng.integers(2):
            return "values", "keys"
        self.settings["tensor"] = "t.weight"
        if self.table.keys is not None:
            self.settings["keys_tensor"] = "t.ids"
        return "t.weight", "t.ids"

    def is_plain_f32_pair(self):
        return (self.table.storage == Storage("FP32") and self.table.keys is not None and
                self.table.keys_datatype == "INT64" and len(self.table.shape) == 1 and len(self.table) > 0)

    # -- formats
    def npy(self):
        self._describe()
        np.save(self.folder / "table.npy", self._array())
        self.path = "table.npy"

    def npy_beside_keys(self):
        self.npy()
        np.save(self.folder / "ids.npy", self.table.keys_array())
        self.settings["keys"] = "ids.npy"

    def pair(self):
        self._describe()
        np.save(self.folder / "values.npy", self._array())
        np.save(self.folder / "keys.npy", self.table.keys_array())

    def npz(self):
        self._describe()
        values, keys = self._names()
        arrays = {values: self._array()}
        if self.table.keys is not None:
            arrays[keys] = self.table.keys_array()
        if self.rng.integers(2):
            arrays["a.other"] = np.zeros((3, 5))
            self.settings |= {"tensor": values}
            if self.table.keys is not None:
                self.settings |= {"keys_tensor": keys}
        np.savez(self.folder / "table.npz", **arrays)
        self.path = "table.npz"

    def raw(self):
        self._describe_rows()
        array = self.table.array()
        (self.folder / "rows.bin").write_bytes(array.tobytes())
        storage = self.table.storage
        self.settings |= {"shape": [-1 if self.rng.integers(2) and len(array) else len(array), *array.shape[1:]],
                          "datatype": "UINT8" if storage.quantised else storage.datatype}
        self.path = "rows.bin"
        if self.table.keys is not None:
            (self.folder / "keys.bin").write_bytes(self.table.keys.tobytes())
            self.settings["keys"] = "keys.bin"
            self.table.keys_datatype = "INT64"

    def huge_ctr(self):
        (self.folder / "key").write_bytes(self.table.keys.tobytes())
        (self.folder / "emb_vector").write_bytes(self.table.array().tobytes())

    def dynamicemb(self):
        ranks = int(self.rng.integers(1, 4))
        cuts = np.sort(self.rng.integers(0, len(self.table) + 1, ranks - 1))
        for rank, (keys, rows) in enumerate(zip(np.split(self.table.keys, cuts), np.split(self.table.array(), cuts))):
            for kind, array in (("keys", keys), ("values", rows)):
                name = f"t_emb_{kind}.rank_{rank}.world_size_{ranks}"
                (self.folder / name).write_bytes(array.tobytes())

    # -- safetensors
    def _tensors(self):
        """(name, type, array) of the rows, and of the keys; the metadata."""
        table, storage = self.table, self.table.storage
        values, keys = self._names()
        kind, metadata = SAFETENSORS[storage.datatype], {}
        if storage.quantised:
            kind = "U8"
            typed = storage.row_format in ("f8_e4m3", "f8_e5m2")
            if typed and self.rng.integers(2):
                kind = storage.row_format.upper()
            elif values == "values":
                metadata = {"row_format": storage.row_format, "row_elements": str(table.elements)}
            else:
                self._describe_rows()
        if table.through:
            self.in_file = bool(self.rng.integers(2))
            if self.in_file:
                metadata["updates_through"] = str(table.through)
        found = [(values, kind, table.array())]
        if table.keys is not None:
            found.append((keys, "I64" if table.keys_datatype == "INT64" else "U64", table.keys))
        return found, metadata

    def safetensors(self):
        tensors, metadata = self._tensors()
        if self.rng.integers(2):
            tensors.append(("a.other", "F32", np.zeros((2, 7), np.float32)))
            self.settings["tensor"] = tensors[0][0]
            if self.table.keys is not None:
                self.settings["keys_tensor"] = tensors[1][0]
        tensors = [tensors[i] for i in self.rng.permutation(len(tensors))]
        write_safetensors(self.folder / "table.safetensors",
                          {name: (kind, array) for name, kind, array in tensors}, metadata)
        self.path = "table.safetensors"

    def sharded(self):
        """Its parts, and an index of them; keys beside the rows, or in another part."""
        tensors, metadata = self._tensors()
        tensors.append(("a.other", "F32", np.zeros((2, 7), np.float32)))
        parts = int(self.rng.integers(1, 4))
        of = {name: f"model-{self.rng.integers(parts) + 1:05}-of-{parts:05}.safetensors" for name, _, _ in tensors}
        for part in sorted(set(of.values())):
            own = {name: (kind, array) for name, kind, array in tensors if of[name] == part}
            write_safetensors(self.folder / part, own, metadata)
        index = {"metadata": {"total_size": sum(array.nbytes for _, _, array in tensors)}, "weight_map": of}
        name = "model.safetensors.index.json"
        (self.folder / name).write_text(json.dumps(index))
        self.path = name if self.rng.integers(2) else ""
        self.parts = parts


# name -> (whether it can hold the writer's table, what writes it)
FORMATS = {
    "npy": (lambda w: w.table.keys is None, Writer.npy),
    "npy_beside_keys": (lambda w: w.table.keys is not None and not w.in_folder, Writer.npy_beside_keys),
    "pair": (lambda w: w.table.keys is not None, Writer.pair), "npz": (lambda w: True, Writer.npz),
    "raw": (lambda w: not w.in_folder, Writer.raw), "safetensors": (lambda w: True, Writer.safetensors),
    "sharded": (lambda w: True, Writer.sharded),
    "huge_ctr": (lambda w: w.is_plain_f32_pair() and not w.mapped, Writer.huge_ctr),
    "dynamicemb": (lambda w: w.is_plain_f32_pair() and not w.mapped, Writer.dynamicemb),}


def argument(folder, writer):
    """A table as a command line names it."""
    path = folder / writer.path if writer.path else folder
    settings = {k: str(folder / v) if k == "keys" else v for k, v in writer.settings.items()}
    tensor = settings.pop("tensor", None)
    text = f"{path}#{tensor}" if tensor else str(path)
    return ",".join([text, *(f"{key}={value}" for key, value in settings.items() if key != "shape")])
