//! What Linux does with fragments, a second algorithm, and every order and shape that they can come in.

mod fairness;
mod fragmenting;
mod kernel_table;
mod limits;
mod lowpan;
#[path = "../model/mod.rs"]
mod model;
mod orders;
mod refragmenting;
mod ring;
mod shapes;
mod users;

use model::world;
