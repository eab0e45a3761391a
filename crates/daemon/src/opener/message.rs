//! Messages between a gateway and an opener: a JSON value in each message of a socket pair, with descriptors.
//!
//! Each order has a number, which its answer repeats: an answer may come after its order was given up. Descriptors above those
//! that one message carries come in further ones, which have the number alone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use client::passing::{self, MAX_DESCRIPTORS};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest message in bytes.
pub(crate) const MAX_LEN: usize = 32 << 10;

/// Descriptors of an order or an answer at most: queues of a device, or sockets of all shards and queues.
const MOST: usize = 512;

/// One message: the number of an order, the order or answer, and the count of descriptors that come in further messages.
#[derive(Deserialize, Serialize)]
struct Part<T>(u64, T, usize);

/// A received order or answer.
#[derive(Debug)]
pub(crate) enum Incoming<T> {
    /// A message that can be read.
    Whole(u64, T, Vec<OwnedFd>),
    /// An order with this number that is none, with the reason.
    Malformed(u64, String),
    /// Part of an answer that was given up.
    Rest,
    /// The other side has closed.
    End,
}

/// Sends an order, or the answer to one, with the order's number.
///
/// # Errors
/// Errors of sendmsg(2); `InvalidInput`: the message or its descriptors are too many.
pub(crate) fn send(
    socket: impl AsFd,
    number: u64,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let (first, others) = descriptors.split_at(descriptors.len().min(MAX_DESCRIPTORS));
    let bytes = serde_json::to_vec(&Part(number, message, others.len()))?;
    if bytes.len() > MAX_LEN || descriptors.len() > MOST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    passing::send(&socket, &bytes, first)?;
    let mut left = others.len();
    for more in others.chunks(MAX_DESCRIPTORS) {
        left -= more.len();
        passing::send(&socket, &serde_json::to_vec(&Part(number, (), left))?, more)?;
    }
    Ok(())
}

/// Receives an order or an answer.
///
/// # Errors
/// Errors of recvmsg(2); the descriptors of a message do not come.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Incoming<T>> {
    let mut buffer = vec![0; MAX_LEN];
    let (len, mut descriptors) = match passing::receive(&socket, &mut buffer) {
        Ok((0, _)) => return Ok(Incoming::End),
        Ok(received) => received,
        Err(err) if err.kind() == io::ErrorKind::InvalidData => {
            return Ok(Incoming::Malformed(0, format!("it is longer than {MAX_LEN} bytes")));
        }
        Err(err) => return Err(err),
    };
    let (number, message, mut left) = match parse(&buffer[..len]) {
        Ok((_, None, _)) => return Ok(Incoming::Rest),
        Ok((number, Some(message), left)) => (number, message, left),
        Err((number, why)) => return Ok(Incoming::Malformed(number, why)),
    };
    while left > 0 {
        let (len, more) = passing::receive(&socket, &mut buffer)?;
        match parse::<T>(&buffer[..len]) {
            Ok((of, None, then)) if of == number && !more.is_empty() && then + more.len() == left => left = then,
            _ => return Ok(Incoming::Malformed(number, "descriptors are missing".to_owned())),
        }
        descriptors.extend(more);
    }
    Ok(Incoming::Whole(number, message, descriptors))
}

/// The number of a message, the order or answer in its first part, and the count of descriptors in further ones.
///
/// # Errors
/// The number, if it can be read, and the reason.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<(u64, Option<T>, usize), (u64, String)> {
    let Part(number, message, left): Part<Value> = serde_json::from_slice(bytes).map_err(|err| (0, err.to_string()))?;
    if left > MOST {
        return Err((number, format!("{left} descriptors are more than {MOST}")));
    }
    let message = match message {
        Value::Null => None,
        message => Some(serde_json::from_value(message).map_err(|err| (number, err.to_string()))?),
    };
    Ok((number, message, left))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn descriptors_of_a_device_with_many_queues_arrive_in_order() {
        let (ours, theirs) = pair();
        let file = File::open("/dev/null").unwrap();
        for count in [0, 1, MAX_DESCRIPTORS, MAX_DESCRIPTORS + 1, 100] {
            send(&ours, 7, &"queues", &vec![file.as_fd(); count]).unwrap();
            let Incoming::Whole(7, text, descriptors) = receive::<String>(&theirs).unwrap() else { panic!("{count}") };
            assert_eq!((text.as_str(), descriptors.len()), ("queues", count));
        }
        let many = vec![file.as_fd(); MOST + 1];
        assert_eq!(send(&ours, 7, &"queues", &many).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        drop(ours);
        assert!(matches!(receive::<String>(&theirs), Ok(Incoming::End)));
    }

    #[test]
    fn rest_of_an_answer_that_was_given_up_is_skipped() {
        let (ours, theirs) = pair();
        passing::send(&ours, b"[7,null,8]", &[]).unwrap();
        assert!(matches!(receive::<String>(&theirs), Ok(Incoming::Rest)));
    }

    #[test]
    fn malformed_messages_are_refused_with_their_number() {
        let cases: [(&[u8], u64, &str); 7] = [
            (b"", 0, ""),
            (b"[7,\"a\"", 0, "EOF"),
            (b"{}", 0, "invalid type"),
            (b"[7,{\"Halt\":1},0]", 7, "invalid type: map"),
            (b"[7,\"a\",513]", 7, "513 descriptors are more than 512"),
            (b"[-1,\"a\",0]", 0, "invalid value"),
            (b"[7,\"a\",0,0]", 0, "trailing"),
        ];
        for (bytes, number, why) in cases {
            let (of, text) = parse::<String>(bytes).unwrap_err();
            assert!(of == number && text.contains(why), "{of} {text}");
        }
    }

    #[test]
    fn long_message_and_missing_descriptors_are_refused() {
        let (ours, theirs) = pair();
        passing::send(&ours, &vec![b' '; MAX_LEN + 1], &[]).unwrap();
        let Ok(Incoming::Malformed(0, why)) = receive::<String>(&theirs) else { panic!("it is read") };
        assert_eq!(why, "it is longer than 32768 bytes");
        for second in [&b"[7,null,1]"[..], b"[8,null,0]", b"[7,\"b\",0]", b"x"] {
            passing::send(&ours, b"[7,\"a\",1]", &[]).unwrap();
            passing::send(&ours, second, &[]).unwrap();
            let Ok(Incoming::Malformed(7, why)) = receive::<String>(&theirs) else { panic!("it is read") };
            assert_eq!(why, "descriptors are missing");
        }
    }
}
