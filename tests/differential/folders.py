"""A folder of models whose versions come, are damaged, change and go while a server polls it or is asked to load them:
two versions side by side, parts, mapped files, updates by request and as folders, with a journal or in memory, and in
one case of ten a thousand models beside these.

Every row of a table has one value, which says of which version and update it is. After each step the model of this file
says which versions are served, with which rows, and what the index, the log and the metrics say of the others.
"""

import json
import os

import numpy as np

from harness import expect, expect_equal, wait_until
from serving import PATIENT, Serving, play
from v2 import Tensor

ROWS, COLUMNS, MANY = 8, 4, 1000
POLL_SECONDS = 0.1
FAILED = "bagserve_failed_model_changes_total"


class Version:
    """One folder. `why`: words of the reason that it cannot be served; None: it can. `is_late`: this is found only while
    the table is read, so that a load fails; other versions are passed over at first sight."""

    def __init__(self, number, rows, through, is_mapped=False):
        self.number, self.rows, self.through, self.is_mapped = number, rows, through, is_mapped
        self.why, self.is_late = None, False
        self.deltas = {}  # number -> (row, value)


class Model:
    """A name: its versions, and the updates that its stream has taken."""

    def __init__(self, rng, name):
        self.name, self.versions, self.batches = name, {}, {}
        self.part = int(rng.integers(2)) if rng.integers(3) == 0 else None
        self.latest = int(rng.integers(1, 3))
        self.is_keyed = self.part is None and bool(rng.integers(2))
        self.asked = None  # the version that a load named, until a newer one is served
        self.newest = 0  # the newest version that there was then
        self.serving = {}  # number -> its rows, the default one last

    @property
    def settings(self):
        part = {} if self.part is None else {"part": {"by": "rows", "index": self.part, "of": 2}}
        return part | {"version_policy": {"latest": self.latest}}

    @property
    def default(self):
        return self.versions[max(self.serving)]

    @property
    def sequence(self):
        return max([self.default.through, *self.batches])

    def own_rows(self):
        """The rows that this server has."""
        return range(ROWS) if self.part is None else range(self.part * ROWS // 2, (self.part + 1) * ROWS // 2)

    def rows_of(self, version):
        """The rows of a version with all updates that it can get; None if it lacks some."""
        rows, through = version.rows.copy(), version.through
        while through + 1 in self.batches or through + 1 in version.deltas:
            through += 1
            row, value = self.batches.get(through) or version.deltas[through]
            rows[row] = value
        if version.is_mapped and through > version.through:
            return None
        return rows if through >= max(self.batches, default=0) else None

    def fails_late(self, version):
        """Words of the reason that is found only while the version is read; none of one that can be served."""
        if version.is_late:
            return version.why
        return [] if version.why or self.rows_of(version) is not None else ["mapped" if version.is_mapped else "lacks"]

    def fails(self, version):
        return version.why or self.fails_late(version)

    def can_load(self):
        """Whether a load takes the newest version that looks good."""
        good = [v for v in self.versions.values() if not v.why or v.is_late]
        return not self.fails_late(good[-1])

    def choose(self):
        """Serves the newest versions that can be served. One that serves and gets no more updates goes on as it is."""
        last = self.asked or max(self.versions)
        goes_on = {n: rows for n, rows in self.serving.items() if self.rows_of(self.versions[n]) is None}
        can = [n for n in sorted(self.versions, reverse=True)
               if n <= last and (n in goes_on or not self.fails(self.versions[n]))]
        self.serving = {n: goes_on.get(n, self.rows_of(self.versions[n])) for n in reversed(can[:self.latest])}


class Folders:
    def __init__(self, seed, folder):
        self.rng = rng = np.random.default_rng(seed)
        self.folder, self.counts, self.steps = folder, {}, []
        self.root = folder / "models"
        self.polls, self.keeps_journal = bool(rng.integers(2)), bool(rng.integers(2))
        self.value = 0
        self.models = [Model(rng, f"t{i}") for i in range(3)]
        self.many = dict.fromkeys((f"m{i:04}" for i in range(MANY if rng.integers(10) == 0 else 2)), 0)
        for model in self.models:
            (self.root / model.name).mkdir(parents=True)
            (self.root / model.name / "config.json").write_text(json.dumps(model.settings))
            self.publish(model)
        for name in self.many:
            self.publish_plain(name)
        arguments = ["--models", self.root, "--updates", "on", *PATIENT, "--model-control", "poll" if self.polls else "explicit"]
        arguments += ["--poll-seconds", POLL_SECONDS] if self.polls else []
        arguments += ["--journal-dir", folder / "journal"] if self.keeps_journal else []
        self.serving = Serving(folder, [str(word) for word in arguments])

    # ---- files ----------------------------------------------------------------------------------
    def pick(self, choices):
        return choices[self.rng.integers(len(choices))]

    def next_value(self):
        self.value += 1
        return float(self.value)

    def publish(self, model, damage=None):
        """A newer version, whose folder appears complete."""
        number = max(model.versions, default=0) + 1
        is_mapped = not damage and not model.is_keyed and model.part is None and self.rng.integers(4) == 0
        through = model.sequence if model.serving else 0
        if not is_mapped and self.rng.integers(2) and not (model.serving and model.default.is_mapped):
            through = min([v.through for v in model.versions.values()], default=0)
        rows = np.full((ROWS, COLUMNS), self.next_value(), np.float32)
        version = Version(number, rows, through, is_mapped)
        folder = self.root / model.name / f".new-{number}"
        folder.mkdir()
        settings = {"updates_through": through} | ({"load": "map"} if is_mapped else {})
        keys = np.arange(ROWS) + 100
        if damage:
            damage(folder, version, settings, keys)
        np.save(folder / "values.npy", rows)
        if model.is_keyed:
            np.save(folder / "keys.npy", keys)
        if version.why == ["bytes"]:
            os.truncate(folder / "values.npy", 150)
        (folder / "config.json").write_text(json.dumps(settings))
        folder.rename(self.root / model.name / str(number))
        model.versions[number] = version

    def publish_plain(self, name):
        """A newer version of one of many: a row that says its name and version."""
        self.many[name] += 1
        folder = self.root / name / f".new-{self.many[name]}"
        folder.mkdir(parents=True)
        np.save(folder / "t.npy", np.full((1, 2), self.plain_value(name), np.float32))
        folder.rename(self.root / name / str(self.many[name]))

    def plain_value(self, name):
        return 10000 * self.many[name] + int(name[1:])

    # ---- what can be wrong with a version ---------------------------------------------------------
    @staticmethod
    def truncate(_folder, version, _settings, _keys):
        version.why = ["bytes"]

    @staticmethod
    def misspell(_folder, version, settings, _keys):
        settings["reductoin"] = "sum"
        version.why = ["reductoin"]

    @staticmethod
    def repeat_key(_folder, version, _settings, keys):
        keys[5] = keys[6]
        version.why, version.is_late = ["106"], True

    @staticmethod
    def lose_default(_folder, version, settings, _keys):
        settings |= {"default_index": 99, "missing": "default"}
        version.why, version.is_late = ["default_index", "99"], True

    # ---- the server -----------------------------------------------------------------------------
    def run(self, steps):
        choices = [self.add, self.add, self.damage, self.update, self.update, self.add_delta, self.go_back, self.restart,
                   self.kill, self.change_many]
        play(self, self.serving, lambda: self.pick(choices), self.check, steps)

    def documents(self):
        yield f"steps: {', '.join(self.steps)}; polls {self.polls}, journal {self.keeps_journal}"
        for model in self.models:
            yield f"{model.name}: {model.settings}, keyed {model.is_keyed}, asked for {model.asked}, updates {model.batches}"
            for version in model.versions.values():
                yield f"  {vars(version) | {'rows': version.rows[0, 0]}}"
        yield from [self.serving.said] if self.serving.said else []

    def count(self, what, number=1):
        self.counts[what] = self.counts.get(what, 0) + number

    def start(self):
        self.serving.start()
        for model in self.models:
            model.asked, model.serving = None, {}
            if not self.keeps_journal:
                model.batches = {}
            model.choose()
            self.take_deltas(model)
        if self.polls:
            self.changed()  # a poll takes a delta of a version that lacks none beside one that lacks updates

    @staticmethod
    def take_deltas(model):
        """Those beside the versions that are served, and that follow their last updates."""
        for version in [model.versions[number] for number in model.serving]:
            number = version.through + 1
            while not version.is_mapped and (number in model.batches or number in version.deltas):
                model.batches.setdefault(number, version.deltas.get(number))
                number += 1
        for number, rows in model.serving.items():
            reached = model.rows_of(model.versions[number])
            model.serving[number] = rows if reached is None else reached

    def count_failed(self):
        return int(self.serving.client.metrics()[FAILED])

    def changed(self, *models):
        """The files of these have changed: asks for them, or waits until two polls have seen them and what came later."""
        if not self.polls:
            for model in models:
                self.load(model)
        else:
            for _ in range(2):
                name = max(self.many)
                self.publish_plain(name)
                wait_until(lambda: self.ask(name, [0], self.many[name])[0] == self.plain_value(name), f"{name} by a poll")
            for model in models:
                if not model.fails(model.versions[max(model.versions)]):
                    model.asked = None
        for model in models:
            model.choose()
            self.take_deltas(model)

    def load(self, model):
        """Asks for the newest version. The answer is 400 if it is found to be bad late."""
        newest = [v for v in model.versions.values() if not v.why or v.is_late][-1]
        reply, words = self.serving.admin.load(model.name), model.fails_late(newest)
        if not words:
            reply.expect(200)
            model.asked = None
            return
        error = reply.expect(400).error()
        expect(all(word in error for word in words), f"a load of {model.name}: {error} should name {words}")

    # ---- steps ----------------------------------------------------------------------------------
    def add(self):
        model = self.pick(self.models)
        self.publish(model)
        self.changed(model)
        self.count("versions")

    def damage(self):
        model = self.pick(self.models)
        kinds = [self.truncate, self.misspell] + ([self.repeat_key, self.lose_default] if model.is_keyed else [])
        failed = self.count_failed()
        self.publish(model, self.pick(kinds))
        self.changed(model)
        self.count("damaged versions")
        if self.polls:
            expect_equal(self.count_failed(), failed + 1, f"{FAILED} after {model.name}/{max(model.versions)}")

    def update(self):
        model = self.pick(self.models)
        if model.default.is_mapped:
            return
        number, row, value = model.sequence + 1, int(self.pick(list(model.own_rows()))), self.next_value()
        ids = Tensor("keys", np.array([row + 100], np.uint64)) if model.is_keyed else Tensor("indices", np.array([row]))
        rows = Tensor("rows", np.full((1, COLUMNS), value, np.float32))
        reply = self.serving.admin.infer(model.name, [ids, rows], path=f"/v2/models/{model.name}/rows", binary=True)
        expect_equal(reply.expect(200).json()["sequence"], number, f"the number of an update of {model.name}")
        self.take(model, number, row, value)
        if self.polls and any(number + 1 in model.versions[version].deltas for version in model.serving):
            self.changed()  # a poll takes a delta that waited for this update
            self.take_deltas(model)
        self.count("updates")

    @staticmethod
    def take(model, number, row, value):
        """Every version that is served gets the update. One that is mapped beside them, or lacks an update that another
        one's file includes, stays as it is."""
        model.batches[number] = (row, value)
        for version, rows in model.serving.items():
            if model.rows_of(model.versions[version]) is not None:
                rows[row] = value

    def add_delta(self):
        model = self.pick(self.models)
        if model.default.is_mapped or not (self.polls or model.asked or model.can_load()):
            return
        number, row, value = model.sequence + 1, int(self.pick(list(model.own_rows()))), self.next_value()
        parent = self.root / model.name / str(model.default.number) / "deltas"
        folder = parent / f".new-{number}"
        folder.mkdir(parents=True)
        np.save(folder / ("keys.npy" if model.is_keyed else "indices.npy"), np.array([row + 100 * model.is_keyed]))
        np.save(folder / "rows.npy", np.full((1, COLUMNS), value, np.float32))
        folder.rename(parent / str(number))
        model.default.deltas[number] = (row, value)
        asked, serving = model.asked, model.serving
        if asked and not self.polls:
            self.serving.admin.load(model.name, asked).expect(200)
        else:
            self.changed()
            if not self.polls:
                self.load(model)
        model.asked, model.serving = asked, serving
        self.take(model, number, row, value)
        self.take_deltas(model)  # those that have waited for this one
        self.count("deltas")

    def go_back(self):
        """Asks for an older version, which becomes the default one."""
        model = self.pick(self.models)
        older = [n for n, v in model.versions.items() if not v.why and model.rows_of(v) is not None]
        model.asked = int(self.pick(older)) if older else None
        if model.asked:
            model.newest = max(model.versions)
            self.serving.admin.load(model.name, model.asked).expect(200)
            model.choose()
            self.take_deltas(model)
            self.count("roll backs")

    def restart(self):
        self.serving.stop()
        self.start()
        self.count("restarts")

    def kill(self):
        self.serving.kill()
        self.start()
        self.count("kills")

    def change_many(self):
        """A newer version of some of the plain models, all at once."""
        names = list(self.many)
        chosen = sorted(self.rng.choice(names, int(self.rng.integers(1, len(names) + 1)), replace=False).tolist())
        for name in chosen:
            self.publish_plain(name)
        if not self.polls:
            self.serving.admin.post("load", {"models": [{"name": name} for name in chosen]}).expect(200)
        self.changed()
        for name in self.rng.choice(chosen, min(20, len(chosen)), replace=False):
            wait_until(lambda: self.ask(name, [0], self.many[name]) == [self.plain_value(name)], f"{name} by a poll")
        self.count("models changed at once", len(chosen))

    # ---- checks ---------------------------------------------------------------------------------
    def ask(self, name, ids, version=None):
        """The first element of each row; a status in its place if there is no answer."""
        path = f"/v2/models/{name}" + (f"/versions/{version}" if version else "") + "/infer"
        reply = self.serving.client.infer(name, [Tensor("indices", np.array(ids).reshape(-1, 1))], path=path)
        return reply.embeddings()[:, 0].tolist() if reply.status == 200 else [reply.status]

    def check(self):
        index = self.serving.admin.index()
        for model in self.models:
            self.check_answers(model)
            self.check_index(model, index)
        for name in self.rng.choice(list(self.many), 2):
            expect_equal(self.ask(name, [0]), [self.plain_value(name)], name)
        self.check_log()

    def check_answers(self, model):
        ids = [row + 100 * model.is_keyed for row in model.own_rows()]
        for number, rows in model.serving.items():
            want = [rows[row, 0] for row in model.own_rows()]
            if number != max(model.serving) and model.versions[number].is_mapped:
                continue  # it lacks updates, and may go without a restart or with one
            expect_equal(self.ask(model.name, ids, number), want, f"version {number} of {model.name}")
        expect_equal(self.ask(model.name, ids), want, f"{model.name}, whose default version is {number}")
        self.count("answers", len(model.serving) + 1)

    def check_index(self, model, index):
        """Newer versions that cannot be served are listed with their reason."""
        shown = {int(version): found for (name, version), found in index.items() if name == model.name}
        ready = sorted(number for number, (state, _) in shown.items() if state == "READY")
        beside = {n for n, v in model.versions.items() if v.is_mapped and n != max(model.serving)}
        expect_equal(set(ready) - beside, set(model.serving) - beside, f"the versions of {model.name} that are READY in {shown}")
        for number, version in model.versions.items():
            if version.why and self.is_listed(model, version):
                state, reason = shown.get(number, ("not listed", ""))
                expect(state == "UNAVAILABLE" and all(word in reason for word in version.why),
                       f"version {number} of {model.name} is {state}: {reason!r}, which should name {version.why}")

    def said_of(self, place):
        """The warnings and errors of a version, NAME/NUMBER, that a thread has read by now."""
        said = [event for event in self.serving.server.events() if event["level"] in ("warning", "error")]
        return [event for event in said if [event.get("model"), event.get("version")] == place.split("/")
                or f"/{place}" in event.get("reason", "")]

    def check_log(self):
        """One line for each version that cannot be served at first sight, and one for each attempt to read another one."""
        for model in self.models:
            for number, version in model.versions.items():
                place = f"{model.name}/{number}"
                if version.why and self.is_listed(model, version):
                    wait_until(lambda: self.said_of(place), f"a line in the log on {place}, which should name {version.why}")
                lines = self.said_of(place)
                if not version.why and not version.is_mapped:
                    lines = [line for line in lines if "lacks updates" not in line["reason"]]
                    expect(not lines, f"the log of {place}, which is good: {lines}")
                elif version.why and self.is_listed(model, version):
                    named = [line for line in lines if all(word in line["reason"] for word in version.why)]
                    expect(named == lines and (version.is_late or len(named) == 1),
                           f"the log of {place}, which should name {version.why}: {lines}")

    def is_listed(self, model, version):
        """Whether a bad version is above those that are served, no request has chosen an older one since it came, and the
        load did not fail late: then nothing has changed."""
        is_passed_by = model.asked and not (self.polls and version.number > model.newest)
        return version.number > max(model.serving) and not is_passed_by and (self.polls or model.can_load())
