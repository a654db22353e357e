//! Opening the clouds of `cloud.conf`: the settings of the backend, and one account for each cloud.

use super::backups::Backups;
use super::client::Client;
use super::conf::{CloudConf, Source};
use super::copies::Plain;
use super::search::{Search, Searches};
use super::session::Account;
use super::zones::Zones;
use super::{CLOUD, Cloud};
use crate::backend::{Backends, Named, measured};
use crate::http;
use belay_server::call::Failure;
use std::path::PathBuf;
use std::sync::Arc;

/// The settings of the backend.
#[derive(Clone, Debug)]
pub struct Config {
    /// `cloud.conf`, whose keys can be in several files: the last one counts.
    pub files: Vec<PathBuf>,
    /// The names of the sections `[Global "name"]` to use, one for each cloud; empty for the one
    /// without a name.
    pub clouds: Vec<String>,
    /// The cluster that volumes are marked with.
    pub cluster: String,
    /// The topology key of zones; none = zones are not reported.
    pub topology_key: Option<&'static str>,
    /// `--max-volumes`, to be compared with `cloud.conf`.
    pub volumes_max: u32,
}

/// Opens all clouds of the settings. Blocks.
///
/// # Errors
/// `Precondition` for `cloud.conf`, and for the files of the authorities.
pub(in crate::backend) fn open(config: &Config) -> Result<Backends, Failure> {
    http::describe();
    measured::describe();
    let mut names = config.clouds.clone();
    names.sort();
    names.dedup();
    let is_one = names.len() < 2;
    let open = |name: String| {
        let label = match &*name {
            "" => "[Global]".to_owned(),
            name => format!("[Global {name:?}]"),
        };
        let cloud = Cloud::open(config, &name, (!is_one).then(|| label.clone()))?;
        Ok::<_, Failure>((name, label, Arc::new(cloud)))
    };
    let mut names = names.into_iter();
    let (name, label, first) = open(names.next().unwrap_or_default())?;
    if let Some(warning) = first.other_limit(config.volumes_max) {
        tracing::warn!("{warning}");
    }
    let named = |(name, label, backend): (String, String, Arc<Cloud>)| Named {
        name,
        label,
        backend,
    };
    let others = names.map(|name| open(name).map(named));
    let others = others.collect::<Result<_, _>>()?;
    let first = named((name, label, first));
    Ok(Backends::Named { first, others })
}

impl Cloud {
    /// Reads `cloud.conf`; logs in with the first call. `label` is for log lines of one of several
    /// clouds. Blocks.
    ///
    /// # Errors
    /// `Precondition` for the file, for that of the authorities, and for proxies.
    pub(super) fn open(
        config: &Config,
        name: &str,
        label: Option<String>,
    ) -> Result<Self, Failure> {
        let source = Source::new(config.files.clone(), name);
        let conf = CloudConf::read(&source)?;
        let http = http::Client::new(CLOUD, &conf.tls);
        let http = http.map_err(|error| match error {
            http::BadClient::Certificates(error) => {
                Failure::precondition(format!("ca-file or cert-file: {error}"))
            }
            error @ http::BadClient::Proxy(_) => Failure::precondition(error.to_string()),
        })?;
        let http = http.of_section(label.as_ref().map(|_| name.into()));
        let client = Arc::new(Client::new(Account::new(source, http, label)));
        Ok(Self {
            searches: Searches::new(Search::new(Arc::clone(&client))),
            backups: Backups(Arc::clone(&client)),
            plain: Plain::default(),
            zones: Zones::new(Arc::clone(&client), config.topology_key, conf.ignores_zones),
            client,
            cluster: config.cluster.clone(),
            attach_limit: conf.attach_limit,
        })
    }

    /// The warning for a limit of cinder-csi-plugin that would be lost: without it, the scheduler
    /// gives a node more volumes than it can have.
    pub(super) fn other_limit(&self, volumes_max: u32) -> Option<String> {
        let limit = self.attach_limit.as_deref()?;
        (limit != volumes_max.to_string()).then(|| {
            format!(
                "cloud.conf: [BlockStorage] node-volume-attach-limit: {limit} is not used, and \
                 --max-volumes is {volumes_max}: set that of both programs (in the chart \
                 maxVolumes) to the number of disks that a server can have"
            )
        })
    }
}
