//! Calls a method of a driver, with the messages as JSON. All commands call drivers through this
//! module, which handles every method by its descriptor.

mod descriptors;

use std::path::{Path, PathBuf};
use std::time::Duration;

use belay_proto::dial::dial;
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, MapKey, MessageDescriptor, MethodDescriptor,
    ReflectMessage as _, SerializeOptions, Value as Field,
};
use serde::Deserializer;
use serde_json::{Value, json};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use crate::failure::{Failure, Unserved};
use crate::flags;
use crate::hidden;
use crate::secrets::Secrets;

pub(crate) use descriptors::{method, own};

/// A connection to a driver, with the timeout of each call.
pub(crate) struct Connection {
    socket: PathBuf,
    channel: Channel,
    seconds: u64,
}

/// A method, and the request message of a call.
pub(crate) struct Call {
    /// The method to call.
    pub(crate) method: MethodDescriptor,
    message: DynamicMessage,
}

/// The messages of a stream. The timeout of a call limits the wait for each message.
pub(crate) struct Stream {
    messages: Streaming<DynamicMessage>,
    seconds: u64,
}

impl Connection {
    /// Connects to a socket. Each call on the connection times out after `seconds`.
    ///
    /// # Errors
    /// Fails if no driver accepts the connection.
    pub(crate) async fn open(socket: &Path, seconds: u64) -> Result<Self, Failure> {
        let channel = dial(socket).await?;
        let socket = socket.to_owned();
        Ok(Self {
            socket,
            channel,
            seconds,
        })
    }

    /// Calls a method of CSI 1.13 or of the kubelet's plugin registration.
    ///
    /// # Errors
    /// Fails if the request does not match the method, the driver returns an error, or the call
    /// times out.
    pub(crate) async fn call(&self, method: &str, request: Value) -> Result<Value, Failure> {
        let call = Call::new(self::method(own()?, method)?, request)?;
        self.unary(&call).await
    }

    /// Returns whether a service lists a capability in its response to `method`.
    ///
    /// # Errors
    /// Fails if the driver returns an error, or the call times out.
    pub(crate) async fn has(&self, method: &str, capability: &str) -> Result<bool, Failure> {
        let answer = self.call(method, json!({})).await?;
        let mut all = answer["capabilities"].as_array().into_iter().flatten();
        Ok(all.any(|it| it["rpc"]["type"] == capability || it["service"]["type"] == capability))
    }

    /// Makes a unary call.
    ///
    /// # Errors
    /// Fails if the driver returns an error, or the call times out.
    pub(crate) async fn unary(&self, call: &Call) -> Result<Value, Failure> {
        let mut client = self.ready().await?;
        let (request, path, codec) = call.parts()?;
        let answer = async {
            let answer = client.unary(request, path, codec).await;
            Ok(answer
                .map_err(|status| self.failed(call, status))?
                .into_inner())
        };
        to_json(&within(self.seconds, answer).await?, &options())
    }

    /// Makes a call that returns a stream.
    ///
    /// # Errors
    /// Fails if the driver returns an error, or the call times out.
    pub(crate) async fn stream(&self, call: &Call) -> Result<Stream, Failure> {
        let mut client = self.ready().await?;
        let (request, path, codec) = call.parts()?;
        let answer = async {
            let answer = client.server_streaming(request, path, codec).await;
            answer.map_err(|status| self.failed(call, status))
        };
        Ok(Stream {
            messages: within(self.seconds, answer).await?.into_inner(),
            seconds: self.seconds,
        })
    }

    /// Returns the driver's descriptors, or the built-in descriptors if the driver does not serve
    /// reflection.
    ///
    /// # Errors
    /// Fails if the driver serves reflection, but a query fails.
    pub(crate) async fn descriptors(&self) -> Result<DescriptorPool, Failure> {
        within(self.seconds, descriptors::reflected(&self.channel)).await
    }

    fn failed(&self, call: &Call, status: Status) -> Failure {
        match status.code() {
            Code::Unimplemented => Failure::Unserved(Box::new(Unserved {
                status,
                socket: self.socket.clone(),
                service: service(&call.method),
            })),
            _ => status.into(),
        }
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Failure> {
        let mut client = Grpc::new(self.channel.clone());
        let ready = client.ready().await;
        ready.map_err(|error| Failure::from(Status::unavailable(error.to_string())))?;
        Ok(client)
    }
}

impl Stream {
    /// Returns the next message; `None` at the end of the stream.
    ///
    /// # Errors
    /// Fails if the driver returns an error, or no message arrives in time.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>, Failure> {
        let next = async { Ok(self.messages.message().await?) };
        let next = within(self.seconds, next).await?;
        next.map(|message| to_json(&message, &options()))
            .transpose()
    }
}

impl Call {
    /// Creates a message of the method's request type from JSON.
    ///
    /// # Errors
    /// Fails if the JSON does not match the type.
    pub(crate) fn new<'de>(
        method: MethodDescriptor,
        json: impl Deserializer<'de, Error = serde_json::Error>,
    ) -> Result<Self, Failure> {
        let input = method.input();
        let message = DynamicMessage::deserialize(input.clone(), json);
        let message = message.map_err(|error| mismatch(&input, &error))?;
        Ok(Self { method, message })
    }

    /// Reads the message from an argument: JSON, `@FILE`, or `-` for standard input.
    ///
    /// # Errors
    /// Fails if the text is not JSON, does not match the request type, or has secrets in the
    /// argument itself.
    pub(crate) fn read(method: MethodDescriptor, argument: &str) -> Result<Self, Failure> {
        let file = argument
            .strip_prefix('@')
            .or((argument == "-").then_some("-"));
        let read = file.map(|file| flags::read(Path::new(file))).transpose();
        let read = read.map_err(|failure| flags::unread("request", &failure))?;
        let mut json = serde_json::Deserializer::from_str(read.as_deref().unwrap_or(argument));
        let call = Self::new(method, &mut json)?;
        json.end()
            .map_err(|error| mismatch(&call.method.input(), &error))?;
        let has_secrets = call.message.fields().any(|(field, _)| is_secret(&field));
        if file.is_none() && (has_secrets || hidden::has_secret(&call.message)) {
            let cure =
                "every user of this machine can read arguments; use --secrets-from, @FILE or -";
            return Err(Failure::Usage(format!("secrets: {cure}")));
        }
        Ok(call)
    }

    /// Adds the secrets that the flags name to the request.
    ///
    /// # Errors
    /// Fails if the secrets cannot be read, or if the request has no field for secrets.
    pub(crate) fn add_secrets(&mut self, secrets: &Secrets) -> Result<(), Failure> {
        let secrets = secrets.load()?;
        if secrets.is_empty() {
            return Ok(());
        }
        let descriptor = self.message.descriptor();
        let field = descriptor.fields().find(is_secret);
        let field =
            field.ok_or_else(|| Failure::Usage(format!("{} has no secrets", descriptor.name())))?;
        let secrets = secrets.into_iter();
        let secrets = secrets.map(|(key, value)| (MapKey::String(key), Field::String(value)));
        self.message
            .set_field(&field, Field::Map(secrets.collect()));
        Ok(())
    }

    fn parts(&self) -> Result<(Request<DynamicMessage>, PathAndQuery, Dynamic), Failure> {
        let request = Request::new(self.message.clone());
        Ok((request, self.path()?, Dynamic(self.method.output())))
    }

    /// Returns the HTTP/2 path of the method.
    fn path(&self) -> Result<PathAndQuery, Failure> {
        let service = self.method.parent_service().full_name();
        let path = format!("/{service}/{}", self.method.name());
        PathAndQuery::try_from(path).map_err(|error| Failure::Usage(error.to_string()))
    }
}

/// Returns the name of a method's service, in the form that `belayctl ls` prints.
pub(crate) fn service(method: &MethodDescriptor) -> &'static str {
    match method.parent_service().name() {
        "Node" => "node",
        "Identity" => "identity",
        "Registration" => "registration",
        // The controller's socket also serves group snapshots and snapshot metadata.
        _ => "controller",
    }
}

fn mismatch(input: &MessageDescriptor, error: &serde_json::Error) -> Failure {
    let (input, method) = (input.name(), input.name().trim_end_matches("Request"));
    Failure::Usage(format!(
        "{input}: {error}; `belayctl rpc {method} --template` prints a request"
    ))
}

/// Whether a field contains secrets. CSI marks these fields by the option `csi_secret`; the name
/// also identifies them in descriptors without the option.
fn is_secret(field: &FieldDescriptor) -> bool {
    field.name() == "secrets"
}

/// Returns the JSON options of all commands: fields have the names of the specification, and 64-bit
/// integers are numbers, not strings.
pub(crate) fn options() -> SerializeOptions {
    SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false)
}

/// Converts a message to JSON.
///
/// # Errors
/// Fails if a value has no representation in JSON.
pub(crate) fn to_json(
    message: &DynamicMessage,
    options: &SerializeOptions,
) -> Result<Value, Failure> {
    let value = message.serialize_with_options(serde_json::value::Serializer, options);
    value.map_err(|error| Failure::Machine(format!("the answer cannot be shown: {error}")))
}

/// Waits at most `seconds` until the future completes.
///
/// # Errors
/// Fails with the error of the future, or if the future takes longer.
async fn within<T>(
    seconds: u64,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(Duration::from_secs(seconds), work).await {
        Ok(result) => result,
        Err(_elapsed) => Err(Failure::NoAnswer { seconds }),
    }
}

/// gRPC codec for messages whose types are defined by descriptors and not by Rust types. Contains
/// the descriptor of the response message.
#[derive(Clone, Debug)]
struct Dynamic(MessageDescriptor);

impl Codec for Dynamic {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        self.clone()
    }

    fn decoder(&mut self) -> Self {
        self.clone()
    }
}

impl Encoder for Dynamic {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, item: DynamicMessage, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let encoded = item.encode(buffer);
        encoded.map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for Dynamic {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let mut message = DynamicMessage::new(self.0.clone());
        let merged = message.merge(buffer);
        merged.map_err(|error| Status::internal(format!("the answer is damaged: {error}")))?;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<Call, Failure> {
        Call::read(method(own()?, name)?, text)
    }

    #[test]
    fn a_message_is_read_and_shown_with_the_names_of_the_specification() {
        let text = r#"{"name": "a", "capacityRange": {"required_bytes": 5}}"#;
        let call = read("CreateVolume", text).unwrap();
        let shown = to_json(&call.message, &options()).unwrap();
        assert_eq!(shown["capacity_range"]["required_bytes"], 5);
        assert_eq!(call.path().unwrap(), "/csi.v1.Controller/CreateVolume");
        assert_eq!(call.message.encode_to_vec(), [10, 1, b'a', 18, 2, 8, 5]);
    }

    #[test]
    fn a_message_of_another_type_is_refused_by_its_field() {
        for (text, part) in [
            (r#"{"nme": "a"}"#, "nme"),
            (r#"{"name": 5}"#, "CreateVolumeRequest"),
            ("{} {}", "trailing"),
        ] {
            let error = read("CreateVolume", text).err().unwrap();
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
            let error = read(method, text).err().unwrap().to_string();
            let is_named = error.contains("--secrets-from") && error.contains("@FILE");
            assert!(is_named && !error.contains("hunter2"), "{error}");
        }
        let open = r#"{"publish_context": {"file": "mark"}}"#;
        assert!(read("NodeStageVolume", open).is_ok());
    }
}
