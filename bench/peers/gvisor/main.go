// Command gvisor-reassembly measures the reassembly of datagrams in gVisor's network stack, with the input of the other
// implementations in the parent directory, and prints the cost of a fragment.
//
// It reads fragments from standard input: each a length of four bytes, big-endian, and a complete IP packet. It injects
// them into a stack with a channel endpoint, IPv4 and IPv6, and a UDP endpoint that is read after each pass, and prints
// the nanoseconds per fragment of the median pass within the given time.
package main

import (
	"bufio"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const nic = 1

func main() {
	port := flag.Int("port", 5201, "the UDP port that the datagrams are for")
	address := flag.String("address", "", "the address that they are for, as 4 or 16 bytes in hexadecimal")
	datagrams := flag.Int("datagrams", 0, "how many of them one pass has")
	length := flag.Duration("time", 50*time.Millisecond, "how long to measure")
	flag.Parse()
	var raw []byte
	if _, err := fmt.Sscanf(*address, "%x", &raw); err != nil {
		fail("address: %v", err)
	}
	fragments := read(bufio.NewReader(os.Stdin))
	node, endpoint, socket := newStack(tcpip.AddrFromSlice(raw), uint16(*port))
	defer node.Destroy()

	protocol := tcpip.NetworkProtocolNumber(header.IPv4ProtocolNumber)
	if len(raw) == 16 {
		protocol = header.IPv6ProtocolNumber
	}
	pass := func() time.Duration {
		// A device driver fills its buffers before the clock starts.
		packets := make([]*stack.PacketBuffer, len(fragments))
		for at, fragment := range fragments {
			packets[at] = stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(fragment)})
		}
		start := time.Now()
		for _, packet := range packets {
			endpoint.InjectInbound(protocol, packet)
			packet.DecRef()
		}
		taken := time.Since(start)
		for came := 0; came < *datagrams; came++ {
			if _, err := socket.Read(io.Discard, tcpip.ReadOptions{}); err != nil {
				fail("%d of %d datagrams came: %v", came, *datagrams, err)
			}
		}
		return taken
	}
	pass()
	var taken []time.Duration
	for start := time.Now(); time.Since(start) < *length || len(taken) == 0; {
		taken = append(taken, pass())
	}
	slices.Sort(taken)
	fmt.Printf("%.1f\n", float64(taken[len(taken)/2])/float64(len(fragments)))
}

func newStack(address tcpip.Address, port uint16) (*stack.Stack, *channel.Endpoint, tcpip.Endpoint) {
	node := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{udp.NewProtocol},
	})
	endpoint := channel.New(16, 1500, "")
	endpoint.LinkEPCapabilities |= stack.CapabilityRXChecksumOffload
	check(node.CreateNIC(nic, endpoint))
	network := header.IPv4ProtocolNumber
	any := header.IPv4EmptySubnet
	if address.Len() == 16 {
		network, any = header.IPv6ProtocolNumber, header.IPv6EmptySubnet
	}
	own := tcpip.ProtocolAddress{Protocol: network, AddressWithPrefix: address.WithPrefix()}
	check(node.AddProtocolAddress(nic, own, stack.AddressProperties{}))
	node.SetRouteTable([]tcpip.Route{{Destination: any, NIC: nic}})
	var queue waiter.Queue
	socket, err := node.NewEndpoint(udp.ProtocolNumber, network, &queue)
	check(err)
	socket.SocketOptions().SetReceiveBufferSize(64<<20, false)
	check(socket.Bind(tcpip.FullAddress{Port: port}))
	return node, endpoint, socket
}

func read(from io.Reader) [][]byte {
	var fragments [][]byte
	for {
		var length uint32
		if err := binary.Read(from, binary.BigEndian, &length); err == io.EOF {
			return fragments
		} else if err != nil {
			fail("standard input: %v", err)
		}
		fragment := make([]byte, length)
		if _, err := io.ReadFull(from, fragment); err != nil {
			fail("standard input: %v", err)
		}
		fragments = append(fragments, fragment)
	}
}

func check(err tcpip.Error) {
	if err != nil {
		fail("%s", err)
	}
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}
