//! Tests of the gRPC code that the caller receives for each kind of failure in the kernel, in each
//! call.

use std::path::Path;
use std::sync::Arc;

use belay_contract::drivers::LOCAL;
use tonic::{Code, Status};

use super::calls::send;
use crate::kernel::fake::{Fake, Fault};
use crate::operation::tests::bench::{Form, Verb, Volume, World};
use crate::operation::tests::simulated::Simulated;
use crate::rpc::NodeService;
use crate::work::Pool;

const CALLS: [Verb; 7] = [
    Verb::Stage,
    Verb::Unstage,
    Verb::Publish(1),
    Verb::Unpublish(1),
    Verb::Expand,
    Verb::Stats,
    Verb::Health,
];

/// A driver that is ready, its simulated machine, and one volume.
struct Site {
    world: Simulated,
    service: Arc<NodeService<Fake>>,
    volume: Volume,
}

impl Site {
    fn new(form: Form) -> Self {
        let world = Simulated::new();
        // Enable quotas, so that statistics run on the pool.
        world.machine.keep_quotas();
        let service = Arc::new(NodeService::new("", Pool::new(), &LOCAL));
        service.come_up(world.start());
        let volume = world.volume("vol", form);
        Site {
            world,
            service,
            volume,
        }
    }

    async fn send(&self, verb: Verb) -> Result<(), Status> {
        send(&self.service, &self.volume, verb).await
    }

    /// Creates the driver and the volume, and makes the calls that must precede `verb`.
    async fn before(verb: Verb, form: Form) -> Self {
        let site = Site::new(form);
        let earlier: &[Verb] = match verb {
            Verb::Stage => &[],
            Verb::Publish(_) | Verb::Unstage => &[Verb::Stage],
            _ => &[Verb::Stage, Verb::Publish(1)],
        };
        for verb in earlier {
            site.send(*verb).await.unwrap();
        }
        site
    }

    /// Makes the call with this fault on the machine, and returns the gRPC code.
    async fn code(&self, verb: Verb, fault: Fault) -> Code {
        self.world.machine.begin(Some(fault));
        let answer = self.send(verb).await;
        self.world.machine.end();
        answer.map_or_else(|status| status.code(), |()| Code::Ok)
    }
}

#[tokio::test]
async fn a_driver_that_is_not_up_is_unavailable() {
    let site = Site::new(Form::Ext4);
    let service = NodeService::new("it has just started", Pool::new(), &LOCAL);
    for verb in CALLS {
        let status = send(&service, &site.volume, verb).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{verb:?}: {status}");
    }
}

#[tokio::test]
async fn a_path_outside_the_kubelets_directory_is_an_invalid_argument() {
    for verb in CALLS {
        let mut site = Site::before(verb, Form::Ext4).await;
        site.volume.base = "/elsewhere".into();
        let status = site.send(verb).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{verb:?}: {status}");
        assert!(!site.world.machine.is_there(Path::new("/elsewhere")));
    }
}

#[tokio::test]
async fn an_errno_of_the_kernel_has_its_code_in_every_call() {
    for verb in CALLS {
        for (errno, code) in [
            ("EMFILE", Code::ResourceExhausted),
            ("EIO", Code::Internal),
            ("ENOMEM", Code::Internal),
        ] {
            let site = Site::before(verb, Form::Ext4).await;
            let failed = site.code(verb, Fault::FailFrom(1, errno)).await;
            let code = match verb {
                // The agent cannot read either whether something is mounted at the path, so the
                // failure is uncertain.
                Verb::Stage | Verb::Publish(_) => Code::Aborted,
                _ => code,
            };
            assert_eq!(failed, code, "{verb:?} {errno}");
            // A failed call must not be treated as a hung call.
            site.send(verb).await.unwrap();
        }
    }
}

#[tokio::test]
async fn what_the_caller_may_forget_is_final_and_what_may_be_running_is_not() {
    for (verb, form) in [
        (Verb::Stage, Form::Block),
        (Verb::Publish(1), Form::Block),
        (Verb::Publish(1), Form::Ext4),
    ] {
        let site = Site::before(verb, form).await;
        site.world.machine.begin(None);
        site.send(verb).await.unwrap();
        let calls = site.world.machine.end();
        let at = calls.iter().position(|call| call.name == "move_mount");
        let at = at.unwrap() + 1;
        let site = Site::before(verb, form).await;
        let rolled_back = site.code(verb, Fault::Fail(at, "EPERM")).await;
        assert_eq!(rolled_back, Code::Internal, "{verb:?} {form:?}");
        let site = Site::before(verb, form).await;
        let unknown = site.code(verb, Fault::FailFrom(at, "EPERM")).await;
        assert_eq!(unknown, Code::Aborted, "{verb:?} {form:?}");
    }
}
