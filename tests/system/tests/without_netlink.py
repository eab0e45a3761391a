"""Runs a program whose netlink sockets cannot be made: `ethtool` then asks by ioctl, as it does on a gateway."""

import ctypes
import os
import struct
import sys

AF_NETLINK, EAFNOSUPPORT = 16, 97
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
# x86-64: socket(2) is 41. A `struct seccomp_data` has the call's number at 0, and its first argument at 16.
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
FILTER = [
    (LOAD, 0, 0, 0),
    (IF_EQUAL, 0, 3, 41),
    (LOAD, 0, 0, 16),
    (IF_EQUAL, 0, 1, AF_NETLINK),
    (RETURN, 0, 0, 0x00050000 | EAFNOSUPPORT),
    (RETURN, 0, 0, 0x7FFF0000),
]


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in FILTER))
program = Program(len(FILTER), ctypes.addressof(instructions))
libc = ctypes.CDLL(None, use_errno=True)
for call in ((PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))):
    if libc.prctl(*call, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[1], sys.argv[1:])
