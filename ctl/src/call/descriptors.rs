//! Protobuf descriptors of methods and messages. The descriptors of CSI 1.13 are built in. belayctl
//! reads a driver's descriptors by gRPC reflection: by version v1, or by v1alpha if the driver does
//! not serve v1. The two versions of the protocol differ only in their names.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use prost::Message as _;
use prost_reflect::prost_types::FileDescriptorProto;
use prost_reflect::{DescriptorError, DescriptorPool, MethodDescriptor};
use tokio_stream::once;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::failure::Failure;

/// Returns the descriptors of CSI 1.13 and of the kubelet's plugin registration.
///
/// # Errors
/// Fails if the program was built without the descriptors.
pub(crate) fn own() -> Result<&'static DescriptorPool, Failure> {
    static OWN: LazyLock<Result<DescriptorPool, DescriptorError>> =
        LazyLock::new(|| DescriptorPool::decode(belay_proto::FILE_DESCRIPTOR_SET));
    let own = OWN.as_ref();
    own.map_err(|error| Failure::Machine(format!("the built-in descriptors: {error}")))
}

/// Finds a method by `Method`, `Service/Method` or `package.Service/Method`. The separator before
/// the method's name may also be a dot.
///
/// # Errors
/// Fails if no method has the name, if several have it, or if the method takes a stream of
/// requests.
pub(crate) fn method(pool: &DescriptorPool, name: &str) -> Result<MethodDescriptor, Failure> {
    let name = name.trim_start_matches('/').replace('/', ".");
    let all = pool
        .services()
        .flat_map(|service| service.methods().collect::<Vec<_>>());
    let is_meant = |method: &MethodDescriptor| {
        let full = method.full_name();
        full == name
            || full
                .strip_suffix(&name)
                .is_some_and(|start| start.ends_with('.'))
    };
    let found: Vec<_> = all.filter(is_meant).collect();
    match found.as_slice() {
        [method] if method.is_client_streaming() => Err(Failure::Usage(format!(
            "{name} takes a stream of requests; use grpcurl"
        ))),
        [method] => Ok(method.clone()),
        [] => Err(Failure::Usage(format!(
            "no method {name}; `belayctl rpc` lists the methods"
        ))),
        several => {
            let names: Vec<_> = several.iter().map(MethodDescriptor::full_name).collect();
            Err(Failure::Usage(format!(
                "{name} is ambiguous: {}",
                names.join(", ")
            )))
        }
    }
}

/// Maximum number of descriptor files that are read from a driver; real drivers have fewer. Without
/// this limit, a malicious driver could name further files endlessly.
const FILES_MAX: usize = 256;

/// A query of the reflection protocol.
enum Query {
    Services,
    FileWith(String),
    File(String),
}

/// The response of a driver to a query.
enum Response {
    Services(Vec<String>),
    Files(Vec<Vec<u8>>),
}

/// Defines a function that sends a query in one version of the reflection protocol.
macro_rules! ask {
    ($ask:ident, $version:ident) => {
        async fn $ask(channel: Channel, asked: &Query) -> Result<Response, Status> {
            use tonic_reflection::pb::$version as wire;
            use wire::server_reflection_client::ServerReflectionClient;
            use wire::server_reflection_request::MessageRequest;
            use wire::server_reflection_response::MessageResponse;
            let message = match asked {
                Query::Services => MessageRequest::ListServices(String::new()),
                Query::FileWith(symbol) => MessageRequest::FileContainingSymbol(symbol.clone()),
                Query::File(name) => MessageRequest::FileByFilename(name.clone()),
            };
            let request = wire::ServerReflectionRequest {
                host: String::new(),
                message_request: Some(message),
            };
            let mut client = ServerReflectionClient::new(channel);
            let answers = client.server_reflection_info(once(request)).await?;
            let answer = answers.into_inner().message().await?;
            match answer.and_then(|answer| answer.message_response) {
                Some(MessageResponse::ListServicesResponse(list)) => {
                    let names = list.service.into_iter().map(|service| service.name);
                    Ok(Response::Services(names.collect()))
                }
                Some(MessageResponse::FileDescriptorResponse(files)) => {
                    Ok(Response::Files(files.file_descriptor_proto))
                }
                Some(MessageResponse::ErrorResponse(error)) => Err(Status::new(
                    Code::from_i32(error.error_code),
                    error.error_message,
                )),
                _ => Err(Status::internal(
                    "reflection: another answer than asked for",
                )),
            }
        }
    };
}

ask!(ask_v1, v1);
ask!(ask_v1alpha, v1alpha);

async fn ask(channel: &Channel, asked: Query) -> Result<Response, Status> {
    match ask_v1(channel.clone(), &asked).await {
        Err(status) if status.code() == Code::Unimplemented => {
            ask_v1alpha(channel.clone(), &asked).await
        }
        answered => answered,
    }
}

/// Returns the driver's descriptors, or the built-in descriptors if the driver does not serve
/// reflection.
///
/// # Errors
/// Fails if the driver serves reflection, but a query fails.
pub(super) async fn reflected(channel: &Channel) -> Result<DescriptorPool, Failure> {
    let services = match ask(channel, Query::Services).await {
        Ok(Response::Services(services)) => services,
        Err(status) if status.code() == Code::Unimplemented => return own().cloned(),
        Ok(Response::Files(_)) => return Err(Failure::Answer("to reflection is no list")),
        Err(status) => return Err(status.into()),
    };
    let mut files = BTreeMap::new();
    let mut queue: Vec<_> = services.into_iter().map(Query::FileWith).collect();
    while let Some(asked) = queue.pop() {
        if matches!(&asked, Query::File(name) if files.contains_key(name)) {
            continue;
        }
        let Response::Files(found) = ask(channel, asked).await? else {
            return Err(Failure::Answer("to reflection has no files"));
        };
        for file in found {
            let file = FileDescriptorProto::decode(file.as_slice())
                .map_err(|_| Failure::Answer("to reflection is no descriptor"))?;
            queue.extend(file.dependency.iter().cloned().map(Query::File));
            files.insert(file.name().to_owned(), file);
        }
        if files.len() > FILES_MAX {
            return Err(Failure::Answer("to reflection has more than 256 files"));
        }
    }
    let mut pool = DescriptorPool::new();
    pool.add_file_descriptor_protos(files.into_values())
        .map_err(|error| Failure::Machine(format!("the driver's descriptors: {error}")))?;
    Ok(pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_found_by_every_usual_name() {
        let pool = own().unwrap();
        for name in [
            "NodeGetInfo",
            "Node/NodeGetInfo",
            "csi.v1.Node/NodeGetInfo",
            "/csi.v1.Node/NodeGetInfo",
            "csi.v1.Node.NodeGetInfo",
        ] {
            let found = method(pool, name).unwrap();
            assert_eq!(found.full_name(), "csi.v1.Node.NodeGetInfo", "{name}");
        }
        for name in ["GetInf", "odeGetInfo", ""] {
            assert!(method(pool, name).is_err(), "{name}");
        }
    }
}
