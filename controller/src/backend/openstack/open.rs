//! Opens the clouds in `cloud.conf`: the settings of the backend, and one account for each cloud.

use super::backups::Backups;
use super::client::Client;
use super::conf::{CloudConf, Source};
use super::copies::RecentSnapshots;
use super::search::{Search, Searches};
use super::session::Account;
use super::zones::Zones;
use super::{CLOUD, Cloud};
use crate::backend::{Backends, Named, measured};
use crate::http;
use belay_server::call::Failure;
use std::path::PathBuf;
use std::sync::Arc;

/// The maximum of `node-volume-attach-limit`.
const ATTACH_LIMIT_MAX: i64 = 256;

/// The settings of the backend.
#[derive(Clone, Debug)]
pub struct Config {
    /// The files of `cloud.conf`; if a key occurs several times, the last value is used.
    pub files: Vec<PathBuf>,
    /// The names of the sections `[Global "name"]` to use, one for each cloud. An empty list means
    /// that only the section without a name is used.
    pub clouds: Vec<String>,
    /// The cluster, which is recorded in the metadata of volumes.
    pub cluster: String,
    /// The topology key for zones; `None` if volumes report no topology.
    pub topology_key: Option<&'static str>,
    /// The value of `--max-volumes`, to compare with `cloud.conf`.
    pub volumes_max: u32,
}

/// Opens all clouds in the settings. Blocks the calling thread.
///
/// # Errors
/// Returns `Precondition` for errors in `cloud.conf` or the CA files.
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
    /// Opens a cloud. Reads `cloud.conf` now; the first call logs in. `label` is the cloud's name
    /// in log lines if there are several clouds. Blocks the calling thread.
    ///
    /// # Errors
    /// Returns `Precondition` for errors in `cloud.conf`, in the CA file, or in proxies.
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
            recent_snapshots: RecentSnapshots::default(),
            zones: Zones::new(Arc::clone(&client), config.topology_key, conf.ignores_zones),
            client,
            cluster: config.cluster.clone(),
            attach_limit: conf.attach_limit,
        })
    }

    /// Returns a warning if `--max-volumes` differs from the attach limit in `cloud.conf`, which
    /// cinder-csi-plugin uses. Without the correct limit, the scheduler assigns more volumes to a
    /// node than can be attached.
    pub(super) fn other_limit(&self, volumes_max: u32) -> Option<String> {
        let limit = self.attach_limit.as_deref()?;
        // cinder-csi-plugin replaces a negative limit, and a limit above 256, by 256.
        let meant = limit.parse().map(|limit: i64| match limit {
            0..=ATTACH_LIMIT_MAX => limit,
            _ => ATTACH_LIMIT_MAX,
        });
        (meant != Ok(i64::from(volumes_max))).then(|| {
            format!(
                "cloud.conf: [BlockStorage] node-volume-attach-limit: {limit} is not used, and \
                 --max-volumes is {volumes_max}: set that of both programs (in the chart \
                 maxVolumes) to the number of disks that a server can have"
            )
        })
    }
}
