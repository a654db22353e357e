//! Checks whether a volume supports the requested capabilities. If the volume does not support a
//! capability, the check returns this as its result, not as an error.

use super::{Operations, create, lookup, support};
use crate::backend::Usage;
use belay_contract::drivers::VOLUME_NAME;
use belay_contract::encryption::{self, Encryption};
use belay_contract::format::{self, FormatOptions};
use belay_server::call::Failure;
use belay_server::request::{Capability, Context, ValidateCapabilities};

/// The result of a validation of capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The volume supports all capabilities.
    Confirmed,
    /// The volume does not support the request. Contains the reason.
    Refused(String),
}

impl Operations {
    /// Checks whether the volume supports all requested capabilities.
    ///
    /// # Errors
    /// Returns `NotFound` if the volume does not exist, and the errors of [`lookup::ready`].
    pub async fn validate(&self, request: ValidateCapabilities) -> Result<Verdict, Failure> {
        let volume = lookup::ready(self.volume(request.id, request.secrets).await?)?;
        for (n, capability) in request.capabilities.iter().enumerate() {
            let refused = |why| Ok(Verdict::Refused(format!("volume_capabilities[{n}]: {why}")));
            if let Some(why) = support::refusal(&self.rules.profile, capability) {
                return refused(why);
            }
            if support::is_shared(&self.rules.profile, capability) && !volume.shares {
                return refused(support::ONE_NODE.to_owned());
            }
            if let Some(why) = volume.usage.as_ref().and_then(|it| misused(it, capability)) {
                return refused(why);
            }
        }
        let context = match &volume.context {
            Some(own) => agrees(&request.volume_context, own),
            None => Ok(()),
        };
        let parameters = self
            .sizes(&request.parameters, &support::usage(&request.capabilities))
            .map(drop);
        let mutable = self.refuse_immutable(&request.mutable_parameters);
        Ok(match context.and(parameters).and(mutable) {
            Ok(()) => Verdict::Confirmed,
            Err(failure) => Verdict::Refused(failure.message),
        })
    }
}

/// The request field that contains the volume context.
const FIELD: &str = "volume_context";

/// Refuses a volume context in a request that differs from the context of the volume.
fn agrees(given: &Context, own: &Context) -> Result<(), Failure> {
    let keys = own.iter().map(|(key, _)| key);
    let keys = keys.chain(format::PARAMETERS.iter().copied());
    let keys = keys.chain(encryption::PARAMETERS.iter().copied());
    let keys: Vec<_> = keys.chain([VOLUME_NAME]).collect();
    support::refuse_unknown(FIELD, given, &keys)?;
    // Check the format options separately, since backends do not store these options.
    FormatOptions::read(FIELD, given)?;
    Encryption::requested(FIELD, given)?;
    let differs = |(key, is): &(&str, &str)| given.get(key).is_some_and(|asked| asked != *is);
    match own.iter().find(differs) {
        None => Ok(()),
        Some((key, is)) => {
            let why = format_args!("{key:?} must be {is:?} for this volume");
            Err(Failure::invalid(FIELD, why))
        }
    }
}

/// Explains why a volume that was created for `usage` does not support the capability; returns
/// `None` if the volume supports it. This check is as strict as the check of a repeated
/// `CreateVolume` call, except that a capability without a filesystem type matches any filesystem.
fn misused(usage: &Usage, capability: &Capability) -> Option<String> {
    let asked = support::usage(std::slice::from_ref(capability));
    match (usage, &asked) {
        (Usage::Filesystem(_), Usage::Filesystem(any)) if any.is_empty() => None,
        (usage, asked) if usage == asked => None,
        (usage, asked) => {
            let (is, asked) = (create::describe(usage), create::describe(asked));
            Some(format!("the volume was created for {is}, not for {asked}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::request::{Access, AccessMode, MountFlags};

    fn refusal(created_for: &Usage, fs_type: Option<&str>) -> Option<String> {
        let access = match fs_type {
            None => Access::Block,
            Some(fs_type) => Access::Mount {
                fs_type: fs_type.to_owned(),
                flags: MountFlags::default(),
                group: String::new(),
            },
        };
        let mode = AccessMode::SingleNodeWriter;
        misused(created_for, &Capability { access, mode })
    }

    #[test]
    fn a_volume_supports_what_it_was_created_for_and_a_filesystem_that_is_not_named() {
        let of = |fs_type: &str| Usage::Filesystem(fs_type.to_owned());
        for (created_for, asked) in [
            (Usage::Block, None),
            (of("xfs"), Some("xfs")),
            (of("xfs"), Some("")),
            (of(""), Some("")),
        ] {
            assert_eq!(refusal(&created_for, asked), None);
        }
        for (created_for, asked, is, wanted) in [
            (Usage::Block, Some(""), "raw block", "any filesystem"),
            (of("xfs"), None, "xfs", "raw block"),
            (of("xfs"), Some("ext4"), "xfs", "ext4"),
            (of(""), Some("ext4"), "any filesystem", "ext4"),
        ] {
            let why = format!("the volume was created for {is}, not for {wanted}");
            assert_eq!(refusal(&created_for, asked), Some(why));
        }
    }
}
