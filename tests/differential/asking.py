"""Random requests for inference in every form and encoding, and the comparison of their replies."""

import gzip
import json
import zlib

import numpy as np

from harness import Failure
from numerics import CONVERTIBLE, F32, F64, HALVES, ROW_FORMATS, Storage
from pooling import REDUCTIONS, Answer, Inputs, Output, Rejected, check_words, differs, need
from tables import MASK, ODD_KEYS
from v2 import NO_JSON, NUMPY, Tensor, bf16_from_f32, infer_body

LENGTHS = (0, 0, 1, 1, 1, 2, 3, 5, 9, 20)
INDEX_TYPES = ("INT32", "INT64")


# ---- ids -------------------------------------------------------------------------------------------
def random_ids(rng, rules, count):
    """Of rows or keys: those that are there, those with a meaning, and where the rules say what becomes of
    them those that are not."""
    table = rules.table
    if rules.keyed:
        known = np.array(list(table.where) or [0], np.uint64)
        ids = rng.choice(known, count)
        strange = rng.choice(np.array(ODD_KEYS, np.uint64), count)
        strange[rng.integers(2, size=count) == 0] ^= np.uint64(rng.integers(1 << 20))
        special = [x for x in (rules.padding, rules.default) if x is not None]
    else:
        rows = len(table)
        ids = rng.integers(0, max(rows, 1), count)
        strange = rng.choice([-1, -rows, -2**31, rows, rows + 7, 2**31 - 1], count)
        padding = rules.padding
        special = [x for x in (padding if padding is None or padding >= 0 else padding + rows,
                               rules.default) if x is not None]
    takes = rules.missing != "error" or (rules.prune_invalid and not rules.keyed)
    where = rng.random(count) < (0.25 if takes else 0.004)
    if rules.missing == "error" and takes:
        strange = np.minimum(strange, -1)
    ids[where] = strange[where]
    if special:
        where = rng.random(count) < 0.2
        ids[where] = rng.choice(np.array(special, ids.dtype), int(where.sum()))
    return ids


def as_type(rng, rules, ids):
    """The ids in a type that has them all."""
    if not rules.keyed:
        return ids.astype(NUMPY[str(rng.choice(INDEX_TYPES))]) if len(ids) else ids.astype(np.int64)
    signed = ids.view(np.int64) if ids.dtype == np.uint64 else ids
    narrow = (np.abs(signed.astype(F64)) < 2**31).all() and rng.integers(2)
    if narrow:
        return signed.astype(np.int32)
    return signed if rng.integers(2) else signed.view(np.uint64)


# ---- one feature's inputs --------------------------------------------------------------------------
class FeatureInputs:
    """Tensors by name, in one of the forms."""

    def __init__(self, rng, rules, prefix="", bags=None):
        self.rng, self.rules, self.tensors = rng, rules, {}
        form = str(rng.choice(["offsets", "packed", "segments"]))
        if not rules.pools:
            form = str(rng.choice(["offsets", "rows", "rows", "rows"])) if rng.random() < 0.98 else "segments"
        count = int(rng.integers(0, 7)) if bags is None else bags
        lengths = rng.choice(LENGTHS, count)
        if bags is None and rng.random() < 0.01:
            lengths = rng.choice([0, 1, 30, 200], 60)
        if form == "packed" and count:
            lengths[:] = lengths[0]
        getattr(self, "_" + form)(lengths)
        self._add_weights()
        if rng.integers(4) == 0:
            self._add_default()
        if rules.require_matching_index_types and rng.random() < 0.95:
            self._match()
        if rng.random() < 0.03:
            self._spoil()
        order = rng.permutation(len(self.tensors))
        names = list(self.tensors)
        self.tensors = {names[i]: self.tensors[names[i]] for i in order}
        self.prefixed = [Tensor(prefix + n, t.array, t.datatype) for n, t in self.tensors.items()]

    def _put(self, name, array, datatype=""):
        self.tensors[name] = Tensor(name, array, datatype)

    def _put_ids(self, count, shape):
        ids = as_type(self.rng, self.rules, random_ids(self.rng, self.rules, count))
        self._put("indices", ids.reshape(shape))

    def _narrow(self, array):
        return np.asarray(array, NUMPY[str(self.rng.choice(INDEX_TYPES))])

    def _offsets(self, lengths):
        before = 0 if self.rules.require_zero_first_offset else int(self.rng.choice([0, 0, 0, 2]))
        after = int(self.rng.choice([0, 0, 3])) if self.rules.include_last_offset else 0
        ends = before + np.cumsum(lengths, dtype=np.int64)
        offsets = ends - lengths
        if not len(lengths) and not self.rules.include_last_offset:
            before = before if self.rng.integers(2) else 0
        if self.rules.include_last_offset:
            offsets = np.append(offsets, ends[-1] if len(ends) else before)
        count = before + int(lengths.sum()) + after
        self._put_ids(count, (count,))
        self._put("offsets", self._narrow(offsets))

    def _packed(self, lengths):
        shape = (len(lengths), int(lengths[0]) if len(lengths) else 0)
        self._put_ids(shape[0] * shape[1], shape)

    def _rows(self, lengths):
        count = int(lengths.sum())
        if count == 1 and self.rng.integers(2):
            self._put_ids(1, ())
            return
        factors = [n for n in range(1, count + 1) if count % n == 0] or [1]
        first = int(self.rng.choice(factors))
        shapes = [(count,), (first, count // first), (count // first, 1, first)]
        self._put_ids(count, shapes[self.rng.integers(3)])

    def _segments(self, lengths):
        ids = np.repeat(np.arange(len(lengths)), lengths)
        if self.rules.unsorted_segments:
            ids = self.rng.permutation(ids)
        self._put_ids(len(ids), (len(ids),))
        self._put("segment_ids", self._narrow(ids))
        if self.rng.integers(2):
            number = np.array(len(lengths))
            self._put("num_segments", self._narrow(number if self.rng.integers(2) else number[None]))

    def _add_weights(self):
        rules, rng = self.rules, self.rng
        takes = rules.takes_weights
        if rng.random() > (0.5 if takes else 0.02):
            return
        shape, datatype = self.tensors["indices"].array.shape, rules.table.storage.datatype
        if not rules.table.storage.is_float:
            limits = np.iinfo(NUMPY[datatype])
            self._put("per_sample_weights", rng.integers(max(limits.min, -9), 10, shape).astype(NUMPY[datatype]))
            return
        weights = rng.standard_normal(shape)
        weights[rng.random(shape) < 0.1] = 0
        if rng.integers(2):
            datatype = "FP32"
        if datatype == "BF16":
            self._put("per_sample_weights", bf16_from_f32(weights.astype(F32)), "BF16")
        else:
            self._put("per_sample_weights", weights.astype(NUMPY[datatype]))

    def _add_default(self):
        rules, rng = self.rules, self.rng
        if rules.keyed:
            known = np.array(list(rules.table.where) or [7], np.uint64)
            value = as_type(rng, rules, rng.choice(known, 1))
        else:
            low = 0 if rules.missing == "default" else -1
            value = self._narrow([rng.integers(low, max(len(rules.table), 1))])
        self._put("default_index", value if rng.integers(2) else value[0])

    def _match(self):
        """All in the widest type."""
        if any(t.datatype == "UINT64" for t in self.tensors.values()):
            wide = self.tensors["indices"].array.astype(np.uint64).view(np.int64)
            self._put("indices", wide)
        for name, tensor in self.tensors.items():
            if name != "per_sample_weights":
                array = tensor.array
                self._put(name, array.view(np.int64) if array.dtype == np.uint64 else array.astype(np.int64))

    def _spoil(self):
        """Something that must be refused, or not."""
        name = str(self.rng.choice([n for n in self.tensors if n != "per_sample_weights"]))
        array = self.tensors[name].array.copy()
        if array.size:
            flat = array.reshape(-1)
            flat[self.rng.integers(len(flat))] = self.rng.choice([0, 1, 3, 100, 2**31 - 1])
        self._put(name, array)


def beside(arrays):
    """[bags, ...] each, side by side."""
    return np.concatenate([a.reshape(len(a), int(np.prod(a.shape[1:]))) for a in arrays], axis=1)


def compare_encoded(name, got, want, row_format, told):
    """Rows of bytes against the FP32 rows that they stand for: what NumPy encodes, or rows that are stored so."""
    elements = told["row_elements"]
    values, storage = want.array.reshape(-1, elements).astype(F32), Storage("FP32", row_format)
    lead = got.array.shape[:-1]
    if (got.datatype, told["row_format"], got.array.shape[-1]) != ("UINT8", row_format, storage.width(elements)) or (
            np.prod(lead, dtype=int) != len(values) or (lead and lead[0] != want.array.shape[0])):
        raise Failure(f"{name}: {got.datatype} {got.array.shape} with {told} as {row_format}")
    if want.margin is not None or not elements:
        return
    decoded = storage.decode(got.array.reshape(len(values), storage.width(elements)), elements)
    for row, value in zip(decoded, values):
        encoded = storage.encode(value[None])
        if encoded is None:  # a row of NaNs, or where each element has a NaN or an infinity of its own those
            same = np.isnan(row).all() or not ROW_FORMATS[row_format][2]
        else:
            same = np.array_equal(row, storage.decode(encoded, elements)[0], equal_nan=True)
        if not same and not np.array_equal(row, value, equal_nan=True):
            raise Failure(f"{name} as {row_format}: {row} instead of {value}")


def compare(name, got, want, is_binary=True):
    """An output's tensor with what it must be; in JSON the bits of NaNs are lost."""
    if (got.datatype, got.array.shape) != (want.datatype, want.array.shape):
        raise Failure(f"{name}: {got.datatype}{list(got.array.shape)} instead of "
                      f"{want.datatype}{list(want.array.shape)}")
    found, wanted = (np.atleast_1d(output.array) for output in (got, want))
    wrong = differs(found, wanted, want.datatype, want.margin, want.has_signs)
    if want.is_copy and is_binary:
        words = np.dtype(f"u{wanted.dtype.itemsize}")
        wrong |= (np.ascontiguousarray(found).view(words) != np.ascontiguousarray(wanted).view(words))
    if wrong.any():
        at = tuple(int(i[0]) for i in np.nonzero(wrong))
        raise Failure(f"{name}: {found[at]!r} instead of {wanted[at]!r} at {at}; "
                      f"{int(wrong.sum())} of {wrong.size} differ")


# ---- requests --------------------------------------------------------------------------------------
class Request:
    """One request to a model, whose `features` are names and rules; a table has one, "embeddings"."""

    def __init__(self, rng, model, features, is_collection):
        self.rng, self.model, self.features, self.is_collection = rng, model, features, is_collection
        self.parameters = self._choose_parameters()
        self.rules = {}
        try:
            self.rules = {n: r.changed(self.parameters) for n, r in features.items()}
        except Rejected:
            self.parameters = {}
            self.rules = dict(features)
        self.inputs, self.of = [], {}  # all tensors; of a feature: what makes its Inputs
        self.one_type = False  # is asked for, and the layout has two
        if not is_collection:
            self._add_feature("embeddings", "")
        elif rng.integers(2):
            self._add_kjt()
        else:
            self._add_named()
        self._choose_outputs()
        self._choose_encoding()

    # -- what is asked
    def _choose_parameters(self):
        rng, chosen = self.rng, {}
        rules = list(self.features.values())
        if rng.integers(4) == 0:
            chosen["reduction"] = str(rng.choice(REDUCTIONS))
        if rng.integers(8) == 0:
            chosen["include_last_offset"] = bool(rng.integers(2))
        if rng.integers(6) == 0:
            chosen["padding_idx"] = self._random_padding(rules)
        if rng.integers(8) == 0:
            chosen["output_datatype"] = str(rng.choice(CONVERTIBLE))
        if rng.integers(8) == 0:
            chosen["output_row_format"] = str(rng.choice(["plain", *ROW_FORMATS]))
        if rng.random() < 0.05:
            word = "missing" if rules[0].keyed else "out_of_range"
            chosen[word] = str(rng.choice(["error", rules[0].missing]))
        if rng.integers(3) == 0:
            chosen["explain"] = True
        return chosen

    def _random_padding(self, rules):
        keyed = [r for r in rules if r.keyed]
        dense = [len(r.table) for r in rules if not r.keyed]
        if dense:
            least = min(dense)
            return int(self.rng.integers(0, least)) if least else 0
        known = list(keyed[0].table.where) or [1]
        key = int(known[self.rng.integers(len(known))])
        signed = key - 2**64 if key >> 63 and self.rng.integers(2) else key
        wide = abs(signed) >= 2**53
        return str(signed) if wide and self.rng.integers(4) else signed

    def _add_feature(self, name, prefix, bags=None):
        own = FeatureInputs(self.rng, self.rules[name], prefix, bags)
        self.of[name] = Inputs(own.tensors)
        self.inputs += own.prefixed

    def _add_named(self):
        names = [n for n in self.features if self.rng.integers(4)] or list(self.features)[:1]
        bags = int(self.rng.integers(0, 5)) if self.rng.integers(2) else None
        for name in names:
            self._add_feature(name, f"{name}.", bags)

    def _add_kjt(self):
        rng, values, lengths = self.rng, [], []
        counts = np.full(len(self.rules), rng.integers(0, 6))
        is_strided = rng.integers(4) == 0
        if is_strided and rng.integers(4):
            counts = rng.integers(0, 6, len(self.rules))
        for rules, count in zip(self.rules.values(), counts):
            own = rng.choice(LENGTHS, count)
            ids = random_ids(rng, rules, int(own.sum()))
            if count and rng.integers(8) == 0:  # long bags of one or two users, once for each candidate
                users = random_ids(rng, rules, 300).reshape(2, 150)
                own = np.full(count, 150)
                ids = users[np.sort(rng.integers(0, rng.integers(1, 3), count))].ravel()
            values.append(ids.astype(object))
            lengths.append(own)
        flat = [int(v) for part in values for v in part]
        lengths = np.concatenate(lengths).astype(np.int64)
        signed = [v - 2**64 if v >> 63 > 0 else v for v in flat]
        if all(r.keyed for r in self.rules.values()) and rng.integers(3) == 0:
            array = np.array([v & MASK for v in flat], np.uint64)
        elif all(-2**31 <= v < 2**31 for v in signed) and rng.integers(2):
            array = np.array(signed, np.int32)
        else:
            array = np.array(signed, np.int64)
        layout = str(rng.choice(["lengths", "offsets"]))
        ends = np.append(0, np.cumsum(lengths))
        kind = NUMPY[str(rng.choice(INDEX_TYPES))]
        self.one_type = any(r.require_matching_index_types for r in self.rules.values())
        if self.one_type and rng.random() < 0.95:
            array, kind = array.view(np.int64) if array.itemsize == 8 else array.astype(np.int64), np.int64
        self.inputs = [Tensor("values", array),
                       Tensor(layout, (lengths if layout == "lengths" else ends).astype(kind))]
        self.one_type &= self.inputs[0].datatype != self.inputs[1].datatype
        takes = all(r.takes_weights for r in self.rules.values())
        weights = None
        if rng.random() < (0.5 if takes else 0.03):
            weights = rng.standard_normal(len(array)).astype(F32)
            self.inputs.append(Tensor("weights", weights))
        if is_strided:
            self.inputs.append(Tensor("stride_per_key", counts.astype(NUMPY[str(rng.choice(INDEX_TYPES))])))
        self.inputs = [self.inputs[i] for i in rng.permutation(len(self.inputs))]
        firsts = np.append(0, np.cumsum(counts))
        for i, (name, rules) in enumerate(self.rules.items()):
            self.of[name] = self._part(rules, array, weights, ends[firsts[i]:firsts[i + 1] + 1])
            rules = self.rules[name] = rules.changed({})
            rules.include_last_offset, rules.require_matching_index_types = True, False

    @staticmethod
    def _part(rules, array, weights, ends):
        part = slice(int(ends[0]), int(ends[-1]))
        tensors = {"indices": Tensor("indices", array[part]), "offsets": Tensor("offsets", ends - ends[0])}
        if weights is not None:
            tensors["per_sample_weights"] = Tensor("per_sample_weights", weights[part])
        return Inputs(tensors)

    def _choose_outputs(self):
        rng, self.outputs = self.rng, None
        if rng.integers(2):
            return
        if not self.is_collection:
            self.outputs = ["embeddings"]
            return
        names = [n for n in self.features if rng.integers(2)]
        if rng.integers(3) == 0 or not names:
            names.append("embeddings")
        self.outputs = [names[i] for i in rng.permutation(len(names))]

    def _choose_encoding(self):
        rng = self.rng
        kind = rng.integers(3)
        self.binary_in = {0: False, 1: True}.get(int(kind)) if kind < 2 else {
            t.name for t in self.inputs if rng.integers(2)}
        halves = {t.name for t in self.inputs if t.datatype in NO_JSON}
        if halves and self.binary_in is not True:
            self.binary_in = set(self.binary_in or ()) | halves
        self.coding = [None, None, None, "gzip", "deflate"][rng.integers(5)]
        self.id = str(rng.integers(1000)) if rng.integers(4) == 0 else ""
        self.accepts = ["", "", "gzip", "deflate"][rng.integers(4)]
        if rng.integers(4):
            self.parameters["binary_data_output"] = bool(rng.integers(2))
        self.own_binary = {} if self.outputs is None else {
            n: bool(rng.integers(2)) for n in self.outputs if rng.integers(3) == 0}

    def pools(self):
        """True if a feature that is asked for is pooled, and False if one is not."""
        return {self.rules[name].pools for name in self.of}

    # -- what it must be answered
    def answer_of(self, name, inputs):
        """A feature's."""
        return Answer(self.rules[name], inputs)

    def answer(self):
        """Outputs by name, in their order; raises Rejected."""
        padding = self.parameters.get("padding_idx", 0)
        need(isinstance(padding, str) or abs(padding) < 2**53, "a number that JSON does not hold exactly")
        check_words(list(self.features.values()), self.parameters)
        encodes = self.row_format != "plain"
        need(not encodes or self.parameters.get("output_datatype", "FP32") == "FP32", "encoded halves")
        need(not encodes or all(r.table.storage.datatype in CONVERTIBLE for r in self.features.values()),
             "encoded integers or FP64")
        need(not self.one_type, "two index types")
        answers = {n: self.answer_of(n, inputs) for n, inputs in self.of.items()}
        need(sum(len(a.rows) for a in answers.values()) <= 2**32, "bags of all features")
        need(self.row_format != "plain" or not any(a.is_too_large for a in answers.values()),
             "the rows of a feature are too large")
        names = self.outputs or [n for n in self.features if n in answers]
        told = self._told(answers) if self.parameters.get("explain") else []
        need(not any(answers[n].needs_sorted for n in told), "unsorted segments are explained")
        found = {}
        for name in names:
            need(name in answers or (name == "embeddings" and self.is_collection), f"output {name} without inputs")
            found[name] = (answers[name].output(self._datatype(name, name)) if name in answers
                           else self._side_by_side(answers))
        return found, answers

    def _told(self, answers):
        """The features that an explanation is of: those that are pooled for the outputs."""
        whole = not self.outputs or "embeddings" in self.outputs
        return [n for n in sorted(answers) if whole or n in self.outputs]

    @property
    def row_format(self):
        return self.parameters.get("output_row_format", "plain")

    def _is_binary(self, output):
        return self.own_binary.get(output, self.parameters.get("binary_data_output", False))

    def _datatype(self, feature, output):
        """Halves have no JSON form: there they are FP32, unless they are asked for."""
        datatype = self.rules[feature].output
        if self.row_format != "plain":
            return "FP32"
        if self._is_binary(output) or datatype not in HALVES:
            return datatype
        need("output_datatype" not in self.parameters, f"{datatype} in JSON")
        return "FP32"

    def _side_by_side(self, answers):
        need(len(answers) == len(self.features), "embeddings without all inputs")
        need(all(rules.pools for rules in self.rules.values()), "embeddings of rows")
        datatypes = {self._datatype(n, "embeddings") for n in self.features}
        need(len({len(a.rows) for a in answers.values()}) == 1, "different numbers of bags")
        need(len(datatypes) == 1, "different datatypes")
        parts = [answers[n].output(*datatypes) for n in self.features]
        margin = None
        if any(p.margin is not None for p in parts):
            margin = beside([np.zeros(p.array.shape) if p.margin is None else p.margin for p in parts])
        return Output(*datatypes, beside([p.array for p in parts]), margin)

    # -- sending
    def send(self, client, path, headers):
        outputs = None if self.outputs is None else [
            {"name": n} | ({"parameters": {"binary_data": self.own_binary[n]}} if n in self.own_binary else {})
            for n in self.outputs]
        body, own = infer_body(self.inputs, binary=self.binary_in, outputs=outputs, id=self.id,
                               parameters=self.parameters)
        own["Accept-Encoding"] = self.accepts or "identity"
        if self.coding:
            body = gzip.compress(body, 1) if self.coding == "gzip" else zlib.compress(body, 1)
            own["Content-Encoding"] = self.coding
        return client.request("POST", path, body, own | headers)

    def check(self, reply):
        """Whether it was answered; a Failure where it should not have been, or was wrong."""
        coding = reply.headers.get("content-encoding")
        if coding:
            reply.body = gzip.decompress(reply.body) if coding == "gzip" else zlib.decompress(reply.body)
        if coding and coding != self.accepts:
            raise Failure(f"a reply in {coding} to who accepts {self.accepts!r}")
        try:
            want, answers = self.answer()
        except Rejected as why:
            if reply.status != 400:
                raise Failure(f"status {reply.status} instead of 400, for {why}: {reply.body[:300]!r}") from None
            return False
        if reply.status != 200:
            raise Failure(f"status {reply.status} instead of 200: {reply.body[:500]!r}")
        got = reply.outputs()
        if list(got) != list(want):
            raise Failure(f"outputs {list(got)} instead of {list(want)}")
        told = {entry["name"]: entry.get("parameters", {}) for entry in reply.header()[0]["outputs"]}
        for name, answer in want.items():
            if self.row_format != "plain":
                compare_encoded(name, got[name], answer, self.row_format, told[name])
                continue
            compare(name, got[name], answer, self._is_binary(name))
        self._check_header(reply, answers)
        return True

    def _check_header(self, reply, answers):
        header, want = reply.header()[0], {}
        if header.get("id", "") != self.id:
            raise Failure(f"id {header.get('id')!r} instead of {self.id!r}")
        told = header.get("parameters", {})
        if "explain" in told:
            told["explain"].sort(key=lambda entry: entry["name"])
        if self.parameters.get("explain"):
            want = {"explain": [{"name": n, "bags": answers[n].explanation} for n in self._told(answers)]}
        outside = [(name, self.of[name].outside(self.rules[name])) for name in self.features if name in self.of]
        for name, sentence in [(name, sentence) for name, sentence in outside if sentence][:1]:
            want["warnings"] = [f"feature '{name}': {sentence}" if self.is_collection else sentence]
        if told != want:
            raise Failure(f"parameters {json.dumps(told)} instead of {json.dumps(want)}")

    def describe(self):
        """All of it, for somebody who repeats it."""
        tensors = [t.description() | {"data": t.array.ravel().tolist()} for t in self.inputs]
        return json.dumps({"model": self.model, "inputs": tensors, "outputs": self.outputs,
                           "parameters": self.parameters, "binary": sorted(self.binary_in)
                           if isinstance(self.binary_in, set) else self.binary_in, "coding": self.coding})
