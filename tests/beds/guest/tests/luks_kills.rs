//! Kills of the agent, of its child, or of both at each step of a first stage and of the
//! replacement of a passphrase. The next stage must end with the volume's one header, its one
//! filesystem and its data. `make luks` runs these tests too.

use std::path::Path;

use belay_bed::chance::Chance;
use belay_guest::Guest;

use crate::luks::{START_AGENT, create, local, run};
use crate::luks_keys::KEYS;
use crate::rig::{machine_with_state, newest_kernel, seen};

/// A child of the agent: its program, a word of its arguments, its number among those, and its
/// name in the table.
type Step = (&'static str, &'static str, u32, &'static str);

/// The children of a first stage. Between luksFormat and open, the agent erases its mark. After
/// config, it mounts.
const FIRST: [Step; 4] = [
    ("cryptsetup", "luksFormat", 1, "luksFormat"),
    ("cryptsetup", "open", 1, "open"),
    ("mkfs.ext4", "-q", 1, "mkfs"),
    ("cryptsetup", "config", 1, "config"),
];
/// The children of a replacement. The first "open" is with the new passphrase, which is wrong yet.
/// luksRemoveKey is repeated until no key slot is left.
const REPLACEMENT: [Step; 6] = [
    ("cryptsetup", "open", 1, "open with new"),
    ("cryptsetup", "open", 2, "open with previous"),
    ("cryptsetup", "luksAddKey", 1, "luksAddKey"),
    ("cryptsetup", "--test-passphrase", 1, "test-passphrase"),
    ("cryptsetup", "luksRemoveKey", 1, "luksRemoveKey"),
    ("cryptsetup", "luksRemoveKey", 2, "luksRemoveKey again"),
];

/// `inspect FILE KEY` prints the UUIDs of the header and of the filesystem inside, or "none", and
/// `labels FILE` the copies of the header that are labelled as unfinished. The agent takes no part.
const INSPECT: &str = "\
cat >>/run/calls.sh <<'END'
inner() { blkid -p -o value -s UUID $1 || echo none; }
inspect() {
    local header=none inside=none node
    header=$(cryptsetup luksUUID --disable-locks $1 2>/dev/null) || header=none
    if node=$(ls /sys/block | grep ^dm-); then inside=$(inner /dev/$node)
    elif cryptsetup open --readonly --disable-locks --key-file $2 $1 byhand 2>/dev/null; then
        inside=$(inner /dev/mapper/byhand); cryptsetup close byhand
    fi
    echo $header $inside; }
labels() { local at; for at in 208 16592; do
        dd if=$1 bs=1 skip=$at count=16 status=none; echo; done | grep -ac unfinished || true; }
aimed() { rm -f /run/aimed /run/called
    (python3 $AIM \"$@\" >/run/killed 2>&1 3>&- & echo $! >/run/aim)
    for _ in $(seq 100); do [ -e /run/aimed ] && return; sleep 0.1; done; return 1; }
# On a busy machine, the call may still be running.
settle() { for _ in $(seq 60); do unstage $1 >/run/staged 2>&1 && return; sleep 1; done
    cat /run/staged; return 1; }
aim_end() { : >/run/called
    while kill -0 $(cat /run/aim) 2>/dev/null; do sleep 0.1; done; cat /run/killed; }
END";

/// The moment of a kill, and the processes that are killed.
#[derive(Clone, Debug)]
struct Aim {
    step: Step,
    moment: String,
    whom: &'static str,
}

/// The state that a kill has left.
struct Left {
    killed: String,
    mappers: String,
    /// The number of the header's copies that are labelled as unfinished.
    labels: String,
    header: String,
    inside: String,
}

/// Attempts to catch a short child. A missed attempt is a stage that succeeds.
const TRIES: u32 = 6;
/// Aims of each test in the short form.
const AIMS: usize = 2;

/// Returns all aims in the long form, otherwise some, each at another step.
fn aims(chance: &mut Chance, steps: &[Step]) -> Vec<Aim> {
    let is_long = std::env::var_os("BELAY_NIGHTLY").is_some();
    let mut steps = steps.to_vec();
    while !is_long && steps.len() > AIMS {
        let at = chance.below(u64::try_from(steps.len()).expect("a short list"));
        steps.remove(usize::try_from(at).expect("an index"));
    }
    let mut found = Vec::new();
    for step in steps {
        let mut of_step = Vec::new();
        for moment in ["begin", "middle", "end"] {
            for whom in ["agent", "child", "both"] {
                // A child that has ended cannot be killed.
                if moment != "end" || whom == "agent" {
                    let moment = match moment {
                        "middle" => (5 + chance.below(500)).to_string(),
                        _ => moment.to_owned(),
                    };
                    of_step.push(Aim { step, moment, whom });
                }
            }
        }
        match is_long {
            true => found.extend(of_step),
            false => found.push(chance.pick(&of_step).clone()),
        }
    }
    found
}

/// Boots a guest with the agent of `local`.
fn prepare<'a>(machine: &'a belay_guest::Machine) -> Guest<'a> {
    let mut guest = local(machine);
    let aim = seen(&Path::new(env!("CARGO_MANIFEST_DIR")).join("aim.py"));
    guest.run(&format!("{INSPECT}\necho AIM={aim} >>/run/calls.sh"));
    guest
}

/// Makes a call and kills at the aim. Starts a killed agent again, and inspects the volume.
fn kill(guest: &mut Guest<'_>, aim: &Aim, call: &str, (file, key): (&str, &str)) -> Left {
    let (program, word, number, _) = aim.step;
    let (moment, whom) = (&aim.moment, aim.whom);
    let killed = run(
        guest,
        &format!(
            "aimed {program} {word} {number} {moment} {whom}
             ({call}) >/run/staged 2>&1 || true
             aim_end"
        ),
    );
    let is_agent_killed = killed.contains("agent");
    let state = run(
        guest,
        &format!("echo $(mappers) $(labels {file}) $(inspect {file} {key})"),
    );
    if is_agent_killed {
        run(guest, START_AGENT);
    }
    let [mappers, labels, header, inside] = state.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{aim:?}: {state}")
    };
    let own = str::to_owned;
    let [mappers, labels] = [mappers, labels].map(own);
    let [header, inside] = [header, inside].map(own);
    Left {
        killed,
        mappers,
        labels,
        header,
        inside,
    }
}

/// The aims that were not hit yet.
struct Tries {
    aims: Vec<Aim>,
    count: u32,
    missed: u32,
}

impl Tries {
    fn new(mut aims: Vec<Aim>) -> Self {
        aims.reverse();
        Tries {
            aims,
            count: 0,
            missed: 0,
        }
    }

    fn next(&mut self) -> Option<Aim> {
        self.count += 1;
        self.aims.last().cloned()
    }

    /// Drops the aim if its child was caught.
    #[track_caller]
    fn report(&mut self, aim: &Aim, left: &Left) {
        if left.killed == "missed" {
            self.missed += 1;
            assert!(self.missed < TRIES, "{aim:?}: missed");
        } else {
            self.missed = 0;
            self.aims.pop();
        }
    }
}

fn outcome(before: &str, after: &str) -> &'static str {
    match before {
        "none" => "created",
        before if before == after => "kept",
        _ => "created again",
    }
}

fn row(aim: &Aim, left: &Left, header: &str, inside: &str) {
    let (step, moment) = (aim.step.3, &aim.moment);
    let Left {
        killed,
        mappers,
        labels,
        ..
    } = left;
    eprintln!("{step:<20}{moment:<8}{killed:<17}{mappers:<9}{labels:<8}{header:<15}{inside}");
}

const TITLE: &str =
    "step                at      killed           mappers  labels  header         filesystem";

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_kill_at_any_step_of_a_first_stage_leads_to_one_header_and_one_filesystem() {
    let mut chance = Chance::new("aimed kills of an encrypting agent");
    let (machine, _) = machine_with_state(newest_kernel(), "ext4");
    let mut guest = prepare(&machine);
    eprintln!("{TITLE}");
    let mut tries = Tries::new(aims(&mut chance, &FIRST));
    while let Some(aim) = &tries.next() {
        let id = create(&mut guest, &format!("aimed-{}", tries.count), 160, "");
        let file = format!("/state/belay/volumes/{id}");
        let stage = format!("stage {id} --fs-type ext4");
        let left = kill(&mut guest, aim, &stage, (&file, "/run/key"));
        tries.report(aim, &left);
        run(&mut guest, &format!("{stage}; [ $(mappers) = 1 ]"));
        let state = run(&mut guest, &format!("inspect {file} /run/key"));
        let (header, inside) = state.split_once(' ').expect("two UUIDs");
        let (is_kept, is_inside_kept) =
            (outcome(&left.header, header), outcome(&left.inside, inside));
        row(aim, &left, is_kept, is_inside_kept);
        // Only luksFormat may be repeated, and mkfs only while both copies have the label.
        let may_format = aim.step.3 == "luksFormat";
        assert!(may_format || is_kept == "kept", "{aim:?}: {}", left.header);
        let may_make = left.labels == "2";
        assert!(
            may_make || is_inside_kept != "created again",
            "{aim:?}: {}",
            left.inside
        );
        assert_eq!(run(&mut guest, &format!("labels {file}")), "0", "{aim:?}");
        run(
            &mut guest,
            &format!(
                "echo kept >/pods/{id}/staging/file; unstage {id}; [ $(mappers) = 0 ]
                 detached {id}
                 {stage}; grep -q kept /pods/{id}/staging/file
                 [ \"$(inspect {file} /run/key)\" = '{state}' ]
                 unstage {id}; [ $(mappers) = 0 ]; detached {id}; controller delete {id}"
            ),
        );
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_kill_at_any_step_of_a_replacement_leaves_a_passphrase_that_opens_the_volume() {
    let mut chance = Chance::new("aimed kills of a replacing agent");
    let (machine, _) = machine_with_state(newest_kernel(), "ext4");
    let mut guest = prepare(&machine);
    let id = create(&mut guest, "replaced", 160, "");
    let file = format!("/state/belay/volumes/{id}");
    let state = run(
        &mut guest,
        &format!(
            "stage {id} --fs-type ext4 >/run/staged; echo kept >/pods/{id}/staging/file
             unstage {id} >/run/staged; [ $(mappers) = 0 ]; inspect {file} /run/key"
        ),
    );
    eprintln!("{TITLE}, opened by");
    let (mut old, mut new) = ("/run/key", "/run/other");
    let mut tries = Tries::new(aims(&mut chance, &REPLACEMENT));
    while let Some(aim) = tries.next() {
        let stage = format!("OLD={old} KEY={new} stage {id} --fs-type ext4");
        let left = kill(&mut guest, &aim, &stage, (&file, old));
        tries.report(&aim, &left);
        let opened = run(
            &mut guest,
            &format!(
                "{KEYS}
                 settle {id}; [ $(mappers) = 0 ]; detached {id}
                 old=$(opens {file} {old} 2>/dev/null && echo old || true)
                 new=$(opens {file} {new} 2>/dev/null && echo new || true)
                 [ -n \"$old$new\" ]; echo $old $new"
            ),
        );
        let header = outcome(&left.header, state.split(' ').next().unwrap_or_default());
        row(&aim, &left, header, &format!("kept, {opened}"));
        run(
            &mut guest,
            &format!(
                "{KEYS}
                 {stage}; grep -q kept /pods/{id}/staging/file; unstage {id}
                 [ $(mappers) = 0 ]; detached {id}
                 opens {file} {new}; shut {file} {old}; [ $(slots {file}) = 1 ]
                 [ \"$(inspect {file} {new})\" = '{state}' ]"
            ),
        );
        (old, new) = (new, old);
    }
}
