//! Metrics of backend methods ("verbs"): number, duration and outcome. The metrics are the same for
//! all backends.

use super::Answer;
use belay_server::call::{Failure, Kind};
use metrics::Unit;
use std::time::Instant;

const DURATION: &str = "belay_backend_duration_seconds";

macro_rules! verbs {
    ($($verb:ident = $name:literal),*) => {
        /// A method of a backend, as the value of the label `verb`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Verb { $($verb),* }

        impl Verb {
            fn name(self) -> &'static str {
                match self { $(Self::$verb => $name),* }
            }
        }
    };
}

verbs! {
    LogIn = "log_in", Create = "create", Claim = "claim", Delete = "delete", Find = "find",
    Get = "get", List = "list", Attach = "attach", Detach = "detach", Resize = "resize",
    Modify = "modify", Cut = "cut", Discard = "discard", Snapshot = "snapshot",
    ListSnapshots = "list_snapshots", Restore = "restore", Clone = "clone",
    Available = "available", Health = "health", Conditions = "conditions",
    ListUnhealthy = "list_unhealthy"
}

/// Registers the help text and unit of the histogram.
pub(super) fn describe() {
    metrics::describe_histogram!(
        DURATION,
        Unit::Seconds,
        "How long the verbs of the backend took, by how they ended."
    );
}

/// Records the duration of a backend method, from this call to the end of `answer`. If the method
/// is cancelled before its end, the call is not counted.
pub(super) fn measured<'a, T: 'a>(
    verb: Verb,
    answer: impl Future<Output = Result<T, Failure>> + Send + 'a,
) -> Answer<'a, T> {
    let begun = Instant::now();
    Box::pin(async move {
        let result = answer.await;
        let outcome = result.as_ref().map_or_else(|f| outcome(f.kind), |_| "ok");
        metrics::histogram!(DURATION, "verb" => verb.name(), "outcome" => outcome)
            .record(begun.elapsed());
        result
    })
}

/// Returns the value of the label `outcome` for a failure of this kind. Successful methods have the
/// value `ok`.
fn outcome(kind: Kind) -> &'static str {
    match kind {
        Kind::Invalid => "invalid",
        Kind::NotFound => "not_found",
        Kind::Incompatible => "incompatible",
        Kind::Busy => "busy",
        Kind::Precondition => "precondition",
        Kind::Range => "range",
        Kind::Quota => "quota",
        Kind::Unreachable => "unreachable",
        Kind::Unsupported => "unsupported",
        Kind::Timeout => "timeout",
        Kind::BadToken => "bad_token",
        Kind::Unauthenticated => "unauthenticated",
        Kind::Denied => "denied",
        Kind::System => "system",
        Kind::Bug => "bug",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The alerting rules use these words for outcomes.
    #[test]
    fn an_outcome_is_called_as_the_alerts_and_the_documentation_call_it() {
        let words = Kind::ALL.iter().map(|kind| outcome(*kind));
        assert_eq!(
            words.collect::<Vec<_>>(),
            [
                "invalid",
                "not_found",
                "incompatible",
                "busy",
                "precondition",
                "range",
                "quota",
                "unreachable",
                "unsupported",
                "timeout",
                "bad_token",
                "unauthenticated",
                "denied",
                "system",
                "bug",
            ]
        );
        let rules = include_str!("../../../deploy/monitoring/rules.yaml");
        for outcomes in [
            "=~\"unreachable|timeout|system|bug\"",
            "=~\"unauthenticated|denied\"",
            "=\"quota\"",
        ] {
            assert!(rules.contains(&format!("outcome{outcomes}}}")));
        }
        let fed = include_str!("../../../tests/monitoring/rules_test.yaml");
        for kind in Kind::ALL {
            let outcome = outcome(*kind);
            let series = format!("outcome=\"{outcome}\", pod=\"{outcome}\"");
            assert!(fed.contains(&series), "{series}: not fed to the rules");
        }
    }

    #[tokio::test]
    async fn a_verb_is_counted_by_its_name_and_how_it_ended() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let guard = metrics::set_default_local_recorder(&recorder);
        describe();
        measured(Verb::ListSnapshots, async { Ok(()) })
            .await
            .unwrap();
        let busy = measured::<()>(Verb::Attach, async { Err(Failure::busy("why")) });
        busy.await.unwrap_err();
        // A cancelled method is not counted.
        drop(measured(
            Verb::Create,
            std::future::pending::<Result<(), _>>(),
        ));
        drop(guard);
        let page = recorder.handle().render();
        assert!(
            page.contains("# HELP belay_backend_duration_seconds How"),
            "{page}"
        );
        let counts: Vec<_> = page
            .lines()
            .filter(|line| line.contains("_count{"))
            .collect();
        assert_eq!(counts.len(), 2, "{page}");
        for labels in [
            r#"{verb="list_snapshots",outcome="ok"} 1"#,
            r#"{verb="attach",outcome="busy"} 1"#,
        ] {
            assert!(counts.iter().any(|line| line.ends_with(labels)), "{page}");
        }
    }
}
