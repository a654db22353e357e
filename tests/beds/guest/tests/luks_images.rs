//! The content of other programs inside of a header that Belay has finished: it is neither mounted
//! nor formatted. `make luks` runs this test too.

use belay_bed::chance::Chance;
use belay_guest::Kernel;

use crate::disks;
use crate::foreign::{BYTES, Content, FOREIGN};
use crate::luks::{KEPT, disk, machine_with_disk, refused, run, with_disk};
use crate::rig::{MIB, kernels_or};

/// Images in CI.
const IMAGES: usize = 2;
const HEADER: u64 = 16 * MIB;

/// Returns the command that writes the content to the device `$N`, which has no signature before.
fn write(content: &Content) -> String {
    match content {
        Content::Nothing => "true".to_owned(),
        Content::Made(program, args) => format!("{program} {} $N", args.join(" ")),
        Content::Bytes(at, bytes) => {
            // The device inside ends before the disk.
            let at = match *at + HEADER < BYTES {
                true => *at,
                false => *at - HEADER,
            };
            let octal: String = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
            format!("printf '{octal}' | dd of=$N bs=1 seek={at} conv=notrunc status=none")
        }
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn the_content_of_other_programs_inside_of_a_finished_header_is_not_formatted() {
    let mut chance = Chance::new("images inside of LUKS");
    let is_long = std::env::var_os("BELAY_NIGHTLY").is_some();
    for kernel in kernels_or(Kernel::of_distribution()) {
        let (machine, _) = machine_with_disk(kernel);
        let mut guest = with_disk(&machine);
        let (id, used) = (disks::ID, disk("used"));
        run(
            &mut guest,
            &format!(
                "stage {} --fs-type ext4; unstage {id}",
                disk("new --context attached_at=$(date +%s)")
            ),
        );
        let mut images: Vec<Content> = FOREIGN.to_vec();
        images.push(Content::Nothing);
        if !is_long {
            images = (0..IMAGES).map(|_| *chance.pick(&images)).collect();
        }
        for image in &images {
            eprintln!("{image:?}");
            let wipe = "dd if=/dev/zero of=$N bs=1M count=2 status=none
                dd if=/dev/zero of=$N bs=1M seek=238 count=2 status=none";
            run(
                &mut guest,
                &format!(
                    "cryptsetup open --disable-keyring $D made --key-file /run/key
                     N=/dev/$(ls /sys/block | grep ^dm-); {wipe}
                     {} >/run/made 2>&1; sync
                     cryptsetup close made; sha256sum <$D >/run/whole",
                    write(image)
                ),
            );
            for word in [&used, &disk("new --context attached_at=$(date +%s)")] {
                let why = refused(&mut guest, &format!("stage {word} --fs-type ext4"));
                let is_refused =
                    why.contains("FAILED_PRECONDITION") && why.contains("was opened, and has");
                assert!(is_refused, "{image:?}: {why}");
                run(&mut guest, KEPT);
            }
        }
    }
}
