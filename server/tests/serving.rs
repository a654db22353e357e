//! Tests a server through its socket: gRPC codes, log lines, and the effects of misbehaving
//! callers.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "the services of the test bed fail as asked, and its set-up must not fail"
)]

mod bed;

use bed::{Bed, NAME, stage, stats};
use belay_proto::csi::v1 as csi;
use belay_server::call::Callers;
use belay_server::readiness::State;
use csi::identity_client::IdentityClient;
use csi::node_client::NodeClient;
use std::collections::HashMap;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tonic::Code;
use tonic::transport::Channel;
use tracing::Level;

/// Asserts that a call on a new connection succeeds.
async fn assert_serves(bed: &mut Bed) {
    bed.lines();
    bed.node()
        .await
        .node_stage_volume(stage("next"))
        .await
        .unwrap();
    let lines = bed.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[tokio::test]
async fn a_change_is_answered_and_has_one_line_with_all_that_matters() {
    let mut bed = Bed::new();
    bed.node()
        .await
        .node_stage_volume(stage("vol-1"))
        .await
        .unwrap();
    let lines = bed.lines();
    let [line] = lines.as_slice() else {
        panic!("{lines:?}")
    };
    assert!(line.trim_start().starts_with("INFO "), "{line}");
    let rest = r#"rpc="NodeStageVolume" subject="vol-1" code="OK" us="#;
    assert!(line.contains(rest), "{line}");
}

#[tokio::test]
async fn a_read_is_logged_at_debug_only_and_a_failed_call_with_its_message() {
    let mut bed = Bed::new();
    bed.node()
        .await
        .node_get_volume_stats(stats("vol-1"))
        .await
        .unwrap();
    assert_eq!(bed.lines(), Vec::<String>::new());

    let failed = bed
        .node()
        .await
        .node_stage_volume(stage("foreign"))
        .await
        .unwrap_err();
    assert_eq!(failed.code(), Code::FailedPrecondition);
    assert_eq!(failed.message(), "/dev/x: has a GPT at byte 512");
    assert!(failed.details().is_empty());
    let lines = bed.lines();
    let [line] = lines.as_slice() else {
        panic!("{lines:?}")
    };
    assert!(line.trim_start().starts_with("WARN "), "{line}");
    for part in [
        "/dev/x: has a GPT at byte 512",
        r#"code="FAILED_PRECONDITION""#,
    ] {
        assert!(line.contains(part), "{line}");
    }
}

#[tokio::test]
async fn at_debug_every_read_has_its_one_line_too() {
    let mut bed = Bed::with(Level::DEBUG, None);
    bed.node()
        .await
        .node_get_volume_stats(stats("vol-1"))
        .await
        .unwrap();
    let of_the_call = |line: &String| line.contains(r#"rpc="NodeGetVolumeStats""#);
    let lines = bed.lines();
    let lines: Vec<_> = lines.into_iter().filter(of_the_call).collect();
    let [line] = lines.as_slice() else {
        panic!("{lines:?}")
    };
    assert!(line.trim_start().starts_with("DEBUG "), "{line}");
}

#[tokio::test]
async fn calls_without_a_handler_are_named_in_their_answer_and_logged() {
    let mut bed = Bed::new();
    let cases = [
        // The paths are a call that this driver does not implement, a call of a different service,
        // and two paths outside of CSI.
        ("/csi.v1.Node/NodePublishVolume", "NodePublishVolume"),
        ("/csi.v1.Controller/CreateVolume", "CreateVolume"),
        ("/csi.v1.Node/NodeFly", "/csi.v1.Node/NodeFly"),
        (
            "/grpc.health.v1.Health/Check",
            "/grpc.health.v1.Health/Check",
        ),
    ];
    for (path, name) in cases {
        let failed = bed.send(path, csi::ProbeRequest {}).await.unwrap_err();
        assert_eq!(failed.code(), Code::Unimplemented, "{path}");
        let text = failed.message();
        assert!(text.starts_with(name), "{failed}");
        assert!(!text.contains("compression"), "{failed}");
        let lines = bed.lines();
        let [line] = lines.as_slice() else {
            panic!("{lines:?}")
        };
        assert!(
            line.contains(&format!(r#"rpc="{name}" code="UNIMPLEMENTED""#)),
            "{line}"
        );
    }
}

#[tokio::test]
async fn a_compressed_request_is_answered_with_what_is_read_instead() {
    let mut bed = Bed::new();
    for encoding in ["gzip".to_owned(), "x".repeat(1000)] {
        let mut request = tonic::Request::new(stage("held"));
        let metadata = request.metadata_mut();
        metadata.insert("grpc-encoding", encoding.parse().unwrap());
        let mut node = bed.node().await;
        let failed = node.node_stage_volume(request).await.unwrap_err();
        assert_eq!(failed.code(), Code::Unimplemented);
        let text = failed.message();
        let start = "NodeStageVolume: the request cannot be read";
        let named = &encoding[..encoding.len().min(50)];
        assert!(text.starts_with(start) && text.contains(named), "{failed}");
        assert!(
            text.ends_with("turn off compression in the client"),
            "{failed}"
        );
        assert!(text.len() < 300, "{failed}");
        assert_eq!(
            failed.metadata().get("grpc-accept-encoding").unwrap(),
            "identity"
        );
        let lines = bed.lines();
        assert!(lines.len() == 1 && lines[0].contains(named), "{lines:?}");
    }
}

#[tokio::test]
async fn a_process_of_another_user_reaches_no_service_and_is_logged_like_other_failed_calls() {
    let own = rustix::process::geteuid().as_raw();
    let mut bed = Bed::only_for(Callers::Users([own + 1, own + 2].into()));
    let mut node = bed.node().await;
    for _ in 0..2 {
        let failed = node.node_stage_volume(stage("panics")).await.unwrap_err();
        assert_eq!(failed.code(), Code::PermissionDenied);
        let who = format!("process {} of user {own} may not call", std::process::id());
        assert!(failed.message().starts_with(&who), "{failed}");
    }
    let lines = bed.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let rest = r#"rpc="NodeStageVolume" code="PERMISSION_DENIED""#;
    assert!(lines.iter().all(|line| line.contains(rest)), "{lines:?}");
}

#[tokio::test]
async fn root_the_own_user_and_those_of_a_flag_may_call() {
    let own = rustix::process::geteuid().as_raw();
    let callers = Callers::root_and(&[1000]);
    let Callers::Users(users) = &callers else {
        panic!("{callers:?}")
    };
    for user in [0, own, 1000] {
        assert!(users.contains(&user), "{user}");
    }
    assert!(!users.contains(&65534), "{users:?}");
    for callers in [callers, Callers::Users([own + 1, own].into())] {
        assert_serves(&mut Bed::only_for(callers)).await;
    }
}

#[tokio::test]
async fn a_message_that_cannot_be_decoded_is_an_invalid_argument() {
    let mut bed = Bed::new();
    // Field 1 is a number in the sent message, but a string in the expected message.
    let message = csi::ListVolumesRequest {
        max_entries: 7,
        ..Default::default()
    };
    let failed = bed
        .send("/csi.v1.Node/NodeStageVolume", message)
        .await
        .unwrap_err();
    assert_eq!(failed.code(), Code::InvalidArgument);
    assert!(
        failed.message().starts_with("request: cannot be read ("),
        "{failed}"
    );
    let lines = bed.lines();
    let [line] = lines.as_slice() else {
        panic!("{lines:?}")
    };
    assert!(
        line.contains(r#"rpc="NodeStageVolume" code="INVALID_ARGUMENT""#),
        "{line}"
    );
    assert_serves(&mut bed).await;
}

#[tokio::test]
async fn a_message_beyond_any_size_of_csi_is_an_invalid_argument_that_names_both_sizes() {
    let mut bed = Bed::new();
    let mut request = stage("vol-1");
    request.volume_context = HashMap::from([("k".to_owned(), "v".repeat(70_000))]);
    let failed = bed
        .node()
        .await
        .node_stage_volume(request)
        .await
        .unwrap_err();
    assert_eq!(failed.code(), Code::InvalidArgument);
    assert!(failed.message().contains("70018"), "{failed}");
    assert!(failed.message().contains("65536"), "{failed}");
    assert_eq!(bed.lines().len(), 1);
    assert_serves(&mut bed).await;
}

/// Returns a request that takes this number of bytes on the wire.
fn request_of(bytes: usize) -> csi::NodeStageVolumeRequest {
    use prost::Message as _;
    let mut request = stage("vol-1");
    let with = |length: usize| HashMap::from([("k".to_owned(), "v".repeat(length))]);
    request.volume_context = with(bytes);
    let beyond = request.encoded_len() - bytes;
    request.volume_context = with(bytes - beyond);
    assert_eq!(request.encoded_len(), bytes);
    request
}

#[tokio::test]
async fn the_largest_request_is_taken_and_one_byte_more_is_not() {
    const BYTES_MAX: usize = 65_536;
    let mut bed = Bed::new();
    let mut client = bed.node().await;
    client
        .node_stage_volume(request_of(BYTES_MAX))
        .await
        .unwrap();
    let refused = client.node_stage_volume(request_of(BYTES_MAX + 1)).await;
    assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    assert_serves(&mut bed).await;
}

#[tokio::test]
async fn a_panic_is_non_final_where_something_may_be_left_and_the_server_continues() {
    let mut bed = Bed::new();
    let mut same_connection = bed.node().await;
    let failed = same_connection
        .node_stage_volume(stage("panics"))
        .await
        .unwrap_err();
    assert_eq!(failed.code(), Code::Aborted);
    assert!(
        failed.message().starts_with("NodeStageVolume panicked"),
        "{failed}"
    );
    let failed = same_connection
        .node_get_volume_stats(stats("panics"))
        .await
        .unwrap_err();
    assert_eq!(failed.code(), Code::Internal);
    let lines = bed.lines();
    let [change, read] = lines.as_slice() else {
        panic!("{lines:?}")
    };
    assert!(
        change.contains(r#"subject="panics" code="ABORTED""#),
        "{change}"
    );
    assert!(read.trim_start().starts_with("ERROR "), "{read}");
    assert_serves(&mut bed).await;
}

#[tokio::test]
async fn garbage_on_the_socket_is_cut_off_and_disturbs_no_call() {
    let mut bed = Bed::new();
    let beginnings: [&[u8]; 4] = [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0xff; 4096],
        // A valid HTTP/2 preface, followed by an invalid frame.
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ];
    for garbage in beginnings {
        let mut stream = UnixStream::connect(bed.path()).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        // Whether the read ends or fails with a reset, the server has closed the connection.
        drop(stream.read_to_end(&mut answer).await);
        assert_serves(&mut bed).await;
    }
}

#[tokio::test]
async fn a_caller_that_disconnects_is_logged() {
    let mut bed = Bed::new();
    let mut client = bed.node().await;
    let call = tokio::spawn(async move { client.node_stage_volume(stage("held")).await });
    bed.gate.entered().await;
    call.abort();
    let line = bed.line().await;
    assert!(
        line.contains(r#"subject="held" code="CANCELLED""#),
        "{line}"
    );
    assert_serves(&mut bed).await;
}

#[tokio::test]
async fn identity_reports_its_configuration() {
    let bed = Bed::new();
    let mut identity = IdentityClient::new(bed.connect().await);
    let info = identity
        .get_plugin_info(csi::GetPluginInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (info.name.as_str(), info.vendor_version.as_str()),
        ("test.csi.belay.dev", "1.2.3")
    );
    let reported = identity
        .get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {})
        .await;
    let reported = format!("{:?}", reported.unwrap().into_inner());
    assert!(
        reported.contains("ControllerService") && reported.contains("Online"),
        "{reported}"
    );
    assert!(!reported.contains("AccessibilityConstraints"), "{reported}");
}

#[tokio::test]
async fn probe_reports_ready_starting_and_why_not() {
    let bed = Bed::new();
    let mut identity = IdentityClient::new(bed.connect().await);
    let mut probe = async || identity.probe(csi::ProbeRequest {}).await;
    assert_eq!(probe().await.unwrap().into_inner().ready, Some(true));
    bed.readiness
        .set(State::Starting("reading the mounts".to_owned()));
    assert_eq!(probe().await.unwrap().into_inner().ready, Some(false));
    bed.readiness
        .set(State::Unhealthy("mounts do not reach the host".to_owned()));
    let failed = probe().await.unwrap_err();
    assert_eq!(failed.code(), Code::FailedPrecondition);
    assert_eq!(failed.message(), "mounts do not reach the host");
}

#[tokio::test]
async fn at_shutdown_new_callers_are_refused_and_running_calls_finish() {
    let mut bed = Bed::new();
    let mut client = bed.node().await;
    let call = tokio::spawn(async move { client.node_stage_volume(stage("held")).await });
    bed.gate.entered().await;
    bed.end();
    assert!(bed.line().await.contains("waiting for running calls"));
    let refused = UnixStream::connect(bed.path()).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    bed.gate.open();
    call.await.unwrap().unwrap();
    (&mut bed.server).await.unwrap().unwrap();
    assert!(!bed.path().exists());
}

#[tokio::test]
async fn callers_that_are_idle_or_silent_do_not_delay_the_shutdown() {
    let mut bed = Bed::new();
    let mut idle = bed.node().await;
    idle.node_stage_volume(stage("vol-1")).await.unwrap();
    let silent = UnixStream::connect(bed.path()).await.unwrap();
    bed.end();
    (&mut bed.server).await.unwrap().unwrap();
    let lines = bed.lines();
    assert!(lines.last().unwrap().contains("ended"), "{lines:?}");
    drop((idle, silent));
}

#[tokio::test]
async fn a_caller_that_only_keeps_its_connection_does_not_delay_the_shutdown() {
    let mut bed = Bed::new();
    let mut deaf = UnixStream::connect(bed.path()).await.unwrap();
    // A client that sends the HTTP/2 preface with empty settings, and then nothing, not even a
    // shutdown.
    let beginning = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    deaf.write_all(beginning).await.unwrap();
    deaf.read_exact(&mut [0; 9]).await.unwrap();
    tokio::time::pause();
    let asked = tokio::time::Instant::now();
    bed.end();
    (&mut bed.server).await.unwrap().unwrap();
    assert!(asked.elapsed() < bed::DRAIN);
    let lines = bed.lines();
    let last = lines.last().unwrap();
    assert!(last.contains("ended connections_cut=1"), "{lines:?}");
}

#[tokio::test]
async fn silent_connections_lock_no_client_out() {
    let bed = Bed::new();
    let connect = || UnixStream::connect(bed.path());
    let silent = futures_util::future::try_join_all((0..300).map(|_| connect())).await;
    let mut silent = silent.unwrap();
    for _ in 0..3 {
        let mut node = bed.node().await;
        node.node_stage_volume(stage("vol-1")).await.unwrap();
    }
    // The server has closed the first connections in favour of the new connections.
    for stream in &mut silent[..40] {
        assert_eq!(stream.read(&mut [0; 9]).await.unwrap(), 0);
    }
}

/// Opens more connections than the server has slots for. A call was made on each connection, and
/// the connections remain open.
async fn idle_clients(bed: &Bed) -> Vec<NodeClient<Channel>> {
    let mut idle = Vec::new();
    for _ in 0..300 {
        let mut client = bed.node().await;
        client.node_stage_volume(stage("vol-1")).await.unwrap();
        idle.push(client);
    }
    idle
}

#[tokio::test]
async fn clients_with_idle_connections_lock_no_client_out_and_reconnect() {
    let bed = Bed::new();
    let mut idle = idle_clients(&bed).await;
    let mut node = bed.node().await;
    node.node_stage_volume(stage("vol-1")).await.unwrap();
    // A client reconnects if the server has closed its connection, so no call is lost.
    for client in &mut idle {
        client.node_stage_volume(stage("vol-1")).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_is_not_cut_off_by_clients_that_keep_idle_connections() {
    let mut bed = Bed::new();
    let mut client = bed.node().await;
    let call = tokio::spawn(async move { client.node_stage_volume(stage("held")).await });
    bed.gate.entered().await;
    let idle = idle_clients(&bed).await;
    bed.gate.open();
    call.await.unwrap().unwrap();
    assert_serves(&mut bed).await;
    drop(idle);
}

#[tokio::test]
async fn clients_that_never_call_lock_no_client_out() {
    let mut bed = Bed::new();
    let mut deaf = Vec::new();
    for _ in 0..600 {
        let mut stream = UnixStream::connect(bed.path()).await.unwrap();
        // A client that sends the HTTP/2 preface with empty settings, and then nothing.
        let beginning = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        stream.write_all(beginning).await.unwrap();
        stream.read_exact(&mut [0; 9]).await.unwrap();
        deaf.push(stream);
    }
    assert_serves(&mut bed).await;
    // The server has closed the first connection in favour of a new connection.
    deaf[0].read_to_end(&mut Vec::new()).await.unwrap();
}

#[tokio::test]
async fn a_second_signal_ends_the_server_at_once() {
    let mut bed = Bed::new();
    let mut client = bed.node().await;
    tokio::spawn(async move { client.node_stage_volume(stage("held")).await });
    bed.gate.entered().await;
    bed.end();
    bed.end();
    (&mut bed.server).await.unwrap().unwrap();
    assert!(!bed.path().exists());
}

#[tokio::test]
async fn a_call_that_does_not_end_is_not_waited_for_beyond_the_drain_time() {
    let mut bed = Bed::new();
    let mut client = bed.node().await;
    tokio::spawn(async move { client.node_stage_volume(stage("held")).await });
    bed.gate.entered().await;
    // From here on, the clock jumps to the next timer when no task can run.
    tokio::time::pause();
    let asked = tokio::time::Instant::now();
    bed.end();
    (&mut bed.server).await.unwrap().unwrap();
    assert!(asked.elapsed() >= bed::DRAIN);
    let lines = bed.lines();
    let warned = |line: &&String| line.contains("some calls did not finish");
    let line = lines.iter().find(warned).unwrap();
    assert!(line.contains("calls=1"), "{line}");
}

/// Starts a server that serves its pages at this address.
async fn with_pages() -> (Bed, String) {
    let mut bed = Bed::with(Level::INFO, Some(([127, 0, 0, 1], 0).into()));
    let line = bed.line().await;
    let address = line.split("address=").nth(1).unwrap().trim().to_owned();
    (bed, address)
}

async fn page(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    page
}

#[tokio::test]
async fn the_status_page_has_the_failed_calls_and_nothing_of_their_secrets_and_contexts() {
    let (bed, address) = with_pages().await;
    let mut request = stage("foreign");
    for map in [
        &mut request.secrets,
        &mut request.publish_context,
        &mut request.volume_context,
    ] {
        map.insert("key-canary".to_owned(), "value-canary".to_owned());
    }
    for _ in 0..2 {
        let refused = bed.node().await.node_stage_volume(request.clone()).await;
        assert_eq!(refused.unwrap_err().code(), Code::FailedPrecondition);
    }
    let page = page(&address, "/").await;
    for part in [
        "<h1>belay-test 1.2.3 on ",
        "<p class=\"ok\">Ready.</p>",
        NAME,
        "<td>2<td>",
        "<td>NodeStageVolume<td>foreign<td>FAILED_PRECONDITION<td",
        "/dev/x: has a GPT at byte 512",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert!(!page.contains("canary"), "{page}");
}

#[tokio::test]
async fn the_latency_of_every_call_is_shown_by_name_and_code() {
    let (bed, address) = with_pages().await;
    for id in ["vol-1", "vol-2", "used"] {
        let volume_id = id.to_owned();
        let request = csi::NodeUnstageVolumeRequest {
            volume_id,
            ..Default::default()
        };
        let answer = bed.node().await.node_unstage_volume(request).await;
        assert_eq!(answer.is_err(), id == "used");
    }
    let page = page(&address, "/metrics").await;
    for (code, count) in [("OK", 2), ("FAILED_PRECONDITION", 1)] {
        let name = "belay_rpc_duration_seconds_count";
        let labels = format!("driver=\"{NAME}\",rpc=\"NodeUnstageVolume\",code=\"{code}\"");
        let sample = format!("{name}{{{labels}}} {count}\n");
        assert!(page.contains(&sample), "{sample} in {page}");
    }
}

#[tokio::test]
async fn a_port_that_is_taken_blocks_no_call_and_is_used_when_it_is_free() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let mut bed = Bed::with(Level::INFO, Some(address));
    let line = bed.line().await;
    assert!(line.contains(&format!("{address} is taken")), "{line}");
    assert_serves(&mut bed).await;
    drop(taken);
    tokio::time::pause();
    let line = bed.line().await;
    assert!(line.contains("serving /metrics"), "{line}");
    TcpStream::connect(address).await.unwrap();
}

#[tokio::test]
async fn an_address_of_another_machine_is_named() {
    // TEST-NET-1 of RFC 5737.
    let mut bed = Bed::with(Level::INFO, Some(([192, 0, 2, 1], 9808).into()));
    let error = (&mut bed.server).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("192.0.2.1:9808"), "{error}");
    assert!(!bed.path().exists());
}

#[tokio::test]
async fn many_connections_at_once_are_all_served() {
    let bed = Bed::new();
    let calls = (0..100).map(|_| async {
        let call = bed.node().await.node_stage_volume(stage("vol-1")).await;
        call.map(drop)
    });
    let all = futures_util::future::join_all(calls);
    let answers = tokio::time::timeout(Duration::from_secs(60), all)
        .await
        .unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}
