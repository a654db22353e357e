//! gRPC's own services, for probes and tools that do not know CSI: health (`grpc.health.v1`) and
//! reflection. Off by default.

use crate::readiness::{Readiness, State};
use belay_proto::FILE_DESCRIPTOR_SET;
use futures_util::stream::{BoxStream, StreamExt as _, unfold};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::{v1, v1alpha};
use tonic_reflection::server::Builder;

/// Adds both versions of the reflection service to `routes`. Both versions of the reflection
/// service list the services in `names`, and describe the messages of all services that a driver
/// may serve.
pub(crate) fn with_reflection(
    routes: Routes,
    names: &[&'static str],
    request_bytes_max: usize,
) -> Routes {
    let builder = || {
        let mut builder = Builder::configure();
        for set in [
            FILE_DESCRIPTOR_SET,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            v1::FILE_DESCRIPTOR_SET,
            v1alpha::FILE_DESCRIPTOR_SET,
        ] {
            builder = builder.register_encoded_file_descriptor_set(set);
        }
        let names = names.iter().copied();
        names.fold(builder, Builder::with_service_name)
    };
    match (builder().build_v1(), builder().build_v1alpha()) {
        (Ok(service), Ok(alpha)) => routes
            .add_service(service.max_decoding_message_size(request_bytes_max))
            .add_service(alpha.max_decoding_message_size(request_bytes_max)),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(?error, "no gRPC reflection: the descriptors are malformed");
            routes
        }
    }
}

/// The health service of one server. The health service reports the readiness of the driver, which
/// is the same for the server and for each service.
#[derive(Debug)]
pub(crate) struct GrpcHealth {
    readiness: Readiness,
    services: Vec<&'static str>,
}

impl GrpcHealth {
    /// Creates the health service of a server with these services. The service reports this
    /// readiness.
    pub(crate) fn new(readiness: Readiness, services: Vec<&'static str>) -> Self {
        Self {
            readiness,
            services,
        }
    }

    /// Whether the server has the service. The empty name refers to the whole server.
    fn knows(&self, service: &str) -> bool {
        service.is_empty() || self.services.contains(&service)
    }
}

fn serving(readiness: &Readiness) -> ServingStatus {
    match readiness.state() {
        State::Ready => ServingStatus::Serving,
        State::Starting(_) | State::Unhealthy(_) => ServingStatus::NotServing,
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

#[tonic::async_trait]
impl Health for GrpcHealth {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if !self.knows(&service) {
            let served = self.services.join(", ");
            let why = format!("service {service:?}: not served here; available: {served}");
            return Err(Status::not_found(why));
        }
        Ok(Response::new(answer(serving(&self.readiness))))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let knows = self.knows(&request.into_inner().service);
        let readiness = self.readiness.clone();
        let begin = (None, readiness.changes(), readiness);
        let statuses = unfold(begin, move |(last, mut changes, readiness)| async move {
            loop {
                changes.mark_unchanged();
                let now = if knows {
                    serving(&readiness)
                } else {
                    // An unknown service is not an error, because the protocol lets a client wait
                    // for a service.
                    ServingStatus::ServiceUnknown
                };
                if last != Some(now) {
                    return Some((Ok(answer(now)), (Some(now), changes, readiness)));
                }
                changes.changed().await.ok()?;
            }
        });
        Ok(Response::new(statuses.boxed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;
    use prost_types::FileDescriptorSet;
    use tonic::Code;

    #[test]
    fn the_descriptors_of_the_program_can_be_read() {
        for set in [
            FILE_DESCRIPTOR_SET,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            v1::FILE_DESCRIPTOR_SET,
            v1alpha::FILE_DESCRIPTOR_SET,
        ] {
            assert!(!FileDescriptorSet::decode(set).unwrap().file.is_empty());
        }
    }

    fn asked(service: &str) -> Request<HealthCheckRequest> {
        Request::new(HealthCheckRequest {
            service: service.to_owned(),
        })
    }

    fn health(state: State) -> (GrpcHealth, Readiness) {
        let readiness = Readiness::new(state);
        let health = GrpcHealth::new(readiness.clone(), vec!["csi.v1.Identity"]);
        (health, readiness)
    }

    #[tokio::test]
    async fn the_whole_and_each_service_are_as_ready_as_the_driver() {
        let (health, readiness) = health(State::Starting("reading the mounts".to_owned()));
        for (state, status) in [
            (None, ServingStatus::NotServing),
            (Some(State::Ready), ServingStatus::Serving),
            (
                Some(State::Unhealthy(String::new())),
                ServingStatus::NotServing,
            ),
        ] {
            state.into_iter().for_each(|state| readiness.set(state));
            for service in ["", "csi.v1.Identity"] {
                let reported = health.check(asked(service)).await.unwrap().into_inner();
                assert_eq!(reported.status(), status, "{service:?}");
            }
        }
        let refused = health.check(asked("csi.v1.Node")).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound);
        assert!(refused.message().contains("csi.v1.Identity"), "{refused}");
    }

    #[tokio::test]
    async fn a_watcher_gets_each_change_once() {
        let (health, readiness) = health(State::Ready);
        let mut reported = health.watch(asked("")).await.unwrap().into_inner();
        let mut next = async || reported.next().await.unwrap().unwrap().status();
        assert_eq!(next().await, ServingStatus::Serving);
        readiness.set(State::Ready);
        readiness.set(State::Unhealthy("no shared mounts".to_owned()));
        assert_eq!(next().await, ServingStatus::NotServing);
        readiness.set(State::Unhealthy("no shared mounts at all".to_owned()));
        readiness.set(State::Ready);
        assert_eq!(next().await, ServingStatus::Serving);
    }

    #[tokio::test]
    async fn a_watcher_of_an_unknown_service_gets_service_unknown_and_waits() {
        let (health, readiness) = health(State::Ready);
        let mut reported = health
            .watch(asked("csi.v1.Node"))
            .await
            .unwrap()
            .into_inner();
        let first = reported.next().await.unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::ServiceUnknown);
        readiness.set(State::Unhealthy(String::new()));
        let next = tokio::time::timeout(std::time::Duration::ZERO, reported.next()).await;
        assert!(next.is_err(), "{next:?}");
    }
}
