//! Test geometries: every shape that the same bytes can have.

use crate::{Buf, Memory, Packet};

/// Packets with these bytes in each geometry, with the geometry's name. `cuts` are offsets of header ends, where bugs
/// are likely; offsets past the end are ignored.
///
/// # Panics
/// When `mem` is too small.
pub fn all(mem: &Memory, data: &[u8], cuts: &[usize]) -> Vec<(String, Packet)> {
    let buf = |bytes: &[u8]| {
        let mut buf = mem.take(64, bytes.len()).expect("memory for a test");
        buf.put(bytes.len()).expect("room for a test").copy_from_slice(bytes);
        buf
    };
    let mut all = vec![("linear".to_owned(), Packet::from_buf(buf(data)))];
    let mut shared = Packet::from_buf(buf(data));
    all.push(("shared head, gone".to_owned(), shared.clone_shared()));
    all.push(("foreign".to_owned(), Packet::from_buf(Buf::foreign(data.to_vec()))));
    all.push(("no room".to_owned(), {
        let mut full = mem.take(0, data.len()).expect("memory for a test");
        full.put(data.len()).expect("room for a test").copy_from_slice(data);
        let fill = full.tailroom();
        full.put(fill).expect("all of it");
        let front = full.split_to(data.len());
        Packet::from_buf(front)
    }));
    for &cut in cuts.iter().filter(|&&cut| cut <= data.len()) {
        let (front, back) = data.split_at(cut);
        let mut split = Packet::from_buf(buf(front));
        split.push_frag(buf(back)).expect("a free slot");
        all.push((format!("frag from {cut}"), split));
        let mut split = Packet::from_buf(buf(front));
        let mut page = buf(back);
        split.push_frag(page.share()).expect("a free slot");
        all.push((format!("frag from {cut}, once shared"), split));
        let mut split = Packet::from_buf(buf(front));
        split.push_frag(Buf::foreign(back.to_vec())).expect("a free slot");
        all.push((format!("foreign frag from {cut}"), split));
        let mut split = Packet::from_buf(buf(front));
        split.push_child(Packet::from_buf(buf(back)));
        all.push((format!("child from {cut}"), split));
    }
    for piece in [1, 7, data.len().div_ceil(20).max(1)] {
        let mut pieces = data.chunks(piece);
        let mut packet = Packet::from_buf(buf(pieces.next().unwrap_or_default()));
        for piece in pieces {
            if let Err(rest) = packet.push_frag(buf(piece)) {
                packet.push_child(Packet::from_buf(rest));
            }
        }
        all.push((format!("pieces of {piece}, slots then children"), packet));
    }
    let mut page = buf(data);
    let mut packet = Packet::from_buf(page.split_to(data.len().min(20)));
    while !page.is_empty() {
        let piece = page.split_to(page.len().min(300));
        packet.push_child(Packet::from_buf(piece));
    }
    all.push(("children of one page".to_owned(), packet));
    all
}
