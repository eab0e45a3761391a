"""A program with a netlink socket while its gateway restarts: prints one line for each thing that happens to it."""

import errno
import os
import selectors
import socket
import struct

GROUP_IPV4_ROUTE = 0x40
NEWROUTE, REQUEST, ACK = 24, 1, 4

own = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
own.bind((0, GROUP_IPV4_ROUTE))
own.setblocking(False)
selector = selectors.DefaultSelector()
selector.register(own, selectors.EVENT_READ)
print(os.getpid(), flush=True)
while True:
    selector.select()
    try:
        data = own.recv(65536)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
        if error.errno == errno.ENOBUFS:
            own.send(struct.pack("=IHHIIBBBBBBBBI", 28, NEWROUTE, REQUEST | ACK, 1, 0, 2, *[0] * 8))
        continue
    kind, = struct.unpack_from("=H", data, 4)
    if kind == NEWROUTE:
        print("route", flush=True)
    elif kind == 2:
        print("error", errno.errorcode[-struct.unpack_from("=i", data, 16)[0]], flush=True)
    elif not data:
        print("end", flush=True)
        break
