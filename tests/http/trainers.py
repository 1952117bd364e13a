"""Files as trainers write them: TorchEasyRec's exports and deltas, and dynamicemb's dump. The names, the types and the
JSON are theirs (tzrec/utils/export_util.py, delta_embedding_dump.py; dynamicemb/batched_dynamicemb_tables.py)."""

import io
import json
import sys
import types

import numpy as np

from bagserve_export import write_safetensors
from numerics import Storage

DIM = 4
EBC, EC = "model.embedding_group.ebc.embedding_bags.", "model.embedding_group.ec_dict.4.embeddings."
INT8 = {"enabled": True, "format": "QUint8RowwiseF16", "scale_offset_dtype": "float16", "output_dtype": "float16"}


def quantise(rows):
    """QUint8RowwiseF16: codes, an FP16 scale, an FP16 offset."""
    offset = rows.min(axis=1, keepdims=True).astype(np.float16)
    scale = ((rows.max(axis=1, keepdims=True) - offset) / 255).astype(np.float16)
    scale[scale == 0] = 1
    codes = np.clip(np.rint((rows - offset) / scale.astype(np.float32)), 0, 255).astype(np.uint8)
    return np.hstack([codes, scale.view(np.uint8), offset.view(np.uint8)])


def dequantise(rows):
    return Storage("FP32", "int8_f16_back").decode(rows, rows.shape[1] - 4)


def _facts(path, rows, is_quantised):
    facts = {"feat_name_impl": ["f_" + path.rpartition(".")[2] + ("__ec" if path.startswith(EC) else "__ebc")],
             "dense": False, "is_dynamic": False, "dimension": rows.shape[1], "dtype": str(rows.dtype),
             "memory": rows.nbytes, "shape": list(rows.shape)}
    if is_quantised:
        facts |= {"dimension": rows.shape[1] - 4, "dtype": "QUint8RowwiseF16", "storage_dtype": "uint8",
                  "storage_shape": list(rows.shape), "row_bytes": rows.shape[1],
                  "shape": [len(rows), rows.shape[1] - 4], "quant": INT8}
    return facts


def write_torcheasyrec(folder, ranks, pooling=None):
    """Each rank is {path: rows} of tables by row number and {path: (keys, rows[, default])} of dynamic ones."""
    sparse = folder / "sparse"
    sparse.mkdir(parents=True)
    for rank, tables in enumerate(ranks):
        place = f"-{rank:02d}-of-{len(ranks):02d}"
        static, dynamic, facts = {}, {}, {}
        for path, table in tables.items():
            if not isinstance(table, tuple):
                static[path], facts[path] = table, _facts(path, table, table.dtype == np.uint8)
                continue
            keys, rows, *default = table
            facts[path] = _facts(path, rows, rows.dtype == np.uint8) | {
                "is_dynamic": True, "key_dtype": "int64", "score_dtype": "int64", "key_name": f"{path}.keys",
                "value_name": f"{path}.values", "score_name": f"{path}.scores"}
            dynamic |= {f"{path}.keys": np.asarray(keys, np.int64), f"{path}.values": rows,
                        f"{path}.scores": np.zeros(len(keys), np.int64)}
            if default:
                facts[path]["default_value_name"] = f"{path}.default_value"
                dynamic[f"{path}.default_value"] = default[0]
        np.savez(sparse / f"sparse_embeddings{place}.npz", **static)
        if dynamic:
            np.savez(sparse / f"sparse_dynamic_embedding{place}.npz", **dynamic)
        (sparse / f"sparse_embeddings{place}.json").write_text(json.dumps(facts, indent=4))
    features = {f"f_{name.rpartition('.')[2]}__ebc": {"embedding_name": name, "pooling": pools}
                for name, pools in (pooling or {}).items()}
    (sparse / "sparse_features.json").write_text(json.dumps(features, indent=4))
    return sparse


def write_rtp(folder, ranks):
    """Each rank is {tensor: array}, named as RTP's export does."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {"float32": "F32", "int64": "I64"}
    for rank, tensors in enumerate(ranks):
        stem = f"model-{rank:06d}-of-{len(ranks):06d}"
        write_safetensors(folder / f"{stem}.safetensors",
                          {name: (kinds[array.dtype.name], array) for name, array in tensors.items()})
        facts = {}
        for name, array in tensors.items():
            if ".keys" in name:
                continue
            facts[name] = {"name": name, "dense": False, "dimension": array.shape[1], "dtype": "float32",
                           "memory": array.nbytes, "shape": list(array.shape), "is_hashmap": ".values" in name}
            if ".values" in name:
                facts[name] |= {"hashmap_value": name, "hashmap_key": name.replace(".values", ".keys"),
                                "hashmap_key_dtype": "int64"}
        (folder / f"{stem}.json").write_text(json.dumps(facts, indent=4))
    return folder


def write_dynamicemb(folder, table, ranks):
    """Each rank is (keys, rows); in a folder for each collection."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{table}_opt_args.json").write_text('{"opt_type": "adam", "evict_strategy": "KLru"}')
    for rank, (keys, rows) in enumerate(ranks):
        place = f"rank_{rank}.world_size_{len(ranks)}"
        np.asarray(keys, np.int64).tofile(folder / f"{table}_emb_keys.{place}")
        np.asarray(rows, np.float32).tofile(folder / f"{table}_emb_values.{place}")
        np.zeros(len(keys), np.uint64).tofile(folder / f"{table}_emb_scores.{place}")
    return folder


# ---- deltas -----------------------------------------------------------------------------------
def write_delta(source, step, tables, rank=0, world=1, prefix="delta_embedding", said=None):
    """A file of one rank; `tables` is {path: (keys, rows)}, and `said` replaces what its columns say."""
    folder = source if world == 1 else source / f"step_{step}"
    folder.mkdir(parents=True, exist_ok=True)
    place = "" if world == 1 else f"_rank_{rank}_of_{world}"
    path = folder / f"{prefix}_step_{step}{place}.parquet"
    count = sum(len(keys) for keys, _ in tables.values())
    quantised = any(rows.dtype == np.uint8 for _, rows in tables.values())
    numbers = {"global_step": step, "rank": rank, "world_size": world} | (said or {})
    content = {name: np.full(count, number) for name, number in numbers.items()}
    content["table_fqn"] = [path for path, (keys, _) in tables.items() for _ in keys]
    content["key_id"] = np.concatenate([np.asarray(keys, np.int64) for keys, _ in tables.values()] or [np.zeros(0, int)])
    content["embedding"] = [row for _, rows in tables.values() for row in rows]
    path.write_bytes(_as_parquet(content, np.uint8 if quantised else np.float32))
    return path


def _as_parquet(content, dtype):
    """With pyarrow where it is installed, otherwise as what `fake_pyarrow` reads."""
    out = io.BytesIO()
    if "pyarrow" in sys.modules and sys.modules["pyarrow"].__spec__:
        import pyarrow  # pylint: disable=import-outside-toplevel,import-error
        from pyarrow import parquet  # pylint: disable=import-outside-toplevel,import-error
        columns = {"global_step": pyarrow.int64(), "rank": pyarrow.int32(), "world_size": pyarrow.int32(),
                   "table_fqn": pyarrow.string(), "key_id": pyarrow.int64(),
                   "embedding": pyarrow.list_(pyarrow.from_numpy_dtype(dtype))}
        parquet.write_table(pyarrow.table({name: pyarrow.array(list(content[name]), kind)
                                           for name, kind in columns.items()}), out)
    else:
        rows = content.pop("embedding")
        np.savez(out, lengths=np.array([len(row) for row in rows], np.int64),
                 embedding=np.concatenate(rows or [np.zeros(0)]).astype(dtype),
                 table_fqn=np.array(content.pop("table_fqn"), str), **content)
    return out.getvalue()


class _Column:
    def __init__(self, array, lengths=None):
        self.array, self.lengths = array, lengths

    def combine_chunks(self):
        return self

    def to_numpy(self, zero_copy_only=True):
        return self.array

    def to_pylist(self):
        return self.array.tolist()

    def value_lengths(self):
        return _Column(self.lengths)

    def flatten(self):
        return _Column(self.array)


class _Table:
    def __init__(self, path):
        with np.load(path) as arrays:
            self.arrays = dict(arrays)

    def column(self, name):
        return _Column(self.arrays[name], self.arrays["lengths"])


def install_pyarrow(monkeypatch):
    """Debian has no pyarrow; this stands for it unless it is installed."""
    try:
        import pyarrow  # pylint: disable=import-outside-toplevel,unused-import
    except ImportError:
        fake = types.ModuleType("pyarrow")
        fake.parquet = types.SimpleNamespace(read_table=_Table)
        monkeypatch.setitem(sys.modules, "pyarrow", fake)
