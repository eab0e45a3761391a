//! Linux's behaviour, a second algorithm, and every order and shape in which fragments can come.
//!
//! | rule | shown by |
//! |---|---|
//! | keys, users, L3 domains | `limits`: `datagrams_that_differ_in_their_key_…`, `pieces_from_two_links_join_…`; `users`: `each_user_and_each_domain_…` |
//! | tables and their limits | `users`: `users_of_ipv4_share_one_limit_…`, `usage_is_that_of_each_table` |
//! | contexts that may join pieces | `users`: `local_delivery_alone_joins_pieces_…`, `each_piece_is_one_child_…` |
//! | runs in an ordered tree | `runs.rs`; `orders`: `sixty_four_kib_in_pieces_of_8_bytes_take_linear_time_…` |
//! | duplicates, overlaps, ends, empty and odd lengths, ECN, DSCP | `kernel_table`; `ecn.rs`; the list of holes (`model`, `orders`); the kernel itself (`tests/kernel`) |
//! | too long, headers cut short, atomic and nested fragments | `kernel_table` |
//! | timers, time exceeded, links that are gone | `limits`: `the_time_runs_from_…`; `kernel_table`: `a_datagram_that_times_out_…`; `users`: `of_a_link_that_is_gone_…`, `whoever_looks_at_ipv4_on_its_way_…` |
//! | the limit of memory | `limits` (Linux's policy), `fairness` (ours); `tests/kernel`: `a_full_table_refuses_…` |
//! | memory in use, when pieces are joined | `ring`: `memory_is_exactly_zero_…`; `check_invariants` after each fragment of every test |
//! | distance between fragments | `limits`: `a_queue_is_emptied_…`, `a_restarted_queue_…` |
//! | header of the result, checksums, DF, largest fragment | `shapes`: `sums_add_up_…`, `df_is_set_…`; `users`: `the_largest_fragment_is_remembered` |
//! | slots first, then children | `shapes`: `beyond_the_slots_there_are_children_…` |
//! | pages that go home at once | `ring` |
//! | pages that are gathered in one | `gathering` |
//! | pages that others share | `thin` |
//! | fragmentation, and again on the way | `fragmenting`, `refragmenting` |
//! | fragments that come together | `trains`: as one by one |
//! | tracking | `users`: `ipv6_tracking_…` |

mod fairness;
mod fragmenting;
mod gathering;
mod kernel_table;
mod limits;
#[path = "../model/mod.rs"]
mod model;
mod orders;
mod page_waste;
mod refragmenting;
mod ring;
mod shapes;
mod trains;
mod users;

use model::world;
