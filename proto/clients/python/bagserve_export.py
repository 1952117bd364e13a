"""Writes tables that bagserve serves, from PyTorch's checkpoints and from the folders that trainers write, on NumPy.

A state_dict does not say which of its tensors are embeddings, nor how they pool, so both are told:

    python3 bagserve_export.py checkpoint.pt models/ \\
        --table user=user_embedding.weight,reduction=mean,padding_idx=0 \\
        --table 'emb_*=emb_l.*.weight,reduction=sum'
    bagserve serve --models models/

This needs torch, and unpickles nothing but tensors. Where the model is, bagserve_torch.export(model, "models/")
knows all of it by itself. A folder of TorchEasyRec or of NVIDIA dynamicemb (bagserve_trainers.py) names its tables,
and says how most of them pool; `deltas` and `incremental` bring what these trainers write between two exports.

A table becomes models/NAME/VERSION/ with table.safetensors (its rows as the tensor "values", in the type that
they have, or in a `row_format`) and config.json, which says how it pools; a collection is a config.json that
names its features. So the folder is one that --models, the image, the package and Kubernetes take as it is;
bagserve.json beside them says the same for --config, and is left as it is where it serves the folder already.
Versions that are there are never written over.

Torch is not imported here but for reading a checkpoint: what has a tensor's attributes is taken for one.
"""

import argparse
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from typing import Any, Mapping, Optional, Sequence, Union

import numpy as np

from bagserve_trainers import Rows, Table, deltas, incremental, model_name, read_tables

__all__ = ["Export", "add_tables", "deltas", "incremental", "model_name"]
_ALIGNMENT = 4096  # of the data in a file
_TYPES = {"float16": "F16", "float32": "F32", "float64": "F64", "int8": "I8", "int16": "I16",
          "int32": "I32", "int64": "I64", "uint8": "U8"}
_REDUCTIONS = ("sum", "mean", "max", "sqrtn", "none")
# Keys of a model that --table may set beside its reduction.
_RULES = ("padding_idx", "include_last_offset", "default_index", "weighted_mean", "prune_invalid",
          "out_of_range", "output_datatype", "updates_through", "spare_rows")
_BLOCK_ROWS = 65536


# ---- tensors and files ------------------------------------------------------------------------
def _array(tensor, what):
    """(type in safetensors, NumPy array) of a tensor or an array; no copy of what is on the CPU."""
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
        array = array if isinstance(array, Rows) else np.asarray(array)
        kind = _TYPES.get(array.dtype.name)
    if kind is None or array.ndim != 2:
        raise ValueError(f"{what}: a table has 2 dimensions of floats or integers; this one has "
                         f"{array.ndim} of {array.dtype}")
    return kind, array


def check_codes(state, key):
    """Codes are no rows: pooled without their scales they would be other numbers."""
    if f"{key}_qscale" in state:
        raise ValueError(f"'{key}' has codes whose scales are in '{key}_qscale': save these tensors and "
                         f"'{key}_qbias' with numpy.savez, and join them with 'bagserve convert "
                         f"FILE.npz#{key},row_elements=N OUT.safetensors'")


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
            little = array.dtype.newbyteorder("<")
            for first in range(0, len(array), _BLOCK_ROWS):
                block = np.ascontiguousarray(array[first:first + _BLOCK_ROWS], little)
                file.write(block.tobytes())


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
        """Adds a collection of features, given as the tables' names by theirs. Returns its name."""
        return self._add(name, {"features": [{"name": feature, "model": table}
                                             for feature, table in features.items()]})

    # ---- writing ------------------------------------------------------------------------------
    def write(self, directory: Union[str, pathlib.Path], version: int = 1) -> pathlib.Path:
        """Writes all files, whole versions at a time; returns the path of bagserve.json."""
        directory = pathlib.Path(directory)
        if not isinstance(version, int) or version < 1:
            raise ValueError(f"version is {version!r}; it must be a whole number from 1 on")
        configuration = _Configuration(directory, self.models)
        for name in self.models:
            if (directory / name / str(version)).exists():
                raise ValueError(f"{directory / name / str(version)} is there already, and versions are not "
                                 f"written over: give the next one (version, --version)")
        directory.mkdir(parents=True, exist_ok=True)
        staging = pathlib.Path(tempfile.mkdtemp(prefix=".export-", dir=directory))
        try:
            self._write_files(staging)
            for name in self.models:  # tables before the collections over them
                (directory / name).mkdir(exist_ok=True)
                (staging / name).rename(directory / name / str(version))
        finally:
            shutil.rmtree(staging)
        return configuration.write()

    def _write_files(self, staging):
        for name, settings in self.models.items():
            (staging / name).mkdir()
            if name in self.tables:
                self._write_table(staging / name / "table.safetensors", self.tables[name], self.metadata[name])
            for key, matrix in self.matrices.get(name, {}).items():
                (staging / name / "dense").mkdir(exist_ok=True)
                np.save(staging / name / "dense" / f"{key}.npy", matrix)
            (staging / name / "config.json").write_text(json.dumps(settings, indent=2) + "\n")

    def _write_table(self, path, tensors, metadata):
        if self.row_format is None:
            write_safetensors(path, tensors, metadata)
            return
        plain = path.with_name("plain.safetensors")
        write_safetensors(plain, tensors, metadata)
        _quantise(plain, path, self.row_format, self.program)
        plain.unlink()


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


class _Configuration:
    """A folder's bagserve.json: made, or checked before anything is written and kept."""

    def __init__(self, directory, models):
        self.path, self.content = directory / "bagserve.json", {}
        if self.path.exists():
            self._read(models)

    def _read(self, models):
        try:
            self.content = json.loads(self.path.read_text())
            named = {model["name"] for model in self.content.get("models", [])}
            folder = self.content.get("models_dir", ".")
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise ValueError(f"{self.path} is there and is no configuration ({problem}): repair or remove "
                             f"it") from None
        if (self.path.parent / folder).resolve() != self.path.parent.resolve():
            raise ValueError(f"{self.path} is there and serves the folder {folder}, not its own: export to "
                             f"that one, or remove the file")
        for name in sorted(named & models.keys()):
            raise ValueError(f"{self.path} is there and has a model '{name}' of its own: take it out, or "
                             f"export to another folder")

    def write(self):
        if "models_dir" not in self.content:
            partial = self.path.with_name(".bagserve.json")
            partial.write_text(json.dumps(self.content | {"models_dir": "."}, indent=2) + "\n")
            partial.replace(self.path)
        return self.path


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
    """The keys of a state_dict that are meant, each with what * stands for."""
    pattern = re.compile("(.*)".join(map(re.escape, key.split("*"))), re.DOTALL)
    return [(found, "".join(match.groups())) for found in state if (match := pattern.fullmatch(found))]


def _list_candidates(state):
    lines = [f"  --table {model_name(key.removesuffix('.weight'))}={key},reduction=...   "
             f"{' x '.join(map(str, tensor.shape))}"
             for key, tensor in state.items() if len(tensor.shape) == 2]
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
        for found, stands_for in matching:
            table = state[found]
            known = {"reduction": getattr(table, "reduction", None) or reduction} | rules
            if known["reduction"] is None:
                raise ValueError(f"--table {text}: say how it pools, as reduction={'|'.join(_REDUCTIONS)}"
                                 f" ('{found}' does not)")
            if isinstance(table, Table):
                table, answers = table.as_model(known["reduction"])
                known = answers | known
            check_codes(state, found)
            exported.table(name.replace("*", stands_for), table, **known)


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
    parser.add_argument("source", help="a file that torch.save wrote of a state_dict, or a folder that TorchEasyRec "
                        "(sparse_embeddings-*.npz, RTP's model-*.safetensors) or dynamicemb wrote")
    parser.add_argument("directory", help="folder of models, where NAME/VERSION/ and bagserve.json go")
    parser.add_argument("--table", action="append", default=[], metavar="NAME=KEY[,RULE=VALUE]...",
                        help="the tensor or table KEY becomes the model NAME; a * in both stands for any text; of a "
                             "folder all do if none is named. RULE is "
                             f"reduction, {', '.join(_RULES)}")
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
            state, tables = read_tables(options.source), options.table or ["*=*"]
        else:
            state, tables = _find_state_dict(_load(options.source)), options.table
        add_tables(exported, state, tables, options.reduction)
        configuration = exported.write(options.directory, options.version)
    except ValueError as problem:
        sys.exit(f"{options.source}: {problem}")
    except OSError as problem:
        sys.exit(str(problem))
    for name, tensors in exported.tables.items():
        _, rows = tensors["values"]
        elements = (exported.metadata[name] or {}).get("row_elements", rows.shape[1])
        print(f"{name}: {len(rows)} rows of {elements}, {exported.models[name]['reduction']}")
    print(f"bagserve serve --config {configuration}")


if __name__ == "__main__":
    main()
