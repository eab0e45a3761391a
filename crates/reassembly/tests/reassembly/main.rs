//! Linux's behaviour, a second algorithm, and every order and shape of fragments.
//!
//! | rule | tests |
//! |---|---|
//! | keys, users, L3 domains | `limits`: `datagrams_that_differ_in_their_key_…`, `fragments_of_two_links_join_…`; `users`: `users_and_domains_…` |
//! | tables and their limits | `users`: `users_of_one_family_share_…`, `usage_is_per_family` |
//! | fragments that join, or stay packets | `users`: `fragments_join_unless_…`, `each_fragment_of_any_geometry_…` |
//! | ordered tree of ranges | `range_tree.rs`; `orders`: `fragments_take_the_same_time_…` |
//! | duplicates, overlaps, ends, empty and odd lengths, ECN, DSCP | `kernel_table`; `ecn.rs`; the list of holes (`model`, `orders`); the kernel itself (`tests/kernel`) |
//! | too long, truncated headers, atomic and nested fragments | `kernel_table` |
//! | timers, time exceeded, removed links | `limits`: `timeout_starts_with_…`; `kernel_table`: `timeout_quotes_…`; `users`: `timeout_of_removed_link_…` |
//! | the limit of memory | `limits` (Linux's policy), `fairness` (ours); `tests/kernel`: `a_full_table_refuses_…` |
//! | memory in use, coalescing | `ring`: `memory_is_exactly_zero_…`; `check_invariants` after each fragment of every test |
//! | distance between fragments | `limits`: `queue_is_emptied_…`, `restarted_queue_…` |
//! | header of the result, checksums, DF | `shapes`: `checksums_add_up_…`, `df_is_set_…` |
//! | slots first, then children | `shapes`: `fragments_beyond_the_slots_…` |
//! | pages that are freed at once | `ring` |
//! | fragments copied to one page | `gathering` |
//! | shared pages | `page_waste` |
//! | fragmentation, also at the boundaries of children | `fragmenting` |
//! | bursts | `trains`: the same as single fragments |

mod fairness;
mod fragmenting;
mod gathering;
mod kernel_table;
mod limits;
#[path = "../model/mod.rs"]
mod model;
mod orders;
mod page_waste;
mod ring;
mod shapes;
mod trains;
mod users;

use model::world;
