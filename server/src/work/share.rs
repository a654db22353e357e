//! A key that several calls of one kind share: each is a job of another key, and uses the object of
//! this key without changing it.

use super::{Job, Running, busy};
use crate::call::{Failure, Rpc};
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// A share of the key, until dropped.
#[derive(Debug)]
pub struct Share<T> {
    running: Arc<Running<T>>,
    key: Arc<str>,
}

impl<T> Share<T> {
    pub(super) fn new(running: &Arc<Running<T>>, key: &str, rpc: Rpc) -> Result<Self, Failure> {
        let key: Arc<str> = key.into();
        match running.lock().entry(Arc::clone(&key)) {
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

impl<T> Drop for Share<T> {
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
