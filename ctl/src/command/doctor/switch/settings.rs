//! Rules about settings of the driver's pods that the user must repeat in the values of Belay's
//! chart: flags, environment variables and the kubelet's directory. Some settings have no
//! counterpart in Belay.

use super::rules::{Case, Item, Rule, Section, Subject, Test, warning};
use super::workloads::Flags;

const NAME: &str = "settings";
/// The default cluster name of Belay's chart.
const CLUSTER: &str = "kubernetes";
const KUBELET_DIR: &str = "/var/lib/kubelet";
/// Environment variables of HTTP clients, in upper or lower case.
const PROXIES: [&str; 3] = ["HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"];

/// The rules for all drivers, and the rules for cinder-csi-plugin.
#[rustfmt::skip]
pub(super) const SECTIONS: [Section; 2] = [
    Section {
        name: NAME,
        rules: &[warning(Subject::Containers, Test::Finds(kubelet_dir),
            "the kubelet's directory is {0}",
            "set kubeletDir: {0} in Belay's values")],
        ..Section::ALWAYS
    },
    Section {
        name: NAME,
        applies: |case| case.peer.chooses_cloud,
        rules: CINDER,
        ..Section::ALWAYS
    },
];

#[rustfmt::skip]
const CINDER: &[Rule] = &[
    warning(Subject::Containers, Test::Is(|it, _| !Flags::of(it).is_on("with-topology", true)),
        "--with-topology=false",
        "set topology: false in the chart's entry; else Belay labels the nodes with their zones, \
         and new volumes are bound to the zone of their pod's node"),
    warning(Subject::Containers, Test::Finds(|it, _| {
        let topologies = Flags::of(it.object).values("additional-topology").join(",");
        (!topologies.is_empty()).then(|| vec![topologies])
    }),
        "--additional-topology={0}",
        "if all nodes have it, set the variable BELAY_ADDITIONAL_TOPOLOGY={0} in node.env of \
         Belay's values; else run a DaemonSet of your own for each group of nodes, with \
         node.enabled: false"),
    warning(Subject::Containers, Test::Finds(|it, _| {
        let flags = controller_flags(it)?;
        let clouds = flags.values("cloud-name");
        let is_any = clouds.iter().any(|name| !name.is_empty());
        let entries: Vec<_> = clouds.iter().map(|name| entry(name)).collect();
        is_any.then(|| vec![clouds.join(","), entries.join(", ")])
    }),
        "--cloud-name={0}",
        "set clouds: [{1}] in the chart's entry; else Belay uses [Global] alone, and refuses \
         calls for the others"),
    warning(Subject::Containers, Test::Finds(|it, _| {
        let flags = controller_flags(it)?;
        let cluster = flags.values("cluster").last().copied()?;
        let is_other = !cluster.is_empty() && cluster != CLUSTER;
        is_other.then(|| vec![cluster.to_owned()])
    }),
        "--cluster={0}",
        "set cluster: {0} in the chart's entry, which names the cluster in the metadata of new \
         volumes"),
    warning(Subject::Containers, Test::Finds(|it, _| {
        let flags = controller_flags(it)?;
        let files = flags.values("cloud-config");
        (files.len() > 1).then(|| vec![files.join(",")])
    }),
        "--cloud-config={0}",
        "write them into one file, in this order: of a repeated key the last one counts. The \
         chart names one file"),
    warning(Subject::Containers, Test::Finds(|it, _| {
        let names = it.object.list("/env").map(|it| it.text("/name"));
        let is_proxy = |name: &&str| PROXIES.iter().any(|it| it.eq_ignore_ascii_case(name));
        let proxies: Vec<_> = names.filter(is_proxy).collect();
        (!proxies.is_empty()).then(|| vec![proxies.join(", ")])
    }),
        "has {0}",
        "set them in controller.env of Belay's values"),
    warning(Subject::Containers, Test::Finds(|it, _| {
        let aliases = it.workload.list("/spec/template/spec/hostAliases");
        let aliases: Vec<_> = aliases.flat_map(|it| it.texts("/hostnames")).collect();
        (!aliases.is_empty()).then(|| vec![aliases.join(", ")])
    }),
        "has hostAliases for {0}",
        "Belay's chart has no hostAliases: let the cluster's DNS resolve the names that Belay's \
         controller needs"),
];

/// Returns the flags of a container, if it serves the controller's calls.
fn controller_flags(container: &Item<'_>) -> Option<Flags> {
    let flags = Flags::of(container.object);
    flags.is_controller().then_some(flags)
}

/// Returns the entry for a cloud in the chart's values.
fn entry(name: &str) -> String {
    match name {
        "" => "{name: \"\"}".to_owned(),
        name => format!("{{name: {name}, secretName: SECRET}}"),
    }
}

/// Returns the kubelet's directory, derived from the path of the driver's socket; `None` if the
/// directory is unknown or is the default.
fn kubelet_dir(container: &Item<'_>, case: &Case<'_>) -> Option<Vec<String>> {
    let volumes = container.workload.list("/spec/template/spec/volumes");
    let mut paths = volumes.map(|it| it.text("/hostPath/path").trim_end_matches('/'));
    let directory = paths.find_map(|path| {
        let mut drivers = case.peer.drivers.iter();
        drivers.find_map(|driver| path.strip_suffix(&format!("/plugins/{driver}")))
    });
    let other = directory.filter(|path| *path != KUBELET_DIR)?;
    Some(vec![other.to_owned()])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{cluster, expect};
    use super::*;

    /// Returns a change that sets a field of the controller's container.
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
