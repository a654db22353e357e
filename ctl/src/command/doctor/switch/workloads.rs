//! The workloads of a cluster that run a driver, and the flags of their containers.

use super::peer::Peer;
use crate::objects::{Object, Objects};

/// The kinds of objects that run the pods of a driver, with the JSON pointers of the desired and
/// the current number of pods.
pub(super) const WORKLOADS: [(&str, &str, &str); 3] = [
    ("Deployment", "/spec/replicas", "/status/replicas"),
    ("StatefulSet", "/spec/replicas", "/status/replicas"),
    (
        "DaemonSet",
        "/status/desiredNumberScheduled",
        "/status/currentNumberScheduled",
    ),
];

/// Returns all objects that run pods, each with its kind.
pub(super) fn workloads(objects: &Objects) -> impl Iterator<Item = (&'static str, Object<'_>)> {
    let kinds = WORKLOADS.iter().map(|(kind, ..)| *kind);
    kinds.flat_map(|kind| objects.of(kind).map(move |it| (kind, it)))
}

/// Returns the containers that run the driver's programs: for each container, the title of its
/// workload, the workload, and the container itself.
pub(super) fn containers<'a>(
    objects: &'a Objects,
    peer: &'a Peer,
) -> impl Iterator<Item = (String, Object<'a>, Object<'a>)> {
    workloads(objects).flat_map(|(kind, workload)| {
        let containers = workload.list("/spec/template/spec/containers");
        let ours = containers.filter(|it| peer.runs(it.text("/image")));
        ours.map(move |it| (format!("{kind} {}", workload.full_name()), workload, it))
    })
}

impl Peer {
    /// Whether a container of a workload has one of the driver's images.
    pub(super) fn is_run_by(&self, workload: Object<'_>) -> bool {
        let mut containers = workload.list("/spec/template/spec/containers");
        containers.any(|it| self.runs(it.text("/image")))
    }

    /// Whether the image belongs to the driver.
    pub(super) fn runs(&self, image: &str) -> bool {
        self.images.contains(&last_part(image))
    }
}

/// Returns the last path component of an image name: `name` of
/// `registry:5000/path/name:tag@digest`.
fn last_part(image: &str) -> &str {
    let path = image.split('@').next().unwrap_or_default();
    let last = path.rsplit('/').next().unwrap_or_default();
    last.split(':').next().unwrap_or_default()
}

/// The flags of a container.
pub(super) struct Flags(Vec<Flag>);

struct Flag {
    name: String,
    /// The text after an equals sign.
    value: Option<String>,
    /// The next argument. This is the value if the flag requires a value and has no equals sign.
    next: Option<String>,
}

impl Flags {
    /// Reads the flags from the command and arguments of a container, and expands the variables
    /// that the container sets. An argument may be a command line for a shell.
    pub(super) fn of(container: Object<'_>) -> Self {
        let texts = ["/command", "/args"].map(|part| container.texts(part));
        let texts = texts.into_iter().flatten().flat_map(str::split_whitespace);
        let words: Vec<_> = texts.map(|word| expanded(container, word)).collect();
        let flags = words.iter().enumerate().filter_map(|(n, word)| {
            let word = word.strip_prefix("--")?;
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word, None),
            };
            let next = words.get(n + 1).filter(|next| !next.starts_with('-'));
            Some(Flag {
                name: name.to_owned(),
                value,
                next: next.cloned(),
            })
        });
        Self(flags.collect())
    }

    fn named(&self, name: &str) -> impl Iterator<Item = &Flag> {
        self.0.iter().filter(move |flag| flag.name == name)
    }

    /// Returns all values of a flag, which may be repeated and may contain comma-separated lists.
    pub(super) fn values(&self, name: &str) -> Vec<&str> {
        let all = self.named(name);
        let all = all.filter_map(|flag| flag.value.as_deref().or(flag.next.as_deref()));
        all.flat_map(|list| list.split(',')).collect()
    }

    /// Whether a Boolean flag is set; the last occurrence counts.
    pub(super) fn is_on(&self, name: &str, by_default: bool) -> bool {
        let last = self.named(name).last();
        last.map_or(by_default, |flag| match flag.value.as_deref() {
            Some(value) => ["1", "t", "T", "TRUE", "true", "True"].contains(&value),
            None => true,
        })
    }

    /// Whether the program serves the controller's calls.
    pub(super) fn is_controller(&self) -> bool {
        self.is_on("provide-controller-service", true)
    }
}

/// Expands `$(NAME)` in an argument, and removes the quotes of a shell.
fn expanded(container: Object<'_>, word: &str) -> String {
    let mut word = word.trim_matches(['"', '\'']).to_owned();
    for variable in container.list("/env") {
        if let Some(value) = variable.at("/value").and_then(serde_json::Value::as_str) {
            word = word.replace(&format!("$({})", variable.text("/name")), value);
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_its_last_part() {
        for image in [
            "cinder-csi-plugin",
            "registry.k8s.io/provider-os/cinder-csi-plugin:v1.35.0",
            "localhost:5000/cinder-csi-plugin@sha256:00",
        ] {
            assert_eq!(last_part(image), "cinder-csi-plugin", "{image}");
        }
        assert_eq!(
            last_part("localhost:5000/a/other-cinder-csi-plugin"),
            "other-cinder-csi-plugin"
        );
    }
}
