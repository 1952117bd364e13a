#!/usr/bin/python3
"""Names that users rely on (deploy/RELEASES.md), as the sources, a server and the pages have them now.

    tests/http/stable.py > tests/stable/names.json     at a release, to take the new names in
"""

import json
import re
import sys

from harness import ROOT, run

KEY = re.compile(r"^\| `(\w+)`(?:, `(\w+)`)? \|", re.MULTILINE)


def keys_of(page, heading):
    """The keys in the first column of the tables under a heading."""
    text = page.split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]
    return sorted({key for found in KEY.findall(text) for key in found if key})


def members_of(schema, path=""):
    """The members of a JSON schema, as dotted paths; arrays are passed through."""
    for word in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(word, []):
            yield from members_of(part, path)
    if isinstance(schema.get("items"), dict):
        yield from members_of(schema["items"], path)
    for name, member in schema.get("properties", {}).items():
        yield f"{path}.{name}" if path else name
        yield from members_of(member, f"{path}.{name}" if path else name)


def names():
    """Lists of names by subject, each sorted."""
    options = sorted(set(re.findall(r"^  --([a-z0-9-]+)", run("serve", "--help-all").stdout, re.MULTILINE)))
    pages = (ROOT / "config/examples/README.md").read_text()
    metrics = (ROOT / "server/metrics/README.md").read_text() + (ROOT / "deploy/README.md").read_text()
    openapi = json.loads((ROOT / "proto/openapi.json").read_text())
    schemas = openapi["components"]["schemas"]
    return {
        "flags of serve": options, "keys of models": keys_of(pages, "## Models"),
        "metrics": sorted(set(re.findall(r"`((?:bagserve|nv_inference)_[a-z0-9_]+)`", metrics))),
        "endpoints": sorted(f"{method.upper()} {path}" for path, methods in openapi["paths"].items()
                            for method in methods if method in ("get", "post")),
        "members": sorted(f"{schema}: {member}" for schema, value in schemas.items() for member in members_of(value)),
    }


if __name__ == "__main__":
    json.dump(names(), sys.stdout, indent=1)
    print()
