//! Where measured values are kept, and how they are written in Prometheus' text format. A few
//! dozen series of a few atomics each: nothing is sampled, so nothing piles up between two looks.

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Label, Metadata, Recorder, SharedString,
    Unit,
};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Upper bounds of all histograms, in seconds: from a call answered out of the kernel's memory to
/// a mkfs of a large volume.
const BOUNDS: [f64; 22] = [
    0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
    0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0,
];

/// All series of a process.
#[derive(Debug, Default)]
pub(super) struct Registry {
    families: Mutex<BTreeMap<String, Family>>,
}

/// The series of one name.
#[derive(Debug, Default)]
struct Family {
    help: SharedString,
    series: Vec<(Box<[Label]>, Value)>,
}

#[derive(Clone, Debug)]
enum Value {
    Counter(Arc<AtomicU64>),
    /// The bits of an `f64`.
    Gauge(Arc<AtomicU64>),
    Histogram(Arc<Buckets>),
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Value::Counter(_) => "counter",
            Value::Gauge(_) => "gauge",
            Value::Histogram(_) => "histogram",
        }
    }
}

/// How many values were at most as large as each bound and larger than the one before.
#[derive(Debug, Default)]
struct Buckets {
    counts: [AtomicU64; BOUNDS.len()],
    above: AtomicU64,
    /// The bits of an `f64`.
    sum: AtomicU64,
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        let place = BOUNDS.partition_point(|bound| *bound < value);
        let bucket = self.counts.get(place).unwrap_or(&self.above);
        bucket.fetch_add(1, Ordering::Relaxed);
        let mut before = self.sum.load(Ordering::Relaxed);
        let add = |sum: u64| {
            let added = (f64::from_bits(sum) + value).to_bits();
            let order = Ordering::Relaxed;
            self.sum.compare_exchange_weak(sum, added, order, order)
        };
        while let Err(now) = add(before) {
            before = now;
        }
    }
}

impl Registry {
    /// Everything, in the text format of Prometheus (version 0.0.4).
    pub(super) fn write(&self, page: &mut Page) {
        for (name, family) in &*self.lock() {
            let Some((_, first)) = family.series.first() else {
                continue;
            };
            page.family(name, first.kind(), &family.help);
            for (labels, value) in &family.series {
                match value {
                    Value::Counter(count) => {
                        page.sample(name, labels, None, count.load(Ordering::Relaxed));
                    }
                    Value::Gauge(bits) => {
                        let value = f64::from_bits(bits.load(Ordering::Relaxed));
                        page.sample(name, labels, None, value);
                    }
                    Value::Histogram(buckets) => page.histogram(name, labels, buckets),
                }
            }
        }
    }

    /// Before anything that could panic the map is whole again.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Family>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, name: &KeyName, help: SharedString) {
        let mut families = self.lock();
        families.entry(name.as_str().to_owned()).or_default().help = help;
    }

    /// The series of that name and those labels, made if it is new.
    fn value(&self, key: &Key, new: impl FnOnce() -> Value) -> Value {
        let mut families = self.lock();
        if !families.contains_key(key.name()) {
            families.insert(key.name().to_owned(), Family::default());
        }
        let Some(family) = families.get_mut(key.name()) else {
            return new();
        };
        let is_same = |labels: &[Label]| labels.iter().eq(key.labels());
        let mut known = family.series.iter();
        if let Some((_, value)) = known.find(|(labels, _)| is_same(labels)) {
            return value.clone();
        }
        let value = new();
        let labels = key.labels().cloned().collect();
        family.series.push((labels, value.clone()));
        value
    }
}

/// The `metrics` crate's view. Units are not kept: a metric's name says its unit.
#[derive(Clone, Debug, Default)]
pub(super) struct Measuring(pub(super) Arc<Registry>);

impl Recorder for Measuring {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.0.describe(&name, help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.0.describe(&name, help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.0.describe(&name, help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.0.value(key, || Value::Counter(Arc::default())) {
            Value::Counter(count) => Counter::from_arc(count),
            // The name is another kind of metric already.
            Value::Gauge(_) | Value::Histogram(_) => Counter::noop(),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.0.value(key, || Value::Gauge(Arc::default())) {
            Value::Gauge(value) => Gauge::from_arc(value),
            Value::Counter(_) | Value::Histogram(_) => Gauge::noop(),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match self.0.value(key, || Value::Histogram(Arc::default())) {
            Value::Histogram(buckets) => Histogram::from_arc(buckets),
            Value::Counter(_) | Value::Gauge(_) => Histogram::noop(),
        }
    }
}

/// A page that is being written (prometheus.io, "Exposition formats").
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
}

impl Page {
    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Begins the series of one name. A help has no line break and no backslash, being ours.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        if !help.is_empty() {
            self.line(format_args!("# HELP {name} {help}"));
        }
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    /// One line. `le` is the upper bound of a bucket.
    pub(super) fn sample(
        &mut self,
        name: &str,
        labels: &[Label],
        le: Option<&dyn fmt::Display>,
        value: impl fmt::Display,
    ) {
        self.text.push_str(name);
        let mut mark = '{';
        for label in labels {
            self.text.push(mark);
            self.text.push_str(label.key());
            self.text.push_str("=\"");
            for c in label.value().chars() {
                match c {
                    '\\' | '"' => self.text.extend(['\\', c]),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
            mark = ',';
        }
        if let Some(le) = le {
            self.write(format_args!("{mark}le=\"{le}\""));
            mark = ',';
        }
        if mark == ',' {
            self.text.push('}');
        }
        self.line(format_args!(" {value}"));
    }

    fn histogram(&mut self, name: &str, labels: &[Label], buckets: &Buckets) {
        let bucket = format!("{name}_bucket");
        let mut count = 0;
        for (bound, in_bucket) in BOUNDS.iter().zip(&buckets.counts) {
            count += in_bucket.load(Ordering::Relaxed);
            self.sample(&bucket, labels, Some(bound), count);
        }
        count += buckets.above.load(Ordering::Relaxed);
        self.sample(&bucket, labels, Some(&"+Inf"), count);
        let sum = f64::from_bits(buckets.sum.load(Ordering::Relaxed));
        self.sample(&format!("{name}_sum"), labels, None, sum);
        self.sample(&format!("{name}_count"), labels, None, count);
    }

    fn line(&mut self, text: fmt::Arguments<'_>) {
        self.write(text);
        self.text.push('\n');
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        // Writing to memory does not fail.
        self.text.write_fmt(text).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `measure` measures, as a page.
    fn page(measure: impl FnOnce()) -> String {
        let recorder = Measuring::default();
        metrics::with_local_recorder(&recorder, measure);
        let mut page = Page::default();
        recorder.0.write(&mut page);
        page.into_text()
    }

    #[test]
    fn a_page_has_help_type_and_samples_by_name() {
        let text = page(|| {
            metrics::describe_gauge!("belay_b", "The second.");
            metrics::describe_counter!("belay_unused_total", "Never counted.");
            metrics::gauge!("belay_b").set(1.5);
            metrics::counter!("belay_a_total", "fs" => "xfs").increment(0);
            metrics::counter!("belay_a_total", "fs" => "ext4").increment(2);
            metrics::counter!("belay_a_total", "fs" => "ext4").increment(1);
        });
        let expected = "\
# TYPE belay_a_total counter
belay_a_total{fs=\"xfs\"} 0
belay_a_total{fs=\"ext4\"} 3
# HELP belay_b The second.
# TYPE belay_b gauge
belay_b 1.5
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_histogram_counts_each_value_at_and_above_its_bound() {
        let text = page(|| {
            let histogram = metrics::histogram!("belay_test_seconds", "rpc" => "a");
            for seconds in [0.000_02, 0.000_03, 0.5, 1000.0] {
                histogram.record(seconds);
            }
        });
        for sample in [
            "bucket{rpc=\"a\",le=\"0.00002\"} 1",
            "bucket{rpc=\"a\",le=\"0.00005\"} 2",
            "bucket{rpc=\"a\",le=\"0.2\"} 2",
            "bucket{rpc=\"a\",le=\"0.5\"} 3",
            "bucket{rpc=\"a\",le=\"600\"} 3",
            "bucket{rpc=\"a\",le=\"+Inf\"} 4",
            "sum{rpc=\"a\"} 1000.50005",
            "count{rpc=\"a\"} 4",
        ] {
            let line = format!("belay_test_seconds_{sample}\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
    }

    #[test]
    fn a_label_cannot_break_out_of_its_quotes() {
        let text = page(|| {
            let odd = "a\"} 1\n\\".to_owned();
            metrics::counter!("belay_odd_total", "name" => odd).increment(1);
        });
        let sample = "belay_odd_total{name=\"a\\\"} 1\\n\\\\\"} 1\n";
        assert!(text.ends_with(sample), "{text}");
    }

    #[test]
    fn a_name_stays_the_kind_of_metric_that_it_began_as() {
        let text = page(|| {
            metrics::counter!("belay_a_total").increment(1);
            metrics::gauge!("belay_a_total").set(7.0);
        });
        assert_eq!(text, "# TYPE belay_a_total counter\nbelay_a_total 1\n");
    }
}
