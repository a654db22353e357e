//! The online expansion of a volume, which the node refuses for ext4 without CAP_SYS_RESOURCE.

use belay_ctl::size;
use tonic::Code;

use crate::kind::Kind;
use crate::life::{BYTES, Life, Lives};
use crate::proof;
use crate::report::Cell;
use crate::samples::Step;
use crate::trouble::Trouble;

impl Lives<'_> {
    /// First in the controller, then on the node.
    ///
    /// # Errors
    /// A step fails, or the volume did not grow.
    pub(crate) async fn grow(&mut self, life: &mut Life) -> Result<(), Trouble> {
        let before = proof::size(life.kind, &life.target)?;
        self.step(life, Step::ControllerExpand);
        let (bytes, took) = self.calls.controller_expand(&life.volume, BYTES.1).await?;
        if bytes != BYTES.1 {
            return Err(Trouble::Untrue(format!(
                "grew to {bytes} bytes, requested {}",
                BYTES.1
            )));
        }
        self.done(life, took, "2GiB");

        self.step(life, Step::NodeExpand);
        let grown = self
            .calls
            .node_expand(&life.volume, &life.target, &life.staging, BYTES.1)
            .await;
        match grown {
            Err(Trouble::Call { status, .. })
                if life.kind == Kind::Ext4
                    && status.code() == Code::FailedPrecondition
                    && proof::lacks_sys_resource()? =>
            {
                let label = life.step.label(life.kind);
                self.refused(life, label, "not supported here", status.message());
                self.report.set(life.scene, life.step, Cell::Refused);
                Ok(())
            }
            Err(other) => Err(other),
            Ok((_bytes, took)) => {
                let after = proof::size(life.kind, &life.target)?;
                let (reported, _) = self.stats(life).await?;
                // A filesystem uses some of the device itself, so "twice" is not exact.
                if after < before / 2 * 3 || reported != after {
                    let text =
                        format!("{before} bytes before, {after} after, stats report {reported}");
                    return Err(Trouble::Untrue(format!("did not grow: {text}")));
                }
                let (before, after) = (size::show(before), size::show(after));
                self.done(
                    life,
                    took,
                    &format!("{before} before, {after} now, while in use"),
                );
                Ok(())
            }
        }
    }
}
