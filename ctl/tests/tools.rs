//! The commands that look at this node, and those that work with whole drivers, from outside.

#![expect(clippy::expect_used, unreachable_pub, reason = "test code")]

mod scene;

use belay_bed::patience::until;
use scene::{Scene, expect_nothing_left};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Stdio;

fn plain(scene: &Scene, line: &str) -> scene::Run {
    scene.run(line, |command| command)
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn ls_lists_both_programs_with_what_they_serve_and_what_does_not_answer() {
    let scene = Scene::new();
    let dead = scene.path("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).expect("bind"));
    let list = plain(&scene, "ls --dir %").ok();
    let line = |part: &str| {
        let mut lines = list.lines();
        lines
            .find(|line| line.contains(part))
            .unwrap_or_else(|| panic!("{part} in {list}"))
    };
    for (socket, serves) in [("controller.sock", "controller"), ("node.sock", "node")] {
        let line = line(socket);
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[1..], ["local.csi.belay.dev", serves, "yes"], "{line}");
    }
    assert!(line("-reg.sock").contains("registration"), "{list}");
    assert!(line("dead.sock").contains("connection refused"), "{list}");
    let wide = plain(&scene, "ls --dir % -o json").ok();
    let version = format!("\"version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(
        wide.contains(&version) && !wide.contains("\"pid\": \""),
        "{wide}"
    );
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn looking_at_drivers_leaves_no_failed_calls() {
    let scene = Scene::new();
    plain(&scene, "ls --dir %").ok();
    plain(&scene, "status --dir % --kubelet-dir %kubelet").says_no();
    plain(&scene, "doctor --dir % --kubelet-dir %kubelet");
    for log in ["controller.sock.log", "node.sock.log"] {
        let log = fs::read_to_string(scene.path(log)).expect("a log");
        assert!(!log.contains("UNIMPLEMENTED"), "{log}");
    }
    let status = plain(&scene, "status --dir % --kubelet-dir %kubelet -o json").says_no();
    assert_eq!(status.matches("\"failed\": 0").count(), 2, "{status}");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn mount_makes_a_volume_usable_and_umount_undoes_it() {
    let scene = Scene::new();
    let sockets = "--controller %controller.sock --node %node.sock --state-dir %ctl";
    let mount = format!("mount data %mnt {sockets} --size 128MiB --fs-type ext4");
    let mounted = plain(&scene, &mount).ok();
    let id = mounted
        .lines()
        .find_map(|line| line.strip_prefix("volume_id"))
        .unwrap()
        .trim();
    fs::write(scene.path("mnt/hello"), "hello").expect("write");
    assert_eq!(plain(&scene, &mount).ok(), mounted, "again is the same");
    let other = format!("mount other %mnt {sockets} --size 128MiB --fs-type ext4");
    plain(&scene, &other).fails(64, "volume \"data\" was mounted there");
    assert_eq!(
        scene.controller("volume list -o name").ok().lines().count(),
        1
    );

    let found = plain(&scene, &format!("where {id} --kubelet-dir %kubelet")).ok();
    let mounts = found.lines().filter(|line| line.starts_with("mount"));
    assert_eq!(mounts.count(), 2, "staged and published: {found}");
    let by_name = scene.controller("where data --kubelet-dir %kubelet").ok();
    assert_eq!(by_name, found);
    let status = "status --dir % --kubelet-dir %kubelet -o json";
    let status = plain(&scene, status).says_no();
    assert!(status.contains("\"staged\": 1"), "{status}");
    let device = found
        .lines()
        .find(|line| line.starts_with("device"))
        .unwrap();
    assert!(
        device.contains("/dev/loop") && device.contains("128MiB"),
        "{device}"
    );

    assert!(
        plain(&scene, "umount %mnt --state-dir %ctl")
            .ok()
            .contains("kept")
    );
    assert!(!scene.path("mnt/hello").exists());
    plain(&scene, "umount %mnt --state-dir %ctl").fails(64, "not mounted by");
    plain(&scene, &mount).ok();
    assert_eq!(
        fs::read_to_string(scene.path("mnt/hello")).expect("read"),
        "hello"
    );
    let gone = plain(&scene, "umount %mnt --state-dir %ctl --delete").ok();
    assert!(gone.contains("deleted"), "{gone}");
    assert_eq!(scene.controller("volume list -o name").ok(), "");
    let nothing = format!("nothing on this node belongs to a volume {id}");
    plain(&scene, &format!("where {id} --kubelet-dir %kubelet")).fails(1, &nothing);
    expect_nothing_left(&scene.path(""));
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn umount_names_the_processes_that_keep_a_volume_busy() {
    let scene = Scene::new();
    let sockets = "--controller %controller.sock --node %node.sock --state-dir %ctl";
    plain(&scene, &format!("mount data %mnt {sockets} --size 128MiB")).ok();
    let mut user = std::process::Command::new("sleep");
    let user = user.arg("60").current_dir(scene.path("mnt")).spawn();
    let mut user = user.expect("sleep");
    let busy = format!("; used by {} (sleep: cwd)", user.id());
    plain(&scene, "umount %mnt --state-dir %ctl").fails(1, &busy);
    user.kill().and_then(|()| user.wait()).expect("kill");
    plain(&scene, "umount %mnt --state-dir %ctl --delete").ok();
    expect_nothing_left(&scene.path(""));
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_mount_that_fails_names_the_step_and_umount_undoes_the_rest() {
    let scene = Scene::new();
    let sockets = "--controller %controller.sock --node %node.sock --state-dir %ctl";
    let wrong = format!("mount data %mnt {sockets} --size 128MiB --mount-flag nonsense");
    plain(&scene, &wrong).fails(1, "NodeStageVolume: INVALID_ARGUMENT");
    plain(&scene, "umount %mnt --state-dir %ctl --delete").ok();
    assert_eq!(scene.controller("volume list -o name").ok(), "");
    let nowhere = "mount data %mnt --controller %none.sock --node %node.sock --state-dir %ctl";
    plain(&scene, nowhere).fails(69, "none.sock");
    expect_nothing_left(&scene.path(""));
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_mount_by_the_sockets_of_two_drivers_is_refused() {
    let mut scene = Scene::new();
    scene.start("belay-node", "disks.sock", &["--driver-kind", "openstack"]);
    let mount = "mount data %mnt --controller %controller.sock --node %disks.sock --state-dir %ctl";
    let [controller, disks] = ["controller.sock", "disks.sock"].map(|name| scene.text(name));
    let both = format!(
        "{controller} is a socket of local.csi.belay.dev, and {disks} of cinder.csi.openstack.org;"
    );
    plain(&scene, mount).fails(64, &both);
    assert_eq!(scene.controller("volume list -o name").ok(), "");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_mount_keeps_what_was_there_before() {
    let scene = Scene::new();
    let flags = "--controller %controller.sock --node %node.sock --state-dir %ctl --size 128MiB";
    let (mine, full) = (scene.path("mine"), scene.path("full"));
    fs::create_dir(&full).expect("mkdir");
    fs::write(full.join("old"), "data").expect("write");
    let refused = plain(&scene, &format!("mount data %full {flags}"));
    refused.fails(64, "full: is not empty");
    std::os::unix::fs::symlink(&full, scene.path("link")).expect("symlink");
    let refused = plain(&scene, &format!("mount data %link {flags}"));
    refused.fails(64, "is a symbolic link");
    assert_eq!(scene.controller("volume list -o name").ok(), "");
    assert_eq!(fs::read(full.join("old")).expect("read"), b"data");

    fs::create_dir(&mine).expect("mkdir");
    fs::set_permissions(&mine, fs::Permissions::from_mode(0o1750)).expect("chmod");
    std::os::unix::fs::chown(&mine, Some(7), Some(8)).expect("chown");
    // Mounted again, its root has files, and another owner and mode.
    for _ in 0..2 {
        plain(&scene, &format!("mount data %mine {flags}")).ok();
        fs::write(mine.join("new"), "data").expect("write");
    }
    plain(&scene, "umount %mine --state-dir %ctl --delete").ok();
    let after = fs::metadata(&mine).expect("the directory");
    assert_eq!(
        (after.uid(), after.gid(), after.mode() & 0o7777),
        (7, 8, 0o1750)
    );
    fs::remove_dir(&mine).expect("it is empty");
    expect_nothing_left(&scene.path(""));
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_mount_again_hides_no_files_that_came_after_a_plain_umount() {
    let scene = Scene::new();
    let flags = "--controller %controller.sock --node %node.sock --state-dir %ctl --size 128MiB";
    let mount = format!("mount data %mnt {flags}");
    plain(&scene, &mount).ok();
    let target = scene.path("mnt");
    let done = std::process::Command::new("umount").arg(&target).status();
    assert!(done.expect("umount").success());
    fs::write(target.join("mine"), "data").expect("write");
    plain(&scene, &mount).fails(64, "mnt: is not empty");
    assert_eq!(fs::read(target.join("mine")).expect("read"), b"data");
    fs::rename(target.join("mine"), scene.path("mine")).expect("rename");
    plain(&scene, &mount).ok();
    plain(&scene, "umount %mnt --state-dir %ctl --delete").ok();
    expect_nothing_left(&scene.path(""));
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn of_two_mounts_on_one_directory_at_once_umount_undoes_the_first() {
    let scene = Scene::new();
    let sockets = "--controller %controller.sock --node %node.sock --state-dir %ctl";
    for round in 0..10 {
        let start = |name: &str| {
            let line = format!("mount {name}{round} %mnt {sockets} --size 128MiB");
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_belayctl"));
            let words = line.split_whitespace();
            command.args(words.map(|word| word.replace('%', &scene.text(""))));
            let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
            quiet.spawn().expect("it starts")
        };
        let both = ["a", "b"].map(start);
        let codes = both.map(|mut run| run.wait().expect("it ends").code());
        assert!(
            codes.contains(&Some(0)) && codes.contains(&Some(64)),
            "round {round}: {codes:?}"
        );
        plain(&scene, "umount %mnt --state-dir %ctl").ok();
        expect_nothing_left(&scene.path("mnt"));
    }
    expect_nothing_left(&scene.path(""));
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_mount_that_umount_could_not_undo_creates_no_volume() {
    let scene = Scene::new();
    let flags = "--controller %controller.sock --node %node.sock --size 128MiB";
    for (path, why) in [
        ("nope/../x".to_owned(), "`..` cannot be resolved"),
        ("e\u{301}".repeat(50), "name of its record would have"),
    ] {
        let mount = format!("mount data %{path} --state-dir %ctl {flags}");
        plain(&scene, &mount).fails(64, why);
    }
    assert_eq!(scene.controller("volume list -o name").ok(), "");
    // A state directory, and a directory, of the working directory.
    let top = scene.path("");
    let here = |line: &str| scene.run(line, |command| command.current_dir(&top));
    here(&format!("mount data mnt --state-dir ctl {flags}")).ok();
    here("umount mnt --state-dir ctl --delete").ok();
    expect_nothing_left(&top);
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn a_raw_volume_is_mounted_as_a_device() {
    let scene = Scene::new();
    let sockets = "--controller %controller.sock --node %node.sock --state-dir %ctl";
    let mounted = plain(
        &scene,
        &format!("mount raw %dev {sockets} --size 128MiB --block"),
    )
    .ok();
    let id = mounted
        .lines()
        .find_map(|line| line.strip_prefix("volume_id"))
        .unwrap()
        .trim();
    fs::write(scene.path("dev"), "raw").expect("write");
    let found = plain(&scene, &format!("where {id} --kubelet-dir %kubelet")).ok();
    assert!(found.contains("devtmpfs"), "{found}");
    plain(&scene, "umount %dev --state-dir %ctl --delete").ok();
    expect_nothing_left(&scene.path(""));
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn udev_rules_are_written_only_if_they_differ() {
    let scene = Scene::new();
    plain(&scene, "udev-rules %rules.d").fails(1, "60-belay.rules: No such file");
    let directory = scene.path("rules.d");
    fs::create_dir(&directory).expect("a directory");
    let file = directory.join("60-belay.rules");
    fs::write(&file, "# of an older release\n").expect("a file");
    plain(&scene, "udev-rules %rules.d").ok();
    let rules = include_str!("../../udev-rules/60-belay.rules");
    assert_eq!(fs::read_to_string(&file).expect("rules"), rules);
    let inode = || fs::metadata(&file).expect("rules").ino();
    let before = inode();
    plain(&scene, "udev-rules %rules.d").ok();
    assert_eq!(inode(), before);
    assert_eq!(fs::read_dir(&directory).expect("a directory").count(), 1);
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn luks_shows_a_header_and_how_to_open_it() {
    let scene = Scene::new();
    let file = scene.path("disk");
    let disk = fs::File::create(&file).expect("a file");
    disk.set_len(32 << 20).expect("a size");
    plain(&scene, "luks %disk").fails(1, "neither copy of a LUKS header");
    let key = scene.path("key");
    fs::write(&key, "a passphrase").expect("a key");
    let mut format = std::process::Command::new("cryptsetup");
    format.args([
        "luksFormat",
        "--batch-mode",
        "--disable-locks",
        "--type",
        "luks2",
    ]);
    format.args([
        "--pbkdf",
        "argon2id",
        "--pbkdf-memory",
        "32768",
        "--pbkdf-parallel",
        "1",
    ]);
    format.args([
        "--pbkdf-force-iterations",
        "4",
        "--label",
        "of-the-test",
        "--key-file",
    ]);
    assert!(
        format
            .arg(&key)
            .arg(&file)
            .status()
            .expect("cryptsetup")
            .success()
    );
    let shown = plain(&scene, "luks %disk").ok();
    for part in [
        "LUKS2",
        "of-the-test",
        "argon2id, 32MiB, 4 passes",
        "cryptsetup open --type luks",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    plain(&scene, "luks no-such-volume").fails(1, "give the path of its disk, or of its file");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn doctor_names_what_is_wrong_with_a_cure() {
    let scene = Scene::new();
    let report = plain(&scene, "doctor --dir % --kubelet-dir %kubelet").out;
    for part in [
        "kernel",
        "fsopen(2)",
        "mkfs.ext4",
        "local.csi.belay.dev",
        "mount propagation",
    ] {
        assert!(report.contains(part), "{part} in {report}");
    }
    assert!(
        report.lines().all(|line| line.chars().count() <= 80),
        "{report}"
    );
    drop(std::os::unix::net::UnixListener::bind(scene.path("dead.sock")).expect("bind"));
    let report = plain(&scene, "doctor --dir % --kubelet-dir %kubelet -o name").says_no();
    assert!(report.lines().any(|line| line == "socket"), "{report}");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn status_shows_both_programs_with_their_latencies() {
    let scene = Scene::new();
    scene.controller("volume list").ok();
    let status = plain(&scene, "status --dir % --kubelet-dir %kubelet");
    // No kubelet has registered the driver.
    let status = status.says_no();
    assert_eq!(status.matches("local.csi.belay.dev").count(), 2, "{status}");
    let line = status
        .lines()
        .find(|line| line.contains(" controller "))
        .unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words[2..6], ["yes", "-", "0", "0"], "{status}");
    assert!(words[6].ends_with('s'), "p99: {status}");
    assert!(
        status.lines().all(|line| line.chars().count() <= 80),
        "{status}"
    );
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn rpc_makes_any_call_with_and_without_reflection() {
    let mut scene = Scene::new();
    let state = scene.text("state2");
    fs::create_dir(scene.path("state2")).expect("mkdir");
    let flags = [
        "--backend",
        "local",
        "--state-dir",
        &state,
        "--grpc-reflection",
    ];
    scene.start("belay-controller", "reflecting.sock", &flags);
    for socket in ["controller.sock", "reflecting.sock"] {
        let methods = scene.call(socket, "rpc").ok();
        assert!(
            methods.contains("csi.v1.Controller/CreateVolume"),
            "{socket}: {methods}"
        );
        let template = scene.call(socket, "rpc CreateVolume --template").ok();
        assert!(template.contains("\"capacity_range\""), "{template}");
        let request = r#"{"name":"a","capacity_range":{"required_bytes":134217728},
            "volume_capabilities":[{"mount":{},"access_mode":{"mode":"SINGLE_NODE_WRITER"}}]}"#;
        fs::write(scene.path("request.json"), request).expect("write");
        let made = scene.call(socket, "rpc CreateVolume @%request.json").ok();
        assert!(made.contains("\"capacity_bytes\": 134217728"), "{made}");
        let unknown = r#"rpc ControllerGetVolume {"volumeId":"none"}"#;
        scene.call(socket, unknown).fails(1, "NOT_FOUND");
        scene
            .call(socket, "rpc CreateVolum")
            .fails(64, "lists the methods");
        let open = r#"rpc DeleteVolume {"volume_id":"x","secrets":{"key":"hunter2"}}"#;
        scene.call(socket, open).fails(64, "--secrets-from");
    }
    let reflected = scene.call("reflecting.sock", "rpc").ok();
    assert!(
        reflected.contains("grpc.reflection.v1.ServerReflection"),
        "{reflected}"
    );
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn bench_measures_two_sockets_in_turns_and_changes_nothing() {
    let scene = Scene::new();
    let bench = "bench Probe -n 50 --against %controller.sock";
    let measured = scene.node(bench).ok();
    assert_eq!(
        measured.matches("local.csi.belay.dev").count(),
        2,
        "{measured}"
    );
    let line = measured.lines().nth(1).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words[1..3], ["50", "0"], "{measured}");
    assert!(
        words[3].ends_with('s') && words[4].ends_with('s'),
        "{measured}"
    );
    assert!(words[7].ends_with("MiB"), "resident memory: {measured}");
    scene
        .controller("bench CreateVolume")
        .fails(64, "--allow-changes");
}

#[test]
#[ignore = "needs root and built binaries: make test"]
fn jobs_lists_a_stage_that_waits_for_its_disk() {
    let mut scene = Scene::new();
    scene.start("belay-node", "disks.sock", &["--driver-kind", "openstack"]);
    assert_eq!(scene.call("disks.sock", "node jobs -o name").ok(), "");
    let id = "5d9ab0c8-0000-4000-8000-000000000001";
    let context = format!("--context transport=disk --context serial={id}");
    let context = format!("{context} --context bytes=134217728 --context content=new");
    let words = format!(
        "node stage {id} --staging {} {context}",
        scene.text("staging")
    );
    let mut stage = std::process::Command::new(env!("CARGO_BIN_EXE_belayctl"));
    stage
        .args(["--endpoint", &scene.text("disks.sock")])
        .args(words.split(' '));
    let mut stage = stage.stderr(Stdio::piped()).spawn().expect("it starts");
    until("the stage is listed", || {
        scene
            .call("disks.sock", "node jobs -o name")
            .ok()
            .trim_end()
            == id
    });
    let jobs = scene.call("disks.sock", "node jobs").ok();
    assert!(
        jobs.contains("NodeStageVolume") && jobs.contains("waiting"),
        "{jobs}"
    );
    // An unstage cancels a stage that only waits.
    scene
        .call(
            "disks.sock",
            &format!("node unstage {id} --staging %staging"),
        )
        .ok();
    assert_eq!(stage.wait().expect("wait").code(), Some(1));
    assert_eq!(scene.call("disks.sock", "node jobs -o name").ok(), "");
}

#[test]
fn completions_and_manual_pages_cover_every_command() {
    let run = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_belayctl"));
        let output = command.args(words).output().expect("belayctl runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completion", shell]);
        assert!(script.contains("health-list"), "{shell}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    run(&["man", dir.path().to_str().unwrap()]);
    let page = |name: &str| fs::read_to_string(dir.path().join(name)).expect("a page");
    assert!(page("belayctl.1").contains("Exit codes"));
    assert!(page("belayctl-volume-create.1").contains("from\\-snapshot"));
}
