//! Selects the disk of a new volume. Makes no calls.

use belay_contract::drivers::local::SILENT;
use belay_contract::topology::Topology;
use belay_server::request::{Segments, TopologyRequirement};
use belay_server::size::Rounded;
use std::cmp::Reverse;
use std::fmt;

/// Maximum number of disks that a message describes.
const SHOWN_MAX: usize = 5;

/// A disk that may have the new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) place: String,
    pub(super) node: String,
    /// The number of bytes that are free, or the reason why the disk is not used.
    pub(super) room: Result<u64, Unusable>,
    /// Whether the store has not accepted an order in time, so the disk gets no orders for now.
    pub(super) is_late: bool,
}

impl Offer {
    /// Whether the disk has room for `bytes`.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.room.as_ref().is_ok_and(|room| *room >= bytes)
    }
}

/// The description of a disk whose store is late.
pub(super) const LATE: &str = "its store has not accepted an order yet";

/// The reason why a disk is not used for new volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// The store has not reported for too long.
    Silent,
    /// The store has not accepted an order, and has not reported since.
    Withdrawn,
    /// The filesystem refuses writes.
    ReadOnly,
    /// The store does not serve the disk.
    Problem(String),
    /// The store has refused the order of this call.
    Refused(String),
    /// The Node gets no new pods.
    Cordoned,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silent => SILENT,
            Self::Withdrawn => "its store has not accepted an order, and has not reported since",
            Self::ReadOnly => "the filesystem is read-only",
            Self::Problem(why) | Self::Refused(why) => why,
            Self::Cordoned => "its Node is cordoned",
        })
    }
}

/// Returns the places at which the request allows the volume, in order of preference.
pub(super) fn places(
    key: &str,
    asked: Option<&TopologyRequirement>,
    offers: &[Offer],
) -> Vec<String> {
    let named = |all: &[Segments]| -> Vec<String> {
        all.iter().filter_map(|it| it.get(key).cloned()).collect()
    };
    let (preferred, mut requisite) = match asked {
        Some(asked) => (named(&asked.preferred), named(&asked.requisite)),
        None => (Vec::new(), Vec::new()),
    };
    requisite.sort();
    let mut places = [preferred, requisite].concat();
    if places.is_empty() {
        let mut all: Vec<_> = offers.iter().collect();
        all.sort_by_key(|offer| (Reverse(offer.room.clone().unwrap_or(0)), &offer.place));
        places = all.into_iter().map(|offer| offer.place.clone()).collect();
    }
    let mut allowed = Vec::new();
    for place in places {
        if !allowed.contains(&place) && is_allowed(key, asked, &place) {
            allowed.push(place);
        }
    }
    allowed
}

/// Whether the request allows a volume at this place.
pub(super) fn is_allowed(key: &str, asked: Option<&TopologyRequirement>, place: &str) -> bool {
    let here = Topology::new(key, place);
    here.is_ok_and(|here| asked.is_none_or(|asked| here.satisfies(asked)))
}

/// Returns the first disk with room for `bytes` at one of these places. If there is none, returns
/// the reasons.
pub(super) fn choose<'a>(
    places: &[String],
    offers: &'a [Offer],
    bytes: u64,
) -> Result<&'a Offer, String> {
    let mut reasons = Vec::new();
    for place in places {
        let here = || offers.iter().filter(|offer| offer.place == *place);
        if let Some(offer) = here().find(|offer| offer.fits(bytes) && !offer.is_late) {
            return Ok(offer);
        }
        reasons.push(match here().next() {
            None => format!("{place}: no such disk"),
            Some(late) if late.fits(bytes) => format!("{place}: {LATE}"),
            Some(other) => match &other.room {
                Ok(room) => format!("{place}: {} free", Rounded(*room)),
                Err(why) => format!("{place}: {why}"),
            },
        });
    }
    let more = reasons.len().saturating_sub(SHOWN_MAX);
    reasons.truncate(SHOWN_MAX);
    if more > 0 {
        reasons.push(format!("and {more} more"));
    }
    match reasons.is_empty() {
        true => Err("no node in the requested topology has the disk".to_owned()),
        false => Err(reasons.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "key";

    fn offer(place: &str, room: Result<u64, Unusable>) -> Offer {
        Offer {
            place: place.to_owned(),
            node: format!("{place}.example"),
            room,
            is_late: false,
        }
    }

    fn offers() -> Vec<Offer> {
        vec![
            offer("a", Ok(1 << 20)),
            offer("b", Ok(3 << 20)),
            offer("c", Ok(2 << 20)),
            offer("d", Err(Unusable::Silent)),
            offer("e", Err(Unusable::Problem("not mounted".to_owned()))),
        ]
    }

    fn topologies(places: &[&str]) -> Vec<Segments> {
        let topology = |place: &&str| Segments::from([(KEY.to_owned(), (*place).to_owned())]);
        places.iter().map(topology).collect()
    }

    fn asked(preferred: &[&str], requisite: &[&str]) -> TopologyRequirement {
        TopologyRequirement {
            requisite: topologies(requisite),
            preferred: topologies(preferred),
        }
    }

    #[test]
    fn preferred_places_come_first_then_required_ones_and_else_those_with_most_room() {
        let elsewhere = vec![Segments::from([("zone".to_owned(), "z".to_owned())])];
        let zoned = TopologyRequirement {
            requisite: elsewhere.clone(),
            preferred: elsewhere,
        };
        for (asked, expected) in [
            (None, "b c a d e"),
            (Some(zoned), "b c a d e"),
            (Some(asked(&["c", "a"], &[])), "c a"),
            (Some(asked(&["c", "x"], &["e", "c", "a"])), "c a e"),
            (Some(asked(&[], &["e", "a"])), "a e"),
            (Some(asked(&["b"], &["a"])), "a"),
        ] {
            let places = places(KEY, asked.as_ref(), &offers());
            assert_eq!(places.join(" "), expected, "{asked:?}");
        }
    }

    #[test]
    fn the_first_disk_with_room_is_chosen_and_others_have_their_reasons() {
        let chosen = |places: &str, bytes: u64| {
            let places: Vec<_> = places.split_whitespace().map(str::to_owned).collect();
            choose(&places, &offers(), bytes).map(|offer| offer.node.clone())
        };
        assert_eq!(chosen("d e a b c", 1 << 20).unwrap(), "a.example");
        assert_eq!(chosen("d a c b", 2 << 20).unwrap(), "c.example");
        let why = chosen("d e a x", 2 << 20).unwrap_err();
        assert_eq!(
            why,
            "d: its store does not report; e: not mounted; a: 1 MiB free; x: no such disk"
        );
        let why = chosen("a b c d e x y", 4 << 20).unwrap_err();
        assert!(why.ends_with("; and 2 more"), "{why}");
        assert!(chosen("", 1).unwrap_err().contains("no node"));
    }
}
