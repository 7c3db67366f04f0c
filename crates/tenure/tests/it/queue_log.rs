//! The queue's log: the same suite for both forms on every store, then what is special to each.

mod chaos;
mod committer;
mod damage;
mod disk;
mod end;
mod fuzz;
mod inspect;
mod objects;
mod property;
mod rules;
mod segments;
mod snapshots;
mod suite;
mod world;
mod writer;
