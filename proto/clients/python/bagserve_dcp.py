"""Reads checkpoints of torch.distributed.checkpoint (DCP), for bagserve_export, on NumPy alone.

    bagserve_export.py CHECKPOINT FOLDER --tables tables.json

A checkpoint is a folder with `.metadata`, which lists the tensors and where their chunks are, and files of the ranks
(`__R_N.distcp`), in which each chunk is what torch.save wrote. Or it is a file of safetensors for each rank, whose headers have
the offsets of the chunks (DCP_SHARDING_INFO). `read_checkpoint` finds the tables in it; a Tensor reads its rows block by block.

Both `.metadata` and the chunks contain pickles. An interpreter of the few opcodes that torch writes reads them: it knows the names
in _METADATA_NAMES and _ITEM_NAMES, makes nothing but numbers, strings, tuples, lists and _Objects of them, and never calls
anything. Everything else that a checkpoint says is a claim, too: sizes and offsets are compared with the files, chunks must fill
their tensor without holes or overlaps, and the CRC-32 of a chunk is checked while it is read.
"""

import bisect
import io
import json
import math
import os
import pathlib
import pickletools
import re
import zipfile
import zlib
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from bagserve_trainers import first_missing, guard, read_safetensors_header

_READ_BYTES = 1 << 20  # that are read at once from a chunk whose rows do not lie one after the other
_MOST_SPAN_BYTES = 64 << 20
_MOST_DIRECTORY_BYTES = 1 << 20  # of a chunk's archive, which has about six entries


class _Type(NamedTuple):
    """An element type, by its name in torch."""

    dtype: str      # NumPy's; BF16 has none and is kept as its 16 bits
    storage: str    # in the pickle of a chunk
    datatype: str   # in safetensors


_TYPES = {"float32": _Type("<f4", "FloatStorage", "F32"), "float16": _Type("<f2", "HalfStorage", "F16"),
          "bfloat16": _Type("<i2", "BFloat16Storage", "BF16"), "float64": _Type("<f8", "DoubleStorage", "F64"),
          "int8": _Type("<i1", "CharStorage", "I8"), "uint8": _Type("<u1", "ByteStorage", "U8"),
          "int16": _Type("<i2", "ShortStorage", "I16"), "int32": _Type("<i4", "IntStorage", "I32"),
          "int64": _Type("<i8", "LongStorage", "I64"), "bool": _Type("?", "BoolStorage", "BOOL")}
_FLOATS = ("float32", "float16", "bfloat16", "float64")


# ---- pickles ----------------------------------------------------------------------------------
class _Name(NamedTuple):
    """A global of a pickle. It is never imported."""

    module: str
    name: str


class _Object:
    """An object of a pickle: the name of what makes it, the arguments, and its state. Nothing of it was run."""

    def __init__(self, maker, arguments):
        self.maker, self.arguments, self.state = maker, arguments, None

    def members(self, maker: str) -> dict:
        """Returns the members of a dataclass of this name."""
        if self.maker.name != maker or not isinstance(self.state, _Pairs):
            raise ValueError(f"it has a {self.maker.name} in place of a {maker}")
        return self.state.as_dict()


class _Pairs(list):
    """A dict of a pickle, as pairs: hashing a hostile key could take for ever."""

    def as_dict(self):
        if any(not isinstance(key, str) for key, _ in self):
            raise ValueError("it has a key that is not a string")
        return dict(self)


_DCP = "torch.distributed.checkpoint."
_OLD = "torch.distributed._shard.sharded_tensor.metadata"  # in torch 2.0 to 2.2
_OTHER_TYPES = ("complex32", "complex64", "complex128", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e4m3fnuz",
                "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "quint8", "qint8", "qint32", "quint4x2",
                "bits8", "bits16")  # of tensors that are no tables


def _names_in(module, *names):
    return {(module, name) for name in names}


_COMMON_NAMES = _names_in("torch", "Size", *_TYPES) | _names_in("collections", "OrderedDict")
_METADATA_NAMES = _COMMON_NAMES | _names_in("torch", *_OTHER_TYPES) | _names_in(
    _DCP + "metadata", "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex",
    "TensorProperties", "StorageMeta", "MEM_FORMAT_ENCODING", "_MEM_FORMAT_ENCODING") | _names_in(
        _DCP + "filesystem", "_StorageInfo") | _names_in(_OLD, "TensorProperties", "MEM_FORMAT_ENCODING") | _names_in(
            "torch.serialization", "_get_layout") | _names_in("pathlib", "PosixPath", "WindowsPath") | _names_in(
                "pathlib._local", "PosixPath", "WindowsPath")
_ITEM_NAMES = _COMMON_NAMES | _names_in("torch", *(kind.storage for kind in _TYPES.values())) | _names_in(
    "torch._utils", "_rebuild_tensor_v2")
_VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")


class _Interpreter:
    """Interprets one pickle. Its time and memory are in proportion to the length of the pickle."""

    def __init__(self, names, has_storages):
        self.names, self.has_storages = names, has_storages
        self.stack, self.marks, self.memo = [], [], {}

    def run(self, data: bytes) -> Any:
        for op, argument, _ in pickletools.genops(data):
            if op.name in _NUMBERS:
                self.stack.append(argument)
            elif op.name in _VALUES:
                self.stack.append(_VALUES[op.name])
            elif op.name == "STOP":
                return self.stack.pop()
            elif op.name not in ("PROTO", "FRAME"):
                step = getattr(self, "_" + op.name.lower(), None)
                if step is None:
                    raise ValueError(f"it has the opcode {op.name}, which torch does not write")
                step(argument)
        raise ValueError("it has no end")

    def _above_mark(self):
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _mark(self, _):
        self.marks.append(len(self.stack))

    # ---- the memo
    def _memoize(self, _):
        self.memo[len(self.memo)] = self.stack[-1]

    def _binput(self, index):
        self.memo[index] = self.stack[-1]

    _long_binput = _binput

    def _binget(self, index):
        self.stack.append(self.memo[index])

    _long_binget = _binget

    # ---- containers
    def _empty_list(self, _):
        self.stack.append([])

    def _empty_dict(self, _):
        self.stack.append(_Pairs())

    def _tuple(self, _):
        self.stack.append(tuple(self._above_mark()))

    def _tuple1(self, _):
        self.stack[-1:] = [(self.stack[-1],)]

    def _tuple2(self, _):
        self.stack[-2:] = [(self.stack[-2], self.stack[-1])]

    def _tuple3(self, _):
        self.stack[-3:] = [(self.stack[-3], self.stack[-2], self.stack[-1])]

    def _append(self, _):
        self._extend([self.stack.pop()])

    def _appends(self, _):
        self._extend(self._above_mark())

    def _extend(self, items):
        if type(self.stack[-1]) is not list:
            raise ValueError("it appends to what is not a list")
        self.stack[-1].extend(items)

    def _setitem(self, _):
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def _setitems(self, _):
        self._set(self._above_mark())

    def _set(self, items):
        if not isinstance(self.stack[-1], _Pairs) or len(items) % 2:
            raise ValueError("it sets items of what is not a dict")
        self.stack[-1].extend(zip(items[::2], items[1::2]))

    # ---- names and objects
    def _find(self, module, name):
        if (module, name) not in self.names:
            raise ValueError(f"it would call {module}.{name}, which no checkpoint of tensors needs")
        self.stack.append(_Name(module, name))

    def _global(self, argument):
        self._find(*argument.split(" ", 1))

    def _stack_global(self, _):
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("it calls what is not a name")
        self._find(module, name)

    def _reduce(self, _):
        arguments, maker = self.stack.pop(), self.stack.pop()
        if not isinstance(maker, _Name) or not isinstance(arguments, tuple):
            raise ValueError("it calls what is not a name")
        if maker.name == "OrderedDict":
            self.stack.append(_Pairs())
        else:
            self.stack.append(_numbers_of(arguments[0]) if maker.name == "Size" else _Object(maker, arguments))

    _newobj = _reduce

    def _build(self, _):
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Object):
            raise ValueError("it gives a state to what is not an object")
        self.stack[-1].state = state

    def _binpersid(self, _):
        if not self.has_storages:
            raise ValueError("it has a storage")
        self.stack.append(_Object(_Name("torch", "storage"), self.stack.pop()))


def _numbers_of(value):
    """Returns a tuple of whole numbers from 0 on; raises ValueError if `value` is something else."""
    if not isinstance(value, (tuple, list)) or any(type(number) is not int or not 0 <= number < 1 << 62 for number in value):
        raise ValueError("it has a size or an offset that is not of whole numbers")
    return tuple(value)


def _reason(problem):
    """Returns a problem in words, on one line."""
    text = f"it lacks {problem}" if isinstance(problem, (KeyError, IndexError)) else str(problem) or type(problem).__name__
    return text.partition("\n")[0]


def _unpickle(data, names, what, has_storages=False):
    try:
        return _Interpreter(names, has_storages).run(data)
    except Exception as problem:  # of many kinds, by what is cut or hostile
        raise ValueError(f"{what} cannot be read: {_reason(problem)}") from None


# ---- chunks -----------------------------------------------------------------------------------
class _Record(NamedTuple):
    """An entry of a chunk's archive: bytes of a file, and their CRC-32 (0: none was written)."""

    path: pathlib.Path
    start: int
    size: int
    crc: int

    def check(self, crc):
        if self.crc not in (0, crc):
            raise ValueError(f"{self.path.name} is damaged: its bytes from {self.start} to {self.start + self.size} have another "
                             f"CRC-32 than was written")

    def read(self):
        with open(self.path, "rb") as file:
            data = bytearray(self.size)
            _read_into(file, self.path, self.start, memoryview(data))
        self.check(zlib.crc32(data))
        return bytes(data)


def _read_into(file, path, start, view):
    file.seek(start)
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise ValueError(f"{path.name} is cut: it ends before {start + len(view)}")
        done += count


class _Numbers:
    """The rows of one chunk in a file."""

    def __init__(self, path: pathlib.Path, start: int, sizes: Tuple[int, int], strides: Tuple[int, int], dtype: np.dtype,
                 record: Optional[_Record] = None):
        self.path, self.start, self.sizes, self.strides, self.dtype = path, start, sizes, strides, dtype
        self.is_packed = strides[1] == 1 and strides[0] == sizes[1] or sizes[0] == 1 and strides[1] == 1
        self.record, self.checked_to, self.crc = record, start, 0
        whole = math.prod(sizes) * dtype.itemsize
        # The CRC-32 of a record with other bytes than these rows, or in another order, is computed on its own.
        self.checks_apart = record is not None and not (self.is_packed and (record.start, record.size) == (start, whole))

    def read(self, first: int, end: int, out: np.ndarray) -> None:
        """Reads rows into `out` (end - first, columns). Rows that are read in order are checked by their CRC-32."""
        if self.checks_apart:
            self._check_record()
        with open(self.path, "rb", buffering=0) as file:
            if self.is_packed:
                self._read_packed(file, first, end, out)
            elif self.strides[0] >= self.strides[1]:
                self._read_spans(file, first, end, out, self.strides)
            else:  # columns lie one after the other
                for column in range(self.sizes[1]):
                    self._read_spans(file, first, end, out[:, column:column + 1], (self.strides[0], 1), column * self.strides[1])

    def _read_packed(self, file, first, end, out):
        row_bytes = self.sizes[1] * self.dtype.itemsize
        start = self.start + first * row_bytes
        is_direct = out.flags.c_contiguous and out.dtype == self.dtype
        rows = out if is_direct else np.empty(out.shape, self.dtype)
        view = memoryview(rows).cast("B") if rows.size else memoryview(b"")
        _read_into(file, self.path, start, view)
        if self.record is not None and start == self.checked_to:
            self.crc, self.checked_to = zlib.crc32(view, self.crc), start + len(view)
            if self.checked_to == self.record.start + self.record.size:
                self.record.check(self.crc)
        if not is_direct:
            out[:] = rows

    def _read_spans(self, file, first, end, out, strides, offset=0):
        """Reads rows with numbers between them, some MiB at once."""
        width, rows_at_once = out.shape[1], max(1, _READ_BYTES // self.dtype.itemsize // max(1, strides[0]))
        for start in range(first, end, rows_at_once):
            count = min(rows_at_once, end - start)
            numbers = (count - 1) * strides[0] + (width - 1) * strides[1] + 1
            if numbers * self.dtype.itemsize > _MOST_SPAN_BYTES:
                raise ValueError(f"{self.path.name} has rows whose numbers are too far apart: their strides are {self.strides}")
            span, place = np.empty(numbers, self.dtype), self.start + (offset + start * strides[0]) * self.dtype.itemsize
            _read_into(file, self.path, place, memoryview(span).cast("B"))
            steps = [stride * self.dtype.itemsize for stride in strides]
            out[start - first:start - first + count] = np.lib.stride_tricks.as_strided(span, (count, width), steps, writeable=False)

    def _check_record(self):
        crc, left = 0, self.record.size
        with open(self.path, "rb", buffering=0) as file:
            while left:
                data = bytearray(min(left, _READ_BYTES))
                _read_into(file, self.path, self.record.start + self.record.size - left, memoryview(data))
                crc, left = zlib.crc32(data, crc), left - len(data)
        self.record.check(crc)
        self.checks_apart = False


class _Window(io.RawIOBase):
    """A part of a file as a file for zipfile, which is given no more than a directory at once."""

    def __init__(self, file, start, length):
        super().__init__()
        self.file, self.start, self.length, self.place = file, start, length, 0

    def seekable(self):
        return True

    def tell(self):
        return self.place

    def seek(self, offset, whence=0):
        self.place = offset + (0, self.place, self.length)[whence]
        if not 0 <= self.place <= self.length:
            raise OSError("it points outside of itself")
        return self.place

    def read(self, size=-1):
        left = self.length - self.place
        size = left if size is None or size < 0 else min(size, left)
        if size > _MOST_DIRECTORY_BYTES:
            raise ValueError("its archive has a directory that is too long")
        self.file.seek(self.start + self.place)
        data = self.file.read(size)
        self.place += len(data)
        return data


def _find_records(path, offset, length):
    """{name in the archive: _Record} of what torch.save wrote into a part of a file."""
    with open(path, "rb") as file, zipfile.ZipFile(_Window(file, offset, length)) as archive:
        records = {}
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 or entry.file_size != entry.compress_size:
                raise ValueError("it is compressed")
            file.seek(offset + entry.header_offset)
            head = file.read(30)
            names_bytes = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
            start = offset + entry.header_offset + len(head) + names_bytes
            if head[:4] != b"PK\3\4" or start + entry.file_size > offset + length:
                raise ValueError("it is cut")
            records[entry.filename.partition("/")[2]] = _Record(path, start, entry.file_size, entry.CRC)
        return records


def _find_numbers(path, key, info, sizes, kind):
    """Finds the numbers of a chunk that torch.save wrote."""
    what = f"{key} in {path.name}"
    try:
        records = _find_records(path, info["offset"], info["length"])
        byte_order = records["byteorder"].read() if "byteorder" in records and records["byteorder"].size < 20 else b"little"
        if records["data.pkl"].size > _MOST_DIRECTORY_BYTES:
            raise ValueError("its pickle is too long")
    except (zipfile.BadZipFile, KeyError, OSError, ValueError, RuntimeError, NotImplementedError) as problem:
        text = str(problem).partition("\n")[0]
        raise ValueError(f"{what} is not what torch.save writes, or is damaged or safetensors: {text}") from None
    pickled = _unpickle(records["data.pkl"].read(), _ITEM_NAMES, f"data.pkl of {what}", has_storages=True)
    try:
        storage, first, shape, strides = pickled.arguments[:4]
        _, storage_type, name, _, count = storage.arguments
        (first, count), shape, strides = _numbers_of((first, count)), _numbers_of(shape), _numbers_of(strides)
        record = records["data/" + name]
    except (AttributeError, TypeError, ValueError, KeyError):
        raise ValueError(f"data.pkl of {what} is not of a tensor") from None
    if (storage_type, shape) != (_Name("torch", _TYPES[kind].storage), tuple(sizes)) or len(strides) != 2:
        raise ValueError(f"{what} is {storage_type.name} {shape}, and .metadata says {kind} {tuple(sizes)}")
    dtype = np.dtype(_TYPES[kind].dtype).newbyteorder(">" if byte_order == b"big" else "<")
    last = first + sum((n - 1) * stride for n, stride in zip(shape, strides))
    if record.size != count * dtype.itemsize or last >= count:
        raise ValueError(f"{what} is cut: it has {record.size} bytes of numbers, and its last one is number {last} of {count}")
    if last - first + 1 < math.prod(shape):  # a small file would become a table of any size
        raise ValueError(f"{what} has strides {strides}, by which {shape} numbers lie over one another; torch writes them apart")
    return _Numbers(path, record.start + first * dtype.itemsize, shape, strides, dtype, record)


# ---- tensors ----------------------------------------------------------------------------------
class _Chunk(NamedTuple):
    """A rectangle of a tensor, and where it is: what `find` returns the _Numbers of."""

    offsets: Tuple[int, int]
    sizes: Tuple[int, int]
    path: pathlib.Path
    find: Any


class Tensor:
    """A tensor of 2 dimensions in chunks. A slice of it reads these rows, and nothing else."""

    ndim = 2

    def __init__(self, key: str, shape: Tuple[int, int], kind: str, chunks: Sequence[_Chunk]):
        self.key, self.shape, self.torch_type = key, shape, kind
        self.dtype, self.datatype = np.dtype(_TYPES[kind].dtype), _TYPES[kind].datatype
        self.chunks = sorted((chunk for chunk in chunks if math.prod(chunk.sizes)), key=lambda chunk: chunk.offsets)
        self.nbytes = math.prod(shape) * self.dtype.itemsize
        self.path = f"{key} ({chunks[0].path.name})" if chunks else key
        self.reduction, self.numbers, self.beside = None, None, ()  # how it pools; _Numbers of the chunks; keys of all tensors

    def __len__(self):
        return self.shape[0]

    def open(self) -> "Tensor":
        """Checks that the chunks fill the tensor, each once, and finds their numbers. Raises ValueError otherwise."""
        if self.numbers is None:
            if not math.prod(self.shape):
                raise ValueError(f"{self.path} is empty: its shape is {self.shape}")
            _check_cover(self.path, self.shape, self.chunks)
            self.numbers = [chunk.find() for chunk in self.chunks]
        return self

    def check_table(self) -> None:
        """Raises ValueError if the rows of the table are not numbers, or ids are not row numbers of it."""
        if self.torch_type not in _FLOATS:
            raise ValueError(f"{self.path} has rows of {self.torch_type}, which are codes without their scales: export a model of "
                             f"floats, and quantise it by --row-format")
        path = self.key[:-len(".weight")] if self.key.endswith(".weight") else self.key
        mapped = re.compile(rf"(?:.*\.)?{re.escape(path.rpartition('.')[2])}\._(?:mch|hash_zch)_.*")
        for other in sorted(self.beside):
            if mapped.fullmatch(other) or other in (f"{path}.weight_id", f"{path}.bucket"):
                raise ValueError(f"{self.path} has rows by '{other}' and not by id: export it where the model runs, as keys and "
                                 f"rows (Export.table(..., keys=...))")
        self.open()

    def __getitem__(self, where):
        first, end, _ = where.indices(self.shape[0])
        self.open()
        out = np.empty((max(0, end - first), self.shape[1]), self.dtype)
        for chunk, numbers in zip(self.chunks, self.numbers):
            (row, column), (rows, columns) = chunk.offsets, chunk.sizes
            if row >= end:
                break
            low, high = max(first, row), min(end, row + rows)
            if low < high:
                numbers.read(low - row, high - row, out[low - first:high - first, column:column + columns])
        return out


def _check_cover(what, shape, chunks):
    """Raises ValueError unless the chunks lie in the tensor, do not overlap, and leave no hole. The chunks that have a row
    are kept by their columns, so that each is compared with its two neighbours only."""
    events = []
    for chunk in chunks:
        (row, column), (rows, columns) = chunk.offsets, chunk.sizes
        if row + rows > shape[0] or column + columns > shape[1]:
            raise ValueError(f"{what}: its chunk of {rows} x {columns} at {row}, {column} lies outside of its {shape[0]} x "
                             f"{shape[1]}")
        events += [(row + rows, 0, (column, column + columns)), (row, 1, (column, column + columns))]
    active = []
    for _, is_begin, columns in sorted(events):
        place = bisect.bisect_left(active, columns)
        if not is_begin:
            del active[place]
            continue
        if place and active[place - 1][1] > columns[0] or place < len(active) and active[place][0] < columns[1]:
            raise ValueError(f"{what}: its chunks overlap")
        active.insert(place, columns)
    if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(shape):
        raise ValueError(f"{what}: its chunks do not fill its {shape[0]} x {shape[1]}: a rank's part is missing")


# ---- .metadata --------------------------------------------------------------------------------
def _read_metadata(folder, paths):
    """({key: Tensor}, all keys) of a checkpoint with one .metadata, or one of each rank."""
    facts, places, keys = {}, {}, set()
    for path in paths:
        metadata = _unpickle(path.read_bytes(), _METADATA_NAMES, path.name)
        try:
            _add_metadata(folder, metadata, facts, places, keys)
        except Exception as problem:  # of many kinds, by what is not as torch writes it
            raise ValueError(f"{path.name}: {_reason(problem)}") from None
    tensors = {}
    for key, (shape, kind, chunks) in facts.items():
        found = []
        for offsets, sizes in chunks.items():
            if (key, offsets) not in places and math.prod(sizes):
                raise ValueError(f"{key}: {paths[0].name} does not say where its chunk at {offsets} is")
            if math.prod(sizes):
                found.append(_stored_chunk(folder, key, offsets, sizes, kind, places[key, offsets]))
        tensors[key] = Tensor(key, shape, kind, found)
    return tensors, keys


def _stored_chunk(folder, key, offsets, sizes, kind, info):
    path = folder / info["relative_path"]
    return _Chunk(offsets, sizes, path, lambda: _find_numbers(path, key, info, sizes, kind))


def _add_metadata(folder, metadata, facts, places, keys):
    """Adds what one .metadata says: where chunks are, and the tensors of 2 dimensions of a known type."""
    if not isinstance(metadata, _Object):
        raise ValueError("it is not the Metadata of a checkpoint")
    members = metadata.members("Metadata")
    for index, info in members["storage_data"]:
        index, info = index.members("MetadataIndex"), info.members("_StorageInfo")
        _check_place(folder, index["fqn"], info)
        offset = index.get("offset")
        places[index["fqn"], None if offset is None else _numbers_of(offset)] = info
    for key, tensor in members["state_dict_metadata"].as_dict().items():
        if tensor.maker.name != "TensorStorageMetadata":  # any object of Python; it is never read
            continue
        keys.add(key)
        tensor = tensor.members("TensorStorageMetadata")
        shape, kind = _numbers_of(tensor["size"]), _type_of(tensor["properties"])
        if len(shape) != 2 or kind not in _TYPES:
            continue
        known = facts.setdefault(key, (shape, kind, {}))
        if known[:2] != (shape, kind):
            raise ValueError(f"{key}: the ranks disagree on its size or type")
        for chunk in tensor["chunks"]:
            chunk = chunk.members("ChunkStorageMetadata")
            offsets, sizes = _numbers_of(chunk["offsets"]), _numbers_of(chunk["sizes"])
            if len(offsets) != 2 or len(sizes) != 2:
                raise ValueError(f"{key}: a chunk of it has other dimensions")
            if not math.prod(sizes):
                continue
            if known[2].setdefault(offsets, sizes) != sizes:
                raise ValueError(f"{key}: two chunks at {offsets} have other sizes, {known[2][offsets]} and {sizes}")


def _type_of(properties):
    """The element type of TensorProperties, whose state is a tuple or, as of any dataclass, a dict."""
    if properties.maker.name != "TensorProperties":
        raise ValueError(f"it has a {properties.maker.name} in place of a TensorProperties")
    state = properties.state
    dtype = state.as_dict()["dtype"] if isinstance(state, _Pairs) else state[0]
    return dtype.name


def _check_place(folder, key, info):
    name, offset, length = info["relative_path"], info["offset"], info["length"]
    if not isinstance(key, str) or not isinstance(name, str) or pathlib.PurePath(name).name != name or "\0" in name:
        raise ValueError(f"{key} is in '{name}', which is not a file of this folder")
    _numbers_of((offset, length))
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{name} is missing, which has {key}: a rank's file was not copied")
    if offset + length > path.stat().st_size:
        raise ValueError(f"{name} is cut: it has {path.stat().st_size} bytes, and {key} ends at {offset + length}")
    packed = info.get("transform_descriptors")
    if packed:
        raise ValueError(f"{key} in {name} is packed by {', '.join(map(str, packed))[:200]}: save it without extensions")


# ---- safetensors ------------------------------------------------------------------------------
def _read_safetensors(paths):
    """({key: Tensor}, all keys) of the files of all ranks, or of whole tensors. Nothing says how large a whole tensor is: it is
    as large as its chunks."""
    found, keys = {}, set()
    for path in paths:
        guard(path, lambda: _add_safetensors(path, found, keys))
    return {key: Tensor(key, tuple(max(chunk.offsets[i] + chunk.sizes[i] for chunk in chunks) for i in range(2)), kind, chunks)
            for key, (kind, chunks) in found.items()}, keys


def _add_safetensors(path, found, keys):
    header, start = read_safetensors_header(path)
    kinds = {kind.datatype: name for name, kind in _TYPES.items()}
    sharding = json.loads(header.pop("__metadata__", {}).get("DCP_SHARDING_INFO", "{}"))
    keys |= header.keys()
    for key, facts in header.items():
        shape, (first, end), kind = _numbers_of(facts["shape"]), _numbers_of(facts["data_offsets"]), kinds.get(facts["dtype"])
        if start + end > os.path.getsize(path):
            raise ValueError(f"{path.name} is cut: it has {os.path.getsize(path)} bytes, and {key} ends at {start + end}")
        if len(shape) != 2 or kind is None:
            continue
        if end - first != math.prod(shape) * np.dtype(_TYPES[kind].dtype).itemsize:
            raise ValueError(f"{path.name} says that {key} is {facts['dtype']} {shape} in {end - first} bytes")
        offsets = _numbers_of(sharding[key]["saved_offsets"]) if sharding else (0, 0)
        if len(offsets) != 2:
            raise ValueError(f"{path.name} has an offset of {key} with other dimensions")
        known, chunks = found.setdefault(key, (kind, []))
        if known != kind:
            raise ValueError(f"{key} is {known}, and {kind} in {path.name}")
        numbers = _Numbers(path, start + first, shape, (shape[1], 1), np.dtype(_TYPES[kind].dtype))
        chunks.append(_Chunk(offsets, shape, path, lambda numbers=numbers: numbers))


# ---- folders ----------------------------------------------------------------------------------
_METADATA_FILE, _RANK_METADATA_FILE = ".metadata", re.compile(r"__(?P<rank>\d+)\.metadata")
_RTP_FILE = re.compile(r"model-\d{6,}-of-\d{6,}\.safetensors")  # TorchEasyRec's, and no checkpoint
# The tables of TorchRec's EmbeddingBagCollection and EmbeddingCollection.
_TABLE_KEY = re.compile(r"(?P<prefix>(?:.*\.)?)(?P<collection>embedding_bags|embeddings)\.(?P<table>[^.]+)\.weight")
_STATE_KEY = re.compile(r"state\.|(?:.*\.)?[^.]*optim[^.]*\.")


class Checkpoint(NamedTuple):
    """The tensors of 2 dimensions of a checkpoint, and the tables among them by their keys without '.weight'."""

    folder: pathlib.Path
    tensors: Mapping[str, Tensor]
    tables: Mapping[str, Tensor]


def _is_safetensors(path):
    return path.name.endswith(".safetensors") and not _RTP_FILE.fullmatch(path.name)


def _is_part_of_checkpoint(path):
    return path.name in (_METADATA_FILE, _METADATA_FILE + ".tmp") or path.name.endswith(".distcp") or _is_safetensors(path) or \
        bool(_RANK_METADATA_FILE.fullmatch(path.name))


def read_checkpoint(source: pathlib.Path) -> Optional[Checkpoint]:
    """Reads the checkpoint in a folder or below it, or returns None if there is none. An optimizer's own checkpoint beside it
    has no tables and is left out; two that have some are refused."""
    found, first = [], None
    for folder in sorted({path.parent for path in source.rglob("*") if _is_part_of_checkpoint(path)}):
        if any(checkpoint.folder in folder.parents for checkpoint in found):  # the ranks' files below merged ones
            continue
        tensors, keys = _read_tensors(folder)
        for tensor in tensors.values():
            tensor.beside = keys
        checkpoint = Checkpoint(folder, tensors, _find_tables(tensors))
        first = first or checkpoint
        if checkpoint.tables:
            found.append(checkpoint)
    if len(found) > 1:
        raise ValueError("it has several checkpoints: give one of "
                         + ", ".join(str(checkpoint.folder.relative_to(source)) for checkpoint in found))
    return found[0] if found else first


def _read_tensors(folder):
    paths = [folder / _METADATA_FILE] if (folder / _METADATA_FILE).exists() else \
        sorted(path for path in folder.iterdir() if _RANK_METADATA_FILE.fullmatch(path.name))
    if paths:
        ranks = {int(match["rank"]) for path in paths if (match := _RANK_METADATA_FILE.fullmatch(path.name))}
        missing = first_missing(max(ranks, default=-1) + 1, ranks)
        if missing is not None:
            raise ValueError(f"__{missing}.metadata is missing beside {paths[-1].name}")
        return _read_metadata(folder, paths)
    paths = sorted(filter(_is_safetensors, folder.iterdir()))
    if paths:
        return _read_safetensors(paths)
    raise ValueError(f"{folder.name}/{_METADATA_FILE} is missing: the save did not end, or a copy left out the files whose names "
                     f"begin with a dot")


def _find_tables(tensors):
    tables = {}
    for key, tensor in tensors.items():
        match = _TABLE_KEY.fullmatch(key)
        if match and not _STATE_KEY.match(key):
            tensor.reduction = "none" if match["collection"] == "embeddings" else None
            tables[key[:-len(".weight")]] = tensor
    return tables
