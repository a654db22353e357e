//! The kernel's own share of a Probe: the same kind of socket, with a thread behind it that sends
//! one byte back. No HTTP/2, no gRPC, no other process.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::place::{Place, at};

/// The far end, and a connection that is kept.
pub struct Echo {
    socket: PathBuf,
    kept: UnixStream,
}

impl Echo {
    /// Begins to answer; until the program ends.
    ///
    /// # Errors
    /// When the socket cannot be had.
    pub fn start(place: &Place) -> io::Result<Self> {
        let socket = place.path("echo.sock");
        let listener = UnixListener::bind(&socket).map_err(|error| at("bind", &socket, error))?;
        std::thread::Builder::new()
            .name("echo".to_owned())
            .spawn(move || {
                // The first connection is the kept one, and has a thread of its own.
                if let Ok((kept, _)) = listener.accept() {
                    let answering = std::thread::Builder::new().spawn(move || answer(kept));
                    while answering.is_ok()
                        && let Ok((stream, _)) = listener.accept()
                    {
                        // One that breaks is noticed at the other end.
                        answer(stream).ok();
                    }
                }
            })?;
        let kept = UnixStream::connect(&socket)?;
        Ok(Self { socket, kept })
    }

    /// One byte there and back on a new connection.
    ///
    /// # Errors
    /// When the far end is gone.
    pub fn on_new(&self) -> io::Result<Duration> {
        let start = Instant::now();
        there_and_back(&UnixStream::connect(&self.socket)?)?;
        Ok(start.elapsed())
    }

    /// One byte there and back on the kept connection.
    ///
    /// # Errors
    /// When the far end is gone.
    pub fn on_kept(&self) -> io::Result<Duration> {
        let start = Instant::now();
        there_and_back(&self.kept)?;
        Ok(start.elapsed())
    }
}

fn there_and_back(mut stream: &UnixStream) -> io::Result<()> {
    stream.write_all(b"?")?;
    stream.read_exact(&mut [0])
}

/// Until the other end closes.
fn answer(mut stream: UnixStream) -> io::Result<()> {
    let mut byte = [0];
    while stream.read(&mut byte)? > 0 {
        stream.write_all(&byte)?;
    }
    Ok(())
}
