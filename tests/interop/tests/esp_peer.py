"""Scapy's ESP as a peer: one request in JSON on each line of the input, one reply on each line of the output."""

import json
import sys

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.ipsec import ESP, SecurityAssociation


def parsed(octets):
    return IP(octets) if octets[0] >> 4 == 4 else IPv6(octets)


def association(sa, seq):
    key = bytes.fromhex(sa["key"])
    header = None
    if "ends" in sa:
        src, dst = sa["ends"]
        header = (IPv6 if ":" in src else IP)(src=src, dst=dst)
    return SecurityAssociation(
        ESP,
        spi=sa["spi"],
        seq_num=seq,
        crypt_algo=sa["crypt"],
        crypt_key=key or None,
        crypt_icv_size=sa.get("icv"),
        auth_algo=sa.get("auth"),
        auth_key=bytes.fromhex(sa["auth_key"]) if "auth" in sa else None,
        tunnel_header=header,
        nat_t_header=UDP(sport=4500, dport=4500) if sa["udp"] else None,
        esn_en=sa["esn"],
    )


def answer(request):
    esn, seq = divmod(request["seq"], 1 << 32)
    sa, packet = association(request["sa"], seq), parsed(bytes.fromhex(request["packet"]))
    if request["do"] == "encrypt":
        sealed = sa.encrypt(packet, esn=esn)
        if UDP in sealed:
            # Scapy 2.5 computes it before ESP is behind it.
            sealed[UDP].len = len(sealed[UDP])
        return sealed
    if packet[ESP].seq != seq:
        raise ValueError(f"sequence number {packet[ESP].seq}, not {seq}")
    return sa.decrypt(packet, esn=esn)


for line in sys.stdin:
    try:
        reply = {"packet": bytes(answer(json.loads(line))).hex()}
    except Exception as error:
        reply = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(reply), flush=True)
