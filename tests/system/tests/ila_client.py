"""Changes ILA mappings by netlink, with flags and attributes that `ip ila` does not have.

    ila_client.py add|replace|set LOC_MATCH LOC [dev INDEX] [identifier I] [csum-mode N]
    ila_client.py del LOC_MATCH [dev INDEX] [identifier I]
    ila_client.py alternate LOC_MATCH LOC LOC [identifier I] [csum-mode N]     until it is killed; prints a count
    ila_client.py load COUNT                                                   prints seconds and acknowledged messages
    ila_client.py events                                                       prints events until it is killed
"""

import socket
import struct
import sys
import time

REQUEST, ACK, REPLACE, CREATE = 1, 4, 0x100, 0x400
ADD, DEL, GETFAMILY = 1, 2, 3
FLAGS = {'add': 0, 'replace': REPLACE, 'set': REPLACE | CREATE}
LOCATOR, IDENTIFIER, LOCATOR_MATCH, IFINDEX, CSUM_MODE = 1, 2, 3, 4, 7


def attr(kind, value):
    return struct.pack('HH', 4 + len(value), kind) + value + bytes(-len(value) % 4)


def groups(text):
    return struct.pack('>4H', *(int(group, 16) for group in text.split(':')))


def message(kind, command, flags, attrs):
    return struct.pack('IHHIIBBH', 20 + len(attrs), kind, REQUEST | flags, 1, 0, command, 1, 0) + attrs


def options(words):
    attrs = b''
    for key, value in zip(words[::2], words[1::2]):
        if key == 'dev':
            attrs += attr(IFINDEX, struct.pack('I', int(value)))
        elif key == 'identifier':
            attrs += attr(IDENTIFIER, groups(value))
        elif key == 'csum-mode':
            attrs += attr(CSUM_MODE, struct.pack('B', int(value)))
        else:
            sys.exit(f'unknown word {key}')
    return attrs


def attributes(data):
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from('HH', data)
        found[kind & 0x3fff] = data[4:length]
        data = data[(length + 3) & ~3:]
    return found


nl = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
nl.bind((0, 0))


def ask(data):
    """Sends messages, of which the last one asks for an acknowledgement; returns the first error."""
    nl.sendto(data, (0, 0))
    return -struct.unpack_from('i', nl.recv(1 << 16), 16)[0]


def family():
    """Number of the family, and that of its group."""
    nl.sendto(message(16, GETFAMILY, 0, attr(2, b'ila\0')), (0, 0))
    found = attributes(nl.recv(1 << 16)[20:])
    group = attributes(attributes(found[7])[1])
    return struct.unpack('H', found[1])[0], struct.unpack('I', group[2])[0]


def add(flags, loc_match, loc, more):
    return message(ILA, ADD, flags, attr(LOCATOR_MATCH, loc_match) + attr(LOCATOR, loc) + more)


ILA, GROUP = family()
what, words = sys.argv[1], sys.argv[2:]
if what in FLAGS:
    error = ask(add(FLAGS[what] | ACK, groups(words[0]), groups(words[1]), options(words[2:])))
    sys.exit(error)
elif what == 'del':
    sys.exit(ask(message(ILA, DEL, ACK, attr(LOCATOR_MATCH, groups(words[0])) + options(words[1:]))))
elif what == 'alternate':
    both = [add(REPLACE | ACK, groups(words[0]), groups(loc), options(words[3:])) for loc in words[1:3]]
    count = 0
    while True:
        for request in both:
            error = ask(request)
            if error:
                sys.exit(error)
        count += 2
        if count % 100 == 0:
            print(count, flush=True)
elif what == 'load':
    count, each = int(words[0]), 256
    chunks = []
    for first in range(0, count, each):
        numbers = range(first, min(first + each, count))
        requests = [add(0, struct.pack('>Q', 0x20010db8 << 32 | n), struct.pack('>Q', 0xfd << 56 | n), b'') for n in numbers]
        requests[-1] = add(ACK, struct.pack('>Q', 0x20010db8 << 32 | numbers[-1]), struct.pack('>Q', 0xfd << 56), b'')
        chunks.append(b''.join(requests))
    start = time.monotonic()
    for chunk in chunks:
        error = ask(chunk)
        if error:
            sys.exit(error)
    print(f'{time.monotonic() - start:.2f} s for {count} mappings in {len(chunks)} datagrams', flush=True)
elif what == 'events':
    nl.setsockopt(270, 1, GROUP)
    print('listens', flush=True)
    while True:
        data = nl.recv(1 << 16)
        flags, command = struct.unpack_from('H', data, 6)[0], data[16]
        found = attributes(data[20:])
        loc = found.get(LOCATOR, b'').hex()
        print(command, hex(flags), loc, found.get(IDENTIFIER, b'').hex() or 'all', flush=True)
else:
    sys.exit(f'unknown word {what}')
