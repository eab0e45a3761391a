"""What netlink sockets do, on the kernel or under `fatpath exec`: it prints the same on both. There is a link eth0, which
is up."""

import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import threading
import time

ROUTE, XFRM, GENERIC = 0, 6, 16
SOL_NETLINK, ADD_MEMBERSHIP, DROP_MEMBERSHIP, PKTINFO, NO_ENOBUFS = 270, 1, 2, 3, 5
GETLINK, NEWLINK, NEWROUTE, DELROUTE, GETROUTE, ERROR, DONE = 18, 16, 24, 25, 26, 2, 3
REQUEST, ACK, DUMP, CREATE, EXCL = 1, 4, 0x300, 0x400, 0x200
GROUP_ROUTE = 7
libc = ctypes.CDLL(None, use_errno=True)


def message(kind, flags, seq, body=b""):
    return struct.pack("=IHHII", 16 + len(body), kind, flags, seq, 0) + body


def get_link(seq, index=1, flags=REQUEST | ACK):
    return message(GETLINK, flags, seq, struct.pack("=BxHiII", 0, 0, index, 0, 0))


def route(kind, seq, number):
    flags = REQUEST | ACK | (CREATE | EXCL if kind == NEWROUTE else 0)
    head = struct.pack("=8BI", socket.AF_INET, 32, 0, 0, 254, 3, 253, 1, 0)
    address = struct.pack("=HH4B", 8, 1, 10, 9, number >> 8, number & 255)
    return message(kind, flags, seq, head + address + struct.pack("=HHi", 8, 4, index))


def parse(datagram):
    found = []
    while datagram:
        length, kind, flags, seq = struct.unpack_from("=IHHI", datagram)
        found.append((kind, seq, datagram[16:length]))
        datagram = datagram[(length + 3) & ~3 :]
    return found


def kinds(datagram):
    return [kind for kind, _, _ in parse(datagram)]


def errno_of(call, *args):
    try:
        return call(*args)
    except OSError as error:
        return errno.errorcode[error.errno]


def opened(protocol=ROUTE, kind=socket.SOCK_RAW):
    return socket.socket(socket.AF_NETLINK, kind, protocol)


def until(wanted, receive):
    found = []
    while not found or wanted not in found[-1]:
        found.append(kinds(receive()))
    return [kind for some in found for kind in some]


def drained(nl):
    """What is there, datagrams and errors; it ends when nothing has come for a while."""
    found, errors = [], []
    while select.select([nl], [], [], 0.4)[0]:
        try:
            found += parse(nl.recv(1 << 16, socket.MSG_DONTWAIT))
        except OSError as error:
            errors.append(errno.errorcode[error.errno])
    return found, errors


index = socket.if_nametoindex("eth0")

# Who does not read loses answers, is told so once, and is served again.
for flags in (0, socket.SOCK_NONBLOCK):
    nl = opened(kind=socket.SOCK_RAW | flags)
    sent = sum(nl.send(get_link(seq)) > 0 for seq in range(5000))
    time.sleep(1)
    found, errors = drained(nl)
    print("answers unread:", sent, "some lost:", 0 < len(found) < 10000, errors, found[0][:2], found[1][:2])
    nl.send(get_link(7777))
    print("then:", [(kind, seq) for kind, seq, _ in drained(nl)[0]])

# What it asked for was done all the same.
nl = opened()
for number in range(3000):
    nl.send(route(NEWROUTE, number, number))
drained(nl)
other = opened()
other.send(message(GETROUTE, REQUEST | DUMP, 1, struct.pack("=8BI", socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)))
print("routes:", until(DONE, lambda: other.recv(1 << 16)).count(NEWROUTE) >= 3000)

# So is a listener who does not read; and who does not want to be told is not.
for quiet in (0, 1):
    listener = opened()
    listener.bind((0, 0))
    listener.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, GROUP_ROUTE)
    listener.setsockopt(SOL_NETLINK, NO_ENOBUFS, quiet)
    teller = opened()
    for number in range(3000):
        teller.send(route(NEWROUTE if quiet else DELROUTE, number, number))
        assert kinds(teller.recv(1 << 16)) == [ERROR]
    found, errors = drained(listener)
    print("news unread:", errors, 0 < len(found) < 3000, {kind for kind, _, _ in found})
    teller.send(route(NEWROUTE, 1, 4000 + quiet))
    print("then:", [kind for kind, _, _ in drained(listener)[0]])

# A dump waits, however long nobody reads; another one does not begin meanwhile.
nl = opened()
dump = message(GETROUTE, REQUEST | DUMP, 1, struct.pack("=8BI", socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0))
nl.send(dump)
nl.send(message(GETROUTE, REQUEST | DUMP, 2, struct.pack("=8BI", socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)))
time.sleep(0.5)
found = []
while not any(kind == DONE for kind, _, _ in found):
    found += parse(nl.recv(1 << 16))
second = [struct.unpack_from("=i", body)[0] for kind, seq, body in found if kind == ERROR]
routes = [body for kind, _, body in found if kind == NEWROUTE]
print("dump:", len(routes) == len(set(routes)) >= 3000, [errno.errorcode[-it] for it in second])
other = opened()
other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
for number in range(4000):
    other.send(route(DELROUTE, number, number))
drained(other)

# Pieces of a datagram.
nl = opened()
nl.send(get_link(1, flags=REQUEST))
whole = nl.recv(1 << 16, socket.MSG_PEEK)
print("peek:", len(whole) == nl.recv_into(bytearray(9), 9, socket.MSG_PEEK | socket.MSG_TRUNC) > 100)
data, control, flags, source = nl.recvmsg(17, 100, socket.MSG_PEEK)
print("peek, cut:", data == whole[:17], control, flags == socket.MSG_TRUNC, source)
head, rest = bytearray(16), bytearray(1 << 16)
count, control, flags, source = nl.recvmsg_into([head, rest])
print("whole:", bytes(head + rest)[:count] == whole, control, flags, source)
nl.send(get_link(1, flags=REQUEST))
print("cut:", len(nl.recv(20)), errno_of(nl.recv, 20, socket.MSG_DONTWAIT))
nl.send(get_link(1, flags=REQUEST))
print("nothing:", libc.recv(nl.fileno(), None, 0, 0), errno_of(nl.recv, 20, socket.MSG_DONTWAIT))
print("out of band:", errno_of(nl.recv, 20, socket.MSG_OOB), errno_of(nl.send, b"x", socket.MSG_OOB))


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Msghdr(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint),
        ("iov", ctypes.POINTER(Iovec)),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class Mmsghdr(ctypes.Structure):
    _fields_ = [("head", Msghdr), ("length", ctypes.c_uint)]


def vectors(buffers):
    array = (Mmsghdr * len(buffers))()
    for each, buffer in zip(array, buffers):
        each.head.iov, each.head.iovlen = ctypes.pointer(Iovec(ctypes.addressof(buffer), len(buffer))), 1
    return array


requests = [ctypes.create_string_buffer(get_link(seq, flags=REQUEST), 32) for seq in (21, 22, 23)]
asked = vectors(requests)
print("sendmmsg:", libc.sendmmsg(nl.fileno(), asked, 3, 0), [it.length for it in asked])
time.sleep(0.2)
buffers = [ctypes.create_string_buffer(1 << 15) for _ in range(5)]
array = vectors(buffers)
count = libc.recvmmsg(nl.fileno(), array, 5, socket.MSG_DONTWAIT, None)
print("recvmmsg:", count, [parse(it.raw[: each.length])[0][1] for it, each in zip(buffers, array[:count])])
print("again:", libc.recvmmsg(nl.fileno(), array, 5, socket.MSG_DONTWAIT, None), errno.errorcode[ctypes.get_errno()])

# What was lost is told, also if it shows behind what was received.
listener, teller = opened(), opened()
listener.bind((0, 0))
listener.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, GROUP_ROUTE)
for kind in (NEWROUTE, DELROUTE):
    for number in range(2000):
        teller.send(route(kind, number, number))
        assert kinds(teller.recv(1 << 16)) == [ERROR]
errors, end = [], time.monotonic() + 10
while "ENOBUFS" not in errors and time.monotonic() < end:
    if libc.recvmmsg(listener.fileno(), array, 5, socket.MSG_DONTWAIT, None) < 0:
        errors.append(errno.errorcode[ctypes.get_errno()])
        time.sleep(0.01)
print("recvmmsg, too late:", set(errors) - {"EAGAIN"})

# Waiting.
nl = opened()
nl.bind((0, 0))
poller, edge = select.poll(), select.epoll()
poller.register(nl, select.POLLIN | select.POLLOUT)
edge.register(nl, select.EPOLLIN | select.EPOLLET)
print("idle:", poller.poll(0)[0][1] == select.POLLOUT, edge.poll(0))
nl.send(get_link(1))
time.sleep(0.2)
print("answered:", poller.poll(0)[0][1] == select.POLLIN | select.POLLOUT, len(edge.poll(1)), edge.poll(0))
print("twice:", kinds(nl.recv(1 << 16)), kinds(nl.recv(1 << 16)), poller.poll(0)[0][1] == select.POLLOUT)
nl.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 0, 200000))
start = time.monotonic()
print("timeout:", errno_of(nl.recv, 10), 0.15 < time.monotonic() - start < 2)
fcntl.fcntl(nl, fcntl.F_SETFL, os.O_NONBLOCK)
print("non-blocking:", errno_of(nl.recv, 10), fcntl.fcntl(nl, fcntl.F_GETFL) & os.O_NONBLOCK == os.O_NONBLOCK)

# Names and options.
nl = opened(kind=socket.SOCK_DGRAM)
print("unbound:", nl.getsockname(), errno_of(nl.getpeername))
nl.send(get_link(1))
print("bound by sending:", nl.getsockname()[0] != 0, nl.getsockname()[1])
print("bound again:", errno_of(nl.bind, (nl.getsockname()[0], 0)), errno_of(nl.bind, (5, 0)))
third = opened()
print("taken:", errno_of(third.bind, (nl.getsockname()[0], 0)))
third.bind((0, 1 << (GROUP_ROUTE - 1) | 1))
print("groups:", third.getsockname()[1], third.getsockopt(SOL_NETLINK, 9, 4)[:1])
third.setsockopt(SOL_NETLINK, DROP_MEMBERSHIP, 1)
print("groups:", third.getsockname()[1])
print("connect:", errno_of(nl.connect, (0, 0)), nl.getpeername(), errno_of(nl.sendto, b"x" * 16, (99999999, 0)))
print("empty:", errno_of(nl.send, b""), "long:", errno_of(nl.send, bytes(1 << 20)))
for name in (socket.SO_DOMAIN, socket.SO_PROTOCOL, socket.SO_TYPE, socket.SO_ERROR, socket.SO_RCVBUF):
    print("option", name, nl.getsockopt(socket.SOL_SOCKET, name))
for name in (0, 3, 4, 5, 8, 10, 11, 12, 77):
    print("netlink option", name, errno_of(nl.getsockopt, SOL_NETLINK, name))
for name, value in ((1, 0), (1, 32), (1, 99), (2, 0), (77, 1)):
    print("set", name, value, errno_of(nl.setsockopt, SOL_NETLINK, name, value))
print("short:", errno_of(nl.setsockopt, SOL_NETLINK, 3, b"x"), errno_of(nl.getsockopt, SOL_NETLINK, 3, 2))
third.setsockopt(SOL_NETLINK, PKTINFO, 1)
nl.send(route(NEWROUTE, 5, 9))
print("packet information:", third.recvmsg(1 << 16, 64)[1:])
nl.send(route(DELROUTE, 6, 9))
unsent, late = opened(), opened()
unsent.bind((0, 0))
print("taken by one that never sent:", errno_of(late.bind, (unsent.getsockname()[0], 0)))
late.setsockopt(SOL_NETLINK, 1, GROUP_ROUTE)
late.send(get_link(1))
late.recv(1 << 16)
nl.send(route(NEWROUTE, 7, 9))
print("a member before it was bound:", kinds(late.recv(1 << 16)), unsent.getsockname()[0] != late.getsockname()[0])
nl.send(route(DELROUTE, 8, 9))
nl.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
drained(nl)
nl.send(get_link(1))
print("credentials:", nl.recvmsg(1 << 16, 64)[1:3])

# Other calls.
print("listen:", errno_of(nl.listen, 1), "accept:", errno_of(nl._accept), "shutdown:", errno_of(nl.shutdown, 2))
drained(nl)
nl.send(get_link(9))
print("still:", kinds(nl.recv(1 << 16)))
print("kinds:", [errno_of(opened, ROUTE, it) for it in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)])
print("protocols:", errno_of(opened, 77), errno_of(opened, 31))

# Malformed messages.
nl = opened()
for name, bad in {
    "short": b"abc",
    "header alone": message(GETLINK, REQUEST | ACK, 1),
    "too long": struct.pack("=IHHII", 99, GETLINK, REQUEST | ACK, 2, 0),
    "length 0": struct.pack("=IHHII", 0, GETLINK, REQUEST | ACK, 3, 0) + bytes(16),
    "no request": message(GETLINK, ACK, 4, bytes(16)),
    "control": message(1, REQUEST | ACK, 5),
    "unknown": message(16 + 4 * 200, REQUEST | ACK, 6, bytes(16)),
    "two": get_link(7) + get_link(8),
    "two, one bad": get_link(9, 12345) + get_link(10),
    "rest": get_link(11) + b"abc",
}.items():
    nl.send(bad)
    answers = [(kind, seq, struct.unpack_from("=i", body)[0] if kind == ERROR else None) for kind, seq, body in drained(nl)[0]]
    print(name, answers)

# Threads, which make sockets and leave them, and children meanwhile.
failures = []


def busy(number):
    for turn in range(60):
        some = [opened((ROUTE, XFRM, GENERIC)[it % 3]) for it in range(20)]
        for it in some[::3]:
            it.send(get_link(turn))
        for it in some[::3]:
            if [seq for _, seq, _ in parse(it.recv(1 << 16))] != [turn]:
                failures.append((number, turn))
        for it in some:
            it.close()
        plain = socket.socketpair()
        plain[0].send(b"plain")
        if plain[1].recv(10) != b"plain":
            failures.append((number, turn, "plain"))


threads = [threading.Thread(target=busy, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
shared = opened()
for turn in range(20):
    child = os.fork()
    if child == 0:
        mine = opened()
        mine.send(get_link(turn))
        shared.send(get_link(turn))
        ok = mine.getsockname()[0] == os.getpid() and kinds(mine.recv(1 << 16)) == kinds(shared.recv(1 << 16))
        os._exit(0 if ok else 1)
    failures += [turn] if os.waitpid(child, 0)[1] else []
    drained_now = until(ERROR, lambda: shared.recv(1 << 16))
for thread in threads:
    thread.join()
print("threads and children:", failures)

# Socket filters: (code, jt, jf, k) of each instruction.
ATTACH_FILTER, DETACH_FILTER, LOCK_FILTER = 26, 27, 44
LD_HALF, LD_LEN, JEQ, JGE, SUB, RET, RET_A = 0x28, 0x80, 0x15, 0x35, 0x14, 0x06, 0x16
# Halves of a packet are big-endian.
ONLY_LINKS = [(LD_HALF, 0, 0, 4), (JEQ, 0, 1, socket.htons(NEWLINK)), (RET, 0, 0, 0xFFFFFFFF), (RET, 0, 0, 0)]


def attach(nl, program, length=16):
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *it) for it in program))
    value = struct.pack("=H6xQ", len(program), ctypes.addressof(instructions))
    return errno_of(nl.setsockopt, socket.SOL_SOCKET, ATTACH_FILTER, value[:length])


nl, other = opened(), opened()
nl.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, GROUP_ROUTE)
print("filter:", attach(nl, ONLY_LINKS))
other.send(route(NEWROUTE, 1, 60001))
other.recv(1 << 16)
print("filtered event:", select.select([nl], [], [], 0.4)[0])
nl.send(get_link(5, flags=REQUEST) + get_link(6, 12345) + get_link(7))
print("filtered answers:", [(kind, seq) for kind, seq, _ in drained(nl)[0]])
nl.send(get_link(8, 1, REQUEST | DUMP))
print("filtered dump:", set(kind for kind, _, _ in drained(nl)[0]) - {DONE})
print("all but the header:", attach(nl, [(LD_LEN, 0, 0, 0), (JGE, 1, 0, 40), (RET, 0, 0, 0), (RET, 0, 0, 16)]))
nl.send(get_link(9))
print("cut:", [len(nl.recv(1 << 16)) for _ in range(1)], select.select([nl], [], [], 0.4)[0])
print("all but the last four:", attach(nl, [(LD_LEN, 0, 0, 0), (SUB, 0, 0, 4), (RET_A, 0, 0, 0)]))
nl.send(message(GETLINK, REQUEST | ACK, 10))
print("cut:", len(nl.recv(1 << 16)))
print("none:", attach(nl, []), attach(nl, [(RET, 0, 0, 0)], 8), attach(nl, [(LD_LEN, 0, 0, 0)]), attach(nl, [(0xFF, 0, 0, 0)]))
print("detached:", errno_of(nl.setsockopt, socket.SOL_SOCKET, DETACH_FILTER, 0))
print("again:", errno_of(nl.setsockopt, socket.SOL_SOCKET, DETACH_FILTER, 0))
other.send(route(DELROUTE, 1, 60001))
other.recv(1 << 16)
print("event:", kinds(nl.recv(1 << 16)))
print("locked:", attach(nl, ONLY_LINKS), errno_of(nl.setsockopt, socket.SOL_SOCKET, LOCK_FILTER, 1))
print("locked:", attach(nl, ONLY_LINKS), errno_of(nl.setsockopt, socket.SOL_SOCKET, DETACH_FILTER, 0))

# Interfaces.
print("names:", [name for _, name in socket.if_nameindex()], socket.if_nametoindex("lo"))
room = ctypes.create_string_buffer(16)
print("none:", libc.if_nametoindex(b"nosuch"), errno.errorcode[ctypes.get_errno()])
print("none:", libc.if_indextoname(12345, room), errno.errorcode[ctypes.get_errno()])


class Ifaddrs(ctypes.Structure):
    pass


Ifaddrs._fields_ = [
    ("next", ctypes.POINTER(Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("addr", ctypes.POINTER(ctypes.c_ubyte * 28)),
    ("netmask", ctypes.POINTER(ctypes.c_ubyte * 28)),
]
first = ctypes.POINTER(Ifaddrs)()
assert libc.getifaddrs(ctypes.byref(first)) == 0
at = first
while at:
    it = at.contents
    family = struct.unpack_from("=H", bytes(it.addr.contents))[0] if it.addr else None
    length = {socket.AF_INET: 8, socket.AF_INET6: 24}.get(family, 12)
    print("getifaddrs:", it.name, hex(it.flags), family, bytes(it.addr.contents)[:length].hex() if it.addr else None)
    at = it.next
libc.freeifaddrs(first)

# IPv4 addresses as programs ask for them that know no netlink.
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def part(name, request, given=b""):
    try:
        return fcntl.ioctl(udp, request, name.ljust(16, b"\0") + given.ljust(24, b"\0"))[16:32].hex()
    except OSError as error:
        return errno.errorcode[error.errno]


for name in (b"eth0", b"eth0:x", b"eth0:y", b"lo", b"nosuch", b"nosuch:x", b""):
    print("parts:", name, [part(name, request) for request in (0x8915, 0x8917, 0x8919, 0x891B)])
    print("the interface's:", name, part(name, 0x8921)[:8])
for own in ("10.3.0.1", "10.2.0.7", "10.9.9.9"):
    given = struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(own))
    print("given:", own, [part(b"eth0", request, given) for request in (0x8915, 0x8917, 0x8919, 0x891B)])
for space in (None, 0, 39, 40, 100, 400):
    buffer = ctypes.create_string_buffer(space or 1)
    conf = struct.pack("=i4xQ", space or 0, 0 if space is None else ctypes.addressof(buffer))
    length = struct.unpack_from("=i", fcntl.ioctl(udp, 0x8912, conf))[0]
    found = [buffer.raw[at : at + 40] for at in range(0, length if space else 0, 40)]
    print("list:", space, length, [(it[:16].rstrip(b"\0"), it[16:32].hex()) for it in found])
