//! Streams of blocks: printed as they arrive, since a volume may have millions.

use belay_proto::csi::v1::snapshot_metadata_client::SnapshotMetadataClient;
use belay_proto::csi::v1::{BlockMetadata, GetMetadataAllocatedRequest, GetMetadataDeltaRequest};
use clap::Args;
use serde_json::json;
use tonic::Streaming;

use crate::failure::Failure;
use crate::render::{self, Answer, Output};
use crate::secrets::Secrets;
use crate::target::{Target, within};

/// Where to start, and how many blocks per message.
#[derive(Args)]
struct Part {
    /// Start at this offset in bytes, where an interrupted stream ended
    #[arg(long, value_name = "BYTES", default_value_t = 0,
          value_parser = clap::value_parser!(i64).range(0..))]
    starting_offset: i64,
    /// Maximum number of blocks per message (0: the driver's default)
    #[arg(long, value_name = "COUNT", default_value_t = 0,
          value_parser = clap::value_parser!(i32).range(0..))]
    max_results: i32,
    #[command(flatten)]
    secrets: Secrets,
}

#[derive(Args)]
pub(crate) struct Allocated {
    /// Id of the snapshot
    snapshot_id: String,
    #[command(flatten)]
    part: Part,
}

#[derive(Args)]
pub(crate) struct Delta {
    /// Id of the older snapshot
    base_snapshot_id: String,
    /// Id of the newer snapshot
    target_snapshot_id: String,
    #[command(flatten)]
    part: Part,
}

impl Allocated {
    /// Prints the blocks.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(super) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let mut client = SnapshotMetadataClient::new(target.connect().await?);
        let call = client.get_metadata_allocated(GetMetadataAllocatedRequest {
            snapshot_id: self.snapshot_id,
            starting_offset: self.part.starting_offset,
            max_results: self.part.max_results,
            secrets: self.part.secrets.load()?,
        });
        let stream = target.wait_for(call).await?;
        print(target, stream, |part| part.block_metadata).await
    }
}

impl Delta {
    /// Prints the blocks.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(super) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let mut client = SnapshotMetadataClient::new(target.connect().await?);
        let call = client.get_metadata_delta(GetMetadataDeltaRequest {
            base_snapshot_id: self.base_snapshot_id,
            target_snapshot_id: self.target_snapshot_id,
            starting_offset: self.part.starting_offset,
            max_results: self.part.max_results,
            secrets: self.part.secrets.load()?,
        });
        let stream = target.wait_for(call).await?;
        print(target, stream, |part| part.block_metadata).await
    }
}

async fn print<T>(
    target: &Target,
    mut stream: Streaming<T>,
    blocks: impl Fn(T) -> Vec<BlockMetadata>,
) -> Result<Answer, Failure> {
    if target.is_table() {
        render::write("BYTE_OFFSET           SIZE_BYTES\n")?;
    }
    while let Some(part) = within(target.timeout, async { Ok(stream.message().await?) }).await? {
        render::write(&lines(&blocks(part), target.output))?;
    }
    Ok(Answer::Printed)
}

/// One block per line: JSON and YAML readers take a line as a separate document.
fn lines(blocks: &[BlockMetadata], output: Output) -> String {
    let line = |block: &BlockMetadata| match (output, block.byte_offset, block.size_bytes) {
        (Output::Table | Output::Wide, offset, size) => format!("{offset:<20}  {size}\n"),
        (Output::Name, offset, _) => format!("{offset}\n"),
        (Output::Json, byte_offset, size_bytes) => {
            format!(
                "{}\n",
                json!({ "byte_offset": byte_offset, "size_bytes": size_bytes })
            )
        }
        (Output::Yaml, offset, size) => {
            format!("- byte_offset: {offset}\n  size_bytes: {size}\n")
        }
    };
    blocks.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_a_line() {
        let blocks = [(0, 4096), (1 << 40, 512)].map(|(byte_offset, size_bytes)| BlockMetadata {
            byte_offset,
            size_bytes,
        });
        assert_eq!(
            lines(&blocks, Output::Table),
            "0                     4096\n1099511627776         512\n"
        );
        assert_eq!(
            lines(&blocks[..1], Output::Json),
            "{\"byte_offset\":0,\"size_bytes\":4096}\n"
        );
    }
}
