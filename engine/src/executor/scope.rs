//! Lending borrowed shards to threads that live longer.
//!
//! This is one of the rooms in which `unsafe` is allowed, for the one thing that a scoped pool
//! of long-lived threads cannot say in types.
#![allow(unsafe_code)]

use std::mem;

use super::Shard;

/// Makes shards that can be handed to a worker thread.
///
/// Only [`Executor::run`](super::Executor::run) calls this, and it keeps the promise that makes
/// it sound: it does not return, not even by unwinding, before every shard was run to its end.
pub(super) fn lend(shards: Vec<Shard<'_>>) -> Vec<Shard<'static>> {
    shards
        .into_iter()
        .map(|shard| {
            // SAFETY: the types differ in the lifetime only. The caller waits until the shard
            // was consumed by being run, with panics caught, while what it borrows is alive.
            unsafe { mem::transmute::<Shard<'_>, Shard<'static>>(shard) }
        })
        .collect()
}
