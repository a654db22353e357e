//! The facts about a program's storage and volumes, for `/metrics` and the status page. The facts
//! are measured in separate tasks when a page is requested. If a disk does not respond, the page
//! shows the last known values after a short wait. This module does not depend on the storage of a
//! driver.

use crate::lock::Lock;
use metrics::Unit;
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Gauge: free space in the filesystem of the backing files, in bytes, by `driver` and `disk`.
const FREE: &str = "belay_storage_free_bytes";
/// Gauge: size of the filesystem of the backing files, in bytes, by `driver` and `disk`.
const SIZE: &str = "belay_storage_size_bytes";
/// Gauge: volumes with a health condition, by `driver` and `reason`.
const UNHEALTHY: &str = "belay_volumes_unhealthy";

/// Maximum time that a page waits for measurements. On healthy storage, a measurement takes a few
/// milliseconds.
const PATIENCE: Duration = Duration::from_millis(250);

/// Minimum time between two measurements of a driver, however many pages are requested, since the
/// HTTP port may be open to a whole cluster.
const INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of volumes on the status page.
pub const SHOWN_MAX: usize = 50;

/// The facts about one driver.
pub trait Facts: Send + Sync + 'static {
    /// Returns every reason for which this program reports a volume as unhealthy.
    fn reasons(&self) -> Vec<&'static str>;

    /// Returns the facts that are known now. This function must not wait.
    fn known(&self) -> Known;

    /// Returns up to [`SHOWN_MAX`] volumes for the status page. This function must not wait.
    fn shown(&self) -> Vec<Shown>;

    /// Measures the facts that may require waiting for a disk, on a thread of the program.
    /// Afterwards, [`Facts::known`] returns the measured facts. The measurement must end
    /// eventually, since the next measurement begins only afterwards.
    fn measure(self: Arc<Self>) -> Measuring;
}

/// A measurement in progress.
pub type Measuring = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The known facts about a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The filesystems of the backing files, as last measured, by the name of the disk. Empty
    /// before the first measurement.
    pub storage: BTreeMap<String, Space>,
    /// The number of volumes staged on this node, or ready in this controller. `None` if the number
    /// is not known.
    pub volumes: Option<u64>,
    /// The number of volumes with a health condition, by reason.
    pub unhealthy: BTreeMap<&'static str, u64>,
}

/// A volume on the status page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The ID of the volume.
    pub id: String,
    /// The reasons for which the volume is unhealthy.
    pub reasons: Vec<&'static str>,
    /// Further facts, such as the name of the volume, or the paths of its mounts.
    pub details: Vec<String>,
}

/// The space in a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Free bytes, including blocks that only root may use.
    pub free_bytes: u64,
    /// Size of the filesystem in bytes.
    pub size_bytes: u64,
}

/// The facts about all drivers of a server. Clones share the facts.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllFacts(Arc<Vec<Entry>>);

struct Entry {
    driver: Box<str>,
    facts: Arc<dyn Facts>,
    is_measuring: Arc<AtomicBool>,
    /// The time at which the last measurement began.
    measured: Lock<Option<Instant>>,
}

impl AllFacts {
    /// Creates the facts about these drivers. Registers the help texts of the gauges, and sets the
    /// gauges that count volumes to 0.
    pub(crate) fn new(drivers: Vec<(String, Arc<dyn Facts>)>) -> Self {
        let help = "Free bytes in the filesystem of the backing files.";
        metrics::describe_gauge!(FREE, Unit::Bytes, help);
        let help = "Size of the filesystem of the backing files.";
        metrics::describe_gauge!(SIZE, Unit::Bytes, help);
        metrics::describe_gauge!(UNHEALTHY, "Volumes with a health condition, by reason.");
        let entries = drivers.into_iter().map(|(driver, facts)| Entry {
            driver: driver.into(),
            facts,
            is_measuring: Arc::default(),
            measured: Lock::default(),
        });
        let all = Self(Arc::new(entries.collect()));
        all.show();
        all
    }

    /// Measures all drivers, waits at most [`PATIENCE`] for the results, and sets the gauges.
    pub(crate) async fn refresh(&self) {
        let begun: Vec<_> = self.0.iter().filter_map(Entry::begin).collect();
        if !begun.is_empty() {
            let all = futures_util::future::join_all(begun);
            // A measurement that takes longer continues in its task, and the page shows the last
            // known values.
            drop(tokio::time::timeout(PATIENCE, all).await);
        }
        self.show();
    }

    /// Returns the known facts about a driver, or `None` if no facts are reported for the driver.
    pub(crate) fn of(&self, driver: &str) -> Option<Known> {
        let entry = self.0.iter().find(|entry| &*entry.driver == driver);
        entry.map(|entry| entry.facts.known())
    }

    /// Returns the volumes of a driver for the status page.
    pub(crate) fn shown(&self, driver: &str) -> Vec<Shown> {
        let entry = self.0.iter().find(|entry| &*entry.driver == driver);
        entry.map_or_else(Vec::new, |entry| entry.facts.shown())
    }

    fn show(&self) {
        self.0.iter().for_each(Entry::show);
    }
}

impl Entry {
    /// Begins a measurement, unless a measurement is in progress, or the last one began less than
    /// [`INTERVAL`] ago.
    fn begin(&self) -> Option<JoinHandle<()>> {
        let mut measured = self.measured.lock();
        let is_recent = measured.is_some_and(|at| at.elapsed() < INTERVAL);
        if is_recent || self.is_measuring.swap(true, Ordering::AcqRel) {
            return None;
        }
        *measured = Some(Instant::now());
        let over = Over(Arc::clone(&self.is_measuring));
        let measuring = Arc::clone(&self.facts).measure();
        Some(tokio::spawn(async move {
            let _over = over;
            measuring.await;
        }))
    }

    fn show(&self) {
        let known = self.facts.known();
        for (disk, space) in known.storage {
            self.set(FREE, &disk, space.free_bytes);
            self.set(SIZE, &disk, space.size_bytes);
        }
        for reason in self.facts.reasons() {
            let count = known.unhealthy.get(reason).copied().unwrap_or(0);
            let driver = self.driver.to_string();
            metrics::gauge!(UNHEALTHY, "driver" => driver, "reason" => reason).set(count as f64);
        }
    }

    fn set(&self, gauge: &'static str, disk: &str, value: u64) {
        let (driver, disk) = (self.driver.to_string(), disk.to_owned());
        metrics::gauge!(gauge, "driver" => driver, "disk" => disk).set(value as f64);
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Entry").field(&self.driver).finish()
    }
}

/// Marks the measurement as ended when this value is dropped, even if the measurement has panicked.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
    use std::sync::atomic::AtomicU64;
    use tokio::sync::Semaphore;

    /// A test storage whose free space grows by one byte at each measurement, and whose measurement
    /// may hang.
    struct Storage {
        free: AtomicU64,
        answers: Semaphore,
    }

    impl Facts for Storage {
        fn reasons(&self) -> Vec<&'static str> {
            vec!["BackingFileGone", "DeviceErrors"]
        }

        fn known(&self) -> Known {
            let free_bytes = self.free.load(Ordering::Relaxed);
            let size_bytes = 1000;
            let space = Space {
                free_bytes,
                size_bytes,
            };
            let disks = ["default", "fast"].map(|disk| (disk.to_owned(), space));
            Known {
                storage: disks.into_iter().filter(|_| free_bytes > 0).collect(),
                volumes: Some(3),
                unhealthy: [("DeviceErrors", free_bytes)].into(),
            }
        }

        fn shown(&self) -> Vec<Shown> {
            Vec::new()
        }

        fn measure(self: Arc<Self>) -> Measuring {
            Box::pin(async move {
                if let Ok(answer) = self.answers.acquire().await {
                    answer.forget();
                    self.free.fetch_add(1, Ordering::Relaxed);
                }
            })
        }
    }

    fn storage(answers: usize) -> (Arc<Storage>, AllFacts) {
        let storage = Arc::new(Storage {
            free: AtomicU64::default(),
            answers: Semaphore::new(answers),
        });
        let drivers = vec![("d".to_owned(), Arc::clone(&storage) as Arc<dyn Facts>)];
        (storage, AllFacts::new(drivers))
    }

    fn page(recorder: &PrometheusRecorder, facts: &AllFacts) -> String {
        metrics::with_local_recorder(recorder, || facts.show());
        recorder.handle().render()
    }

    #[tokio::test(start_paused = true)]
    async fn each_request_measures_again_but_not_more_often_than_each_few_seconds() {
        let (storage, facts) = storage(100);
        for measured in [1, 1, 1] {
            facts.refresh().await;
            assert_eq!(storage.free.load(Ordering::Relaxed), measured);
        }
        tokio::time::advance(INTERVAL).await;
        facts.refresh().await;
        assert_eq!(storage.free.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn storage_that_does_not_answer_delays_no_page_and_its_last_values_stay() {
        let (storage, facts) = storage(1);
        let recorder = PrometheusBuilder::new().build_recorder();
        let missing = page(&recorder, &facts);
        assert!(!missing.contains("belay_storage"), "{missing}");
        assert!(missing.contains("{driver=\"d\",reason=\"DeviceErrors\"} 0\n"));
        for _ in 0..3 {
            let begun = Instant::now();
            facts.refresh().await;
            assert!(begun.elapsed() <= PATIENCE);
            let page = page(&recorder, &facts);
            assert!(page.contains("\nbelay_storage_free_bytes{driver=\"d\",disk=\"default\"} 1\n"));
            assert!(
                page.contains("\nbelay_storage_size_bytes{driver=\"d\",disk=\"default\"} 1000\n")
            );
            assert!(page.contains("_size_bytes{driver=\"d\",disk=\"fast\"} 1000\n"));
            assert!(page.contains("{driver=\"d\",reason=\"DeviceErrors\"} 1\n"));
            assert!(page.contains("{driver=\"d\",reason=\"BackingFileGone\"} 0\n"));
            tokio::time::advance(INTERVAL).await;
        }
        // Only one of the two later pages has begun a measurement.
        storage.answers.add_permits(2);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(storage.free.load(Ordering::Relaxed), 2);
    }
}
