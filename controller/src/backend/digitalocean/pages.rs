//! Pages of the API, which are counted, by a token that counts entries.

use super::client::PAGE_ENTRIES_MAX;
use belay_server::call::{Failure, Kind};

/// The page of the API that begins at an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    first: usize,
    /// From 1.
    pub(super) page: usize,
    /// Of each page.
    pub(super) entries: usize,
}

impl Slice {
    /// With at most `limit` entries, from the one that the token counts.
    ///
    /// # Errors
    /// `BadToken`.
    pub(super) fn new(token: Option<&str>, limit: usize) -> Result<Self, Failure> {
        let first = token.map_or(Ok(0), str::parse).map_err(|_| {
            let token = token.unwrap_or_default();
            let message = format!("starting_token {token:?}: begin again at the first page");
            Failure::new(Kind::BadToken, message)
        })?;
        let most = limit.clamp(1, PAGE_ENTRIES_MAX);
        // Pages of one size begin at its multiples.
        let fitting = (1..=most).rev().find(|size| first % size == 0);
        let entries = fitting.unwrap_or(1);
        Ok(Self {
            first,
            page: first / entries + 1,
            entries,
        })
    }

    /// The token of what follows so many entries of it.
    pub(super) fn next(self, entries: usize) -> String {
        (self.first + entries).to_string()
    }

    /// That part of a list which was read as a whole, and the token of what follows.
    pub(super) fn of<T>(self, all: Vec<T>) -> (Vec<T>, Option<String>) {
        let total = all.len();
        let part: Vec<_> = all
            .into_iter()
            .skip(self.first)
            .take(self.entries)
            .collect();
        let end = self.first + part.len();
        (part, (end < total).then(|| end.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_on_one_page_whatever_the_limits() {
        for limits in [[3, 3, 3, 3], [7, 2, 5, 1], [200, 1, 1000, 6], [1, 1, 2, 3]] {
            let all: Vec<usize> = (0..500).collect();
            let (mut seen, mut token, mut limits): (Vec<usize>, _, _) =
                (Vec::new(), None::<String>, limits.iter().cycle());
            loop {
                let limit = *limits.next().unwrap();
                let slice = Slice::new(token.as_deref(), limit).unwrap();
                assert!(slice.entries <= limit);
                let from = (slice.page - 1) * slice.entries;
                let page = &all[from..all.len().min(from + slice.entries)];
                seen.extend(page);
                if seen.len() == all.len() {
                    break;
                }
                token = Some(slice.next(page.len()));
            }
            assert_eq!(seen, all);
        }
    }

    #[test]
    fn a_token_of_no_page_is_refused() {
        for token in ["", "x", "-1", "99999999999999999999999"] {
            let failure = Slice::new(Some(token), 1).unwrap_err();
            assert_eq!(failure.kind, Kind::BadToken);
        }
    }

    #[test]
    fn a_whole_list_is_cut_at_the_token() {
        let slice = |token| Slice::new(token, 2).unwrap();
        assert_eq!(
            slice(None).of(vec![1, 2, 3]),
            (vec![1, 2], Some("2".into()))
        );
        assert_eq!(slice(Some("2")).of(vec![1, 2, 3]), (vec![3], None));
        assert_eq!(slice(Some("4")).of(vec![1, 2, 3]), (vec![], None));
    }
}
