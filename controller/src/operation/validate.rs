//! Can a volume be used that way? A no is an answer, not a failure.

use super::{Operations, create, phase, support};
use crate::backend::Usage;
use belay_server::call::Failure;
use belay_server::request::{Capability, GetVolume, ValidateCapabilities};

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
    /// `NotFound`; those of [`phase::ready`].
    pub async fn validate(&self, request: ValidateCapabilities) -> Result<Verdict, Failure> {
        let volume = phase::ready(self.get(GetVolume { id: request.id }).await?)?;
        for (n, capability) in request.capabilities.iter().enumerate() {
            let refused = |why| Ok(Verdict::Refused(format!("volume_capabilities[{n}]: {why}")));
            if let Some(why) = support::refusal(capability) {
                return refused(why);
            }
            if let Some(why) = misused(&volume.usage, capability) {
                return refused(why);
            }
        }
        let [context, mutable] = [
            ("volume_context", &request.volume_context),
            ("mutable_parameters", &request.mutable_parameters),
        ]
        .map(|(field, given)| support::refuse_unknown(field, given, &[]));
        let parameters = self.sizes(&request.parameters).map(drop);
        Ok(match context.and(parameters).and(mutable) {
            Ok(()) => Verdict::Confirmed,
            Err(failure) => Verdict::Refused(failure.message),
        })
    }
}

/// Why a volume made for that use is not to be used so; none if it is. As strict as a repeated
/// `CreateVolume`, save that every filesystem will do where none is named.
fn misused(usage: &Usage, capability: &Capability) -> Option<String> {
    let asked = support::usage(std::slice::from_ref(capability));
    match (usage, &asked) {
        (Usage::Filesystem(_), Usage::Filesystem(any)) if any.is_empty() => None,
        (usage, asked) if usage == asked => None,
        (usage, asked) => {
            let (is, asked) = (create::describe(usage), create::describe(asked));
            Some(format!(
                "the volume was made for {is}, asked for is {asked}"
            ))
        }
    }
}
