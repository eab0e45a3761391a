"""What a program may expect of a netlink socket; run under `fatpath exec`, with a link named wan."""

import ctypes
import fcntl
import os
import select
import socket
import struct
import threading

ROUTE, XFRM, GENERIC, AUDIT = 0, 6, 16, 9
SOL_NETLINK, ADD_MEMBERSHIP, DROP_MEMBERSHIP, PKTINFO, LIST, CAP_ACK, EXT_ACK, STRICT = 270, 1, 2, 3, 9, 10, 11, 12
GETLINK, NEWLINK, ERROR, DONE = 18, 16, 2, 3
REQUEST, ACK, DUMP = 1, 4, 0x300


def message(kind, flags, seq, body=b""):
    return struct.pack("=IHHII", 16 + len(body), kind, flags, seq, 0) + body


def link_dump(seq):
    return message(GETLINK, REQUEST | DUMP, seq, bytes(16))


def refuses(errno, call, *args):
    try:
        call(*args)
    except OSError as error:
        assert error.errno == errno, (error, errno)
    else:
        raise AssertionError(f"{call} {args} is not refused")


def kinds(datagram):
    found = []
    while datagram:
        length, kind = struct.unpack_from("=IH", datagram)
        found.append(kind)
        datagram = datagram[(length + 3) & ~3:]
    return found


def read_dump(receive):
    found = []
    while DONE not in found:
        found += kinds(receive())
    return found


nl = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, ROUTE)

# Its names.
assert nl.getsockname() == (0, 0)
nl.bind((0, 0))
port = nl.getsockname()[0]
assert port == os.getpid(), port
other = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, ROUTE)
other.bind((0, 0))
assert other.getsockname()[0] not in (0, port)
refuses(22, nl.bind, (77, 0))
third = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, ROUTE)
refuses(98, third.bind, (port, 0))
third.bind((4711, 0))
assert third.getsockname() == (4711, 0)
nl.connect((0, 0))
assert nl.getpeername() == (0, 0)

# What it is.
values = [nl.getsockopt(socket.SOL_SOCKET, it) for it in (socket.SO_DOMAIN, socket.SO_PROTOCOL, socket.SO_TYPE)]
assert values == [socket.AF_NETLINK, ROUTE, socket.SOCK_RAW], values
nl.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
for option in (CAP_ACK, EXT_ACK, STRICT, PKTINFO):
    assert nl.getsockopt(SOL_NETLINK, option) == 0
    nl.setsockopt(SOL_NETLINK, option, 1)
    assert nl.getsockopt(SOL_NETLINK, option) == 1
nl.setsockopt(SOL_NETLINK, STRICT, 0)
nl.setsockopt(SOL_NETLINK, PKTINFO, 0)
nl.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, 33)
assert nl.getsockopt(SOL_NETLINK, LIST, 8) == struct.pack("=II", 0, 1)
nl.setsockopt(SOL_NETLINK, DROP_MEMBERSHIP, 33)
refuses(22, nl.setsockopt, SOL_NETLINK, ADD_MEMBERSHIP, 0)
refuses(92, nl.setsockopt, SOL_NETLINK, 99, 1)

# Sending and receiving, in every way.
refuses(61, nl.send, b"")
refuses(90, nl.send, bytes(70000))
refuses(111, nl.sendto, b"x", (77, 0))
nl.send(link_dump(1))
whole = len(nl.recv(1 << 16, socket.MSG_PEEK))
assert nl.recv_into(bytearray(2), 2, socket.MSG_PEEK | socket.MSG_TRUNC) == whole
data, control, flags, source = nl.recvmsg(20, 100, socket.MSG_PEEK)
assert (len(data), control, flags, source) == (20, [], socket.MSG_TRUNC, (0, 0)), (control, flags, source)
assert read_dump(lambda: nl.recv(1 << 16)).count(NEWLINK) >= 1
for send in (
    lambda it: nl.sendto(it, (0, 0)),
    lambda it: nl.sendmsg([it[:7], it[7:16], it[16:]], [], 0, (0, 0)),
    lambda it: os.write(nl.fileno(), it),
    lambda it: os.writev(nl.fileno(), [it[:3], it[3:]]),
):
    send(link_dump(2))
    assert read_dump(lambda: nl.recvfrom(1 << 16)[0])[-1] == DONE
for receive in (
    lambda: os.read(nl.fileno(), 1 << 16),
    lambda: nl.recvmsg(1 << 16)[0],
):
    nl.send(link_dump(3))
    assert read_dump(receive)[-1] == DONE
nl.send(link_dump(4))
head, rest = bytearray(16), bytearray(1 << 16)
length = os.readv(nl.fileno(), [head, rest])
assert length > 16 and kinds(bytes(head + rest)[:length])[0] == NEWLINK
read_dump(lambda: nl.recv(1 << 16))

# Waiting.
other.send(link_dump(5))
poller = select.epoll()
poller.register(other, select.EPOLLIN)
assert poller.poll(5)
assert select.select([other], [], [], 5)[0]
found = []
while DONE not in found:
    try:
        found += kinds(other.recv(1 << 16))
    except BlockingIOError:
        assert poller.poll(5)
refuses(11, other.recv, 10)
refuses(11, nl.recv, 10, socket.MSG_DONTWAIT)
got = []
thread = threading.Thread(target=lambda: got.append(nl.recv(1 << 16)))
thread.start()
nl.send(message(GETLINK, REQUEST | ACK, 6, bytes(16)))
thread.join(5)
assert kinds(got[0])[0] == ERROR

# Duplicates, children, and what is closed behind the library's back.
copy = os.dup(nl.fileno())
far = fcntl.fcntl(nl.fileno(), fcntl.F_DUPFD_CLOEXEC, 200)
os.dup2(copy, 300)
for fd in (copy, far, 300):
    os.write(fd, link_dump(7))
    assert read_dump(lambda: os.read(fd, 1 << 16))[-1] == DONE
os.close(copy)
child = os.fork()
if child == 0:
    nl.send(link_dump(8))
    ok = read_dump(lambda: nl.recv(1 << 16))[-1] == DONE
    mine = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, ROUTE)
    mine.bind((0, 0))
    os._exit(0 if ok and mine.getsockname()[0] == os.getpid() else 1)
assert os.waitpid(child, 0)[1] == 0
os.closerange(200, 301)
pair = socket.socketpair()
os.dup2(pair[0].fileno(), 300)
os.write(300, b"plain")
assert pair[1].recv(10) == b"plain"
for _ in range(3):
    some = [socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, XFRM) for _ in range(400)]
    assert all(it.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) == XFRM for it in some)
    for it in some:
        it.close()

# Interfaces.
index = socket.if_nametoindex("wan")
assert socket.if_indextoname(index) == "wan"
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def asked(request):
    return fcntl.ioctl(udp, request, b"wan".ljust(16, b"\0") + bytes(24))[16:]


assert struct.unpack_from("=i", asked(0x8933))[0] == index
assert struct.unpack_from("=i", asked(0x8921))[0] > 500
assert struct.unpack_from("=H", asked(0x8913))[0] & 1
refuses(19, fcntl.ioctl, udp, 0x8933, b"nowhere".ljust(40, b"\0"))
refuses(19, fcntl.ioctl, udp, 0x8914, bytes(40))
refuses(95, fcntl.ioctl, udp, 0x8923, b"wan".ljust(40, b"\0"))

# What is not the gateway's is the kernel's.
audit = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)
assert audit.getsockname() == (0, 0)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.socket(socket.AF_NETLINK, 99, ROUTE) == -1
print("all as expected")
