//! The HTTP pages of a Belay program, each fetched by one HTTP/1.1 request, and a parser for its
//! metrics (prometheus.io, "Text-based format").

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The timeout for connecting, and for each read. A program responds at once, or within a quarter
/// of a second if it waits for the storage.
const PATIENCE: Duration = Duration::from_secs(2);
const BYTES_MAX: u64 = 8 << 20;

/// A sample of a metric.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// The metrics of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Page(Vec<Sample>);

/// Fetches /metrics.
///
/// # Errors
/// Fails if no program responds in time, or if the program has no such page.
pub(crate) fn metrics(address: SocketAddr) -> io::Result<Page> {
    Ok(Page::parse(&get(address, "/metrics")?))
}

/// Fetches a page.
///
/// # Errors
/// Fails if no program responds in time, or if the program has no such page.
pub(crate) fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    match fetch(address, path)? {
        (200, body) => Ok(body),
        _ => Err(io::Error::other("no such page")),
    }
}

/// Returns the reason why a program is not ready; `None` if it is ready or does not respond.
pub(crate) fn not_ready(address: SocketAddr) -> Option<String> {
    match fetch(address, "/readyz").ok()? {
        (503, body) => Some(body.trim().replace('\n', "; ")),
        _ => None,
    }
}

/// Returns the status code and the body of a page.
fn fetch(address: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(BYTES_MAX).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|it| it.get(..3));
    let status = status.and_then(|it| it.parse().ok());
    match (status, answer.split_once("\r\n\r\n")) {
        (Some(status), Some((_, body))) => Ok((status, body.to_owned())),
        _ => Err(io::Error::other("the answer is not HTTP/1.1")),
    }
}

impl Page {
    /// Parses a metrics page. Skips lines that are not samples.
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self(lines.filter_map(sample).collect())
    }

    /// Returns the sum of a metric over all series with this label; `None` if there are no such
    /// series.
    pub(crate) fn sum(&self, name: &str, label: Option<(&str, &str)>) -> Option<f64> {
        let mut values = self.of(name, label).map(|sample| sample.value).peekable();
        values.peek()?;
        Some(values.sum())
    }

    /// Returns all series of a metric with this label.
    pub(crate) fn of<'a>(
        &'a self,
        name: &'a str,
        label: Option<(&'a str, &'a str)>,
    ) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| {
            let has = |(key, value)| sample.labels.get(key).is_some_and(|it| it == value);
            sample.name == name && label.is_none_or(has)
        })
    }

    /// Returns the cumulative buckets of a histogram, summed over all series with this label: upper
    /// bounds in ascending order, each with the number of observations up to it.
    pub(crate) fn histogram(&self, name: &str, label: (&str, &str)) -> Vec<(f64, f64)> {
        let name = format!("{name}_bucket");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for sample in self.of(&name, Some(label)) {
            let bound = sample.labels.get("le").map(|bound| match bound.as_str() {
                "+Inf" => Ok(f64::INFINITY),
                finite => finite.parse(),
            });
            let Some(Ok(bound)) = bound else { continue };
            match buckets
                .iter_mut()
                .find(|(known, _)| known.total_cmp(&bound).is_eq())
            {
                Some((_, count)) => *count += sample.value,
                None => buckets.push((bound, sample.value)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets
    }
}

/// Converts the value of a counter or gauge to an integer. The values are far below 2^53, up to
/// which an f64 is exact.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`as` saturates, which is what is shown"
)]
pub(crate) fn whole(value: f64) -> i64 {
    value as i64
}

/// Returns the upper bound of the histogram bucket that contains a quantile; `None` if there are no
/// observations.
pub(crate) fn quantile(buckets: &[(f64, f64)], quantile: f64) -> Option<f64> {
    let (_, all) = *buckets.last()?;
    if all <= 0.0 {
        return None;
    }
    let found = buckets.iter().find(|(_, count)| *count >= all * quantile);
    found.map(|(bound, _)| *bound)
}

fn sample(line: &str) -> Option<Sample> {
    let (key, value) = line.rsplit_once(' ')?;
    let (name, labels) = match key.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (key, ""),
    };
    let mut found = BTreeMap::new();
    let mut rest = labels;
    while let Some((label, after)) = rest.split_once("=\"") {
        // A label value with an escaped quote would be cut at that quote; Belay's metrics have no
        // such values.
        let (value, after) = after.split_once('"')?;
        found.insert(label.trim_start_matches(',').to_owned(), value.to_owned());
        rest = after;
    }
    Some(Sample {
        name: name.to_owned(),
        labels: found,
        value: value.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# TYPE d histogram
d_bucket{driver=\"a\",rpc=\"X\",le=\"0.1\"} 8
d_bucket{driver=\"a\",rpc=\"X\",le=\"+Inf\"} 10
d_bucket{driver=\"a\",rpc=\"Y\",le=\"0.1\"} 1
d_bucket{driver=\"a\",rpc=\"Y\",le=\"+Inf\"} 1
d_bucket{driver=\"b\",le=\"+Inf\"} 7
jobs 3
";

    #[test]
    fn series_are_added_by_label() {
        let page = Page::parse(PAGE);
        assert_eq!(page.sum("jobs", None), Some(3.0));
        assert_eq!(page.sum("jobs", Some(("driver", "a"))), None);
        let all = page.histogram("d", ("driver", "a"));
        assert_eq!(all, [(0.1, 9.0), (f64::INFINITY, 11.0)]);
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let buckets = [(0.1, 9.0), (1.0, 10.0), (f64::INFINITY, 10.0)];
        assert_eq!(quantile(&buckets, 0.5), Some(0.1));
        assert_eq!(quantile(&buckets, 0.99), Some(1.0));
        assert_eq!(quantile(&[(1.0, 0.0)], 0.5), None);
        assert_eq!(quantile(&[], 0.5), None);
    }
}
