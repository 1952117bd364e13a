"""Collections whose features pin the version of their table, while a server polls their folder or is asked to load them:
hours whose tables come before or after the collection, links to files of the hour before, damaged tables, roll backs,
unloads, updates, parts, old versions that are removed, restarts and kill -9.

Every row has one value, which says of which table, version and update it is. After each step the model of this file says
which versions of the collection and of the tables are served, what each answers, and, without updates, how many different
tables are in memory.
"""

import json
import os
import shutil

import numpy as np

from harness import expect, expect_equal, wait_until
from serving import PATIENT, Serving, play
from v2 import Tensor

ROWS, COLUMNS = 8, 4
POLL_SECONDS = 0.1
COLLECTION, MARK = "c", "mark"


class Refused(Exception):
    """The load fails, for what is found while a table is read."""


class Table:
    """A name with its versions: number -> the value of all rows in the file, and what is wrong with it."""

    def __init__(self, name, latest):
        self.name, self.latest = name, latest
        self.values, self.wrong, self.inodes = {}, {}, {}
        self.chosen = []  # what version_policy serves, the default one first
        self.batches = []  # (row, value)


class Pins:
    def __init__(self, seed, folder):
        self.rng = rng = np.random.default_rng(seed)
        self.folder, self.counts, self.steps = folder, {}, []
        self.root = folder / "models"
        self.polls, self.updates, self.is_keyed = (bool(rng.integers(2)) for _ in range(3))
        self.keeps_journal = self.updates and bool(rng.integers(2))
        self.part = int(rng.integers(2)) if not self.is_keyed and rng.integers(3) == 0 else None
        self.tables = {f"t{i}": Table(f"t{i}", int(rng.integers(1, 3))) for i in range(int(rng.integers(1, 4)))}
        self.latest, self.versions = int(rng.integers(1, 4)), {}  # number -> {feature: (table, version or None)}
        self.serving, self.asked, self.newest = [], None, 0
        self.value, self.mark, self.unit = 0, 0, None
        for name, latest in [(name, table.latest) for name, table in self.tables.items()] + [(COLLECTION, self.latest)]:
            (self.root / name).mkdir(parents=True)
            part = {"part": {"by": "rows", "index": self.part, "of": 2}} if self.part is not None and name != COLLECTION else {}
            self.write(self.root / name, part | {"version_policy": {"latest": latest}})
        self.publish_hour()
        self.publish_mark()
        arguments = ["--models", self.root, "--updates", "on" if self.updates else "off", *PATIENT]
        arguments += ["--model-control", "poll", "--poll-seconds", POLL_SECONDS] if self.polls else ["--model-control", "explicit"]
        arguments += ["--journal-dir", folder / "journal"] if self.keeps_journal else []
        self.server = Serving(folder, [str(word) for word in arguments])

    # ---- files ----------------------------------------------------------------------------------
    @staticmethod
    def write(folder, settings):
        (folder / "config.json").write_text(json.dumps(settings))

    def pick(self, choices):
        return choices[self.rng.integers(len(choices))]

    def count(self, what, number=1):
        self.counts[what] = self.counts.get(what, 0) + number

    def next_value(self):
        self.value += 1
        return float(self.value)

    def save(self, folder, value, twice=False):
        np.save(folder / "values.npy", np.full((ROWS, COLUMNS), value, np.float32))
        if self.is_keyed:
            np.save(folder / "keys.npy", np.array([0, 1, 2, 3, 4, 5 + twice, 6, 7]) + 100)

    def publish_table(self, table, number, wrong=None):
        """A version whose folder appears complete; perhaps links to the files of the one before."""
        folder, before = self.root / table.name / f".new-{number}", max(table.values, default=0)
        folder.mkdir()
        source = self.root / table.name / str(before)
        if not wrong and before and not table.wrong.get(before) and source.exists() and self.rng.integers(3) == 0:
            link = self.pick([os.link, os.symlink])
            for path in source.glob("*.npy"):
                link(path.resolve(), folder / path.name)
            table.values[number] = table.values[before]
            self.count("links")
        else:
            table.values[number] = self.next_value()
            self.save(folder, table.values[number], wrong == "twice")
        if wrong == "cut":
            os.truncate(folder / "values.npy", 150)
        table.wrong[number] = wrong
        table.inodes[number] = os.stat(folder / "values.npy").st_ino
        folder.rename(self.root / table.name / str(number))

    def publish_collection(self, pins):
        number = max(self.versions, default=0) + 1
        folder = self.root / COLLECTION / f".new-{number}"
        folder.mkdir()
        self.write(folder, {"features": [
            {"name": feature, "model": table} | ({} if version is None else {"version": self.pick([version, str(version)])})
            for feature, (table, version) in pins.items()]})
        folder.rename(self.root / COLLECTION / str(number))
        self.versions[number] = pins

    def publish_hour(self):
        pins = {}
        for table in self.tables.values():
            number = max(table.values, default=0) + 1
            self.publish_table(table, number)
            pins[f"f{table.name}"] = (table.name, number)
            if self.rng.integers(3) == 0:
                pins[f"g{table.name}"] = (table.name, None)
        self.publish_collection(pins)

    def publish_mark(self):
        """A newer version of a plain table: once it answers, a poll has seen all that was there before."""
        self.mark += 1
        folder = self.root / MARK / f".new-{self.mark}"
        folder.mkdir(parents=True)
        self.save(folder, 1000 + self.mark)
        folder.rename(self.root / MARK / str(self.mark))

    # ---- the model ------------------------------------------------------------------------------
    def choose_table(self, table, is_request):
        """The newest versions that can be read. A request fails for the one that would become the default."""
        chosen = []
        for number in sorted(table.values, reverse=True):
            if table.wrong[number] == "twice" and is_request and not chosen:
                raise Refused
            if not table.wrong[number] and len(chosen) < table.latest:
                chosen.append(number)
        return chosen

    def state_of(self, number):
        """None, or why a version of the collection cannot be served: a pinned version is "gone", "cut" or has keys "twice"."""
        found = [self.tables[table].wrong.get(version, "gone") for table, version in self.versions[number].values()
                 if version is not None]
        return next((why for why in ("gone", "cut", "twice") if why in found), None)

    def choose_collection(self, asked, is_request):
        chosen = []
        for number in sorted(self.versions, reverse=True):
            if (asked and number > asked) or len(chosen) == self.latest:
                continue
            state = self.state_of(number)
            if state == "twice" and is_request and not chosen:
                raise Refused
            if not state:
                chosen.append(number)
        return chosen

    def decide(self, names, is_request, asked=None):
        """Changes the state as a change of these names must. Raises Refused and leaves it."""
        chosen = {name: self.choose_table(self.tables[name], is_request) for name in names if name in self.tables}
        serving = self.choose_collection(asked, is_request) if COLLECTION in names else self.serving
        for name, numbers in chosen.items():
            self.tables[name].chosen = numbers
        self.serving = serving
        if COLLECTION in names:
            self.asked = asked

    def pinned(self, name):
        return {version for number in self.serving for table, version in self.versions[number].values()
                if table == name and version is not None}

    def ready(self, name):
        return set(self.tables[name].chosen) | self.pinned(name)

    def rows(self, table, number):
        rows = np.full(ROWS, table.values[number])
        for row, value in table.batches:
            rows[row] = value
        return rows

    def own_rows(self):
        return range(ROWS) if self.part is None else range(self.part * ROWS // 2, (self.part + 1) * ROWS // 2)

    @property
    def names(self):
        return [*self.tables, COLLECTION]

    # ---- the server -----------------------------------------------------------------------------
    def run(self, steps):
        choices = [self.hour, self.hour, self.tables_late, self.damage, self.table_alone, self.collection_alone, self.roll_back,
                   self.unload, self.update, self.remove, self.restart, self.kill]
        play(self, self.server, lambda: self.pick(choices), self.check, steps)

    def documents(self):
        yield (f"steps: {', '.join(self.steps)}; polls {self.polls}, updates {self.updates}, journal {self.keeps_journal}, "
               f"keyed {self.is_keyed}, part {self.part}")
        yield f"{COLLECTION}: latest {self.latest}, {self.versions}; {self.serving} are served, asked for {self.asked}"
        for table in self.tables.values():
            yield f"{table.name}: {vars(table)}"
        yield from [self.server.said] if self.server.said else []

    def start(self):
        self.server.start()
        if not self.keeps_journal:
            for table in self.tables.values():
                table.batches = []
        self.decide(self.names, False)

    def changed(self, *names):
        """Files of these have changed: asks for them, or waits until polls have seen it."""
        if not self.polls:
            self.load(*(names or self.names))
            return
        for _ in range(2):
            self.publish_mark()
            wait_until(lambda: self.ask(MARK, [0], self.mark) == [1000 + self.mark], "the mark is not served by a poll")
        asked = self.asked
        if asked and any(not self.state_of(number) for number in self.versions if number > self.newest):
            asked = None
        self.decide(self.names, False, asked)

    def load(self, *names):
        reply = self.server.admin.post("load", {"models": [{"name": name} for name in names]})
        try:
            self.decide(names, True)
            reply.expect(200)
        except Refused:
            expect("106" in reply.expect(400).error(), f"a load of {names}: {reply.error()} should name key 106")
            self.count("loads refused")

    # ---- steps ----------------------------------------------------------------------------------
    def hour(self):
        self.publish_hour()
        self.changed()
        self.count("hours")

    def tables_late(self):
        """The collection comes first, and is passed over."""
        numbers = {name: max(table.values) + 1 for name, table in self.tables.items()}
        self.publish_collection({f"f{name}": (name, number) for name, number in numbers.items()})
        self.changed(COLLECTION)
        self.check()
        for name, number in numbers.items():
            self.publish_table(self.tables[name], number)
        self.changed()
        self.count("hours with late tables")

    def damage(self):
        """A pinned table is damaged; the hour after it is good."""
        wrong = self.pick(["cut", "twice"] if self.is_keyed else ["cut"])
        table = self.pick(list(self.tables.values()))
        number = max(table.values) + 1
        self.publish_table(table, number, wrong)
        self.publish_collection({"f": (table.name, number)})
        self.changed()
        self.check()
        self.hour()
        self.count("damaged tables")

    def table_alone(self):
        table = self.pick(list(self.tables.values()))
        self.publish_table(table, max(table.values) + 1)
        self.changed(table.name)
        self.count("tables alone")

    def collection_alone(self):
        """A version that pins older tables, which nothing else may serve; loaded without its tables."""
        pins = {}
        for name, table in self.tables.items():
            good = [number for number, wrong in table.wrong.items() if not wrong]
            pins[f"f{name}"] = (name, int(self.pick(good)))
        self.publish_collection(pins)
        self.changed(COLLECTION)
        self.count("collections alone")

    def roll_back(self):
        good = [number for number in self.versions if not self.state_of(number)]
        asked = int(self.pick(good))
        self.server.admin.load(COLLECTION, asked).expect(200)
        self.newest = max(self.versions)
        if self.polls:
            self.decide(self.names, False, asked)
        else:
            self.decide([COLLECTION], False, asked)
        self.count("roll backs")

    def unload(self):
        """A pinned version is unloaded with what pins it only if that is asked for; afterwards all is loaded again."""
        name = self.pick(list(self.tables))
        pinned = sorted(self.pinned(name))
        if not pinned:
            return
        number = int(self.pick(pinned))
        over = [version for version in self.serving if (name, number) in self.versions[version].values()]
        parameters = {"version": str(number)}
        error = self.server.admin.post(f"models/{name}/unload", {"parameters": parameters}).expect(409).error()
        expect(any(f"'{name}' version {number} is used by '{COLLECTION}' version {version}" in error for version in over), error)
        self.check()
        if any((table, None) in self.versions[version].values() for table in self.tables for version in self.serving):
            return  # unloading the default version moves features that pin nothing, or the collection
        reply = self.server.admin.post(f"models/{name}/unload", {"parameters": parameters | {"unload_dependents": True}})
        if "twice" in self.tables[name].wrong.values() and reply.status == 400:
            expect("106" in reply.error(), f"an unload, which loads the version before, and finds key 106: {reply.error()}")
            self.count("unloads refused")
            return
        reply.expect(200)
        for version in over:
            expect_equal(self.ask_collection(version), 404, f"version {version} of the collection")
        reply = self.server.admin.post("load", {"models": [{"name": name} for name in self.names]})
        try:
            self.decide(self.names, True)
            reply.expect(200)
        except Refused:
            reply.expect(400)
            self.restart()
        self.count("unloads")

    def update(self):
        if not self.updates:
            return
        table = self.pick(list(self.tables.values()))
        row, value = int(self.pick(list(self.own_rows()))), self.next_value()
        ids = Tensor("keys", np.array([row + 100])) if self.is_keyed else Tensor("indices", np.array([row]))
        rows = Tensor("rows", np.full((1, COLUMNS), value, np.float32))
        self.server.admin.infer(table.name, [ids, rows], path=f"/v2/models/{table.name}/rows", binary=True).expect(200)
        table.batches.append((row, value))
        self.count("updates")

    def remove(self):
        """Old versions of tables, which no version of the collection from the lowest served one on pins, and of the
        collection."""
        first = min(self.serving)
        for number in [number for number in self.versions if number < first]:
            shutil.rmtree(self.root / COLLECTION / str(number))
            del self.versions[number]
        for table in self.tables.values():
            kept = self.ready(table.name) | {version for pins in self.versions.values() for name, version in pins.values()
                                             if name == table.name}
            for number in [number for number in table.values if number not in kept and number < max(table.chosen)]:
                links = [path for path in self.root.glob("*/*/values.npy") if path.is_symlink() and
                         path.resolve().parent == self.root / table.name / str(number)]
                if not links:
                    shutil.rmtree(self.root / table.name / str(number))
                    del table.values[number], table.wrong[number]
        self.changed()
        self.count("removals")

    def restart(self):
        self.server.stop()
        self.start()
        self.count("restarts")

    def kill(self):
        self.server.kill()
        self.start()
        self.count("kills")

    # ---- checks ---------------------------------------------------------------------------------
    def ask(self, name, rows, version=None):
        """The first element of each row; a status in its place if there is no answer."""
        path = f"/v2/models/{name}" + (f"/versions/{version}" if version else "") + "/infer"
        ids = np.array(list(rows)).reshape(-1, 1) + 100 * self.is_keyed
        reply = self.server.client.infer(name, [Tensor("indices", ids)], path=path)
        return reply.embeddings()[:, 0].tolist() if reply.status == 200 else [reply.status]

    def ask_collection(self, version=None):
        """What the features of a version answer, and the versions of their tables; or a status."""
        number = version or self.serving[0]
        path = f"/v2/models/{COLLECTION}" + (f"/versions/{version}" if version else "") + "/infer"
        ids = np.array(list(self.own_rows())).reshape(-1, 1) + 100 * self.is_keyed
        binary = bool(self.rng.integers(2))
        inputs = [Tensor(f"{feature}.indices", ids) for feature in self.versions[number]]
        reply = self.server.client.infer(COLLECTION, inputs, path=path, binary=binary,
                                         parameters={"table_versions": True, "binary_data_output": binary})
        if reply.status != 200:
            return reply.status
        header = reply.header()[0]
        expect_equal(header["model_version"], str(number), "the version that answers")
        return {name: tensor.array[:, 0].tolist() for name, tensor in reply.outputs().items()}, header["parameters"]["table_versions"]

    def check(self):
        index = self.server.admin.index()
        for name in self.names:
            ready = {int(version) for (model, version), (state, _) in index.items() if (model, state) == (name, "READY")}
            want = set(self.serving) if name == COLLECTION else self.ready(name)
            expect_equal(ready, want, f"the versions of {name} that are READY")
        for name, table in self.tables.items():
            for number in self.ready(name):
                want = [self.rows(table, number)[row] for row in self.own_rows()]
                expect_equal(self.ask(name, self.own_rows(), number), want, f"version {number} of {name}")
            expect_equal(self.ask(name, [self.own_rows()[0]]), [self.rows(table, table.chosen[0])[self.own_rows()[0]]],
                         f"{name}, whose default version is {table.chosen[0]}")
        for number in [None, *self.versions]:
            self.check_collection(number, index)
        if not self.updates:
            self.check_memory()

    def check_collection(self, number, index):
        answered = self.ask_collection(number)
        self.count("answers")
        if number and number not in self.serving:
            expect(answered in (404, 503), f"version {number} of the collection answers {answered}")
            state, reason = index.get((COLLECTION, str(number)), ("", ""))
            if state == "UNAVAILABLE" and self.state_of(number):
                pinned = [f"version {version} of model '{name}'" for name, version in self.versions[number].values()]
                expect(any(words in reason for words in pinned), f"version {number} of the collection is {state}: {reason}")
            return
        values, versions = {}, {}
        for feature, (name, version) in self.versions[number or self.serving[0]].items():
            table = self.tables[name]
            version = version or table.chosen[0]
            values[feature] = [self.rows(table, version)[row] for row in self.own_rows()]
            versions[feature] = str(version)
        expect_equal(answered, (values, versions), f"version {number or 'default'} of the collection")

    def check_memory(self):
        """A table for each file that is served, and one of the mark."""
        files = {table.inodes[number] for name, table in self.tables.items() for number in self.ready(name)}
        used = lambda: int(self.server.client.metrics()["bagserve_tables_bytes"])
        if self.unit is None:
            self.unit = used() // (len(files) + 1) if self.part is None else 0
        if self.unit:
            wait_until(lambda: used() == self.unit * (len(files) + 1),
                       f"{used()} bytes of tables instead of {len(files) + 1} times {self.unit}")
