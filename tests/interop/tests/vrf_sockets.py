"""Sockets of a host with a VRF `red`, in which it has `eth0`, and a host beyond that link.

serve DEVICE...    opens servers bound to nothing and to each device, and prints "ready"
ask BINDINGS       asks the servers; a line for each: who asks whom, and what came of it
"""

import errno
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

PORTS = {"none": 5000, "red": 5001, "eth0": 5002}
KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
FAMILIES = {"4": socket.AF_INET, "6": socket.AF_INET6}
NODE = {"4": "10.1.0.1", "6": "fd00:1::1"}
FAR = {"4": "10.1.0.9", "6": "fd00:1::9"}


def made(family, kind, device):
    own = socket.socket(FAMILIES[family], KINDS[kind])
    if family == "6":
        own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if device != "none":
        own.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    return own


def serve_tcp(own):
    own.listen(64)
    while True:
        peer, _ = own.accept()
        try:
            peer.sendall(peer.recv(100))
        except OSError:
            pass
        peer.close()


def serve_udp(own):
    while True:
        try:
            data, peer = own.recvfrom(100)
            own.sendto(data, peer)
        except OSError:
            pass


def serve(devices):
    for device in devices:
        for family in FAMILIES:
            for kind, run in (("tcp", serve_tcp), ("udp", serve_udp)):
                own = made(family, kind, device)
                own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                own.bind(("", PORTS[device]))
                threading.Thread(target=run, args=(own,), daemon=True).start()
    print("ready", flush=True)
    time.sleep(90)


def ask(family, kind, device, addr, port):
    with made(family, kind, device) as own:
        own.settimeout(2)
        try:
            own.connect((addr, port))
            own.send(b"hello")
            return "ok" if own.recv(100) == b"hello" else "cut"
        except TimeoutError:
            return "silence"
        except OSError as err:
            return errno.errorcode.get(err.errno, str(err.errno))


def ping(family, device, addr):
    command = ["ping", "-" + family, "-n", "-c", "1", "-W", "2", addr]
    if device != "none":
        command[1:1] = ["-I", device]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return "ok" if done.returncode == 0 else "fails"


def cells(bindings, targets):
    for family in FAMILIES:
        for device in bindings:
            for name, addr, ports in targets:
                for kind in KINDS:
                    for server in ports:
                        who = f"{kind}{family} {device} to {name} {server}"
                        yield who, ask, (family, kind, device, addr[family], PORTS[server])
                yield f"ping{family} {device} to {name}", ping, (family, device, addr[family])


if sys.argv[1] == "serve":
    serve(sys.argv[2:])
else:
    is_far = sys.argv[2] == "far"
    targets = [("node", NODE, PORTS)] if is_far else [("far", FAR, ["none"]), ("node", NODE, PORTS)]
    all_cells = list(cells(["none"] if is_far else PORTS, targets))
    with ThreadPoolExecutor(12) as pool:
        results = pool.map(lambda cell: cell[1](*cell[2]), all_cells)
        for (who, _, _), result in zip(all_cells, results):
            print(f"{'far: ' if is_far else ''}{who}: {result}", flush=True)
