//! A cloud that is unlike `local`: it takes a name twice, answers before it is done, and remembers
//! neither what a volume is for nor its context. On tokio's clock.

use belay_contract::publish_context::{Content, Transport};
use belay_contract::topology::Topology;
use belay_controller::backend::{
    Answer, AttachOrder, Attachment, Attachments, Backend, Expansion, Order, Page, Phase, Progress,
    Sizes, Volume,
};
use belay_server::call::Failure;
use belay_server::request::{Context, Name, NodeId, VolumeId};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::{Instant, sleep};

pub(crate) const GIB: u64 = 1 << 30;
/// The zone of every volume.
pub(crate) const ZONE: &str = "zone.example.org";

/// The whole cloud, for as many controllers as work on it.
pub(crate) struct Cloud {
    state: Mutex<State>,
    /// How long each change takes.
    pub(crate) delay: Duration,
}

#[derive(Default)]
struct State {
    held: Vec<Held>,
    made: usize,
    looks: usize,
}

struct Held {
    name: Name,
    volume: Volume,
    /// What becomes of it, and when; none = it goes.
    next: Option<(Instant, Option<Volume>)>,
}

impl Cloud {
    pub(crate) fn new(seconds: u64) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            delay: Duration::from_secs(seconds),
        })
    }

    /// How often a volume was looked at by its id.
    pub(crate) fn looks(&self) -> usize {
        self.state().looks
    }

    /// The ids of all volumes that are there.
    pub(crate) fn ids(&self) -> Vec<String> {
        let state = self.state();
        let ids = state.held.iter().map(|held| held.volume.id.to_string());
        ids.collect()
    }

    /// A volume that somebody has made and that has failed.
    pub(crate) fn leave_failed(&self, name: &str, why: &str) {
        let volume = Volume {
            id: VolumeId::new("id-left").unwrap(),
            phase: Phase::Failed(Failure::quota(why)),
            bytes: GIB,
            usage: None,
            context: None,
            nodes: Vec::new(),
            source: None,
            place: None,
        };
        self.state().held.push(Held {
            name: Name::new(name).unwrap(),
            volume,
            next: None,
        });
    }

    /// As it is now.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap();
        let now = Instant::now();
        state.held.retain_mut(|held| {
            let due = held.next.take_if(|(at, _)| *at <= now);
            match due {
                Some((_, None)) => return false,
                Some((_, Some(volume))) => held.volume = volume,
                None => {}
            }
            true
        });
        state
    }

    fn seen(&self, is_meant: impl Fn(&Held) -> bool) -> Vec<Volume> {
        let state = self.state();
        let meant = state.held.iter().filter(|held| is_meant(held));
        meant.map(|held| held.volume.clone()).collect()
    }

    /// Begins to change a volume that is at rest; none if it is as it shall be already.
    fn change(
        &self,
        id: &VolumeId,
        phase: Phase,
        change: impl FnOnce(&Volume) -> Option<Option<Volume>>,
    ) -> Result<Progress<()>, Failure> {
        let at = Instant::now() + self.delay;
        let mut state = self.state();
        let held = state.held.iter_mut().find(|held| held.volume.id == *id);
        let held = held.ok_or_else(|| Failure::not_found(format!("volume {id}: not found")))?;
        if held.next.is_some() {
            return Err(Failure::busy(format!("volume {id}: the cloud says 409")));
        }
        let Some(next) = change(&held.volume) else {
            return Ok(Progress::Done(()));
        };
        held.volume.phase = phase;
        held.next = Some((at, next));
        Ok(Progress::Begun)
    }
}

fn answer<T: Send + 'static>(result: Result<T, Failure>) -> Answer<'static, T> {
    Box::pin(async { result })
}

fn busy(what: &str) -> Phase {
    Phase::Busy(what.to_owned())
}

impl Backend for Cloud {
    fn parameters(&self) -> &'static [&'static str] {
        &["class"]
    }

    fn sizes(&self, parameters: &Context) -> Result<Sizes, Failure> {
        let min = match parameters.get("class") {
            None | Some("doomed") => GIB,
            Some("fast") => 4 * GIB,
            Some(other) => {
                let why = format!("{other:?} is no class of this cloud");
                return Err(Failure::invalid("parameters[class]", why));
            }
        };
        let (step, max) = (GIB, 1024 * GIB);
        Ok(Sizes { step, min, max })
    }

    fn names_are_unique(&self) -> bool {
        false
    }

    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume> {
        assert!(!format!("{order:?}").contains("hunter2"));
        if order.secrets.get("token") != Some("hunter2") {
            return answer(Err(Failure::precondition("the cloud says 401")));
        }
        let (mut state, at) = (self.state(), Instant::now() + self.delay);
        state.made += 1;
        let asked = order.topology.as_ref();
        let zone = asked.and_then(|asked| asked.requisite.first()?.get(ZONE));
        let zone = zone.map(|zone| Arc::new(Topology::new(ZONE, zone).unwrap()));
        let begun = Volume {
            // The later one has the lower id.
            id: VolumeId::new(format!("id-{}", 9 - state.made)).unwrap(),
            phase: busy("creating"),
            bytes: order.bytes,
            usage: None,
            context: None,
            nodes: Vec::new(),
            source: None,
            place: zone,
        };
        let phase = match order.parameters.get("class") {
            Some("doomed") => Phase::Failed(Failure::quota("no host has room")),
            _ => Phase::Ready,
        };
        let next = Volume {
            phase,
            ..begun.clone()
        };
        state.held.push(Held {
            name: order.name.clone(),
            volume: begun.clone(),
            next: Some((at, Some(next))),
        });
        let export = [("export".to_owned(), "/a".to_owned())];
        answer(Ok(Volume {
            context: Some(Context::new("volume_context", export).unwrap()),
            ..begun
        }))
    }

    fn delete(&self, id: VolumeId) -> Answer<'_, Progress<()>> {
        let begun = self.change(&id, Phase::Deleting, |_| Some(None));
        answer(match begun {
            Err(failure) if self.seen(|held| held.volume.id == id).is_empty() => {
                drop(failure);
                Ok(Progress::Done(()))
            }
            begun => begun,
        })
    }

    fn find(&self, name: Name) -> Answer<'_, Vec<Volume>> {
        let seen = self.seen(|held| held.name == name);
        // A page is old when it arrives.
        Box::pin(async {
            sleep(Duration::from_millis(10)).await;
            Ok(seen)
        })
    }

    fn get(&self, id: VolumeId) -> Answer<'_, Option<Volume>> {
        self.state().looks += 1;
        answer(Ok(self.seen(|held| held.volume.id == id).pop()))
    }

    fn list(&self, _: Option<String>, _: usize) -> Answer<'_, Page> {
        let volumes = self.seen(|_| true);
        answer(Ok(Page {
            volumes,
            next: None,
        }))
    }

    fn attachments(&self) -> Option<&dyn Attachments> {
        Some(self)
    }

    fn expansion(&self) -> Option<&dyn Expansion> {
        Some(self)
    }
}

impl Attachments for Cloud {
    fn attach(&self, order: Arc<AttachOrder>) -> Answer<'_, Progress<Attachment>> {
        let begun = self.change(&order.id, busy("attaching"), |volume| {
            let nodes = vec![order.node.clone()];
            (volume.nodes != nodes).then(|| {
                Some(Volume {
                    nodes,
                    ..volume.clone()
                })
            })
        });
        let attachment = Attachment {
            terms: order.terms.clone(),
            transport: Transport::Loop {
                file: order.context.get("export").unwrap_or("none").to_owned(),
            },
            bytes: GIB,
            content: Content::New,
        };
        answer(begun.map(|begun| match begun {
            Progress::Begun => Progress::Begun,
            Progress::Done(()) => Progress::Done(attachment),
        }))
    }

    fn detach(&self, id: VolumeId, node: NodeId) -> Answer<'_, Progress<()>> {
        answer(self.change(&id, busy("detaching"), |volume| {
            volume.nodes.contains(&node).then(|| {
                Some(Volume {
                    nodes: Vec::new(),
                    ..volume.clone()
                })
            })
        }))
    }
}

impl Expansion for Cloud {
    fn grown_sizes(&self, _: &Volume) -> Sizes {
        let (step, max) = (GIB, 1024 * GIB);
        let min = step;
        Sizes { step, min, max }
    }

    fn resize(&self, id: VolumeId, bytes: u64) -> Answer<'_, Progress<u64>> {
        let begun = self.change(&id, busy("extending"), |volume| {
            (volume.bytes < bytes).then(|| {
                Some(Volume {
                    bytes,
                    ..volume.clone()
                })
            })
        });
        answer(begun.map(|begun| match begun {
            Progress::Begun => Progress::Begun,
            Progress::Done(()) => Progress::Done(bytes),
        }))
    }
}
