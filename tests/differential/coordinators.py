"""A front of shards and one server that has all, of the same random tables. Both must answer random requests as the
model in NumPy does, to the bit: the front with sums in the order of the parts (proto/PARTS.md, Coordinators)."""

import contextlib
import re

import numpy as np

from asking import Request
from harness import Failure, Server, expect, expect_equal, wait_until, write_json
from lifecycle import expect_memory_returned
from making import Maker
from numerics import float_sum, quiet
from parts import part_of_key, part_of_row
from pooling import Answer, Entries, Inputs, Rules, need
from serving import PATIENT
from state import TableModel
from tables import MASK, random_snapshot
from v2 import Client, Tensor

OF_FRONT = ("projection", "bias")  # what a front has of a model, and its shards do not
# A front refuses some requests in other words than the one server. It looks up keys last, and asks several shards at once.
# It has no tables. Its rows are FP32 until they are encoded, and can then be too large.
LOOKED_UP = ("a key that the table does not have", "cannot be another key than the model's")
OF_TABLES = "parameters part and partial are for servers that have tables"
STAGED = "before they are encoded"


# ---- what a front must answer ----------------------------------------------------------------------
@quiet
def pool_parts(reduction, rows, weights, parts):
    """A bag's floats: each part's are added in their order, and the sums in the order of the parts."""
    total = by = None
    for part in sorted(set(parts)):
        own = [i for i, of in enumerate(parts) if of == part]
        few = None if weights is None else weights[own]
        part_total = float_sum(rows[own], few)
        if few is None:
            part_by = rows.dtype.type(len(own))
        else:
            part_by = np.add.accumulate(few)[-1] if reduction == "mean" else float_sum(few[:, None], few)[0]
        total, by = (part_total, part_by) if total is None else (total + part_total, by + part_by)
    if reduction == "sum":
        return total
    by = np.sqrt(by) if reduction == "sqrtn" else by
    return np.zeros_like(total) if by == 0 else total / by


def only_pooled(rules, inputs, is_pooled):
    """Rules and inputs by which no key is missing that is in no bag: shards do not see it."""
    tensors, ids = dict(inputs.tensors), inputs["indices"].copy()
    pooled = set(inputs.pooled(rules)) if is_pooled else set()
    if not is_pooled:
        tensors.pop("default_index", None)
    if not pooled:
        rules = rules.changed({})
        rules.missing = "skip"
    else:
        ids.flat[[entry for entry in range(ids.size) if entry not in pooled]] = ids.flat[min(pooled)]
    return rules, Inputs(tensors | {"indices": Tensor("indices", ids)})


class PartsAnswer(Answer):
    """Of a feature whose table is in parts. Where a shard is away, its entries are of another part, and so are keys that
    nobody else could look up; nor is there a default row that it would be asked for."""

    def __init__(self, rules, inputs, table, is_pooled):
        inputs.check(rules)
        default = inputs["default_index"]
        need(table.way != "keys" or rules.missing != "default" or default is None or
             int(default.item()) & MASK == rules.default, "another default row for missing keys")
        if rules.keyed and (rules.missing == "error" or not is_pooled):
            rules, inputs = only_pooled(rules, inputs, is_pooled)
        self.table, self.ids = table, inputs["indices"].ravel()
        asked = rules.default if default is None else int(default.item())
        self.default_is_away = asked is not None and table.is_away(asked, asked)
        self.lacks_default = self.default_is_away and not table.keeps(asked)
        if self.lacks_default and rules.keyed:
            inputs = Inputs({name: tensor for name, tensor in inputs.tensors.items() if name != "default_index"})
        super().__init__(rules, inputs)
        pooled = inputs.pooled(rules) if is_pooled else []
        self.lacks = any(self.said[entry] == "other_part" for entry in pooled)

    def _judge(self, rules, indices, weights, default):
        is_away = [self.table.is_away(int(index), int(index)) for index in indices]
        judged = rules
        if any(is_away) and rules.keyed and rules.missing == "error":
            for index, away in zip(indices, is_away):
                key = int(index) & MASK
                need(away or key == rules.padding or key in rules.table.where, f"key {key}")
            judged = rules.changed({})
            judged.missing = "skip"
        entries = Entries(judged, indices, weights, default)
        for position, said in enumerate(entries.said):
            row = entries.rows[position]
            if said == "out_of_range" and row >= 0 and self.default_is_away:
                entries.rows[position] = -1  # asked of the shard that has the row, as any other id
            elif is_away[position] and said != "padding" and (rules.keyed or (row >= 0 and said is None)):
                entries.rows[position], entries.said[position] = -1, "other_part"
        self.said = entries.said
        return entries, None if self.lacks_default else default

    def _pool(self, entries, bag, weights, default):
        kept = [i for i in bag if entries.rows[i] >= 0]
        rules = self.rules
        adds = rules.reduction in ("sum", "mean", "sqrtn") and rules.table.storage.is_float
        if not kept or self.table.way == "columns" or not adds:
            return super()._pool(entries, bag, weights, default)
        rows = rules.table.values()[[entries.rows[i] for i in kept]]
        parts = [self.table.part_of(int(self.ids[i]), entries.rows[i]) for i in kept]
        return pool_parts(rules.reduction, rows, None if weights is None else weights[kept], parts)


class FrontRequest(Request):
    """`tables` are those in parts, by the names of features; without `of_front` it is asked of one server."""

    def __init__(self, rng, model, features, is_collection, tables):
        self.tables, self.of_front = tables, False
        super().__init__(rng, model, features, is_collection)

    def answer_of(self, name, inputs):
        if not self.of_front or name not in self.tables:
            return super().answer_of(name, inputs)
        is_pooled = not self.outputs or not {name, "embeddings"}.isdisjoint(self.outputs)
        return PartsAnswer(self.rules[name], inputs, self.tables[name], is_pooled)

    def _check_header(self, reply, answers):
        """A reply of models that skip absent shards lists them."""
        header = reply.header()[0]
        told = header.get("parameters", {}).pop("absent_shards", None)
        skipping = [table for name, table in self.tables.items() if self.of_front and table.skips]
        expect_equal(told is not None, bool(skipping), f"absent_shards {told}")
        expect(set(told or ()) <= {table.away_url for table in skipping if table.away is not None}, f"{told}")
        if any(isinstance(answer, PartsAnswer) and answer.lacks for answer in answers.values()):
            expect(told, "absent_shards is empty")
        reply.header = lambda: (header, b"")
        super()._check_header(reply, answers)

    def compare_words(self, got, want):
        """Keys are looked up last, by several at once: another fault may be told, or another missing key."""
        missing = re.search(r"'indices' at position (\d+) is (-?\d+), a key", got)
        if missing:
            feature = re.match(r"feature '(\w+)'", got)
            ids = self.of[feature[1] if feature else "embeddings"]["indices"]
            expect_equal(int(missing[2]), int(ids.flat[int(missing[1])]), got)
        elif STAGED in got:
            expect("(max_reply_bytes)" in want, f"the front says {got!r} instead of {want!r}")
        elif not any(words in text for words in LOOKED_UP for text in (got, want)):
            expect_equal(got, want, "what the front says")


# ---- what is served --------------------------------------------------------------------------------
class Table:
    """A random table with rules, that shards have parts of, or the front itself has."""

    def __init__(self, rng, maker, name):
        self.rng, self.name = rng, name
        snapshot = random_snapshot(rng)
        self.model = TableModel(name, False, False)
        self.model.base_rows = len(snapshot)
        self.model.hashes = snapshot.keys is not None and len(snapshot) > 0 and maker.some(0.3)
        if snapshot.keys is not None and len(snapshot):
            self.model.reserved_keys = {int(key) for key in rng.choice(snapshot.keys, 2)}
        self.model.serve(maker.add_version(self.model, snapshot))
        ways = ["rows" if snapshot.keys is None else "keys"] + ["columns"] * (len(snapshot.shape) == 1)
        self.way, self.of, self.is_local = maker.pick(*ways), int(rng.integers(1, 5)), maker.some(0.25)
        self.skips = not self.is_local and self.way != "columns" and maker.some(0.4)
        self.away = self.away_url = None  # the part whose shard is

    def feature_rules(self, maker):
        """What a feature of the table says otherwise; but for what shards do not do otherwise."""
        own = maker.random_rules(self.model.served.snapshot, self.model, is_feature=True)
        if self.is_local:
            return own
        dropped = {"prune_invalid", "weighted_mean", "hash_rows"}
        if own.get("missing", "error") != "error":
            dropped |= {"missing", "default_index"}
        elif "missing" not in own and self.model.served.settings.get("missing") == "default":
            dropped.add("default_index")
        return {key: value for key, value in own.items() if key not in dropped}

    def whole(self):
        version = self.model.served
        entry = {"name": self.name, "path": str(version.folder / version.writer.path)}
        own = version.writer.settings
        keys = {"keys": str(version.folder / own["keys"])} if "keys" in own else {}
        return entry | own | keys | Maker.document(version.settings)

    def part(self, index):
        default = self.model.served.settings.get("default_index")
        lacks_default = self.way == "rows" and default is not None and self.part_of(default, default) != index
        # By columns nothing is mapped, nor is a part that needs a copy of another part's row.
        copied = OF_FRONT + ("load",) * (self.way == "columns" or lacks_default)
        entry = {key: value for key, value in self.whole().items() if key not in copied}
        return entry | {"part": {"by": self.way, "index": index, "of": self.of}}

    def of_front(self, urls):
        if self.is_local:
            return self.whole()
        own = {key: value for key, value in self.whole().items() if key in OF_FRONT}
        skips = {"absent": "skip", "ready": "any"} if self.skips else {}
        return {"name": self.name, "shards": [urls[i] for i in self.rng.permutation(self.of)]} | skips | own

    def is_away(self, entry, row):
        """Whether the id is one that only a shard has that is away."""
        is_id = self.model.live.where is not None or 0 <= row < len(self.model.live)
        return self.away is not None and self.way != "columns" and is_id and self.part_of(entry, row) == self.away

    def keeps(self, entry):
        """Whether a part that is there has a copy of the id's row: the default row of the table's own model."""
        default = self.model.served.settings.get("default_index")
        return self.of > 1 and default is not None and int(default) & MASK == entry & MASK

    def part_of(self, entry, row):
        """Which part an id is of that stands for a row."""
        return part_of_key(entry, self.of) if self.way == "keys" else part_of_row(row, len(self.model.live), self.of)


class Coordinators:
    """One case. Everything follows from the seed."""

    def __init__(self, seed, folder):
        self.rng = rng = np.random.default_rng(seed)
        self.folder, self.counts, self.servers = folder, {}, []
        maker = Maker(rng, folder, False, True)
        self.tables = [Table(rng, maker, f"t{i}") for i in range(int(rng.integers(1, 5)))]
        count = int(rng.integers(1, 5)) if rng.integers(3) else 0
        self.features = {f"f{i}": maker.pick(*self.tables) for i in range(count)}
        self.settings = {name: table.feature_rules(maker) if maker.some(0.5) else {}
                         for name, table in self.features.items()}
        self.options = [*PATIENT, "--max-reply-ratio", 0, "--workers", rng.integers(1, 3), "--loops", rng.integers(1, 3),
                        "--inline-work-us", rng.choice([0, 50, 1000]), "--reply-compression", maker.pick("on", "off")]

    def documents(self):
        """The configuration files, for somebody who repeats the case by hand."""
        for path in sorted(self.folder.glob("*.json")):
            yield f"{path.name}: {path.read_text()}"

    def _serve(self, stack, name, models):
        config = write_json(self.folder / f"{name}.json", {"models": models})
        self.servers.append(stack.enter_context(Server("--config", config, *self.options)))
        return self.servers[-1]

    def serve(self, stack):
        """Starts the shards, the front and the one server, and waits until the front has its shards."""
        remote = [table for table in self.tables if not table.is_local]
        collection = [{"name": "all", "features": [
            {"name": name, "model": table.name} | Maker.document(self.settings[name])
            for name, table in self.features.items()]}] if self.features else []
        shards = [self._serve(stack, f"shard-{i}", [table.part(i) for table in remote if i < table.of])
                  for i in range(max((table.of for table in remote), default=0))]
        urls = [shard.url for shard in shards]
        one = self._serve(stack, "one", [table.whole() for table in self.tables] + collection)
        front = self._serve(stack, "front", [table.of_front(urls) for table in self.tables] + collection)
        asked, compared = (stack.enter_context(Client(server)) for server in (front, one))
        names = [table.name for table in self.tables] + ["all"] * bool(collection)
        wait_until(lambda: all(asked.get(f"/v2/models/{name}/ready").status == 200 for name in names),
                   "the front is not ready")
        return shards, asked, compared

    def run(self, requests):
        with contextlib.ExitStack() as stack:
            shards, asked, compared = self.serve(stack)
            for _ in range(requests):
                self.ask(asked, compared)
            self._lose_one(shards)
            for _ in range(requests // 2 if self.tables else 0):
                self.ask(asked, compared)
            self.check_memory()

    def check_memory(self):
        """Every server that is left holds nothing for requests."""
        for server in self.servers:
            if server.process.poll() is None:
                with Client(server) as client:
                    expect_memory_returned(client, 0)

    def _lose_one(self, shards):
        """A shard goes; what needs it is not asked any more."""
        skipping = [table for table in self.tables if table.skips]
        if not skipping:
            self.tables = []
            return
        part = int(self.rng.integers(max(table.of for table in skipping)))
        shards[part].kill()
        for table in skipping:
            if part < table.of:
                table.away, table.away_url = part, shards[part].url
        self.tables = [table for table in self.tables if table.is_local or table.skips or part >= table.of]
        if not all(table in self.tables for table in self.features.values()):
            self.features = {}

    def ask(self, asked, compared):
        request = self._next_request()
        replies = []
        try:
            for request.of_front, client in ((False, compared), (True, asked)):
                replies.append(request.send(client, f"/v2/models/{request.model}/infer", {}))
                what = "answered" if request.check(replies[-1]) else "refused"
                self.counts[what] = self.counts.get(what, 0) + 1
            if all(reply.status == 400 for reply in replies):
                request.compare_words(replies[1].error(), replies[0].error())
        except Failure as failure:
            whose = "the front" if request.of_front else "one server"
            raise Failure(f"{whose}: {failure}\n{request.describe()}") from None

    def _next_request(self):
        is_collection = bool(self.features) and bool(self.rng.integers(2))
        table = self.tables[self.rng.integers(len(self.tables))]
        tables = self.features if is_collection else {"embeddings": table}
        rules = {name: Rules(one.model.served.pooling() | self.settings.get(name, {}), one.model.live)
                 for name, one in tables.items()}
        remote = {name: one for name, one in tables.items() if not one.is_local}
        return FrontRequest(self.rng, "all" if is_collection else table.name, rules, is_collection, remote)
