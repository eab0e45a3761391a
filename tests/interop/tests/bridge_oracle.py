"""Makes the bridge of a case, sends it frames by the far ends of its ports, and says where each frame leaves.

A case is JSON: `batches`, pairs of a program and lines for its -batch; `ports`, the far ends; `frames`, pairs of a port's number and a frame
in hexadecimal, whose last four bytes are its own number. The answer is JSON: for each frame the places and tags, and the addresses
that the bridge knows, and the counters of its VLANs.
"""

import json
import socket
import struct
import subprocess
import sys
import time

ETH_P_ALL, ETH_P_8021AD = 3, 0x88A8
SOL_PACKET, PACKET_AUXDATA, PACKET_OUTGOING = 263, 8, 4
TP_STATUS_VLAN_VALID = 0x10


def opened(name):
    own = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    own.bind((name, ETH_P_ALL))
    own.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    own.setblocking(False)
    return own


def received(own, number):
    """802.1Q and 802.1ad tag of the frame of that number, for each time that it has come; `None` where it has none."""
    while True:
        try:
            data, messages, _, address = own.recvmsg(2048, 256)
        except BlockingIOError:
            return
        if address[2] == PACKET_OUTGOING or data[-4:] != struct.pack("!I", number):
            continue
        tag = service_tag = None
        for _, _, aux in messages:
            status, = struct.unpack_from("=I", aux)
            tci, protocol = struct.unpack_from("=HH", aux, 16)
            if status & TP_STATUS_VLAN_VALID:
                if protocol == ETH_P_8021AD:
                    service_tag = tci
                else:
                    tag = tci
        ethertype, tci = struct.unpack_from("!HH", data, 12)
        if ethertype == ETH_P_8021AD:
            service_tag = tci
        yield tag, service_tag


def main():
    with open(sys.argv[1]) as file:
        case = json.load(file)
    for program, lines in case["batches"]:
        subprocess.run([program, "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)
    ends = [opened(name) for name in case["ports"]]
    places = list(enumerate(ends)) + [("up", opened("br0"))]
    passed = []
    for number, (port, frame) in enumerate(case["frames"]):
        ends[port].send(bytes.fromhex(frame))
        found = []
        # This kernel may leave a frame to a thread of its own.
        for wait in (0, 0.001, 0.02):
            time.sleep(0 if found else wait)
            found += [[name, *tags] for name, own in places for tags in received(own, number)]
        passed.append(found)
    listed = subprocess.run(["/sbin/bridge", "-j", "fdb", "show", "br", "br0"], capture_output=True, text=True, check=True)
    known = [
        [entry["mac"], entry["ifname"], entry.get("vlan"), entry["state"]]
        for entry in json.loads(listed.stdout)
        if entry.get("master") == "br0"
    ]
    listed = subprocess.run(["/sbin/bridge", "-s", "-j", "vlan", "show"], capture_output=True, text=True, check=True)
    counted = {
        str(vlan["vid"]): [vlan[key] for key in ("rx_packets", "rx_bytes", "tx_packets", "tx_bytes")]
        for link in json.loads(listed.stdout)
        for vlan in link["vlans"]
    }
    print(json.dumps({"passed": passed, "fdb": known, "vlans": counted}))


main()
