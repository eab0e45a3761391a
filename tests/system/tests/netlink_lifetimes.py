"""Sockets that are closed, duplicated, inherited and made by many threads at once: each is its own connection."""

import errno
import os
import resource
import socket
import struct
import threading

ROUTE, XFRM = 0, 6
GETLINK, NEWLINK = 18, 16
REQUEST, ACK = 1, 4
SOL_NETLINK, EXT_ACK = 270, 11


def sock(protocol=ROUTE):
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)


def send(s, seq, kind=GETLINK, body=struct.pack("=BxHiII", 0, 0, 4711, 0, 0)):
    s.send(struct.pack("=IHHII", 16 + len(body), kind, REQUEST | ACK, seq, 0) + body)


def answer(s):
    """The sequence number and the error of the next answer."""
    data = s.recv(65536)
    _, kind, _, seq, _, error = struct.unpack_from("=IHHIIi", data)
    assert kind == 2, kind
    return seq, -error


def ask(s, seq):
    send(s, seq)
    got = answer(s)
    assert got == (seq, errno.ENODEV), got


def closed_socket_frees_its_port():
    before, s = sock(), sock()
    ask(s, 1)
    s.close()
    before.bind((os.getpid(), 0))
    ask(before, 2)
    before.close()


def duplicate_outlives_the_original():
    s = sock()
    ask(s, 1)
    with socket.socket(fileno=os.dup(s.fileno())) as duplicate:
        s.close()
        ask(duplicate, 2)


def child_keeps_its_parents_socket():
    ready, go = os.pipe()
    s = sock()
    ask(s, 1)
    child = os.fork()
    if child == 0:
        os.read(ready, 1)
        ask(s, 77)
        os._exit(0)
    s.close()
    with sock() as other:
        ask(other, 3)
        os.write(go, b"x")
        assert os.waitpid(child, 0)[1] == 0
        ask(other, 4)


def new_socket_has_no_options_of_a_closed_one():
    s = sock()
    s.setsockopt(SOL_NETLINK, EXT_ACK, 1)
    s.setsockopt(SOL_NETLINK, 1, 1)
    ask(s, 1)
    s.close()
    with sock() as t:
        assert t.getsockopt(SOL_NETLINK, EXT_ACK) == 0
        assert t.getsockname() == (0, 0), t.getsockname()


def rights_are_those_at_the_time_of_the_socket():
    child = os.fork()
    if child == 0:
        # Of all three users: CAP_NET_ADMIN is gone from the permitted set, too.
        os.setresuid(65534, 65534, 65534)
        with sock() as s:
            send(s, 9, NEWLINK)
            os._exit(0 if answer(s) == (9, errno.EPERM) else 1)
    assert os.waitpid(child, 0)[1] == 0


def many_threads_use_nearly_all_connections():
    """Eight threads with nearly as many sockets as a process can have, some of which move to other descriptors."""
    asked = []

    def many(number):
        for turn in range(100):
            some = [sock((ROUTE, XFRM)[it % 2]) for it in range(110)]
            low, some = some[0], some[1:]
            some.append(socket.socket(fileno=os.dup(low.fileno())))
            high = some[5].detach()
            some[5] = socket.socket(fileno=os.dup2(high, low.detach()))
            os.close(high)
            for s in [*some[1::4], some[-1]]:
                ask(s, 1000 * number + turn)
            for s in some:
                s.close()
        asked.append(number)

    threads = [threading.Thread(target=many, args=[number]) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(asked) == list(range(8)), asked


resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
closed_socket_frees_its_port()
duplicate_outlives_the_original()
child_keeps_its_parents_socket()
new_socket_has_no_options_of_a_closed_one()
rights_are_those_at_the_time_of_the_socket()
many_threads_use_nearly_all_connections()
print("all as expected")
