"""What a program sees that calls ioctl(SIOCETHTOOL) by itself, of the kernel or of a gateway: errors, what is written where,
what is returned. Of eth0 and tun0; it prints the same of both."""

import ctypes
import errno
import fcntl
import os
import socket
import struct

SIOCETHTOOL = 0x8946
GDRVINFO, GLINK, GSTRINGS, GSTATS, GSSET_INFO = 0x3, 0xA, 0x1B, 0x1D, 0x37
GFEATURES, SFEATURES, GLINKSETTINGS = 0x3A, 0x3B, 0x4C
STATS, FEATURES = 1, 4
# Commands that a veth has and a packet link has not, or the other way round; and resets, which nobody need try.
DIFFER = {0x1, 0x15, 0x20, 0x22, 0x24, 0x33, 0x34, 0x3C, 0x3D, 0x41, 0x4C}

channel = socket.socket()


def call(name, block):
    """What the call returns, or its error; and the block."""
    room = ctypes.create_string_buffer(bytes(block), len(block))
    request = bytearray(struct.pack("16sQ16x", name.encode(), ctypes.addressof(room)))
    try:
        return fcntl.ioctl(channel, SIOCETHTOOL, request), room.raw
    except OSError as error:
        return errno.errorcode.get(error.errno, error.errno), room.raw


def written(name, head, length=8192):
    """What the call returns, up to where it wrote behind `head`, and the block."""
    (first, one), (second, two) = (call(name, head + bytes([fill]) * (length - len(head))) for fill in (0xAA, 0x55))
    assert first == second, (first, second)
    same = [at for at in range(length) if one[at] == two[at]]
    return first, max(same) + 1, one


def words(*all):
    return struct.pack(f"{len(all)}I", *all)


def features(name):
    """The numbers of features by their names."""
    block = call(name, words(GSTRINGS, FEATURES, 0) + bytes(32 * 256))[1]
    count = struct.unpack_from("I", block, 8)[0]
    names = [block[12 + 32 * at : 44 + 32 * at].split(b"\0")[0].decode() for at in range(count)]
    return {name: at for at, name in enumerate(names) if name}


def switch(name, **wanted):
    bits = features(name)
    valid = on = 0
    for feature, state in wanted.items():
        bit = 1 << bits[feature.replace("_", "-")]
        valid |= bit
        on |= bit if state else 0
    halves = [(value >> shift) & 0xFFFFFFFF for shift in (0, 32) for value in (valid, on)]
    return call(name, words(SFEATURES, 2, *halves))[0]


for name in ("eth0", "nosuch"):
    request = bytearray(struct.pack("16sQ16x", name.encode(), 0))
    try:
        fcntl.ioctl(channel, SIOCETHTOOL, request)
        print(name, "done")
    except OSError as error:
        print(name, errno.errorcode[error.errno])

for command in list(range(0x60)) + [0x7FFFFFFF, 0xFFFFFFFF]:
    found = call("eth0", words(command) + bytes(16384))[0] if command not in DIFFER else "-"
    print(hex(command), call("nosuch", words(command) + bytes(16384))[0], found)
for name in ("eth0:1", "eth0" + "x" * 11, ""):
    print(repr(name), call(name, words(GLINK) + bytes(64))[0])

print("driver", written("eth0", words(GDRVINFO))[:2])
print("link", written("eth0", words(GLINK))[:2], call("eth0", words(GLINK, 9))[1] == words(GLINK, 1))
for size in (0, 1, 2, 3, 0x7FFFFFFF, 0xFFFFFFFF):
    returned, end, block = written("eth0", words(GFEATURES, size))
    print("features", size, returned, end, struct.unpack_from("2I", block))
for size in (0, 1, 3, 0xFFFFFFFF):
    print("set features", size, call("eth0", words(SFEATURES, size) + bytes(4096))[0])
print("unknown feature", call("eth0", words(SFEATURES, 2, 1 << 2, 0, 0, 0))[0])
print("never changed", call("eth0", words(SFEATURES, 2, 1 << features("eth0")["vlan-challenged"], 0, 0, 0))[0])
print("not there", switch("eth0", rx_lro=True), switch("eth0", rx_lro=False, rx_gro=True))
print("off", switch("eth0", rx_gro=False), "on", switch("eth0", rx_gro=True))
print("without checksums", switch("eth0", tx_checksum_ip_generic=False), switch("eth0", tx_tcp_segmentation=True))
print("with checksums", switch("eth0", tx_checksum_ip_generic=True), switch("eth0", tx_tcp_segmentation=True))

for mask in (0, 1 << STATS, 1 << FEATURES, 1 << STATS | 1 << FEATURES):
    returned, end, block = written("eth0", words(GSSET_INFO, 0, mask, 0))
    print("sets", mask, returned, end, struct.unpack_from("2I", block, 8))
count = struct.unpack_from("I", call("eth0", words(GSSET_INFO, 0, 1 << STATS, 0) + bytes(64))[1], 16)[0]
for said in (0, count):
    returned, end, block = written("eth0", words(GSTATS, said))
    print("statistics", returned, end == 8 + 8 * count, struct.unpack_from("I", block, 4)[0] == count)
    returned, end, block = written("eth0", words(GSTRINGS, STATS, said))
    print("their names", returned, end == 12 + 32 * count, struct.unpack_from("I", block, 8)[0] == count)
# What kernels do with a number that is wrong changes; none writes more than it says then.
for said in (1, count + 1, 1 << 31, 0xFFFFFFFF):
    returned, end, block = written("eth0", words(GSTATS, said))
    print("statistics of a wrong number", returned, end == 8 + 8 * struct.unpack_from("I", block, 4)[0])
print("no such set", call("eth0", words(GSTRINGS, 77, 0) + bytes(64))[0])

for said in (0, -4, 1, 4, 127, -128):
    head = words(GLINKSETTINGS) + bytes(11) + struct.pack("b", said)
    returned, end, block = written("tun0", head)
    whole = struct.unpack_from("b", block, 15)[0] > 0
    print("settings", returned, (end == 48 + 12 * block[15]) if whole else end, struct.unpack_from("I4B", block, 4) if whole else "")

os.setgid(65534)
os.setuid(65534)
for command in list(range(0x60)) + [0xFFFFFFFF]:
    print("unprivileged", hex(command), call("eth0", words(command) + bytes(16384))[0] == "EPERM", call("nosuch", words(command))[0])
