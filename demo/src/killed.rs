//! The node agent is killed during writes to a volume: none of them fails, and no byte differs.

use crate::agents::Agents;
use crate::kind::{Kind, Scene};
use crate::life::{Birth, Lives};
use crate::proof;
use crate::report::Topic;
use crate::samples::Step;
use crate::trouble::Trouble;
use crate::writer::{self, Writer};

/// Records before the kill, without an agent, and with the next one.
const RECORDS: u64 = 50;

impl Lives<'_> {
    /// One kill for each kind of volume.
    ///
    /// # Errors
    /// A write fails, a byte differs, or a step fails.
    pub(crate) async fn killed(&mut self, agents: &mut Agents) -> Result<(), Trouble> {
        let (mut meanwhile, mut total) = (0, 0);
        for &kind in self.kinds {
            self.progress.heading(&format!("kill -9 ({})", kind.name()));
            let (without_agent, all) = self.kill(kind, agents).await?;
            meanwhile += without_agent;
            total += all;
        }
        if self.kinds.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = self.kinds.iter().map(|kind| kind.name()).collect();
        let text = format!(
            "kill -9 of belay-node during writes to {}:",
            names.join(", ")
        );
        self.fact(Topic::Killed, text);
        let mib = (self.kinds.len() * proof::DATA_BYTES) >> 20;
        let text = format!(
            " {meanwhile} writes passed without it; {mib} MiB and {total} records are equal"
        );
        self.fact(Topic::Killed, text);
        Ok(())
    }

    /// Returns how many records were written without an agent, and how many in all.
    async fn kill(&mut self, kind: Kind, agents: &mut Agents) -> Result<(u64, u64), Trouble> {
        let name = format!("{}-killed", kind.name());
        let mut life = self.begin(Birth::of(Scene::Life(kind), &name)).await?;
        self.fill(&mut life).await?;
        let mut writer = Writer::start(kind, &life.target, life.seed())?;
        writer.wait_for(RECORDS).await;
        agents.kill_node().await?;
        let before = writer.begun();
        writer.wait_for(RECORDS).await;
        let meanwhile = writer.durable().saturating_sub(before);
        agents.start_node_again().await?;
        // As the kubelet does when its connection broke: the same calls again.
        self.stage(&mut life, Step::StageAgain, "already staged")
            .await?;
        self.publish(&mut life).await?;
        writer.wait_for(RECORDS).await;
        let total = writer.stop()?;

        let target = life.target.clone();
        self.unpublish(&mut life, &target, "").await?;
        self.unstage(&mut life).await?;
        self.resume(&mut life).await?;
        let found = writer::count(kind, &life.target, life.seed())?;
        if found != total {
            let text = format!("{}: {total} records written, {found} found", kind.name());
            return Err(Trouble::Untrue(text));
        }
        self.end(life).await?;
        Ok((meanwhile, total))
    }
}
