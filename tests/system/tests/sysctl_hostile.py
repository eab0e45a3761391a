"""What a client of the socket may say about files of /proc/sys/net without the library, and what it is told."""

import os
import socket
import struct
import sys

LOOK, READ, LIST, OPEN = range(4)
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))


def call(what, name):
    return struct.pack("=II", 7, what) + name


def connect():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(sys.argv[1])
    connection.settimeout(10)
    return connection


def answered(*datagrams):
    """The errno and the text of the answer to the last, or None if the connection is closed."""
    connection = connect()
    try:
        for datagram in datagrams:
            connection.send(datagram)
            got = connection.recv(1 << 17)
    except OSError:
        return None
    return (struct.unpack("=i", got[:4])[0], got[8:]) if got else None


def expect(want, *datagrams):
    got = answered(*datagrams)
    assert got == want, (datagrams, got, want)


def told(file):
    """What has come of all that was written to an open file, of which the first that failed is told."""
    reader, writer = os.pipe()
    socket.send_fds(file, [b""], [writer])
    os.close(writer)
    answer = os.read(reader, 8)
    os.close(reader)
    return struct.unpack("=i", answer[:4])[0]


TIME = b"ipv4/ipfrag_time"
expect((0, b"30\n"), call(READ, TIME))
expect((0, b""), call(LOOK, TIME))
expect((0, b"dcore\0dfatpath\0dipv4\0dipv6\0dvrf\0"), call(LIST, b""))
expect((0, b"dipv6\0dvrf\0"), call(LIST, b"\0ipv4"))
expect((0, b""), call(LIST, b"\0" + b"z" * 4000))
for name in [b"x", b"/", b"ipv4/", b"/ipv4", b"../ipv4", b"ipv4//ipfrag_time", b"\xff", b"a" * 4096, b"/" * 4096, b"ipv4/conf/\xc3"]:
    for what in [LOOK, READ, LIST, OPEN]:
        expect((2, b""), call(what, name))
expect((21, b""), call(READ, b"ipv4"))
expect((20, b""), call(LIST, TIME))
expect((21, b""), call(OPEN, b"ipv4/conf"))
expect((13, b""), call(OPEN, b"ipv4/conf/all/mc_forwarding"))
expect((13, b""), call(READ, b"ipv4/route/flush"))
# Who breaks the rules is left.
for bad in [call(4, TIME), call(READ, b"a" * 4097), struct.pack("=I", 7), call(LOOK, TIME) + b"b" * 70000, b""]:
    if bad:
        expect(None, bad)
expect(None, call(READ, TIME), call(READ, TIME))
# A netlink socket reads, and becomes no file.
hello = struct.pack("=II", 1, 0)
expect((0, b"30\n"), hello + call(READ, TIME), call(READ, TIME))
expect((2, b""), hello + call(READ, TIME), call(LOOK, b"x"))
expect(None, hello + call(OPEN, TIME))
# What stands in an open file is text, whatever it looks like; nobody hears of it who does not ask.
if os.getuid() == 0:
    files = [connect() for _ in range(200)]
    for file in files:
        file.send(call(OPEN, TIME))
        assert file.recv(100) == bytes(8)
        file.send(call(READ, TIME))
        file.send(struct.pack("=II", 1, 0))
        file.send(b"\xff" * 60000)
    expect((0, b"30\n"), call(READ, TIME))
    for at, file in enumerate(files):
        file.send(b"%d" % (at + 1))
        file.send(b"1000")
        # Then it has been read.
        assert [told(file), told(file)] == [22, 0]
        file.close()
    expect((0, b"200\n"), call(READ, TIME))
else:
    expect((13, b""), call(OPEN, TIME))
    expect(None, call(OPEN, TIME), b"7")
    expect((0, b"30\n"), call(READ, TIME))
print("all as expected")
