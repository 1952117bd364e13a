"""PyTorch models whose embeddings are on a bagserve server: one file, beside bagserve_client.py.

    from bagserve_torch import Client, export, replace

    export(model, "models/")                # all its embeddings; then: bagserve serve --models models/
    model.eval()
    replace(model, Client("127.0.0.1:8000"))   # in their places, modules that ask the server
    scores = model(features)                # the same bits

`replace` needs no rows: a model may be built with its embeddings on the device meta, and the rest of its
state_dict loaded with strict=False.

RemoteEmbeddingBag, RemoteEmbedding, RemoteEmbeddingBagCollection and RemoteEmbeddingCollection are called as
nn.EmbeddingBag, nn.Embedding and TorchRec's EmbeddingBagCollection and EmbeddingCollection are. One call is one
request: of a collection for all features together. Rows that are not pooled have all bits of the local ones.
For FP32 tables the answers have the bits of the local modules, unless PyTorch rounds the product of a row and its
weight before it adds it, which the server does not: some versions always do, and all do with a padding_idx or
with weights that are not contiguous. Ids and weights on another device are copied to the CPU, and answers to the
device of the ids.

The server looks up rows and pools them. `export` and `replace` refuse an embedding that does more: by a forward of
its own, a hook, max_norm, or a weight of a class that is looked up otherwise. Rows that weight_norm, spectral_norm,
prune or a parametrization compute are those that the next call would use. Other libraries' classes that only look
like TorchRec's are taken at their word.

The server has no gradients: a call in training mode is an error unless it is under torch.no_grad(). An answer
would be a constant in a trace, so that tracing and exporting a call (torch.jit.trace, torch.onnx.export) is an
error, too. A model may be copied and pickled; its copy asks the same server.
"""

from __future__ import annotations

import json
import operator
import pathlib
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Union

import numpy as np
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from bagserve_client import BF16, AsyncClient, BadRequest, Client, NotFound
from bagserve_export import Export, check_codes, model_name

_DTYPES = {"BF16": torch.bfloat16, "FP16": torch.float16, "FP32": torch.float32, "FP64": torch.float64,
           "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32, "INT64": torch.int64, "UINT8": torch.uint8}
_MOST_CHANGES = 5  # of a collection, while one request is made

__all__ = ["Client", "RemoteEmbedding", "RemoteEmbeddingBag", "RemoteEmbeddingBagCollection",
           "RemoteEmbeddingCollection", "describe", "export", "replace"]


# ---- tensors ----------------------------------------------------------------------------------
def _to_numpy(tensor, what):
    """The array of a tensor, which is that of its memory where it is on the CPU."""
    try:
        return tensor.numpy()
    except (AttributeError, TypeError, RuntimeError):  # another device or type, or a gradient is asked for
        pass
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"'{what}' must be a tensor, not {type(tensor).__name__}")
    _check_dense(tensor, what)
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return BF16(tensor.contiguous().view(torch.int16).numpy().view(np.uint16))
    return tensor.numpy()


def _check_dense(tensor, what):
    """Raises where a tensor has no numbers in memory, or more than them."""
    if tensor.is_meta:
        raise ValueError(f"'{what}' is on the device meta and has no numbers")
    kind = "masked" if hasattr(tensor, "get_mask") else "nested" if tensor.is_nested else \
        "quantised" if tensor.is_quantized else None if tensor.layout == torch.strided else str(tensor.layout)[6:]
    if kind is not None:
        raise TypeError(f"'{what}' is a {kind} tensor, not a dense one of numbers: convert it first")


def _to_tensor(rows, device, dtype):
    """A tensor over an answer's array, whose memory is its own; 16 bits without a sign are bfloat16."""
    tensor = torch.from_numpy(rows) if rows.dtype != np.uint16 else \
        torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    return tensor if device.type == "cpu" and dtype in (None, tensor.dtype) else tensor.to(device, dtype)


# ---- modules that ask -------------------------------------------------------------------------
class _Remote(nn.Module):
    """A model of a server, asked by a client that others may use, too. Answers are converted to `dtype`; None:
    they have the type that the server gives them. With `row_format` (int8, int4, ...) the server sends quantised
    rows, which are decoded here to the elements of FP32 that they stand for. `version` asks that version of the model;
    None: the one that is served by default."""

    def __init__(self, client: Client, model: str, dtype: Optional[torch.dtype] = None, *,
                 row_format: Optional[str] = None, version: Union[int, str, None] = None):
        super().__init__()
        if isinstance(client, AsyncClient):
            raise TypeError("a module cannot await: give it a Client in place of an AsyncClient")
        self.client, self.model, self.dtype, self.row_format = client, model, dtype, row_format
        self.version = version

    def extra_repr(self) -> str:
        return f"'{self.model}'" if self.version is None else f"'{self.model}', version={self.version}"

    def _check_call(self, weights=None):
        """Raises if more than an answer is asked for."""
        if torch.jit.is_tracing():
            raise RuntimeError(f"'{self.model}' is on a server, and its answer would be a constant in a trace: trace "
                               f"the modules that take its answers, and call it before them")
        if not torch.is_grad_enabled():
            return
        if self.training:
            raise RuntimeError(f"'{self.model}' is on a server, which has no gradients: call eval() on the "
                               f"model, or ask under torch.no_grad()")
        if weights is not None and weights.requires_grad:
            raise RuntimeError(f"'{self.model}' is on a server, which has no gradients, and its weights ask "
                               f"for one: ask under torch.no_grad(), or give weights.detach()")


class RemoteEmbeddingBag(_Remote):
    """nn.EmbeddingBag on a server. `mode` and `padding_idx` are those of the model where they are None."""

    def __init__(self, client: Client, model: str, *, mode: Optional[str] = None,
                 padding_idx: Optional[int] = None, include_last_offset: bool = False,
                 dtype: Optional[torch.dtype] = None, row_format: Optional[str] = None,
                 version: Union[int, str, None] = None):
        super().__init__(client, model, dtype, row_format=row_format, version=version)
        if mode not in (None, "sum", "mean", "max", "sqrtn"):
            raise ValueError(f"mode is {mode!r}; it must be sum, mean, max or sqrtn")
        self.mode, self.padding_idx, self.include_last_offset = mode, padding_idx, include_last_offset

    def forward(self, input: torch.Tensor, offsets: Optional[torch.Tensor] = None,
                per_sample_weights: Optional[torch.Tensor] = None) -> torch.Tensor:
        self._check_call(per_sample_weights)
        ids, weights = _to_numpy(input, "input"), None
        if per_sample_weights is not None:
            weights = _to_numpy(per_sample_weights, "per_sample_weights")
            if per_sample_weights.shape != input.shape:
                raise ValueError(f"'per_sample_weights' must have the shape of 'input', {tuple(input.shape)}, "
                                 f"not {tuple(per_sample_weights.shape)}")
        options = {"reduction": self.mode, "padding_idx": self.padding_idx, "output_row_format": self.row_format,
                   "version": self.version}
        if ids.ndim == 2:
            rows = self._ask_packed(ids, offsets, weights, options)
        elif ids.ndim == 1:
            starts = self._starts(offsets)
            rows = self.client.offsets(self.model, ids, starts, weights,
                                       include_last_offset=self.include_last_offset, **options)
        else:
            raise ValueError(f"'input' must have 1 or 2 dimensions, not {ids.ndim}")
        return _to_tensor(rows, input.device, self.dtype)

    def _ask_packed(self, ids, offsets, weights, options):
        if offsets is not None:
            raise ValueError("'offsets' go with an input of 1 dimension: one of 2 has a bag in each row")
        rows = self.client.packed(self.model, ids, weights, **options)
        # As nn.EmbeddingBag does, for which a row's begin is then the end of the one before.
        return rows[:-1] if self.include_last_offset else rows

    @staticmethod
    def _starts(offsets):
        starts = _to_numpy(offsets, "offsets")
        if starts.ndim != 1:
            raise ValueError(f"'offsets' must have 1 dimension, not {starts.ndim}")
        if starts.size and starts[0] != 0:
            raise ValueError(f"'offsets' must begin with 0, not {starts[0]}")
        return starts


class RemoteEmbedding(_Remote):
    """nn.Embedding on a server: ids of any shape, a row for each."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_call()
        rows = self.client.rows(self.model, _to_numpy(input, "input"), output_row_format=self.row_format,
                                version=self.version)
        return _to_tensor(rows, input.device, self.dtype)


class _Order(NamedTuple):
    """How the features of a KeyedJaggedTensor become those of the server's collection."""

    served: List[str]  # the server's, in its order
    places: List[int]  # of each, its place among the keys
    names: List[str]   # of each, its name in the answer
    num_keys: int
    is_same: bool      # the keys are in the server's order

    def arrange(self, values, lengths, weights, strides):
        """All four as the server wants them; `strides` may be None, where all keys have as many bags."""
        if self.is_same:
            return values, lengths, weights, strides
        counts = strides if strides is not None else [lengths.size // self.num_keys] * self.num_keys
        by_key = np.split(lengths, np.cumsum(counts)[:-1])
        ends = [0, *np.cumsum([part.sum() for part in by_key], dtype=np.int64).tolist()]
        ranges = [slice(ends[place], ends[place + 1]) for place in self.places]
        return (np.concatenate([values[part] for part in ranges]),
                np.concatenate([by_key[place] for place in self.places]),
                None if weights is None else np.concatenate([weights[part] for part in ranges]),
                None if strides is None else [strides[place] for place in self.places])


class _RemoteCollection(_Remote):
    """A collection of a server, asked in KeyedJaggedTensor's layout."""

    def __init__(self, client: Client, model: str, dtype: Union[torch.dtype, Dict[str, torch.dtype], None],
                 row_format: Optional[str], version: Union[int, str, None]):
        super().__init__(client, model, dtype, row_format=row_format, version=version)
        self._features, self._orders = None, {}

    def _type_of(self, feature):
        return self.dtype.get(feature) if isinstance(self.dtype, dict) else self.dtype

    def _ask(self, keys, arrange):
        """The order that was sent, and the answer; `arrange` makes what is sent for an order. Nothing but their order says
        which values are whose: asked again where the collection has changed since its features were read."""
        for _ in range(_MOST_CHANGES):
            before = self._features
            order = self._order(keys)
            values, lengths, weights, strides = arrange(order)
            try:
                outputs = self.client.kjt(self.model, values, lengths, weights=weights, stride_per_key=strides,
                                          output_row_format=self.row_format, version=self.version)
            except BadRequest:
                self._features = None
                if before is None or self._read_features() == before:
                    raise
                continue
            if list(outputs) == order.served:
                return order, outputs
            self._features = None
        raise RuntimeError(f"the collection '{self.model}' changes faster than it can be asked")

    def _read_features(self):
        if self._features is None:
            self._features = [(feature["name"], feature["model"])
                              for feature in self.client.features(self.model, self.version)]
            self._orders = {}
        return self._features

    def _order(self, keys):
        served = self._read_features()
        if keys not in self._orders:
            self._orders = {keys: _order_of(keys, served, self.model)}
        return self._orders[keys]


class RemoteEmbeddingBagCollection(_RemoteCollection):
    """TorchRec's EmbeddingBagCollection on a server, for whatever has keys(), values() and lengths(); where keys have
    different numbers of bags, also stride_per_key().

    Keys may come in any order, and those that the collection does not know are left out. The answer is a
    dict of tensors by feature, in the server's order; where tables share a feature, by FEATURE@TABLE.
    `is_weighted`: whether the weights of what is asked count; None: where it has some. `dtype` may be a dict
    of types by the server's features.
    """

    def __init__(self, client: Client, model: str, *, is_weighted: Optional[bool] = None,
                 dtype: Union[torch.dtype, Dict[str, torch.dtype], None] = None, row_format: Optional[str] = None,
                 version: Union[int, str, None] = None):
        super().__init__(client, model, dtype, row_format, version)
        self.is_weighted = is_weighted

    def forward(self, features: Any) -> Dict[str, torch.Tensor]:
        keys, values, weights = tuple(features.keys()), features.values(), self._weights_of(features)
        self._check_call(weights)
        lengths, strides = _to_numpy(features.lengths(), "lengths"), self._strides_of(features)
        if not keys or lengths.ndim != 1 or (strides is None and lengths.size % len(keys)):
            raise ValueError(f"'lengths' must have as many numbers for each of {len(keys)} keys, not the "
                             f"shape {lengths.shape}")
        if strides is not None and (len(strides) != len(keys) or sum(strides) != lengths.size):
            raise ValueError(f"'stride_per_key' is {strides}: there are {len(keys)} keys and {lengths.size} lengths")
        arrays = (_to_numpy(values, "values"), lengths,
                  None if weights is None else _to_numpy(weights.float(), "weights"), strides)
        order, outputs = self._ask(keys, lambda order: order.arrange(*arrays))
        return {name: _to_tensor(rows, values.device, self._type_of(feature))
                for name, (feature, rows) in zip(order.names, outputs.items())}

    @staticmethod
    def _strides_of(features):
        """The number of bags of each key where they differ; None: all have as many."""
        varies = getattr(features, "variable_stride_per_key", None)
        return list(features.stride_per_key()) if varies is not None and varies() else None

    def _weights_of(self, features):
        if self.is_weighted is None:
            return features.weights_or_none() if hasattr(features, "weights_or_none") else None
        return features.weights() if self.is_weighted else None


class _Ids(NamedTuple):
    """What is asked for a key: ids in one dimension; with `spread` the place of each id's row among them."""

    sent: np.ndarray
    spread: Optional[torch.Tensor]


class RemoteEmbeddingCollection(_RemoteCollection):
    """TorchRec's EmbeddingCollection on a server: a row for each id, in one request.

    It takes a KeyedJaggedTensor, whose weights are ignored, or a dict by feature of JaggedTensors or of tensors of ids of
    any shape. The answer is a dict by feature, in the server's order; where tables share a feature, by FEATURE@TABLE. It has
    JaggedTensors as EmbeddingCollection makes them, and for tensors of ids tensors of their shape and a row's. Features that
    the collection does not know are left out. With `unique` each id of a feature is sent once. `need_indices`: JaggedTensors
    have the ids as their weights.
    """

    def __init__(self, client: Client, model: str, *, unique: bool = False, need_indices: bool = False,
                 dtype: Union[torch.dtype, Dict[str, torch.dtype], None] = None, row_format: Optional[str] = None,
                 version: Union[int, str, None] = None):
        super().__init__(client, model, dtype, row_format, version)
        self.unique, self.need_indices = unique, need_indices

    def forward(self, features: Any) -> Dict[str, Any]:
        self._check_call()
        parts = features if isinstance(features, Mapping) else features.to_dict()
        tensors = {key: part if isinstance(part, torch.Tensor) else part.values() for key, part in parts.items()}
        asked = [self._ids_of(key, tensor) for key, tensor in tensors.items()]
        keys = tuple(parts)
        order, outputs = self._ask(keys, lambda order: self._arrange(asked, order))
        answer = {}
        for name, place, (feature, rows) in zip(order.names, order.places, outputs.items()):
            key = keys[place]
            tensor = tensors[key]
            found = _to_tensor(rows, torch.device("cpu"), None)
            if asked[place].spread is not None:
                found = found.index_select(0, asked[place].spread)
            found = found.to(tensor.device, self._type_of(feature))
            answer[name] = self._put(parts[key], tensor, found)
        return answer

    def _ids_of(self, key, tensor):
        ids = _to_numpy(tensor, key).reshape(-1)
        if ids.dtype.kind not in "iu":
            raise TypeError(f"'{key}' must be integers, not {ids.dtype}; convert them first")
        if not self.unique:
            return _Ids(ids, None)
        sent, spread = np.unique(ids, return_inverse=True)
        return _Ids(sent, torch.from_numpy(spread.reshape(-1)))

    @staticmethod
    def _arrange(asked, order):
        """All ids of a feature are one bag: rows that are not pooled do not depend on bags."""
        sent = [asked[place].sent for place in order.places]
        kinds = {ids.dtype for ids in sent}
        return (np.concatenate([ids.astype(np.int64) if len(kinds) > 1 else ids for ids in sent]),
                np.array([len(ids) for ids in sent], np.int32), None, None)

    def _put(self, part, ids, rows):
        if isinstance(part, torch.Tensor):
            return rows.reshape(*ids.shape, *rows.shape[1:])
        return type(part)(values=rows, lengths=part.lengths(), weights=ids if self.need_indices else None)


def _feature_name(key, table=None):
    """A feature on the server; where tables share it, one for each."""
    name = model_name(key if table is None else f"{key}.{table}")
    if name == "embeddings":
        raise ValueError("a feature cannot be named 'embeddings' on a server, where all outputs together "
                         "are called so: rename it")
    return name


def _order_of(keys, served, model):
    places = {model_name(key): place for place, key in enumerate(keys)}
    found, names = [], []
    for feature, path in served:
        table = path.rpartition(".")[2]
        place = places.get(feature)
        shared = places.get(feature[:-len(table) - 1]) if feature.endswith("." + table) else None
        if place is None and shared is None:
            raise KeyError(f"the collection '{model}' needs feature '{feature}'; the keys are "
                           f"{', '.join(keys)}")
        found.append(shared if place is None else place)
        names.append(f"{keys[shared]}@{table}" if place is None else keys[place])
    return _Order([feature for feature, _ in served], found, names, len(keys), found == list(range(len(keys))))


# ---- modules that are local -------------------------------------------------------------------
class _Part(NamedTuple):
    """An embedding module of a model."""

    module: nn.Module
    paths: List[str]  # all that lead to it; the first one gives its name
    name: str         # of the model on the server


def _pools_bags(module):
    """Whether a collection is one of bags."""
    return hasattr(module, "embedding_bag_configs")


def _is_collection(module):
    return _pools_bags(module) or hasattr(module, "embedding_configs")


def _find_parts(model):
    """The embedding modules of a model, collections whole."""
    parts, collections = {}, ()
    for path, module in model.named_modules(remove_duplicate=False):
        if path.startswith(collections):
            continue
        if _is_collection(module):
            collections += (f"{path}." if path else "",)
        elif not _is_embedding(path, module):
            _check_is_no_script(path, module)
            continue
        parts.setdefault(module, []).append(path)
    if not parts:
        raise ValueError("the model has no EmbeddingBag, Embedding, EmbeddingBagCollection or EmbeddingCollection")
    return [_Part(module, paths, model_name(paths[0] or "embedding"))
            for module, paths in parts.items()]


def _is_embedding(path, module):
    if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.nn.quantized")) and \
            hasattr(module, "num_embeddings") or hasattr(module, "weight_fake_quant"):
        raise ValueError(f"'{path}' is quantised ({type(module).__name__} of {type(module).__module__}): give "
                         f"the module of floats, and have it quantised by row_format")
    return isinstance(module, (nn.EmbeddingBag, nn.Embedding))


def _check_is_no_script(path, module):
    if isinstance(module, torch.jit.ScriptModule) and module.original_name in ("Embedding", "EmbeddingBag"):
        raise ValueError(f"'{path}' is an {module.original_name} of TorchScript: give the module that it was made from")


# ---- modules that do more than look up --------------------------------------------------------
# Computes the weight from other parameters before each call; a module has the last one.
_COMPUTES = (WeightNorm, SpectralNorm, prune.BasePruningMethod)


def _file_of(function):
    """Where a function, or a bound one, was written; None: in no file."""
    return getattr(getattr(getattr(function, "__func__", function), "__code__", None), "co_filename", None)


def _name_of(function):
    return getattr(function, "__qualname__", type(function).__name__)


def _check_part(part):
    """Raises where an answer of a module is not a look-up of its weight, which is all that the server does."""
    path, module = part.paths[0], part.module
    if not _is_collection(module):
        _check_embedding(path, module)
        return
    _check_calls(path, module)
    # A class of another library that only looks like TorchRec's means its own forward.
    owner = next((base for base in type(module).__mro__ if "forward" in vars(base)), None)
    families = {base.__module__.partition(".")[0] for base in type(module).__mro__}
    if "forward" in vars(module) or ("torchrec" in families and
                                     owner.__module__.partition(".")[0] not in ("torch", "torchrec")):
        _refuse_forward(path, module, "a collection of TorchRec's class")
    for name, inner in module.named_modules():
        if isinstance(inner, (nn.EmbeddingBag, nn.Embedding)):
            _check_embedding(f"{path}.{name}", inner)


def _check_embedding(path, module):
    if module.max_norm is not None:
        raise ValueError(f"'{path}': max_norm changes rows as they are looked up, which the server does not "
                         f"do; apply it to the weights and set it to None first")
    plain = nn.EmbeddingBag if isinstance(module, nn.EmbeddingBag) else nn.Embedding
    if _file_of(module.forward) != _file_of(nn.Embedding.from_pretrained):
        _refuse_forward(path, module, f"a plain {plain.__name__}")
    _check_calls(path, module)
    _weight_of(path, module)


def _refuse_forward(path, module, plain):
    raise ValueError(f"'{path}': {type(module).__name__} has a forward of its own ({_name_of(module.forward)}), which the "
                     f"server does not run: put what it adds into a module around {plain}")


def _check_calls(path, module):
    """Raises where a call of a module is more than its forward."""
    kind = type(module)
    if kind.__call__ is not nn.Module.__call__ or kind._call_impl is not nn.Module._call_impl or "_call_impl" in vars(module):
        raise ValueError(f"'{path}': {kind.__name__} is called in a way of its own, which the server does not do: give a "
                         f"module with the __call__ of nn.Module")
    hooks = [("hook", hook) for hook in module._forward_hooks.values()] + \
        [("pre-hook", hook) for hook in module._forward_pre_hooks.values() if not isinstance(hook, _COMPUTES)]
    for what, hook in hooks:
        raise ValueError(f"'{path}': its forward {what} {_name_of(hook)} may change what it is asked or answers, and the "
                         f"server does not run it: remove it, or register it at a module around this one")


def _weight_of(path, module):
    """The rows that a module looks up, computed where it computes them from other parameters: its attribute is then that of
    the last call, which a state_dict that was loaded since does not change."""
    with torch.no_grad():
        for hook in module._forward_pre_hooks.values():
            if not isinstance(hook, SpectralNorm):
                hook(module, ())
            elif module.training:
                raise ValueError(f"'{path}': spectral_norm changes the rows with each call in training: call eval() first")
            else:
                setattr(module, hook.name, hook.compute_weight(module, do_power_iteration=False))
        weight = module.weight
        is_computed = not any("weight" in place for place in (module._parameters, module._buffers, vars(module)))
        if is_computed and not weight.is_meta and not torch.allclose(weight, module.weight, 0, 0, equal_nan=True):
            raise ValueError(f"'{path}': its parametrization gives other rows each time: call eval() first, or remove it")
    for name in ("__torch_function__", "__torch_dispatch__"):
        owner = next((base for base in type(weight).__mro__ if name in vars(base)), torch.Tensor)
        if owner.__module__ not in ("torch", "torch._tensor", "torch.nn.parameter"):
            raise ValueError(f"'{path}': its weight is a {type(weight).__name__}, whose look-up is its own: give a tensor of "
                             f"its numbers")
    return weight


def _configs_of(collection):
    """The configurations of its tables, and the name under which it has their modules."""
    if _pools_bags(collection):
        return collection.embedding_bag_configs(), "embedding_bags"
    return collection.embedding_configs(), "embeddings"


def _tables_of(part):
    """(configuration, its weight, how it pools) of each table of a TorchRec collection."""
    collection = part.module
    state, inner = collection.state_dict(), dict(collection.named_modules())
    configs, modules = _configs_of(collection)
    for config in configs:
        name = f"{modules}.{config.name}"
        pooling = config.pooling if _pools_bags(collection) else "none"
        if isinstance(inner.get(name), (nn.EmbeddingBag, nn.Embedding)):
            weight = _weight_of(f"{part.paths[0]}.{name}", inner[name])
        else:  # of a module that is no embedding of PyTorch's: one of codes, or a part of a table
            weight = state[f"{name}.weight"]
            check_codes(state, f"{name}.weight", weight)
        yield config, weight, str(getattr(pooling, "value", pooling)).lower()


def _features_of(part):
    """{feature on the server: (its table's model, weight, how it pools)} of a collection."""
    configs, _ = _configs_of(part.module)
    all_names = [feature for config in configs for feature in config.feature_names]
    features = {}
    for config, weight, pooling in _tables_of(part):
        for feature in config.feature_names:
            served = _feature_name(feature, config.name if all_names.count(feature) > 1 else None)
            if served in features:
                raise ValueError(f"two features of '{part.name}' would be called '{served}' on the server: "
                                 f"rename one")
            features[served] = (_table_name(part, config), weight, pooling)
    return features


def _table_name(part, config):
    _, modules = _configs_of(part.module)
    return model_name(f"{part.paths[0]}.{modules}.{config.name}")


# ---- what is done with a model ----------------------------------------------------------------
def add_module(exported: Export, module: nn.Module) -> Dict[str, str]:
    """Adds all embeddings of a module to what is exported; as `export`."""
    names = {}
    for part in _find_parts(module):
        _check_part(part)
        if _is_collection(part.module):
            _add_collection(exported, part)
        elif isinstance(part.module, nn.EmbeddingBag):
            exported.table(part.name, _weight_of(part.paths[0], part.module), part.module.mode,
                           padding_idx=part.module.padding_idx,
                           include_last_offset=part.module.include_last_offset or None)
        else:  # one row for an id, that of its padding_idx, too
            exported.table(part.name, _weight_of(part.paths[0], part.module), "sum")
        names |= dict.fromkeys(part.paths, part.name)
    return names


def _add_collection(exported, part):
    for config, weight, pooling in _tables_of(part):
        exported.table(_table_name(part, config), weight, pooling)
    exported.collection(part.name, {feature: table
                                    for feature, (table, _, _) in _features_of(part).items()})


def export(module: nn.Module, folder: Any, *, version: int = 1, row_format: Optional[str] = None,
           program: str = "bagserve") -> Dict[str, str]:
    """Writes all embeddings of a module, and only these, to a folder of models: NAME/VERSION/ for each. Returns the
    models' names by the modules' paths: a path is the name. An embedding that does more than look up its rows, in a
    forward of its own, a hook or by max_norm, is refused. Collections are pinned: this version of one always pools this version
    of its tables.

    `row_format` (int8, int4, ...) quantises rows, by the `program`.
    """
    exported = Export(row_format, program)
    names = add_module(exported, module)
    exported.write(folder, version)
    return names


class _Description(Export):
    """What an export has, without the rows."""

    def __init__(self):
        super().__init__()
        self.described = []

    def table(self, name, rows, reduction, **rules):
        name = self._add(name, {key: value for key, value in {"reduction": reduction, **rules}.items() if value is not None})
        self.described.append({"name": name, "rows": rows.shape[0], "row_elements": rows.shape[1]} | self.models[name])
        return name


def describe(module: nn.Module, path: Any) -> Dict[str, str]:
    """Writes what a checkpoint of a module does not say to a JSON file: which tensors are tables, their shapes, how they pool,
    and the features of collections. `bagserve_export CHECKPOINT FOLDER --tables FILE` then writes what `export` would. The
    module may be on the device meta; it is the one that is not divided yet. Returns the models' names by the modules' paths.
    """
    description = _Description()
    names = add_module(description, module)
    collections = [{"name": name, "features": {feature["name"]: feature["model"] for feature in model["features"]}}
                   for name, model in description.models.items() if "features" in model]
    pathlib.Path(path).write_text(json.dumps({"tables": description.described, "collections": collections}, indent=2) + "\n")
    return names


def replace(module: nn.Module, client: Client, min_bytes: int = 0, *, narrow: bool = False,
            unique: bool = False, row_format: Optional[str] = None, check_rows: int = 64,
            version: Union[int, str, None] = None) -> Dict[str, str]:
    """Puts remote modules in the place of all embeddings that take at least `min_bytes`; the server serves
    what `export` wrote of the module. Returns the models' names by the modules' paths.

    Nothing is swapped where the server does not have one of them, or one that answers otherwise. Answers have
    the type of the module's rows. `narrow` allows a server whose own type does not hold all of its numbers,
    such as FP32 for a module of float64. With `unique` EmbeddingCollections send each id of a feature once. With
    `row_format` (int8, int4, ...) the server sends quantised rows: fewer bytes, and not the same bits. `version` asks that
    version of each model; None: the one that is served by default.

    The first and the last row of each table, and others at random, `check_rows` in all, are compared with the server's, in
    a request for each table. Tables on the device meta have none. 0: no rows are compared.
    """
    if operator.index(check_rows) < 0:
        raise ValueError(f"check_rows is {check_rows}; it must be a number of rows, or 0")
    options = _Options(narrow, unique, row_format, check_rows, version)
    swaps = []
    for part in _find_parts(module):
        if _bytes_of(part) < min_bytes:
            continue
        _check_part(part)
        if "" in part.paths:
            raise ValueError(f"the module is an embedding itself, and nothing is around it: use a remote one "
                             f"of the model '{part.name}' in its place")
        swaps.append((part, _make_remote(part, client, options).train(part.module.training)))
    for part, remote in swaps:
        for path in part.paths:
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, remote)
    return {path: part.name for part, _ in swaps for path in part.paths}


def _bytes_of(part):
    weights = [weight for _, weight, _ in _tables_of(part)] if _is_collection(part.module) else [part.module.weight]
    return sum(weight.numel() * weight.element_size() for weight in weights)


class _Options(NamedTuple):
    """What `replace` is told of its modules."""

    narrow: bool
    unique: bool
    row_format: Optional[str]
    check_rows: int
    version: Union[int, str, None]


def _make_remote(part, client, options):
    try:
        served, config = client.metadata(part.name, options.version), client.config(part.name, options.version)
    except NotFound as problem:
        raise ValueError(f"'{part.paths[0]}' is not on the server ({problem}): export the module, and serve "
                         f"the folder") from None
    module, name = part.module, part.name
    if _is_collection(module):
        dtype = _check_collection(part, served, config, client, options)
        if not _pools_bags(module):
            return RemoteEmbeddingCollection(client, name, unique=options.unique, need_indices=_needs_indices(module),
                                             dtype=dtype, row_format=options.row_format, version=options.version)
        is_weighted = getattr(module, "is_weighted", None)
        return RemoteEmbeddingBagCollection(
            client, name, is_weighted=is_weighted() if callable(is_weighted) else is_weighted, dtype=dtype,
            row_format=options.row_format, version=options.version)
    weight, table = _weight_of(part.paths[0], module), served["parameters"] | {"name": "embeddings"}
    padding_idx = module.padding_idx if hasattr(module, "mode") else None
    _check_table(name, weight, padding_idx, table, served, _rules_of(config, ""), options)
    _check_rows(name, weight, padding_idx, table, options, lambda ids: client.rows(
        name, ids, output_row_format="plain", version=options.version))
    if not hasattr(module, "mode"):
        return RemoteEmbedding(client, name, weight.dtype, row_format=options.row_format, version=options.version)
    return RemoteEmbeddingBag(client, name, mode=module.mode, padding_idx=padding_idx,
                              include_last_offset=module.include_last_offset, dtype=weight.dtype,
                              row_format=options.row_format, version=options.version)


def _needs_indices(collection):
    needs = getattr(collection, "need_indices", False)
    return bool(needs() if callable(needs) else needs)


def _rules_of(config, prefix):
    return {key[len(prefix):]: value["string_value"] for key, value in config["parameters"].items()
            if key.startswith(prefix)}


def _check_collection(part, served, config, client, options):
    """The types of the module's answers by the server's features; raises as _check_table."""
    there = {feature["name"]: feature for feature in served["parameters"].get("features", [])}
    wanted = _features_of(part)
    if there.keys() != wanted.keys():
        raise ValueError(f"'{part.name}' on the server has the features {', '.join(there) or 'of no collection'}; "
                         f"the module has {', '.join(wanted)}")
    compared = set()
    for name, (model, weight, pooling) in wanted.items():
        rules, what = _rules_of(config, name + "."), f"{part.name}', feature '{name}"
        _check_table(what, weight, None, there[name], served, rules, options)
        if rules["reduction"] != pooling:
            raise ValueError(f"'{part.name}', feature '{name}' on the server pools by {rules['reduction']}; the "
                             f"module by {pooling}")
        table = (model, there[name]["model"], there[name].get("version"))
        if table not in compared:
            compared.add(table)
            _check_rows(what, weight, None, there[name], options, lambda ids, name=name: client.collection(
                part.name, {name: [ids]}, reduction="none", output_row_format="plain", version=options.version)[name])
    return {name: weight.dtype for name, (_, weight, _) in wanted.items()}


def _check_table(what, weight, padding_idx, table, served, rules, options):
    """Raises where the server would answer otherwise than the module with this weight."""
    (shape, datatype), = ((output["shape"], output["datatype"]) for output in served["outputs"]
                          if output["name"] == table["name"])
    there = (table["rows"] if not table["keyed"] else weight.shape[0], *shape[1:])
    if there != tuple(weight.shape):
        raise ValueError(f"'{what}' on the server has the shape {there}; the module has {tuple(weight.shape)}")
    if options.row_format and datatype == "FP64":
        raise ValueError(f"'{what}' on the server is FP64, whose rows are not quantised in replies: replace it without "
                         f"row_format")
    if not options.narrow and torch.promote_types(weight.dtype, _DTYPES[datatype]) != _DTYPES[datatype]:
        raise ValueError(f"'{what}' on the server answers {datatype}, which does not hold all numbers of the module's "
                         f"{weight.dtype}: convert the module, or call replace(..., narrow=True)")
    if padding_idx is None and "padding_idx" in rules:
        raise ValueError(f"'{what}' on the server leaves out padding_idx {rules['padding_idx']}; the module does not")
    if rules.get("default_index", "-1") != "-1":
        raise ValueError(f"'{what}' on the server gives empty bags the row {rules['default_index']}; the module "
                         f"gives them zeros")


def _check_rows(what, weight, padding_idx, table, options, ask):
    """Compares rows of a weight with those that `ask` gets of their ids; raises where the server has others."""
    if options.check_rows == 0 or weight.is_meta:
        return
    ids = _choose_rows(weight.shape[0], options.check_rows)
    ids = ids if padding_idx is None else ids[ids != padding_idx % weight.shape[0]]
    if not ids.size:
        return
    try:
        there = _to_tensor(ask(ids), torch.device("cpu"), None)
    except BadRequest as problem:
        raise ValueError(f"'{what}' on the server does not give the module's rows: {problem}") from None
    here = weight.detach()[torch.from_numpy(ids).to(weight.device)].cpu()
    if table["row_format"] == "plain":  # of the one, rounded as the other is
        is_same = _are_same(there, here.to(_DTYPES[table["datatype"]]).to(there.dtype)) | \
            _are_same(there.to(here.dtype), here)
    else:
        wanted = here.double()
        rounding = torch.finfo(here.dtype)
        most = _most_error(wanted, table["row_format"]) + (wanted.abs() + rounding.tiny) * rounding.eps
        is_same = (there.double() - wanted).abs() <= most
    if not is_same.all():
        row, column = (~is_same).nonzero()[0].tolist()
        raise ValueError(f"'{what}' on the server has other rows than the module: column {column} of row {ids[row]} is "
                         f"{there[row, column].item()!r} there and {here[row, column].item()!r} here. Serve what export "
                         f"wrote of this module, or compare no rows: replace(..., check_rows=0)")


def _are_same(rows, others):
    return (rows == others) | (torch.isnan(rows) & torch.isnan(others))


def _choose_rows(rows, count):
    """The first, the last, and others at random; all where there are not more."""
    if rows <= count:
        return np.arange(rows)
    others = np.random.default_rng().choice(rows - 2, max(count - 2, 0), replace=False)
    return np.concatenate([[0], 1 + np.sort(others), [rows - 1]])


def _most_error(rows, row_format):
    """How far an element may be from what a row format holds of it: a step, and the rounding of scale and bias."""
    largest = rows.abs().amax(1, keepdim=True)
    if row_format.startswith("f8_"):
        fraction, smallest, most = (2**-4, 2**-10, 448) if "e4m3" in row_format else (2**-3, 2**-17, 57344)
        is_scaled = row_format.endswith("_scaled")
        beyond = 0 if is_scaled else (rows.abs() - most).clamp(min=0)
        return 1.01 * (rows.abs() * fraction + smallest * (largest / most if is_scaled else 1)) + beyond
    is_symmetric = "symmetric" in row_format
    span = 2 * largest if is_symmetric else rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)
    steps = 254 if is_symmetric else 2**int(row_format[3]) - 1
    return span / steps + (largest + span) * 2**-10 + steps * 2**-24
