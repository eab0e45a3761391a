//! smoltcp: an interface over a device in memory, and a UDP socket.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::udp::{PacketBuffer, PacketMetadata, Socket};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr, IpEndpoint};

use crate::train::{BURST, Train};

pub const HOW: &str = "smoltcp 0.14: Interface::poll over a device in memory that has received bursts of 64, with its largest \
                       reassembly buffers (4 of 64 KiB, 32 holes); each fragment in a Vec that is freed, and the socket \
                       read, within the measured time. It does not reassemble IPv6";

/// Nanoseconds per fragment of the median pass; passes take at least `length` in total.
pub fn measure(train: &Train, length: Duration) -> Result<f64, String> {
    let IpAddr::V4(own) = train.flow.dst else { return Err("it has no reassembly of IPv6".to_owned()) };
    let mut device = Memory { waiting: VecDeque::new(), is_verified: train.is_verified };
    let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut device, Instant::ZERO);
    interface.update_ip_addrs(|all| _ = all.push(IpCidr::new(own.into(), 24)));
    let buffer = || PacketBuffer::new(vec![PacketMetadata::EMPTY; BURST], vec![0; 4 << 20]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.bind(IpEndpoint::new(own.into(), train.flow.dport)).map_err(|err| err.to_string())?;
    let mut sockets = SocketSet::new(Vec::new());
    let socket = sockets.add(socket);
    let mut came = 0;
    let mut pass = || {
        let mut bursts: Vec<VecDeque<Vec<u8>>> = train.bursts().map(|burst| burst.iter().cloned().collect()).collect();
        let start = std::time::Instant::now();
        for burst in &mut bursts {
            device.waiting = std::mem::take(burst);
            interface.poll(Instant::ZERO, &mut device, &mut sockets);
            while sockets.get_mut::<Socket<'_>>(socket).recv().is_ok() {
                came += 1;
            }
        }
        start.elapsed()
    };
    let (nanos, passes) = crate::middle(length, &mut pass);
    if came != passes * train.datagrams as u64 {
        return Err(format!("{came} of {} datagrams came", passes * train.datagrams as u64));
    }
    Ok(nanos / train.fragments.len() as f64)
}

/// A device that has received the given packets, and drops sent ones.
struct Memory {
    waiting: VecDeque<Vec<u8>>,
    is_verified: bool,
}

struct Received(Vec<u8>);
struct Forgotten;

impl Device for Memory {
    type RxToken<'a> = Received;
    type TxToken<'a> = Forgotten;

    fn receive(&mut self, _: Instant) -> Option<(Received, Forgotten)> {
        Some((Received(self.waiting.pop_front()?), Forgotten))
    }

    fn transmit(&mut self, _: Instant) -> Option<Forgotten> {
        Some(Forgotten)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        (capabilities.medium, capabilities.max_transmission_unit) = (Medium::Ip, 1500);
        capabilities.checksum.udp = if self.is_verified { Checksum::None } else { Checksum::Both };
        capabilities
    }
}

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

impl TxToken for Forgotten {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        fill(&mut vec![0; len])
    }
}
