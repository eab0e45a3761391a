"""Whoever may only look sends sockets that take a minute to close. Who may change the gateway is answered meanwhile."""

import os
import signal
import socket
import struct
import sys
import time
import traceback

USER = 65534
HELLO = struct.pack("=II", 1, 0)
LOOK = struct.pack("=II", 7, 0) + b"ipv4/ipfrag_time"


def lingering():
    """A connection that is closed when all it has sent has been read, which nobody does; and its other end."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    near = socket.socket()
    near.connect(listener.getsockname())
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    near.setblocking(False)
    try:
        while True:
            near.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    return near, listener.accept()[0]


def connect():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(sys.argv[1])
    connection.settimeout(10)
    return connection


def ticks():
    """Hundredths of a second for which the gateway has worked."""
    with open(f"/proc/{gateway}/stat") as stat:
        return sum(int(field) for field in stat.read().rsplit(")", 1)[1].split()[11:13])


def hostile(ready):
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    kept = []
    for _ in range(3):
        for what in ["alone", "behind another", "unread", "behind nothing"]:
            (near, far), connection = lingering(), connect()
            (reader, writer), fds = os.pipe(), [near.fileno()]
            if what == "unread":
                # This is what the connection is closed for.
                connection.send(b"bad")
            if what == "behind nothing":
                # It is closed for this as well, as if it had ended.
                connection.send(b"")
            if what == "behind another":
                fds.insert(0, writer)
            socket.send_fds(connection, [HELLO], fds)
            kept.append(far)
            near.close()
            os.close(reader)
            os.close(writer)
            connection.close()
    os.write(ready, b".")
    time.sleep(60)


# Nothing is received before all is sent: who closes a socket last is who waits.
gateway = int(sys.argv[2])
os.kill(gateway, signal.SIGSTOP)
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    try:
        hostile(writer)
    except BaseException:
        traceback.print_exc()
    os._exit(1)
os.close(writer)
try:
    assert os.read(reader, 1) == b"."
    os.kill(gateway, signal.SIGCONT)
    time.sleep(0.2)
    for _ in range(3):
        before, connection = time.monotonic(), connect()
        connection.send(LOOK)
        assert connection.recv(100)[:4] == bytes(4)
        assert time.monotonic() - before < 5
        connection.close()
    # Nor does anybody look again and again at what is not closed yet.
    before = ticks()
    time.sleep(1)
    assert ticks() - before < 30
finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print("all as expected")
