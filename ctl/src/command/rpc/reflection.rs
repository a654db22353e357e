//! The descriptors of a driver, by gRPC reflection: v1, else v1alpha, which has other names only.

use std::collections::BTreeMap;

use prost::Message as _;
use prost_reflect::DescriptorPool;
use prost_reflect::prost_types::FileDescriptorProto;
use tokio_stream::once;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::pool;
use crate::failure::Failure;

/// More files than any driver has; a server that always names another file ends here.
const FILES_MAX: usize = 256;

enum Asked {
    Services,
    FileWith(String),
    File(String),
}

enum Answered {
    Services(Vec<String>),
    Files(Vec<Vec<u8>>),
}

/// What one version of the protocol answers to one query.
macro_rules! ask {
    ($ask:ident, $version:ident) => {
        async fn $ask(channel: Channel, asked: &Asked) -> Result<Answered, Status> {
            use tonic_reflection::pb::$version as wire;
            use wire::server_reflection_client::ServerReflectionClient;
            use wire::server_reflection_request::MessageRequest;
            use wire::server_reflection_response::MessageResponse;
            let message = match asked {
                Asked::Services => MessageRequest::ListServices(String::new()),
                Asked::FileWith(symbol) => MessageRequest::FileContainingSymbol(symbol.clone()),
                Asked::File(name) => MessageRequest::FileByFilename(name.clone()),
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
                    Ok(Answered::Services(names.collect()))
                }
                Some(MessageResponse::FileDescriptorResponse(files)) => {
                    Ok(Answered::Files(files.file_descriptor_proto))
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

async fn ask(channel: &Channel, asked: Asked) -> Result<Answered, Status> {
    match ask_v1(channel.clone(), &asked).await {
        Err(status) if status.code() == Code::Unimplemented => {
            ask_v1alpha(channel.clone(), &asked).await
        }
        answered => answered,
    }
}

/// The driver's descriptors, or our own if it does not serve reflection.
///
/// # Errors
/// Reflection is served, and fails.
pub(super) async fn pool(channel: &Channel) -> Result<DescriptorPool, Failure> {
    let services = match ask(channel, Asked::Services).await {
        Ok(Answered::Services(services)) => services,
        Err(status) if status.code() == Code::Unimplemented => return pool::own(),
        Ok(Answered::Files(_)) => return Err(Failure::Answer("to reflection is no list")),
        Err(status) => return Err(status.into()),
    };
    let mut files = BTreeMap::new();
    let mut queue: Vec<_> = services.into_iter().map(Asked::FileWith).collect();
    while let Some(asked) = queue.pop() {
        if matches!(&asked, Asked::File(name) if files.contains_key(name)) {
            continue;
        }
        let Answered::Files(found) = ask(channel, asked).await? else {
            return Err(Failure::Answer("to reflection has no files"));
        };
        for file in found {
            let file = FileDescriptorProto::decode(file.as_slice())
                .map_err(|_| Failure::Answer("to reflection is no descriptor"))?;
            queue.extend(file.dependency.iter().cloned().map(Asked::File));
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
