//! One connection of a guest to a disk, from its first message until the connection is closed. This
//! module interprets the messages of the connection; the queues and the device process the
//! requests.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::memory::{Memory, Region};
use super::queue::{Queue, Rings};
use super::wire::{self, Message};
use super::{Features, Inserted};

const GET_FEATURES: u32 = 1;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const GET_PROTOCOL_FEATURES: u32 = 15;
const GET_QUEUE_NUM: u32 = 17;
const SET_BACKEND_REQ_FD: u32 = 21;
const GET_CONFIG: u32 = 24;

/// The message that makes the guest read its configuration space again.
const CONFIG_CHANGE: u32 = 2;

/// The features VIRTIO_F_VERSION_1 and VHOST_USER_F_PROTOCOL_FEATURES.
const TRANSPORT: Features = Features::of(&[30, 32]);
/// The protocol features: acknowledgements, requests from the disk, the configuration space.
const PROTOCOL: Features = Features::of(&[3, 5, 9]);

/// An event of a session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Message,
    Wake,
    Kick(u32),
}

/// A connection, with the state that the guest has set up.
pub(super) struct Session<'a> {
    stream: UnixStream,
    inserted: &'a Inserted,
    memory: Option<Memory>,
    queues: BTreeMap<u32, Queue>,
    back: Option<UnixStream>,
    bytes: u64,
}

impl<'a> Session<'a> {
    pub(super) fn new(stream: UnixStream, inserted: &'a Inserted) -> Self {
        let bytes = inserted.disk.medium.bytes();
        Session {
            stream,
            inserted,
            memory: None,
            queues: BTreeMap::new(),
            back: None,
            bytes,
        }
    }

    /// Serves until the guest closes the connection, or until `wake` was written to and `is_over`
    /// is set.
    pub(super) fn serve(
        &mut self,
        wake: BorrowedFd<'_>,
        is_over: impl Fn() -> bool,
    ) -> io::Result<()> {
        while !is_over() {
            for event in self.wait(wake)? {
                match event {
                    Event::Message => match Message::receive(&self.stream)? {
                        Some(message) => self.obey(message)?,
                        None => return Ok(()),
                    },
                    Event::Kick(index) => {
                        if let Some(kick) = self.queues.get(&index).and_then(|q| q.kick.as_ref()) {
                            rustix::io::read(kick, &mut [0; 8])?;
                        }
                        self.perform(index)?;
                    }
                    Event::Wake => {
                        rustix::io::read(wake, &mut [0; 8])?;
                        self.look_again()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn wait(&self, wake: BorrowedFd<'_>) -> io::Result<Vec<Event>> {
        let mut events = vec![Event::Message, Event::Wake];
        let mut files = vec![
            PollFd::new(&self.stream, PollFlags::IN),
            PollFd::from_borrowed_fd(wake, PollFlags::IN),
        ];
        for (index, queue) in &self.queues {
            if let Some(kick) = &queue.kick {
                events.push(Event::Kick(*index));
                files.push(PollFd::from_borrowed_fd(kick.as_fd(), PollFlags::IN));
            }
        }
        match poll(&mut files, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = files.iter().map(|file| !file.revents().is_empty());
        let ready: Vec<bool> = ready.collect();
        // Handle only the message, since the message may invalidate other events.
        if ready[0] {
            return Ok(vec![Event::Message]);
        }
        let both = events.into_iter().zip(ready);
        Ok(both
            .filter_map(|(event, ready)| ready.then_some(event))
            .collect())
    }

    fn obey(&mut self, mut message: Message) -> io::Result<()> {
        match message.request {
            GET_FEATURES => {
                let features = TRANSPORT.and(self.inserted.disk.features());
                return message.answer(&self.stream, &features.bytes());
            }
            GET_PROTOCOL_FEATURES => return message.answer(&self.stream, &PROTOCOL.bytes()),
            GET_QUEUE_NUM => return message.answer(&self.stream, &1_u64.to_le_bytes()),
            GET_CONFIG => return self.send_config(&message),
            GET_VRING_BASE => {
                let index = message.u32_at(0)?;
                let queue = self.queues.entry(index).or_default();
                queue.kick = None;
                let next = u32::from(queue.next);
                let answer = [index.to_le_bytes(), next.to_le_bytes()].concat();
                return message.answer(&self.stream, &answer);
            }
            SET_MEM_TABLE => self.memory = Some(memory(&mut message)?),
            SET_VRING_ADDR => self.place_rings(&message)?,
            SET_VRING_NUM => self.named(&message)?.size = u16_at(&message)?,
            SET_VRING_BASE => self.named(&message)?.next = u16_at(&message)?,
            SET_VRING_KICK => self.of_low_byte(&message)?.kick = message.files.pop(),
            SET_VRING_CALL => self.of_low_byte(&message)?.call = message.files.pop(),
            SET_BACKEND_REQ_FD => self.back = message.files.pop().map(UnixStream::from),
            // Messages that set the owner or the features, or that enable queues, need only an
            // acknowledgement.
            _ => {}
        }
        message.acknowledge(&self.stream)
    }

    fn named(&mut self, message: &Message) -> io::Result<&mut Queue> {
        Ok(self.queues.entry(message.u32_at(0)?).or_default())
    }

    fn of_low_byte(&mut self, message: &Message) -> io::Result<&mut Queue> {
        Ok(self.queues.entry(message.u32_at(0)? & 0xff).or_default())
    }

    fn place_rings(&mut self, message: &Message) -> io::Result<()> {
        let Some(memory) = &self.memory else {
            return Err(io::Error::other("queues before memory"));
        };
        let at = |offset| memory.of_user(message.u64_at(offset)?);
        let rings = Rings {
            descriptors: at(8)?,
            used: at(16)?,
            available: at(24)?,
        };
        self.named(message)?.rings = Some(rings);
        Ok(())
    }

    fn send_config(&self, message: &Message) -> io::Result<()> {
        let config = self.inserted.disk.config();
        let [offset, size] = [message.u32_at(0)?, message.u32_at(4)?];
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let count = usize::try_from(size.min(4096)).map_err(io::Error::other)?;
        let mut answer = [offset, size, message.u32_at(8)?]
            .map(u32::to_le_bytes)
            .concat();
        let part = config.iter().skip(start).copied();
        answer.extend(part.chain(std::iter::repeat(0)).take(count));
        message.answer(&self.stream, &answer)
    }

    /// Handles a change on the disk's side: a new size of the disk, or the release of held
    /// requests.
    fn look_again(&mut self) -> io::Result<()> {
        let bytes = self.inserted.disk.medium.bytes();
        if bytes != self.bytes {
            self.bytes = bytes;
            self.inserted.disk.has_grown();
            // A guest that unbinds the disk may already have closed its end of this socket. Ending
            // the main connection now would crash the guest's kernel (vu_conn_broken).
            self.back
                .take_if(|back| wire::request(back, CONFIG_CHANGE).is_err());
        }
        let queues: Vec<u32> = self.queues.keys().copied().collect();
        queues.into_iter().try_for_each(|index| self.perform(index))
    }

    /// Processes all requests of a queue.
    fn perform(&mut self, index: u32) -> io::Result<()> {
        let (Some(queue), Some(memory)) = (self.queues.get_mut(&index), &self.memory) else {
            return Ok(());
        };
        let medium = &self.inserted.disk.medium;
        while self.inserted.is_served(index)
            && let Some(first) = queue.take(memory)?
        {
            let mut chains = vec![first];
            if !medium.latency().is_zero() {
                while let Some(chain) = queue.take(memory)? {
                    chains.push(chain);
                }
                // Count only reads: other responses contain a status, or an identity.
                let reads = chains.iter().filter(|chain| chain.room() > 512);
                medium.think(reads.count());
            }
            for chain in chains {
                let answer = self.inserted.perform(index, &chain.sent, chain.room());
                match answer {
                    Some(answer) => queue.give(memory, &chain, &answer)?,
                    // The power of the disk is off, and so is the guest's.
                    None => return Ok(()),
                }
            }
        }
        Ok(())
    }
}

fn u16_at(message: &Message) -> io::Result<u16> {
    u16::try_from(message.u32_at(4)?).map_err(io::Error::other)
}

fn memory(message: &mut Message) -> io::Result<Memory> {
    let count = usize::try_from(message.u32_at(0)?).map_err(io::Error::other)?;
    let region = |index: usize| {
        let at = |word: usize| message.u64_at(8 + 32 * index + 8 * word);
        Ok(Region {
            guest: at(0)?,
            size: at(1)?,
            user: at(2)?,
            offset: at(3)?,
        })
    };
    let regions = (0..count.min(8))
        .map(region)
        .collect::<io::Result<Vec<_>>>()?;
    let files = std::mem::take(&mut message.files);
    if files.len() != regions.len() {
        return Err(io::Error::other("memory without its files"));
    }
    Memory::map(regions, files)
}
