"""The tables that both files of tests ask."""

import numpy as np

from harness import Server, write_json

ITEMS = (np.arange(400, dtype=np.float32).reshape(50, 8) % 37 - 18) / 8
# Neither fits in a double, nor, the last one, in 63 bits.
KEYS = np.array([7, 2**53 + 1, 2**53 + 3, 2**63 + 5], np.uint64)
USERS = np.array([[1, 2], [3, 5], [7, 11], [13, 17]], np.float32)


def save_items(directory):
    """The flag that serves them."""
    np.save(directory / "items.npy", ITEMS)
    return f"items={directory}/items.npy"


def serve_tables(directory):
    """Dense rows, keys, a model whose offsets end with the number of indices, and a collection."""
    save_items(directory)
    users = directory / "users"
    users.mkdir()
    np.save(users / "keys.npy", KEYS)
    np.save(users / "values.npy", USERS)
    config = write_json(directory / "bagserve.json", {"models": [
        {"name": "items", "path": "items.npy"}, {"name": "users", "path": "users"},
        {"name": "ends", "path": "items.npy", "include_last_offset": True},
        {"name": "ranker", "features": [{"name": "history", "model": "items", "reduction": "mean"},
                                        {"name": "user", "model": "users"}]}]})
    return Server("--config", config, "--idle-timeout-s", 70, variables={"BAGSERVE_LOG_LEVEL": "debug"})


def alert(browser):
    return browser.text("main [role=alert]")
