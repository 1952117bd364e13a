"""A world: a server with random models, and what happens to them step by step, beside what must come of it.

Everything follows from the seed, but for which requests a killed process had still answered: the world asks
the next one.
"""

import os

import numpy as np

from asking import Request, compare
from batches import fill_batch, random_batch
from converting import Conversion
from harness import Failure, expect, expect_equal
from making import Maker
from pooling import Rejected, Rules, rows_alone
from serving import PATIENT, Serving, play
from state import Batch
from v2 import Tensor, infer_body

ASKED_AT_ONCE = 8


class World:
    def __init__(self, seed, folder, crowd=0, unpooled=0):
        self.rng = rng = np.random.default_rng(seed)
        self.folder, self.counts = folder, {}
        self.updates = rng.random() < 0.85
        self.keeps_journal = self.updates and bool(rng.integers(3))
        self.maker = Maker(rng, folder, self.keeps_journal, bool(rng.integers(2)))
        self.models = [self.maker.make_model(f"t{i}") for i in range(int(rng.integers(1, 4)))]
        named = [m for m in self.models if not m.in_folder]
        if named and rng.integers(3) == 0:
            self.models.append(self.maker.make_twin(self.pick(named)))
        made = [self.maker.make_collection(f"c{i}", self.models) for i in range(int(rng.integers(0, 3)))]
        self.unpooled = unpooled
        while unpooled and not any(self.mixes(collection) for collection, _ in made):
            made.append(self.maker.make_collection(f"c{len(made)}", self.models))
        self.collections = [collection for collection, _ in made]
        config = self.maker.write_config(self.models, made)
        self.arguments = [str(word) for word in ("--config", config, *self._arguments())]
        self.serving = Serving(folder, self.arguments, [m.name for m in self.models + self.collections], crowd)
        self.steps = []

    def _arguments(self):
        rng, chosen = self.rng, ["--model-control", "explicit", "--updates", "on" if self.updates else "off"]
        if self.keeps_journal:
            chosen += ["--journal-dir", self.folder / "journal",
                       "--journal-sync", rng.choice(["always", "interval", "off"])]
        chosen += ["--workers", rng.integers(1, 3), "--loops", rng.choice([1, 1, 2]), *PATIENT]
        chosen += ["--max-reply-ratio", 0, "--inline-work-us", rng.choice([0, 50, 1000])]
        if rng.integers(4) == 0:
            chosen += ["--isa", "generic"]
        if rng.integers(4) == 0:
            chosen += ["--reply-compression", "on"]
        return chosen

    def pick(self, choices):
        return choices[self.rng.integers(len(choices))]

    def count(self, what, number=1):
        self.counts[what] = self.counts.get(what, 0) + number

    # ---- the whole ------------------------------------------------------------------------------
    def run(self, steps):
        checked = self.serving.check()
        expect_equal(checked.returncode, 0, f"serve --check: {checked.stderr}")
        play(self, self.serving, self.choose_step, self.check_all, steps)

    def documents(self):
        """What happened, and the configuration files, for somebody who repeats a case by hand."""
        yield f"steps: {', '.join(self.steps)}"
        yield f"arguments: {self.arguments}"
        for path in [self.folder / "config.json", *sorted(self.folder.glob("models/**/config.json"))]:
            if path.exists():
                yield f"{path.relative_to(self.folder)}: {path.read_text()}"
        yield from [self.serving.said] if self.serving.said else []

    @staticmethod
    def mixes(collection):
        """Whether some of its features are pooled, and others are not."""
        rules = [model.versions[1].pooling() | settings for _, model, settings in collection.features]
        return {own.get("reduction") == "none" for own in rules} == {True, False}

    def choose_step(self):
        if self.unpooled:
            return self.ask_more
        steps = {self.ask_more: 3, self.update: 6, self.load_newer: 3, self.load_older: 1.5, self.load_bad: 1, self.change_rules: 1, self.delta: 1, self.load_group: 1,
                 self.unload_and_load: 0.7, self.restart: 1, self.kill: 2, self.convert: 2}
        weights = np.array(list(steps.values()))
        return list(steps)[self.rng.choice(len(steps), p=weights / weights.sum())]

    def start(self):
        self.serving.start()
        index = self.serving.admin.index()
        for model in self.models:
            self.find_served(model, index)

    def find_served(self, model, index):
        """The newest version that can be served is."""
        ready = [int(v) for (name, v), (state, _) in index.items() if name == model.name and state == "READY"]
        can = [n for n in sorted(model.versions, reverse=True) if model.can_serve(model.versions[n]) is not False]
        sure = [n for n in can if model.can_serve(model.versions[n])]
        allowed = can[:can.index(sure[0]) + 1] if sure else can
        expect(len(ready) == 1 and ready[0] in allowed, f"{model.name}: versions {ready} are served; one of "
               f"{allowed} should be: {[(k, v) for k, v in index.items() if k[0] == model.name]}")
        model.serve(model.versions[ready[0]])
        self.follow_deltas(model)

    # ---- asking ---------------------------------------------------------------------------------
    def check_all(self):
        for model in self.models:
            self.check_table(model)
        for _ in range(ASKED_AT_ONCE):
            self.ask()

    def check_table(self, model):
        """Every row by itself, and what is told of the table."""
        live, rules = model.live, model.rules()
        ids = np.arange(len(live)) if live.where is None else np.array(list(live.where), np.uint64)
        self.check_metadata(model, rules)
        if rules.projection is not None or rules.keyed and rules.padding is not None or not len(ids):
            return
        plain = {"reduction": "max", "binary_data_output": True}
        if live.where is None and rules.padding is not None:
            ids = ids[ids != rules.padding % len(live)]
        reply = self.serving.client.infer(model.name, [Tensor("indices", ids.reshape(-1, 1))], binary=True,
                                          parameters=plain)
        if rules.require_matching_index_types or reply.status == 200:
            rows = [live.where[int(i)] if live.where is not None else i for i in ids]
            compare(f"the rows of {model.name}", reply.outputs()["embeddings"], rows_alone(rules, rows))
        else:
            reply.expect(200)

    def facts(self, model):
        return self.serving.client.get(f"/v2/models/{model.name}").expect().json()["parameters"]

    def check_metadata(self, model, rules):
        live = model.live
        document = self.serving.client.get(f"/v2/models/{model.name}").expect().json()
        facts = document["parameters"]
        expect_equal((facts["row_elements"], facts["row_format"], facts["keyed"], facts["updates_through"]),
                     (live.elements, live.storage.row_format, live.where is not None, live.through), model.name)
        expect_equal(facts["rows"], len(live if live.where is None else live.where), f"{model.name}: rows")
        if live.where is not None:
            expect_equal(document["inputs"][0]["datatype"], live.keys_datatype, f"{model.name}: type of keys")
        output = document["outputs"][0]
        expect_equal((output["datatype"], output["shape"]), (rules.output, [-1, *rules.shape]), model.name)
        expect_equal(document["versions"], [str(model.served.number)], model.name)
        shown = self.serving.client.get(f"/v2/models/{model.name}/config").expect().json()["parameters"]
        expect_equal(shown.get("keyed", {}).get("string_value"), "true" if live.where is not None else "false",
                     f"{model.name}: keyed of /config")

    def ask_more(self):
        for _ in range(4 * ASKED_AT_ONCE):
            self.ask()

    def random_request(self):
        if self.collections and self.rng.integers(2):
            collection = self.pick(self.collections)
            features = {n: Rules(m.served.pooling() | s, m.live) for n, m, s in collection.features}
            return Request(self.rng, collection.name, features, True)
        model = self.pick(self.models)
        return Request(self.rng, model.name, {"embeddings": model.rules()}, False)

    def ask(self):
        request = self.random_request()
        while self.unpooled and request.pools() != {True, False}:
            request = self.random_request()
        try:
            reply = request.send(self.serving.client, f"/v2/models/{request.model}/infer", {})
            answered = request.check(reply)
        except Failure as failure:
            raise Failure(f"{failure}\n{request.describe()}") from None
        self.count("answered" if answered else "refused")
        if answered and False in request.pools():
            self.count("answered with rows")
            self.count("answered with rows beside pooled features", len(request.pools()) - 1)

    # ---- updates --------------------------------------------------------------------------------
    def live_model(self):
        live = [m for m in self.models if m.takes_updates and self.updates]
        return self.pick(live) if live else None

    def delta(self):
        """A batch in a folder, which a load takes."""
        model = self.live_model()
        if model is None or not model.in_folder or model.sequence + 1 in model.served.deltas:
            return
        number = model.sequence + 1
        batch = Batch(number, number, [], model.live.storage, None, may_be_gone=True)
        deletes = model.live.where is not None and self.rng.random() < 0.3
        tensors = fill_batch(self.rng, model, batch, 3, deletes)
        if self.may_be_protected(model, batch) or set(batch.ids) & model.protected_keys():
            return
        if any(t.datatype == "BF16" or t.array.dtype == np.int32 and t.name == "keys" for t in tensors):
            return
        self.maker.add_delta(model, batch, tensors[0].array, None if deletes else tensors[1].array)
        reply = self.serving.admin.load(model.name, model.served.number)
        why = model.take_deltas()
        expect_equal(reply.status, 400 if why else 200, f"a load with a delta, {why}: {reply.body[:300]!r}")
        self.count("deltas")

    def update(self):
        for _ in range(int(self.rng.integers(1, 5))):
            model = self.live_model()
            if model is None:
                return
            self.send_batch(model, *random_batch(self.rng, model))

    def rows_request(self, model, inputs, parameters):
        binary = True if any(t.datatype in ("FP16", "BF16") for t in inputs) else bool(self.rng.integers(2))
        body, headers = infer_body(inputs, binary=binary, parameters=parameters)
        return f"/v2/models/{model.name}/rows", body, headers

    def send_batch(self, model, batch, inputs, parameters):
        path, body, headers = self.rows_request(model, inputs, parameters)
        reply = self.serving.admin.request("POST", path, body, headers)
        try:
            self.take(model, batch, parameters, reply)
        except Failure as failure:
            raise Failure(f"{failure}\nan update of {model.name}: {[(t.name, t.datatype, t.array.tolist()) for t in inputs]}, "
                          f"{parameters}") from None

    def take(self, model, batch, parameters, reply):
        """What the reply must be, and what comes of it."""
        through = model.sequence
        number = parameters.get("sequence", batch.sequence)
        if number <= through:
            if reply.status == 400 and len(set(batch.ids)) < len(batch.ids):
                return
            reply.expect(200)
            expect_equal((reply.json()["applied"], reply.json()["sequence"]), (False, through))
            self.count("updates repeated")
            return
        wrong = "a gap" if parameters.get("first_sequence", number) > through + 1 else None
        try:
            model.live.check(batch, model.protected_keys())
        except Rejected as why:
            wrong = str(why)
        if not wrong and reply.status == 400 and self.may_be_protected(model, batch):
            wrong = "a default key of a version that is held"
        if wrong:
            expect(reply.status in (400, 409, 507), f"status {reply.status} for {wrong}: {reply.body[:300]!r}")
            self.count("updates refused")
            return
        reply.expect(200)
        expect_equal((reply.json()["applied"], reply.json()["sequence"]), (True, batch.sequence))
        self.applied(model, batch)

    @staticmethod
    def may_be_protected(model, batch):
        return batch.stored is None and bool(set(batch.ids) & model.perhaps_protected_keys())

    def applied(self, model, batch):
        model.live.apply(batch)
        model.batches.append(batch)
        self.count("updates")

    # ---- loads ----------------------------------------------------------------------------------
    def folder_model(self):
        found = [m for m in self.models if m.in_folder]
        return self.pick(found) if found else None

    def load(self, model, version=None):
        """Asks for a version, or for the newest good one."""
        before = model.served
        reply = self.serving.admin.load(model.name, version and version.number)
        is_served = reply.status == 200 or b"what was asked for is served" in reply.body
        if version is None:
            served = self.find_newest(model) if is_served else before
            late = [v for v in model.versions.values() if model.can_serve(v) is not True]
            expect(reply.status == 200 or (late and reply.status in (400, 507)),
                   f"a load: {reply.status} {reply.body[:300]!r}")
        else:
            can = model.can_serve(version)
            status = {True: (200,), False: (400, 507), None: (200, 400)}[can]
            if version is before:
                status = (200,)
            expect((200 if is_served else reply.status) in status,
                   f"the load of version {version.number} of {model.name}: {reply.status} instead of {status}: "
                   f"{reply.body[:500]!r}")
            served = version if is_served else before
        if reply.status == 200:
            told = reply.json()["models"][0]["versions"]
            expect_equal(told, [str(served.number)], "versions that the reply to a load names")
        if served is not before:
            model.serve(served)
        why = self.follow_deltas(model) if is_served else None
        if why:
            expect_equal(reply.status, 400, f"a load with a delta, {why}: {reply.body[:300]!r}")
        self.count("loads" if reply.status == 200 else "loads refused")

    def find_newest(self, model):
        before = model.served, model.live, list(model.batches)
        self.find_served(model, self.serving.admin.index())
        served = model.served
        model.served, model.live, model.batches = before
        return served

    def load_newer(self):
        model = self.folder_model()
        if model is None:
            return
        self.maker.add_version(model, self.maker.next_snapshot(model))
        newest = model.versions[max(model.versions)]
        self.load(model, newest if self.rng.integers(2) else None)

    def load_older(self):
        model = self.folder_model()
        if model is None:
            return
        self.load(model, self.pick(list(model.versions.values())))

    def change_rules(self):
        model = self.folder_model()
        if model is None or model.served.writer.format == "converted":
            return
        before = model.served
        changed = self.maker.change_rules(model)
        can = model.has_defaults(changed, model.live)
        can = can and (model.live.where is None or model.live.keep(model.kept_rows(changed)))
        reply = self.serving.admin.load(model.name, changed.number)
        if can:
            model.served = changed
            model.earlier.append(changed.pooling())
        else:
            self.maker.write_rules(model, before)  # no start could serve the version by those
        blocked = can and self.follow_deltas(model)
        expect(reply.status in ((200,) if can and not blocked else (400, 409)),
               f"other rules: {reply.status} {reply.body[:300]!r}")
        self.count("other rules")

    def load_group(self):
        """Versions of several models in one step, or none of them."""
        models = [m for m in self.models if m.in_folder]
        if not models:
            return
        wanted = {m.name: self.pick(list(m.versions.values())) for m in models}
        reply = self.serving.admin.post("load", {"models": [
            {"name": name, "version": str(version.number)} for name, version in wanted.items()]})
        can = [m.served is wanted[m.name] or m.can_serve(wanted[m.name]) for m in models]
        status = (400, 507) if False in can else (200, 400) if None in can else (200,)
        is_served = reply.status == 200 or b"what was asked for is served" in reply.body
        expect((200 if is_served else reply.status) in status,
               f"the load of {[(n, v.number) for n, v in wanted.items()]}: "
               f"{reply.status} instead of {status}: {reply.body[:500]!r}")
        for model in models:
            if is_served and model.served is not wanted[model.name]:
                model.serve(wanted[model.name])
            if is_served:
                self.follow_deltas(model)
        self.count("groups")

    def follow_deltas(self, model):
        """A load takes those of the version that is served; why one cannot be applied, or None."""
        return model.take_deltas() if self.updates else None

    def load_bad(self):
        """A version that is truncated, garbage, or has a key twice."""
        model = self.folder_model()
        if model is None:
            return
        snapshot = self.maker.next_snapshot(model)
        twice = snapshot.keys is not None and len(snapshot.keys) > 1 and self.rng.integers(2)
        if twice:
            snapshot.keys[-1] = snapshot.keys[0]
        version = self.maker.add_version(model, snapshot)
        version.is_bad, version.converts = True, bool(twice) and version.converts
        if not twice:
            files = sorted(p for p in version.folder.iterdir() if p.name != "config.json")
            for path in files:
                os.truncate(path, int(path.stat().st_size * self.rng.random() * 0.7))
        self.load(model, version if self.rng.integers(2) else None)

    def unload_and_load(self):
        model = self.folder_model()
        if model is None:
            return
        used = any(m is model for c in self.collections for _, m, _ in c.features)
        reply = self.serving.admin.unload(model.name)
        if used:
            reply.expect(409)
            return
        reply.expect(200)
        self.serving.client.get(f"/v2/models/{model.name}").expect(404)
        served, model.served, model.live = model.served, None, None
        self.serving.admin.load(model.name)
        index = self.serving.admin.index()
        if "READY" not in [state for (name, _), (state, _) in index.items() if name == model.name]:
            self.serving.admin.load(model.name, served.number)  # the newest was found to be bad late
            index = self.serving.admin.index()
            expect_equal(index[model.name, str(served.number)][0], "READY", f"{model.name}: what was served before")
            model.serve(served)
            self.follow_deltas(model)
        else:
            self.find_served(model, index)

    # ---- restarts -------------------------------------------------------------------------------
    def restart(self):
        self.serving.stop()
        for model in self.models:
            model.forget()
        self.start()
        self.count("restarts")

    def kill(self):
        """With a batch on its way, that is there afterwards or not."""
        model = self.live_model()
        pending = None
        if model is not None:
            batch, inputs, parameters = random_batch(self.rng, model)
            try:
                model.live.check(batch, model.protected_keys())
                pending = (model, batch) if self.is_next(model, batch, parameters) else None
            except Rejected:
                pass
        connection = pending and self.serving.send_and_leave(self.rows_request(model, inputs, parameters))
        self.serving.kill()
        if connection:
            connection.close()
        for one in self.models:
            one.forget()
        self.start_after(pending)
        self.count("kills")

    @staticmethod
    def is_next(model, batch, parameters):
        """Whether it is taken, and shows."""
        if any(v.snapshot.through >= batch.sequence for v in model.versions.values()):
            return False
        if World.may_be_protected(model, batch):
            return False
        first = parameters.get("first_sequence", parameters.get("sequence", batch.first))
        return first <= batch.first and parameters.get("sequence", batch.sequence) > model.sequence

    def start_after(self, pending):
        if not pending or not self.keeps_journal:
            self.start()
            return
        model, batch = pending
        self.serving.start()
        if self.facts(model)["updates_through"] >= batch.sequence:
            model.batches.append(batch)
            self.count("updates")
        index = self.serving.admin.index()
        for one in self.models:
            self.find_served(one, index)

    # ---- conversions ----------------------------------------------------------------------------
    def convert(self):
        """What becomes of a version's files is a newer version, with the same rules."""
        model = self.pick(self.models)
        good = [v for v in model.versions.values() if v.converts]
        if not good:
            return
        version = self.pick(good)
        path = self.folder / "converted.safetensors"
        searched = any(v.snapshot.storage.is_searched for v in model.versions.values())
        conversion = Conversion(self.rng, version, path, model.kept_rows(version), not searched)
        self.count("conversions")
        if not conversion.run():
            return
        if model.in_folder:
            self.maker.add_converted(model, version, conversion.result, path)
            self.load(model, model.versions[max(model.versions)])
        else:
            path.unlink()
