//! gRPC reflection, v1 and v1alpha: the services of a server, and the files that describe them, for
//! tools such as grpcurl. Keeps nothing in memory, and costs nothing until it is queried.

mod descriptors;

use futures_util::stream::{BoxStream, StreamExt as _};
use std::sync::Arc;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_reflection::pb::{v1, v1alpha};

/// The reflection service of one server.
#[derive(Clone, Debug)]
pub(crate) struct GrpcReflection(Arc<[&'static str]>);

impl GrpcReflection {
    /// For a server with these services.
    pub(crate) fn new(services: &[&'static str]) -> Self {
        Self(services.into())
    }
}

/// The two versions of the protocol differ only in their names.
macro_rules! reflection {
    ($version:ident, $answer:ident) => {
        #[tonic::async_trait]
        impl $version::server_reflection_server::ServerReflection for GrpcReflection {
            type ServerReflectionInfoStream =
                BoxStream<'static, Result<$version::ServerReflectionResponse, Status>>;

            async fn server_reflection_info(
                &self,
                request: Request<Streaming<$version::ServerReflectionRequest>>,
            ) -> Result<Response<Self::ServerReflectionInfoStream>, Status> {
                let services = Arc::clone(&self.0);
                let answers = request.into_inner().map(move |asked| {
                    let asked = asked?;
                    Ok($version::ServerReflectionResponse {
                        valid_host: asked.host.clone(),
                        message_response: Some($answer(&services, &asked)),
                        original_request: Some(asked),
                    })
                });
                Ok(Response::new(answers.boxed()))
            }
        }

        fn $answer(
            services: &[&str],
            asked: &$version::ServerReflectionRequest,
        ) -> $version::server_reflection_response::MessageResponse {
            use $version::server_reflection_request::MessageRequest;
            use $version::server_reflection_response::MessageResponse;
            let file = |found: Option<&[u8]>, what: &str| match found {
                Some(file) => {
                    MessageResponse::FileDescriptorResponse($version::FileDescriptorResponse {
                        file_descriptor_proto: vec![file.to_owned()],
                    })
                }
                None => MessageResponse::ErrorResponse($version::ErrorResponse {
                    error_code: Code::NotFound.into(),
                    error_message: format!("{what}: unknown"),
                }),
            };
            match &asked.message_request {
                Some(MessageRequest::FileByFilename(name)) => {
                    file(descriptors::file_named(name), name)
                }
                Some(MessageRequest::FileContainingSymbol(name)) => {
                    file(descriptors::file_with(name), name)
                }
                Some(MessageRequest::FileContainingExtension(asked)) => {
                    let (extended, number) = (&asked.containing_type, asked.extension_number);
                    let what = format!("extension {number} of {extended}");
                    file(descriptors::file_extending(extended, number), &what)
                }
                Some(MessageRequest::AllExtensionNumbersOfType(extended)) => {
                    let numbers = descriptors::extensions().filter(|it| it.extends(extended));
                    let answer = $version::ExtensionNumberResponse {
                        base_type_name: extended.clone(),
                        extension_number: numbers.map(|it| it.number).collect(),
                    };
                    MessageResponse::AllExtensionNumbersResponse(answer)
                }
                Some(MessageRequest::ListServices(_)) => {
                    let names = services.iter().map(|name| $version::ServiceResponse {
                        name: (*name).to_owned(),
                    });
                    let service = names.collect();
                    MessageResponse::ListServicesResponse($version::ListServiceResponse { service })
                }
                None => MessageResponse::ErrorResponse($version::ErrorResponse {
                    error_code: Code::InvalidArgument.into(),
                    error_message: "message_request: must be set".to_owned(),
                }),
            }
        }
    };
}

reflection!(v1, answer_v1);
reflection!(v1alpha, answer_v1alpha);
