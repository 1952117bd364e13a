"""Writes checkpoints of torch.distributed.checkpoint as torch does, without torch: the opcodes of its pickles, the archives of its
chunks, and the headers of its safetensors. Hostile and damaged ones are made of the same parts."""

import json
import struct
import zipfile
from typing import NamedTuple, Optional

import numpy as np

from bagserve_export import write_safetensors

DCP = "torch.distributed.checkpoint."
BAGS = "model.sparse_arch.embedding_bag_collection.embedding_bags.{}.weight"
EMBS = "sparse_dict._embedding_collection.embeddings.{}.weight"
_STORAGES = {"float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage", "float64": "DoubleStorage",
             "uint8": "ByteStorage", "int64": "LongStorage"}


# ---- pickles ----------------------------------------------------------------------------------
class Global(NamedTuple):
    module: str
    name: str


class Call(NamedTuple):
    """What REDUCE makes."""
    function: Global
    arguments: tuple


class New(NamedTuple):
    """What NEWOBJ makes, and BUILD gives a state."""
    maker: Global
    state: object


class Storage(NamedTuple):
    """A persistent id."""
    parts: tuple


def size(*numbers):
    return Call(Global("torch", "Size"), (tuple(numbers),))


class _Pickler:
    """Protocol 4 with a memo of strings, as .metadata has; protocol 2 as data.pkl has."""

    def __init__(self, protocol):
        self.protocol, self.out, self.memo = protocol, bytearray(b"\x80" + bytes([protocol])), {}

    def put(self, value):
        kind = type(value)
        if value is None or kind is bool:
            self.out += b"N" if value is None else b"\x88" if value else b"\x89"
        elif kind is int:
            self.put_int(value)
        elif kind is str:
            self.put_text(value)
        elif kind in (Global, Call, New, Storage):
            getattr(self, "put_" + kind.__name__.lower())(value)
        elif kind is tuple:
            self.put_tuple(value)
        elif kind is list:
            self.out += b"]("
            self.put_all(value)
            self.out += b"e"
        elif isinstance(value, dict):
            self.out += b"}("
            self.put_all(part for pair in value.items() for part in pair)
            self.out += b"u"
        else:
            raise TypeError(kind)

    def put_all(self, values):
        for value in values:
            self.put(value)

    def put_int(self, value):
        if 0 <= value < 256:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 65536:
            self.out += b"M" + struct.pack("<H", value)
        elif -2**31 <= value < 2**31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            packed = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
            self.out += b"\x8a" + bytes([len(packed)]) + packed

    def put_text(self, value):
        if value in self.memo:
            self.out += b"h" + bytes([self.memo[value]]) if self.memo[value] < 256 else b"j" + struct.pack("<I", self.memo[value])
            return
        text = value.encode()
        is_short = self.protocol == 4 and len(text) < 256
        self.out += b"\x8c" + bytes([len(text)]) + text if is_short else b"X" + struct.pack("<I", len(text)) + text
        self.memo[value] = len(self.memo)
        self.out += b"\x94" if self.protocol == 4 else b"q" + bytes([self.memo[value]])

    def put_tuple(self, value):
        if len(value) > 3:
            self.out += b"("
        self.put_all(value)
        self.out += b")" if not value else b"t" if len(value) > 3 else (b"\x85", b"\x86", b"\x87")[len(value) - 1]

    def put_global(self, value):
        if self.protocol == 4:
            self.put_all((value.module, value.name))
            self.out += b"\x93"
        else:
            self.out += f"c{value.module}\n{value.name}\n".encode()

    def put_call(self, value):
        self.put_all((value.function, value.arguments))
        self.out += b"R"

    def put_new(self, value):
        self.put_all((value.maker, ()))
        self.out += b"\x81"
        self.put(value.state)
        self.out += b"b"

    def put_storage(self, value):
        self.put(value.parts)
        self.out += b"Q"


def dumps(value, protocol=4):
    pickler = _Pickler(protocol)
    pickler.put(value)
    return bytes(pickler.out) + b"."


# ---- chunks and .metadata ---------------------------------------------------------------------
class Stored(NamedTuple):
    """A tensor as a checkpoint has it."""

    rows: np.ndarray
    chunks: Optional[list] = None  # of (rank, row, column, rows, columns); None: one
    kind: Optional[str] = None     # in torch; None: NumPy's. bfloat16 is given as its bits
    strides: str = "C"             # F: by columns; gaps: a view of a larger storage; zero: one row that is expanded

    def type_name(self):
        return self.kind or self.rows.dtype.name

    def all_chunks(self):
        return self.chunks or [(0, 0, 0, *self.rows.shape)]


def write_item(file, array, kind, strides="C", byte_order="little", compression=zipfile.ZIP_STORED, pickled=None,
               crc=None):
    """Appends what torch.save writes of one chunk. `crc` replaces that of the numbers. Returns (offset, length)."""
    start, (rows, columns) = file.tell(), array.shape
    storage, first, steps = array, 0, (columns, 1)
    if strides == "F":
        storage, steps = np.ascontiguousarray(array.T), (1, rows)
    elif strides == "gaps":
        storage, first, steps = np.zeros((rows + 1, 2 * columns + 1), array.dtype), 2 * columns + 2, (2 * columns + 1, 2)
        storage[1:, 1::2] = array
    elif strides == "zero":
        storage, steps = np.ascontiguousarray(array[:1]), (0, 1)
    if byte_order == "big":
        storage = storage.astype(storage.dtype.newbyteorder(">"))
    pid = Storage(("storage", Global("torch", _STORAGES[kind]), "0", "cpu", storage.size))
    pickled = pickled or dumps(Call(Global("torch._utils", "_rebuild_tensor_v2"), (
        pid, first, (rows, columns), steps, False, Call(Global("collections", "OrderedDict"), ()))), 2)
    with zipfile.ZipFile(_Part(file), "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", byte_order)
        with archive.open("archive/data/0", "w", force_zip64=True) as entry:
            for row in range(0, len(storage), 65536):
                entry.write(np.ascontiguousarray(storage[row:row + 65536]).data)
        archive.writestr("archive/version", "3\n")
        if crc is not None:
            archive.getinfo("archive/data/0").CRC = crc
    return start, file.tell() - start


class _Part:
    """The end of a file, as a file that begins there."""

    def __init__(self, file):
        self.file, self.start = file, file.tell()

    def write(self, data):
        return self.file.write(data)

    def tell(self):
        return self.file.tell() - self.start

    def seek(self, offset, whence=0):
        return self.file.seek(offset + (self.start if whence == 0 else 0), whence) - self.start

    def flush(self):
        self.file.flush()


def of_metadata(name):
    return Global(DCP + "metadata", name)


def write_dcp(folder, tensors, by_rank=False, old=False, file_a_chunk=False, packed=None, item=None, change=None):
    """Writes a checkpoint of {key: Stored}. `by_rank`: a metadata file for each rank. `old`: as torch 2.0. `item`: options of
    write_item by key. `change` gets (tensors, places) as they will be pickled, and may change both."""
    folder.mkdir(parents=True)
    ranks = sorted({chunk[0] for stored in tensors.values() for chunk in stored.all_chunks()})
    places, counts = {rank: {} for rank in ranks}, {}
    for key, stored in tensors.items():
        for rank, row, column, rows, columns in stored.all_chunks():
            counts[rank] = counts.get(rank, -1) + 1 if file_a_chunk else 0
            name = f"__{rank}_{counts[rank]}.distcp"
            (folder / name).touch()
            with open(folder / name, "r+b") as file:
                file.seek(0, 2)
                place = write_item(file, stored.rows[row:row + rows, column:column + columns], stored.type_name(), stored.strides,
                                   **(item or {}).get(key, {}))
            places[rank][key, row, column] = (name, *place)
    if by_rank:
        for rank in ranks:
            own = {key: [chunk for chunk in stored.all_chunks() if chunk[0] == rank] for key, stored in tensors.items()}
            _write_metadata(folder / f"__{rank}.metadata", tensors, own, places[rank], old, packed, change)
    else:
        chunks = {key: stored.all_chunks() for key, stored in tensors.items()}
        all_places = {place: where for own in places.values() for place, where in own.items()}
        _write_metadata(folder / ".metadata", tensors, chunks, all_places, old, packed, change)
    return folder


def _write_metadata(path, tensors, chunks, places, old, packed, change):
    owner = "torch.distributed._shard.sharded_tensor.metadata" if old else DCP + "metadata"
    listed = {key: {"size": stored.rows.shape, "type": stored.type_name(), "chunks": [chunk[1:] for chunk in chunks[key]]}
              for key, stored in tensors.items()}
    if change:
        change(listed, places)
    described = {key: New(of_metadata("TensorStorageMetadata"), {
        "properties": New(Global(owner, "TensorProperties"), (
            Global("torch", facts["type"]), Call(Global("torch.serialization", "_get_layout"), ("torch.strided",)), False,
            Call(Global(owner, "MEM_FORMAT_ENCODING" if old else "_MEM_FORMAT_ENCODING"), (0,)), False)),
        "size": size(*facts["size"]),
        "chunks": [New(of_metadata("ChunkStorageMetadata"), {"offsets": size(*chunk[:2]), "sizes": size(*chunk[2:])})
                   for chunk in facts["chunks"]]}) for key, facts in listed.items()}
    described["model.step"] = New(of_metadata("BytesStorageMetadata"), {})
    stored = {New(of_metadata("MetadataIndex"), _Frozen({"fqn": key, "offset": size(row, column), "index": None})):
              New(Global(DCP + "filesystem", "_StorageInfo"), _Frozen({"relative_path": name, "offset": start, "length": length} | (
                  {"transform_descriptors": packed} if packed else {})))
              for (key, row, column), (name, start, length) in places.items()}
    members = {"state_dict_metadata": described, "planner_data": {key: tuple(key.split(".")) for key in listed},
               "storage_data": stored}
    if not old:
        members["storage_meta"] = New(of_metadata("StorageMeta"), {
            "checkpoint_id": Call(Global("pathlib", "PosixPath"), ("/", "tmp", "x")), "save_id": "1", "load_id": None,
            "modules": []})
    path.write_bytes(dumps(New(of_metadata("Metadata"), members)))


class _Frozen(dict):
    """A dict that may be a part of a key."""

    def __hash__(self):
        return id(self)


# ---- safetensors ------------------------------------------------------------------------------
def write_dcp_safetensors(folder, tensors, merged=False):
    """HuggingFaceStorageWriter's files: one a rank with its chunks' offsets; `merged`: below a file of whole tensors."""
    kinds = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
    target = folder / "sharded" if merged else folder
    target.mkdir(parents=True)
    ranks = sorted({chunk[0] for stored in tensors.values() for chunk in stored.all_chunks()})
    for rank in ranks:
        content, offsets = {}, {}
        for key, stored in tensors.items():
            for owner, row, column, rows, columns in stored.all_chunks():
                if owner == rank:
                    content[key] = (kinds[stored.type_name()], stored.rows[row:row + rows, column:column + columns])
                    offsets[key] = {"saved_offsets": [row, column]}
        write_safetensors(target / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors", content,
                          {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0"})
    if merged:
        write_safetensors(folder / "model-00001-of-00001.safetensors",
                          {key: (kinds[stored.type_name()], stored.rows) for key, stored in tensors.items()})
        (folder / "model.safetensors.index.json").write_text("{}")
    return folder
