"""Processes with other users, capabilities and user namespaces ask the gateway to add a route.

Arguments: the netlink socket, the gateway's process number. Prints a line for each process: what it is, the error of its
request, and the error of a request that only looks.
"""

import array
import ctypes
import errno
import glob
import os
import signal
import socket
import struct
import sys
import time

PATH, GATEWAY = sys.argv[1], int(sys.argv[2])
USER = 65534
NET_ADMIN = 1 << 12
HELLO = struct.pack("=II", 1, 0)
libc = ctypes.CDLL(None, use_errno=True)
count = 0


def call(done):
    if done != 0:
        raise OSError(ctypes.get_errno(), "a system call")


def set_capabilities(permitted, effective):
    header = struct.pack("=Ii", 0x20080522, 0)
    sets = struct.pack("=6I", effective & 0xFFFFFFFF, permitted & 0xFFFFFFFF, 0, effective >> 32, permitted >> 32, 0)
    call(libc.capset(header, sets))


def capabilities():
    sets = ctypes.create_string_buffer(24)
    call(libc.capget(struct.pack("=Ii", 0x20080522, 0), sets))
    words = struct.unpack("=6I", sets.raw)
    return words[1] | words[4] << 32


def become_user(kept=0):
    call(libc.prctl(8, 1, 0, 0, 0))  # PR_SET_KEEPCAPS
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    call(libc.prctl(4, 1, 0, 0, 0))  # PR_SET_DUMPABLE, or its files of /proc are root's
    set_capabilities(kept, 0)


def new_user_namespace():
    user, group = os.geteuid(), os.getegid()
    call(libc.unshare(0x10000000))
    for name, text in ("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1"):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    assert capabilities() & NET_ADMIN


def connect():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(20)
    connection.connect(PATH)
    return connection


def send_hello(connection):
    answers, theirs = os.pipe()
    connection.sendmsg([HELLO], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs]))])
    os.close(theirs)
    return answers


def said(connection):
    message = connection.recv(65536)[4:]
    kind = struct.unpack("=H", message[4:6])[0]
    error = -struct.unpack("=i", message[16:20])[0] if kind == 2 else 0
    return errno.errorcode.get(error, "OK")


def add_route(connection):
    attribute = struct.pack("=HH4B", 8, 1, 10, 77, os.getpid() >> 8 & 255, os.getpid() & 255)
    route = struct.pack("=8BI", 2, 32, 0, 0, 254, 3, 0, 6, 0) + attribute
    request = struct.pack("=IHHII", 16 + len(route), 24, 1 | 4 | 0x600, 1, 0) + route
    connection.send(struct.pack("=I", 0) + request)


def look(connection):
    link = struct.pack("=4BiII", 0, 0, 0, 0, 1, 0, 0)
    connection.send(struct.pack("=I", 0) + struct.pack("=IHHII", 16 + len(link), 18, 1, 2, 0) + link)


def ask(wait=True):
    connection = connect()
    answers = send_hello(connection)
    if wait:
        assert len(os.read(answers, 8)) == 8
    add_route(connection)
    outcome = said(connection)
    look(connection)
    return outcome, said(connection)


def user():
    become_user()
    return ask()


def user_with_capability():
    become_user(NET_ADMIN)
    return ask()


def user_with_all_but_it():
    become_user(capabilities() & ~NET_ADMIN)
    return ask()


def user_in_own_namespace():
    become_user()
    new_user_namespace()
    return ask()


def root():
    return ask()


def root_that_does_not_wait():
    return ask(wait=False)


def root_without_capability():
    set_capabilities(capabilities() & ~NET_ADMIN, 0)
    return ask()


def root_in_own_namespace():
    new_user_namespace()
    return ask()


def request_from_before_the_judgement():
    """The process may have been another program when it sent this."""
    become_user(NET_ADMIN)
    connection = connect()
    ready(connection)
    send_hello(connection)
    add_route(connection)
    resume()
    outcome = said(connection)
    look(connection)
    return outcome, said(connection)


def child_of_user_with_capability():
    become_user(NET_ADMIN)
    connection = connect()
    assert len(os.read(send_hello(connection), 8)) == 8
    child = os.fork()
    if child == 0:
        set_capabilities(0, 0)
        add_route(connection)
        os._exit(0)
    os.waitpid(child, 0)
    outcome = said(connection)
    look(connection)
    return outcome, said(connection)


def of_child(do, connection):
    """Outcome of the request that a child sends, after it has claimed the privilege of the connection or not."""
    may_end, end = os.pipe()
    child = os.fork()
    if child == 0:
        do()
        # A process that has ended may be any other of its number.
        os.read(may_end, 1)
        os._exit(0)
    outcome = said(connection)
    os.write(end, b".")
    assert os.waitpid(child, 0)[1] == 0
    look(connection)
    return outcome, said(connection)


def with_claim():
    become_user(NET_ADMIN)
    connection = connect()
    assert len(os.read(send_hello(connection), 8)) == 8
    return connection


def claim_and_ask(connection):
    assert len(os.read(send_hello(connection), 8)) == 8
    add_route(connection)


def child_that_claims():
    connection = with_claim()
    return of_child(lambda: claim_and_ask(connection), connection)


def child_without_capability_that_claims():
    connection = with_claim()

    def do():
        set_capabilities(0, 0)
        claim_and_ask(connection)

    return of_child(do, connection)


def child_of_another_than_the_claimant():
    """The first process never had the capability to give."""
    become_user(capabilities() & ~NET_ADMIN)
    connection = connect()
    assert len(os.read(send_hello(connection), 8)) == 8
    return of_child(lambda: claim_and_ask(connection), connection)


def child_request_from_before_the_judgement():
    """The child may have been another program when it sent this."""
    connection = with_claim()
    ready(connection)

    (has_sent, sent), (may_end, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        send_hello(connection)
        add_route(connection)
        os.write(sent, b".")
        # It lives until it is judged.
        os.read(may_end, 1)
        os._exit(0)
    os.read(has_sent, 1)
    resume()
    outcome = said(connection)
    os.write(end, b".")
    os.waitpid(child, 0)
    look(connection)
    return outcome, said(connection)


def ready(connection):
    """Has the gateway stopped, by the parent, which may."""
    os.write(to_parent, b".")
    assert os.read(from_parent, 1) == b"."


def is_stopped(pid):
    """Tells whether the last thread has stopped: the signal does not wait for them."""
    stats = [open(path).read() for path in glob.glob(f"/proc/{pid}/task/*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def resume():
    os.write(to_parent, b".")


for process in (
    root, root_that_does_not_wait, root_without_capability, root_in_own_namespace,
    user, user_with_capability, user_with_all_but_it, user_in_own_namespace,
    request_from_before_the_judgement, child_of_user_with_capability, child_that_claims,
    child_without_capability_that_claims, child_of_another_than_the_claimant, child_request_from_before_the_judgement,
):
    (from_child, to_parent), (from_parent, to_child) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        print(process.__name__, *process(), flush=True)
        os._exit(0)
    os.close(to_parent)
    try:
        if os.read(from_child, 1):
            os.kill(GATEWAY, signal.SIGSTOP)
            while not is_stopped(GATEWAY):
                time.sleep(0.001)
            os.write(to_child, b".")
            os.read(from_child, 1)
    finally:
        os.kill(GATEWAY, signal.SIGCONT)
    assert os.waitpid(child, 0)[1] == 0, process.__name__
    for fd in from_child, from_parent, to_child:
        os.close(fd)
