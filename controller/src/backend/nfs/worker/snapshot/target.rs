//! The directories of a volume that is restored: those of the last file are open. A directory gets
//! its attributes when it is left, since making files in it changes its times, and its mode may
//! forbid it.

use super::super::copy::attributes::{self, Attribute};
use super::super::copy::walk::DEPTH_MAX;
use super::super::error::{Error, at};
use super::super::tar::Entry;
use super::super::tree;
use super::found::Found;
use super::restore;
use belay_server::call::Failure;
use rustix::fs::{Mode, Stat};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

/// The mode of a directory that has files in the archive, and no mode.
const DIRECTORY: Mode = Mode::from_bits_retain(0o755);

/// A name in an open directory.
pub(super) struct Place<'a> {
    pub(super) name: &'a CStr,
    /// Below the volume.
    pub(super) shown: &'a str,
}

pub(super) struct Target {
    root: OwnedFd,
    /// What the archive says of it.
    of_root: Option<Attributes>,
    /// Those that are open, outermost first.
    open: Vec<Level>,
}

struct Level {
    name: CString,
    directory: OwnedFd,
    shown: String,
    /// It gets these when it is left.
    attributes: Attributes,
}

enum Attributes {
    Of(Box<Entry>, Vec<Attribute>),
    /// Those that it had before a further file was made in it.
    Kept(Box<Stat>),
    /// It is not in the archive.
    New,
}

/// Why a directory is not reached.
pub(super) enum Out {
    Refused(&'static str),
    Failure(Failure),
}

impl From<Failure> for Out {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl Out {
    /// Of a file with links or other files in its path, which the archive has made.
    fn of(error: Error) -> Self {
        match error.errno {
            Errno::LOOP | Errno::NOTDIR => Self::Refused("leads through a link or a file"),
            _ => Self::Failure(error.into()),
        }
    }

    pub(super) fn failure(self, found: &Found, shown: &str) -> Failure {
        match self {
            Self::Refused(why) => found.refused(&format!("{shown:?}: {why}")),
            Self::Failure(failure) => failure,
        }
    }
}

impl Target {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self {
            root,
            of_root: None,
            open: Vec::new(),
        }
    }

    /// What the archive says of the root.
    pub(super) fn root(&mut self, entry: Entry, extended: Vec<Attribute>) -> Result<(), Failure> {
        self.of_root = Some(Attributes::Of(Box::new(entry), extended));
        Ok(())
    }

    /// A directory of the archive, which is made if it is missing. Of its extended attributes, the
    /// access control lists alone wait until it is left: files would inherit them. So those of all
    /// open directories take up little memory.
    pub(super) fn directory(
        &mut self,
        names: &[CString],
        entry: &Entry,
        extended: Vec<Attribute>,
    ) -> Result<(), Out> {
        self.above(names)?;
        if let Some(level) = self.open.last_mut() {
            let (lists, others) = extended
                .into_iter()
                .partition::<Vec<_>, _>(|(name, _)| attributes::is_list(name.as_bytes()));
            attributes::extend(&level.directory, &others, &level.shown).map_err(Failure::from)?;
            let entry = Entry {
                path: Vec::new(),
                attributes: Vec::new(),
                ..entry.clone()
            };
            level.attributes = Attributes::Of(Box::new(entry), lists);
        }
        Ok(())
    }

    /// The directory of these names, which is made if it is missing.
    pub(super) fn above(&mut self, names: &[CString]) -> Result<&OwnedFd, Out> {
        if names.len() > DEPTH_MAX {
            return Err(Out::Refused("is too many directories deep"));
        }
        let open = self.open.iter();
        let same = open
            .zip(names)
            .take_while(|(level, name)| level.name == **name);
        let same = same.count();
        while self.open.len() > same {
            self.leave()?;
        }
        for name in &names[same..] {
            let level = self.enter(name)?;
            self.open.push(level);
        }
        Ok(self.here())
    }

    /// The directory of these names, if it exists.
    pub(super) fn find(&self, names: &[CString]) -> Result<OwnedFd, Out> {
        let mut here = tree::open(&self.root, c".", ".").map_err(Out::of)?;
        for name in names {
            here =
                tree::open(&here, &**name, &name.to_string_lossy()).map_err(|error| match error
                    .errno
                {
                    Errno::NOENT => {
                        Out::Refused("is a link to what is not in the archive before it")
                    }
                    _ => Out::of(error),
                })?;
        }
        Ok(here)
    }

    /// Leaves all directories, and gives the root its attributes.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        while !self.open.is_empty() {
            self.leave()?;
        }
        match &self.of_root {
            Some(attributes) => apply(attributes, &self.root, "."),
            // The archive does not say; as csi-driver-nfs.
            None => {
                tree::chmod(&self.root, 0o755, ".")?;
                Ok(tree::sync(&self.root, ".")?)
            }
        }
    }

    fn here(&self) -> &OwnedFd {
        self.open
            .last()
            .map_or(&self.root, |level| &level.directory)
    }

    fn enter(&self, name: &CStr) -> Result<Level, Out> {
        let above = self.open.last().map_or("", |level| &level.shown);
        let shown = format!("{above}{}/", name.to_string_lossy());
        let made = tree::mkdir(self.here(), name, DIRECTORY, &shown);
        let is_new = match made {
            Ok(()) => true,
            Err(error) if error.errno == Errno::EXIST => false,
            Err(error) => return Err(Out::of(error)),
        };
        let directory = tree::open(self.here(), name, &shown).map_err(Out::of)?;
        let attributes = match is_new {
            true => Attributes::New,
            false => {
                let stat = retry_on_intr(|| rustix::fs::fstat(&directory));
                Attributes::Kept(Box::new(
                    stat.map_err(at("fstat", &shown)).map_err(Out::of)?,
                ))
            }
        };
        Ok(Level {
            name: name.to_owned(),
            directory,
            shown,
            attributes,
        })
    }

    fn leave(&mut self) -> Result<(), Failure> {
        match self.open.pop() {
            Some(level) => apply(&level.attributes, &level.directory, &level.shown),
            None => Ok(()),
        }
    }
}

fn apply(of: &Attributes, directory: &OwnedFd, shown: &str) -> Result<(), Failure> {
    match of {
        Attributes::Of(entry, extended) => {
            let stat = restore::stat(directory, entry, shown)?;
            attributes::apply(extended, directory, &stat, shown)?;
        }
        Attributes::Kept(stat) => attributes::apply(&[], directory, stat, shown)?,
        Attributes::New => {}
    }
    Ok(tree::sync(directory, shown)?)
}
