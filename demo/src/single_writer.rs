//! The refusal for a single-writer volume.

use belay_proto::csi::v1::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::kind::{Kind, Scene};
use crate::life::{BYTES, Birth, Lives};
use crate::proof;
use crate::samples::Step;
use crate::trouble::Trouble;

impl Lives<'_> {
    /// SINGLE_NODE_WRITER means one target: the second must be refused, and change nothing.
    ///
    /// # Errors
    /// The target is published, or another step fails.
    pub(crate) async fn second_target_is_refused(&mut self) -> Result<(), Trouble> {
        let birth = Birth {
            scene: Scene::Life(Kind::Ext4),
            round: 0,
            name: "single-writer",
            mode: Mode::SingleNodeWriter,
            step: Step::Create,
            bytes: BYTES.0,
            source: None,
        };
        let mut life = self.begin(birth).await?;
        self.stage(&mut life, Step::StageBlank, "formatted and mounted")
            .await?;
        self.publish(&mut life).await?;

        self.step(&mut life, Step::Publish);
        let second = self
            .calls
            .publish(&life.volume, &life.staging, &life.second, false)
            .await;
        match second {
            Err(Trouble::Call { status, .. }) if status.code() == Code::FailedPrecondition => {
                let what = "refused with FAILED_PRECONDITION, as it must be";
                self.refused(&life, "second target", what, status.message());
            }
            Err(other) => return Err(other),
            Ok(_) => {
                let text = "a second target was published under SINGLE_NODE_WRITER";
                return Err(Trouble::Untrue(text.to_owned()));
            }
        }
        proof::is_gone(&life.second)?;
        self.end(life).await
    }
}
