//! Reads lists page by page. A CSI token is a position in the list; this module converts it to the
//! page numbers of the API.

use super::client::PAGE_ENTRIES_MAX;
use belay_server::call::{Failure, Kind};

/// A range of consecutive entries of a list. The range is on one or two pages of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    first: usize,
    /// The maximum number of entries of the range, and the size of the API's pages.
    pub(super) entries: usize,
}

impl Slice {
    /// Selects at most `limit` entries, from the position in the token.
    ///
    /// # Errors
    /// Returns `BadToken` for a token that is not a number.
    pub(super) fn new(token: Option<&str>, limit: usize) -> Result<Self, Failure> {
        let first = token.map_or(Ok(0), str::parse).map_err(|_| {
            let token = token.unwrap_or_default();
            let message = format!("starting_token {token:?}: begin again at the first page");
            Failure::new(Kind::BadToken, message)
        })?;
        let entries = limit.clamp(1, PAGE_ENTRIES_MAX);
        Ok(Self { first, entries })
    }

    /// Returns the numbers of the pages that contain the range. The first page has the number 1.
    pub(super) fn pages(self) -> impl Iterator<Item = usize> {
        let page = self.first / self.entries + 1;
        let last = match self.first.is_multiple_of(self.entries) {
            true => page,
            false => page.saturating_add(1),
        };
        page..=last
    }

    /// Returns the entries of the range from the pages that [`Self::pages`] selects, and the token
    /// of the next range. `has_more` states whether the list continues after these pages.
    pub(super) fn of_pages<T>(self, read: Vec<T>, has_more: bool) -> (Vec<T>, Option<String>) {
        let skipped = self.first % self.entries;
        let rest = read.len().saturating_sub(skipped + self.entries);
        self.cut(read, skipped, has_more || rest > 0)
    }

    /// Returns the entries of the range from the complete list, and the token of the next range.
    pub(super) fn of_all<T>(self, all: Vec<T>) -> (Vec<T>, Option<String>) {
        let rest = all.len().saturating_sub(self.first + self.entries);
        self.cut(all, self.first, rest > 0)
    }

    fn cut<T>(self, from: Vec<T>, skipped: usize, has_more: bool) -> (Vec<T>, Option<String>) {
        let part: Vec<_> = from.into_iter().skip(skipped).take(self.entries).collect();
        let end = self.first + part.len();
        (part, has_more.then(|| end.to_string()))
    }
}

/// Reads pages, up to the last page of the list. Returns the entries of the pages, and whether the
/// list continues.
///
/// # Errors
/// Returns the errors of `get`, which reads one page and returns whether another page follows.
pub(super) async fn read<T, F>(
    pages: impl Iterator<Item = usize>,
    get: impl Fn(usize) -> F,
) -> Result<(Vec<T>, bool), Failure>
where
    F: Future<Output = Result<(Vec<T>, bool), Failure>>,
{
    let (mut read, mut has_more) = (Vec::new(), true);
    for page in pages {
        let found;
        (found, has_more) = get(page).await?;
        read.extend(found);
        if !has_more {
            break;
        }
    }
    Ok((read, has_more))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a page of a list, and whether another page follows, as the API does.
    fn page(all: &[usize], page: usize, entries: usize) -> (Vec<usize>, bool) {
        let from = ((page - 1) * entries).min(all.len());
        let to = (from + entries).min(all.len());
        (all[from..to].to_vec(), to < all.len())
    }

    #[tokio::test]
    async fn every_entry_is_on_one_page_and_each_page_is_full_whatever_the_limits() {
        let all: Vec<usize> = (0..500).collect();
        for limits in [
            [3, 3, 3, 3],
            [7, 2, 5, 1],
            [200, 1, 1000, 6],
            [2, 1000, 2, 3],
        ] {
            let (mut seen, mut token, mut limits) = (Vec::new(), None::<String>, limits.iter());
            while seen.len() < all.len() {
                let limit = *limits.next().unwrap_or(&1000);
                let slice = Slice::new(token.as_deref(), limit).unwrap();
                let get = async |at| Ok(page(&all, at, slice.entries));
                let (found, has_more) = read(slice.pages(), get).await.unwrap();
                let (part, next) = slice.of_pages(found, has_more);
                let full = limit.min(PAGE_ENTRIES_MAX).min(all.len() - seen.len());
                assert_eq!(part.len(), full);
                seen.extend(part);
                assert_eq!(next.is_some(), seen.len() < all.len());
                token = next;
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
        let of_all = |token| slice(token).of_all(vec![1, 2, 3]);
        assert_eq!(of_all(None), (vec![1, 2], Some("2".to_owned())));
        assert_eq!(of_all(Some("2")), (vec![3], None));
        assert_eq!(of_all(Some("4")), (vec![], None));
    }
}
