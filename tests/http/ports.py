"""Ports for servers that have to be told theirs."""

import contextlib
import secrets
import socket


def free_port():
    """One that nobody listened on a moment ago, of those that no outgoing connection is given."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
