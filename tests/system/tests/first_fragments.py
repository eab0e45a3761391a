"""First fragments of two datagrams to 10.1.0.1 and of one to fd00::1."""

import socket
import struct

with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
    for number in (7, 8):
        ends = socket.inet_aton("10.1.0.2") + socket.inet_aton("10.1.0.1")
        header = struct.pack("!BBHHHBBH", 0x45, 0, 0, number, 0x2000, 64, 17, 0) + ends
        raw.sendto(header + bytes(800), ("10.1.0.1", 0))
FRAGMENT = 44
with socket.socket(socket.AF_INET6, socket.SOCK_RAW, FRAGMENT) as raw:
    raw.sendto(struct.pack("!BBHI", 17, 0, 1, 7) + bytes(800), ("fd00::1", 0))
