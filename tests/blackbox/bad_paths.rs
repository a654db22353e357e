//! Invalid paths in requests to the node: each is refused with the right code, by name, and nothing
//! changes.

use std::fs::{self, File};
use std::os::unix::fs::symlink;

use tonic::Code::{self, FailedPrecondition, InvalidArgument, NotFound};

use crate::bad_input::Scene;
use crate::rig::access;

/// Returns paths that no request may name, and the refusals of each.
fn bad_paths() -> Vec<(String, &'static str)> {
    vec![
        (String::new(), "is required"),
        ("relative/path".to_owned(), "is not absolute"),
        ("/".to_owned(), "root"),
        ("/a/../b".to_owned(), "\"..\""),
        ("/a/./b".to_owned(), "\".\""),
        ("/a/b/..".to_owned(), "\"..\""),
        (format!("/{}", "x".repeat(256)), "256 bytes"),
        ("/abcdefg".repeat(512), "4096 bytes"),
        ("/a\0b".to_owned(), "NUL"),
    ]
}

#[test]
#[ignore = "needs root: make test"]
fn a_path_that_is_none_is_refused_by_every_call() {
    let scene = Scene::new();
    let (used, blank, target) = (&scene.used, &scene.blank, &scene.target);
    for (path, why) in bad_paths() {
        let mut stage = blank.stage(access("ext4"));
        stage.staging_target_path.clone_from(&path);
        scene.expect(|node| node.stage(stage), InvalidArgument, why);
        let mut unstage = used.unstage();
        unstage.staging_target_path.clone_from(&path);
        scene.expect(|node| node.unstage(unstage), InvalidArgument, why);
        let mut publish = used.publish(target, access("ext4"));
        publish.target_path.clone_from(&path);
        scene.expect(|node| node.publish(publish), InvalidArgument, why);
        let mut unpublish = used.unpublish(target);
        unpublish.target_path.clone_from(&path);
        scene.expect(|node| node.unpublish(unpublish), InvalidArgument, why);
        // These calls only read, so a relative path is just not found.
        let (code, why) = match why {
            "is not absolute" => (NotFound, "relative/path"),
            _ => (InvalidArgument, why),
        };
        let mut stats = used.stats(target);
        stats.volume_path.clone_from(&path);
        scene.expect(|node| node.stats(stats), code, why);
        let mut expand = used.expand(target, access("ext4"));
        expand.volume_path.clone_from(&path);
        scene.expect(|node| node.expand(expand), code, why);
    }
    scene.down();
}

#[test]
#[ignore = "needs root: make test"]
fn a_symbolic_link_is_not_followed_where_a_volume_is_or_shall_be() {
    let scene = Scene::new();
    let (used, blank) = (&scene.used, &scene.blank);
    for name in ["to-staging", "to-target", "to-nothing"] {
        let path = scene.trap(name);
        let word = path.as_str();
        let mut stage = blank.stage(access("ext4"));
        stage.staging_target_path.clone_from(&path);
        scene.expect(|node| node.stage(stage), InvalidArgument, word);
        let mut unstage = used.unstage();
        unstage.staging_target_path.clone_from(&path);
        scene.expect(|node| node.unstage(unstage), InvalidArgument, word);
        let publish = used.publish(&scene.traps.join(name), access("ext4"));
        scene.expect(|node| node.publish(publish), InvalidArgument, word);
        let mut publish = used.publish(&used.target("b"), access("ext4"));
        publish.staging_target_path.clone_from(&path);
        scene.expect(|node| node.publish(publish), FailedPrecondition, word);
        let unpublish = used.unpublish(&scene.traps.join(name));
        scene.expect(|node| node.unpublish(unpublish), InvalidArgument, word);
        let stats = used.stats(&scene.traps.join(name));
        scene.expect(|node| node.stats(stats), InvalidArgument, word);
        let expand = used.expand(&scene.traps.join(name), access("ext4"));
        scene.expect(|node| node.expand(expand), InvalidArgument, word);
    }
    scene.down();
}

#[test]
#[ignore = "needs root: make test"]
fn a_file_that_is_not_plainly_in_the_loop_directory_is_never_bound() {
    let scene = Scene::new();
    let outside = scene.rig.test_dir().path().join("outside");
    File::create_new(&outside)
        .and_then(|file| file.set_len(128 << 20))
        .expect("a file");
    let volumes = scene.rig.volumes();
    symlink(&outside, volumes.join("absolute-link")).expect("symlink");
    symlink("../outside", volumes.join("relative-link")).expect("symlink");
    symlink(&scene.blank.id, volumes.join("inner-link")).expect("symlink");
    symlink("nowhere", volumes.join("dangling-link")).expect("symlink");
    fs::create_dir(volumes.join("directory")).expect("mkdir");
    fs::hard_link(&scene.blank.file, volumes.join("directory/inner")).expect("link");
    crate::rig::run("mkfifo", &[volumes.join("fifo").to_str().expect("UTF-8")]);
    let outside = outside.to_str().expect("UTF-8");
    for id in [
        "absolute-link",
        "relative-link",
        "inner-link",
        "dangling-link",
        "directory",
        "directory/inner",
        "fifo",
        "..",
        ".",
        "../outside",
        outside,
    ] {
        for kind in ["ext4", "block"] {
            let mut stage = scene.blank.stage(access(kind));
            id.clone_into(&mut stage.volume_id);
            scene.expect(|node| node.stage(stage), InvalidArgument, id);
        }
    }
    scene.down();
}

#[test]
#[ignore = "needs root: make test"]
fn a_path_where_something_else_is_is_refused_and_left_alone() {
    let scene = Scene::new();
    let (used, blank, target) = (&scene.used, &scene.blank, &scene.target);
    let nothing = scene.trap("nothing");
    for (path, code) in [
        (scene.trap("file"), InvalidArgument),
        (nothing.clone(), FailedPrecondition),
    ] {
        let mut stage = blank.stage(access("ext4"));
        stage.staging_target_path.clone_from(&path);
        scene.expect(|node| node.stage(stage), code, &path);
    }
    // Another volume is staged there.
    let mut stage = blank.stage(access("ext4"));
    stage.staging_target_path = used.unstage().staging_target_path;
    scene.expect(|node| node.stage(stage), Code::AlreadyExists, "");
    for path in [
        nothing.clone(),
        scene.trap("directory"),
        blank.unstage().staging_target_path,
    ] {
        let mut publish = used.publish(&used.target("b"), access("ext4"));
        publish.staging_target_path.clone_from(&path);
        scene.expect(|node| node.publish(publish), FailedPrecondition, &path);
    }
    let mut publish = used.publish(&used.target("b"), access("ext4"));
    publish.staging_target_path.clear();
    let staging = "staging_target_path";
    scene.expect(|node| node.publish(publish), FailedPrecondition, staging);
    let publish = used.publish(&used.target("b"), access("block"));
    scene.expect(|node| node.publish(publish), FailedPrecondition, &used.id);
    let mut publish = used.publish(&used.target("b"), access("ext4"));
    publish.volume_id.clone_from(&blank.id);
    scene.expect(|node| node.publish(publish), FailedPrecondition, &blank.id);
    for path in [scene.trap("file"), scene.trap("nothing/below")] {
        let publish = used.publish(path.as_ref(), access("ext4"));
        scene.expect(|node| node.publish(publish), FailedPrecondition, &path);
    }
    for path in [scene.trap("file"), scene.trap("directory")] {
        let unpublish = used.unpublish(path.as_ref());
        scene.expect(|node| node.unpublish(unpublish), FailedPrecondition, &path);
    }
    let unpublish = blank.unpublish(target);
    scene.expect(
        |node| node.unpublish(unpublish),
        FailedPrecondition,
        &blank.id,
    );
    let mut unstage = used.unstage();
    unstage.volume_id.clone_from(&blank.id);
    scene.expect(|node| node.unstage(unstage), FailedPrecondition, &blank.id);
    for path in [
        nothing,
        scene.trap("directory"),
        blank.unstage().staging_target_path,
    ] {
        let stats = used.stats(path.as_ref());
        scene.expect(|node| node.stats(stats), NotFound, &path);
        let expand = used.expand(path.as_ref(), access("ext4"));
        scene.expect(|node| node.expand(expand), NotFound, &path);
    }
    scene.expect(|node| node.stats(blank.stats(target)), NotFound, &blank.id);
    let expand = blank.expand(target, access("ext4"));
    scene.expect(|node| node.expand(expand), NotFound, &blank.id);
    scene.down();
}
