//! A key that several calls of one kind share: each is a job of another key, and uses the object of
//! this key without changing it.

use super::{Class, Job, Key, Running, busy};
use crate::call::{Failure, Rpc};
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// A share of the key, until dropped.
#[derive(Debug)]
pub struct Share<C: Class, T> {
    running: Arc<Running<C, T>>,
    key: Key<C>,
}

impl<C: Class, T> Share<C, T> {
    pub(super) fn new(
        running: &Arc<Running<C, T>>,
        key: Key<C>,
        rpc: Rpc,
    ) -> Result<Self, Failure> {
        match running.lock().entry(key.clone()) {
            Entry::Vacant(free) => {
                free.insert(Job::shared(rpc));
            }
            Entry::Occupied(mut taken) => {
                let job = taken.get_mut();
                if job.sharers == 0 || job.rpc != rpc {
                    return Err(Failure::busy(busy(&key, &job.view(), rpc)));
                }
                job.sharers += 1;
            }
        }
        let running = Arc::clone(running);
        Ok(Self { running, key })
    }
}

impl<C: Class, T> Drop for Share<C, T> {
    fn drop(&mut self) {
        let mut running = self.running.lock();
        let Some(job) = running.get_mut(&self.key) else {
            return;
        };
        job.sharers -= 1;
        if job.sharers == 0 {
            running.remove(&self.key);
        }
    }
}
