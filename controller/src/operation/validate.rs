//! Can a volume be used that way? A no is an answer, not a failure.

use super::{Operations, size, support};
use crate::backend::Usage;
use belay_server::failure::Failure;
use belay_server::request::{Access, GetVolume, ValidateCapabilities};

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// In all those ways.
    Confirmed,
    /// Not, and why.
    Refused(String),
}

impl Operations {
    /// Judges whether the volume can be used in all the ways asked for.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn validate(&self, request: ValidateCapabilities) -> Result<Verdict, Failure> {
        let volume = self.get(GetVolume { id: request.id }).await?;
        for (n, capability) in request.capabilities.iter().enumerate() {
            let refused = |why| Ok(Verdict::Refused(format!("volume_capabilities[{n}]: {why}")));
            if let Some(why) = support::refusal(capability) {
                return refused(why);
            }
            if let Access::Mount { fs_type, .. } = &capability.access {
                let usage = Usage::Filesystem(fs_type.clone());
                let smallest = size::smallest(&usage, self.backend.sizes());
                if volume.bytes < smallest {
                    let bytes = volume.bytes;
                    return refused(format!(
                        "the volume has {bytes} bytes, a filesystem needs {smallest}"
                    ));
                }
            }
        }
        for (field, parameters, known) in [
            ("parameters", &request.parameters, self.backend.parameters()),
            ("mutable_parameters", &request.mutable_parameters, &[]),
        ] {
            if let Err(failure) = support::refuse_unknown(field, parameters, known) {
                return Ok(Verdict::Refused(failure.message));
            }
        }
        Ok(Verdict::Confirmed)
    }
}
