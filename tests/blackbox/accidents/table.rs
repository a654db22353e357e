//! The table of accidents. Their effects and ends are in `strikes.rs`.

use super::cell::Cell;
use super::moment::{Moment, Use};
use super::strikes::*;

/// The scope of an accident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Only the victim: its file and its paths.
    Volume,
    /// All volumes of its disk.
    Disk,
    /// The agent, and thus all volumes of the node.
    Agent,
    /// The controller.
    Controller,
    /// No volume: all of them keep working.
    Nobody,
}

/// A row of the table.
pub(super) struct Accident {
    pub(super) name: &'static str,
    pub(super) reach: Reach,
    /// Whether the file's data is lost until a backup is restored, for which the volume is taken
    /// down.
    pub(super) destroys: bool,
    /// Whether a copy of the file that is being made may fail permanently.
    pub(super) loses_copy: bool,
    /// Whether the programs may be restarted during the accident.
    pub(super) restarts: bool,
    /// Returns why the accident is impossible at a moment, if it is.
    pub(super) fits: fn(Moment, Use) -> Result<(), &'static str>,
    /// The filesystem of the state directory, if the accident happens only on this one.
    pub(super) filesystem: Option<&'static str>,
    pub(super) strike: fn(&mut Cell),
    pub(super) end: fn(&mut Cell),
}

const VOLUME: Accident = Accident {
    name: "",
    reach: Reach::Volume,
    destroys: false,
    loses_copy: false,
    restarts: true,
    fits: always,
    filesystem: None,
    strike: nothing,
    end: nothing,
};
const DISK: Accident = Accident {
    reach: Reach::Disk,
    restarts: false,
    ..VOLUME
};
const AGENT: Accident = Accident {
    reach: Reach::Agent,
    restarts: false,
    ..VOLUME
};
const CONTROLLER: Accident = Accident {
    reach: Reach::Controller,
    restarts: false,
    ..VOLUME
};
const HARMLESS: Accident = Accident {
    reach: Reach::Nobody,
    restarts: false,
    ..VOLUME
};

pub(super) const ACCIDENTS: &[Accident] = &[
    Accident {
        name: "file cut",
        destroys: true,
        loses_copy: true,
        fits: with_data,
        strike: cut,
        end: restore_in_place,
        ..VOLUME
    },
    Accident {
        name: "file emptied, same size",
        destroys: true,
        loses_copy: true,
        fits: shown_by_zeros,
        strike: empty,
        end: restore_in_place,
        ..VOLUME
    },
    Accident {
        name: "file grown",
        loses_copy: true,
        strike: grow,
        end: cut_back_snapshot,
        ..VOLUME
    },
    Accident {
        name: "file removed",
        destroys: true,
        loses_copy: true,
        strike: remove,
        end: restore_by_rename,
        ..VOLUME
    },
    Accident {
        name: "file replaced by zeros",
        destroys: true,
        loses_copy: true,
        fits: shown_by_its_inode,
        strike: replace_by_zeros,
        end: restore_by_rename,
        ..VOLUME
    },
    Accident {
        name: "file restored",
        destroys: true,
        loses_copy: true,
        fits: with_data,
        strike: restore_by_rename,
        ..VOLUME
    },
    Accident {
        name: "file open elsewhere",
        strike: open,
        end: let_go,
        ..VOLUME
    },
    Accident {
        name: "file mounted by hand",
        loses_copy: true,
        fits: mountable,
        strike: mount_by_hand,
        end: unmount_by_hand,
        ..VOLUME
    },
    Accident {
        name: "file copied",
        strike: copy_beside,
        end: remove_copy,
        ..VOLUME
    },
    Accident {
        name: "file immutable",
        loses_copy: true,
        strike: make_immutable,
        end: make_mutable,
        ..VOLUME
    },
    Accident {
        name: "target mounted over",
        fits: published,
        strike: mount_over_target,
        end: unmount_by_hand,
        ..VOLUME
    },
    Accident {
        name: "staging mounted over",
        fits: bound,
        strike: mount_over_staging,
        end: unmount_by_hand,
        ..VOLUME
    },
    Accident {
        name: "disk full",
        strike: fill,
        end: make_room,
        restarts: true,
        ..DISK
    },
    Accident {
        name: "disk read-only",
        fits: without_shared_blocks,
        filesystem: Some("ext4"),
        strike: stop_writes,
        end: mount_again,
        ..DISK
    },
    Accident {
        name: "disk hung",
        strike: freeze_disk,
        end: thaw_disk,
        ..DISK
    },
    Accident {
        name: "disk shut down",
        fits: on_xfs,
        strike: shut_down,
        end: mount_again,
        ..DISK
    },
    Accident {
        name: "disk gone",
        strike: take_disk_away,
        end: bring_disk_back,
        ..DISK
    },
    Accident {
        name: "disk mounted over",
        strike: mount_over_disk,
        end: unmount_by_hand,
        ..DISK
    },
    Accident {
        name: "agent killed",
        strike: kill_agent,
        ..AGENT
    },
    Accident {
        name: "agent killed for memory",
        strike: starve_agent,
        ..AGENT
    },
    Accident {
        name: "agent frozen",
        strike: freeze_agent,
        end: thaw_agent,
        ..AGENT
    },
    Accident {
        name: "agent out of descriptors",
        strike: take_descriptors,
        end: give_descriptors,
        ..AGENT
    },
    Accident {
        name: "agent out of memory",
        strike: take_memory,
        end: give_memory,
        ..AGENT
    },
    Accident {
        name: "agent's log stalled",
        restarts: true,
        strike: stall_agent_log,
        end: resume_agent_log,
        ..HARMLESS
    },
    Accident {
        name: "agent's clock back",
        strike: set_agent_clock_back,
        end: put_clock_forward,
        ..HARMLESS
    },
    Accident {
        name: "controller killed",
        strike: kill_controller,
        ..CONTROLLER
    },
    Accident {
        name: "controller killed for memory",
        strike: starve_controller,
        ..CONTROLLER
    },
    Accident {
        name: "controller frozen",
        strike: freeze_controller,
        end: thaw_controller,
        ..CONTROLLER
    },
    Accident {
        name: "controller out of descriptors",
        strike: take_controller_descriptors,
        end: give_controller_descriptors,
        ..CONTROLLER
    },
    Accident {
        name: "controller out of memory",
        strike: take_controller_memory,
        end: kill_controller,
        ..CONTROLLER
    },
    Accident {
        name: "controller's log stalled",
        restarts: true,
        strike: stall_controller_log,
        end: resume_controller_log,
        ..HARMLESS
    },
    Accident {
        name: "controller's clock back",
        strike: set_controller_clock_back,
        end: put_clock_forward,
        ..HARMLESS
    },
];

fn always(_: Moment, _: Use) -> Result<(), &'static str> {
    Ok(())
}

fn with_data(moment: Moment, _: Use) -> Result<(), &'static str> {
    match moment.has_data() {
        true => Ok(()),
        false => Err("there is nothing to lose yet"),
    }
}

fn shown_by_zeros(moment: Moment, used_as: Use) -> Result<(), &'static str> {
    match used_as {
        Use::Raw => Err("the user of a raw volume may have discarded all of it"),
        Use::Filesystem => with_data(moment, used_as),
    }
}

fn shown_by_its_inode(moment: Moment, used_as: Use) -> Result<(), &'static str> {
    match moment.is_bound() {
        true => Ok(()),
        false => shown_by_zeros(moment, used_as),
    }
}

fn mountable(moment: Moment, used_as: Use) -> Result<(), &'static str> {
    match moment {
        _ if used_as == Use::Raw => Err("there is no filesystem"),
        _ if !moment.has_data() => Err("there is no filesystem yet"),
        _ if moment.is_bound() => Err("mount(8) finds the volume's own loop device and uses it"),
        _ => Ok(()),
    }
}

fn published(moment: Moment, _: Use) -> Result<(), &'static str> {
    match moment.is_published() {
        true => Ok(()),
        false => Err("no pod has it"),
    }
}

fn bound(moment: Moment, _: Use) -> Result<(), &'static str> {
    match moment.is_bound() {
        true => Ok(()),
        false => Err("it is not staged"),
    }
}

fn on_xfs(moment: Moment, _: Use) -> Result<(), &'static str> {
    match moment.filesystem() {
        "xfs" => Ok(()),
        _ => Err("copies are tested on ext4, which shuts down only after errors"),
    }
}

fn without_shared_blocks(moment: Moment, _: Use) -> Result<(), &'static str> {
    match moment {
        Moment::Snapshot => Err("blocks are shared on xfs, which shuts down instead"),
        _ => Ok(()),
    }
}
