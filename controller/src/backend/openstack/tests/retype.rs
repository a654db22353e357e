//! Tests changes of a volume's type.

use super::*;
use crate::backend::Modification;

fn asked(kind: &str) -> Context {
    Context::new("mutable_parameters", [("type".to_owned(), kind.to_owned())]).unwrap()
}

async fn with_types() -> Twin {
    let twin = Twin::start().await;
    twin.state().types = BTreeMap::from([("fast", json!({})), ("slow", json!({}))]);
    twin
}

impl Twin {
    async fn modify(&self, id: &VolumeId, kind: &str) -> Result<Progress<()>, Failure> {
        self.backend
            .modify(id.clone(), asked(kind), Secrets::default())
            .await
    }

    async fn verify(&self, id: &VolumeId, kind: &str) -> Result<(), Failure> {
        self.backend
            .verify(id.clone(), asked(kind), Secrets::default())
            .await
    }

    fn type_of(&self, id: &VolumeId) -> Value {
        self.state().volumes[id.as_str()]["volume_type"].clone()
    }

    fn retypes(&self) -> usize {
        let state = self.state();
        let posts = state.seen.iter().filter(|call| call.ends_with("/action"));
        posts.count()
    }
}

#[tokio::test]
async fn a_volume_gets_another_type_once_and_by_name_or_id() {
    let twin = with_types().await;
    let id = twin.created("pvc-1").await;
    assert_eq!(twin.modify(&id, "fast").await, Ok(Progress::Done(())));
    assert_eq!(twin.retypes(), 0, "it has that type");
    for (kind, name, count) in [("slow", "slow", 1), ("id-of-fast", "fast", 2)] {
        assert_eq!(twin.modify(&id, kind).await, Ok(Progress::Begun));
        assert_eq!(twin.type_of(&id), name);
        assert_eq!(twin.verify(&id, kind).await, Ok(()));
        assert_eq!(twin.modify(&id, kind).await, Ok(Progress::Done(())));
        assert_eq!(twin.retypes(), count);
    }
    let nothing = Context::default();
    let unchanged = twin.backend.modify(id, nothing, Secrets::default());
    assert_eq!(unchanged.await, Ok(Progress::Done(())));
}

#[tokio::test]
async fn a_retype_that_cinder_accepts_and_does_not_make_is_an_error() {
    let twin = with_types().await;
    let id = twin.created("pvc-1").await;
    twin.state().volumes.get_mut(id.as_str()).unwrap()["ignores_retypes"] = true.into();
    assert_eq!(twin.modify(&id, "slow").await, Ok(Progress::Begun));
    let refused = twin.verify(&id, "slow").await.unwrap_err();
    assert_eq!(refused.kind, Kind::Invalid, "{refused}");
    for part in [
        "mutable_parameters[type]",
        id.as_str(),
        "\"fast\"",
        "\"slow\"",
        "moving",
    ] {
        assert!(refused.message.contains(part), "{part}: {refused}");
    }
}

#[tokio::test]
async fn a_type_that_does_not_exist_is_invalid_and_a_refusal_keeps_cinders_reason() {
    let twin = with_types().await;
    let id = twin.created("pvc-1").await;
    for unknown in ["gold", ""] {
        let refused = twin.modify(&id, unknown).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Invalid, "{refused}");
        assert!(
            refused.message.contains("mutable_parameters[type]"),
            "{refused}"
        );
    }
    assert_eq!(twin.retypes(), 0);
    let reason = r#"{"badRequest": {"code": 400, "message": "Invalid volume: not while in-use"}}"#;
    let refuse = || twin.state().refusals = vec![("/action", "400", reason)];
    refuse();
    let refused = twin.modify(&id, "slow").await.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition, "{refused}");
    assert!(refused.message.contains("not while in-use"), "{refused}");
    // A different controller is changing the volume.
    refuse();
    twin.state().volumes.get_mut(id.as_str()).unwrap()["status"] = "retyping".into();
    let refused = twin.modify(&id, "slow").await.unwrap_err();
    assert_eq!(refused.kind, Kind::Busy, "{refused}");
    let gone = VolumeId::new(nth(999)).unwrap();
    for refused in [
        twin.modify(&gone, "slow").await.unwrap_err(),
        twin.verify(&gone, "slow").await.unwrap_err(),
    ] {
        assert_eq!(refused.kind, Kind::NotFound, "{refused}");
    }
}
