"""Meets the server at an address: datagrams of all sizes, a stream, and ports where nothing listens."""

import errno
import socket
import sys
import time

host = sys.argv[1]
family = socket.AF_INET6 if ":" in host else socket.AF_INET
deadline = time.monotonic() + 20


def echoed(length):
    """A datagram may be lost while the server starts, or the neighbour is resolved."""
    sender = socket.socket(family, socket.SOCK_DGRAM)
    sender.settimeout(0.5)
    data = bytes(n % 251 for n in range(length))
    while time.monotonic() < deadline:
        sender.sendto(data, (host, 9000))
        try:
            return sender.recv(70000) == data
        except (TimeoutError, ConnectionRefusedError):
            time.sleep(0.05)
    return False


def refused(kind, port):
    sender = socket.socket(family, kind)
    sender.settimeout(5)
    try:
        sender.connect((host, port))
        sender.send(b"x")
        sender.recv(1)
    except OSError as error:
        return error.errno == errno.ECONNREFUSED
    return False


for length in (0, 10, 1400, 1473, 8000, 60000, 65400):
    if not echoed(length):
        sys.exit(f"a datagram of {length} bytes is not returned")
stream = socket.create_connection((host, 9001), 10)
for _ in range(64):
    stream.sendall(bytes(1 << 20))
stream.shutdown(socket.SHUT_WR)
if (count := stream.recv(100)) != str(64 << 20).encode():
    sys.exit(f"of 64 MiB {count} have arrived")
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    if not refused(kind, 9999):
        sys.exit(f"{kind}: not refused")
print("all as expected")
