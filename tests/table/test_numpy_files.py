"""Files that NumPy writes, in all its versions, orders and types, must load to NumPy's own bytes.

Usage: test_numpy_files.py DUMP_TABLE [unittest arguments], where DUMP_TABLE is the program that
loads a file as the server does and writes its elements to standard output.
"""

import itertools
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

DUMP_TABLE = sys.argv.pop(1) if len(sys.argv) > 1 else None

TYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
VERSIONS = ((1, 0), (2, 0), (3, 0))
SHAPES = ((1,), (7,), (3, 5), (1, 9), (9, 1), (4, 3, 2), (2, 3, 4, 5), (5, 1, 2, 1, 3))
SEED = 20240611


def random_array(shape, dtype):
    """Elements whose bytes are all random, NaNs of every kind among the floats."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    generator = np.random.default_rng([SEED, count, dtype.itemsize])
    return np.frombuffer(generator.bytes(count * dtype.itemsize), dtype).reshape(shape)


def expected_bytes(array):
    """What a table of that array holds: row-major and little-endian, whatever the file's layout."""
    return array.astype(array.dtype.newbyteorder("<")).tobytes(order="C")


class NumpyFiles(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = Path(self.directory.name) / "table.npy"

    def write(self, array, version=None):
        with self.path.open("wb") as file:
            np.lib.format.write_array(file, array, version=version)

    def dump(self, *arguments):
        return subprocess.run([DUMP_TABLE, self.path, *arguments], capture_output=True, timeout=120)

    def check(self, array, *arguments, version=None):
        self.write(array, version)
        result = self.dump(*arguments)
        self.assertEqual(result.stderr, b"")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(len(result.stdout), array.nbytes)
        # Compared by hand: a failing assertEqual would print all the bytes.
        self.assertTrue(result.stdout == expected_bytes(array), "the bytes differ")

    def reject(self, array, *words, arguments=()):
        self.write(array)
        result = self.dump(*arguments)
        self.assertEqual((result.returncode, result.stdout), (1, b""))
        text = result.stderr.decode()
        self.assertTrue(text.startswith(f"{self.path}: "), text)
        for word in words:
            self.assertIn(word, text)

    def test_types_orders_and_shapes(self):
        for kind, order, layout, shape in itertools.product(TYPES, "<>=", "CF", SHAPES):
            with self.subTest(dtype=order + kind, layout=layout, shape=shape):
                self.check(np.asarray(random_array(shape, order + kind), order=layout))

    def test_versions(self):
        for version, layout in itertools.product(VERSIONS, "CF"):
            with self.subTest(version=version, layout=layout):
                self.check(np.asarray(random_array((6, 4), "<f4"), order=layout), version=version)

    def test_views(self):
        """NumPy writes a transposed or sliced array as it sees fit; the table is what it shows."""
        base = random_array((12, 10), "<f8")
        for view in (base.T, base[::3], base[:, 2:7], base[::-1, ::-1], np.asfortranarray(base)[3:]):
            self.check(view)

    def test_empty_tables(self):
        for shape, layout in itertools.product(((0, 64), (0,), (5, 0), (0, 3, 2)), "CF"):
            with self.subTest(shape=shape, layout=layout):
                self.check(np.zeros(shape, "<f4", order=layout))

    def test_more_than_one_tile(self):
        """Tiles are 8 MiB; neither the rows nor the columns here fill whole ones."""
        for shape in ((70001, 37), (131, 20011), (3, 1000003), (1500007, 2), (4001, 7, 5, 20)):
            for dtype, layout, threads in itertools.product(("<f4", ">f4"), "CF", "13"):
                with self.subTest(shape=shape, dtype=dtype, layout=layout, threads=threads):
                    array = np.asarray(random_array(shape, dtype), order=layout)
                    self.check(array, "-", threads)

    def test_bf16_in_place_of_other_types(self):
        for dtype in ("<u2", ">u2", "<i2", "V2"):
            with self.subTest(dtype=dtype):
                array = random_array((6, 4), "V2" if dtype == "V2" else dtype)
                self.write(array)
                result = self.dump("BF16")
                self.assertEqual(result.stderr, b"")
                words = array.view("<u2") if dtype == "V2" else array
                self.assertEqual(result.stdout, expected_bytes(words))

    def test_configured_type_of_another_size(self):
        self.reject(random_array((2, 2), "<f4"), "'<f4'", "BF16", "4 bytes", arguments=["BF16"])
        self.reject(random_array((2, 2), "V2"), "FP32", "2 bytes", arguments=["FP32"])

    def test_rejections(self):
        for array, words in (
            (np.array([[None, {}]], dtype=object), ("Python objects", "'|O'")),
            (np.array([["a", "b"]]), ("strings", "'<U1'")),
            (np.array([[b"a", b"b"]]), ("byte strings", "'|S1'")),
            (np.array([[True, False]]), ("booleans", "'|b1'")),
            (np.array([[1j]]), ("complex numbers", "'<c16'")),
            (np.array(["2024-01-01"], dtype="M8[D]"), ("dates", "'<M8[D]'")),
            (np.array([1], dtype="m8[s]"), ("time spans", "'<m8[s]'")),
            (np.zeros(3, dtype=[("a", "<f4"), ("b", "<i4")]), ("structured",)),
            (np.zeros((2, 2), dtype=np.longdouble), ("unknown type '<f16'",)),
            (random_array((2, 2), "V2"), ("'|V2'", '"datatype": "BF16"')),
            (random_array((2, 2), "V3"), ("'|V3'",)),
            (np.float32(1.5), ("scalar",)),
        ):
            with self.subTest(words=words):
                self.reject(array, *words)

    def test_two_arrays_in_one_file(self):
        with self.path.open("wb") as file:
            np.save(file, random_array((3, 4), "<f4"))
            np.save(file, random_array((3, 4), "<f4"))
        result = self.dump()
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"it has 224 bytes of data, the header promises 48", result.stderr)

    def test_archive(self):
        with self.path.open("wb") as file:
            np.savez(file, table=random_array((3, 4), "<f4"))
        result = self.dump()
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"zip archive", result.stderr)


if __name__ == "__main__":
    if DUMP_TABLE is None:
        sys.exit(__doc__)
    print("seed", SEED)
    unittest.main()
