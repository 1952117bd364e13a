"""Writes tables that bagserve serves, and their configuration, from PyTorch: one file, on NumPy.

    from bagserve_export import export

    export(model, "models/")     # any nn.Module: its EmbeddingBags, Embeddings and EmbeddingBagCollections
    # then: bagserve serve --config models/bagserve.json

or, of a checkpoint that holds a state_dict, from a shell (this needs torch, and reads nothing but tensors):

    python3 bagserve_export.py checkpoint.pt models/ --reduction mean

A table becomes NAME.safetensors with its rows as the tensor "values", in the type that they have. The
configuration says how the module pools: its mode, padding_idx and include_last_offset. A state_dict does not
know the mode: it must be told. Whatever the server would answer otherwise than the module is an error.

TorchRec's EmbeddingBagCollection becomes a collection of its features, in the order of its configurations;
a feature of several tables is named FEATURE.TABLE. Neither torch nor torchrec is imported here: what has
their attributes is taken for theirs.
"""

import argparse
import json
import pathlib
import re
import struct
import sys
from typing import Any, Mapping, Union

import numpy as np

_ALIGNMENT = 4096  # of the data in a file
_TYPES = {"float16": "F16", "float32": "F32", "float64": "F64", "int8": "I8", "int16": "I16",
          "int32": "I32", "int64": "I64", "uint8": "U8"}
_REDUCTIONS = ("sum", "mean", "max", "sqrtn")
_BLOCK_ROWS = 65536


# ---- files ------------------------------------------------------------------------------------
def _array(tensor, what):
    """(type in safetensors, NumPy array) of a tensor or an array; no copy of what is on the CPU."""
    for attribute in ("detach", "cpu", "contiguous"):
        if not isinstance(tensor, np.ndarray) and hasattr(tensor, attribute):
            tensor = getattr(tensor, attribute)()
    if str(getattr(tensor, "dtype", "")) == "torch.bfloat16":
        kind, array = "BF16", _bf16_bits(tensor)
    else:
        array = tensor.numpy() if hasattr(tensor, "numpy") else np.asarray(tensor)
        kind = _TYPES.get(array.dtype.name)
    if kind is None or array.ndim != 2:
        raise ValueError(f"{what}: a table has 2 dimensions of floats or integers; this one has "
                         f"{array.ndim} of {array.dtype}")
    return kind, array


def _check_plain(state, key):
    """Codes are no rows: pooled without their scales they would be other numbers."""
    if f"{key}_qscale" in state:
        raise ValueError(f"'{key}' has codes whose scales are in '{key}_qscale': save these tensors and "
                         f"'{key}_qbias' with numpy.savez, and join them with 'bagserve convert "
                         f"FILE.npz#{key},row_elements=N OUT.safetensors'")
    return state[key]


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
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            little = array.dtype.newbyteorder("<")
            for first in range(0, len(array), _BLOCK_ROWS):
                block = np.ascontiguousarray(array[first:first + _BLOCK_ROWS], little)
                file.write(block.tobytes())
    partial.replace(path)


class Export:
    """Tables and models that are collected, and then written to one folder with `write`."""

    def __init__(self):
        self.tables, self.models, self.matrices = {}, [], {}

    def _name(self, wanted):
        """A name that a model may have and that no other has."""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", wanted).strip(".") or "table"
        taken = {model["name"] for model in self.models}
        unique = name
        number = 2
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        return unique

    def table(self, name, tensor, reduction, projection=None, **keys):
        """Adds a table that pools by `reduction`; `projection` is an nn.Linear that follows, `keys` any
        keys of a model in the configuration. Returns the model's name."""
        if reduction not in _REDUCTIONS:
            raise ValueError(f"{name}: reduction is {reduction!r}; it must be one of "
                             f"{', '.join(_REDUCTIONS)}")
        name = self._name(name)
        self.tables[name] = _array(tensor, name)
        model = {"name": name, "path": f"{name}.safetensors", "reduction": reduction}
        model |= {key: value for key, value in keys.items() if value is not None}
        if projection is not None:
            model |= self._projection(name, projection)
        self.models.append(model)
        return name

    def _projection(self, name, linear):
        _, weight = _array(linear.weight, f"{name}: projection")
        if weight.shape[1] != self.tables[name][1].shape[1]:
            raise ValueError(f"{name}: the projection takes {weight.shape[1]} numbers, a row has "
                             f"{self.tables[name][1].shape[1]}")
        keys = {"projection": f"{name}.projection.npy"}
        self.matrices[keys["projection"]] = np.ascontiguousarray(weight.T, np.float32)
        if linear.bias is not None:
            keys["bias"] = f"{name}.bias.npy"
            bias = linear.bias.detach().cpu().numpy()
            self.matrices[keys["bias"]] = np.ascontiguousarray(bias, np.float32)
        return keys

    # ---- modules ------------------------------------------------------------------------------
    def embedding_bag(self, name, module, projection=None):
        """An nn.EmbeddingBag as it pools; of an nn.Embedding, whose ids are bags of one, the sum."""
        if getattr(module, "max_norm", None) is not None:
            raise ValueError(f"{name}: max_norm changes rows as they are looked up, which the server "
                             f"does not do; apply it to the weights and set it to None first")
        if not hasattr(module, "mode"):  # an Embedding looks up the row of its padding_idx, too
            return self.table(name, module.weight, "sum", projection)
        return self.table(name, module.weight, module.mode, projection,
                          padding_idx=module.padding_idx,
                          include_last_offset=module.include_last_offset or None)

    def embedding_bag_collection(self, name, module):
        """TorchRec's EmbeddingBagCollection: its tables, and a collection of its features."""
        state, features, configs = module.state_dict(), [], module.embedding_bag_configs()
        names = [feature for config in configs for feature in config.feature_names]
        for config in configs:
            pooling = str(getattr(config.pooling, "value", config.pooling)).lower()
            rows = _check_plain(state, f"embedding_bags.{config.name}.weight")
            table = self.table(config.name, rows, pooling)
            for feature in config.feature_names:
                shared = names.count(feature) > 1
                features.append({"name": f"{feature}.{config.name}" if shared else feature,
                                 "model": table})
        name = self._name(name)
        self.models.append({"name": name, "features": features})
        return name

    def module(self, module, name="table"):
        """Whatever of a module holds rows; the names are those of its parts, or `name` for itself."""
        found = False
        inside = ()
        for path, part in module.named_modules():
            if inside and path.startswith(inside):
                continue
            if hasattr(part, "embedding_bag_configs"):
                self.embedding_bag_collection(path or name, part)
                inside += (f"{path}." if path else "",)
            elif hasattr(part, "num_embeddings") and hasattr(part, "weight"):
                self.embedding_bag(path or name, part)
            else:
                continue
            found = True
        if not found:
            raise ValueError("the module has no EmbeddingBag, Embedding or EmbeddingBagCollection")

    def state_dict(self, state, reduction, names=None):
        """The 2-D tensors of a state_dict, or those named; `reduction` is one for all, or a dict by
        name. A name loses its ".weight"."""
        names = names or [key for key, tensor in state.items() if len(tensor.shape) == 2]
        if not names:
            raise ValueError("the state_dict has no tensor of 2 dimensions")
        for key in names:
            if key not in state:
                raise ValueError(f"the state_dict has no '{key}'; it has {', '.join(state)}")
            pools = reduction.get(key) if isinstance(reduction, dict) else reduction
            self.table(key[:-len(".weight")] if key.endswith(".weight") else key,
                       _check_plain(state, key), pools)

    # ---- writing ------------------------------------------------------------------------------
    def write(self, directory):
        """Writes all files; the configuration, bagserve.json, is the last. Returns its path."""
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for name, table in self.tables.items():
            write_safetensors(directory / f"{name}.safetensors", {"values": table})
        for name, matrix in self.matrices.items():
            np.save(directory / name, matrix)
        configuration = directory / "bagserve.json"
        configuration.write_text(json.dumps({"models": self.models}, indent=2) + "\n")
        return configuration


def export(source: Any, directory: Union[str, pathlib.Path], name: str = "table",
           reduction: Union[str, Mapping[str, str], None] = None) -> pathlib.Path:
    """Exports a module, or a state_dict with its `reduction`; returns the configuration's path."""
    exported = Export()
    if hasattr(source, "named_modules"):
        exported.module(source, name)
    else:
        exported.state_dict(source, reduction)
    return exported.write(directory)


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
                         f"save module.state_dict(), or call export(module, directory) where the "
                         f"module is") from None


def _find_state_dict(content):
    """The checkpoint itself, or the state_dict that stands in it under a usual name."""
    def is_state(value):
        return isinstance(value, dict) and any(hasattr(v, "shape") for v in value.values())

    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not a state_dict")
    for name in ("state_dict", "model_state_dict", "model"):
        if not is_state(content) and is_state(content.get(name)):
            return content[name]
    if not is_state(content):
        raise ValueError(f"it holds no state_dict; it has {', '.join(map(str, content))}")
    return {name: value for name, value in content.items() if hasattr(value, "shape")}


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Tables for bagserve of a PyTorch checkpoint.")
    parser.add_argument("checkpoint", help="a file that torch.save wrote of a state_dict")
    parser.add_argument("directory", help="where the tables and bagserve.json go")
    parser.add_argument("--reduction", required=True, choices=_REDUCTIONS,
                        help="how the tables pool: a state_dict does not say it")
    parser.add_argument("--tensor", action="append", help="one of its tensors; all of 2 dimensions if absent")
    options = parser.parse_args(arguments)
    exported = Export()
    try:
        state = _find_state_dict(_load(options.checkpoint))
        exported.state_dict(state, options.reduction, options.tensor)
    except ValueError as problem:
        sys.exit(f"{options.checkpoint}: {problem}")
    configuration = exported.write(options.directory)
    for name, (_, rows) in exported.tables.items():
        print(f"{name}: {len(rows)} rows of {rows.shape[1]}, {options.reduction}")
    if not options.tensor:  # a state_dict has the weights of linear layers, too
        print("--tensor NAME takes some of them alone")
    print(f"bagserve serve --config {configuration}")


if __name__ == "__main__":
    main()
