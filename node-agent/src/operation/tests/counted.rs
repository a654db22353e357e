//! Tests of the metrics of NodeStageVolume, on which alerts and operators rely. Each value of the
//! label `reason` is tested in a separate situation.

use std::collections::BTreeMap;

use belay_server::request::AccessMode;
use metrics_exporter_prometheus::PrometheusBuilder;

use super::bench::{BYTES, DRIVER, Form, GROWN_BYTES, Verb, Volume, World};
use super::simulated::Simulated;
use crate::device::loop_path;
use crate::kernel::fake::Fault;
use crate::kernel::{Kernel, LoopMode, Open};

/// Runs `act`, and returns the value of each metric series that is not 0 afterwards.
pub(super) fn counted(act: impl FnOnce()) -> BTreeMap<String, String> {
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, act);
    let page = recorder.handle().render();
    let samples = page.lines().filter_map(|line| line.rsplit_once(' '));
    let counters = samples.filter(|(series, value)| {
        !series.starts_with('#') && series.contains("_total") && *value != "0"
    });
    counters
        .map(|(series, value)| (series.to_owned(), value.to_owned()))
        .collect()
}

#[track_caller]
fn expect(world: &Simulated, volume: &Volume, fault: Option<Fault>, series: &str) {
    let is_done = !series.contains("format_refusals");
    let seen = counted(|| {
        let node = world.start();
        world.machine.begin(fault);
        let staged = volume.call(&node, Verb::Stage);
        world.machine.end();
        assert_eq!(staged.is_ok(), is_done, "{series}: {staged:?}");
    });
    let expected = BTreeMap::from([(series.to_owned(), "1".to_owned())]);
    assert_eq!(seen, expected);
}

fn refusal(reason: &str) -> String {
    format!("belay_format_refusals_total{{reason=\"{reason}\"}}")
}

/// Returns the position of the first system call with this name in NodeStageVolume for a volume of
/// this form.
fn first_call(form: Form, name: &str) -> usize {
    let world = Simulated::new();
    let volume = world.volume("vol", form);
    let node = world.start();
    let stage = || volume.call(&node, Verb::Stage).unwrap();
    world.first_call(stage, |call| call.name == name)
}

/// The function `rate()` of Prometheus includes the first event only if the series existed before
/// that event.
#[test]
fn every_series_is_exported_at_0_from_the_start() {
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, crate::operation::announce);
    let page = recorder.handle().render();
    for series in [
        "belay_formats_total{fs=\"xfs\"}",
        "belay_format_refusals_total{reason=\"emptied\"}",
        "belay_filesystem_checks_total{result=\"damaged\"}",
        "belay_grow_refusals_total{fs=\"ext4\"}",
        "belay_openers_unchecked_total",
    ] {
        assert!(
            page.contains(&format!("\n{series} 0\n")),
            "{series}: {page}"
        );
    }
}

#[test]
fn a_format_is_counted_by_its_filesystem_and_a_stage_without_one_is_not() {
    for (form, fs) in [
        (Form::Ext4, "ext4"),
        (Form::Xfs, "xfs"),
        (Form::Btrfs, "btrfs"),
    ] {
        let world = Simulated::new();
        let volume = world.volume("vol", form);
        let series = format!("belay_formats_total{{fs=\"{fs}\"}}");
        expect(&world, &volume, None, &series);
        let again = counted(|| {
            for verb in [Verb::Stage, Verb::Unstage, Verb::Stage] {
                volume.call(&world.start(), verb).unwrap();
            }
        });
        assert_eq!(again, BTreeMap::new());
    }
}

#[test]
fn every_reason_for_which_a_volume_is_not_formatted_is_counted() {
    let blank = || {
        let world = Simulated::new();
        let volume = world.volume("vol", Form::Ext4);
        (world, volume)
    };
    let formatted = || {
        let (world, volume) = blank();
        for verb in [Verb::Stage, Verb::Unstage] {
            volume.call(&world.start(), verb).unwrap();
        }
        (world, volume)
    };

    let (world, volume) = formatted();
    world.machine.truncate_file(&volume.file(), 0);
    world.make_file(&volume.file(), BYTES);
    expect(&world, &volume, None, &refusal("emptied"));

    let (world, mut volume) = blank();
    volume.mode = AccessMode::SingleNodeReaderOnly;
    expect(&world, &volume, None, &refusal("read_only"));

    let (world, volume) = blank();
    world.write_file(&volume.file(), 0, b"somebody's");
    expect(&world, &volume, None, &refusal("foreign"));

    let (world, volume) = blank();
    let fault = Fault::Fail(first_call(Form::Ext4, "pread"), "EIO");
    expect(&world, &volume, Some(fault), &refusal("unreadable"));

    let (world, mut volume) = formatted();
    volume.form = Form::Xfs;
    expect(&world, &volume, None, &refusal("other_filesystem"));

    let (world, volume) = blank();
    let kernel = world.kernel();
    let file = kernel.open(&volume.file(), Open::FileWrite).unwrap();
    assert!(kernel.flock(&file).unwrap());
    let path = loop_path(kernel.loop_get_free().unwrap());
    let device = kernel.open(&path, Open::DeviceWrite).unwrap();
    let mode = LoopMode {
        read_only: false,
        autoclear: true,
    };
    let name = format!("{DRIVER}/{}", volume.id);
    kernel.loop_configure(&device, &file, mode, &name).unwrap();
    let claim = kernel.reopen(&device, Open::DeviceExclusive).unwrap();
    drop((device, file));
    expect(&world, &volume, None, &refusal("in_use"));
    drop(claim);
}

#[test]
fn a_stage_that_cannot_tell_who_has_the_file_open_is_counted_each_time() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Ext4);
    for verb in [Verb::Stage, Verb::Unstage] {
        volume.call(&world.start(), verb).unwrap();
    }
    world.machine.grant_no_leases();
    for _ in 0..2 {
        expect(&world, &volume, None, "belay_openers_unchecked_total");
        volume.call(&world.start(), Verb::Unstage).unwrap();
    }
}

#[test]
fn a_growth_that_the_kernel_refuses_is_counted_by_its_filesystem() {
    for (form, fs, call) in [
        (Form::Ext4, "ext4", "EXT4_IOC_RESIZE_FS"),
        (Form::Xfs, "xfs", "XFS_IOC_FSGROWFSDATA"),
        (Form::Btrfs, "btrfs", "BTRFS_IOC_RESIZE"),
    ] {
        let grown = || {
            let world = Simulated::new();
            let volume = world.volume("vol", form);
            for verb in [Verb::Stage, Verb::Unstage] {
                volume.call(&world.start(), verb).unwrap();
            }
            world.make_file(&volume.file(), GROWN_BYTES);
            (world, volume)
        };
        let (world, volume) = grown();
        let node = world.start();
        world.machine.begin(None);
        volume.call(&node, Verb::Stage).unwrap();
        let calls = world.machine.end();
        let at = calls.iter().position(|made| made.name == call).unwrap() + 1;
        let (world, volume) = grown();
        let series = format!("belay_grow_refusals_total{{fs=\"{fs}\"}}");
        expect(&world, &volume, Some(Fault::Fail(at, "EPERM")), &series);
    }
}
