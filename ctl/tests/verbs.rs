//! Every verb of belayctl that is one call, against the sockets of both programs.

#![expect(clippy::expect_used, unreachable_pub, reason = "test code")]

mod scene;

use scene::{Scene, expect_nothing_left};
use std::fs;

/// The first word of the only line.
fn name(out: String) -> String {
    let name = out.trim_end().to_owned();
    assert!(
        !name.is_empty() && !name.contains(char::is_whitespace),
        "{out:?}"
    );
    name
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn every_verb_that_reads_volumes() {
    let scene = Scene::new();
    let create = "volume create data --size 128MiB --fs-type ext4";
    let id = name(scene.controller(&format!("{create} -o name")).ok());
    let created = scene.controller(&format!("{create} -o json")).ok();
    assert!(
        created.contains(&format!("\"volume_id\": \"{id}\"")),
        "{created}"
    );

    let list = scene.controller("volume list").ok();
    assert!(
        list.starts_with("VOLUME_ID") && list.contains("128MiB"),
        "{list}"
    );
    assert!(list.contains(&format!("{id}  data  ")), "{list}");
    for verb in ["get data", "health data", "validate data --fs-type ext4"] {
        scene.controller(&format!("volume {verb}")).ok();
    }
    // A volume of a list can be passed to other calls.
    fs::write(
        scene.path("listed.json"),
        scene.controller("volume get data -o json").ok(),
    )
    .expect("write");
    let validate = "volume validate data --fs-type ext4 --context-from %listed.json";
    scene.controller(validate).ok();
    let wide = scene.controller("volume ls -o wide").ok();
    assert!(
        wide.contains("134217728 (128MiB)") && wide.contains("VOLUME_CONTEXT"),
        "{wide}"
    );
    let page = scene
        .controller("controller list --max-entries 1 -o json")
        .ok();
    assert!(
        page.contains("\"accessible_topology\": [") && page.contains("134217728"),
        "{page}"
    );
    assert_eq!(name(scene.controller("volume list -o name").ok()), id);
    let volume = scene.controller(&format!("volume get {id}")).ok();
    assert!(
        volume.starts_with("volume_id") && volume.contains("capacity"),
        "{volume}"
    );

    scene
        .controller(&format!("volume validate {id} --fs-type ext4"))
        .ok();
    let no = format!("volume validate {id} --mode MULTI_NODE_MULTI_WRITER");
    assert!(scene.controller(&no).says_no().contains("confirmed  no"));
    let capacity = scene.controller("volume capacity").ok();
    assert!(capacity.contains("available_capacity"), "{capacity}");
    let capabilities = scene.controller("volume capabilities -o name").ok();
    assert!(
        capabilities
            .lines()
            .any(|line| line == "CREATE_DELETE_VOLUME")
    );

    scene.controller(&format!("volume delete {id}")).ok();
    scene
        .controller(&format!("volume get {id}"))
        .fails(1, "NOT_FOUND");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn every_verb_that_changes_a_volume_and_its_health() {
    let scene = Scene::new();
    let create = "volume create data --size 128MiB --fs-type ext4 -o json";
    fs::write(scene.path("created.json"), scene.controller(create).ok()).expect("write");
    let id = name(scene.controller("volume list -o name").ok());
    let grown = scene
        .controller(&format!("volume expand {id} --size 1152MiB"))
        .ok();
    assert!(grown.contains("1.1GiB"), "{grown}");
    // The call of a cloud that rounded the size up.
    let again = scene.controller(&format!("volume expand {id} --size 160MiB"));
    assert_eq!(again.ok(), grown);
    let shrink = format!("volume expand {id} --size 0.125GiB");
    let both =
        "the volume has 1.1GiB (1207959552 bytes), and cannot shrink to 128MiB (134217728 bytes)";
    scene.controller(&shrink).fails(1, both);
    scene
        .controller(&format!("volume expand {id} --size -1GiB"))
        .fails(64, "is negative");
    // The driver has no attach.
    let attach = format!("volume attach {id} --node-id node-1 --fs-type ext4");
    let attach = format!("{attach} --context-from %created.json");
    let detach = format!("volume detach {id} --node-id node-1");
    for call in [attach, detach] {
        scene.controller(&call).fails(1, "UNIMPLEMENTED");
    }
    assert_eq!(
        scene.controller(&format!("volume health {id}")).ok(),
        "healthy\n"
    );
    assert_eq!(scene.controller("volume unhealthy").ok(), "healthy\n");
    let volumes = scene.path("state/volumes");
    let file = volumes.join(&id);
    fs::rename(&file, scene.path("kept")).expect("rename");
    let sick = scene.controller(&format!("volume health {id}")).says_no();
    assert!(sick.contains("BackingFileMissing"), "{sick}");
    // Two pages.
    let other = name(scene.controller("volume create other -o name").ok());
    fs::rename(volumes.join(&other), scene.path("kept-other")).expect("rename");
    let sick = scene
        .controller("volume health-list --page-size 1")
        .says_no();
    assert!(sick.contains(&id) && sick.contains(&other), "{sick}");
    fs::rename(scene.path("kept-other"), volumes.join(&other)).expect("rename");
    scene.controller(&format!("volume delete {other}")).ok();
    fs::rename(scene.path("kept"), &file).expect("rename");
    let modify = format!("volume modify {id} --parameter iops=1");
    scene.controller(&modify).fails(1, "UNIMPLEMENTED");
    let nothing = "no volume nosuch; nothing was deleted; `belayctl volume list` shows the IDs";
    scene.controller("volume delete nosuch").fails(1, nothing);
    let named = format!("this is the name of volume {id}; nothing was deleted");
    scene.controller("volume delete data").fails(64, &named);
    assert_eq!(
        scene.controller(&format!("volume delete {id}")).ok(),
        "OK\n"
    );
    let nothing = "no volume data; nothing was deleted";
    scene.controller("volume delete data").fails(1, nothing);
    let again = format!("volume delete {id}");
    scene
        .controller(&again)
        .fails(1, &format!("no volume {id}"));
    scene
        .controller(&format!("{again} --ignore-not-found"))
        .ok();
    scene
        .controller(&format!("volume get {id}"))
        .fails(1, "NOT_FOUND");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn every_verb_of_snapshots() {
    let scene = Scene::new();
    let id = name(
        scene
            .controller("volume create a --size 128MiB -o name")
            .ok(),
    );
    let snapshot = name(
        scene
            .controller(&format!("snapshot create s {id} -o name"))
            .ok(),
    );
    let list = scene
        .controller(&format!("snapshot list --volume-id {id}"))
        .ok();
    assert!(
        list.contains(&snapshot) && list.contains("128MiB"),
        "{list}"
    );
    let by_name = scene.controller("snapshot list --volume-id a").ok();
    assert_eq!(by_name, list);
    let again = scene.controller("controller snapshot-list -o name").ok();
    assert_eq!(name(again), snapshot);
    let get = scene
        .controller(&format!("snapshot get {snapshot} -o json"))
        .ok();
    assert!(
        get.contains(&format!("\"source_volume_id\": \"{id}\"")),
        "{get}"
    );
    scene
        .controller(&format!("snapshot delete {snapshot}"))
        .ok();
    for delete in ["snapshot delete", "controller snapshot-delete"] {
        scene
            .controller(&format!("{delete} {snapshot}"))
            .fails(1, &format!("no snapshot {snapshot}; nothing was deleted"));
    }
    scene.controller("volume create b --from-volume a").ok();
    let volumes = scene.controller("volume list -o name").ok();
    for volume in volumes.lines() {
        scene.controller(&format!("volume delete {volume}")).ok();
    }
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn every_verb_of_the_node() {
    let scene = Scene::new();
    let create = "volume create data --size 128MiB --fs-type ext4 -o name";
    let id = name(scene.controller(create).ok());
    let access = format!("{id} --staging %staging --fs-type ext4");
    scene.node(&format!("node stage {access}")).ok();
    scene
        .node(&format!("node publish {access} --target %pods/data"))
        .ok();
    let stats = scene
        .node(&format!("node stats {id} --path %pods/data"))
        .ok();
    assert!(
        stats.starts_with("UNIT") && stats.contains("INODES"),
        "{stats}"
    );
    let health = format!("node health {id} --target %pods/data");
    assert_eq!(scene.node(&health).ok(), "healthy\n");
    assert_eq!(scene.node("node storage-health").ok(), "healthy\n");
    scene
        .controller(&format!("volume expand {id} --size 160MiB"))
        .ok();
    let grown = scene.node(&format!("node expand {id} --path %pods/data"));
    // Without CAP_SYS_RESOURCE the kernel does not grow a mounted ext4.
    assert!(
        grown.out.contains("160MiB") || grown.err.contains("SYS_RESOURCE"),
        "{grown:?}"
    );
    scene
        .node(&format!("node unpublish {id} --target %pods/data"))
        .ok();
    scene
        .node(&format!("node unstage {id} --staging %staging"))
        .ok();
    scene.controller(&format!("volume delete {id}")).ok();
    let info = scene.node("node info").ok();
    assert!(
        info.starts_with("node_id") && info.contains("unlimited"),
        "{info}"
    );
    let capabilities = scene.node("node capabilities -o name").ok();
    assert!(
        capabilities.contains("STAGE_UNSTAGE_VOLUME"),
        "{capabilities}"
    );
    expect_nothing_left(&scene.path(""));
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn every_verb_of_identity_and_the_registration_by_rpc() {
    let scene = Scene::new();
    for socket in ["node.sock", "controller.sock"] {
        let info = scene.call(socket, "identity info").ok();
        assert!(info.contains("local.csi.belay.dev"), "{info}");
        assert_eq!(scene.call(socket, "identity probe").ok(), "ready  yes\n");
        scene.call(socket, "identity capabilities").ok();
    }
    let registry = fs::read_dir(scene.path("kubelet/plugins_registry")).expect("readdir");
    let socket = registry.flatten().next().expect("a socket").path();
    let socket = socket.to_str().unwrap().to_owned();
    let call = |line: &str| scene.run(&format!("{line} --endpoint {socket}"), |command| command);
    let info = call("rpc Registration/GetInfo").ok();
    assert!(info.contains(&scene.text("node.sock")), "{info}");
    call(r#"rpc NotifyRegistrationStatus {"plugin_registered":true}"#).ok();
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn mistakes_have_their_exit_codes_and_name_the_cure() {
    let scene = Scene::new();
    let run = |line: &str| scene.run(line, |command| command);
    run("volme list").fails(64, "volume");
    run("volume list --endpoint /nonexistent.sock").fails(69, "belayctl ls");
    fs::write(scene.path("file"), "").expect("write");
    drop(std::os::unix::net::UnixListener::bind(scene.path("dead.sock")).expect("bind"));
    for (endpoint, why) in [
        (
            "%file",
            "file: is a regular file; name the socket of a driver",
        ),
        ("%state", "state: is a directory; name the socket in it"),
        (
            "%dead.sock",
            "no driver listens on it (connection refused); start it",
        ),
    ] {
        run(&format!("volume list --endpoint {endpoint}")).fails(69, why);
    }
    let (dir, script) = (
        scene.text(""),
        "chmod 755 . && exec setpriv --reuid 1 --regid 1 \
         --clear-groups ./belayctl volume list --endpoint controller.sock",
    );
    fs::copy(env!("CARGO_BIN_EXE_belayctl"), scene.path("belayctl")).expect("copy");
    let mut other = std::process::Command::new("sh");
    let other = other.args(["-c", script]).current_dir(dir).output();
    scene::Run::of(other.expect("sh")).fails(69, "Permission denied; run belayctl as root");
    scene
        .controller("volume delete x --secret-env a=BELAY_NOT_SET")
        .fails(64, "BELAY_NOT_SET");
    scene
        .controller("volume delete x --secrets-from %none")
        .fails(64, "No such file");
    let secret = scene.path("secret");
    fs::write(&secret, "user=admin\nkey=hunter2\n").expect("write");
    scene
        .controller("volume delete x --ignore-not-found --secrets-from %secret")
        .ok();
    let stdin = || fs::File::open(&secret).expect("open");
    let socket = scene.text("controller.sock");
    let line = format!("volume delete x --ignore-not-found --secrets-from - -e {socket}");
    scene.run(&line, |command| command.stdin(stdin())).ok();
    let variable = format!("volume delete x --ignore-not-found --secret-env key=KEY -e {socket}");
    scene
        .run(&variable, |command| command.env("KEY", "hunter2"))
        .ok();
}
