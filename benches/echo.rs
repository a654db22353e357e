//! The kernel's share of a Probe: one byte in each direction over the same kind of socket, to a
//! thread of this process. Excludes HTTP/2, gRPC and a second process.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::bench_dir::{BenchDir, at};

/// A thread that returns each byte, and a connection to it that is kept open.
pub struct Echo {
    socket: PathBuf,
    kept: UnixStream,
}

impl Echo {
    /// Starts a thread that responds until the program exits.
    ///
    /// # Errors
    /// Fails if the socket cannot be created.
    pub fn start(bench_dir: &BenchDir) -> io::Result<Self> {
        let socket = bench_dir.path("echo.sock");
        let listener = UnixListener::bind(&socket).map_err(|error| at("bind", &socket, error))?;
        std::thread::Builder::new()
            .name("echo".to_owned())
            .spawn(move || {
                // The first connection is the one that is kept open; serve it on a separate thread.
                if let Ok((kept, _)) = listener.accept() {
                    let answering = std::thread::Builder::new().spawn(move || answer(kept));
                    while answering.is_ok()
                        && let Ok((stream, _)) = listener.accept()
                    {
                        // Ignore errors: the other end notices a broken connection.
                        answer(stream).ok();
                    }
                }
            })?;
        let kept = UnixStream::connect(&socket)?;
        Ok(Self { socket, kept })
    }

    /// Sends one byte in each direction on a new connection, and returns the time.
    ///
    /// # Errors
    /// Fails if the remote end has exited.
    pub fn on_new(&self) -> io::Result<Duration> {
        let start = Instant::now();
        there_and_back(&UnixStream::connect(&self.socket)?)?;
        Ok(start.elapsed())
    }

    /// Sends one byte in each direction on the connection that is kept open, and returns the time.
    ///
    /// # Errors
    /// Fails if the remote end has exited.
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

/// Returns each byte, until the other end closes the connection.
fn answer(mut stream: UnixStream) -> io::Result<()> {
    let mut byte = [0];
    while stream.read(&mut byte)? > 0 {
        stream.write_all(&byte)?;
    }
    Ok(())
}
