//! Tests of volumes that have the requested name, but different parameters.

use super::*;

/// Creates `pvc-1` with a class, on a backend that reports these parameters for the volume.
async fn created(
    shown: &[(&'static str, &str)],
    class: Option<&str>,
    meets: bool,
) -> Result<Volume, Failure> {
    let shown = shown.iter().map(|(key, is)| (*key, (*is).to_owned()));
    let volume = Volume {
        parameters: shown.collect(),
        ..volume(Phase::Ready)
    };
    let backend = Stub {
        volume: Some(volume),
        meets,
        ..Stub::default()
    };
    let class: Vec<_> = class.map(|class| ("class", class)).into_iter().collect();
    let request = CreateVolume {
        parameters: owned(&class),
        ..named("pvc-1", block())
    };
    let operations = Operations::new(Arc::new(backend), rules());
    operations.create(request).await
}

#[tokio::test]
async fn a_volume_that_shows_another_parameter_than_it_was_asked_for_is_incompatible() {
    let refused = created(&[("class", "large")], Some("small"), false).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind, Kind::Incompatible, "{refused}");
    for part in ["parameters[class]", "\"large\"", "\"small\"", "vol-1"] {
        assert!(refused.message.contains(part), "{part}: {refused}");
    }
    for (shown, class, meets) in [
        (&[("class", "small")][..], Some("small"), false),
        // Without the parameter in the request, the storage has selected the value.
        (&[("class", "large")], None, false),
        // The storage does not report the parameter.
        (&[], Some("small"), false),
        (&[("other", "large")], Some("small"), false),
        // The storage uses a different name for the same value.
        (&[("class", "large")], Some("small"), true),
    ] {
        let answer = created(shown, class, meets).await;
        assert!(answer.is_ok(), "{shown:?} {class:?}: {answer:?}");
    }
}
