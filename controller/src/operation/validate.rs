//! Can a volume be used that way? A no is an answer, not a failure.

use super::{Operations, create, phase, support};
use crate::backend::Usage;
use belay_server::call::Failure;
use belay_server::request::{Capability, Context, GetVolume, ValidateCapabilities};

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
            if let Some(why) = volume.usage.as_ref().and_then(|it| misused(it, capability)) {
                return refused(why);
            }
        }
        let context = match &volume.context {
            Some(own) => agrees(&request.volume_context, own),
            None => Ok(()),
        };
        let parameters = self.sizes(&request.parameters).map(drop);
        let mutable = &request.mutable_parameters;
        let mutable = support::refuse_unknown("mutable_parameters", mutable, &[]);
        Ok(match context.and(parameters).and(mutable) {
            Ok(()) => Verdict::Confirmed,
            Err(failure) => Verdict::Refused(failure.message),
        })
    }
}

/// Refuses a volume context that is not the volume's own.
fn agrees(given: &Context, own: &Context) -> Result<(), Failure> {
    let keys: Vec<_> = own.iter().map(|(key, _)| key).collect();
    support::refuse_unknown("volume_context", given, &keys)?;
    let differs = |(key, is): &(&str, &str)| given.get(key).is_some_and(|asked| asked != *is);
    match own.iter().find(differs) {
        None => Ok(()),
        Some((key, is)) => {
            let why = format_args!("{key:?} is {is:?} for this volume");
            Err(Failure::invalid("volume_context", why))
        }
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
