//! Reads an archive, which may be damaged or hostile: its sizes and lengths are not trusted.

mod sparse;

use super::block::Header;
use super::{BLOCK, Entry, PATH_BYTES_MAX, RECORDS_BYTES_MAX, Time, Type, padding, pax};
use std::io::{self, Read};

/// Maximum size of a file, in bytes.
const BYTES_MAX: u64 = i64::MAX.unsigned_abs();
/// Maximum number of headers before a file's own header. The archive formats define four kinds of
/// headers that precede the header of a file.
const HEADERS_MAX: usize = 8;
/// Maximum number of bytes after the end of an archive. Programs that write to tapes pad the last
/// record.
const REST_BYTES_MAX: u64 = 16 << 20;
/// Maximum length of the key for files with several names, in bytes.
const LINKS_BYTES_MAX: usize = 128;

/// The reason why an archive cannot be read.
#[derive(Debug)]
pub(in super::super) enum Flaw {
    /// The input is incomplete, or is not an archive.
    Damaged(String),
    /// The archive has unsupported content.
    Refused(String),
    /// The file of the archive cannot be read.
    Unread(io::Error),
}

pub(in super::super) struct Reader<R> {
    input: R,
    /// Number of unread bytes of the last file's stored content.
    left: u64,
    padding: usize,
}

/// The headers before a file's own header, which describe the file.
#[derive(Default)]
struct Preamble {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    records: Vec<u8>,
}

/// The pax records of a file.
#[derive(Default)]
struct FileRecords {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    user: Option<u32>,
    group: Option<u32>,
    modified: Option<Time>,
    accessed: Option<Time>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    links: Option<String>,
    sparse: Sparse,
}

#[derive(Default)]
struct Sparse {
    is_any: bool,
    version: (Option<u64>, Option<u64>),
    name: Option<Vec<u8>>,
    size: Option<u64>,
}

impl<R: Read> Reader<R> {
    pub(in super::super) fn new(input: R) -> Self {
        Self {
            input,
            left: 0,
            padding: 0,
        }
    }

    /// Returns the next file, or `None` at the end. The unread content of the previous file is
    /// skipped.
    pub(in super::super) fn next(&mut self) -> Result<Option<Entry>, Flaw> {
        self.pass()?;
        let mut before = Preamble::default();
        for _ in 0..=HEADERS_MAX {
            let block = self.block()?;
            if block.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            let header = Header::read(&block);
            let header = header.ok_or_else(|| damaged("a header is damaged"))?;
            match header.flag {
                b'x' => before.records = self.data(header.size, RECORDS_BYTES_MAX)?,
                b'g' => refuse_global(&self.data(header.size, RECORDS_BYTES_MAX)?)?,
                b'L' => before.path = Some(named(self.data(header.size, PATH_BYTES_MAX)?)),
                b'K' => before.target = Some(named(self.data(header.size, PATH_BYTES_MAX)?)),
                _ => return self.entry(header, before).map(Some),
            }
        }
        Err(Flaw::Refused(format!(
            "a file has more than {HEADERS_MAX} headers that describe it"
        )))
    }

    /// Reads stored content of the last file. Returns 0 at the end of the file.
    pub(in super::super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Flaw> {
        let length = usize::try_from(self.left).unwrap_or(usize::MAX);
        let length = length.min(buffer.len());
        if length == 0 {
            return Ok(0);
        }
        let read = loop {
            match self.input.read(&mut buffer[..length]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result.map_err(unread)?,
            }
        };
        if read == 0 {
            return Err(damaged("it ends within a file"));
        }
        self.left -= read as u64;
        Ok(read)
    }

    /// Reads to the end of the input, to verify a checksum at the end. Further data is refused: if
    /// a server has lost a header, zeros are read in its place, which look like the end of an
    /// archive although files follow.
    pub(in super::super) fn end(self) -> Result<(), Flaw> {
        let mut rest = self.input.take(REST_BYTES_MAX + 1);
        let mut buffer = [0; BLOCK];
        let mut passed = 0;
        loop {
            let read = match rest.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.map_err(unread)?,
            };
            passed += read as u64;
            if buffer[..read].iter().any(|byte| *byte != 0) {
                return Err(damaged("something follows after its end"));
            }
            if passed > REST_BYTES_MAX {
                return Err(Flaw::Refused(format!(
                    "it has more than {REST_BYTES_MAX} bytes after its end"
                )));
            }
            if read == 0 {
                return Ok(());
            }
        }
    }

    fn pass(&mut self) -> Result<(), Flaw> {
        let rest = self.left + self.padding as u64;
        let passed = io::copy(&mut (&mut self.input).take(rest), &mut io::sink());
        if passed.map_err(unread)? != rest {
            return Err(damaged("it ends within a file"));
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    fn block(&mut self) -> Result<[u8; BLOCK], Flaw> {
        let mut block = [0; BLOCK];
        self.input.read_exact(&mut block).map_err(unread)?;
        Ok(block)
    }

    /// Returns the content of a header that describes the next file.
    fn data(&mut self, size: u64, size_max: u64) -> Result<Vec<u8>, Flaw> {
        if size > size_max {
            return Err(Flaw::Refused(format!(
                "the head of a file has {size} bytes, and at most {size_max} are read"
            )));
        }
        let mut data = Vec::new();
        let padded = size + padding(size) as u64;
        let read = (&mut self.input).take(padded).read_to_end(&mut data);
        if read.map_err(unread)? as u64 != padded {
            return Err(damaged("it ends within the head of a file"));
        }
        data.truncate(usize::try_from(size).unwrap_or_default());
        Ok(data)
    }

    fn entry(&mut self, header: Header, before: Preamble) -> Result<Entry, Flaw> {
        let said = FileRecords::read(&before.records)?;
        let path = said.sparse.name.clone().or(said.path).or(before.path);
        let path = path.unwrap_or(header.name);
        let kind = kind(header.flag, &path)?;
        let owner = |said: Option<u32>, own: u64| match said {
            Some(said) => Ok(said),
            None => u32::try_from(own).map_err(|_| damaged("an owner is no number of a user")),
        };
        let size = match kind {
            Type::File => said.size.unwrap_or(header.size),
            // GNU tar and other programs also ignore the size of a file that is not a regular file.
            _ => 0,
        };
        let whole = said.sparse.size.unwrap_or_default();
        if size > BYTES_MAX || whole > BYTES_MAX {
            return Err(damaged("a file is larger than a file can be"));
        }
        let number = |value: u64| u32::try_from(value).unwrap_or_default();
        let mut entry = Entry {
            path,
            kind,
            target: said.target.or(before.target).unwrap_or(header.target),
            mode: number(header.mode & 0o7777),
            user: owner(said.user, header.user)?,
            group: owner(said.group, header.group)?,
            modified: said.modified.unwrap_or(Time {
                seconds: header.modified,
                nanoseconds: 0,
            }),
            accessed: said.accessed,
            device: (number(header.device.0), number(header.device.1)),
            size,
            segments: None,
            attributes: said.attributes,
            links: said.links,
        };
        (self.left, self.padding) = (size, padding(size));
        if kind == Type::File && said.sparse.is_any {
            let Sparse { version, size, .. } = said.sparse;
            let (Some(size), (Some(1), Some(0))) = (size, version) else {
                return Err(refused(&entry.path, "is sparse in a format other than 1.0"));
            };
            entry.size = size;
            entry.segments = Some(self.map(size)?);
        }
        Ok(entry)
    }
}

impl FileRecords {
    fn read(records: &[u8]) -> Result<Self, Flaw> {
        let wrong = || damaged("the records of a file are damaged");
        let mut said = Self::default();
        for (key, value) in pax::read(records).ok_or_else(wrong)? {
            let text = std::str::from_utf8(value);
            let number = || text.ok().and_then(|it| it.parse::<u64>().ok());
            let number = || number().ok_or_else(wrong);
            let owner = || u32::try_from(number()?).map_err(|_| wrong());
            let time = || text.ok().and_then(pax::time).ok_or_else(wrong);
            // The names of attributes need not be UTF-8.
            if let Some(name) = key.strip_prefix(pax::ATTRIBUTE.as_bytes()) {
                let name = pax::attribute_name(name);
                said.attributes.push((name, value.to_vec()));
                continue;
            }
            let key = String::from_utf8_lossy(key);
            match &*key {
                pax::PATH => said.path = Some(path(value)?),
                pax::TARGET => said.target = Some(path(value)?),
                pax::SIZE => said.size = Some(number()?),
                pax::USER => said.user = Some(owner()?),
                pax::GROUP => said.group = Some(owner()?),
                pax::MODIFIED => said.modified = Some(time()?),
                pax::ACCESSED => said.accessed = Some(time()?),
                pax::LINKS => said.links = Some(links(value).ok_or_else(wrong)?),
                pax::SPARSE_MAJOR => said.sparse.version.0 = Some(number()?),
                pax::SPARSE_MINOR => said.sparse.version.1 = Some(number()?),
                pax::SPARSE_NAME => said.sparse.name = Some(path(value)?),
                pax::SPARSE_SIZE => said.sparse.size = Some(number()?),
                _ => {}
            }
            said.sparse.is_any |= key.starts_with(pax::SPARSE);
        }
        Ok(said)
    }
}

/// Reads the path in a record.
fn path(value: &[u8]) -> Result<Vec<u8>, Flaw> {
    match value.len() as u64 {
        0..=PATH_BYTES_MAX => Ok(value.to_vec()),
        length => Err(Flaw::Refused(format!(
            "a path has {length} bytes, and at most {PATH_BYTES_MAX} are read"
        ))),
    }
}

/// Reads the key for a file with several names. The key becomes a file name, so only short keys
/// without special characters are accepted.
fn links(value: &[u8]) -> Option<String> {
    let is_plain = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b'.' || *byte == b'-';
    let is_key = !value.is_empty()
        && value.len() <= LINKS_BYTES_MAX
        && value[0].is_ascii_hexdigit()
        && value.iter().all(is_plain);
    is_key.then(|| String::from_utf8_lossy(value).into_owned())
}

fn kind(flag: u8, path: &[u8]) -> Result<Type, Flaw> {
    Ok(match flag {
        // In the oldest format, only a slash at the end of the path marks a directory.
        0 | b'0' if path.ends_with(b"/") => Type::Directory,
        0 | b'0' | b'7' => Type::File,
        b'1' => Type::Link,
        b'2' => Type::Symlink,
        b'3' => Type::Character,
        b'4' => Type::Block,
        b'5' => Type::Directory,
        b'6' => Type::Fifo,
        other => {
            let why = format!("has the type {:?}", char::from(other));
            return Err(refused(path, &why));
        }
    })
}

/// Refuses records that apply to all files, except for comments, since such records would change
/// the headers of the files.
fn refuse_global(records: &[u8]) -> Result<(), Flaw> {
    let records = pax::read(records).ok_or_else(|| damaged("its records are damaged"))?;
    match records.iter().find(|(key, _)| *key != b"comment") {
        None => Ok(()),
        Some((key, _)) => Err(Flaw::Refused(format!(
            "it has the record {:?} for all files",
            String::from_utf8_lossy(key)
        ))),
    }
}

/// Returns the name in `data`, which ends at the first zero byte.
fn named(mut data: Vec<u8>) -> Vec<u8> {
    let end = data.iter().position(|byte| *byte == 0);
    data.truncate(end.unwrap_or(data.len()));
    data
}

fn damaged(why: &str) -> Flaw {
    Flaw::Damaged(why.to_owned())
}

fn refused(path: &[u8], why: &str) -> Flaw {
    Flaw::Refused(format!("{:?} {why}", String::from_utf8_lossy(path)))
}

/// Converts an error of the input, which is incomplete or damaged, or could not be read.
fn unread(error: io::Error) -> Flaw {
    match (error.raw_os_error(), error.kind()) {
        (None, io::ErrorKind::UnexpectedEof) => damaged("it is not complete"),
        (None, _) => Flaw::Damaged(error.to_string()),
        (Some(_), _) => Flaw::Unread(error),
    }
}
