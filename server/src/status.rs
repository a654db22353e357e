//! The status page: one screen of static HTML for a browser, generated for each request. Changes
//! nothing.

use crate::call::Refusals;
use crate::facts::{AllFacts, Known};
use crate::kubelet::RegistrationView;
use crate::metrics::{self, Calls};
use crate::readiness::State;
use crate::size::Rounded;
use crate::work;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::{Duration, Instant};

/// The style sheet, which follows the browser's colour scheme and loads no resources from other
/// hosts.
const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:14px/1.4 system-ui,sans-serif;margin:1rem auto;max-width:75rem;padding:0 1rem}\
h1{font-size:1.3rem;margin:0}h2{font-size:1rem;margin:1.2rem 0 .3rem}p{margin:.3rem 0}\
table{border-collapse:collapse;width:100%}\
th,td{border-bottom:1px solid #8884;padding:.15rem .6rem .15rem 0;text-align:left;\
vertical-align:top}\
th{font-weight:600}td.n{white-space:nowrap}\
td.m{min-width:14rem;overflow-wrap:anywhere}\
td.m div{max-height:7em;overflow:auto;scrollbar-width:thin}.calls{font-size:12px}\
.w{overflow-x:auto}\
.calls td:nth-child(3),.calls td:nth-child(4),.calls td:nth-child(6){white-space:nowrap;\
max-width:14rem;overflow:hidden;text-overflow:ellipsis}\
.ok{color:#18794e;color:light-dark(#18794e,#3dd68c)}\
.bad{color:#cd2b31;color:light-dark(#cd2b31,#ff6369);font-weight:600}\
@media(max-width:40rem){tr{display:flex;flex-wrap:wrap;gap:0 .8rem;border-bottom:1px solid #8884}\
th,td,td.m{border:0;padding:0;min-width:0}}\
footer{margin-top:1.2rem;opacity:.75}";

/// The content of the status page.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    /// Name and version of the program.
    pub(crate) program: &'static str,
    /// The time at which the program began to serve.
    pub(crate) since: Instant,
    /// The drivers, in the order of their flags.
    pub(crate) drivers: Vec<Driver>,
    /// The facts about the drivers.
    pub(crate) facts: AllFacts,
    /// The last failed calls.
    pub(crate) refusals: Refusals,
}

/// A driver on the page.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    /// The name of the driver.
    pub(crate) name: String,
    /// The state of the driver's registration with the kubelet. `None` if this program does not
    /// register the driver with a kubelet.
    pub(crate) registered: Option<RegistrationView>,
}

impl Status {
    /// Returns the page with the current values. Does not wait.
    pub(crate) fn page(&self, readiness: &State) -> String {
        let mut page = String::new();
        // Writing to a String cannot fail.
        self.write(&mut page, readiness).unwrap_or_default();
        page
    }

    fn write(&self, page: &mut String, readiness: &State) -> fmt::Result {
        let host = rustix::system::uname();
        let (program, host) = (Escaped(self.program), host.nodename().to_string_lossy());
        let host = Escaped(&host);
        write!(
            page,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
             <title>{program} on {host}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
             <h1>{program} on {host}</h1>\n"
        )?;
        match readiness {
            State::Ready => page.push_str("<p class=\"ok\">Ready.</p>\n"),
            State::Starting(why) | State::Unhealthy(why) => {
                writeln!(page, "<p class=\"bad\">Not ready: {}</p>", Escaped(why))?;
            }
        }
        writeln!(page, "<p>Running for {}.</p>", Age(self.since.elapsed()))?;
        operations(page)?;
        self.write_drivers(page)?;
        self.write_volumes(page)?;
        write_calls(page, &metrics::calls())?;
        self.write_refusals(page)?;
        page.push_str("<footer>");
        for path in ["/jobs", "/metrics", "/readyz", "/livez", "/healthz"] {
            write!(page, "<a href=\"{path}\">{path}</a> ")?;
        }
        page.push_str("</footer>\n</body>\n</html>\n");
        Ok(())
    }

    fn write_drivers(&self, page: &mut String) -> fmt::Result {
        page.push_str(
            "<h2>Drivers</h2>\n<div class=\"w\"><table>\n\
             <tr><th>Driver<th>Registered<th>Volumes<th>Unhealthy<th>Storage\n",
        );
        for driver in &self.drivers {
            let registered = match &driver.registered {
                None => "<td>-",
                Some(registered) if registered.is() => "<td class=\"ok\">yes",
                Some(_) => "<td class=\"bad\">no",
            };
            let known = self.facts.of(&driver.name).unwrap_or_default();
            write!(page, "<tr><td>{}{registered}", Escaped(&driver.name))?;
            match known.volumes {
                Some(volumes) => write!(page, "<td>{volumes}")?,
                None => page.push_str("<td>-"),
            }
            unhealthy(page, &known)?;
            storage(page, &known)?;
            page.push('\n');
        }
        page.push_str("</table></div>\n");
        Ok(())
    }

    fn write_volumes(&self, page: &mut String) -> fmt::Result {
        for driver in &self.drivers {
            let shown = self.facts.shown(&driver.name);
            if shown.is_empty() {
                continue;
            }
            let all = self.facts.of(&driver.name).and_then(|known| known.volumes);
            let more = all.unwrap_or(0).saturating_sub(shown.len() as u64);
            writeln!(page, "<h2>Volumes of {}</h2>", Escaped(&driver.name))?;
            page.push_str(
                "<div class=\"w\"><table>\n<tr><th>Volume<th>Condition<th>Name or mounts\n",
            );
            for volume in shown {
                write!(page, "<tr><td class=\"m\">{}", Escaped(&volume.id))?;
                match volume.reasons.as_slice() {
                    [] => page.push_str("<td class=\"ok\">normal<td class=\"m\">"),
                    reasons => {
                        write!(
                            page,
                            "<td class=\"bad\">{}<td class=\"m\">",
                            reasons.join(", ")
                        )?;
                    }
                }
                for detail in volume.details {
                    write!(page, "{}<br>", Escaped(&detail))?;
                }
                page.push('\n');
            }
            page.push_str("</table></div>\n");
            if more > 0 {
                writeln!(page, "<p>And {more} more.</p>")?;
            }
        }
        Ok(())
    }

    fn write_refusals(&self, page: &mut String) -> fmt::Result {
        let refusals = self.refusals.list();
        if refusals.is_empty() {
            page.push_str("<h2>Failed calls</h2>\n<p>None since the start.</p>\n");
            return Ok(());
        }
        page.push_str(
            "<h2>Last failed calls</h2>\n<div class=\"w\"><table class=\"calls\">\n\
             <tr><th>Age<th>Times<th>Driver<th>Call<th>Volume<th>Code<th>Message\n",
        );
        for refusal in refusals {
            writeln!(
                page,
                "<tr><td class=\"n\">{}<td>{}<td>{}<td>{}<td>{}<td>{}<td class=\"m\"><div>{}</div>",
                Age(refusal.age()),
                refusal.times,
                Escaped(&refusal.driver),
                Escaped(&refusal.call),
                Escaped(&refusal.subject),
                refusal.code_name(),
                Escaped(&refusal.message)
            )?;
        }
        page.push_str("</table></div>\n");
        Ok(())
    }
}

fn write_calls(page: &mut String, calls: &BTreeMap<(String, String), Calls>) -> fmt::Result {
    if calls.is_empty() {
        return Ok(());
    }
    page.push_str(
        "<h2>Calls</h2>\n<div class=\"w\"><table>\n\
         <tr><th>Driver<th>Call<th>Succeeded<th>Failed<th>Half within<th>99 % within\n",
    );
    for ((driver, rpc), calls) in calls {
        let (driver, rpc) = (Escaped(driver), Escaped(rpc));
        let (succeeded, failed) = (calls.succeeded, calls.failed);
        write!(page, "<tr><td>{driver}<td>{rpc}<td>{succeeded}<td>{failed}")?;
        for share in [0.5, 0.99] {
            match calls.within(share) {
                Some(time) => write!(page, "<td class=\"n\">{time:?}")?,
                None => page.push_str("<td>-"),
            }
        }
        page.push('\n');
    }
    page.push_str("</table></div>\n");
    Ok(())
}

fn operations(page: &mut String) -> fmt::Result {
    let totals = work::totals();
    let class = if totals.hung > 0 { "bad" } else { "ok" };
    write!(
        page,
        "<p>Operations: {} in progress, <span class=\"{class}\">{} hung</span>",
        totals.running, totals.hung
    )?;
    match totals.running {
        0 => page.push_str(".</p>\n"),
        _ => writeln!(page, ", the oldest for {}.</p>", Age(totals.oldest))?,
    }
    Ok(())
}

fn unhealthy(page: &mut String, known: &Known) -> fmt::Result {
    let mut reasons = known.unhealthy.iter().filter(|(_, count)| **count > 0);
    let Some((reason, count)) = reasons.next() else {
        page.push_str("<td class=\"ok\">0");
        return Ok(());
    };
    write!(page, "<td class=\"bad\">{count} {reason}")?;
    for (reason, count) in reasons {
        write!(page, ", {count} {reason}")?;
    }
    Ok(())
}

fn storage(page: &mut String, known: &Known) -> fmt::Result {
    page.push_str(if known.storage.is_empty() {
        "<td>-"
    } else {
        "<td class=\"n\">"
    });
    for (at, (disk, space)) in known.storage.iter().enumerate() {
        let (free, size) = (Rounded(space.free_bytes), Rounded(space.size_bytes));
        page.push_str(if at > 0 { "<br>" } else { "" });
        let disk = if known.storage.len() > 1 {
            format!("{disk}: ")
        } else {
            String::new()
        };
        write!(page, "{disk}{free} of {size} free")?;
    }
    Ok(())
}

/// Text that is escaped when printed. Whatever the text contains, the result contains no markup,
/// cannot end an attribute, is on one line, and does not change the order of other characters.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if c.is_control() || is_directional(c) => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Whether a character changes the order of the characters around it (Unicode Standard Annex 9,
/// section 2).
fn is_directional(c: char) -> bool {
    let (marks, embeddings, isolates) = (
        ['\u{61c}', '\u{200e}', '\u{200f}'],
        '\u{202a}'..='\u{202e}',
        '\u{2066}'..='\u{2069}',
    );
    marks.contains(&c) || embeddings.contains(&c) || isolates.contains(&c)
}

/// The time since an event, printed in its largest unit.
struct Age(Duration);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0..120 => write!(f, "{seconds} s"),
            120..7200 => write!(f, "{} min", seconds / 60),
            7200..172_800 => write!(f, "{} h", seconds / 3600),
            _ => write!(f, "{} d", seconds / 86_400),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Refusal;
    use crate::facts::{Facts, Measuring, Shown};
    use std::sync::Arc;
    use tonic::Code;

    fn status() -> Status {
        Status {
            program: "belay-test 1.2.3",
            since: Instant::now(),
            drivers: vec![Driver {
                name: "test.csi.belay.dev".to_owned(),
                registered: None,
            }],
            facts: AllFacts::default(),
            refusals: Refusals::default(),
        }
    }

    #[test]
    fn a_program_without_trouble_has_a_short_page() {
        let page = status().page(&State::Ready);
        assert!(page.starts_with("<!DOCTYPE html>\n"), "{page}");
        assert!(page.ends_with("</html>\n"), "{page}");
        for part in [
            "<h1>belay-test 1.2.3 on ",
            "Ready.",
            "Running for 0 s.",
            "<a href=\"/jobs\">",
            "<td>test.csi.belay.dev<td>-<td>-",
            "None since the start.",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!page.contains("<script"), "{page}");
    }

    #[test]
    fn what_callers_and_storage_say_is_shown_as_text() {
        let hostile = "</td><script>alert('x')</script>&\"\u{202e}\u{7}";
        let status = status();
        let driver = Arc::from("test.csi.belay.dev");
        let refusal = Refusal::new(&driver, hostile, hostile, Code::NotFound, hostile);
        status.refusals.add(refusal);
        let page = status.page(&State::Unhealthy(hostile.to_owned()));
        let text = "&lt;/td&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;\
                    \u{fffd}\u{fffd}";
        assert_eq!(page.matches(text).count(), 4, "{page}");
        assert!(!page.contains("<script"), "{page}");
        assert!(page.contains("NOT_FOUND"), "{page}");
    }

    /// Facts about more volumes than are shown.
    struct Volumes;

    impl Facts for Volumes {
        fn reasons(&self) -> Vec<&'static str> {
            Vec::new()
        }

        fn known(&self) -> Known {
            Known {
                volumes: Some(9),
                ..Known::default()
            }
        }

        fn shown(&self) -> Vec<Shown> {
            let shown = |id: &str, reasons: &[&'static str]| Shown {
                id: id.to_owned(),
                reasons: reasons.to_vec(),
                details: vec!["/pods/<x>".to_owned(), "7:1".to_owned()],
            };
            vec![shown("vol-1", &["A", "B"]), shown("vol-2", &[])]
        }

        fn measure(self: Arc<Self>) -> Measuring {
            Box::pin(async {})
        }
    }

    #[test]
    fn volumes_are_listed_with_their_conditions_and_the_rest_is_counted() {
        let driver = "test.csi.belay.dev".to_owned();
        let status = Status {
            facts: AllFacts::new(vec![(driver, Arc::new(Volumes))]),
            ..status()
        };
        let page = status.page(&State::Ready);
        for part in [
            "<h2>Volumes of test.csi.belay.dev</h2>",
            "<td class=\"m\">vol-1<td class=\"bad\">A, B<td class=\"m\">/pods/&lt;x&gt;<br>7:1<br>",
            "<td class=\"m\">vol-2<td class=\"ok\">normal<td",
            "<p>And 7 more.</p>",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
    }

    #[test]
    fn conditions_and_free_space_are_named() {
        let space = crate::facts::Space {
            free_bytes: 3 << 29,
            size_bytes: 100 << 30,
        };
        let known = Known {
            unhealthy: [("BackingFileGone", 2), ("DeviceErrors", 0), ("Other", 1)].into(),
            storage: ["default", "fast"]
                .map(|disk| (disk.to_owned(), space))
                .into(),
            ..Known::default()
        };
        let mut cells = String::new();
        unhealthy(&mut cells, &known).unwrap();
        storage(&mut cells, &known).unwrap();
        let expected = "<td class=\"bad\">2 BackingFileGone, 1 Other\
                        <td class=\"n\">default: 1.5 GiB of 100 GiB free<br>\
                        fast: 1.5 GiB of 100 GiB free";
        assert_eq!(cells, expected);
    }

    #[test]
    fn markup_and_characters_that_hide_others_are_shown_as_text() {
        for (text, shown) in [
            ("vol-1", "vol-1"),
            ("", ""),
            ("é日本", "é日本"),
            ("<b a='\">&", "&lt;b a=&#39;&quot;&gt;&amp;"),
            ("a\nb\u{1b}[2J", "a\u{fffd}b\u{fffd}[2J"),
            ("\u{202e}dev\u{2069}\u{200f}", "\u{fffd}dev\u{fffd}\u{fffd}"),
        ] {
            assert_eq!(Escaped(text).to_string(), shown);
        }
    }

    #[test]
    fn ages_and_sizes_have_the_unit_that_a_person_would_use() {
        for (seconds, shown) in [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7199, "119 min"),
            (7200, "2 h"),
            (172_800, "2 d"),
        ] {
            assert_eq!(Age(Duration::from_secs(seconds)).to_string(), shown);
        }
    }
}
