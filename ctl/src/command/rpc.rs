//! `belayctl rpc`: any call of any gRPC service, with the message as JSON. The command gets the
//! descriptors from the driver by gRPC reflection. If the driver does not serve reflection, the
//! command uses its built-in descriptors of CSI 1.13.

use clap::Args;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MessageDescriptor, Value as Field};
use serde_json::Value;

use crate::call::{self, Call};
use crate::failure::Failure;
use crate::render::{Answer, Cell, Rows};
use crate::secrets::Secrets;
use crate::target::Target;

const EXAMPLES: &str = "\
Examples:
  belayctl rpc                                # lists the methods
  belayctl rpc NodeGetInfo
  belayctl rpc CreateVolume --template        # prints a request to fill in
  belayctl rpc ControllerGetVolume '{\"volume_id\": \"vol-1\"}'
  belayctl rpc csi.v1.Node/NodeStageVolume @request.json --secret-env key=KEY";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Rpc {
    /// Method, as Method or package.Service/Method [default: list all]
    method: Option<String>,
    /// The request in the JSON mapping of protobuf; @FILE reads a file, `-` standard input
    #[arg(value_name = "JSON", default_value = "{}", hide_default_value = true)]
    message: String,
    /// Print an empty request instead of calling
    #[arg(long)]
    template: bool,
    #[command(flatten)]
    secrets: Secrets,
}

impl Rpc {
    /// Makes the call, and returns the response.
    ///
    /// # Errors
    /// Fails with [`Failure`] if the request is invalid or the call fails.
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        // The list of methods and a template need no driver, so the socket is optional. For a
        // method without a built-in descriptor, the user must name the socket.
        let service = match (&target.endpoint, &self.method) {
            (None, Some(name)) => call::service(&call::method(call::own()?, name)?),
            _ => "identity",
        };
        let connection = match target.endpoint.is_none() && (self.template || self.method.is_none())
        {
            true => None,
            false => Some(target.connect(service).await?),
        };
        let descriptors = match &connection {
            None => call::own()?.clone(),
            Some(connection) => connection.descriptors().await?,
        };
        let Some(name) = &self.method else {
            return Ok(list(&descriptors));
        };
        let method = call::method(&descriptors, name)?;
        let Some(connection) = connection.filter(|_| !self.template) else {
            let options = call::options().skip_default_fields(false);
            let empty = call::to_json(&template(&method.input(), DEPTH), &options)?;
            return Ok(Answer::Json(empty));
        };
        let mut call = Call::read(method, &self.message)?;
        call.add_secrets(&self.secrets)?;
        let shown = |mut answer: Value| {
            target.visibility.message(&mut answer);
            Answer::Json(answer)
        };
        if !call.method.is_server_streaming() {
            return Ok(shown(connection.unary(&call).await?));
        }
        let mut stream = connection.stream(&call).await?;
        while let Some(message) = stream.next().await? {
            target.print(&shown(message))?;
        }
        Ok(Answer::Printed)
    }
}

fn list(pool: &DescriptorPool) -> Answer {
    let methods = pool.services().flat_map(|service| {
        let name = service.full_name().to_owned();
        let methods: Vec<_> = service.methods().collect();
        methods.into_iter().map(move |method| {
            let stream = if method.is_server_streaming() {
                "stream "
            } else {
                ""
            };
            vec![
                Cell::Text(format!("{name}/{}", method.name())),
                Cell::Text(method.input().name().to_owned()),
                Cell::Text(format!("{stream}{}", method.output().name())),
            ]
        })
    });
    let columns = ["method", "request", "response"];
    Answer::Rows(Rows {
        narrow: 1,
        ..Rows::new("methods", &columns, methods)
    })
}

/// Maximum nesting of messages in a template; CSI has four levels.
const DEPTH: usize = 5;

/// Returns a message with empty messages in its fields, nested to `depth`. Of the fields of a
/// oneof, only the last is set, for example `mount` in a volume capability.
fn template(descriptor: &MessageDescriptor, depth: usize) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let Kind::Message(inner) = field.kind() else {
            continue;
        };
        let oneof = field.containing_oneof();
        let is_chosen = oneof.is_none_or(|oneof| oneof.fields().last().as_ref() == Some(&field));
        if field.is_map() || !is_chosen || depth == 0 {
            continue;
        }
        let inner = Field::Message(template(&inner, depth - 1));
        let value = match field.is_list() {
            true => Field::List(vec![inner]),
            false => inner,
        };
        message.set_field(&field, value);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_has_the_messages_in_lists_and_of_alternatives_one() {
        let create = call::method(call::own().unwrap(), "CreateVolume").unwrap();
        let text = template(&create.input(), DEPTH).to_string();
        for part in [
            "capacity_range",
            "volume_capabilities",
            "access_mode",
            "mount",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("block"), "{text}");
    }
}
