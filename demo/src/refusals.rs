//! What Belay must refuse, and must not change: a disk that is not blank, and a second writer.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use tonic::Code;

use crate::calls::Timed;
use crate::kind::{Kind, Scene};
use crate::life::{Birth, Life, Lives};
use crate::proof;
use crate::report::Topic;
use crate::samples::Step;
use crate::trouble::Trouble;

/// The foreign byte, in the middle of the disk, where no filesystem keeps a superblock.
const FOREIGN: ([u8; 1], u64) = ([0x2A], (512 << 20) + 12_345);

impl Lives<'_> {
    /// A disk with a single byte that is not zero is never formatted.
    ///
    /// # Errors
    /// It is staged or changed, or another step fails.
    pub(crate) async fn foreign_byte_is_refused(&mut self) -> Result<(), Trouble> {
        self.progress.heading("A disk with one foreign byte");
        let mut life = self.begin(birth("foreign-byte")).await?;
        let path = self.demo_dir.volumes().join(&life.volume.id);
        let own = |error| Trouble::own(path.display(), error);
        let (byte, at) = FOREIGN;
        // Closed before the stage, which refuses a file that another process has open.
        let write = |disk: File| disk.write_all_at(&byte, at).and_then(|()| disk.sync_all());
        let disk = File::options().write(true).open(&path);
        disk.and_then(write).map_err(own)?;
        let state = || {
            path.metadata()
                .map(|m| (m.mtime(), m.mtime_nsec(), m.blocks()))
        };
        let before = state().map_err(own)?;

        self.step(&mut life, Step::StageBlank);
        let staged = self.calls.stage(&life.volume, &life.staging).await;
        self.must_be_refused(&life, "stage", staged)?;
        let mut found = [0];
        let disk = File::open(&path).map_err(own)?;
        disk.read_exact_at(&mut found, at).map_err(own)?;
        if found != byte || state().map_err(own)? != before {
            return Err(Trouble::Untrue(format!("{}: was changed", path.display())));
        }
        proof::nothing_is_left(self.demo_dir)?;
        self.detach(&mut life).await?;
        self.delete(&mut life).await?;
        let text = "a disk with one foreign byte: FAILED_PRECONDITION, disk unchanged";
        self.fact(Topic::Refused, text.to_owned());
        Ok(())
    }

    /// SINGLE_NODE_WRITER means one target: the second must be refused, and change nothing.
    ///
    /// # Errors
    /// The target is published, or another step fails.
    pub(crate) async fn second_writer_is_refused(&mut self) -> Result<(), Trouble> {
        self.progress.heading("SINGLE_NODE_WRITER");
        let mut life = self.begin(birth("single-writer")).await?;
        self.fill(&mut life).await?;

        self.step(&mut life, Step::Publish);
        let (staging, second) = (&life.staging, &life.second);
        let published = self.calls.publish(&life.volume, staging, second, false);
        let published = published.await;
        self.must_be_refused(&life, "second target", published)?;
        proof::is_gone(&life.second)?;
        proof::compare(life.kind, &life.target, life.seed())?;
        self.end(life).await?;
        let text = "a second writer: FAILED_PRECONDITION, nothing mounted";
        self.fact(Topic::Refused, text.to_owned());
        Ok(())
    }

    fn must_be_refused(
        &mut self,
        life: &Life,
        label: &str,
        result: Timed<()>,
    ) -> Result<(), Trouble> {
        match result {
            Err(Trouble::Call { status, .. }) if status.code() == Code::FailedPrecondition => {
                let what = "refused with FAILED_PRECONDITION, as it must be";
                self.refused(life, label, what, status.message());
                Ok(())
            }
            Err(other) => Err(other),
            Ok(_) => Err(Trouble::Untrue(format!("{label}: was not refused"))),
        }
    }
}

fn birth(name: &str) -> Birth<'_> {
    Birth::of(Scene::Life(Kind::Ext4), name)
}
