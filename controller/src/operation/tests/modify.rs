//! Tests of volume attributes, with a backend that responds before it has made a change, and may
//! not make the change at all.

use super::*;
use crate::backend::Modification;
use belay_server::request::ControllerModify;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// A backend that sets the requested attribute `class` of its volume `vol-1`, or ignores the
/// request silently.
#[derive(Default)]
struct Changing {
    class: Mutex<String>,
    ignores: AtomicBool,
    begun: AtomicUsize,
    orders: Mutex<Vec<Arc<Order>>>,
}

impl Backend for Changing {
    fn sizes(&self, _: &Context) -> Result<Sizes, Failure> {
        Ok(ANY)
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["class", "other"]
    }

    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume> {
        let class = order.parameters.get("class").unwrap_or_default();
        class.clone_into(&mut self.class.lock().unwrap());
        self.orders.lock().unwrap().push(order);
        Box::pin(async { Ok(volume(Phase::Ready)) })
    }

    fn delete(&self, _: VolumeId, _: Secrets) -> Answer<'_, Progress<()>> {
        unreachable!()
    }

    fn find(&self, _: Name, _: Secrets) -> Answer<'_, Vec<Volume>> {
        let is_made = !self.orders.lock().unwrap().is_empty();
        let found = is_made.then(|| volume(Phase::Ready));
        Box::pin(async { Ok(found.into_iter().collect()) })
    }

    fn get(&self, id: VolumeId, _: Secrets) -> Answer<'_, Option<Volume>> {
        let found = (id.as_str() == "vol-1").then(|| volume(Phase::Ready));
        Box::pin(async { Ok(found) })
    }

    fn list(&self, _: Option<String>, _: usize, _: Secrets) -> Answer<'_, Page> {
        unreachable!()
    }

    fn modification(&self) -> Option<&dyn Modification> {
        Some(self)
    }
}

impl Modification for Changing {
    fn mutable_parameters(&self) -> &'static [&'static str] {
        &["class"]
    }

    fn modify(&self, _: VolumeId, parameters: Context, _: Secrets) -> Answer<'_, Progress<()>> {
        let asked = parameters.get("class").unwrap_or_default().to_owned();
        let mut class = self.class.lock().unwrap();
        if *class == asked {
            return Box::pin(async { Ok(Progress::Done(())) });
        }
        self.begun.fetch_add(1, SeqCst);
        if !self.ignores.load(SeqCst) {
            *class = asked;
        }
        Box::pin(async { Ok(Progress::Begun) })
    }

    fn verify(&self, _: VolumeId, parameters: Context, _: Secrets) -> Answer<'_, ()> {
        let is_so = parameters.get("class") == Some(&*self.class.lock().unwrap());
        Box::pin(async move {
            match is_so {
                true => Ok(()),
                false => Err(Failure::invalid("class", "has not changed")),
            }
        })
    }
}

fn entries(entries: &[(&str, &str)]) -> Context {
    owned(entries)
}

fn modified(volume: &str, parameters: &[(&str, &str)]) -> ControllerModify {
    ControllerModify {
        id: VolumeId::new(volume).unwrap(),
        mutable_parameters: entries(parameters),
        secrets: Secrets::default(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_begun_once_waited_for_and_read_back() {
    let backend = Arc::new(Changing::default());
    let operations = Operations::new(Arc::clone(&backend) as Arc<dyn Backend>, rules());
    assert!(operations.modifies());
    for _ in 0..2 {
        let gold = modified("vol-1", &[("class", "gold")]);
        operations.modify(gold).await.unwrap();
        assert_eq!(backend.begun.load(SeqCst), 1);
    }
    backend.ignores.store(true, SeqCst);
    let refused = operations
        .modify(modified("vol-1", &[("class", "tin")]))
        .await;
    assert_eq!(refused.unwrap_err().kind, Kind::Invalid);
    for (request, kind) in [
        (modified("vol-1", &[("other", "x")]), Kind::Invalid),
        (modified("vol-2", &[("class", "tin")]), Kind::NotFound),
    ] {
        assert_eq!(operations.modify(request).await.unwrap_err().kind, kind);
    }
    assert_eq!(backend.begun.load(SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_new_volume_has_the_attributes_of_its_class_and_one_that_has_others_is_another() {
    let backend = Arc::new(Changing::default());
    let operations = Operations::new(Arc::clone(&backend) as Arc<dyn Backend>, rules());
    let order = |class: &str| CreateVolume {
        parameters: entries(&[("class", "tin"), ("other", "kept")]),
        mutable_parameters: entries(&[("class", class)]),
        ..named("pvc-1", block())
    };
    operations.create(order("gold")).await.unwrap();
    let made = Arc::clone(&backend.orders.lock().unwrap()[0]);
    assert_eq!(made.parameters.get("class"), Some("gold"));
    assert_eq!(made.parameters.get("other"), Some("kept"));
    operations.create(order("gold")).await.unwrap();
    let refused = operations.create(order("silver")).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Incompatible, "{refused}");
    let unknown = CreateVolume {
        mutable_parameters: entries(&[("other", "x")]),
        ..named("pvc-2", block())
    };
    let refused = operations.create(unknown).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Invalid, "{refused}");
    assert!(refused.message.contains("mutable_parameters"), "{refused}");
}
