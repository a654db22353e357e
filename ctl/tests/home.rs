//! The default sockets. These tests run belayctl in a mount namespace, which has a copy of all
//! mounts; so no test of this file may stage a volume, which would be busy.

#![expect(clippy::expect_used, unreachable_pub, reason = "test code")]

#[expect(dead_code, reason = "the other tests use all of it")]
mod scene;

use scene::Scene;

/// Runs belayctl where `/run/belay` has the sockets of the scene, and no other directory has any.
fn at_home(scene: &Scene, line: &str) -> scene::Run {
    let script = format!(
        "mount -t tmpfs tmpfs /run && mkdir /run/belay && mount --bind {} /run/belay &&
         exec {} {line}",
        scene.text(""),
        env!("CARGO_BIN_EXE_belayctl")
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    scene::Run::of(
        command
            .env_remove("CSI_ENDPOINT")
            .output()
            .expect("unshare"),
    )
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn without_an_endpoint_each_call_finds_its_socket() {
    let scene = Scene::new();
    assert!(at_home(&scene, "node info").ok().starts_with("node_id"));
    assert_eq!(at_home(&scene, "volume list -o name").ok(), "");
    at_home(&scene, "rpc NodeGetInfo").ok();
    at_home(&scene, "bench NodeGetInfo -n 1").ok();
    // The node agent is called, but does not see the directories of this mount namespace.
    let mount = "mount data /run/mnt --size 128MiB --state-dir /run/ctl";
    at_home(&scene, mount).fails(
        1,
        "NodeStageVolume: FAILED_PRECONDITION: staging_target_path",
    );
    // The agent's controller knows the name.
    assert_eq!(at_home(&scene, "node health data").ok(), "healthy\n");
    at_home(&scene, "node health nosuch").fails(1, "NOT_FOUND");
    let volume = "$(ls /run/belay/state/volumes)";
    at_home(&scene, &format!("volume delete {volume}")).ok();
    assert_eq!(at_home(&scene, "volume list").ok(), "no volumes\n");
    // Both programs serve it.
    let both = "several sockets may serve identity: /run/belay/controller.sock, /run/belay";
    at_home(&scene, "identity info").fails(64, both);
    // A relative path, and an endpoint, win.
    at_home(&scene, "node info --endpoint run/belay/none.sock")
        .fails(69, "none.sock: does not exist");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_call_to_the_wrong_socket_names_the_right_one() {
    let scene = Scene::new();
    let wrong = "/run/belay/node.sock serves node, not controller: \
                 use --endpoint /run/belay/controller.sock";
    at_home(&scene, "volume list --endpoint /run/belay/node.sock").fails(1, wrong);
    scene
        .node("rpc ListVolumes")
        .fails(1, "serves node, not controller");
    let mount = "mount data %mnt --controller %node.sock --node %node.sock --state-dir %ctl";
    scene
        .run(mount, |command| command)
        .fails(1, "ControllerGetCapabilities: UNIMPLEMENTED");
}
