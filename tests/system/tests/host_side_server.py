"""Returns datagrams to port 9000, and tells each connection to port 9001 the number of bytes that it has sent."""

import socket
import threading


def datagrams():
    own = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    own.bind(("::", 9000))
    while True:
        data, peer = own.recvfrom(70000)
        own.sendto(data, peer)


listener = socket.socket(socket.AF_INET6)
listener.bind(("::", 9001))
listener.listen()
threading.Thread(target=datagrams, daemon=True).start()
while True:
    peer, _ = listener.accept()
    count = 0
    while data := peer.recv(1 << 20):
        count += len(data)
    peer.sendall(str(count).encode())
    peer.close()
