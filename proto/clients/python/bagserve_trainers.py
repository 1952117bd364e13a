"""Reads what trainers write, for bagserve_export: tables in files of several ranks, and deltas between two of them.

    bagserve_export.py SOURCE FOLDER                # tables, of the layouts in LAYOUTS
    bagserve_export.deltas(SOURCE, FOLDER)          # TorchEasyRec's delta_embedding_dump
    bagserve_export.incremental(dump, score, FOLDER)  # what NVIDIA dynamicemb's incremental_dump() returns

Rows are mapped, not read, so that a table may be larger than memory.
"""

import collections
import json
import math
import os
import pathlib
import re
import shutil
import struct
import zipfile
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

_Path = Union[str, pathlib.Path]
_QUANTISED = {"QUint8RowwiseF16": "int8_f16_back"}  # a row format by the name that TorchEasyRec gives it
_SCALES_BYTES = 4  # of such a row: scale and bias, each FP16, after the codes
_FREE_KEYS = (-1, 2**63 - 1, -2**63)  # for the row of missing ids; trainers reserve the first two
_BLOCK_ROWS = 65536
_MOST_HEADER_BYTES = 100_000_000  # of a safetensors file
_ROW_TYPES = ("float16", "float32", "float64", "uint8")
_NAME = re.compile(r"[^A-Za-z0-9._-]")


def safe_name(path: str) -> str:
    """Replaces the characters that no name of a model has by '_'."""
    return _NAME.sub("_", path)


def model_name(path: str) -> str:
    """What a module, a tensor or a table of this path is called on the server: other characters become '_'."""
    name = safe_name(path).strip(".")
    if not 0 < len(name) <= 128:
        raise ValueError(f"'{path}' makes no name of a model: those have 1 to 128 of A-Z a-z 0-9 . _ -")
    return name


# ---- arrays in files --------------------------------------------------------------------------
def guard(path: pathlib.Path, work: Callable) -> Any:
    """Returns work(), whose every failure becomes a ValueError in one line that names the file."""
    try:
        return work()
    except Exception as problem:  # of many kinds, by what is damaged
        reason = (str(problem) or type(problem).__name__).partition("\n")[0]
        raise ValueError(reason if path.name in reason else f"{path.name} cannot be read: {reason}") from None


def first_missing(count: int, there: Any) -> Optional[int]:
    """Returns the first number below `count` that is not there, or None. A count is a claim and may be huge."""
    return next((number for number in range(count) if number not in there), None)


class Rows:
    """Arrays of several files, one after the other; only slices of it are read."""

    def __init__(self, parts: Sequence[np.ndarray]):
        self.parts = list(parts)
        self.dtype, self.ndim = self.parts[0].dtype, self.parts[0].ndim
        self.shape = (sum(map(len, self.parts)), *self.parts[0].shape[1:])
        self.nbytes = sum(part.nbytes for part in self.parts)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, where):
        first, end, _ = where.indices(len(self))
        found, start = [], 0
        for part in self.parts:
            found.append(part[max(first - start, 0):max(end - start, 0)])
            start += len(part)
        return np.concatenate(found)


def is_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Compares arrays of any size in blocks; a NaN is the same as a NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return all(np.array_equal(one[first:first + _BLOCK_ROWS], other[first:first + _BLOCK_ROWS], equal_nan=True)
               for first in range(0, len(one), _BLOCK_ROWS))


def _read_npz(path):
    """Maps the arrays of an .npz file, which numpy.savez stores as they are."""
    arrays = {}
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as problem:
        raise ValueError(f"{path.name} is cut, or is no .npz file: {problem}") from None
    with archive, open(path, "rb") as file:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{path.name} has '{member.filename}' compressed: numpy.savez writes arrays that can be mapped")
            with archive.open(member) as head:
                version = np.lib.format.read_magic(head)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, is_fortran, dtype = read(head)
                head_bytes = head.tell()
            name = member.filename.removesuffix(".npy")
            if is_fortran or dtype.hasobject:
                raise ValueError(f"{path.name} has the array '{name}' in column-major order or of objects: save it as a "
                                 f"C-contiguous array of numbers")
            file.seek(member.header_offset + 26)
            name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
            start = member.header_offset + 30 + name_bytes + extra_bytes + head_bytes
            arrays[name] = _map(path, dtype, start, shape)
    return arrays


def read_safetensors_header(path: _Path) -> tuple:
    """(header, where the data begins) of a safetensors file."""
    with open(path, "rb") as file:
        file_bytes, head = os.path.getsize(path), file.read(8)
        size = int.from_bytes(head, "little")
        if len(head) < 8 or size > min(file_bytes - 8, _MOST_HEADER_BYTES):
            raise ValueError(f"{pathlib.Path(path).name} is cut: it has {file_bytes} bytes, and its header ends at {8 + size}")
        header = json.loads(file.read(size))
    if not isinstance(header, dict):
        raise ValueError(f"{pathlib.Path(path).name} has a header that is not a JSON object")
    return header, 8 + size


def _read_safetensors(path):
    header, start = read_safetensors_header(path)
    types = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I64": "<i8"}
    arrays = {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        if tensor["dtype"] not in types:
            raise ValueError(f"{path.name} has the tensor '{name}' in {tensor['dtype']}; it must be one of {', '.join(types)}")
        arrays[name] = _map(path, np.dtype(types[tensor["dtype"]]), start + tensor["data_offsets"][0], tensor["shape"])
    return arrays


def _read_raw(path):
    """Maps a file of dynamicemb, which has no header: INT64 keys, FP32 rows."""
    dtype, size = np.dtype("<i8" if "_emb_keys." in path.name else "<f4"), os.path.getsize(path)
    if size % dtype.itemsize:
        raise ValueError(f"{path.name} is cut: it has {size} bytes, which is not a multiple of {dtype.itemsize}")
    return {path.name: _map(path, dtype, 0, (size // dtype.itemsize,))}


def _map(path, dtype, start, shape):
    if start < 0 or min(shape, default=0) < 0:
        raise ValueError(f"{path.name} has an array with the shape {shape} at {start}")
    if start + math.prod(shape) * dtype.itemsize > os.path.getsize(path):
        raise ValueError(f"{path.name} is cut: it has {os.path.getsize(path)} bytes, and an array of it ends after them")
    return np.memmap(path, dtype, "r", start, tuple(shape)) if math.prod(shape) else np.zeros(shape, dtype)


# ---- layouts ----------------------------------------------------------------------------------
class Layout(NamedTuple):
    """Files of one trainer. In the patterns, `rank` and `world` are of a file, or of a table's part (`part`,
    `parts`), and `role` is what an array is: keys, default_value, scores, or else rows."""

    writer: str
    file: str
    array: str
    description: Optional[str]  # the JSON file beside it
    read: Callable


_RANK = r"-(?P<rank>\d{2,})-of-(?P<world>\d{2,})"
_RTP_RANK = r"-(?P<rank>\d{6,})-of-(?P<world>\d{6,})"  # other programs count model-00001-of-00002 from 1
LAYOUTS = (
    Layout("TorchEasyRec", rf"sparse_embeddings{_RANK}\.npz", r"(?P<table>.+)",
           "sparse_embeddings-{rank}-of-{world}.json", _read_npz),
    Layout("TorchEasyRec (dynamic)", rf"sparse_dynamic_embedding{_RANK}\.npz",
           r"(?P<table>.+)\.(?P<role>keys|values|scores|default_value)",
           "sparse_embeddings-{rank}-of-{world}.json", _read_npz),
    Layout("TorchEasyRec (RTP)", rf"model{_RTP_RANK}\.safetensors",
           r"(?P<table>.+)\.(?P<role>weight|keys|values)(?:/part_(?P<part>\d+)_(?P<parts>\d+))?",
           "model-{rank}-of-{world}.json", _read_safetensors),
    Layout("dynamicemb", r"(?P<table>.+)_emb_(?P<role>keys|values)\.rank_(?P<rank>\d+)\.world_size_(?P<world>\d+)",
           r"(?P<table>.+)_emb_(?P<role>keys|values)\.rank_(?P<part>\d+)\.world_size_(?P<parts>\d+)", None, _read_raw),
)


class Table:
    """A table of a trainer: its rows, and what is known of how it answers."""

    def __init__(self, writer, path, rows, keys=None, default=None, reduction=None, row_format=None):  # `path` is for messages
        self.writer, self.path, self.rows, self.keys, self.default = writer, path, rows, keys, default
        self.reduction, self.row_format = reduction, row_format
        self.shape = rows.shape

    def as_model(self, reduction: str) -> tuple:
        """The rows, and what else Export.table gets, of a model that pools by `reduction` and answers missing ids as
        the trainer does: by the default row, else by zeros. That row goes before all others, where hash_rows finds it."""
        known = {}
        if self.row_format:
            known["metadata"] = {"row_format": self.row_format, "row_elements": str(self.shape[1] - _SCALES_BYTES)}
        if self.keys is None:
            return self.rows, known
        default = self.default
        if default is None and reduction in ("sum", "none"):
            return self.rows, known | {"keys": self.keys, "missing": "skip"}
        if default is None:  # zeros that a mean counts
            default = self._zeros()
        taken = {key for part in self.keys.parts for key in _FREE_KEYS if (part == key).any()}
        free = [key for key in _FREE_KEYS if key not in taken]
        if not free:
            raise ValueError(f"{self.path}: it has the keys {', '.join(map(str, _FREE_KEYS))}, and its default row needs one")
        keys = Rows([np.array(free[:1], self.keys.dtype), *self.keys.parts])
        return Rows([default, *self.rows.parts]), known | {"keys": keys, "missing": "hash", "hash_rows": 1}

    def _zeros(self):
        zeros = np.zeros((1, self.shape[1]), self.rows.dtype)
        if self.row_format:  # codes of 0 with the scale 1
            zeros[0, -_SCALES_BYTES:-_SCALES_BYTES // 2] = np.ones(1, "<f2").view(np.uint8)
        return zeros


def read_layouts(source: pathlib.Path) -> dict:
    """The tables in a folder, {path: Table}; none if no trainer of LAYOUTS wrote files there."""
    found = {}
    for layout in LAYOUTS:
        for path, table in _read_layout(source, layout).items():
            if path in found:
                raise ValueError(f"two layouts have a table '{path}': {found[path].path} and {table.path}")
            found[path] = table
    own = sorted(source.rglob("*.nve"))
    if own:
        raise ValueError(f"{own[0].relative_to(source)} is of NV-embedding-cache, which reads it alone: export the "
                         f"checkpoint that it was made of")
    return found


def name_tables(found: Mapping[str, Any]) -> dict:
    """{name: table} of {path: table}: the last part of a path, or the whole path if several end in that part."""
    count = collections.Counter(path.rpartition(".")[2] for path in found)
    named = {}
    for path, table in found.items():
        last = path.rpartition(".")[2]
        try:
            name = model_name(path if count[last] > 1 else last)
        except ValueError as problem:
            raise ValueError(f"{table.path}: {problem}") from None
        if name in named:
            raise ValueError(f"two tables would be called '{name}': {named[name].path} and {table.path}")
        named[name] = table
    return named


def _read_layout(source, layout):
    """{path: Table} of all sets of files of a layout."""
    sets = {}
    for path in sorted(source.rglob("*")):
        match = re.fullmatch(layout.file, path.name)
        if match:
            groups = match.groupdict()
            # A table of files of its own is a set; so are all tables that share them.
            key = (path.parent, groups.get("table"), groups.get("role"))
            sets.setdefault(key, []).append((int(groups["rank"]), int(groups["world"]), path))
    pieces, described = {}, {}
    for (folder, _, _), files in sets.items():
        _check_ranks(source, layout, files)
        prefix = ".".join(folder.relative_to(source).parts) if layout.read is _read_raw else ""
        for rank, world, path in sorted(files):
            arrays = guard(path, lambda: layout.read(path))
            for name, array in arrays.items():
                guard(path, lambda: _add_piece(pieces, layout, prefix, rank, world, path, name, array))
            if layout.description:
                _describe(layout, path, arrays, described)
    pooling = _read_pooling(sets)
    return {table: _join(layout, table, roles, described.get(table, {}), pooling) for table, roles in pieces.items()}


def _check_ranks(source, layout, files):
    """A rank without dynamic tables writes no file of them; its JSON says so."""
    world, ranks = files[0][1], {rank for rank, _, _ in files}
    for rank, other, path in files:
        if other != world or rank >= world:
            raise ValueError(f"{path.relative_to(source)} is rank {rank} of {other}, and {files[0][2].name} one of {world}")
    if layout.writer == "TorchEasyRec (dynamic)":
        for path in files[0][2].parent.glob("sparse_embeddings-*.json"):
            match = re.fullmatch(rf"sparse_embeddings{_RANK}\.json", path.name)
            if match and int(match["world"]) == world and int(match["rank"]) not in ranks:
                guard(path, lambda: _check_files(path))
                ranks.add(int(match["rank"]))
    missing = first_missing(world, ranks)
    if missing is not None:
        raise ValueError(f"rank {missing} of {world} is missing beside {files[0][2].relative_to(source)}")


def _check_files(json_path):
    """Raises if a file is missing whose tables TorchEasyRec's JSON lists."""
    for name, facts in json.loads(json_path.read_text()).items():
        _check_file(json_path, name, facts.get("is_dynamic", False))


def _check_file(json_path, name, is_dynamic):
    path = json_path.with_suffix(".npz")
    path = path.with_name(path.name.replace("sparse_embeddings", "sparse_dynamic_embedding")) if is_dynamic else path
    if not path.exists():
        raise ValueError(f"{path.name} is missing, which has '{name}' as {json_path.name} says")


def _add_piece(pieces, layout, prefix, rank, world, path, name, array):
    match = re.fullmatch(layout.array, name)
    if not match:
        raise ValueError(f"{path.name} has the array '{name}', which {layout.writer} does not write")
    groups = match.groupdict()
    table = ".".join(filter(None, (prefix, groups["table"])))
    role = groups.get("role") or "values"
    role = "values" if role == "weight" else role
    if groups.get("part") is None and "part" in groups:  # a table that is not divided; each rank may have a copy
        part, parts = 0, 1
    else:
        part, parts = (int(groups["part"]), int(groups["parts"])) if groups.get("part") else (rank, world)
    roles = pieces.setdefault(table, {})
    held = roles.setdefault(role, {"parts": parts, "arrays": {}, "file": path.name})
    if held["parts"] != parts:
        raise ValueError(f"{table}: it has parts of {held['parts']} and, in {path.name}, of {parts}")
    before = held["arrays"].get(part)
    if before is not None and not is_same(before, array):
        raise ValueError(f"{table}: its part {part} of {parts} comes twice, with other rows in {path.name}")
    held["arrays"][part] = array


def _describe(layout, path, arrays, described):
    """Compares a file with what its JSON says of it."""
    rank, world = re.fullmatch(layout.file, path.name).group("rank", "world")
    json_path = path.with_name(layout.description.format(rank=rank, world=world))
    if not json_path.exists():
        raise ValueError(f"{json_path.name} is missing, which says what {path.name} has")
    for name, facts in guard(json_path, lambda: json.loads(json_path.read_text()).items()):
        guard(json_path, lambda: _check_facts(layout, path, json_path, arrays, name, facts, described))


def _check_facts(layout, path, json_path, arrays, name, facts, described):
    is_dynamic = layout.writer == "TorchEasyRec (dynamic)"
    if facts.get("is_dynamic", is_dynamic) != is_dynamic:
        _check_file(json_path, name, not is_dynamic)
        return
    array = arrays.get(facts.get("value_name", name))
    want = facts.get("storage_shape", facts["shape"])
    if array is None or list(array.shape) != list(want):
        raise ValueError(f"{json_path.name} says that '{name}' is {' x '.join(map(str, want))}, and {path.name} has "
                         + ("none" if array is None else " x ".join(map(str, array.shape))))
    match = re.fullmatch(layout.array, facts.get("value_name", name))
    names = [str(feature) for feature in facts.get("feat_name_impl", [])]
    described[match["table"]] = {"format": facts.get("quant", {}).get("format"),
                                 "is_sequence": bool(names) and all(feature.endswith("__ec") for feature in names)}


def _read_pooling(sets):
    """{path of a table: how its features pool} of TorchEasyRec's sparse_features.json."""
    pooling = {}
    for folder in {key[0] for key in sets}:
        path = folder / "sparse_features.json"
        if path.exists():
            for _, table, pools in read_sparse_features(path):
                pooling.setdefault(table, set()).add(pools)
    return pooling


def read_sparse_features(path: pathlib.Path) -> list:
    """[(feature, path of its table, how it pools)] of TorchEasyRec's sparse_features.json."""
    features = guard(path, lambda: [(name, str(facts["embedding_name"]), facts["pooling"].lower())
                                    for name, facts in json.loads(path.read_text()).items()])
    for name, _, pools in features:
        if pools not in ("sum", "mean", "none"):
            raise ValueError(f"{path.name} says that '{name}' pools by '{pools}'; it must be sum, mean or none")
    return features


def _join(layout, path, roles, facts, pooling):
    """The table of its parts. Messages name the table and its first file."""
    where = f"{path} ({next(iter(roles.values()))['file']})"
    for role, held in roles.items():
        missing = first_missing(held["parts"], held["arrays"])
        if missing is not None and layout.writer not in ("TorchEasyRec", "TorchEasyRec (dynamic)"):
            raise ValueError(f"{where}: part {missing} of {held['parts']} of its {role} is missing")
    def arrays_of(role):
        return roles[role]["arrays"] if role in roles else {}
    rows, keys = arrays_of("values"), arrays_of("keys")
    if keys.keys() != rows.keys() and (keys or not rows or layout.read is _read_raw):
        raise ValueError(f"{where}: its keys and its values are of other ranks")
    if layout.read is _read_raw:
        rows = _cut_rows(where, rows, keys)
        keys = {part: keys[part] for part in rows}
    for part, array in keys.items():
        if array.ndim != 1 or array.dtype.name != "int64" or not rows[part].shape or len(array) != len(rows[part]):
            raise ValueError(f"{where}: rank {part} has keys of {array.dtype} {array.shape} for rows {rows[part].shape}")
    rows = [rows[part] for part in sorted(rows)]
    if len({(array.ndim, array.shape[1:], array.dtype) for array in rows}) != 1 or rows[0].ndim != 2 or not rows[0].shape[1]:
        raise ValueError(f"{where}: its ranks have rows of other shapes: {', '.join(str(a.shape) for a in rows)}")
    if rows[0].dtype.name not in _ROW_TYPES:
        raise ValueError(f"{where}: its rows are {rows[0].dtype}; they must be one of {', '.join(_ROW_TYPES)}")
    if layout.writer == "TorchEasyRec" and len(rows) > 1 and all(is_same(rows[0], array) for array in rows[1:]):
        raise ValueError(f"{where}: all ranks have the same rows, and the files do not tell whether these are copies "
                         f"(data parallel) or parts: export with one rank")
    pools = pooling.get(path, {"none"} if facts.get("is_sequence") else set())
    if len(pools) > 1:
        raise ValueError(f"{where}: its features pool by {' and by '.join(sorted(pools))}")
    return Table(layout.writer, where, Rows(rows), Rows([keys[part] for part in sorted(keys)]) if keys else None,
                 _find_default(where, rows[0], list(arrays_of("default_value").values())), next(iter(pools), None),
                 _find_format(where, facts, rows[0]))


def _find_default(path, rows, defaults):
    if any(not is_same(defaults[0], row) for row in defaults[1:]):
        raise ValueError(f"{path}: its default_value differs between ranks, and missing ids can get one row: export with "
                         f"one rank")
    if defaults and (defaults[0].shape, defaults[0].dtype) != ((1, rows.shape[1]), rows.dtype):
        raise ValueError(f"{path}: its default_value is {defaults[0].dtype} {defaults[0].shape}, and its rows are "
                         f"{rows.dtype} of {rows.shape[1]}")
    return np.asarray(defaults[0]) if defaults else None


def _find_format(path, facts, rows):
    written = facts.get("format")
    if written is None and rows.dtype == np.uint8:
        raise ValueError(f"{path}: it has rows of bytes, and no JSON that says what they are")
    if written is not None and written not in tuple(_QUANTISED):
        raise ValueError(f"{path}: its rows are {written}; of quantised rows only {', '.join(_QUANTISED)} are known")
    if written is not None and (rows.dtype != np.uint8 or rows.shape[1] <= _SCALES_BYTES):
        raise ValueError(f"{path}: its rows are {rows.dtype} of {rows.shape[1]}; {written} needs bytes, and more than "
                         f"{_SCALES_BYTES} of them")
    return _QUANTISED.get(written)


def _cut_rows(path, rows, keys):
    """Of dynamicemb: the width follows from the sizes. Ranks without keys have no rows."""
    cut = {}
    for part, array in sorted(rows.items()):
        count = len(keys[part])
        if (not count and len(array)) or (count and (not len(array) or len(array) % count)):
            raise ValueError(f"{path}: rank {part} has {count} keys and {len(array)} FP32, which is not a multiple: a "
                             f"file is cut")
        if count:
            cut[part] = array.reshape(count, -1)
    if not cut:
        raise ValueError(f"{path}: it has no keys, so that nothing tells how wide its rows are")
    return cut


# ---- deltas -----------------------------------------------------------------------------------
def _names_of(path):
    """What the model of a table may be called: by its whole path, else by the last part of that."""
    return model_name(path), model_name(path.rpartition(".")[2])


class _Facts(NamedTuple):
    """What a delta must fit: the rows of a served or exported table."""

    is_keyed: bool
    row_format: Optional[str]
    rows: int
    row_elements: int


class _Folder:
    """A folder of models whose newest versions get deltas, and what was taken already: deltas.json in it."""

    def __init__(self, folder, ready_file):
        self.folder, self.ready_file = pathlib.Path(folder), ready_file
        self.path = self.folder / "deltas.json"
        self.state = {"steps": [], "numbers": {}, "scores": {}, "tables": {}}
        if self.path.exists():
            self.state |= json.loads(self.path.read_text())

    def last_step(self):
        return max(self.state["steps"], default=None)

    def find(self, path):
        """The name of the model of a table, or None."""
        return next((name for name in _names_of(path) if self._versions(name)), None)

    def _versions(self, name):
        if not (self.folder / name).is_dir():
            return []
        return sorted((path for path in (self.folder / name).iterdir() if re.fullmatch("[1-9][0-9]*", path.name)),
                      key=lambda path: int(path.name))

    def facts(self, name):
        """The facts of the newest version."""
        version = self._versions(name)[-1]
        return guard(version, lambda: self._read_facts(version))

    @staticmethod
    def _read_facts(version):
        settings = _read_json(version / "config.json")
        if (version / "table.safetensors").exists():
            header, _ = read_safetensors_header(version / "table.safetensors")
            written = header.get("__metadata__", {})
            rows, row_elements = header["values"]["shape"]
            return _Facts("keys" in header, written.get("row_format"), rows, int(written.get("row_elements", row_elements)))
        is_keyed = (version / "keys.npy").exists()
        rows, row_elements = np.load(version / ("values.npy" if is_keyed else "table.npy"), mmap_mode="r").shape
        return _Facts(is_keyed, settings.get("row_format"), rows, int(settings.get("row_elements", row_elements)))

    def put(self, name, step, ids, rows, deleted):
        """Writes the deltas of one step, each at once. Those that are there from a call that broke stay."""
        if len(ids):
            self._write(name, step, {"keys.npy" if self.facts(name).is_keyed else "indices.npy": ids, "rows.npy": rows})
        if len(deleted):
            self._write(name, step, {"deleted_keys.npy": deleted})
        return True

    def _write(self, name, step, arrays):
        versions = self._versions(name)
        there = {int(path.name): path for version in versions for path in (version / "deltas").glob("[1-9]*")}
        for number in sorted(there)[-2:]:
            if _read_json(there[number] / "delta.json").get("step") == step and \
                    all((there[number] / file).exists() for file in arrays):
                self.state["numbers"][name] = max(there)
                return
        through = _read_json(versions[-1] / "config.json").get("updates_through", 0)
        number = 1 + max(there.keys() | {through, self.state["numbers"].get(name, 0)})
        final = versions[-1] / "deltas" / str(number)
        staging = final.with_name(f".{number}")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        for file, array in arrays.items():
            np.save(staging / file, array)
        (staging / "delta.json").write_text(json.dumps({"step": step}) + "\n")
        if self.ready_file:
            (staging / self.ready_file).touch()
        staging.rename(final)
        self.state["numbers"][name] = number

    def end_step(self, step, steps):
        """Remembers a step, and of earlier ones those whose files are still there."""
        self.state["steps"] = [taken for taken in self.state["steps"] if taken in steps] + [step]
        self.save()

    def save(self):
        partial = self.path.with_name(".deltas.json")
        partial.write_text(json.dumps(self.state) + "\n")
        partial.replace(self.path)


class _Server:
    """A server that gets deltas as requests. Step S has the numbers 2 S - 1, its rows, and 2 S, its removed keys; each
    batch stands for all numbers since the step before, so the server keeps what was taken."""

    def __init__(self, client):
        self.client, self.through, self.models, self.state = client, {}, {}, {"tables": {}}

    def _ask(self, name):
        if name not in self.models:
            facts = self.client.metadata(name)["parameters"]
            self.models[name], self.through[name] = facts, facts["updates_through"]
        return self.models[name]

    def last_step(self):
        return max((through // 2 for through in self.through.values()), default=0) or None

    def find(self, path):
        served = self.client.models()
        name = next((name for name in _names_of(path) if name in served), None)
        if name is not None:
            self._ask(name)
        return name

    def facts(self, name):
        served = self._ask(name)
        row_format = None if served["row_format"] == "plain" else served["row_format"]
        return _Facts(served["keyed"], row_format, served["rows"], served["row_elements"])

    def put(self, name, step, ids, rows, deleted):
        """Sends what the server does not have of a step. Returns whether that was anything."""
        is_keyed, through = self.facts(name).is_keyed, self.through[name]
        if through >= 2 * step:
            return False
        ids = {"keys" if is_keyed else "indices": ids}
        if through < 2 * step - 1:
            self.client.update(name, rows, sequence=2 * step - 1, first_sequence=2 * (through // 2) + 1, **ids)
        if is_keyed:  # a merged batch may remove keys that are gone
            self.client.delete(name, deleted, sequence=2 * step, first_sequence=2 * step - 1)
        else:
            self.client.update(name, rows[:0], sequence=2 * step, indices=ids["indices"][:0])
        self.through[name] = 2 * step
        return True

    def end_step(self, step, steps):
        pass


def _read_json(path):
    return json.loads(path.read_text()) if path.exists() else {}


_DELTA = re.compile(r".+_step_(?P<step>\d+)(?:_rank_(?P<rank>\d+)_of_(?P<world>\d+))?\.parquet")
_COLUMNS = ("global_step", "rank", "world_size", "table_fqn", "key_id", "embedding")


def deltas(source: _Path, folder: Optional[_Path] = None, interval: Optional[int] = None, server: Any = None,
           after: Optional[int] = None, skip: Sequence[str] = (), ready_file: Optional[str] = None) -> list:
    """Takes the deltas that TorchEasyRec wrote into `source` (delta_embedding_dump) since the last call. Returns the
    steps that it took.

    Each complete set of ranks becomes a delta of each of its tables in the folder of models, or batches of updates for
    `server`, a Client or an address. A row of zeros removes its key. With `interval`, dump_interval_steps, a step that
    is missing shows; `after` is the step of the exported tables. Tables in `skip` are left out, others must be there.
    Each delta gets the `ready_file` that the server waits for.

    Raises ValueError with step and rank or file, if a set is not whole or not in order: the steps before it are taken,
    nothing of it or after it is.
    """
    if (folder is None) == (server is None):
        raise ValueError("give a folder of models, or a server")
    if isinstance(server, str):
        from bagserve_client import Client  # pylint: disable=import-outside-toplevel
        server = Client(server)
    target = _Folder(folder, ready_file) if server is None else _Server(server)
    sets = _find_sets(pathlib.Path(source))
    if server is not None:  # the tables of the first and of the newest whole set know how far the server is
        for order in (sorted(sets), sorted(sets, reverse=True)):
            any(_is_whole(step, sets[step], target, skip) for step in order)
    last = target.last_step()
    known = set(target.state["steps"]) if server is None else None
    last = after if last is None else last
    taken = []
    for step in sorted(sets):
        if last is not None and (step < last or step == last and server is None):
            if known is not None and step not in known and step > (after or min(known, default=step)):
                raise ValueError(f"step {step} comes after step {last}, which was taken")
            continue
        if interval and last is not None and step > (last // interval + 1) * interval:
            raise ValueError(f"step {(last // interval + 1) * interval} is missing between step {last} and "
                             f"{sets[step][0].name}")
        found = _read_set(step, sets[step], target, skip)
        puts = [target.put(name, step, *change) for name, (_, *change) in found.items()]
        target.state["tables"] |= {name: table for name, (table, *_) in found.items()}
        target.end_step(step, sets)
        if step != last and (any(puts) or server is None):  # the server may have had its last step, or a part of it
            taken.append(step)
        last = step
    return taken


def _is_whole(step, paths, target, skip):
    try:
        _read_set(step, paths, target, skip)
    except ValueError:
        return False
    return True


def _find_sets(source):
    """{step: paths} of all parquet files, in the folder or in step_N/ in it."""
    sets = {}
    for path in sorted(source.rglob("*.parquet")):
        match = _DELTA.fullmatch(path.name)
        if not match:
            raise ValueError(f"{path.relative_to(source)} is not a delta: those are PREFIX_step_N.parquet, or "
                             f"step_N/PREFIX_step_N_rank_R_of_W.parquet")
        sets.setdefault(int(match["step"]), []).append(path)
    return sets


def _read_set(step, paths, target, skip):
    """{model: (table, ids, rows, removed keys)} of one step, checked whole."""
    worlds = {_place_of(path)[1] for path in paths}
    ranks = [_place_of(path)[0] for path in paths]
    if len(worlds) > 1 or len(set(ranks)) < len(ranks):
        raise ValueError(f"step {step} comes twice: {paths[0].name} and {paths[-1].name}")
    world = worlds.pop()
    missing = first_missing(world, set(ranks))
    if missing is not None:
        raise ValueError(f"step {step}: rank {missing} of {world} is missing beside {paths[0].name}")
    tables = {}
    for path in paths:
        for table, keys, rows in _read_parquet(step, path):
            tables.setdefault(table, []).append((keys, rows))
    found = {}
    for table, chunks in sorted(tables.items()):
        name = target.find(table)
        if name is None and not {table, table.rpartition(".")[2]} & set(skip):
            raise ValueError(f"step {step}: there is no model for its table '{table}': export it, or leave it out by skip")
        if name is None or {table, name} & set(skip):
            continue
        other = found[name][0] if name in found else target.state["tables"].get(name, table)
        if other != table:
            raise ValueError(f"step {step}: the tables '{other}' and '{table}' would both change the model '{name}': export "
                             f"them under their whole names, or leave one out by skip")
        found[name] = table, *_split(step, table, chunks, target.facts(name))
    return found


def _place_of(path):
    match = _DELTA.fullmatch(path.name)
    return (int(match["rank"]), int(match["world"])) if match["rank"] else (0, 1)


def _read_parquet(step, path):
    """(table, keys, rows) of each table in a file, whose columns must say what its name does."""
    try:
        from pyarrow import parquet  # pylint: disable=import-outside-toplevel
    except ImportError:
        raise ValueError("deltas are parquet files, and reading them needs pyarrow: pip install pyarrow") from None
    try:
        content = parquet.read_table(path)
        columns = {name: content.column(name).combine_chunks() for name in _COLUMNS}
    except Exception as problem:  # of many kinds, by what is damaged
        raise ValueError(f"step {step}: {path.name} cannot be read: {str(problem).splitlines()[0]}") from None
    rank, world = _place_of(path)
    folder_step = re.fullmatch(r"step_(\d+)", path.parent.name)
    wanted = {"global_step": step, "rank": rank, "world_size": world}
    for name, number in wanted.items():
        wrong = columns[name].to_numpy(zero_copy_only=False)
        wrong = wrong[wrong != number]
        if len(wrong):
            raise ValueError(f"step {step}: {path.name} has {name} {wrong[0]}, and its name says {number}")
    if folder_step and int(folder_step[1]) != step:
        raise ValueError(f"step {step}: {path.name} is in the folder {path.parent.name}")
    names = np.array(columns["table_fqn"].to_pylist(), object)
    keys = columns["key_id"].to_numpy(zero_copy_only=False)
    lengths = columns["embedding"].value_lengths().to_numpy(zero_copy_only=False)
    numbers = columns["embedding"].flatten().to_numpy(zero_copy_only=False)
    starts = np.cumsum(lengths) - lengths
    for table in dict.fromkeys(names):
        mine = names == table
        width = int(lengths[mine][0])
        if (lengths[mine] != width).any():
            raise ValueError(f"step {step}: {path.name} has rows of other widths of table '{table}'")
        yield table, keys[mine], numbers[starts[mine][:, None] + np.arange(width)]


def _split(step, table, chunks, model):
    """(ids, rows, removed keys) of the chunks of all ranks. Copies of a row, of data-parallel tables, become one."""
    if len({(rows.shape[1], rows.dtype) for _, rows in chunks}) > 1:
        raise ValueError(f"step {step}: the ranks have rows of other widths or types of table '{table}'")
    keys, rows = (np.concatenate(arrays) for arrays in zip(*chunks))
    _check_fit(f"step {step}: table '{table}'", keys, rows, model)
    unique, first, back = np.unique(keys, return_index=True, return_inverse=True)
    if len(unique) < len(keys):
        one, other = rows[first][back], rows
        differs = ((one != other) & ((one == one) | (other == other))).any(axis=1)  # a NaN is the same as a NaN
        if differs.any():
            raise ValueError(f"step {step}: key {keys[differs][0]} of table '{table}' comes twice, with other rows")
        keys, rows = unique, rows[first]
    decoded = rows
    if rows.dtype == np.uint8:
        from bagserve_client import decode_rows  # pylint: disable=import-outside-toplevel
        decoded = decode_rows(rows, "int8_f16_back", rows.shape[1] - _SCALES_BYTES)
    rows = rows if rows.dtype == np.uint8 and model.row_format == "int8_f16_back" else decoded.astype(np.float32, copy=False)
    removed = ~decoded.any(axis=1) if model.is_keyed else np.zeros(len(keys), bool)
    return keys[~removed], rows[~removed], keys[removed]


def _check_fit(what, ids, rows, model):
    """Refuses rows that the server would refuse: a delta that it cannot apply stops those after it."""
    width = rows.shape[1] - _SCALES_BYTES * (rows.dtype == np.uint8)
    if width != model.row_elements:
        raise ValueError(f"{what} has rows of {width} elements, and those of its model have {model.row_elements}")
    if not model.is_keyed and len(ids) and not 0 <= min(ids) <= max(ids) < model.rows:
        outside = ids[(ids < 0) | (ids >= model.rows)][0]
        raise ValueError(f"{what} has the row {outside}, and its model has {model.rows} rows, from 0 on")


def incremental(dump: tuple, before: Union[int, Mapping[str, Mapping[str, int]]], folder: _Path,
                ready_file: Optional[str] = None) -> Mapping[str, Mapping[str, int]]:
    """Writes what dynamicemb's incremental_dump(model, before) returned as a delta of each table in a folder of models.
    Returns the scores for the next call. Raises ValueError, with nothing written, if it does not follow the last dump:
    its threshold must be the score that the last one ended with."""
    tensors, scores = dump
    target = _Folder(folder, ready_file)
    known, changes = target.state["scores"], []
    for collection, tables in tensors.items():
        for table, (keys, rows) in tables.items():
            path = f"{collection}.{table}"
            start = before if isinstance(before, int) else before.get(collection, {}).get(table)
            end = scores[collection][table]
            _check_chain(path, start, end, known.get(path))
            name = target.find(path)
            if name is None:
                raise ValueError(f"there is no model for the table '{path}': export DynamicEmbDump's folder first")
            keys, rows = (np.asarray(t.detach().cpu().numpy() if hasattr(t, "detach") else t) for t in (keys, rows))
            if len(keys) != len(rows) or len(np.unique(keys)) < len(keys):
                raise ValueError(f"{path}: it has {len(keys)} keys, {len(np.unique(keys))} of them different, and "
                                 f"{len(rows)} rows")
            _check_fit(path, keys, rows, target.facts(name))
            other = next((one for one, served, *_ in changes if served == name), target.state["tables"].get(name, path))
            if other != path:
                raise ValueError(f"the tables '{other}' and '{path}' would both change the model '{name}': export them under "
                                 f"their whole names")
            changes.append((path, name, end, keys, rows))
    for path, name, end, keys, rows in changes:
        target.put(name, f"{path} {end}", keys, rows.astype(np.float32, copy=False), ())
        known[path] = end
        target.state["tables"][name] = path
    target.save()
    return scores


def _check_chain(path, start, end, last):
    if start is None:
        raise ValueError(f"{path}: give the score before the dump, which incremental_dump() got")
    if end < start:
        raise ValueError(f"{path}: the dump begins at score {start} and ends at {end}, before that")
    if last is not None and end == last and start != last:
        raise ValueError(f"{path}: the dump that ends at score {end} comes twice")
    if last is not None and start != last:
        raise ValueError(f"{path}: the dump begins at score {start}, and the last one ended at {last}: one of them is "
                         f"{'missing' if start > last else 'out of order'}")
