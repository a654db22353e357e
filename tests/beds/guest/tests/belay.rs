//! Belay in a guest: its two binaries over a state directory, and belayctl as the orchestrator.
//! Knows their flags; the state directory and what it is on are the test's.

use belay_guest::{Gone, Guest, Output};
use serde_json::Value;

/// The shell setup of both programs and the calls.
pub(crate) const SETUP: &str = "\
export PATH=/belay:$PATH
node() { belayctl --endpoint /run/node.sock --output json node \"$@\"; }
controller() { belayctl --endpoint /run/controller.sock --output json controller \"$@\"; }
ready() {
    for _ in $(seq 300); do
        belayctl --endpoint $1 identity probe && return
        sleep 0.1
    done
    return 1
}
";

const START: &str = "\
mkdir -p /state/belay /pods
setsid belay-controller --endpoint /run/controller.sock --node-id guest \\
    --state-dir /state/belay >>/run/controller.log 2>&1 3>&- &
ready /run/controller.sock >/dev/null 2>&1 || { cat /run/controller.log; exit 1; }
setsid belay-node --endpoint /run/node.sock --node-id guest \\
    --loop-dir /state/belay/volumes >>/run/node.log 2>&1 3>&- &
ready /run/node.sock >/dev/null 2>&1 || { cat /run/node.log; exit 1; }";

/// One volume, as an orchestrator knows it.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) id: String,
    pub(crate) filesystem: &'static str,
}

/// Runs a script that may use `node` and `controller`.
pub(crate) fn try_call(guest: &mut Guest<'_>, script: &str) -> Result<Output, Gone> {
    guest.try_run(&format!("{SETUP}set -e\n{script}"))
}

/// Calls like [`try_call`], and returns the output.
#[track_caller]
pub(crate) fn call(guest: &mut Guest<'_>, script: &str) -> Result<String, Gone> {
    let Output { code, text } = try_call(guest, script)?;
    if code == 0 {
        return Ok(text);
    }
    let logs = guest.try_run("tail /run/controller.log /run/node.log; dmesg | tail")?;
    panic!("{script}\nexit code {code}\n{text}\n{}", logs.text)
}

/// The page /metrics of the node agent that listens on port 9808.
#[track_caller]
pub(crate) fn metrics(guest: &mut Guest<'_>) -> Result<String, Gone> {
    let get = "exec 5<>/dev/tcp/127.0.0.1/9808
        printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&5 && cat <&5";
    let page = call(guest, get)?;
    assert!(page.contains("\nbelay_"), "no metrics: {page}");
    Ok(page)
}

/// Starts both binaries on `/state/belay`, and returns when they are ready.
pub(crate) fn start(guest: &mut Guest<'_>) -> Result<(), Gone> {
    call(guest, START).map(drop)
}

impl Volume {
    pub(crate) fn create(
        guest: &mut Guest<'_>,
        name: &str,
        filesystem: &'static str,
        mib: u64,
    ) -> Result<Self, Gone> {
        let create = format!("controller create {name} --size {mib}MiB --fs-type {filesystem}");
        let created = json(&call(guest, &create)?);
        let id = created["volume_id"].as_str().expect("an id").to_owned();
        Ok(Volume { id, filesystem })
    }

    pub(crate) fn stage(&self, guest: &mut Guest<'_>) -> Result<(), Gone> {
        let Volume { id, filesystem } = self;
        let staging = self.staging();
        let stage = format!(
            "mkdir -p {staging}
             node stage {id} --staging {staging} --fs-type {filesystem}"
        );
        call(guest, &stage).map(drop)
    }

    pub(crate) fn publish(&self, guest: &mut Guest<'_>) -> Result<(), Gone> {
        let Volume { id, filesystem } = self;
        let (staging, target) = (self.staging(), self.target());
        let publish = format!(
            "node publish {id} --staging {staging} --target {target} \
                 --fs-type {filesystem}"
        );
        call(guest, &publish).map(drop)
    }

    /// The controller's half and the node's.
    pub(crate) fn grow(&self, guest: &mut Guest<'_>, mib: u64) -> Result<(), Gone> {
        let id = &self.id;
        let (staging, target) = (self.staging(), self.target());
        let grow = format!(
            "controller expand {id} --size {mib}MiB
             node expand {id} --path {target} --staging {staging}"
        );
        call(guest, &grow).map(drop)
    }

    pub(crate) fn unpublish(&self, guest: &mut Guest<'_>) -> Result<(), Gone> {
        let (id, target) = (&self.id, self.target());
        call(guest, &format!("node unpublish {id} --target {target}")).map(drop)
    }

    pub(crate) fn unstage(&self, guest: &mut Guest<'_>) -> Result<(), Gone> {
        let (id, staging) = (&self.id, self.staging());
        call(guest, &format!("node unstage {id} --staging {staging}")).map(drop)
    }

    pub(crate) fn delete(&self, guest: &mut Guest<'_>) -> Result<(), Gone> {
        call(guest, &format!("controller delete {}", self.id)).map(drop)
    }

    /// Bytes of the filesystem, as NodeGetVolumeStats has them.
    pub(crate) fn total(&self, guest: &mut Guest<'_>) -> Result<u64, Gone> {
        let (id, target) = (&self.id, self.target());
        let stats = json(&call(guest, &format!("node stats {id} --path {target}"))?);
        Ok(stats["usage"][0]["total"].as_u64().expect("a number"))
    }

    /// The UUID of the filesystem: another one after a second format.
    pub(crate) fn uuid(&self, guest: &mut Guest<'_>) -> Result<String, Gone> {
        let source = format!("findmnt --noheadings --output UUID {}", self.staging());
        let uuid = call(
            guest,
            &format!(
                "{source} || blkid -s UUID -o value \
             $(findmnt --noheadings --output SOURCE {})",
                self.staging()
            ),
        )?;
        Ok(uuid)
    }

    pub(crate) fn staging(&self) -> String {
        format!("/pods/{}/staging", self.id)
    }

    pub(crate) fn target(&self) -> String {
        format!("/pods/{}/target", self.id)
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
