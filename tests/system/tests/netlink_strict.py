"""Refusals of requests that only look something up, by a socket that asks for strict checks (NETLINK_GET_STRICT_CHK) and
one that does not; on the kernel or under `fatpath exec`: it prints the same on both. There is a link eth0, which is
up and has 10.1.0.1/24 and fd00:1::1/64."""

import errno
import socket
import struct

ERROR, DONE = 2, 3
GETROUTE = 26
REQUEST, ACK, DUMP, CAPPED, ACK_TLVS = 1, 4, 0x300, 0x100, 0x200
SOL_NETLINK, CAP_ACK, EXT_ACK, GET_STRICT_CHK = 270, 10, 11, 12
V4, V6 = socket.AF_INET, socket.AF_INET6


def attr(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def answer(strict, kind, flags, body):
    """How the request ends: the error and its text, or the number of objects that are told of."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as nl:
        nl.settimeout(10)
        nl.setsockopt(SOL_NETLINK, EXT_ACK, 1)
        nl.setsockopt(SOL_NETLINK, GET_STRICT_CHK, strict)
        nl.send(struct.pack("=IHHII", 16 + len(body), kind, flags | REQUEST | ACK, 1, 0) + body)
        told = 0
        while True:
            data = nl.recv(1 << 16)
            while data:
                length, kind, flags = struct.unpack_from("=IHH", data)
                message, data = data[16:length], data[(length + 3) & ~3 :]
                if kind not in (ERROR, DONE):
                    told += 1
                    continue
                (number,) = struct.unpack_from("=i", message)
                if kind == DONE or flags & CAPPED:
                    tlvs = message[4 if kind == DONE else 20 :]
                else:
                    tlvs = message[4 + (struct.unpack_from("=I", message, 4)[0] + 3 & ~3) :]
                text = offset = None
                while flags & ACK_TLVS and len(tlvs) >= 4:
                    size, what = struct.unpack_from("=HH", tlvs)
                    if what == 1:
                        text = tlvs[4:size].rstrip(b"\0").decode()
                    elif what == 2:
                        (offset,) = struct.unpack_from("=I", tlvs, 4)
                    tlvs = tlvs[(size + 3) & ~3 :]
                if number == 0:
                    return f"told {told > 0}"
                return f"{errno.errorcode[-number]} {text!r} {offset}"


def rtmsg(family, dst_len=0, src_len=0, tos=0, table=0, protocol=0, scope=0, kind=0, flags=0):
    return struct.pack("=8BI", family, dst_len, src_len, tos, table, protocol, scope, kind, flags)


def show(what, kind, flags, body):
    for strict in (1, 0):
        print(what, "strict" if strict else "loose", answer(strict, kind, flags, body))


index = struct.pack("=i", socket.if_nametoindex("eth0"))
for family, name in ((V4, "ipv4"), (V6, "ipv6")):
    far = socket.inet_pton(family, "10.1.0.7" if family == V4 else "fd00:1::7")
    width = 8 * len(far)
    to_far = attr(1, far)

    def get(what, body, rest=b"", flags=0):
        show(f"{name} route get, {what}:", GETROUTE, flags, body + rest)

    get("short header", rtmsg(family)[:8])
    get("right", rtmsg(family, width), to_far)
    get("prefix", rtmsg(family, width - 1), to_far)
    get("destination without length", rtmsg(family), to_far)
    get("source without length", rtmsg(family, width), to_far + attr(2, far))
    get("source length alone", rtmsg(family, width, width), to_far)
    for field in ("table", "protocol", "scope", "kind"):
        get(field, rtmsg(family, width, **{field: 254}), to_far)
    get("tos", rtmsg(family, width, tos=16), to_far)
    for bit in range(32):
        get(f"flag {bit}", rtmsg(family, width, flags=1 << bit), to_far)
    sizes = {1: len(far), 2: len(far), 5: len(far), 7: len(far), 8: 0, 9: 8, 20: 1, 21: 2, 22: 0, 26: 1, 28: 2, 29: 2}
    data = {kind: bytes(sizes.get(kind, 4)) for kind in range(1, 31)} | {1: far, 4: index, 27: b"\6"}
    for kind in (2, *range(4, 31)):
        get(f"attribute {kind}", rtmsg(family, width), to_far + attr(kind, data[kind]))
    for protocol in (1, 17, 47, 58):
        get(f"protocol {protocol}", rtmsg(family, width), to_far + attr(27, bytes([protocol])))
    get("unknown attribute", rtmsg(family, width), to_far + attr(77, far[:4]))
    get("tail", rtmsg(family, width), to_far + b"\1\2")
    get("no such device", rtmsg(family, width), to_far + attr(4, struct.pack("=i", 12345)))

    def dump(what, body, rest=b""):
        show(f"{name} route dump, {what}:", GETROUTE, DUMP, body + rest)

    dump("short header", rtmsg(family)[:4])
    dump("right", rtmsg(family))
    dump("destination length", rtmsg(family, 8))
    dump("source length", rtmsg(family, 0, 8))
    dump("tos", rtmsg(family, tos=4))
    dump("scope", rtmsg(family, scope=253))
    dump("protocol", rtmsg(family, protocol=254))
    dump("type", rtmsg(family, kind=1))
    for bit in range(32):
        dump(f"flag {bit}", rtmsg(family, flags=1 << bit))
    for kind in (1, 2, 3, *range(5, 15), *range(16, 31)):
        dump(f"attribute {kind}", rtmsg(family), attr(kind, data[kind]))
    dump("device", rtmsg(family), attr(4, index))
    dump("no such device", rtmsg(family), attr(4, struct.pack("=i", 12345)))
    dump("no such table", rtmsg(family), attr(15, struct.pack("=I", 54321)))
    dump("unknown attribute", rtmsg(family), attr(77, far[:4]))
    dump("tail", rtmsg(family), b"\1\2")

dump("of any family, table", rtmsg(0), attr(15, struct.pack("=I", 54321)))
