//! Reads the pages of a list.

use crate::failure::Failure;

/// The entries of all pages.
///
/// # Errors
/// A page cannot be read, or names itself as the next page, which would never end.
pub(crate) async fn all<T>(
    mut page: impl AsyncFnMut(String) -> Result<(Vec<T>, String), Failure>,
) -> Result<Vec<T>, Failure> {
    let mut entries = Vec::new();
    let mut token = String::new();
    loop {
        let (more, next) = page(token.clone()).await?;
        entries.extend(more);
        if next.is_empty() {
            return Ok(entries);
        }
        if next == token {
            return Err(Failure::Answer("names the same page as the next one"));
        }
        token = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Page `n` has the entry `n` and the next page that `next` returns.
    async fn listed(next: impl Fn(&str) -> &'static str) -> Result<Vec<String>, Failure> {
        all(async |token: String| {
            let after = next(&token).to_owned();
            Ok((vec![token], after))
        })
        .await
    }

    #[tokio::test]
    async fn all_pages_are_read_in_their_order() {
        let next = |token: &str| match token {
            "" => "2",
            "2" => "3",
            _ => "",
        };
        assert_eq!(listed(next).await.unwrap(), ["", "2", "3"]);
    }

    #[tokio::test]
    async fn a_page_that_follows_itself_is_refused() {
        assert!(matches!(listed(|_| "2").await, Err(Failure::Answer(_))));
    }
}
