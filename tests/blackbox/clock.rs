//! Tests of the test harness's own clock shift, which sets back the clock of one program.

use std::time::{SystemTime, UNIX_EPOCH};

use belay_proto::csi::v1 as csi;

use crate::rig::{Clock, Controller, Rig, least_bytes, orders, run, until};

const YEAR: i64 = 365 * 24 * 3600;

/// Returns the current time in seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.expect("after 1970").as_secs();
    i64::try_from(since).expect("a time")
}

/// Formats a time as in the programs' logs, without the fraction.
fn written(seconds: i64) -> String {
    let date = run("date", &["--utc", &format!("--date=@{seconds}"), "+%FT%T"]);
    date.trim().to_owned()
}

/// Returns the last line of the program's log, which `act` makes it write.
fn said(log: impl Fn() -> String, act: impl FnOnce()) -> String {
    let before = log().lines().count();
    act();
    until("a new line of the log", || log().lines().count() > before);
    log().lines().last().expect("a line").to_owned()
}

#[track_caller]
fn expect_between(line: &str, from: i64, to: i64) {
    let [from, to] = [from, to].map(written);
    let time = line.get(..from.len()).unwrap_or(line);
    assert!(
        (from.as_str()..=to.as_str()).contains(&time),
        "{from} to {to}: {line}"
    );
}

#[test]
#[ignore = "needs root: make test"]
fn the_clock_of_one_program_goes_back_and_forward_and_no_other_does() {
    let rig = Rig::new();
    let controller = Controller::start(rig.test_dir());
    let calls = controller.calls();
    let volume = calls.create(orders::create("a", "block")).expect("create");
    let volume = volume.volume.expect("a volume").volume_id;
    let cut_at = |name: &str| {
        let mut snapshot = csi::Snapshot::default();
        until("the snapshot is ready", || {
            let cut = calls.cut(orders::cut(name, &volume)).expect("cut");
            snapshot = cut.snapshot.expect("a snapshot");
            snapshot.ready_to_use
        });
        let id = snapshot.snapshot_id;
        calls.discard(orders::discard(&id)).expect("discard");
        snapshot.creation_time.expect("its time").seconds
    };
    let blank = rig.volume(least_bytes("ext4"));
    let ask = || drop(rig.node().stats(blank.stats(&blank.staging)));
    let asked = || said(|| rig.agent().log(), ask);

    let from = now();
    let clock = Clock::of(controller.pid());
    clock.shift(-YEAR);
    let (cut, line) = (cut_at("back"), asked());
    assert!((from - YEAR..=now() - YEAR).contains(&cut), "{cut}");
    expect_between(&line, from, now());
    clock.put_back();
    let (from, cut) = (now(), cut_at("forward"));
    assert!((from..=now()).contains(&cut), "{cut}");

    for seconds in [-24 * 3600, -YEAR] {
        let from = now();
        // Shift repeatedly, as each cell does.
        let clock = Clock::of(rig.agent().pid());
        clock.shift(seconds);
        expect_between(&asked(), from + seconds, now() + seconds);
        clock.put_back();
        let from = now();
        expect_between(&asked(), from, now());
    }
    calls.delete(orders::delete(&volume)).expect("delete");
    controller.terminate();
}
