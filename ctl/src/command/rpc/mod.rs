//! `belayctl rpc`: any call of any gRPC service, with the message as JSON. The descriptors are the
//! driver's, by gRPC reflection; of a driver without it, those of CSI 1.13 in this program.

mod codec;
mod pool;
mod reflection;
mod template;

use std::path::Path;

use clap::Args;
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MapKey, MethodDescriptor, ReflectMessage, SerializeOptions,
    Value as Field,
};
use serde_json::Value;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use codec::Dynamic;
pub(crate) use codec::Raw;

use crate::failure::Failure;
use crate::hidden;
use crate::input;
use crate::render::{Answer, Cell, Output, Rows};
use crate::secrets::Secrets;
use crate::target::{Target, within};

const EXAMPLES: &str = "\
Examples:
  belayctl rpc                                   lists the methods
  belayctl rpc NodeGetInfo
  belayctl rpc CreateVolume --template           prints a request to fill in
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

/// A call that is ready to be made.
pub(crate) struct Prepared {
    pub(crate) method: MethodDescriptor,
    pub(crate) message: DynamicMessage,
}

impl Rpc {
    /// Makes the call.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        // What needs no driver needs no socket either.
        let channel = match target.endpoint.is_none() && (self.template || self.method.is_none()) {
            true => None,
            false => Some(target.connect().await?),
        };
        let descriptors = match &channel {
            None => pool::own()?,
            Some(channel) => within(target.timeout, reflection::pool(channel)).await?,
        };
        let Some(name) = &self.method else {
            return Ok(list(&descriptors));
        };
        let method = pool::method(&descriptors, name)?;
        if self.template {
            let empty = template::of(&method.input());
            let options = options().skip_default_fields(false);
            return Ok(Answer::Json(json(&empty, &options)?));
        }
        let mut message = parse(&method, &self.message)?;
        add_secrets(&mut message, &self.secrets)?;
        let call = Prepared { method, message };
        match channel {
            Some(channel) => call.run(target, channel).await,
            None => Err(Failure::Usage("no socket given".to_owned())),
        }
    }
}

impl Prepared {
    /// The call of a method that CSI 1.13 has.
    ///
    /// # Errors
    /// No such method, or the message does not fit it.
    pub(crate) fn new(name: &str, message: &str) -> Result<Self, Failure> {
        let method = pool::method(&pool::own()?, name)?;
        let message = parse(&method, message)?;
        Ok(Self { method, message })
    }

    /// The path of the method on the wire.
    ///
    /// # Errors
    /// The name of the service is no part of a URI.
    pub(crate) fn path(&self) -> Result<PathAndQuery, Failure> {
        let service = self.method.parent_service().full_name();
        let path = format!("/{service}/{}", self.method.name());
        PathAndQuery::try_from(path).map_err(|error| Failure::Usage(error.to_string()))
    }

    /// The message on the wire.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.message.encode_to_vec()
    }

    /// A unary call is a stream of one message, so that both are made the same way.
    async fn run(self, target: &Target, channel: Channel) -> Result<Answer, Failure> {
        let mut client = ready(channel).await?;
        let codec = Dynamic(self.method.output());
        let (path, is_stream) = (self.path()?, self.method.is_server_streaming());
        let call = client.server_streaming(Request::new(self.message), path, codec);
        let mut answers = target.wait_for(call).await?;
        let mut last = None;
        let next = async |answers: &mut tonic::Streaming<DynamicMessage>| {
            within(target.timeout, async { Ok(answers.message().await?) }).await
        };
        while let Some(answer) = next(&mut answers).await? {
            let mut answer = json(&answer, &options())?;
            target.visibility.message(&mut answer);
            let answer = Answer::Json(answer);
            if !is_stream {
                last = Some(answer);
                continue;
            }
            target.print(&answer)?;
            if target.output == Output::Yaml {
                crate::render::write("---\n")?;
            }
        }
        match (last, is_stream) {
            (Some(answer), _) => Ok(answer),
            (None, true) => Ok(Answer::Printed),
            (None, false) => Err(Failure::Answer("is empty")),
        }
    }
}

/// A client that may make a call.
///
/// # Errors
/// The connection is broken.
pub(crate) async fn ready(channel: Channel) -> Result<Grpc<Channel>, Failure> {
    let mut client = Grpc::new(channel);
    let ready = client.ready().await;
    ready.map_err(|error| Failure::from(tonic::Status::unavailable(error.to_string())))?;
    Ok(client)
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

/// # Errors
/// Not JSON, or not a message of this type; secrets among the arguments.
fn parse(method: &MethodDescriptor, text: &str) -> Result<DynamicMessage, Failure> {
    let file = text.strip_prefix('@').or((text == "-").then_some("-"));
    let read = file.map(|file| input::read(Path::new(file))).transpose()?;
    let input = method.input();
    let wrong = |error| Failure::Usage(format!("{}: {error}", input.name()));
    let mut json = serde_json::Deserializer::from_str(read.as_deref().unwrap_or(text));
    let message = DynamicMessage::deserialize(method.input(), &mut json).map_err(wrong)?;
    json.end().map_err(wrong)?;
    let has_secrets = message.fields().any(|(field, _)| is_secret(&field));
    if file.is_none() && (has_secrets || hidden::has_secret(&message)) {
        let cure = "every user of this machine can read arguments; use --secrets-from, @FILE or -";
        return Err(Failure::Usage(format!("secrets: {cure}")));
    }
    Ok(message)
}

/// CSI marks them by an option; a descriptor without it still has the name.
fn is_secret(field: &prost_reflect::FieldDescriptor) -> bool {
    field.name() == "secrets"
}

fn add_secrets(message: &mut DynamicMessage, flags: &Secrets) -> Result<(), Failure> {
    let secrets = flags.load()?;
    if secrets.is_empty() {
        return Ok(());
    }
    let name = message.descriptor().name().to_owned();
    let field = message.descriptor().fields().find(is_secret);
    let field = field.ok_or_else(|| Failure::Usage(format!("{name} has no secrets")))?;
    let secrets = secrets.into_iter();
    let secrets = secrets.map(|(key, value)| (MapKey::String(key), Field::String(value)));
    message.set_field(&field, Field::Map(secrets.collect()));
    Ok(())
}

/// As in the other commands: names of the specification, numbers as numbers.
fn options() -> SerializeOptions {
    SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false)
}

fn json(message: &DynamicMessage, options: &SerializeOptions) -> Result<Value, Failure> {
    let value = message.serialize_with_options(serde_json::value::Serializer, options);
    value.map_err(|error| Failure::Machine(format!("the answer cannot be shown: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_and_shown_with_the_names_of_the_specification() {
        let text = r#"{"name": "a", "capacityRange": {"required_bytes": 5}}"#;
        let call = Prepared::new("CreateVolume", text).unwrap();
        let shown = json(&call.message, &options()).unwrap();
        assert_eq!(shown["capacity_range"]["required_bytes"], 5);
        assert_eq!(call.path().unwrap(), "/csi.v1.Controller/CreateVolume");
        assert_eq!(call.bytes(), [10, 1, b'a', 18, 2, 8, 5]);
    }

    #[test]
    fn a_message_of_another_type_is_refused_by_its_field() {
        for (text, part) in [
            (r#"{"nme": "a"}"#, "nme"),
            (r#"{"name": 5}"#, "CreateVolumeRequest"),
            ("{} {}", "trailing"),
        ] {
            let error = Prepared::new("CreateVolume", text).err().unwrap();
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn secrets_are_refused_among_the_arguments() {
        for (method, text) in [
            ("DeleteVolume", r#"{"secrets": {"key": "hunter2"}}"#),
            (
                "NodeStageVolume",
                r#"{"publish_context": {"mark": "hunter2"}}"#,
            ),
            (
                "NodePublishVolume",
                r#"{"publishContext": {"mark": "hunter2"}}"#,
            ),
        ] {
            let error = Prepared::new(method, text).err().unwrap().to_string();
            let is_named = error.contains("--secrets-from") && error.contains("@FILE");
            assert!(is_named && !error.contains("hunter2"), "{error}");
        }
        let open = r#"{"publish_context": {"file": "mark"}}"#;
        assert!(Prepared::new("NodeStageVolume", open).is_ok());
    }
}
