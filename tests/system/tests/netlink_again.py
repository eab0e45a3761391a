"""Sockets that follow each other: the next one may be the last one's connection, and must know nothing of it."""

import errno
import os
import resource
import select
import socket
import stat
import struct
import subprocess
import threading

ROUTE, XFRM = 0, 6
GETLINK, GETSA, NEWLINK = 18, 18, 16
REQUEST, ACK = 1, 4
SOL_NETLINK, EXT_ACK = 270, 11
# Where a closed socket waits.
SPARE = 1000
SIZES = [socket.SO_RCVBUF, socket.SO_SNDBUF]


def sock(protocol=ROUTE):
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)


def send(s, seq, kind=GETLINK, body=struct.pack("=BxHiII", 0, 0, 4711, 0, 0)):
    s.send(struct.pack("=IHHII", 16 + len(body), kind, REQUEST | ACK, seq, 0) + body)


def answer(s):
    """The sequence number, the error, and the flags of the next answer."""
    data = s.recv(65536)
    _, kind, flags, seq, _, error = struct.unpack_from("=IHHIIi", data)
    assert kind == 2, kind
    return seq, -error, flags


def ask(s, seq):
    send(s, seq)
    got = answer(s)
    assert got[:2] == (seq, errno.ENODEV), got
    return got


def is_same(before, protocol=ROUTE):
    """Whether a socket that has asked, and with which `before` was done something, is the next one; which is as new."""
    s = sock()
    ask(s, 1)
    before(s)
    inode = os.fstat(s.fileno()).st_ino
    s.close()
    t = sock(protocol)
    assert not select.select([t], [], [], 0)[0], "nothing was asked"
    assert t.getsockopt(SOL_NETLINK, EXT_ACK) == 0
    if protocol == ROUTE:
        assert t.getsockname() == (0, 0), t.getsockname()
        ask(t, 2)
        assert t.getsockname()[0] != 0
        assert [t.getsockopt(socket.SOL_SOCKET, size) for size in SIZES] == usual, "as new ones have"
    else:
        send(t, 2, GETSA, bytes(20) + struct.pack("=HBx", socket.AF_INET, 50))
        got = answer(t)
        assert got[:2] == (2, errno.ESRCH), got
    same = os.fstat(t.fileno()).st_ino == inode
    t.close()
    return same


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def nothing(s):
    pass


def with_duplicate(s):
    kept.append(os.dup(s.fileno()))


def with_question(s):
    send(s, 7)


def in_group(s):
    s.setsockopt(SOL_NETLINK, 1, 1)


def was_in_group(s):
    s.setsockopt(SOL_NETLINK, 1, 1)
    s.setsockopt(SOL_NETLINK, 2, 1)


def in_epoll(s):
    epoll.register(s.fileno(), select.EPOLLIN)


def with_child(s):
    """The child goes on with the socket when its parent has another one."""
    ready, go = os.pipe()
    done, told = os.pipe()
    if os.fork() == 0:
        os.read(ready, 1)
        ask(s, 77)
        os.write(told, b"x")
        os._exit(0)
    kept.extend([go, done])


def child_goes_on():
    os.write(kept[-2], b"x")
    assert os.read(kept[-1], 1) == b"x"
    assert os.wait()[1] == 0


def sent_on(s):
    a, b = socket.socketpair()
    socket.send_fds(a, [b"x"], [s.fileno()])
    kept.append((a, b))


def as_childs(s):
    actions = [(os.POSIX_SPAWN_DUP2, s.fileno(), 9)]
    os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=actions), 0)


def with_options(s):
    s.setsockopt(SOL_NETLINK, EXT_ACK, 1)
    ask(s, 3)


def with_sizes(s):
    for size in SIZES:
        s.setsockopt(socket.SOL_SOCKET, size, 32768)


def with_program(s):
    subprocess.run(["true"], check=True)


def as_another(s):
    os.seteuid(65534)


def main():
    is_same(nothing)
    for before in [nothing, with_options, with_sizes]:
        assert is_same(before), before
    assert is_same(nothing, XFRM), "of another protocol"
    assert is_same(nothing)
    particular = [with_duplicate, with_question, in_group, was_in_group, in_epoll, sent_on]
    particular += [lambda s: s.setblocking(False) or s.setblocking(True)]
    particular += [lambda s: s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 9, 0))]
    particular += [lambda s: s.connect((0, 1)), lambda s: os.set_inheritable(s.fileno(), True)]
    particular += [as_childs]
    for number, before in enumerate(particular):
        assert not is_same(before), (number, before)
        assert is_same(nothing), (number, before)
    assert not epoll.poll(0), "its socket is closed"
    with socket.socket(fileno=kept[0]) as duplicate:
        ask(duplicate, 5)

    assert not is_same(with_child)
    child_goes_on()
    assert is_same(nothing)
    is_same(with_program)
    assert is_same(nothing)

    # Who is somebody else by now has that one's rights.
    s = sock()
    ask(s, 8)
    os.seteuid(65534)
    s.close()
    assert not is_open(SPARE), "nobody has root's connection"
    os.seteuid(0)
    assert not is_same(as_another)
    s = sock()
    send(s, 9, NEWLINK)
    assert answer(s)[:2] == (9, errno.EPERM)
    s.close()
    s = sock()
    ask(s, 10)
    s.close()
    assert not is_open(SPARE), "only the superuser's stay"
    os.seteuid(0)
    is_same(nothing)
    assert is_same(nothing)
    assert is_open(SPARE)
    os.seteuid(0)
    assert not is_open(SPARE), "none stays over a change of rights"

    # A port that a closed socket had is free, also for one that was made before.
    before = sock()
    s = sock()
    ask(s, 1)
    s.close()
    assert is_open(SPARE)
    before.bind((os.getpid(), 0))
    ask(before, 2)
    before.close()
    before = sock()
    s = sock()
    ask(s, 1)
    s.close()
    silent = sock()
    before.bind((os.getpid(), 0))
    ask(before, 2)
    for s in [before, silent]:
        s.close()

    # What is closed without a word is missed by nobody, and what took its place is left alone.
    for look in [lambda: os.seteuid(0), lambda: is_same(nothing)]:
        is_same(nothing)
        os.closerange(3, 1024)
        other = os.dup2(os.open("/dev/null", os.O_RDONLY), SPARE)
        look()
        assert stat.S_ISCHR(os.fstat(other).st_mode)
        os.close(other)

    # Threads that have nearly as many as there can be: who looks for room may find what another thread has just made.
    asked = []

    def many(number):
        for turn in range(100):
            some = [sock((ROUTE, XFRM)[it % 2]) for it in range(110)]
            # Some go to other descriptors, below and above.
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
    assert is_same(nothing)
    print("all as expected")


resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
kept, epoll = [], select.epoll()
with sock() as first:
    usual = [first.getsockopt(socket.SOL_SOCKET, size) for size in SIZES]
main()
