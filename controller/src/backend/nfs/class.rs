//! The parameters of a storage class. The case of the keys is ignored. Makes no system calls.

use super::id::{OnDelete, Place};
use super::path::{self, Dir};
use belay_contract::export;
use belay_server::call::Failure;
use belay_server::request::{Context, Name, VolumeId};
use std::str::FromStr;

const FIELD: &str = "parameters";

/// The keys of all parameters, as spelled in the documentation.
pub(super) const KEYS: [&str; 5] = ["server", "share", SUB_DIR, ON_DELETE, PERMISSIONS];
const SUB_DIR: &str = "subDir";
const ON_DELETE: &str = "onDelete";
const PERMISSIONS: &str = "mountPermissions";

/// The mode of a directory. 0 keeps the mode that mkdir(2) sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode(u32);

impl Mode {
    /// Returns the mode to set, or `None` to keep the mode that mkdir(2) sets.
    #[must_use]
    pub fn bits(self) -> Option<u32> {
        (self.0 != 0).then_some(self.0)
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        export::mode(text).map(Self)
    }
}

/// The parsed parameters of a storage class.
pub(super) struct Class {
    pub(super) server: String,
    pub(super) share: String,
    below: Option<String>,
    /// The deletion policy, as the class spells it; empty if the class contains no policy.
    policy: String,
    /// The deletion policy of the class. `None` if the class does not contain the parameter.
    pub(super) on_delete: Option<OnDelete>,
    /// The mode of new directories. `None` if the class does not contain the parameter.
    pub(super) permissions: Option<Mode>,
}

impl Class {
    /// Parses the parameters of a storage class.
    ///
    /// # Errors
    /// Returns `Invalid`, with the name of the key, if a value is missing or unsafe.
    pub(super) fn of(parameters: &Context) -> Result<Self, Failure> {
        let required = |key: &str| match value(parameters, key)? {
            Some(value) if !value.is_empty() => Ok(value),
            _ => Err(invalid(key, "is required, but missing or empty")),
        };
        let server = export::server(required("server")?).map_err(|why| invalid("server", &why))?;
        let share = path::share(required("share")?).map_err(|why| invalid("share", &why))?;
        let given = |key| value(parameters, key).map(|it| it.filter(|it| !it.is_empty()));
        let policy = given(ON_DELETE)?.unwrap_or_default();
        let on_delete = given(ON_DELETE)?.map(str::parse).transpose();
        let permissions = given(PERMISSIONS)?.map(str::parse).transpose();
        Ok(Self {
            server: server.to_owned(),
            share,
            below: given(SUB_DIR)?.map(str::to_owned),
            policy: policy.to_owned(),
            on_delete: on_delete.map_err(|why: String| invalid(ON_DELETE, &why))?,
            permissions: permissions.map_err(|why: String| invalid(PERMISSIONS, &why))?,
        })
    }

    /// Whether both the server and the share are missing in the parameters.
    ///
    /// # Errors
    /// Returns `Invalid` if a key occurs twice.
    pub(super) fn is_nowhere(parameters: &Context) -> Result<bool, Failure> {
        let named = [value(parameters, "server")?, value(parameters, "share")?];
        Ok(named.into_iter().flatten().all(str::is_empty))
    }

    /// Returns the location and the ID of a new volume. `default` is the deletion policy if the
    /// class contains no policy.
    ///
    /// # Errors
    /// Returns `Invalid` if the name or `subDir` is not the path of a directory below the share, or
    /// is too long.
    pub(super) fn place(
        &self,
        name: &Name,
        parameters: &Context,
        default: OnDelete,
    ) -> Result<(Place, VolumeId), Failure> {
        let (key, below) = match &self.below {
            None => ("name", name.as_str().to_owned()),
            Some(below) => (SUB_DIR, filled(parameters, below)?),
        };
        let dir = Dir::read(&below).and_then(|dir| dir.ok_or_else(|| "is empty".to_owned()));
        let dir = dir.map_err(|why| match key {
            SUB_DIR => invalid(SUB_DIR, &why),
            _ => Failure::invalid(key, format_args!("{why}; it becomes a directory")),
        })?;
        if key != SUB_DIR && dir.names().len() > 1 {
            let why = "has a slash; it becomes a directory, and would be several";
            return Err(Failure::invalid(key, why));
        }
        let spelled = match (self.on_delete, default) {
            (Some(OnDelete::Delete), _) | (None, OnDelete::Delete) => String::new(),
            (Some(_), _) => self.policy.clone(),
            (None, default) => default.to_string(),
        };
        let on_delete = self.on_delete.unwrap_or(default);
        self.refuse_long(&dir, on_delete)?;
        let place = Place {
            server: self.server.clone(),
            share: self.share.clone(),
            dir,
            name: self.below.as_ref().map(|_| name.as_str().to_owned()),
            on_delete: Some(on_delete),
        };
        let id = place.id(&spelled)?;
        Ok((place, id))
    }

    /// Refuses a directory whose path is too long for a mount, or whose archive's name would be too
    /// long.
    fn refuse_long(&self, dir: &Dir, on_delete: OnDelete) -> Result<(), Failure> {
        let field = match self.below {
            None => "name".to_owned(),
            Some(_) => format!("{FIELD}: {SUB_DIR}"),
        };
        let parts = [self.share.as_str(), &dir.to_string()];
        let path = parts.into_iter().filter(|part| !part.is_empty());
        let source = path::source(&self.server, &path.collect::<Vec<_>>().join("/"));
        if source.len() > path::SOURCE_BYTES_MAX {
            return Err(Failure::invalid(&field, path::too_long(&source)));
        }
        match dir.archive_too_long() {
            Some(why) if on_delete == OnDelete::Archive => Err(Failure::invalid(
                &field,
                format_args!(
                    "cannot be archived: {why}; choose a shorter one, or another onDelete"
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// Returns the volume context: the parameters of the class, with `subDir` set to the volume's
/// directory.
///
/// # Errors
/// Returns `Invalid` if the entries are too large in total.
pub(super) fn context(parameters: &Context, dir: &Dir) -> Result<Context, Failure> {
    let others = parameters
        .iter()
        .filter(|(key, _)| !key.eq_ignore_ascii_case(SUB_DIR));
    let spelled = parameters
        .iter()
        .map(|(key, _)| key)
        .find(|key| key.eq_ignore_ascii_case(SUB_DIR));
    let own = (spelled.unwrap_or(SUB_DIR), dir.to_string());
    let entries = others.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let entries = entries.chain([(own.0.to_owned(), own.1)]);
    Context::new("volume_context", entries)
}

/// Returns the value of a key, ignoring the case of the key.
fn value<'a>(parameters: &'a Context, key: &str) -> Result<Option<&'a str>, Failure> {
    export::value(parameters, key).map_err(|why| invalid(key, why))
}

/// Replaces the templates in `subDir`, such as `${pvc.metadata.name}`, with the corresponding
/// names.
fn filled(parameters: &Context, below: &str) -> Result<String, Failure> {
    let name = |template, key| {
        let name = value(parameters, key)?.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| {
            let why = format!(
                "contains {template}, but the provisioner does not pass {key}; start it with \
                 --extra-create-metadata"
            );
            invalid(SUB_DIR, &why)
        })?;
        match name.contains(['/', '\\', '$']) {
            true => Err(invalid(key, "is no name of an object")),
            false => Ok(name),
        }
    };
    let filled = export::filled(below, name)?;
    filled.ok_or_else(|| invalid(SUB_DIR, "contains an unknown template"))
}

fn invalid(key: &str, why: &str) -> Failure {
    Failure::invalid(FIELD, format_args!("{key}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Kind;

    fn context_of(entries: &[(&str, &str)]) -> Context {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Context::new(FIELD, entries.iter().map(owned)).unwrap()
    }

    fn place(more: &[(&str, &str)], default: OnDelete) -> Result<(Place, String), String> {
        let entries = [&[("server", "s"), ("share", "/a/")][..], more].concat();
        let parameters = context_of(&entries);
        let found = Class::of(&parameters)
            .and_then(|class| class.place(&Name::new("pvc-1")?, &parameters, default));
        let found = found.map(|(place, id)| (place, id.as_str().to_owned()));
        found.map_err(|failure| {
            assert_eq!(failure.kind, Kind::Invalid);
            failure.message
        })
    }

    #[test]
    fn a_volume_is_a_directory_of_its_name_or_of_the_class() {
        let (own, id) = place(&[], OnDelete::Delete).unwrap();
        assert_eq!((own.name().as_str(), id.as_str()), ("pvc-1", "s#a#pvc-1##"));
        let template = "${pvc.metadata.namespace}/x-${pvc.metadata.name}-${pv.metadata.name}";
        let names = [
            ("SUBDIR", template),
            ("csi.storage.k8s.io/pvc/name", "claim"),
            ("csi.storage.k8s.io/pvc/namespace", "ns"),
            ("csi.storage.k8s.io/pv/name", "pvc-1"),
        ];
        let (filled, id) = place(&names, OnDelete::Delete).unwrap();
        assert_eq!(filled.dir.to_string(), "ns/x-claim-pvc-1");
        assert_eq!(filled.name(), "pvc-1");
        assert_eq!(id, "s#a#ns/x-claim-pvc-1#pvc-1#");
        let parameters = context_of(&names);
        let answered = context(&parameters, &filled.dir).unwrap();
        assert_eq!(answered.get("SUBDIR"), Some("ns/x-claim-pvc-1"));
        assert_eq!(answered.get("subDir"), None);
        assert_eq!(answered.get("csi.storage.k8s.io/pvc/name"), Some("claim"));
        let plain = context(&context_of(&[]), &own.dir).unwrap();
        assert_eq!(plain.get("subDir"), Some("pvc-1"));
    }

    #[test]
    fn the_id_has_the_policy_as_the_class_spells_it_unless_it_is_delete() {
        use OnDelete::{Archive, Delete, Retain};
        for (policy, default, expected, end) in [
            ("", Delete, Delete, "##"),
            ("", Archive, Archive, "##archive"),
            ("Retain", Delete, Retain, "##Retain"),
            ("DELETE", Retain, Delete, "##"),
        ] {
            let (place, id) = place(&[("ondelete", policy)], default).unwrap();
            assert_eq!(place.on_delete, Some(expected));
            assert_eq!(id, format!("s#a#pvc-1{end}"));
        }
    }

    #[test]
    fn a_value_that_leads_elsewhere_is_refused_by_its_key() {
        for (key, value) in [
            ("subDir", ".."),
            ("subDir", "a/../b"),
            ("subDir", "a\\..\\b"),
            ("subDir", "/"),
            ("subDir", "a//b"),
            ("subDir", ".belay/claims"),
            ("subDir", "${pod.metadata.name}"),
            ("subDir", "${pvc.metadata.name}"),
            ("SubDir", "a\nb"),
            ("onDelete", "keep"),
            ("mountPermissions", "8"),
            ("mountPermissions", "u+w"),
            ("mountPermissions", "10000"),
        ] {
            let refused = place(&[(key, value)], OnDelete::Delete).unwrap_err();
            let key = KEYS.iter().find(|it| it.eq_ignore_ascii_case(key)).unwrap();
            assert!(refused.contains(&format!("{key}: ")), "{value}: {refused}");
        }
        for name in ["..", "a/b", "a\\..", "${pvc.metadata.name}"] {
            let hostile = [
                ("subDir", "x/${pv.metadata.name}"),
                ("csi.storage.k8s.io/pv/name", name),
            ];
            assert!(place(&hostile, OnDelete::Delete).is_err(), "{name}");
        }
        for (server, share) in [
            ("", "/a"),
            ("a:/b", "/a"),
            ("a b", "/a"),
            ("s", ""),
            ("s", "/a/../b"),
        ] {
            let parameters = context_of(&[("server", server), ("share", share)]);
            assert!(Class::of(&parameters).is_err(), "{server} {share}");
        }
    }

    /// The limits are checked before anything is created.
    #[test]
    fn a_volume_that_could_not_be_mounted_or_archived_is_refused() {
        let below = |bytes: usize| "d".repeat(bytes);
        for (dir, policy, refused) in [
            (below(250), "delete", None),
            (
                below(251),
                "delete",
                Some("has 256 bytes, and the kernel mounts at most 255"),
            ),
            (below(246), "archive", None),
            (
                below(247),
                "archive",
                Some("cannot be archived: its name has 256 bytes"),
            ),
        ] {
            let result = place(&[("subDir", &dir), ("onDelete", policy)], OnDelete::Delete);
            match (result, refused) {
                (Ok(_), None) => {}
                (Err(message), Some(words)) => {
                    assert!(message.starts_with("parameters: subDir: "), "{message}");
                    assert!(message.contains(words), "{message}");
                }
                (result, refused) => panic!("{result:?} {refused:?}"),
            }
        }
        let parameters = context_of(&[("server", "s"), ("share", &below(200))]);
        let name = Name::new("n".repeat(60)).unwrap();
        let class = Class::of(&parameters).unwrap();
        let refused = class.place(&name, &parameters, OnDelete::Delete);
        let message = refused.unwrap_err().message;
        assert!(message.starts_with("name: "), "{message}");
    }

    #[test]
    fn a_name_that_is_no_directory_is_refused() {
        for name in ["..", "a/b", ".belay", "/", "a\tb"] {
            let parameters = context_of(&[("server", "s"), ("share", "/")]);
            let class = Class::of(&parameters).unwrap();
            let name = Name::new(name).unwrap();
            let refused = class
                .place(&name, &parameters, OnDelete::Delete)
                .unwrap_err();
            assert!(refused.message.starts_with("name: "), "{refused}");
        }
    }
}
