"""SAs for CPUs (RFC 9611), by raw netlink of Linux 6.13.

    netlink_cpus.py add DST SPI NEW CPU    adds a copy of an SA under the SPI NEW, for CPU
    netlink_cpus.py ask PRIORITY           asks for an SA for each CPU that sends by an outbound policy of that priority
    netlink_cpus.py listen COUNT           prints the CPU of each of COUNT acquires, `-` for none
"""

import os
import socket
import struct
import sys

NEWSA, GETSA, GETPOLICY, ACQUIRE, UPDPOLICY = 0x10, 0x12, 0x15, 0x17, 0x19
REQUEST, ACK, DUMP = 1, 4, 0x300
LASTUSED, PCPU = 20, 35
SPI_AT, PRIORITY_AT, DIR_AT, FLAGS_AT = 72, 152, 160, 162
SA_LEN, POLICY_LEN, ACQUIRE_LEN = 224, 168, 280
CPU_ACQUIRE = 4


def attributes(payload, fixed):
    """Attributes behind the fixed part: kind and data."""
    at = fixed
    while at + 4 <= len(payload):
        length, kind = struct.unpack_from("=HH", payload, at)
        yield kind, payload[at + 4 : at + length]
        at += (length + 3) & ~3


def packed(pairs):
    text = b""
    for kind, data in pairs:
        text += struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)
    return text


def messages(s):
    data = s.recv(1 << 20)
    while data:
        length, kind = struct.unpack_from("=IH", data)
        yield kind, data[16:length]
        data = data[(length + 3) & ~3 :]


def send(s, kind, flags, body):
    s.send(struct.pack("=IHHII", 16 + len(body), kind, REQUEST | flags, 1, 0) + body)


def dump(s, kind):
    send(s, kind, DUMP, b"\0" * 24)
    found = []
    while True:
        for kind, payload in messages(s):
            if kind == 3:
                return found
            found.append(payload)


def change(s, kind, body):
    send(s, kind, ACK, body)
    ((kind, payload),) = messages(s)
    error = -struct.unpack_from("=i", payload)[0]
    texts = [data.rstrip(b"\0").decode() for kind, data in attributes(payload, 20) if kind == 1] if error else []
    print("ok" if error == 0 else f"{os.strerror(error)}: {' '.join(texts)}")


def netlink(groups=0):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 6)
    s.setsockopt(270, 11, 1)
    s.setsockopt(270, 10, 1)
    s.bind((0, groups))
    return s


def add(dst, spi, new, cpu):
    s = netlink()
    spi, new = int(spi, 0), int(new, 0)

    def is_it(payload):
        return payload[56:60] == socket.inet_aton(dst) and struct.unpack_from("!I", payload, SPI_AT)[0] == spi

    (payload,) = filter(is_it, dump(s, GETSA))
    kept = [(kind, data) for kind, data in attributes(payload, SA_LEN) if kind not in (LASTUSED, PCPU)]
    fixed = bytearray(payload[:SA_LEN])
    struct.pack_into("!I", fixed, SPI_AT, new)
    change(s, NEWSA, bytes(fixed) + packed(kept + [(PCPU, struct.pack("=I", int(cpu)))]))


def ask(priority):
    s = netlink()
    for payload in dump(s, GETPOLICY):
        if struct.unpack_from("=I", payload, PRIORITY_AT)[0] == int(priority) and payload[DIR_AT] == 1:
            fixed = bytearray(payload[:POLICY_LEN])
            fixed[FLAGS_AT] |= CPU_ACQUIRE
            change(s, UPDPOLICY, bytes(fixed) + payload[POLICY_LEN:])


def listen(count):
    s = netlink(1)
    s.settimeout(20)
    print("listening", flush=True)
    for _ in range(int(count)):
        for kind, payload in messages(s):
            assert kind == ACQUIRE, kind
            cpus = [struct.unpack("=I", data)[0] for kind, data in attributes(payload, ACQUIRE_LEN) if kind == PCPU]
            print(*cpus or "-", flush=True)


if __name__ == "__main__":
    {"add": add, "ask": ask, "listen": listen}[sys.argv[1]](*sys.argv[2:])
