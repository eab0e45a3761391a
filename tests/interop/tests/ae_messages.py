"""Asks for SAs' sequence numbers and sets them (GETAE, NEWAE), and prints what is answered and what listeners hear.

Not printed: words of errors, which came with later kernels; padding, which not every processor needs; and times.
"""
import socket
import struct

ROUTE_ERROR, NEWAE, GETAE = 2, 0x1E, 0x1F
REQUEST, ACK, REPLACE = 1, 4, 0x100
LTIME, REPLAY, REPLAY_THRESH, MARK, ESN, PAD = 9, 10, 11, 21, 23, 27
THRESHOLDS = 1 | 8
AEVENTS = 5


def attr(kind, layout, *words):
    data = struct.pack(layout, *words)
    return struct.pack("HH", 4 + len(data), kind) + data


def sa(spi, flags=0, dst="192.0.2.2", proto=50):
    """struct xfrm_aevent_id"""
    family = socket.AF_INET6 if ":" in dst else socket.AF_INET
    dst = socket.inet_pton(family, dst).ljust(16, b"\0")
    return dst + struct.pack(">I", spi) + struct.pack("HBB16xII", family, proto, 0, flags, 0)


def esn(words, oseq, seq, oseq_hi, seq_hi, window, *bitmap):
    return attr(ESN, "6I%dI" % words, words, oseq, seq, oseq_hi, seq_hi, window, *bitmap)


def shown(message):
    length, kind, flags = struct.unpack("IHH", message[:8])
    body = message[16:length]
    if kind == ROUTE_ERROR:
        return "error %d" % struct.unpack("i", body[:4])
    lines, at = ["type %#x flags %#x %s" % (kind, flags, body[:48].hex())], 48
    while at + 4 <= len(body):
        size, attribute = struct.unpack("HH", body[at:at + 4])
        data = body[at + 4:at + size]
        data = data[:16] if attribute == LTIME else data
        if attribute != PAD:
            lines.append("  attribute %d %s" % (attribute, data.hex()))
        at += size + 3 & ~3
    return "\n".join(lines)


def opened():
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 6)
    netlink.bind((0, 0))
    netlink.settimeout(0.3)
    return netlink


asks, hears = opened(), opened()
hears.setsockopt(270, 1, AEVENTS)

for name, kind, flags, payload in [
    ("get", GETAE, 0, sa(0x1000)),
    ("get, acknowledged", GETAE, ACK, sa(0x1000, 4)),
    ("get one with ESN", GETAE, 0, sa(0x1001, 4)),
    ("get one with a mark", GETAE, 0, sa(0x1002) + attr(MARK, "2I", 5, 0xFF)),
    ("get one with a mark by none", GETAE, 0, sa(0x1002)),
    ("get one that is not there", GETAE, 0, sa(0x1099)),
    ("get one of another protocol", GETAE, 0, sa(0x1000, proto=51)),
    ("get, too short", GETAE, 0, sa(0x1000)[:40]),
    ("get, IPv6", GETAE, 0, sa(0x1003, dst="2001:db8::2")),
    ("get one that is yet to come", GETAE, 0, sa(0x7000)),
    ("set nothing", NEWAE, ACK | REPLACE, sa(0x1000)),
    ("set without saying that it replaces", NEWAE, ACK, sa(0x1000) + attr(REPLAY, "3I", 1, 2, 3)),
    ("set numbers", NEWAE, ACK | REPLACE, sa(0x1000) + attr(REPLAY, "3I", 100, 200, 3)),
    ("get them", GETAE, 0, sa(0x1000)),
    ("set what was received back", NEWAE, ACK | REPLACE, sa(0x1000) + attr(REPLAY, "3I", 100, 150, 1)),
    ("get that", GETAE, 0, sa(0x1000)),
    ("set counts", NEWAE, ACK | REPLACE, sa(0x1000) + attr(LTIME, "4Q", 1000, 10, 0, 0)),
    ("get those", GETAE, 0, sa(0x1000)),
    ("get when they are told", GETAE, 0, sa(0x1000, THRESHOLDS)),
    ("set after how many packets", NEWAE, ACK | REPLACE, sa(0x1000) + attr(REPLAY_THRESH, "I", 9)),
    ("set that of one that is yet to come", NEWAE, ACK | REPLACE, sa(0x7000) + attr(REPLAY_THRESH, "I", 9)),
    ("get after how many", GETAE, 0, sa(0x1000, THRESHOLDS)),
    ("get after how many of one that is yet to come", GETAE, 0, sa(0x7000, THRESHOLDS)),
    ("set numbers, too short", NEWAE, ACK | REPLACE, sa(0x1000) + attr(REPLAY, "2I", 100, 200)),
    ("set ESN of one without", NEWAE, ACK | REPLACE, sa(0x1000) + esn(1, 300, 9, 0, 0, 32, 0)),
    ("get one without, unchanged", GETAE, 0, sa(0x1000)),
    ("set numbers of one with ESN", NEWAE, ACK | REPLACE, sa(0x1001) + attr(REPLAY, "3I", 9, 9, 9)),
    ("get one with ESN, unchanged", GETAE, 0, sa(0x1001)),
    ("set ESN", NEWAE, ACK | REPLACE, sa(0x1001) + esn(2, 7, 70, 1, 2, 64, 5, 0)),
    ("get ESN", GETAE, 0, sa(0x1001)),
    ("set ESN of another length", NEWAE, ACK | REPLACE, sa(0x1001) + esn(1, 7, 70, 1, 2, 32, 5)),
    ("set ESN of another window", NEWAE, ACK | REPLACE, sa(0x1001) + esn(2, 7, 70, 1, 2, 32, 5, 0)),
    ("get that window", GETAE, 0, sa(0x1001)),
    ("set one that is not there", NEWAE, ACK | REPLACE, sa(0x1099) + attr(REPLAY, "3I", 1, 2, 3)),
    ("set one that is yet to come", NEWAE, ACK | REPLACE, sa(0x7000) + attr(REPLAY, "3I", 1, 2, 3)),
    ("set one with a mark", NEWAE, ACK | REPLACE, sa(0x1002) + attr(REPLAY, "3I", 1, 2, 0) + attr(MARK, "2I", 5, 0xFF)),
]:
    print(name)
    asks.send(struct.pack("IHHII", 16 + len(payload), kind, REQUEST | flags, 7, 0) + payload)
    for netlink, heard in [(asks, ""), (hears, "heard ")]:
        try:
            while True:
                print(heard + shown(netlink.recv(8192)))
        except TimeoutError:
            pass
