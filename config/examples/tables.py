#!/usr/bin/python3
"""Small tables for the configurations of this folder, so that each can be tried.

    config/examples/tables.py /tmp/examples
    bagserve serve --config /tmp/examples/collection.json

Every configuration is copied to the folder, with its paths changed to those of tables that are written
beside it. No two configurations share a table.
"""

import json
import pathlib
import sys

import numpy as np

ROWS, COLUMNS = 1000, 16


def write_table(path, datatype):
    """Random rows; BF16, which .npy files cannot name, as the upper halves of FP32."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    np.save(path, (rows.view(np.uint32) >> 16).astype(np.uint16) if datatype == "BF16" else rows)


def copy(source, folder):
    config = json.loads(source.read_text())
    for model in config.get("models", []):
        if "path" in model:
            path = pathlib.Path("tables", source.stem, pathlib.Path(model["path"]).name)
            write_table(folder / path, model.get("datatype"))
            model["path"] = str(path)
    if "models_dir" in config:
        config["models_dir"] = "models"
        write_table(folder / "models" / "items.npy", None)
    (folder / source.name).write_text(json.dumps(config, indent=2) + "\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for source in sorted(pathlib.Path(__file__).resolve().parent.glob("*.json")):
        copy(source, folder)


if __name__ == "__main__":
    main()
