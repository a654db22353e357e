//! The account that owns the volumes of a controller. With credentials of another account, all
//! volumes would seem to be missing: DeleteVolume would succeed, and CreateVolume would create a
//! second volume. Therefore changed credentials are used without a restart only if they belong to
//! the same account. A 401 from a proxy does not show whether credentials are valid.

use belay_server::call::Failure;
use belay_server::lock::Lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The account to which credentials belong, and whose volumes they give access to.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::backend) enum Identity {
    /// The name of the account, such as `team 1234`.
    Known(String),
    /// The account is unknown, since the credentials do not permit the query. Contains a
    /// description of the account, with the reason.
    Hidden(&'static str),
}

impl Identity {
    fn name(&self) -> &str {
        match self {
            Identity::Known(name) => name,
            Identity::Hidden(words) => words,
        }
    }
}

/// Guards the controller's volumes against credentials of another account.
pub(in crate::backend) struct Guard {
    /// The setting that contains the credentials, for messages.
    setting: &'static str,
    /// The account that owns the volumes. `None` if the account is not yet known.
    identity: Lock<Option<Identity>>,
}

impl Guard {
    /// Creates a guard against credentials of another account. `identity` is `None` if the account
    /// becomes known only with the first credentials.
    pub(in crate::backend) fn new(setting: &'static str, identity: Option<Identity>) -> Self {
        let identity = Lock::new(identity);
        Self { setting, identity }
    }

    /// Compares the account of credentials with the account that owns the volumes. Records the
    /// account of the credentials if the owning account is not yet known.
    ///
    /// # Errors
    /// Returns `Precondition` if the accounts differ, or may differ.
    pub(in crate::backend) fn check(&self, identity: Identity) -> Result<(), Failure> {
        let (setting, name) = (self.setting, identity.name());
        let mut known = self.identity.lock();
        match (&*known, &identity) {
            (Some(Identity::Known(first)), _) if first == name => return Ok(()),
            (Some(Identity::Known(first)), _) => {
                return Err(Failure::precondition(format!(
                    "{setting}: the credentials are of {name}, and are not used: this controller \
                     has the volumes of {first}; restart it after a change of account"
                )));
            }
            (None, Identity::Known(_)) | (Some(Identity::Hidden(_)), Identity::Hidden(_)) => {}
            (None, Identity::Hidden(_)) | (Some(Identity::Hidden(_)), Identity::Known(_)) => {
                tracing::warn!(
                    "{setting}: the credentials are of {name}, which cannot be compared; make sure \
                     that the driver's volumes are there: with credentials of another account, all \
                     volumes would seem to be missing"
                );
            }
        }
        *known = Some(identity);
        Ok(())
    }

    /// Records that the account cannot be determined, since the cloud refuses the first
    /// credentials.
    fn hide(&self) {
        let mut known = self.identity.lock();
        if known.is_none() {
            tracing::warn!(
                "{}: the first credentials were refused before their account was known, so that \
                 later ones cannot be compared with them; make sure that the driver's volumes are \
                 there",
                self.setting
            );
            *known = Some(Identity::Hidden("an unknown account"));
        }
    }
}

/// A cloud that reports the account to which credentials belong.
pub(in crate::backend) trait Login: Sync {
    /// The type of the credentials.
    type Key: Clone + PartialEq + Send + Sync + 'static;

    /// Returns the account to which the credentials belong. The inner error is the cloud's refusal
    /// of the credentials; the outer error means that the query failed.
    fn identity(
        &self,
        key: &Self::Key,
    ) -> impl Future<Output = Result<Result<Identity, Failure>, Failure>> + Send;
}

/// A function that reads the credentials. The function blocks the calling thread.
type Read<K> = dyn Fn() -> Result<K, Failure> + Send + Sync;

/// Credentials that may be replaced while the controller runs.
pub(in crate::backend) struct Account<K> {
    read: Arc<Read<K>>,
    key: Lock<K>,
    guard: Guard,
    /// Whether the cloud has accepted credentials of the account.
    is_confirmed: AtomicBool,
}

impl<K: Clone + PartialEq + Send + Sync + 'static> Account<K> {
    /// Reads the first credentials. Blocks the calling thread.
    ///
    /// # Errors
    /// Returns the errors of `read`.
    pub(in crate::backend) fn open(
        guard: Guard,
        read: impl Fn() -> Result<K, Failure> + Send + Sync + 'static,
    ) -> Result<Self, Failure> {
        Ok(Self {
            key: Lock::new(read()?),
            read: Arc::new(read),
            guard,
            is_confirmed: AtomicBool::new(false),
        })
    }

    /// Returns the credentials in use.
    pub(in crate::backend) fn key(&self) -> K {
        self.key.lock().clone()
    }

    /// Makes sure that the cloud has once accepted the credentials, and has reported their account
    /// if the credentials permit the query.
    ///
    /// # Errors
    /// Returns the cloud's refusal, and the errors of the query and of [`Guard::check`].
    pub(in crate::backend) async fn confirm<L>(&self, cloud: &L) -> Result<(), Failure>
    where
        L: Login<Key = K>,
    {
        if self.is_confirmed.load(Ordering::Acquire) {
            return Ok(());
        }
        let key = self.key();
        let identity = cloud.identity(&key).await?;
        if let Err(refused) = identity.and_then(|identity| self.guard.check(identity)) {
            self.newer(cloud, &key).await?.ok_or(refused)?;
        }
        self.is_confirmed.store(true, Ordering::Release);
        Ok(())
    }

    /// Reads the credentials again, and uses the new credentials for all further calls. Returns
    /// `None` if the credentials cannot be read, or are still the refused credentials.
    ///
    /// # Errors
    /// Returns the cloud's refusal, and the errors of the query and of [`Guard::check`].
    pub(in crate::backend) async fn newer<L>(
        &self,
        cloud: &L,
        refused: &K,
    ) -> Result<Option<K>, Failure>
    where
        L: Login<Key = K>,
    {
        let read = Arc::clone(&self.read);
        let read = tokio::task::spawn_blocking(move || read()).await;
        let Ok(Ok(new)) = read.inspect(|read| {
            if let Err(failure) = read {
                tracing::warn!(%failure, "the credentials were refused, and no others can be read");
            }
        }) else {
            return Ok(None);
        };
        if new == *refused {
            return Ok(None);
        }
        if new == self.key() {
            return Ok(Some(new));
        }
        let is_unknown = self.guard.identity.lock().is_none();
        if is_unknown {
            // The cloud, or a proxy, may have refused only this call, and not the credentials.
            match cloud.identity(refused).await? {
                Ok(identity) => self.guard.check(identity)?,
                Err(_) => self.guard.hide(),
            }
        }
        self.guard.check(cloud.identity(&new).await??)?;
        *self.key.lock() = new.clone();
        Ok(Some(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Kind;

    /// A simulated cloud. The first letter of a key is its account, except that `h` hides the
    /// account, `r` is refused, and `p` is stopped by a proxy.
    struct Cloud;

    impl Login for Cloud {
        type Key = &'static str;

        async fn identity(&self, key: &&'static str) -> Result<Result<Identity, Failure>, Failure> {
            match &key[..1] {
                "h" => Ok(Ok(Identity::Hidden("an unknown account (no scope)"))),
                "r" => Ok(Err(Failure::new(Kind::Unauthenticated, "refused"))),
                "p" => Err(Failure::new(Kind::Unreachable, "a proxy")),
                account => Ok(Ok(Identity::Known(account.to_owned()))),
            }
        }
    }

    /// Returns an account with the first key, and the simulated file that contains its key.
    fn account(first: &'static str) -> (Account<&'static str>, Arc<Lock<&'static str>>) {
        let file = Arc::new(Lock::new(first));
        let read = Arc::clone(&file);
        let account = Account::open(Guard::new("--key", None), move || Ok(*read.lock()));
        (account.unwrap(), file)
    }

    #[tokio::test]
    async fn a_new_key_is_used_unless_it_is_refused_or_may_be_of_another_account() {
        for (first, new, refusal) in [
            ("a1", "a2", None),
            ("a1", "b1", Some(Kind::Precondition)),
            ("a1", "h1", Some(Kind::Precondition)),
            ("a1", "r1", Some(Kind::Unauthenticated)),
            ("a1", "p1", Some(Kind::Unreachable)),
            ("h1", "b1", None),
            ("h1", "h2", None),
            ("r1", "b1", None),
            ("p1", "b1", Some(Kind::Unreachable)),
        ] {
            for is_confirmed in [true, false] {
                let (account, file) = account(first);
                if is_confirmed {
                    // Ignore the error for a first key that is refused.
                    drop(account.confirm(&Cloud).await);
                }
                assert_eq!(account.newer(&Cloud, &first).await, Ok(None));
                *file.lock() = new;
                let used = account.newer(&Cloud, &first).await;
                let failure = used.as_ref().err();
                assert_eq!(failure.map(|it| it.kind), refusal, "{first} {new}");
                let expected = if refusal.is_none() { new } else { first };
                assert_eq!(account.key(), expected, "{first} {new}");
                // If the account is known, a further key of another account is refused.
                *file.lock() = "c1";
                let is_known = !matches!((&first[..1], &new[..1]), ("h" | "r", "h" | "r"));
                let other = account.newer(&Cloud, &expected).await;
                assert_eq!(other.is_err(), is_known, "{first} {new}");
            }
        }
    }

    #[tokio::test]
    async fn a_start_fails_until_the_cloud_accepts_a_key_of_the_account() {
        let (account, file) = account("r1");
        let refused = account.confirm(&Cloud).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Unauthenticated);
        *file.lock() = "p1";
        let unreachable = account.confirm(&Cloud).await.unwrap_err();
        assert_eq!(unreachable.kind, Kind::Unreachable);
        *file.lock() = "a1";
        account.confirm(&Cloud).await.unwrap();
        assert_eq!(account.key(), "a1");
    }

    #[test]
    fn a_refusal_names_the_setting_and_both_accounts() {
        let known = |name: &str| Identity::Known(name.to_owned());
        let first = Guard::new("--key", Some(known("team a")));
        first.check(known("team a")).unwrap();
        for (identity, name) in [
            (known("team b"), "of team b, and are not used"),
            (Identity::Hidden("no team"), "of no team, and are not used"),
        ] {
            let failure = first.check(identity).unwrap_err();
            assert_eq!(failure.kind, Kind::Precondition);
            for part in ["--key: ", name, "the volumes of team a", "restart"] {
                assert!(failure.message.contains(part), "{part}: {failure}");
            }
        }
    }
}
