//! The flags of `belayctl volume`.

use clap::Args;

use crate::access::{Access, Pair, csc, pair};
use crate::context::VolumeContext;
use crate::secrets::Secrets;
use crate::size;

#[derive(Args)]
pub(crate) struct Create {
    /// Name of the volume
    pub(super) name: String,
    /// Minimum size, e.g. 1GiB, 500Mi or bytes [default: the driver's]
    #[arg(long, alias = "req-bytes", value_name = "SIZE", value_parser = size::parse)]
    pub(super) size: Option<i64>,
    /// Maximum size
    #[arg(long, alias = "lim-bytes", value_name = "SIZE", value_parser = size::parse)]
    pub(super) limit: Option<i64>,
    #[command(flatten)]
    pub(super) access: Access,
    /// Storage class parameter; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
    pub(super) parameters: Vec<Pair>,
    #[command(flatten)]
    pub(super) csc: csc::Parameters,
    /// Parameter of a volume attributes class; may be repeated
    #[arg(long = "mutable-parameter", value_name = "KEY=VALUE", value_parser = pair)]
    pub(super) mutable: Vec<Pair>,
    /// Topology segment it must be reachable from, as key=value; may be repeated
    #[arg(long = "topology", value_name = "KEY=VALUE", value_parser = pair)]
    pub(super) topology: Vec<Pair>,
    /// Id of a snapshot to restore
    #[arg(
        long,
        alias = "source-snapshot",
        value_name = "SNAPSHOT_ID",
        conflicts_with = "from_volume"
    )]
    pub(super) from_snapshot: Option<String>,
    /// Id of a volume to clone
    #[arg(long, alias = "source-volume", value_name = "VOLUME_ID")]
    pub(super) from_volume: Option<String>,
    #[command(flatten)]
    pub(super) secrets: Secrets,
}

/// One volume, and nothing else.
#[derive(Args)]
pub(crate) struct One {
    /// Id of the volume
    pub(super) volume_id: String,
    #[command(flatten)]
    pub(super) secrets: Secrets,
}

#[derive(Args)]
pub(crate) struct Attach {
    /// Id of the volume
    pub(super) volume_id: String,
    /// The node, as `belayctl node info` names it
    #[arg(long)]
    pub(super) node_id: String,
    #[command(flatten)]
    pub(super) access: Access,
    /// Attach read-only
    #[arg(long, alias = "read-only")]
    pub(super) readonly: bool,
    #[command(flatten)]
    pub(super) context: VolumeContext,
    #[command(flatten)]
    pub(super) secrets: Secrets,
}

#[derive(Args)]
pub(crate) struct Detach {
    /// Id of the volume
    pub(super) volume_id: String,
    /// The node [default: all nodes]
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(super) node_id: String,
    #[command(flatten)]
    pub(super) secrets: Secrets,
}

#[derive(Args)]
pub(crate) struct Validate {
    /// Id of the volume
    pub(super) volume_id: String,
    #[command(flatten)]
    pub(super) access: Access,
    /// Storage class parameter; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
    pub(super) parameters: Vec<Pair>,
    #[command(flatten)]
    pub(super) csc: csc::Parameters,
    #[command(flatten)]
    pub(super) context: VolumeContext,
    #[command(flatten)]
    pub(super) secrets: Secrets,
}

/// Which part of a list.
#[derive(Args)]
pub(crate) struct Pages {
    /// Show only one page, with at most so many entries (0: the driver's default)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) max_entries: Option<i32>,
    /// Show only the page that starts at this token
    #[arg(long, value_name = "TOKEN")]
    pub(crate) starting_token: Option<String>,
}

impl Pages {
    /// The token of the page, if one page is asked and not all.
    pub(crate) fn one(&self) -> Option<String> {
        let asked = self.max_entries.is_some() || self.starting_token.is_some();
        asked.then(|| self.starting_token.clone().unwrap_or_default())
    }
}

#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(super) pages: Pages,
}

#[derive(Args)]
pub(crate) struct Expand {
    /// Id of the volume
    pub(super) volume_id: String,
    /// Minimum size, e.g. 2GiB
    #[arg(long, alias = "req-bytes", value_name = "SIZE", value_parser = size::parse)]
    pub(super) size: i64,
    /// Maximum size
    #[arg(long, alias = "lim-bytes", value_name = "SIZE", value_parser = size::parse)]
    pub(super) limit: Option<i64>,
    #[command(flatten)]
    pub(super) access: Access,
    #[command(flatten)]
    pub(super) secrets: Secrets,
}

#[derive(Args)]
pub(crate) struct Modify {
    /// Id of the volume
    pub(super) volume_id: String,
    /// Parameter and its new value; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair, required = true)]
    pub(super) parameters: Vec<Pair>,
    #[command(flatten)]
    pub(super) secrets: Secrets,
}

#[derive(Args)]
pub(crate) struct HealthList {
    /// Number of entries that one call requests (0: the driver's default); all pages are read
    #[arg(long, value_name = "COUNT", default_value_t = 0,
          value_parser = clap::value_parser!(i32).range(0..))]
    pub(super) page_size: i32,
    #[command(flatten)]
    pub(super) secrets: Secrets,
}

#[derive(Args)]
pub(crate) struct Capacity {
    /// Storage class parameter; may be repeated
    #[arg(long = "parameter", value_name = "KEY=VALUE", value_parser = pair)]
    pub(super) parameters: Vec<Pair>,
    #[command(flatten)]
    pub(super) csc: csc::Parameters,
    /// Topology segment of the volumes, as key=value; may be repeated
    #[arg(long = "topology", value_name = "KEY=VALUE", value_parser = pair)]
    pub(super) topology: Vec<Pair>,
}
