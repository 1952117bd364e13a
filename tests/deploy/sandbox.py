"""What systemd does to the process of bagserve.service before it starts the program, as far as the
program can run into it: another user without capabilities, a read-only file system but for the
unit's own folders, limits, and the filters of system calls, from the unit and systemd's own lists.

For machines where no systemd runs. Takes root, and libseccomp, which systemd itself uses.
"""

import ctypes
import errno
import os
import pathlib
import re
import resource
import subprocess
import sys

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EQUAL, MASKED_EQUAL = 4, 7
CLONE_NEWNS, MS_BIND, MS_REC_PRIVATE = 0x20000, 4096, 0x4000 | 1 << 18
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, ATTR_RDONLY = 442, -100, 0x8000, 1
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
WRITE_EXECUTE, EXECUTE, SHM_EXECUTE = 2 | 4, 4, 0o100000
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
CAP_SYS_RESOURCE = 1 << 24
NAMESPACES = 0x7E020080  # every CLONE_NEW* flag
LIMITS = (("LimitNOFILE", resource.RLIMIT_NOFILE, 1024), ("LimitMEMLOCK", resource.RLIMIT_MEMLOCK, 8 << 20))

libc = ctypes.CDLL(None, use_errno=True)


class Compare(ctypes.Structure):
    """struct scmp_arg_cmp: what an argument is compared with."""
    _fields_ = [("argument", ctypes.c_uint), ("operation", ctypes.c_int),
                ("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


class Attributes(ctypes.Structure):
    """struct mount_attr."""
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "namespace")]


def check(result, what):
    if result < 0:
        code = ctypes.get_errno() or -result
        raise OSError(code, f"{what}: {os.strerror(code)}")


def read_unit(path):
    """The settings of [Service]: {key: [values]}."""
    settings, section = {}, None
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            settings.setdefault(key, []).append(value)
    return settings


def members(group):
    """The system calls of a group such as @system-service."""
    listed = subprocess.run(["systemd-analyze", "syscall-filter", group], check=True,
                            capture_output=True, text=True).stdout.splitlines()[1:]
    names = [line.strip() for line in listed if line.strip() and not line.strip().startswith("#")]
    return set().union(*(members(name) if name.startswith("@") else {name} for name in names))


def allowed_calls(lines):
    """What the lines of SystemCallFilter allow: the first says that they list what is allowed."""
    allowed = members("@default")
    for line in lines:
        names = set().union(*(members(name) if name.startswith("@") else {name} for name in line.lstrip("~").split()))
        allowed = allowed - names if line.startswith("~") else allowed | names
    return allowed


class Filter:
    """One filter of libseccomp: what happens to calls that no rule names, and rules."""

    def __init__(self, otherwise):
        self.library = ctypes.CDLL("libseccomp.so.2")
        self.library.seccomp_init.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.library.seccomp_init(otherwise))

    def add(self, action, name, *compares):
        number = self.library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # not on this machine
            return
        array = (Compare * max(1, len(compares)))(*compares)
        check(self.library.seccomp_rule_add_array(self.context, ctypes.c_uint32(action), number,
                                                  len(compares), array), name)

    def load(self):
        check(self.library.seccomp_load(self.context), "seccomp_load")


def make_filters(unit):
    """SystemCallFilter, MemoryDenyWriteExecute, RestrictAddressFamilies and RestrictNamespaces."""
    refused = ERRNO | getattr(errno, unit["SystemCallErrorNumber"][-1])
    calls = Filter(refused)
    # The filters themselves are loaded one after the other.
    for name in allowed_calls(unit["SystemCallFilter"]) | {"seccomp"}:
        calls.add(ALLOW, name)
    others = Filter(ALLOW)
    denied = ERRNO | errno.EPERM
    others.add(denied, "mmap", Compare(2, MASKED_EQUAL, WRITE_EXECUTE, WRITE_EXECUTE))
    for name in ("mprotect", "pkey_mprotect"):
        others.add(denied, name, Compare(2, MASKED_EQUAL, EXECUTE, EXECUTE))
    others.add(denied, "shmat", Compare(2, MASKED_EQUAL, SHM_EXECUTE, SHM_EXECUTE))
    others.add(ERRNO | errno.ENOSYS, "clone3")
    for flag in (1 << bit for bit in range(32) if NAMESPACES >> bit & 1):
        others.add(denied, "clone", Compare(0, MASKED_EQUAL, flag, flag))
        others.add(denied, "unshare", Compare(0, MASKED_EQUAL, flag, flag))
    families = {FAMILIES[name] for name in unit["RestrictAddressFamilies"][-1].split()}
    for family in set(range(64)) - families:
        others.add(ERRNO | errno.EAFNOSUPPORT, "socket", Compare(0, EQUAL, family, 0))
    return others, calls


def set_read_only(path, attributes):
    check(libc.syscall(MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), AT_RECURSIVE,
                       ctypes.byref(attributes), ctypes.sizeof(attributes)), f"mount_setattr {path}")


def protect_files(writable):
    """ProtectSystem=strict: all is read-only but these folders."""
    check(libc.unshare(CLONE_NEWNS), "unshare")
    check(libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None), "mount /")
    for path in map(os.fsencode, writable):
        check(libc.mount(path, path, None, MS_BIND, None), f"mount {path}")
    set_read_only("/", Attributes(set=ATTR_RDONLY))
    for path in writable:
        set_read_only(path, Attributes(clear=ATTR_RDONLY))


def may_raise_limits():
    """Containers often may not."""
    status = pathlib.Path("/proc/self/status").read_text()
    return CAP_SYS_RESOURCE & int(re.search(r"CapEff:\s*(\w+)", status)[1], 16) != 0


def set_limits(unit):
    """As the unit says, or systemd's own; no more than this process may set."""
    for key, number, default in LIMITS:
        value = unit.get(key, [default])[-1]
        value = sys.maxsize if value == "infinity" else int(value)
        hard = resource.getrlimit(number)[1]
        if not may_raise_limits() and hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        value = resource.RLIM_INFINITY if value == sys.maxsize else value
        resource.setrlimit(number, (value, value))


def become(user):
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


class Sandbox:
    """Made before the fork: `enter` is for subprocess's preexec_fn, and can only be called once."""

    def __init__(self, unit, user, writable):
        self.unit = unit
        self.user = user
        self.writable = writable
        self.filters = make_filters(unit)

    def enter(self):
        protect_files(self.writable)
        set_limits(self.unit)
        become(self.user)
        os.umask(int(self.unit["UMask"][-1], 8))
        for each in self.filters:
            each.load()
