//! Tests of the library from outside.

mod common;

mod acquire;
mod aevents;
mod algorithms;
mod crypto;
mod device;
mod direction;
mod engine;
mod esp;
mod lifetimes;
mod nat;
mod nonces;
mod outer;
mod owners;
mod pieces;
mod policy;
mod refused;
mod replay;
mod sad;
mod segments;
mod spd;
mod tfc;
mod update;
