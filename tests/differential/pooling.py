"""What a request must be answered: the rules of models and features, and what each does with an entry, a bag
and a table, written down apart from the server (proto/PROTOCOL.md, config/examples/README.md)."""

import dataclasses

import numpy as np

from keyed import hashed_row
from numerics import (CONVERTIBLE, F32, F64, HALVES, pool_floats, pool_integers, quiet, round_halves, widened)
from tables import MASK
from v2 import f32_from_bf16

REDUCTIONS = ("none", "sum", "mean", "max", "sqrtn")
MOST_BAGS = 2**30  # each reply with more is too large; only a feature that is in no output of encoded rows may have them
FLAGS = ("include_last_offset", "weighted_mean", "prune_invalid", "unsorted_segments",
         "require_zero_first_offset", "require_matching_index_types")


class Rejected(Exception):
    """What the request, or the batch, must be refused for."""


def need(condition, why):
    if not condition:
        raise Rejected(why)


# ---- rules -----------------------------------------------------------------------------------------
@dataclasses.dataclass
class Projection:
    path: str
    matrix: np.ndarray
    bias_path: str | None = None
    bias: np.ndarray | None = None


class Rules:
    """Of a model, or of a feature over its table's: `settings` as a configuration has them."""

    def __init__(self, settings, table):
        self.table = table
        self.reduction = settings.get("reduction", "sum")
        for flag in FLAGS:
            setattr(self, flag, bool(settings.get(flag)))
        keyed = table.where is not None
        self.padding = settings.get("padding_idx")
        self.default = settings.get("default_index")
        if keyed:
            self.padding = None if self.padding is None else int(self.padding) & MASK
            self.default = None if self.default is None else int(self.default) & MASK
        elif self.default == -1:
            self.default = None
        self.missing = settings.get("missing" if keyed else "out_of_range", "error")
        self.hash_rows = settings.get("hash_rows", 0) if self.missing == "hash" else 0
        self.output = settings.get("output_datatype", table.storage.datatype)
        self.projection = settings.get("projection") or None

    @property
    def keyed(self):
        return self.table.where is not None

    @property
    def pools(self):
        return self.reduction != "none"

    @property
    def takes_weights(self):
        return self.reduction in ("sum", "sqrtn") or (self.reduction == "mean" and self.weighted_mean)

    @property
    def shape(self):
        return self.table.shape if self.projection is None else (self.projection.matrix.shape[1],)

    def changed(self, parameters):
        """With what a request's parameters say."""
        own = Rules.__new__(Rules)
        own.__dict__.update(self.__dict__)
        own.reduction = parameters.get("reduction", self.reduction)
        own.include_last_offset = parameters.get("include_last_offset", self.include_last_offset)
        own.output = parameters.get("output_datatype", self.output)
        own.missing = parameters.get("missing" if self.keyed else "out_of_range", self.missing)
        if "padding_idx" in parameters:
            own.padding = int(parameters["padding_idx"])
            own.padding &= MASK if self.keyed else -1
        own._check()
        return own

    def _check(self):
        storage, rows = self.table.storage, len(self.table)
        need(self.reduction != "sqrtn" or storage.is_float, "sqrtn of integers")
        need(self.output == storage.datatype or {self.output, storage.datatype} <= set(CONVERTIBLE),
             f"{storage.datatype} as {self.output}")
        if not self.keyed and self.padding is not None:
            need(-rows <= self.padding < rows, "padding_idx outside the table")


def check_words(rules, parameters):
    """A request may make an error of what a model takes; `rules` are those of all features."""
    for word, keyed in (("missing", True), ("out_of_range", False)):
        if word in parameters:
            own = [r.missing for r in rules if r.keyed == keyed]
            need(own, f"{word} for no table")
            need(all(parameters[word] in ("error", missing) for missing in own), f"{word} is the model's")


# ---- entries ---------------------------------------------------------------------------------------
class Entries:
    """What becomes of every entry of a feature: the row that is pooled (-1: none), and what an explanation
    says of it."""

    def __init__(self, rules, indices, weights, default):
        self.rules, self.rows, self.said = rules, [], []
        judge = self._key if rules.keyed else self._index
        padding = rules.padding
        if padding is not None and not rules.keyed:
            padding %= len(rules.table)
        prunes = rules.prune_invalid and weights is not None and rules.reduction in ("mean", "sqrtn")
        for position, index in enumerate(indices):
            row, said = judge(int(index), padding, default)
            if prunes and row >= 0 and not weights[position] > 0:
                row, said = -1, said or "pruned"
            self.rows.append(row)
            self.said.append(said)

    def _index(self, index, padding, default):
        if index == padding:
            return -1, "padding"
        if 0 <= index < len(self.rules.table):
            return index, None
        if index < 0 and self.rules.prune_invalid:
            return -1, "pruned"
        need(self.rules.missing != "error", f"index {index}")
        return default if self.rules.missing == "default" else -1, "out_of_range"

    def _key(self, index, padding, default):
        key = index & MASK
        if key == padding:
            return -1, "padding"
        row = self.rules.table.where.get(key)
        if row is not None:
            return row, None
        need(self.rules.missing != "error", f"key {key}")
        if self.rules.missing == "hash":
            return hashed_row(key, self.rules.hash_rows), "missing"
        return (default if self.rules.missing == "default" else -1), "missing"

    def explain(self, first, end, has_default):
        kept = sum(row >= 0 for row in self.rows[first:end])
        told = {"rows": kept, "default": kept == 0 and has_default}
        for name in ("padding", "pruned", "out_of_range", "missing", "other_part"):
            positions = [i for i in range(first, end) if self.said[i] == name]
            told |= {name: positions} if positions else {}
        return told


# ---- bags ------------------------------------------------------------------------------------------
def check_offsets(offsets, count):
    need((np.diff(offsets) >= 0).all(), "offsets decrease")
    need(not len(offsets) or (0 <= offsets[0] and offsets[-1] <= count), "an offset is outside")


def bags_of_offsets(rules, offsets, count):
    need(not rules.include_last_offset or len(offsets), "no offset")
    check_offsets(offsets, count)
    need(not rules.require_zero_first_offset or not len(offsets) or offsets[0] == 0, "the first offset")
    ends = list(map(int, offsets)) + ([] if rules.include_last_offset else [count])
    return [list(range(first, end)) for first, end in zip(ends, ends[1:])]


def bags_of_segments(rules, ids, number):
    last = -1
    if len(ids):
        last = int(ids.max() if rules.unsorted_segments else ids[-1])
    count = int(number) if number is not None else last + 1
    need(count >= 0, "num_segments")
    need(not len(ids) or (ids >= 0).all(), "a segment id is negative")
    need(number is None or not len(ids) or (ids < count).all(), "a segment id is too large")
    need(rules.unsorted_segments or (np.diff(ids) >= 0).all(), "segment ids decrease")
    if count > MOST_BAGS:
        return range(count)
    bags = [[] for _ in range(count)]
    for position, segment in enumerate(ids):
        bags[int(segment)].append(position)
    return bags


class Inputs:
    """A feature's tensors, by their names without the feature's."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __getitem__(self, name):
        tensor = self.tensors.get(name)
        return None if tensor is None else tensor.array

    def check(self, rules):
        self._check_types(rules)
        indices, offsets, ids = self["indices"], self["offsets"], self["segment_ids"]
        need(indices is not None, "no indices")
        need(offsets is None or ids is None, "two forms")
        need(ids is not None or self["num_segments"] is None, "num_segments without segments")
        if not rules.pools:
            need(ids is None and self["num_segments"] is None, "segments of rows")
        else:
            packed = offsets is None and ids is None
            need(indices.ndim == (2 if packed else 1), "the rank of indices")
        need(ids is None or len(ids) == len(indices), "as many segment ids as indices")
        for name in ("num_segments", "default_index"):
            need(self[name] is None or (self[name].ndim <= 1 and self[name].size == 1), name)

    def outside(self, rules):
        """A sentence for indices that are in no bag of right offsets, or None."""
        offsets = self["offsets"]
        if offsets is None or not rules.pools:
            return None
        count, begin, end = self["indices"].size, 0, 0
        if len(offsets):
            begin, end = int(offsets[0]), int(offsets[-1]) if rules.include_last_offset else count
        return None if end - begin == count else (
            f"{count - (end - begin)} of {count} indices are in no bag: by 'offsets', the bags begin at index {begin} and end "
            f"before index {end}")

    def _check_types(self, rules):
        for name, tensor in self.tensors.items():
            if name == "per_sample_weights":
                own = rules.table.storage.datatype
                need(rules.takes_weights, "weights")
                need(tensor.datatype == own or (rules.table.storage.is_float and tensor.datatype == "FP32"),
                     "the datatype of weights")
                need(tensor.array.shape == self["indices"].shape, "the shape of weights")
                continue
            is_key = rules.keyed and name in ("indices", "default_index")
            need(tensor.datatype in ("INT32", "INT64") + ("UINT64",) * is_key, f"the datatype of {name}")
            need(not rules.require_matching_index_types or
                 tensor.datatype == self.tensors["indices"].datatype, "different datatypes")

    def weights(self, rules):
        """As they are computed with."""
        tensor = self.tensors.get("per_sample_weights")
        if tensor is None:
            return None
        numbers = f32_from_bf16(tensor.array) if tensor.datatype == "BF16" else tensor.array
        return numbers.ravel().astype(rules.table.storage.computed)

    def bags(self, rules):
        """Positions in the indices, bag by bag; without a reduction each is a bag. More than MOST_BAGS are a range."""
        if not rules.pools:
            if self["offsets"] is not None:
                bags_of_offsets(rules, self["offsets"], self["indices"].size)
            return [[i] for i in range(self["indices"].size)]
        if self["offsets"] is not None:
            return bags_of_offsets(rules, self["offsets"], len(self["indices"]))
        if self["segment_ids"] is not None:
            number = self["num_segments"]
            return bags_of_segments(rules, self["segment_ids"], None if number is None else number.item())
        count, length = self["indices"].shape
        return [list(range(i * length, (i + 1) * length)) for i in range(count)]

    def pooled(self, rules):
        """Positions that are in bags, bag by bag. Of more than MOST_BAGS there are none: such requests are refused."""
        bags = self.bags(rules)
        return [] if isinstance(bags, range) else [entry for bag in bags for entry in bag]

    def default(self, rules):
        """The row of default_index; None: there is none."""
        value = rules.default if self["default_index"] is None else self["default_index"].item()
        if rules.keyed:
            if value is None:
                return None
            need(value & MASK in rules.table.where, "a default key that is not there")
            return rules.table.where[value & MASK]
        value = None if value == -1 else value
        need(value is None or 0 <= value < len(rules.table), "default_index")
        need(value is not None or rules.missing != "default", "a default row is needed")
        return value


# ---- a feature -------------------------------------------------------------------------------------
@dataclasses.dataclass
class Output:
    """As a client gets it: `array` [bags, ...] of `datatype`; for projected rows how far each may be off. Rows that are
    not pooled have the signs of zeros, and those that are copied the bits of NaNs."""

    datatype: str
    array: np.ndarray
    margin: np.ndarray | None = None
    has_signs: bool = False
    is_copy: bool = False


class Answer:
    """What a feature makes of its inputs: rows as they are computed, and an explanation."""

    def __init__(self, rules, inputs):
        inputs.check(rules)
        bags = inputs.bags(rules)
        weights, default = inputs.weights(rules), inputs.default(rules)
        entries, default = self._judge(rules, inputs["indices"].ravel(), weights, default)
        self.rules, self.explanation = rules, None
        self.needs_sorted = rules.unsorted_segments and inputs["segment_ids"] is not None
        self.shape = (len(bags),) if rules.pools else inputs["indices"].shape
        self.is_too_large = len(bags) > MOST_BAGS
        if self.is_too_large:
            self.rows = bags
            return
        if not rules.pools:
            default = None
            self.explanation = [entries.explain(0, len(bags), False)]
        elif not self.needs_sorted:
            firsts = [bag[0] if bag else 0 for bag in bags]
            self.explanation = [entries.explain(first, first + len(bag), default is not None)
                                for first, bag in zip(firsts, bags)]
        self.copies = None
        if not rules.pools and not rules.table.storage.quantised and rules.projection is None:
            self.copies = self._copies(entries.rows)
        pooled = [self._pool(entries, bag, weights, default) for bag in bags]
        table, self.margin = rules.table, None
        self.rows = np.array(pooled, table.storage.computed).reshape(len(bags), table.elements)
        if rules.projection is not None:
            self.rows, self.margin = project(self.rows, rules.projection)

    def _judge(self, rules, indices, weights, default):
        """What becomes of the entries, and the row of bags without any."""
        return Entries(rules, indices, weights, default), default

    def _pool(self, entries, bag, weights, default):
        table = self.rules.table
        kept = [i for i in bag if entries.rows[i] >= 0]
        if not kept:
            return np.zeros(table.elements, table.storage.computed) if default is None else table.values()[default]
        rows = table.values()[[entries.rows[i] for i in kept]]
        if not self.rules.pools:
            return rows[0]
        pool = pool_floats if table.storage.is_float else pool_integers
        return pool(self.rules.reduction, rows, None if weights is None else weights[kept])

    def _copies(self, rows):
        """The stored bits of rows; of -1 zeros."""
        stored = self.rules.table.stored
        found = np.zeros((len(rows), *stored.shape[1:]), stored.dtype)
        for position, row in enumerate(rows):
            if row >= 0:
                found[position] = stored[row]
        return found

    def output(self, datatype):
        need(not self.is_too_large, "a reply that is too large")
        shape = (*self.shape, *self.rules.shape)
        if self.copies is not None and datatype == self.rules.table.storage.datatype:
            return Output(datatype, self.copies.reshape(shape), has_signs=True, is_copy=True)
        margin = None if self.margin is None else self.margin.reshape(shape)
        return Output(datatype, as_datatype(self.rows, datatype).reshape(shape), margin,
                      not self.rules.pools and margin is None)


def as_datatype(rows, datatype):
    return round_halves(rows, datatype) if datatype in HALVES else rows


def rows_alone(rules, rows):
    """Rows of the table one by one, without its rules."""
    table = rules.table
    values = as_datatype(table.values()[rows], rules.output)
    return Output(rules.output, values.reshape(len(rows), *table.shape))


@quiet
def project(rows, projection):
    """Products in f64, and how far those of the server may be from them."""
    wide, matrix = rows.astype(F64), projection.matrix.astype(F64)
    products, magnitudes = wide @ matrix, np.abs(wide) @ np.abs(matrix)
    if projection.bias is not None:
        products, magnitudes = products + projection.bias, magnitudes + np.abs(projection.bias)
    return products.astype(F32), (len(matrix) + 2) * 2.0**-24 * magnitudes


@quiet
def differs(got, want, datatype, margin=None, has_signs=False):
    """Where arrays of one shape differ: to the bit, but that NaNs have many bits, and zeros two signs unless
    `has_signs`; where there is a margin, by more than that and the last place."""
    got, want = widened(got, datatype), widened(want, datatype)
    same = got == want
    if has_signs and got.dtype.kind == "f":
        same &= np.signbit(got) == np.signbit(want)
    if got.dtype.kind == "f":
        same |= np.isnan(got) & np.isnan(want)
    if margin is not None:
        places = {"FP16": 2.0**-10, "BF16": 2.0**-7}.get(datatype, 2.0**-23)
        allowed = 2 * margin + places * np.abs(want.astype(F64)) + 2.0**-24
        same |= np.abs(got.astype(F64) - want.astype(F64)) <= allowed
        same |= ~np.isfinite(margin)
    return ~same
