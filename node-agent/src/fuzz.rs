//! Entry points for `tests/fuzz`: the parsers of data from disks and from the kernel. No input may
//! make a parser panic or violate an assertion of its entry point. The unit test runs each parser
//! on the corpus, which contains inputs that fuzzing has found.

use crate::device::fuzz::identity;
use crate::filesystem::fuzz::content;
use crate::kernel::linux::fuzz::{mountinfo, uevent};

/// A parser that accepts arbitrary bytes.
pub type Target = fn(&[u8]);

/// All fuzzed parsers, with the names of their directories in the corpus.
pub const TARGETS: [(&str, Target); 4] = [
    ("content", content),
    ("identity", identity),
    ("mountinfo", mountinfo),
    ("uevent", uevent),
];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_parser_bears_what_fuzzing_has_found() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus");
        for (name, target) in TARGETS {
            let files = fs::read_dir(corpus.join(name)).unwrap();
            let mut count = 0;
            for file in files {
                let path = file.unwrap().path();
                eprintln!("{}", path.display());
                target(&fs::read(path).unwrap());
                count += 1;
            }
            assert!(count > 5, "{name}: {count}");
        }
    }
}
