//! Attaching and detaching. For files on the node itself this only changes records, but it
//! guarantees that an attached volume is not deleted, and that a volume bound on the node is not
//! detached.

use super::loops::Device;
use super::record::{Attached, Record};
use super::store::{Store, ready, whole_bytes};
use crate::backend::attachments::attached_elsewhere;
use crate::backend::{AttachOrder, Attachment, Terms};
use belay_contract::publish_context::Transport;
use belay_server::call::Failure;
use belay_server::request::NodeId;

impl Store {
    pub(super) fn attach(&self, order: &AttachOrder) -> Result<Attachment, Failure> {
        let id = order.id.as_str();
        let mut record = ready(id, self.ledger.get(id)?)?;
        if order.node != self.node {
            return Err(Failure::not_found(format!(
                "node {}: not found; the volumes of this controller are on node {}",
                order.node, self.node
            )));
        }
        let backing = self.backing(id)?;
        whole_bytes(&backing, &record)?;
        let data = self.data_in(&backing, id, &record)?;
        if record.growing_from.is_some() {
            self.finish_growth(id, &backing)?;
        }
        backing.leave_there()?;
        // There is nothing to write, as in most repeated calls.
        if let Some(terms) = record.terms_on(&order.node)?
            && !record.observe(data, self.tells_holes)
        {
            self.remember_late(id, &backing);
            return Ok(attachment(id, terms, &record));
        }
        self.ledger.change(|changes| {
            let mut record = ready(id, changes.get(id)?)?;
            let observed = record.observe(data, self.tells_holes);
            let terms = match record.terms_on(&order.node)? {
                Some(terms) => {
                    if observed {
                        changes.put(id, &record)?;
                    }
                    terms
                }
                None => {
                    if let Some(other) = record.node() {
                        return Err(attached_elsewhere(&order.id, other, ""));
                    }
                    if let Some(target) = self.copies.reading(id) {
                        return Err(being_copied(id, &target));
                    }
                    within_limit(changes.attached_to(order.node.as_str())?, order)?;
                    // Link the file only while nothing can be staged: later, another file may be at
                    // the path.
                    self.remember_file(id)?;
                    record
                        .attached
                        .push(Attached::new(&order.node, &order.terms));
                    changes.put(id, &record)?;
                    order.terms.clone()
                }
            };
            Ok(attachment(id, terms, &record))
        })
    }

    pub(super) fn detach(&self, id: &str, node: &NodeId) -> Result<(), Failure> {
        let Some(record) = self.ledger.get(id)? else {
            return Ok(());
        };
        if record.terms_on(node)?.is_none() {
            return Ok(());
        }
        let device = self.device_of(id, &record)?;
        let backing = self.files.get(id)?;
        // Hold the lock until the record is updated, so that the node cannot bind the file in
        // between.
        if !backing.try_lock()? {
            backing.want_back();
            return Err(Failure::busy(format!(
                "volume {id}: still bound to a loop device on node {node}; it is detached once \
                 no pod uses it there and it is unstaged"
            )));
        }
        // A device holds the lock of the file to which it was bound, which may have been replaced
        // since.
        let replaced = self.replaced_file(id, &backing)?;
        if let Some(replaced) = &replaced
            && replaced.is_locked()?
        {
            backing.want_back();
            return Err(Failure::busy(format!(
                "volume {id}: its file was replaced, and the old one is still bound to a loop \
                 device on node {node}; delete the pods that use it there, so that it is unstaged"
            )));
        }
        if let Some(Device { path, file }) = device {
            backing.want_back();
            return Err(Failure::busy(format!(
                "volume {id}: {path} on node {node} is bound to {file:?}, the current or a former \
                 file of the volume; delete the pods that use it there; only if none does: \
                 losetup --detach {path}"
            )));
        }
        backing.leave_there()?;
        let data = backing.holds_data()?;
        self.ledger.change(|changes| {
            let Some(mut record) = changes.get(id)? else {
                return Ok(());
            };
            record
                .attached
                .retain(|attached| attached.node != node.as_str());
            record.observe(data, self.tells_holes);
            changes.put(id, &record)
        })?;
        // Unlink it only now: while the volume is attached, the second name protects it from a
        // replaced file.
        self.forget_file(id);
        Ok(())
    }
}

fn attachment(id: &str, terms: Terms, record: &Record) -> Attachment {
    let transport = Transport::Loop {
        file: id.to_owned(),
    };
    Attachment {
        terms,
        transport,
        bytes: record.bytes,
        content: record.content(),
        attached_at: None,
        disk_name: None,
    }
}

fn within_limit(attached: usize, order: &AttachOrder) -> Result<(), Failure> {
    match order.node_limit {
        Some(limit) if attached >= limit => Err(Failure::quota(format!(
            "node {}: attach limit reached: {attached} of {limit} volumes (--max-volumes)",
            order.node
        ))),
        _ => Ok(()),
    }
}

/// Returns the error for a volume that must not change until it is completely copied to `target`.
fn being_copied(id: &str, target: &str) -> Failure {
    Failure::busy(format!(
        "volume {id}: {target} is being copied from it; repeat the call when {target} is ready"
    ))
}
