//! What Linux does with fragments, a second algorithm, and every order and shape that they can come in.

mod fragmenting;
mod kernel_table;
mod limits;
#[path = "../model/mod.rs"]
mod model;
mod orders;
mod shapes;

use model::world;
