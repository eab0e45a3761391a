"""The gateway has no descriptors left: clients that may only look are refused, and root is served."""

import os
import socket
import struct
import sys

LOOK = struct.pack("=II", 7, 0) + b"ipv4/ipfrag_time"


def answered():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(20)
    connection.connect(sys.argv[1])
    try:
        connection.send(LOOK)
        return connection.recv(100)[:4] == bytes(4)
    except (BrokenPipeError, ConnectionResetError):
        return False
    finally:
        connection.close()


for round in range(30):
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            os._exit(1 if answered() else 0)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert answered()
print("all as expected")
