//! The steps of a volume's lifecycle, each named, timed, recorded and printed. Each node call opens
//! a new connection, as the kubelet does. The measured time of a node call includes opening the
//! connection. All controller calls use one connection, as a sidecar does.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use belay_bed::requests;
use belay_proto::code::describe;
use belay_proto::csi::v1 as csi;
use belay_proto::dial::dial;
use csi::volume_capability::access_mode::Mode;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codec::Codec;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::demo_dir::{NODE, POD, socket};
use crate::progress::Progress;
use crate::report::{Kind, Report, Side, Step, show};

/// The timeout of a call, much longer than any call of the demo takes.
const CALL_MAX: Duration = Duration::from_secs(60);
/// The pause before the first retry of a call. Each further pause is twice as long. The first pause
/// of the kubelet is half a second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The maximum time for which a call that returns ABORTED is repeated.
const REPEAT_MAX: Duration = Duration::from_secs(10);

/// The state that the steps of one run share.
pub(crate) struct Steps<'a> {
    pub(crate) demo_dir: &'a Path,
    pub(crate) controller: Channel,
    pub(crate) report: Report,
    pub(crate) progress: Progress,
    /// The current step and its volume, for a failure report.
    pub(crate) now: String,
}

/// A volume and its paths, laid out as the kubelet lays them out.
pub(crate) struct Life {
    pub(crate) kind: Kind,
    /// The name of the volume and its pod. Simultaneous lifecycles have different names.
    pub(crate) name: String,
    /// The number of the measured round, from 1; 0 if the lifecycle is not part of a round. Only
    /// the first round is printed step by step.
    pub(crate) round: u32,
    /// Whether the times of the steps are added to the report.
    pub(crate) is_counted: bool,
    pub(crate) mode: Mode,
    pub(crate) id: String,
    pub(crate) staging: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) second: PathBuf,
}

impl Life {
    /// Returns the description of a new volume for one pod. The volume is not created yet.
    pub(crate) fn new(demo_dir: &Path, kind: Kind, name: String, round: u32) -> Self {
        let pod = demo_dir.join(POD).join(&name);
        Self {
            kind,
            name,
            round,
            is_counted: false,
            mode: Mode::SingleNodeWriter,
            id: String::new(),
            staging: pod.join("staging"),
            target: pod.join("target"),
            second: pod.join("second-target"),
        }
    }

    /// Returns the capability that a kubelet would send.
    pub(crate) fn capability(&self) -> csi::VolumeCapability {
        requests::capability(self.kind.name(), self.mode)
    }

    /// Returns a seed for the volume's data, different for every lifecycle.
    pub(crate) fn seed(&self) -> u64 {
        u64::from(self.round) << 8 | self.kind as u64
    }
}

/// An error that a program returned.
#[derive(Debug, thiserror::Error)]
#[error("{}", describe(.0))]
struct Refusal(Status);

impl Steps<'_> {
    /// Makes one RPC and records it as a step of the demo. Calls to the node agent each open a new
    /// connection. Repeats the call while it returns ABORTED, as the kubelet does, since another
    /// process, such as udev, may have the device open. The recorded time includes all attempts.
    ///
    /// # Errors
    /// Fails if the program cannot be reached, or returned an error.
    pub(crate) async fn call<R, T>(
        &mut self,
        life: &Life,
        label: Step,
        rpc: &'static str,
        request: R,
    ) -> Result<T>
    where
        R: Clone + Send + Sync + 'static,
        T: Send + Sync + 'static,
        ProstCodec<R, T>: Codec<Encode = R, Decode = T>,
    {
        self.begin(life, label);
        let path = PathAndQuery::try_from(format!("/csi.v1.{rpc}"))?;
        let started = Instant::now();
        let mut pause = FIRST_PAUSE;
        let answer = loop {
            let mut client = Grpc::new(match rpc.starts_with("Controller/") {
                true => self.controller.clone(),
                false => dial(&socket(self.demo_dir, NODE)).await.context(rpc)?,
            });
            client.ready().await.context(rpc)?;
            let codec = ProstCodec::default();
            let call = client.unary(Request::new(request.clone()), path.clone(), codec);
            match timeout(CALL_MAX, call).await.context(rpc)? {
                Err(status) if status.code() == Code::Aborted && started.elapsed() < REPEAT_MAX => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                answer => break answer.map_err(Refusal).context(rpc)?,
            }
        };
        self.end_step(life, label, started.elapsed(), "");
        Ok(answer.into_inner())
    }

    /// Writes or compares the pattern of `seed` in a volume, and records it as a step.
    ///
    /// # Errors
    /// Fails if the data cannot be written or read, or differs.
    pub(crate) fn work(
        &mut self,
        life: &Life,
        label: Step,
        note: &str,
        work: fn(Kind, &Path, u64) -> Result<Duration>,
        seed: u64,
    ) -> Result<()> {
        self.begin(life, label);
        let took = work(life.kind, &life.target, seed)?;
        self.end_step(life, label, took, note);
        Ok(())
    }

    /// Shows the beginning of a step on the screen, and keeps its name for a failure report.
    fn begin(&mut self, life: &Life, label: Step) {
        let (name, rounds) = (&life.name, self.report.rounds);
        self.now = match life.round {
            0 => format!("{name}, {label}"),
            round => format!("{name}, round {round} of {rounds}, {label}"),
        };
        self.progress.draw(&self.report, &self.now, life.round <= 1);
    }

    /// Records and prints the time of a step.
    fn end_step(&mut self, life: &Life, label: Step, took: Duration, note: &str) {
        if life.is_counted {
            self.report.add(life.kind, label, Side::Belay, took);
        }
        if life.round <= 1 {
            self.progress.step(label, &show(took), note);
        }
    }

    /// Checks that a step was refused with FAILED_PRECONDITION, and prints the driver's message.
    ///
    /// # Errors
    /// Fails if the step was not refused, or was refused with a different code.
    pub(crate) fn must_be_refused(&mut self, life: &Life, result: Result<()>) -> Result<()> {
        let error = result.err().context("was not refused")?;
        match error.downcast_ref::<Refusal>() {
            Some(Refusal(status)) if status.code() == Code::FailedPrecondition => {
                if life.round <= 1 {
                    let refused = "refused with FAILED_PRECONDITION:\n   ";
                    let note = format!("{refused} {}", status.message());
                    self.progress.step(&error.to_string(), "", &note);
                }
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Records the result of a check, which the screen shows.
    pub(crate) fn fact(&mut self, topic: &'static str, text: &str) {
        self.progress.passed(&format!("{topic}: {text}"));
        self.report.fact(topic, text);
    }
}
