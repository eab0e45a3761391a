"""A user who may only look sends the gateway descriptors, more than it has room for. Root is served all the same.

Arguments: the netlink socket, the gateway's process number. Prints how many descriptors the gateway has more in the end.
"""

import array
import os
import signal
import socket
import struct
import sys
import time
import traceback

USER = 65534
RIGHTS = 253
HELLO = struct.pack("=II", 1, 0)
LOOK = struct.pack("=II", 7, 0) + b"ipv4/ipfrag_time"


def lingering(listener):
    """A connection to `listener` whose last close takes an hour, unless it is by the exit of a process."""
    near = socket.socket()
    near.connect(listener.getsockname())
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    near.setblocking(False)
    try:
        while True:
            near.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    return near


def connect():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(20)
    connection.connect(sys.argv[1])
    return connection


def in_a_connection(near):
    """A socket that has another one in a datagram that nobody has received."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    socket.send_fds(one, [b"x"], [near.fileno()])
    return other


def send(connection, choose):
    """Sends the descriptors that `choose` makes of a lingering connection, and returns the other end of that. A process of its
    own has them: if the gateway is faster, the last close is that by its exit."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sender = os.fork()
    if sender == 0:
        try:
            near = lingering(listener)
            sent = choose(near)
            rights = array.array("i", [fd.fileno() for fd in sent])
            connection.sendmsg([HELLO], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except (BrokenPipeError, ConnectionResetError):
            pass  # It was one too many.
        finally:
            os._exit(0)
    far = listener.accept()[0]
    os.waitpid(sender, 0)
    return far


def descriptors():
    return len(os.listdir(f"/proc/{gateway}/fd"))


def hostile(reader, ready):
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    null, kept = open("/dev/null"), []
    # To a gateway that runs: 17 connections, each with as many as a datagram may have, one of which takes an hour to close.
    for round in range(17):
        connection = connect()
        kept.append(send(connection, lambda near: [in_a_connection(near)] + [null] * (RIGHTS - 1)))
        connection.close()
    os.write(ready, b".")
    # To one that is stopped, so that all of it is there before the first is accepted.
    assert os.read(reader, 1) == b"."
    for round in range(100):
        connection = connect()
        kept.append((connection, send(connection, lambda near: [near])))
    os.write(ready, b".")
    time.sleep(120)


def asked_as_root():
    before, connection = time.monotonic(), connect()
    connection.send(LOOK)
    assert connection.recv(100)[:4] == bytes(4)
    connection.close()


gateway = int(sys.argv[2])
before = descriptors()
(ours, their_ready), (their_go, go) = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    try:
        hostile(their_go, their_ready)
    except BaseException:
        traceback.print_exc()
    os._exit(1)
os.close(their_ready)
try:
    assert os.read(ours, 1) == b"."
    asked_as_root()
    os.kill(gateway, signal.SIGSTOP)
    os.write(go, b".")
    assert os.read(ours, 1) == b"."
    os.kill(gateway, signal.SIGCONT)
    asked_as_root()
    # All that could be refused was, but for one descriptor of each connection that there may be of a user.
    deadline = time.monotonic() + 20
    while descriptors() - before > 40 and time.monotonic() < deadline:
        time.sleep(0.05)
    print(descriptors() - before)
finally:
    os.kill(gateway, signal.SIGCONT)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
