//! The kernel's share of a Probe: the same kind of socket, with a thread that sends one byte back.
//! No HTTP/2, no gRPC, no other process.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::bench_dir::{BenchDir, at};

/// The remote end, and a kept connection.
pub struct Echo {
    socket: PathBuf,
    kept: UnixStream,
}

impl Echo {
    /// Starts to answer, until the program exits.
    ///
    /// # Errors
    /// If the socket cannot be created.
    pub fn start(bench_dir: &BenchDir) -> io::Result<Self> {
        let socket = bench_dir.path("echo.sock");
        let listener = UnixListener::bind(&socket).map_err(|error| at("bind", &socket, error))?;
        std::thread::Builder::new()
            .name("echo".to_owned())
            .spawn(move || {
                // The first connection is the kept one, and has its own thread.
                if let Ok((kept, _)) = listener.accept() {
                    let answering = std::thread::Builder::new().spawn(move || answer(kept));
                    while answering.is_ok()
                        && let Ok((stream, _)) = listener.accept()
                    {
                        // A broken connection is noticed at the other end.
                        answer(stream).ok();
                    }
                }
            })?;
        let kept = UnixStream::connect(&socket)?;
        Ok(Self { socket, kept })
    }

    /// One byte in each direction on a new connection.
    ///
    /// # Errors
    /// If the remote end is gone.
    pub fn on_new(&self) -> io::Result<Duration> {
        let start = Instant::now();
        there_and_back(&UnixStream::connect(&self.socket)?)?;
        Ok(start.elapsed())
    }

    /// One byte in each direction on the kept connection.
    ///
    /// # Errors
    /// If the remote end is gone.
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
