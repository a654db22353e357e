//! The status page and the readiness of an agent: the output in a browser, whatever callers send,
//! and the error of an agent that cannot work at all.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use belay_proto::csi::v1 as csi;
use tonic::Code;

use crate::rig::{
    Launch, NodeCalls, Pages, Process, Rig, TestDir, access, get, least_bytes, probe, refused,
    refused_with, text, until,
};

const DRIVER: &str = "local.csi.belay.dev";

/// Returns head and body of a page.
fn page(address: SocketAddr) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: b\r\n\r\n")
        .expect("send");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_lowercase(), body.to_owned())
}

fn rig(flags: &[&str]) -> Rig {
    let test_dir = TestDir::new();
    let volumes = test_dir.directory("volumes");
    let launch = Launch {
        command: Vec::new(),
        flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
    };
    Rig::launched(test_dir, volumes, launch)
}

/// Returns the flags of an agent on this directory, with its pages at this address.
fn flags<'a>(volumes: &'a Path, address: &'a str) -> [&'a str; 6] {
    let volumes = text(volumes);
    [
        "--node-id",
        "node-1",
        "--loop-dir",
        volumes,
        "--http-endpoint",
        address,
    ]
}

#[test]
#[ignore = "needs root: make test"]
fn a_page_shows_the_state_of_the_program_and_what_callers_send_as_text() {
    let rig = rig(&["--http-endpoint", "localhost:0"]);
    let (node, address) = (rig.node(), Pages::of(rig.agent()).address());
    assert!(address.ip().is_loopback(), "{address}");
    let (head, body) = page(address);
    for line in [
        "http/1.1 200 ok",
        "content-type: text/html; charset=utf-8",
        "cache-control: no-store",
        "content-security-policy: default-src 'none'",
    ] {
        assert!(head.contains(line), "{line} in {head}");
    }
    let quiet = format!("<td>{DRIVER}<td>-<td>0<td class=\"ok\">0<td class=\"n\">");
    for part in ["belay-node ", "Ready.", "None since the start.", &quiet] {
        assert!(body.contains(part), "{part} in {body}");
    }

    let volume = rig.volume(least_bytes("ext4"));
    node.stage(volume.stage(access("ext4"))).expect("stage");
    let hostile = "</td><script>alert(1)</script><img src=x onerror='\u{202e}'>\n\"&";
    for _ in 0..3 {
        let stats = csi::NodeGetVolumeStatsRequest {
            volume_id: hostile.to_owned(),
            volume_path: hostile.to_owned(),
            ..Default::default()
        };
        refused(node.stats(stats), Code::InvalidArgument);
    }
    let (_, body) = page(address);
    let shown = "&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=&#39;\
                 \u{fffd}&#39;&gt;\u{fffd}&quot;&amp;";
    let one = format!("<td>{DRIVER}<td>-<td>1<td class=\"ok\">0");
    for part in [
        shown,
        "<td>3<td>",
        "NodeGetVolumeStats",
        "INVALID_ARGUMENT",
        &one,
    ] {
        assert!(body.contains(part), "{part} in {body}");
    }
    for markup in ["<script", "<img", "onerror='"] {
        assert!(!body.contains(markup), "{markup} in {body}");
    }
    volume.down(&node, &[]);
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_that_loses_its_file_is_on_the_page_until_it_is_unstaged() {
    let rig = rig(&["--http-endpoint", "127.0.0.1:0"]);
    let (node, pages) = (rig.node(), Pages::of(rig.agent()));
    let volume = rig.volume(least_bytes("ext4"));
    let target = volume.target("a");
    node.stage(volume.stage(access("ext4"))).expect("stage");
    node.publish(volume.publish(&target, access("ext4")))
        .expect("publish");
    let (file, kept) = (
        rig.volumes().join(&volume.id),
        rig.test_dir().path().join("kept"),
    );
    fs::rename(&file, &kept).expect("rename");
    // The kubelet does this every minute.
    node.stats(volume.stats(&target)).expect("stats");
    let shown = format!(
        "{}<td class=\"bad\">BackingFileGone<td class=\"m\">",
        volume.id
    );
    let (_, body) = page(pages.address());
    assert!(
        body.contains(&shown) && body.contains(text(&target)),
        "{body}"
    );
    let series =
        format!("belay_volumes_unhealthy{{driver=\"{DRIVER}\",reason=\"BackingFileGone\"}}");
    assert_eq!(pages.metric(&series).as_deref(), Some("1"));
    let (_, body) = page(pages.address());
    assert!(
        body.contains("<td class=\"bad\">1 BackingFileGone"),
        "{body}"
    );
    fs::rename(&kept, &file).expect("rename");
    volume.down(&node, &[&target]);
    assert_eq!(pages.metric(&series).as_deref(), Some("0"));
    let (_, body) = page(pages.address());
    assert!(!body.contains("BackingFileGone"), "{body}");
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_without_cap_sys_admin_is_not_ready_offers_no_driver_and_says_why() {
    let test_dir = TestDir::new();
    let volumes = test_dir.directory("volumes");
    let registry = test_dir.directory("plugins_registry");
    let socket = test_dir.path().join("node.sock");
    let without = [
        "setpriv",
        "--bounding-set",
        "-sys_admin",
        "--inh-caps",
        "-all",
    ];
    let mut flags = flags(&volumes, "127.0.0.1:0").to_vec();
    flags.extend(["--registration-dir", text(&registry)]);
    flags.extend(["--kubelet-registration-path", text(&socket)]);
    let agent = Process::start_by(&without, &test_dir, "belay-node", &socket, &flags);
    let pages = Pages::of(&agent);
    let why = "without CAP_SYS_ADMIN this agent cannot mount";
    until("it says why", || pages.health().1.contains(why));
    let (status, told) = pages.health();
    assert_eq!(status, 503, "{told}");
    let readyz = belay_bed::scrape::get(pages.address(), "/readyz").expect("an answer");
    assert_eq!(readyz, (status, told));
    assert_eq!(pages.life().0, 200, "a restart would not help");
    let (_, body) = page(pages.address());
    let no = format!("<td>{DRIVER}<td class=\"bad\">no");
    for part in [why, &no] {
        assert!(body.contains(part), "{part} in {body}");
    }
    until("it is logged", || {
        let log = agent.last_words();
        log.lines()
            .any(|line| line.contains("ERROR") && line.contains(why))
    });
    let offered = fs::read_dir(&registry).expect("readdir").count();
    assert_eq!(offered, 0, "the kubelet finds nothing");
    assert_eq!(probe(&socket).expect("probe").ready, Some(false));
    let stats = csi::NodeGetVolumeStatsRequest {
        volume_id: "vol-1".to_owned(),
        volume_path: "/nothing".to_owned(),
        ..Default::default()
    };
    let node = NodeCalls::new(socket);
    refused_with(node.stats(stats), Code::Unavailable, &["CAP_SYS_ADMIN"]);
    agent.terminate();
    test_dir.expect_nothing_left();
}

#[test]
#[ignore = "needs root: make test"]
fn what_is_wrong_with_the_http_port_is_found_before_the_csi_socket_is_made() {
    let test_dir = TestDir::new();
    let volumes = test_dir.directory("volumes");
    let socket = test_dir.path().join("node.sock");
    // TEST-NET-1 of RFC 5737 is not an address of this machine.
    let elsewhere = flags(&volumes, "192.0.2.1:9808");
    let error = Process::refused(&test_dir, "belay-node", &socket, &elsewhere);
    assert!(
        error.contains("--http-endpoint") && error.contains("192.0.2.1:9808"),
        "{error}"
    );
    assert!(!socket.exists());

    let state = test_dir.directory("state");
    let mut owner = vec!["--node-id", "node-1", "--http-endpoint", "127.0.0.1:0"];
    owner.extend(["--backend", "local", "--state-dir", text(&state)]);
    let its_socket = test_dir.path().join("controller.sock");
    let owner = Process::start(&test_dir, "belay-controller", &its_socket, &owner);
    let address = Pages::of(&owner).address();
    let taken = address.to_string();
    let agent = Process::start(&test_dir, "belay-node", &socket, &flags(&volumes, &taken));
    // No call waits for the log, so poll it.
    until("the log has both", || {
        let log = agent.log();
        let line = |what: &str| log.lines().position(|line| line.contains(what));
        let (told, serves) = (line("is taken by another process"), line(" serving "));
        assert!(told.is_some() || serves.is_none(), "{log}");
        told < serves
    });
    owner.terminate();
    until("the port is used when it is free", || {
        get(address, "/livez").is_some()
    });
    agent.terminate();
    test_dir.expect_nothing_left();
}
