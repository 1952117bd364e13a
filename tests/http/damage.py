"""Damages a folder of files by seed, as copies, disks and other programs do."""

import json
import pathlib
import random
import shutil

VALUES = (None, True, -1, 0, 2**70, 1.5, "", "x", "\0", [], [1], {}, {"a": 1}, [[[]]])


def damage(folder, seed, kinds=None):
    """Damages one to three files below `folder`. Returns what was done, for messages."""
    chance = random.Random(seed)
    done = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if not files:
            break
        kind, path = chance.choice(kinds or KINDS), chance.choice(files)
        kind(chance, path, files)
        done.append(f"{kind.__name__}({path.relative_to(folder)})")
    return ", ".join(done)


def remove(_chance, path, _files):
    path.unlink()


def cut(chance, path, _files):
    content = path.read_bytes()
    path.write_bytes(content[:chance.randrange(len(content) + 1)])


def empty(_chance, path, _files):
    path.write_bytes(b"")


def append(chance, path, _files):
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.randrange(1, 40)))


def flip(chance, path, _files):
    """Changes a few bytes, often to the largest and smallest numbers."""
    content = bytearray(path.read_bytes())
    for _ in range(chance.randrange(1, 9) if content else 0):
        content[chance.randrange(len(content))] = chance.choice((0, 1, 0x7f, 0x80, 0xff, chance.randrange(256)))
    path.write_bytes(content)


def insert(chance, path, _files):
    content = path.read_bytes()
    place = chance.randrange(len(content) + 1)
    path.write_bytes(content[:place] + chance.randbytes(chance.randrange(1, 9)) + content[place:])


def overwrite(chance, path, files):
    """Puts the content of another file in this one's place."""
    path.write_bytes(chance.choice(files).read_bytes())


def swap(chance, path, files):
    other = chance.choice(files)
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def rename(chance, path, _files):
    """Changes a digit of the name, which is often a rank or the number of ranks."""
    digits = [place for place, letter in enumerate(path.name) if letter.isdigit()]
    if digits:
        place = chance.choice(digits)
        target = path.with_name(path.name[:place] + chance.choice("0123459") + path.name[place + 1:])
        if not target.is_dir():
            path.rename(target)


def double(chance, path, _files):
    """Copies a file to a name with another digit."""
    copy = path.with_name(path.name + ".copy")
    shutil.copy(path, copy)
    rename(chance, path, _files)
    copy.rename(path)


def make_folder(_chance, path, _files):
    path.unlink()
    path.mkdir()


def change_json(chance, _path, files):
    """Replaces or removes a value of a JSON file."""
    documents = [path for path in files if path.suffix == ".json"]
    if not documents:
        return
    path = chance.choice(documents)
    try:
        document = json.loads(path.read_text())
    except ValueError:
        return
    holders = [(holder, key) for holder in _holders(document)
               for key in (holder if isinstance(holder, dict) else range(len(holder)))]
    if not holders or chance.random() < 0.05:
        document = chance.choice(VALUES)
    else:
        holder, key = chance.choice(holders)
        if chance.random() < 0.3:
            del holder[key]
        else:
            holder[key] = chance.choice(VALUES)
    path.write_text(json.dumps(document))


def _holders(value):
    if isinstance(value, (dict, list)):
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from _holders(part)


KINDS = (remove, cut, cut, empty, append, flip, flip, flip, insert, overwrite, swap, rename, double, make_folder, change_json,
         change_json)


def names_of(folder: pathlib.Path):
    return {path.name for path in folder.rglob("*")}
