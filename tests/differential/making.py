"""Random models: tables with rules of their own, and collections whose features have others."""

import dataclasses
import json

import numpy as np

from harness import has_openblas
from numerics import CONVERTIBLE, F32
from pooling import FLAGS, REDUCTIONS, Projection
from state import TableModel, Version
from tables import ODD_KEYS, Writer, random_keys, random_snapshot, random_stored


@dataclasses.dataclass
class Collection:
    name: str
    features: list  # (name, table's model, settings)
    in_folder: bool


class ConvertedFile:
    """As a Writer: the file says all there is to say."""

    path, settings, format = "table.safetensors", {}, "converted"


def json_key(key):
    """A key in a configuration: a number, or a text where a number would not be exact."""
    signed = key - 2**64 if key >> 63 else key
    return signed if abs(signed) < 2**53 else str(signed)


class Maker:
    """Makes what the server is given, in a folder."""

    def __init__(self, rng, folder, keeps_journal, maps):
        self.rng, self.folder, self.keeps_journal, self.maps = rng, folder, keeps_journal, maps
        self.num_projections, self.projects = 0, has_openblas()
        (folder / "models").mkdir()

    def some(self, share):
        return self.rng.random() < share

    def pick(self, *choices):
        return choices[self.rng.integers(len(choices))]

    # -- rules
    def random_projection(self, elements):
        path = self.folder / f"projection-{self.num_projections}.npy"
        self.num_projections += 1
        matrix = self.rng.standard_normal((elements, int(self.rng.integers(1, 9)))).astype(F32)
        np.save(path, matrix)
        projection = Projection(str(path), matrix)
        if self.some(0.5):
            projection.bias_path = str(path.with_suffix(".bias.npy"))
            projection.bias = self.rng.standard_normal(matrix.shape[1]).astype(F32)
            np.save(projection.bias_path, projection.bias)
        return projection

    def random_rules(self, table, model, is_feature=False):
        """Pooling keys; of a feature those that it changes. `table` is a snapshot."""
        chosen, storage = {}, table.storage
        if self.some(0.6):
            chosen["reduction"] = self.pick(*(REDUCTIONS if storage.is_float else REDUCTIONS[:4]))
        for flag in FLAGS:
            if self.some(0.2) and not (flag == "prune_invalid" and table.keys is not None):
                chosen[flag] = True if not is_feature else self.some(0.5)
        if storage.datatype in CONVERTIBLE and self.some(0.25):
            chosen["output_datatype"] = self.pick(*CONVERTIBLE)
        if storage.datatype in CONVERTIBLE and self.some(0.1) and self.projects:
            chosen["projection"] = self.random_projection(table.elements)
        if table.keys is None:
            self._dense_rules(chosen, model)
        else:
            self._keyed_rules(chosen, table, model, is_feature)
        return chosen

    def _dense_rules(self, chosen, model):
        rows = model.base_rows
        if not rows:
            chosen["out_of_range"] = self.pick("error", "skip")
            return
        if self.some(0.6):
            chosen["default_index"] = int(self.rng.integers(rows))
        if self.some(0.4):
            chosen["padding_idx"] = int(self.rng.integers(-rows, rows))
            if "default_index" in chosen and self.some(0.4):
                chosen["padding_idx"] = chosen["default_index"] - self.pick(0, 0, rows)
        chosen["out_of_range"] = self.pick("error", "skip", "default" if "default_index" in chosen else "skip")

    def _keyed_rules(self, chosen, table, model, is_feature):
        keys = sorted(model.reserved_keys) if is_feature else [int(key) for key in table.keys]
        if self.some(0.6) and keys:
            default = int(keys[self.rng.integers(len(keys))])
            chosen["default_index"] = json_key(default)
        if self.some(0.4):
            key = int(self.pick(*keys, *ODD_KEYS))
            chosen["padding_idx"] = json_key(key)
            if "default_index" in chosen and self.some(0.4):
                chosen["padding_idx"] = chosen["default_index"]
        kinds = ["error", "skip", "default" if "default_index" in chosen else "skip", "hash"]
        if model.hashes:
            kinds = ["hash"]
        elif not is_feature or not model.base_rows:
            kinds = kinds[:3]
        chosen["missing"] = self.pick(*kinds)
        if chosen["missing"] == "hash":
            chosen["hash_rows"] = int(self.rng.integers(1, model.base_rows + 1))

    # -- tables
    def make_model(self, name):
        model = TableModel(name, self.some(0.7), self.keeps_journal)
        snapshot = random_snapshot(self.rng)
        model.base_rows = len(snapshot)
        model.hashes = snapshot.keys is not None and len(snapshot) > 0 and self.some(0.3)
        if snapshot.keys is not None and len(snapshot):
            count = int(self.rng.integers(1, 3))
            model.reserved_keys = {int(key) for key in self.rng.choice(snapshot.keys, count)}
        self.add_version(model, snapshot)
        if model.in_folder and self.some(0.5):
            model.holds = True
            document = {"keep_versions": int(self.rng.integers(1, 3))}
            (self.folder / "models" / name / "config.json").write_text(json.dumps(document))
        return model

    def make_twin(self, model):
        """Another model of the same files, with rules of its own."""
        twin = TableModel(model.name + ".twin", False, self.keeps_journal)
        twin.base_rows, twin.hashes, twin.reserved_keys = model.base_rows, model.hashes, model.reserved_keys
        first = model.versions[1]
        fixed = {k: v for k, v in first.settings.items() if k in ("load", "spare_rows")}
        settings = self.random_rules(first.snapshot, twin) | fixed
        twin.versions[1] = dataclasses.replace(first, settings=settings)
        return twin

    def change_rules(self, model):
        """Other rules for the version that is served."""
        version = model.served
        fixed = {k: v for k, v in version.settings.items() if k in ("load", "spare_rows")}
        settings = self.random_rules(version.snapshot, model) | fixed
        changed = dataclasses.replace(version, settings=settings)
        self.write_rules(model, changed)
        return changed

    def write_rules(self, model, version):
        path = version.folder / "config.json"
        path.write_text(json.dumps(self.document(version.settings) | version.writer.settings))
        model.versions[version.number] = version

    def add_version(self, model, snapshot):
        """Writes a version's files; the number after the last one's."""
        number = max(model.versions, default=0) + 1
        mapped = self.maps and self.some(0.4)
        settings = self.random_rules(snapshot, model)
        parent = self.folder / "models" / model.name if model.in_folder else self.folder / "named"
        folder = parent / (f".new-{number}" if model.in_folder else model.name)
        snapshot = dataclasses.replace(snapshot)
        writer = Writer(self.rng, folder, snapshot, mapped, model.in_folder)
        if mapped and getattr(writer, "parts", 1) == 1:
            settings["load"] = "map"
        elif snapshot.keys is not None:
            settings["spare_rows"] = int(self.pick(0, 3, 10, 40))
        version = Version(number, snapshot, settings, folder, writer, converts=writer.format != "raw")
        if model.in_folder:
            document = self.document(settings) | writer.settings
            (folder / "config.json").write_text(json.dumps(document))
            version.folder = folder.rename(parent / str(number))
        model.versions[number] = version
        return version

    def next_snapshot(self, model):
        """For a newer version: the table as it is now, or other rows that include some updates or none."""
        live, snapshot = model.live, model.live.snapshot()
        kind, count = self.rng.random(), len(snapshot)
        if kind < 0.4 and count >= model.base_rows:
            return snapshot
        if snapshot.keys is not None:
            extra = random_keys(self.rng, int(self.rng.integers(0, 6)) + max(0, model.base_rows - count))
            keys = self.rng.permutation(np.union1d(snapshot.keys, extra))
            if len(keys) < model.base_rows:
                more = np.setdiff1d(random_keys(self.rng, 2 * model.base_rows), keys)
                keys = np.concatenate([keys, more])
            snapshot.keys = keys
            count = len(snapshot.keys)
        elif kind < 0.7:
            count += int(self.rng.integers(0, 5))
        snapshot.stored = random_stored(self.rng, snapshot.storage, count, live.elements)
        snapshot.through = int(self.rng.integers(0, model.sequence + 3))
        return snapshot

    def add_delta(self, model, batch, ids, rows):
        """The batch as a folder beside the version that is served; appears complete."""
        parent = model.served.folder / "deltas"
        folder = parent / f".new-{batch.sequence}"
        folder.mkdir(parents=True)
        name = "indices" if model.live.where is None else "keys" if rows is not None else "deleted_keys"
        np.save(folder / f"{name}.npy", ids)
        if rows is not None:
            np.save(folder / "rows.npy", rows)
        folder.rename(parent / str(batch.sequence))
        model.served.deltas[batch.sequence] = batch

    def add_converted(self, model, origin, snapshot, path):
        """A version of a converter's output, with the rules that its origin has."""
        number = max(model.versions) + 1
        folder = self.folder / "models" / model.name / f".new-{number}"
        folder.mkdir()
        path.rename(folder / "table.safetensors")
        settings = {k: v for k, v in origin.settings.items() if k != "load"}
        if snapshot.keys is not None:
            settings["spare_rows"] = 20
        (folder / "config.json").write_text(json.dumps(self.document(settings)))
        version = Version(number, snapshot, settings, folder, ConvertedFile())
        version.folder = folder.rename(folder.parent / str(number))
        model.versions[number] = version

    # -- collections
    def make_collection(self, name, models):
        features, rules = [], []
        for i in range(int(self.rng.integers(1, 5))):
            model = self.pick(*models)
            table = model.versions[1].snapshot
            settings = self.random_rules(table, model, is_feature=True)
            if model.hashes and self.some(0.5):
                del settings["missing"], settings["hash_rows"]
            features.append((f"f{i}", model, settings))
            model.readers.append(settings)
            rules.append({"name": f"f{i}", "model": model.name} | self.document(settings))
        collection = Collection(name, features, self.some(0.5))
        if collection.in_folder:
            folder = self.folder / "models" / name / "1"
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(json.dumps({"features": rules}))
        return collection, rules

    # -- documents
    @staticmethod
    def document(settings):
        """Settings as a configuration says them."""
        document = dict(settings)
        projection = document.get("projection")
        if projection:
            document["projection"] = projection.path
            document |= {"bias": projection.bias_path} if projection.bias_path else {}
        return document

    def write_config(self, models, collections):
        """The configuration file: what is not in the folder of models."""
        entries = []
        for model in models:
            if not model.in_folder:
                version = model.versions[1]
                writer = version.writer
                path = version.folder / writer.path if writer.path else version.folder
                own = dict(writer.settings)
                if "keys" in own:
                    own["keys"] = str(version.folder / own["keys"])
                entries.append({"name": model.name, "path": str(path)} | own | self.document(version.settings))
        for collection, rules in collections:
            if not collection.in_folder:
                entries.append({"name": collection.name, "features": rules})
        path = self.folder / "config.json"
        path.write_text(json.dumps({"models": entries, "models_dir": "models"}))
        return path


