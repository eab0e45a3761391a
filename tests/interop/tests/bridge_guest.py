"""Traffic of a guest of a bridge, both ways and checked: `serve ADDR...`, or `ask ADDR BYTES`, `stream ADDR BYTES`, `keep ADDR SECONDS`.

A TCP stream has its length first, then that many bytes, which come back; the sender compares their SHA-256. Datagrams come back as they
are. `stream` has no datagrams. `keep` sends one stream in small parts for that time, says that the first has come back, and
how long the longest part was under way.
"""

import hashlib
import os
import selectors
import socket
import struct
import sys
import threading
import time

PORT = 5000
LENGTHS = (1, 100, 1400, 1473, 4000, 9000, 30000)


def family(addr):
    return socket.AF_INET6 if ":" in addr else socket.AF_INET


def read(stream, length):
    digest = hashlib.sha256()
    while length:
        part = stream.recv(min(length, 1 << 18))
        if not part:
            raise EOFError(f"{length} bytes are missing")
        digest.update(part)
        length -= len(part)
        yield part, digest


def echo(stream):
    with stream:
        while length := stream.recv(8, socket.MSG_WAITALL):
            parts = [part for part, _ in read(stream, struct.unpack("!Q", length)[0])]
            for part in parts:
                stream.sendall(part)


def serve(addrs):
    wakes = selectors.DefaultSelector()
    for addr in addrs:
        stream = socket.create_server((addr, PORT), family=family(addr), backlog=64)
        datagrams = socket.socket(family(addr), socket.SOCK_DGRAM)
        datagrams.bind((addr, PORT))
        wakes.register(stream, selectors.EVENT_READ, True)
        wakes.register(datagrams, selectors.EVENT_READ, False)
    while True:
        for key, _ in wakes.select():
            if key.data:
                threading.Thread(target=echo, args=(key.fileobj.accept()[0],), daemon=True).start()
            else:
                data, peer = key.fileobj.recvfrom(65536)
                key.fileobj.sendto(data, peer)


def stream_both_ways(addr, length):
    data = os.urandom(1 << 20) * -(-length >> 20)
    with socket.create_connection((addr, PORT), 10) as stream:
        stream.settimeout(30)
        stream.sendall(struct.pack("!Q", length) + data[:length])
        digest = None
        for _, digest in read(stream, length):
            pass
    assert digest.digest() == hashlib.sha256(data[:length]).digest(), "other bytes came back"


def ask(addr, length):
    stream_both_ways(addr, length)
    with socket.socket(family(addr), socket.SOCK_DGRAM) as datagrams:
        datagrams.connect((addr, PORT))
        datagrams.settimeout(1)
        for length in LENGTHS * 5:
            sent = os.urandom(length)
            for _ in range(5):
                datagrams.send(sent)
                try:
                    got = datagrams.recv(65536)
                    break
                except TimeoutError:
                    pass
            else:
                raise TimeoutError(f"no datagram of {length} bytes came back")
            assert got == sent, f"another datagram of {length} bytes came back"


def keep(addr, seconds):
    until, longest, parts = time.monotonic() + seconds, 0, 0
    with socket.create_connection((addr, PORT), 10) as stream:
        stream.settimeout(30)
        while (start := time.monotonic()) < until:
            sent = os.urandom(20000)
            stream.sendall(struct.pack("!Q", len(sent)) + sent)
            got = b"".join(part for part, _ in read(stream, len(sent)))
            assert got == sent, "other bytes came back"
            longest, parts = max(longest, time.monotonic() - start), parts + 1
            if parts == 1:
                print("begun", flush=True)
    print(f"{parts} parts, the longest {longest:.2f} s")


if sys.argv[1] == "serve":
    serve(sys.argv[2:])
elif sys.argv[1] == "ask":
    ask(sys.argv[2], int(sys.argv[3]))
elif sys.argv[1] == "stream":
    stream_both_ways(sys.argv[2], int(sys.argv[3]))
else:
    keep(sys.argv[2], float(sys.argv[3]))
