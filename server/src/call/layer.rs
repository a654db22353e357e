//! The outermost layer of every call: creates the call's span, writes its one log line, measures
//! its duration, and catches panics. Every request passes this layer, even if no service accepts it
//! or it cannot be decoded. This module must not print a request, which may contain secrets.

use super::refusals::{Refusal, Refusals};
use super::{Callers, Failure, ForbiddenCaller, Record, Rpc, start_of, status};
use belay_proto::code::name as code_name;
use futures_util::FutureExt as _;
use http::{Request, Response};
use metrics::Histogram;
use std::convert::Infallible;
use std::future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tonic::body::Body;
use tonic::{Code, Status};
use tracing::{Instrument as _, Level, Span};

/// Histogram of the duration of calls, in seconds, by `driver`, `rpc` and `code`.
pub(crate) const DURATION: &str = "belay_rpc_duration_seconds";

/// Maximum time in which a complete request must arrive over the local socket. This limit and the
/// limits in [`crate::services`] bound the memory of incomplete requests.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length, in bytes, to which a text from the caller, such as an unknown path, is cut in a
/// response or a log line.
const FOREIGN_BYTES_MAX: usize = 128;

/// A tower layer that wraps the services of one driver.
#[derive(Clone, Debug)]
pub struct CallLayer {
    durations: Durations,
    running: Arc<watch::Sender<()>>,
    ended: Arc<Notify>,
    refusals: Refusals,
    callers: Callers,
}

impl CallLayer {
    /// Creates the layer of the first driver of a server. Measures nothing yet.
    #[must_use]
    pub fn new(driver: &str) -> Self {
        Self {
            durations: Durations::new(driver),
            running: Arc::default(),
            ended: Arc::default(),
            refusals: Refusals::default(),
            callers: Callers::default(),
        }
    }

    /// Returns the layer, which then accepts only calls of these callers.
    pub(crate) fn only_for(mut self, callers: Callers) -> Self {
        self.callers = callers;
        self
    }

    /// Returns the users that may call the server.
    pub(crate) fn callers(&self) -> &Callers {
        &self.callers
    }

    /// Creates the layer of a further driver of the same server. The calls of each driver are
    /// measured separately; the calls of all drivers delay the shutdown.
    pub(crate) fn of(&self, driver: &str) -> Self {
        Self {
            durations: Durations::new(driver),
            ..self.clone()
        }
    }

    /// Returns the last failed calls of all drivers.
    pub(crate) fn refusals(&self) -> Refusals {
        self.refusals.clone()
    }

    /// Returns the channel that has one receiver for each running call.
    pub(crate) fn running(&self) -> Arc<watch::Sender<()>> {
        Arc::clone(&self.running)
    }

    /// Returns the notification that is sent when a call ends, even if its caller disconnects.
    pub(crate) fn ended(&self) -> &Notify {
        &self.ended
    }
}

impl<S> tower::Layer<S> for CallLayer {
    type Service = CallService<S>;

    fn layer(&self, inner: S) -> CallService<S> {
        CallService {
            inner,
            layer: self.clone(),
        }
    }
}

/// The services of a server inside their [`CallLayer`].
#[derive(Clone, Debug)]
pub struct CallService<S> {
    inner: S,
    layer: CallLayer,
}

impl<S, B> tower::Service<Request<B>> for CallService<S>
where
    S: tower::Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let extensions = request.extensions_mut();
        let record = extensions.get_or_insert_default::<Record>().clone();
        let stranger = extensions.remove::<ForbiddenCaller>();
        let call = Call::begin(request.uri().path(), record, &self.layer);
        let running = self.layer.running.subscribe();
        let ended = Ended(Arc::clone(&self.layer.ended));
        // Call `self.inner`, which `poll_ready` has polled; the clone was not polled.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let work = async move {
                match stranger {
                    None => inner.call(request).await,
                    Some(stranger) => Ok(stranger.status().into_http()),
                }
            };
            let work = AssertUnwindSafe(work)
                .catch_unwind()
                .instrument(call.span());
            let mut work = pin!(work);
            // This future ends when the complete request has arrived, so that a timer runs only
            // during the arrival.
            let arrival = future::poll_fn(|context| match work.as_mut().poll(context) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending if call.record.subject().is_some() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            let done = match tokio::time::timeout(ARRIVAL_TIMEOUT, arrival).await {
                Ok(Some(done)) => Some(done),
                Ok(None) => Some(work.await),
                Err(_) => None,
            };
            let response = match done {
                Some(Ok(Ok(response))) => response,
                Some(Ok(Err(never))) => match never {},
                Some(Err(_)) => call.fail(Failure::panicked).into_http(),
                None => call.fail(|_| never_arrived()).into_http(),
            };
            let response = call.end(response);
            drop((running, ended));
            Ok(response)
        })
    }
}

/// Notifies [`CallLayer::ended`] when dropped.
struct Ended(Arc<Notify>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// A call from its first byte to its response. If this value is dropped before the response, it
/// logs that the caller has disconnected.
struct Call {
    rpc: Option<Rpc>,
    /// The path, for unknown calls only.
    path: Box<str>,
    begun: Instant,
    record: Record,
    durations: Durations,
    refusals: Refusals,
    is_logged: bool,
}

impl Call {
    fn begin(path: &str, record: Record, layer: &CallLayer) -> Self {
        let rpc = Rpc::from_path(path);
        let path = if rpc.is_some() {
            ""
        } else {
            start_of(path, FOREIGN_BYTES_MAX)
        };
        Self {
            rpc,
            path: path.into(),
            begun: Instant::now(),
            record,
            durations: layer.durations.clone(),
            refusals: layer.refusals(),
            is_logged: false,
        }
    }

    fn name(&self) -> &str {
        match self.rpc {
            Some(rpc) => rpc.name(),
            None => &self.path,
        }
    }

    /// Returns the span of the call, which adds the name of the call to each log line. The span of
    /// a read has level debug, since reads are frequent.
    fn span(&self) -> Span {
        let subject = tracing::field::Empty;
        if self.rpc.is_some_and(Rpc::changes_state) {
            tracing::info_span!("call", rpc = self.name(), subject)
        } else {
            tracing::debug_span!("call", rpc = self.name(), subject)
        }
    }

    /// Returns the status of a failure outside a handler.
    fn fail(&self, failure: impl FnOnce(Rpc) -> Failure) -> Status {
        // Record a reached handler, so that the failure is not mistaken for an error of the
        // decoder.
        self.record.reached("");
        match self.rpc {
            Some(rpc) => status(rpc, &failure(rpc)),
            None => Status::internal("the server failed in an unknown call; please report the log"),
        }
    }

    fn end(mut self, response: Response<Body>) -> Response<Body> {
        let Some(failed) = Status::from_header_map(response.headers()) else {
            self.log(Code::Ok, "");
            return response;
        };
        let better = self
            .unreadable(&failed)
            .or_else(|| self.compressed(&failed));
        match better.or_else(|| self.unserved(&failed)) {
            Some(better) => {
                self.log(better.code(), better.message());
                better.into_http()
            }
            None => {
                self.log(failed.code(), failed.message());
                response
            }
        }
    }

    /// Returns the status of a request that the decoder refuses because it is too large or not
    /// protobuf, which is the caller's mistake. The decoder's codes are OUT_OF_RANGE and INTERNAL,
    /// which have a different meaning for sidecars.
    fn unreadable(&self, failed: &Status) -> Option<Status> {
        let rpc = self.rpc.filter(|_| self.record.subject().is_none())?;
        let by_decoder = matches!(failed.code(), Code::OutOfRange | Code::Internal);
        by_decoder.then(|| {
            let why = format_args!("cannot be read ({}); nothing was done", failed.message());
            status(rpc, &Failure::invalid("request", why))
        })
    }

    /// Returns the status of a compressed request. As gRPC demands, the status is UNIMPLEMENTED
    /// with the accepted encodings, which a call that is not served does not return.
    fn compressed(&self, failed: &Status) -> Option<Status> {
        let reached = self.record.subject().is_some();
        let read = failed.metadata().get("grpc-accept-encoding");
        if reached || failed.code() != Code::Unimplemented || read.is_none() {
            return None;
        }
        let why = format!(
            "{}: the request cannot be read ({}); turn off compression in the client",
            self.name(),
            start_of(failed.message(), FOREIGN_BYTES_MAX)
        );
        let metadata = failed.metadata().clone();
        Some(Status::with_metadata(Code::Unimplemented, why, metadata))
    }

    /// Returns the status of a call that reaches no handler. The original status has no message, or
    /// a message that does not name the call.
    fn unserved(&self, failed: &Status) -> Option<Status> {
        let reached = self.record.subject().is_some();
        if reached || failed.code() != Code::Unimplemented {
            return None;
        }
        let name = self.name();
        Some(Status::unimplemented(match self.rpc {
            Some(_) => format!("{name}: not implemented by this driver; see its capabilities"),
            None => format!("{name}: not a call of CSI 1.13"),
        }))
    }

    /// Writes the one log line of the call, and counts it in the histogram.
    fn log(&mut self, code: Code, message: &str) {
        self.is_logged = true;
        let took = self.begun.elapsed();
        self.durations.of(self.rpc, &self.path, code).record(took);

        let rpc = self.name();
        let subject = self.record.subject().filter(|subject| !subject.is_empty());
        if code != Code::Ok {
            let (driver, subject) = (&self.durations.driver, subject.unwrap_or_default());
            let refusal = Refusal::new(driver, rpc, subject, code, message);
            self.refusals.add(refusal);
        }
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let cloud = self.record.cloud();
        let (number, code) = (code, code_name(code));
        match number {
            Code::Ok if self.rpc.is_some_and(Rpc::changes_state) => {
                tracing::event!(Level::INFO, rpc, subject, cloud, code, us);
            }
            Code::Ok => tracing::event!(Level::DEBUG, rpc, subject, cloud, code, us),
            Code::Internal | Code::Unknown | Code::DataLoss => {
                tracing::event!(Level::ERROR, rpc, subject, cloud, code, us, "{message}");
            }
            _ => tracing::event!(Level::WARN, rpc, subject, cloud, code, us, "{message}"),
        }
    }
}

fn never_arrived() -> Failure {
    let seconds = ARRIVAL_TIMEOUT.as_secs();
    let why = format!("request: incomplete after {seconds} s; nothing was done, retry");
    Failure::timeout(why)
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_logged {
            self.log(
                Code::Cancelled,
                "the caller disconnected before the response",
            );
        }
    }
}

/// Number of gRPC codes.
const CODES: usize = 17;

/// Metric names of calls that do not belong to CSI, by the start of the path: the kubelet's
/// registration, gRPC's own services, and unknown calls.
const OTHERS: [(&str, &str); 3] = [
    ("/pluginregistration.", "registration"),
    ("/grpc.", "grpc"),
    ("", "unknown"),
];

/// The histograms of a driver, one per call and code, each looked up by name only once.
#[derive(Clone, Debug)]
struct Durations {
    driver: Arc<str>,
    cells: Arc<[OnceLock<Histogram>]>,
}

impl Durations {
    fn new(driver: &str) -> Self {
        let cells = (Rpc::ALL.len() + OTHERS.len()) * CODES;
        Self {
            driver: driver.into(),
            cells: (0..cells).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Returns the histogram of a call. Calls that do not belong to CSI are classified by their
    /// path.
    fn of(&self, rpc: Option<Rpc>, path: &str, code: Code) -> &Histogram {
        let (row, name) = match rpc {
            Some(rpc) => (rpc as usize, rpc.name()),
            None => other(path),
        };
        self.cells[row * CODES + code as usize].get_or_init(|| {
            let (driver, code) = (Arc::clone(&self.driver), code_name(code));
            metrics::histogram!(DURATION, "driver" => driver, "rpc" => name, "code" => code)
        })
    }
}

/// Returns the row and the metric name of a call that does not belong to CSI.
fn other(path: &str) -> (usize, &'static str) {
    let mut rows = OTHERS.into_iter().zip(Rpc::ALL.len()..);
    let found = rows.find(|((begin, _), _)| path.starts_with(begin));
    // The last prefix in the table matches all paths.
    found.map_or((Rpc::ALL.len(), ""), |((_, name), row)| (row, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tower::{Layer as _, Service};

    const DRIVER: &str = "test.csi.belay.dev";

    /// A service whose requests never arrive completely.
    #[derive(Clone)]
    struct Waiting;

    impl Service<Request<()>> for Waiting {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = std::future::Pending<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            std::future::pending()
        }
    }

    #[test]
    fn a_call_that_is_not_csi_has_its_own_row_and_name() {
        let rows = Rpc::ALL.len();
        let registration = "/pluginregistration.Registration/GetInfo";
        assert_eq!(other(registration), (rows, "registration"));
        assert_eq!(other("/grpc.health.v1.Health/Check"), (rows + 1, "grpc"));
        assert_eq!(other("/csi.v1.Node/Fly"), (rows + 2, "unknown"));
    }

    /// Responds to each request with the next code, as a handler would.
    #[derive(Clone)]
    struct Answering(Arc<std::sync::Mutex<Vec<Code>>>);

    impl Service<Request<()>> for Answering {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<()>) -> Self::Future {
            request
                .extensions()
                .get::<Record>()
                .unwrap()
                .reached("vol-1");
            let code = self.0.lock().unwrap().pop().unwrap();
            std::future::ready(Ok(Status::new(code, "as scripted").into_http()))
        }
    }

    /// The names of gRPC codes in the alerts.
    const CODE_NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];

    #[test]
    fn every_call_is_counted_by_its_name_and_its_code() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let layer = CallLayer::new(DRIVER);
        let call = |path: &str, code: Code| {
            let codes = Arc::new(std::sync::Mutex::new(vec![code]));
            let mut service = layer.layer(Answering(codes));
            let request = Request::builder().uri(path).body(()).unwrap();
            metrics::with_local_recorder(&recorder, || {
                let Ok(_) = runtime.block_on(service.call(request));
            });
        };
        let (stage, create) = (Rpc::NodeStageVolume, Rpc::CreateVolume);
        for number in 0..17 {
            let code = Code::from_i32(number);
            call(stage.path(), code);
            call(stage.path(), code);
            call(create.path(), code);
            call("/grpc.health.v1.Health/Check", code);
        }
        let page = recorder.handle().render();
        for name in CODE_NAMES {
            for (rpc, count) in [("NodeStageVolume", 2), ("CreateVolume", 1), ("grpc", 1)] {
                let series = "belay_rpc_duration_seconds_count";
                let labels = format!("driver=\"{DRIVER}\",rpc=\"{rpc}\",code=\"{name}\"");
                let sample = format!("\n{series}{{{labels}}} {count}\n");
                assert!(page.contains(&sample), "{sample} in {page}");
            }
        }
    }

    #[test]
    fn drivers_of_one_server_are_measured_apart_and_refuse_to_one_list() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let first = CallLayer::new(DRIVER);
        let second = first.of("other.csi.belay.dev");
        metrics::with_local_recorder(&recorder, || {
            for (layer, code) in [(&first, Code::Ok), (&second, Code::Internal)] {
                let path = Rpc::NodeStageVolume.path();
                Call::begin(path, Record::default(), layer).log(code, "EIO");
            }
        });
        let page = recorder.handle().render();
        for (driver, code) in [(DRIVER, "OK"), ("other.csi.belay.dev", "INTERNAL")] {
            let labels = format!("driver=\"{driver}\",rpc=\"NodeStageVolume\",code=\"{code}\"");
            assert!(page.contains(&format!("_count{{{labels}}} 1\n")), "{page}");
        }
        let refused = first.refusals().list();
        let refused: Vec<_> = refused.iter().map(|it| (&*it.driver, it.code)).collect();
        assert_eq!(refused, [("other.csi.belay.dev", Code::Internal)]);
    }

    #[test]
    fn the_alerts_ask_for_codes_that_there_are() {
        let rules = include_str!("../../../deploy/monitoring/rules.yaml");
        let asked = rules.split("code=~\"").skip(1);
        let asked: Vec<&str> = asked
            .filter_map(|rest| rest.split_once('"'))
            .flat_map(|(codes, _)| codes.split('|'))
            .collect();
        assert!(asked.contains(&"INTERNAL"), "{asked:?}");
        for code in asked {
            assert!(CODE_NAMES.contains(&code), "{code}");
        }
    }

    #[test]
    fn a_caller_that_disconnects_is_counted_as_cancelled() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let layer = CallLayer::new(DRIVER);
            let path = Rpc::NodeStageVolume.path();
            drop(Call::begin(path, Record::default(), &layer));
        });
        let page = recorder.handle().render();
        let labels =
            format!("{{driver=\"{DRIVER}\",rpc=\"NodeStageVolume\",code=\"CANCELLED\"}} 1\n");
        assert!(page.contains(&labels), "{page}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_never_arrives_in_full_is_given_up() {
        let layer = CallLayer::new(DRIVER);
        let mut service = layer.layer(Waiting);
        for (rpc, code) in [
            (Rpc::NodeStageVolume, Code::DeadlineExceeded),
            // For CreateVolume, a non-final code would mean that a volume may have been created.
            (Rpc::CreateVolume, Code::Internal),
        ] {
            let request = Request::builder().uri(rpc.path()).body(()).unwrap();
            let answer = service.call(request);
            assert_eq!(layer.running().receiver_count(), 1);
            let Ok(response) = answer.await;
            let failed = Status::from_header_map(response.headers()).unwrap();
            assert_eq!(failed.code(), code);
            assert!(failed.message().starts_with("request: incomplete"));
            assert_eq!(layer.running().receiver_count(), 0);
        }
    }
}
