//! Doubly linked lists through the nodes of a slab, with O(1) append and removal.

/// Index that stands for no node.
pub(crate) const NONE: u32 = u32::MAX;

/// A node's neighbours in one list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    prev: u32,
    next: u32,
}

/// First and last node of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl Links {
    /// Links of an unlisted node.
    pub(crate) const UNLINKED: Self = Self { prev: NONE, next: NONE };

    /// The next node, or [`NONE`].
    pub(crate) const fn next(self) -> u32 {
        self.next
    }
}

impl List {
    /// A list without nodes.
    pub(crate) const EMPTY: Self = Self { head: NONE, tail: NONE };

    /// The first node, or [`NONE`].
    pub(crate) const fn head(&self) -> u32 {
        self.head
    }

    /// Appends the node `at`, which is in no list of this kind; `links` returns a node's links of the kind.
    pub(crate) fn push_back<N>(&mut self, nodes: &mut [N], at: u32, links: impl Fn(&mut N) -> &mut Links) {
        *links(&mut nodes[at as usize]) = Links { prev: self.tail, next: NONE };
        if self.tail == NONE {
            self.head = at;
        } else {
            links(&mut nodes[self.tail as usize]).next = at;
        }
        self.tail = at;
    }

    /// Removes the node `at`, which is in this list.
    pub(crate) fn remove<N>(&mut self, nodes: &mut [N], at: u32, links: impl Fn(&mut N) -> &mut Links) {
        let Links { prev, next } = *links(&mut nodes[at as usize]);
        if prev == NONE {
            assert_eq!(self.head, at, "node {at} is not in the list");
            self.head = next;
        } else {
            links(&mut nodes[prev as usize]).next = next;
        }
        if next == NONE {
            self.tail = prev;
        } else {
            links(&mut nodes[next as usize]).prev = prev;
        }
        *links(&mut nodes[at as usize]) = Links::UNLINKED;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes_of(list: List, nodes: &[Links]) -> Vec<u32> {
        let next = |at: u32| (at != NONE).then_some(at);
        std::iter::successors(next(list.head()), |&at| next(nodes[at as usize].next())).collect()
    }

    #[test]
    fn list_keeps_its_order_when_any_node_is_removed() {
        for removed in 0..4 {
            let mut nodes = [Links::UNLINKED; 4];
            let mut list = List::EMPTY;
            for at in 0..4 {
                list.push_back(&mut nodes, at, |links| links);
            }
            list.remove(&mut nodes, removed, |links| links);
            let mut want: Vec<u32> = (0..4).filter(|at| *at != removed).collect();
            assert_eq!(nodes_of(list, &nodes), want);
            list.push_back(&mut nodes, removed, |links| links);
            want.push(removed);
            assert_eq!(nodes_of(list, &nodes), want);
        }
    }

    #[test]
    fn list_is_empty_after_its_last_node() {
        let mut nodes = [Links::UNLINKED; 2];
        let mut list = List::EMPTY;
        list.push_back(&mut nodes, 1, |links| links);
        list.remove(&mut nodes, 1, |links| links);
        assert_eq!(nodes_of(list, &nodes), []);
        list.push_back(&mut nodes, 0, |links| links);
        assert_eq!(nodes_of(list, &nodes), [0]);
    }
}
