"""Writes tables that bagserve serves, from PyTorch's checkpoints and from the folders that trainers write, on NumPy.

A state_dict does not say which of its tensors are embeddings, nor how they pool, so both are told:

    python3 bagserve_export.py checkpoint.pt models/ \\
        --table user=user_embedding.weight,reduction=mean,padding_idx=0 \\
        --table 'emb_*=emb_l.*.weight,reduction=sum'
    bagserve serve --models models/

This needs torch, and unpickles nothing but tensors. Where the model is, bagserve_torch.export(model, "models/")
knows all of it by itself. A folder of TorchEasyRec or of NVIDIA dynamicemb (bagserve_trainers.py) names its tables,
and says how most of them pool; `deltas` and `incremental` bring what these trainers write between two exports.
A checkpoint of torch.distributed.checkpoint (bagserve_dcp.py) names its tables, too; how they pool, and which
features they have, is in the file that bagserve_torch.describe(model, "tables.json") writes: --tables tables.json.

A table becomes models/NAME/VERSION/ with table.safetensors (its rows as the tensor "values", in the type that
they have, or in a `row_format`) and config.json, which says how it pools; a collection is a config.json that
names its features, and pins them to the tables of its own version. So the folder is one that --models, the image,
the package and Kubernetes take as it is. Versions that are there are never written over. A table whose bytes are those
of the version before is a hard link to its file, where the file system has these.

Torch is not imported here but for reading a checkpoint: what has a tensor's attributes is taken for one.
"""

import argparse
import filecmp
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from bagserve_client import more_than_numbers
from bagserve_dcp import Tensor, read_checkpoint
from bagserve_trainers import (LAYOUTS, Rows, Table, deltas, guard, incremental, model_name, name_tables, read_layouts,
                               read_sparse_features, safe_name)

__all__ = ["Export", "add_described", "add_tables", "deltas", "incremental", "model_name", "read_folder"]
_ALIGNMENT = 4096  # of the data in a file
_TYPES = {"float16": "F16", "float32": "F32", "float64": "F64", "int8": "I8", "int16": "I16",
          "int32": "I32", "int64": "I64", "uint8": "U8"}
_REDUCTIONS = ("sum", "mean", "max", "sqrtn", "none")
# Keys of a model that --table may set beside its reduction.
_RULES = ("padding_idx", "include_last_offset", "default_index", "weighted_mean", "prune_invalid",
          "out_of_range", "output_datatype", "updates_through", "spare_rows")
# Pairs of keys in which the second says that the first tensor is not the weight alone. Each entry has the end of the
# tensor's key, its replacement in the other key, and whether that holds for codes only. A * is any end. The server has the
# same list (server/tables/import.c).
_MATES = (
    ("", "_qscale", False), ("", "_qbias", False),
    *(("", mate, True) for mate in ("_scale", "_zero_point", "_global_scale", "_scale_2", "_scale_inv", ".absmax", "_scales",
                                    ".quant_state*")),
    *(("weight", mate, True) for mate in ("scale_weight", "scale", "zero_point", "SCB", "scales")),
    ("_packed", "_scale", True), ("_blocks", "_scales", True), ("qweight", "scales", True), ("W_q", "scale", True),
    ("_data", "_scale", True), ("qdata", "scale", True), ("codes", "codebooks", True),
    *(("weight", mate, False) for mate in ("weight_orig", "weight_g", "parametrizations.weight.*", "lora_*")),
    ("_orig", "_mask", False), ("weight_orig", "weight_u", False), ("weight_v", "weight_g", False), ("weight_g", "weight_v", False),
    ("base_layer.weight", "lora_*", False), ("original_module.weight", "modules_to_save.*", False))
_FLOATS = ("F16", "F32", "F64", "BF16", "float16", "float32", "float64", "bfloat16")
_TABLE_FILE = "table.safetensors"
_BLOCK_BYTES = 256 << 10  # of rows that are copied at once


# ---- tensors and files ------------------------------------------------------------------------
def _array(tensor, what):
    """(type in safetensors, NumPy array) of a tensor or an array; no copy of what is on the CPU."""
    more = more_than_numbers(tensor)
    if more:
        raise ValueError(f"{what}: its array has {more}, which would be lost: give a plain one")
    layout = str(getattr(tensor, "layout", "torch.strided"))
    if layout != "torch.strided":
        raise ValueError(f"{what}: its tensor is sparse ({layout}): give it as tensor.to_dense()")
    if getattr(tensor, "is_quantized", False):
        raise ValueError(f"{what}: its tensor is quantised: give the floats, tensor.dequantize(), and "
                         f"have them quantised by row_format")
    if getattr(tensor, "is_meta", False):
        raise ValueError(f"{what}: its tensor is on the device meta and has no data")
    for attribute in ("detach", "cpu", "contiguous"):
        if not isinstance(tensor, np.ndarray) and hasattr(tensor, attribute):
            tensor = getattr(tensor, attribute)()
    if str(getattr(tensor, "dtype", "")) == "torch.bfloat16":
        kind, array = "BF16", _bf16_bits(tensor)
    else:
        array = tensor.numpy() if hasattr(tensor, "numpy") else tensor
        array = array if isinstance(array, (Rows, Tensor)) else np.asarray(array)
        kind = array.datatype if isinstance(array, Tensor) else _TYPES.get(array.dtype.name)
    if kind is None or array.ndim != 2:
        raise ValueError(f"{what}: a table has 2 dimensions of floats or integers; this one has "
                         f"{array.ndim} of {array.dtype}")
    return kind, array


def check_codes(keys, key, tensor):
    """Raises ValueError if one of the keys says that the tensor beside it is not the weight alone: codes without their scales,
    or the parts of a parametrisation, are other numbers than the module's."""
    may_be_codes = not getattr(tensor, "row_format", None) and \
        str(getattr(tensor, "datatype", None) or getattr(tensor, "rows", tensor).dtype).removeprefix("torch.") not in _FLOATS
    if f"{key}_qscale" in keys:
        raise ValueError(f"'{key}' has codes whose scales are in '{key}_qscale': save these tensors and "
                         f"'{key}_qbias' with numpy.savez, and join them with 'bagserve convert "
                         f"FILE.npz#{key},row_elements=N OUT.safetensors'")
    others = [key] if "parametrizations." in key and key.rpartition(".")[2].startswith("original") else []
    for end, mate, of_codes in _MATES:
        if key.endswith(end) and (may_be_codes or not of_codes):
            name = key.removesuffix(end) + mate
            others += [other for other in keys if other.startswith(name[:-1])] if mate.endswith("*") else [name]
    for other in others:
        if other in keys:
            raise ValueError(f"'{key}' is not the weight alone, as '{other}' says: export the numbers that the module looks up, "
                             f"which are those after dequantize(), prune.remove(), remove_parametrizations() or "
                             f"merge_and_unload()")


def _bf16_bits(tensor):
    """As int16, for which NumPy has a type; the tensor's own module knows it."""
    return tensor.view(sys.modules[type(tensor).__module__.partition(".")[0]].int16).numpy()


def write_safetensors(path, tensors, metadata=None):
    """Writes a dict of (type, array) by name, its data aligned by padding the header."""
    header, end = {"__metadata__": {"format": "pt"} | (metadata or {})}, 0
    for name, (kind, array) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(array.shape),
                        "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            little, rows = array.dtype.newbyteorder("<"), max(1, _BLOCK_BYTES * len(array) // max(1, array.nbytes))
            for first in range(0, len(array), rows):
                file.write(np.ascontiguousarray(array[first:first + rows], little).data)


def _quantise(plain, path, row_format, program):
    """Has the program's own encoders write the rows of a file."""
    command = [program, "convert", "--row-format", row_format, str(plain), str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ValueError(f"row_format needs the program {program}, which quantises: put its folder into "
                         f"PATH, or name it (program, --program)") from None
    if done.returncode:
        raise ValueError(done.stderr.strip().replace(f"{plain.parent}/", ""))


# ---- the folder -------------------------------------------------------------------------------
class Export:
    """Tables and collections that are gathered, and then written to a folder of models with `write`.

    `row_format` quantises all tables (int8, int4, ...); `program` is the bagserve that does it.
    """

    def __init__(self, row_format: Optional[str] = None, program: str = "bagserve"):
        self.tables, self.models, self.matrices, self.metadata = {}, {}, {}, {}
        self.row_format, self.program = row_format, program

    def _add(self, wanted, settings):
        name = model_name(wanted)
        if name in self.models:
            raise ValueError(f"two models would be called '{name}', the second one for '{wanted}': give "
                             f"them different names")
        self.models[name] = settings
        return name

    def table(self, name: str, rows: Any, reduction: str, projection: Any = None, keys: Any = None,
              metadata: Optional[Mapping[str, str]] = None, **rules: Any) -> str:
        """Adds a table that pools by `reduction`; `projection` is an nn.Linear that follows, `keys` are INT64, one
        for each row, `metadata` is of the file (the row format of rows of bytes), `rules` any keys of a model in the
        configuration. Returns the model's name."""
        if reduction not in _REDUCTIONS:
            raise ValueError(f"{name}: reduction is {reduction!r}; it must be one of "
                             f"{', '.join(_REDUCTIONS)}")
        kind, array = _array(rows, name)
        padding = rules.get("padding_idx")
        if padding is not None and keys is None and not -len(array) <= padding < len(array):
            raise ValueError(f"{name}: padding_idx is {padding}; it must be from {-len(array)} to "
                             f"{len(array) - 1}")
        settings = {"reduction": reduction}
        settings |= {key: value for key, value in rules.items() if value is not None}
        matrices = {} if projection is None else _projection(name, projection, array.shape[1])
        name = self._add(name, settings | {key: f"dense/{key}.npy" for key in matrices})
        self.tables[name], self.matrices[name] = {"values": (kind, array)}, matrices
        if keys is not None:
            self.tables[name]["keys"] = ("I64", keys)
        self.metadata[name] = metadata
        return name

    def collection(self, name: str, features: Mapping[str, str]) -> str:
        """Adds a collection of features, given as the tables' names by theirs. Features of tables of this export are pinned to
        its version of them; others have the version that is served by default. Returns its name."""
        return self._add(name, {"features": [{"name": feature, "model": table}
                                             for feature, table in features.items()]})

    # ---- writing ------------------------------------------------------------------------------
    def write(self, directory: Union[str, pathlib.Path], version: int = 1) -> pathlib.Path:
        """Writes all files, whole versions at a time; returns the path of the folder."""
        directory = pathlib.Path(directory)
        if not isinstance(version, int) or version < 1:
            raise ValueError(f"version is {version!r}; it must be a whole number from 1 on")
        for name in self.models:
            if (directory / name / str(version)).exists():
                raise ValueError(f"{directory / name / str(version)} is there already, and versions are not "
                                 f"written over: give the next one (version, --version)")
        directory.mkdir(parents=True, exist_ok=True)
        staging = pathlib.Path(tempfile.mkdtemp(prefix=".export-", dir=directory))
        try:
            self._write_files(staging, version)
            for name in self.tables:
                _link_unchanged(directory / name, version, staging / name / _TABLE_FILE)
            for name in self.models:  # tables before the collections over them
                (directory / name).mkdir(exist_ok=True)
                (staging / name).rename(directory / name / str(version))
        finally:
            shutil.rmtree(staging)
        return directory

    def _write_files(self, staging, version):
        for name, settings in self.models.items():
            (staging / name).mkdir()
            if name in self.tables:
                self._write_table(staging / name / _TABLE_FILE, self.tables[name], self.metadata[name])
            for key, matrix in self.matrices.get(name, {}).items():
                (staging / name / "dense").mkdir(exist_ok=True)
                np.save(staging / name / "dense" / f"{key}.npy", matrix)
            (staging / name / "config.json").write_text(json.dumps(self._pin(settings, version), indent=2) + "\n")

    def _pin(self, settings, version):
        """The settings of a model, where features of tables that are exported with it have these tables and no others."""
        if "features" not in settings:
            return settings
        return {"features": [feature | ({"version": version} if feature["model"] in self.tables else {})
                             for feature in settings["features"]]}

    def _write_table(self, path, tensors, metadata):
        if self.row_format is None:
            write_safetensors(path, tensors, metadata)
            return
        plain = path.with_name("plain.safetensors")
        write_safetensors(plain, tensors, metadata)
        _quantise(plain, path, self.row_format, self.program)
        plain.unlink()


def _link_unchanged(folder, version, path):
    """Replaces a table that was written by a link to that of the version before, if the bytes are the same. A copy stays where
    the file system has no links, or no more of them."""
    before = max((int(entry.name) for entry in folder.glob("[1-9]*") if entry.name.isdecimal() and int(entry.name) < version),
                 default=None)
    if before is None or not (folder / str(before) / _TABLE_FILE).is_file() or \
            not filecmp.cmp(folder / str(before) / _TABLE_FILE, path, shallow=False):
        return
    link = path.with_name(".link")
    try:
        os.link(folder / str(before) / _TABLE_FILE, link)
    except OSError:
        return
    link.replace(path)


def _projection(name, linear, row_elements):
    _, weight = _array(linear.weight, f"{name}: projection")
    if weight.shape[1] != row_elements:
        raise ValueError(f"{name}: the projection takes {weight.shape[1]} numbers, a row has "
                         f"{row_elements}")
    matrices = {"projection": np.ascontiguousarray(weight.T, np.float32)}
    if linear.bias is not None:
        bias = linear.bias.detach().cpu().numpy()
        matrices["bias"] = np.ascontiguousarray(bias, np.float32)
    return matrices


# ---- checkpoints ------------------------------------------------------------------------------
def _parse_table(text):
    """(name, key, settings) of NAME=KEY,reduction=mean,padding_idx=0."""
    place, *settings = text.split(",")
    name, equals, key = place.partition("=")
    if not (name and equals and key) or name.count("*") != key.count("*") or key.count("*") > 1:
        raise ValueError(f"--table {text}: it must be NAME=KEY, both with one * or none")
    rules = {}
    for setting in settings:
        rule, _, value = setting.partition("=")
        if rule not in ("reduction",) + _RULES:
            raise ValueError(f"--table {text}: '{rule}' is none of reduction, {', '.join(_RULES)}")
        try:
            rules[rule] = json.loads(value)
        except ValueError:
            rules[rule] = value
    padding = rules.get("padding_idx", 0)
    if not isinstance(padding, int) or isinstance(padding, bool):
        raise ValueError(f"--table {text}: padding_idx must be a whole number")
    return name, key, rules


def _matching(state, key):
    """(key, tensor, what * stands for) of all that are meant: tables of a folder by their names, or else by their keys."""
    pattern = re.compile("(.*)".join(map(re.escape, key.split("*"))), re.DOTALL)
    for tables in (state, getattr(state, "tensors", {})):
        found = [(name, table, "".join(match.groups())) for name, table in tables.items() if (match := pattern.fullmatch(name))]
        if found:
            return found
    return []


def _list_candidates(state):
    lines = [f"  --table {model_name(key.removesuffix('.weight'))}={key},reduction=...   "
             f"{' x '.join(map(str, tensor.shape))}"
             for key, tensor in (state or getattr(state, "tensors", {})).items() if len(tensor.shape) == 2]
    return "\n".join(lines) or "  nothing"


def add_tables(exported: Export, state: Mapping[str, Any], tables: Sequence[str],
               reduction: Optional[str] = None) -> None:
    """Adds tables of a state_dict, each given as --table; `reduction` is of those that say none."""
    if not tables:
        raise ValueError("say which of its tensors are tables, and how they pool; of 2 dimensions it has\n"
                         + _list_candidates(state))
    for text in tables:
        name, key, rules = _parse_table(text)
        matching = _matching(state, key)
        if not matching:
            raise ValueError(f"it has no '{key}'; of 2 dimensions it has\n{_list_candidates(state)}")
        for found, table, stands_for in matching:
            known = {"reduction": getattr(table, "reduction", None) or reduction} | rules
            if known["reduction"] is None:
                raise ValueError(f"--table {text}: say how it pools, as reduction={'|'.join(_REDUCTIONS)}"
                                 f" ('{found}' does not)")
            check_codes(state, found, table)
            _add_table(exported, name.replace("*", stands_for), table, known)


def _add_table(exported, name, table, known):
    if isinstance(table, Table):
        table, answers = table.as_model(known["reduction"])
        known = answers | known
    elif isinstance(table, Tensor):
        check_codes(table.beside, table.key, table)
        table.check_table()
    return exported.table(name, table, **known)


def add_collections(exported: Export, collections: Sequence[str]) -> None:
    """Adds collections over tables of an export, each given as --collection."""
    for text in collections:
        name, equals, features = text.partition("=")
        pairs = [feature.partition(":") for feature in features.split(",")]
        if not (name and equals) or not all(feature and table for feature, _, table in pairs):
            raise ValueError(f"--collection {text}: it must be NAME=FEATURE:TABLE,...")
        if len({feature for feature, _, _ in pairs}) < len(pairs):
            raise ValueError(f"--collection {text}: it has a feature twice")
        for _, _, table in pairs:
            if table not in exported.tables:
                raise ValueError(f"--collection {text}: there is no table '{table}'; there are {', '.join(exported.tables)}")
        exported.collection(name, {feature: table for feature, _, table in pairs})


# ---- descriptions of models -------------------------------------------------------------------
class _Described(NamedTuple):
    """A table as a description says that it is. What is None is not said."""

    path: str  # in the model; the checkpoint may have more before it
    name: Optional[str]
    shape: Optional[tuple]
    known: dict


def add_described(exported: Export, state: Mapping[str, Any], path: pathlib.Path) -> None:
    """Adds the tables and collections of a file that bagserve_torch.describe or TorchEasyRec (sparse_features.json) wrote."""
    content = guard(path, lambda: dict(json.loads(path.read_text())))
    is_ours = isinstance(content.get("tables"), list)
    tables, collections = guard(path, lambda: _read_description(content)) if is_ours else _read_features(path)
    if not tables:
        raise ValueError(f"{path.name} has no tables")
    names = {}
    for described in tables:
        table = _find_described(state, path, described)
        if described.shape not in (None, tuple(table.shape)):
            raise ValueError(f"{path.name} says that '{described.path}' is {' x '.join(map(str, described.shape))}, and it is "
                             f"{' x '.join(map(str, table.shape))}: a rank's file is missing, or it is of another model")
        name = described.name or _name_of(state, table)
        names[described.path] = _add_table(exported, name, table, described.known)
    for name, features in collections.items():
        exported.collection(name, guard(path, lambda: {feature: names[table] for feature, table in features.items()}))


def _read_description(content):
    """The tables and collections of a file of bagserve_torch.describe."""
    tables = []
    for table in content["tables"]:
        known = {key: value for key, value in table.items() if key not in ("name", "rows", "row_elements")}
        if not isinstance(table["name"], str) or not known.keys() <= {"reduction", *_RULES} or "reduction" not in known:
            raise ValueError(f"its table {table} is not one that bagserve_torch.describe writes")
        tables.append(_Described(table["name"], table["name"], (table["rows"], table["row_elements"]), known))
    return tables, {collection["name"]: dict(collection["features"]) for collection in content["collections"]}


_ROLES = {"ebc": "embedding_bags", "ec": "embeddings"}  # TorchEasyRec's words for TorchRec's collections


def _read_features(path):
    """The tables and collections of TorchEasyRec's file: features end in __ebc if they are pooled, and in __ec if not."""
    pooling, collections = {}, {}
    for feature, table, pools in read_sparse_features(path):
        role = feature.rpartition("__")[2]
        place = table.removesuffix(f"__{role}")
        if "." not in place and role in _ROLES:
            place = f"{_ROLES[role]}.{place}"
        if pooling.setdefault(place, pools) != pools:
            raise ValueError(f"{path.name} says that '{table}' pools by {pooling[place]} and by {pools}")
        collections.setdefault(role, {})[feature.removesuffix(f"__{role}")] = place
    return [_Described(place, None, None, {"reduction": pools}) for place, pools in pooling.items()], collections


def _find_described(state, path, described):
    """The tensor whose path ends in that of the description, or the other way round, as if the model was a part."""
    wanted = safe_name(described.path)
    tensors = getattr(state, "tensors", state)
    found = {}
    for key, tensor in tensors.items():
        place = safe_name(key.removesuffix(".weight"))
        if f".{place}".endswith(f".{wanted}") or f".{wanted}".endswith(f".{place}"):
            found[place] = tensor
    if wanted in found:
        return found[wanted]
    if len(found) != 1:
        raise ValueError(f"{path.name} has the table '{described.path}', and the checkpoint has "
                         + (f"several of this name: {', '.join(found)}" if found else "none of this name; it has\n"
                            + _list_candidates(state)))
    return next(iter(found.values()))


def _name_of(state, table):
    return next(name for name, other in state.items() if other is table)


def _load(path):
    """What torch.save wrote, as far as it is tensors and plain values."""
    import torch  # pylint: disable=import-outside-toplevel
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as problem:
        raise ValueError(problem.strerror or str(problem)) from None
    except Exception as problem:  # of many kinds, by the file and torch's version
        why = str(problem).rpartition("WeightsUnpickler error: ")[2].partition("\n")[0]
        raise ValueError(f"it is no checkpoint of tensors alone ({why}), and nothing else is unpickled: "
                         f"save module.state_dict(), or call bagserve_torch.export(module, directory) "
                         f"where the module is") from None


_NO_LAYOUT = "it has no files of " + ", ".join(layout.writer for layout in LAYOUTS)
_MOST_LISTED = 20  # keys in a message


class Folder(dict):
    """The tables of a folder by their names on the server; `tensors` are all tensors of 2 dimensions by their keys."""

    def __init__(self, tables, tensors):
        super().__init__(tables)
        self.tensors = tensors


def read_folder(source: Union[str, pathlib.Path]) -> Folder:
    """Reads the tables that a trainer wrote into a folder. Raises ValueError if it has none, or a file is damaged."""
    source = pathlib.Path(source)
    found, checkpoint = read_layouts(source), None
    if all(table.writer == "dynamicemb" for table in found.values()):  # TorchEasyRec has a dump of it in its checkpoint
        checkpoint = read_checkpoint(source)
    tensors = dict(found)
    if checkpoint is not None:
        dynamic = {path.rpartition(".")[2] for path in found}  # the tensors of these tables in a checkpoint have no rows
        dummies = {path for path in checkpoint.tables if path.rpartition(".")[2] in dynamic}
        found |= {path: tensor for path, tensor in checkpoint.tables.items() if path not in dummies}
        tensors |= {key: tensor for key, tensor in checkpoint.tensors.items() if key.removesuffix(".weight") not in dummies}
    if not tensors:
        raise ValueError(f"{_NO_LAYOUT} or torch.distributed.checkpoint; a checkpoint of torch.save is given as a file")
    return Folder(name_tables(found), tensors)


def _find_state_dict(content):
    """The checkpoint itself, or the state_dict that stands in it under a usual name."""
    def is_state(value):
        return isinstance(value, dict) and any(hasattr(v, "shape") for v in value.values())

    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not a state_dict")
    for name in ("state_dict", "model_state_dict", "model"):
        if not is_state(content) and is_state(content.get(name)):
            content = content[name]
    if not is_state(content):
        raise ValueError(f"it holds no state_dict; it has {', '.join(map(str, content))}")
    return {name: value for name, value in content.items() if hasattr(value, "shape")}


def _parser():
    parser = argparse.ArgumentParser(description="Tables for bagserve of a checkpoint, or of what a trainer wrote.")
    parser.add_argument("source", help="a file that torch.save wrote of a state_dict, or a folder that "
                        "torch.distributed.checkpoint (.metadata and *.distcp, or safetensors), TorchEasyRec "
                        "(sparse_embeddings-*.npz, RTP's model-*.safetensors) or dynamicemb wrote")
    parser.add_argument("directory", help="folder of models, where NAME/VERSION/ goes")
    parser.add_argument("--table", action="append", default=[], metavar="NAME=KEY[,RULE=VALUE]...",
                        help="the tensor or table KEY becomes the model NAME; a * in both stands for any text; of a "
                             "folder all do if none is named. RULE is "
                             f"reduction, {', '.join(_RULES)}")
    parser.add_argument("--tables", type=pathlib.Path, metavar="FILE",
                        help="which tensors are tables, how they pool, and the features of collections: a file of "
                             "bagserve_torch.describe, or TorchEasyRec's sparse_features.json")
    parser.add_argument("--collection", action="append", default=[], metavar="NAME=FEATURE:TABLE,...",
                        help="a collection of features, each of an exported table")
    parser.add_argument("--reduction", choices=_REDUCTIONS, help="of tables that say none")
    parser.add_argument("--version", type=int, default=1, metavar="N",
                        help="a whole number; the highest one is served (1)")
    parser.add_argument("--row-format", metavar="FORMAT",
                        help="quantise rows: int8, int4, ... ('bagserve convert --help' lists all)")
    parser.add_argument("--program", default="bagserve", help="the program that quantises (bagserve)")
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> None:
    options = _parser().parse_args(arguments)
    exported = Export(options.row_format, options.program)
    try:
        if pathlib.Path(options.source).is_dir():
            state, tables = read_folder(options.source), options.table or ["*=*"]
            if not (state or options.table or options.tables):
                raise ValueError(f"{_NO_LAYOUT}, and no tensor of its checkpoint is named as TorchRec's tables: give --table "
                                 f"NAME=KEY; it has {', '.join(list(state.tensors)[:_MOST_LISTED])}")
        else:
            state, tables = _find_state_dict(_load(options.source)), options.table
        if options.tables and options.table:
            raise ValueError("give --tables, or --table for each table")
        if options.tables:
            add_described(exported, state, options.tables)
        else:
            add_tables(exported, state, tables, options.reduction)
        add_collections(exported, options.collection)
        folder = exported.write(options.directory, options.version)
    except ValueError as problem:
        sys.exit(f"{options.source}: {problem}")
    except OSError as problem:
        sys.exit(str(problem))
    for name, tensors in exported.tables.items():
        _, rows = tensors["values"]
        elements = (exported.metadata[name] or {}).get("row_elements", rows.shape[1])
        chunks = f", {len(rows.chunks)} chunk{'s' * (len(rows.chunks) > 1)}" if isinstance(rows, Tensor) else ""
        print(f"{name}: {len(rows)} rows of {elements}, {exported.models[name]['reduction']}{chunks}")
    print(f"bagserve serve --models {folder}")


if __name__ == "__main__":
    main()
