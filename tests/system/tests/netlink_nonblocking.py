"""A receive that does not wait finds the answer to what was sent before: Linux has it queued when send(2) returns."""

import os
import select
import signal
import socket
import struct
import time

GETLINK, NEWROUTE = 18, 24
REQUEST, ACK, DUMP = 1, 4, 0x300
ERROR, DONE = 2, 3
ROUNDS = 200


def sock(blocking=False, groups=0):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.bind((0, groups))
    s.setblocking(blocking)
    return s


def send(s, kind, flags):
    body = struct.pack("=BxHiII", 0, 0, 0, 0, 0) if kind == GETLINK else struct.pack("=BBBBBBBBI", 2, *[0] * 8)
    s.send(struct.pack("=IHHII", 16 + len(body), kind, REQUEST | flags, 1, 0) + body)


def kind(data):
    return struct.unpack_from("=IH", data)[1]


def waited(s, flags=0):
    """Seconds until a receive finds nothing."""
    start = time.monotonic()
    try:
        data = s.recv(65536, flags)
    except BlockingIOError:
        return time.monotonic() - start
    raise AssertionError(data)


def is_empty(s, flags=0):
    return waited(s, flags) < 4


def answers_are_there():
    for _ in range(ROUNDS):
        with sock() as s:
            send(s, NEWROUTE, ACK)
            assert kind(s.recv(65536)) == ERROR
            assert is_empty(s)
        with sock() as s:
            send(s, GETLINK, DUMP)
            while kind(s.recv(65536)) != DONE:
                pass
            assert is_empty(s)


def blocking_socket_does_not_wait_with_dontwait():
    for _ in range(ROUNDS):
        with sock(blocking=True) as s, socket.socket(fileno=os.dup(s.fileno())) as other:
            send(s, GETLINK, DUMP)
            assert kind(other.recv(65536, socket.MSG_DONTWAIT | socket.MSG_PEEK)) != DONE
            while kind(other.recv(65536, socket.MSG_DONTWAIT)) != DONE:
                pass
            assert is_empty(other, socket.MSG_DONTWAIT)


def events_are_not_waited_for():
    with sock(groups=1) as listener, sock() as s:
        assert is_empty(listener)
        # A request that nothing answers.
        send(s, 0, 0)
        assert is_empty(s)


def gateway_that_hangs_is_not_waited_for_for_ever():
    with sock() as s:
        send(s, GETLINK, DUMP)
        gateway = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        while kind(s.recv(65536)) != DONE:
            pass
        os.kill(gateway, signal.SIGSTOP)
        try:
            while open(f"/proc/{gateway}/stat").read().rsplit(")", 1)[1].split()[0] != "T":
                time.sleep(0.01)
            send(s, GETLINK, DUMP)
            assert 4 < waited(s) < 30
            assert is_empty(s), "what was waited for once is not waited for again"
        finally:
            os.kill(gateway, signal.SIGCONT)
        assert select.select([s], [], [], 10)[0] == [s]
        assert kind(s.recv(65536)) != DONE


answers_are_there()
blocking_socket_does_not_wait_with_dontwait()
events_are_not_waited_for()
gateway_that_hangs_is_not_waited_for_for_ever()
print("all as expected")
