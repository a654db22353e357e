//! How the peer's pods are set up, as far as Belay's values must say the same: flags, variables and
//! the kubelet's directory. Some have no counterpart.

use super::objects::{Object, Objects};
use super::peer::Peer;
use super::running;
use crate::report::{Report, Verdict};

const NAME: &str = "settings";
/// The default of Belay's chart.
const CLUSTER: &str = "kubernetes";
const KUBELET_DIR: &str = "/var/lib/kubelet";
/// Variables of clients of HTTP, in any case.
const PROXIES: [&str; 3] = ["HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"];

/// The flags of a container.
pub(super) struct Flags(Vec<Flag>);

struct Flag {
    name: String,
    /// After an equals sign.
    value: Option<String>,
    /// The next word, which is the value of a flag that needs one.
    next: Option<String>,
}

impl Flags {
    /// Of its command and arguments, with the variables that the container sets. One of them may be
    /// a line for a shell.
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

    /// All values of a flag that may be repeated, and has lists.
    pub(super) fn values(&self, name: &str) -> Vec<&str> {
        let all = self.named(name);
        let all = all.filter_map(|flag| flag.value.as_deref().or(flag.next.as_deref()));
        all.flat_map(|list| list.split(',')).collect()
    }

    /// Whether a switch is on; the last one counts.
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

/// A word, with the values of `$(NAME)`, and without the quotes of a shell.
fn expanded(container: Object<'_>, word: &str) -> String {
    let mut word = word.trim_matches(['"', '\'']).to_owned();
    for variable in container.list("/env") {
        if let Some(value) = variable.at("/value").and_then(serde_json::Value::as_str) {
            word = word.replace(&format!("$({})", variable.text("/name")), value);
        }
    }
    word
}

/// Reports settings that Belay's values must have too.
pub(super) fn findings(report: &mut Report, objects: &Objects, peer: &Peer) {
    for (title, workload, container) in running::containers(objects, peer) {
        let mut warn = |what: String, cure: String| {
            report.cure(Verdict::Warn, NAME, format!("{title}: {what}"), cure);
        };
        if let Some(directory) = kubelet_dir(workload, peer) {
            warn(
                format!("the kubelet's directory is {directory}"),
                format!("set kubeletDir: {directory} in Belay's values"),
            );
        }
        if peer.chooses_cloud {
            flags(&Flags::of(container), &mut warn);
            network(workload, container, &mut warn);
        }
    }
}

/// The flags of cinder-csi-plugin.
fn flags(flags: &Flags, warn: &mut impl FnMut(String, String)) {
    if !flags.is_on("with-topology", true) {
        let cure = "set topology: false in the chart's entry; else Belay labels the nodes with \
                    their zones, and new volumes are bound to the zone of their pod's node";
        warn("--with-topology=false".to_owned(), cure.to_owned());
    }
    let topologies = flags.values("additional-topology").join(",");
    if !topologies.is_empty() {
        let cure = format!(
            "if all nodes have it, set the variable BELAY_ADDITIONAL_TOPOLOGY={topologies} in \
             node.env of Belay's values, for its first driver; else run a DaemonSet of your own \
             for each group of nodes, with node.enabled: false"
        );
        warn(format!("--additional-topology={topologies}"), cure);
    }
    if !flags.is_controller() {
        return;
    }
    let clouds = flags.values("cloud-name");
    if clouds.iter().any(|name| !name.is_empty()) {
        let entries: Vec<_> = clouds.iter().map(|name| entry(name)).collect();
        let cure = format!(
            "set clouds: [{}] in the chart's entry; else Belay uses [Global] alone, and refuses \
             calls for the others",
            entries.join(", ")
        );
        warn(format!("--cloud-name={}", clouds.join(",")), cure);
    }
    let cluster = flags.values("cluster").last().copied().unwrap_or_default();
    if !cluster.is_empty() && cluster != CLUSTER {
        let cure = format!(
            "set cluster: {cluster} in the chart's entry, which names the cluster in the metadata \
             of new volumes"
        );
        warn(format!("--cluster={cluster}"), cure);
    }
    let files = flags.values("cloud-config");
    if files.len() > 1 {
        let cure = "write them into one file, in this order: of a repeated key the last one \
                    counts. The chart names one file";
        warn(
            format!("--cloud-config={}", files.join(",")),
            cure.to_owned(),
        );
    }
}

/// That cloud in the chart's values.
fn entry(name: &str) -> String {
    match name {
        "" => "{name: \"\"}".to_owned(),
        name => format!("{{name: {name}, secretName: SECRET}}"),
    }
}

/// How the pod reaches the cloud.
fn network(workload: Object<'_>, container: Object<'_>, warn: &mut impl FnMut(String, String)) {
    let names = container.list("/env").map(|it| it.text("/name"));
    let is_proxy = |name: &&str| PROXIES.iter().any(|it| it.eq_ignore_ascii_case(name));
    let proxies: Vec<_> = names.filter(is_proxy).collect();
    if !proxies.is_empty() {
        let cure = "set them in controller.env of Belay's values";
        warn(format!("has {}", proxies.join(", ")), cure.to_owned());
    }
    let aliases = workload.list("/spec/template/spec/hostAliases");
    let aliases: Vec<_> = aliases.flat_map(|it| it.texts("/hostnames")).collect();
    if !aliases.is_empty() {
        let cure = "Belay's chart has no hostAliases: let the cluster's DNS resolve the names that \
                    Belay's controller needs";
        warn(
            format!("has hostAliases for {}", aliases.join(", ")),
            cure.to_owned(),
        );
    }
}

/// The kubelet's directory, by that of the driver's socket, if it is not the default.
fn kubelet_dir<'a>(workload: Object<'a>, peer: &Peer) -> Option<&'a str> {
    let volumes = workload.list("/spec/template/spec/volumes");
    let mut paths = volumes.map(|it| it.text("/hostPath/path").trim_end_matches('/'));
    let directory = paths.find_map(|path| {
        let mut drivers = peer.drivers.iter();
        drivers.find_map(|driver| path.strip_suffix(&format!("/plugins/{driver}")))
    });
    directory.filter(|path| *path != KUBELET_DIR)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{cluster, expect};
    use super::*;

    /// The container of the controller, after the change.
    fn with(field: &str, value: Value) -> impl FnOnce(&mut Vec<Value>) {
        let field = field.to_owned();
        move |all| all[1]["spec"]["template"]["spec"]["containers"][0][field] = value
    }

    #[track_caller]
    fn expect_of(args: Value, part: &str) {
        expect("warn", NAME, part, with("args", args));
    }

    #[test]
    fn a_flag_that_belays_values_must_have_too_is_named_with_the_value() {
        expect_of(json!(["--with-topology=false"]), "set topology: false");
        let clouds = "set clouds: [{name: \"\"}, {name: two, secretName: SECRET}]";
        expect_of(json!(["--cloud-name=,two"]), clouds);
        let two = "set clouds: [{name: two, secretName: SECRET}, {name: three";
        expect_of(json!(["--cloud-name", "two", "--cloud-name=three"]), two);
        expect_of(json!(["--cluster=prod"]), "set cluster: prod");
        expect_of(
            json!(["exec plugin --cluster 'prod' --v=1"]),
            "set cluster: prod",
        );
        let topology = "BELAY_ADDITIONAL_TOPOLOGY=a/b=c,d=e";
        expect_of(json!(["--additional-topology=a/b=c,d=e"]), topology);
        expect_of(json!(["--cloud-config=/a,/b"]), "write them into one file");
    }

    #[test]
    fn variables_are_expanded() {
        let change = |all: &mut Vec<Value>| {
            with("command", json!(["/plugin", "--cluster=$(NAME)"]))(all);
            with("env", json!([{"name": "NAME", "value": "prod"}]))(all);
        };
        expect("warn", NAME, "set cluster: prod", change);
    }

    #[test]
    fn the_defaults_of_both_drivers_are_no_finding() {
        for args in [
            json!([
                "--with-topology=true",
                "--cluster=kubernetes",
                "--cloud-name="
            ]),
            json!([
                "--with-topology",
                "--cloud-config=/etc/config/cloud.conf",
                "--v=1"
            ]),
            json!(["--provide-controller-service=false", "--cluster=prod"]),
        ] {
            let report = cluster(with("args", args));
            assert!(!report.table().contains(NAME), "{}", report.table());
        }
    }

    #[test]
    fn how_the_pod_reaches_the_cloud_is_named() {
        let proxy = json!([{"name": "https_proxy", "value": "http://proxy:3128"}]);
        expect("warn", NAME, "controller.env", with("env", proxy));
        expect("warn", NAME, "hostAliases for keystone.internal", |all| {
            all[1]["spec"]["template"]["spec"]["hostAliases"] =
                json!([{"ip": "10.0.0.1", "hostnames": ["keystone.internal"]}]);
        });
    }

    #[test]
    fn another_directory_of_the_kubelet_is_named() {
        let directory = |path: &str| {
            let path = format!("{path}/plugins/cinder.csi.openstack.org");
            move |all: &mut Vec<Value>| {
                all[1]["spec"]["template"]["spec"]["volumes"] =
                    json!([{"name": "socket", "hostPath": {"path": path}}]);
            }
        };
        let cure = "set kubeletDir: /var/lib/k0s/kubelet";
        expect("warn", NAME, cure, directory("/var/lib/k0s/kubelet"));
        let usual = cluster(directory("/var/lib/kubelet"));
        assert!(!usual.table().contains(NAME), "{}", usual.table());
    }
}
