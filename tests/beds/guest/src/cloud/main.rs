//! `belay-guest-cloud`: long-lived guests, as the servers of a small cloud. OpenStack clients
//! create volumes in it, and attach them to the guests as disks. The cloud's operator turns guests
//! on and off, and runs scripts in them, through a socket that no guest can reach.
//!
//! ```text
//! belay-guest-cloud serve SOCKET IP:PORT DIRECTORY SLOTS MEMORY_MIB NAME[/ID]=IP=ARGUMENTS...
//! belay-guest-cloud boot|cut SOCKET NAME
//! belay-guest-cloud plug SOCKET NAME SERIAL FILE [VENDOR PRODUCT]
//! belay-guest-cloud grow SOCKET NAME SERIAL BYTES
//! belay-guest-cloud unplug SOCKET NAME SERIAL
//! belay-guest-cloud copy SOCKET NAME SERIAL FILE
//! belay-guest-cloud run SOCKET NAME SECONDS <SCRIPT
//! belay-guest-cloud secret
//! ```
//!
//! ARGUMENTS of a guest's kernel are separated by spaces. ID is the server's ID, by default a
//! generated one; the operator may use it in place of the NAME. The exit code of `run` is the
//! script's; 125 if the guest does not exist, is off, or does not respond in time. `plug` is for
//! another cloud that has these guests as servers: a file becomes a virtio disk with this serial,
//! truncated as libvirt does, or a SCSI disk of this vendor and product, where `_` is a space.
//! SLOTS is the number of virtio slots, or `BLOCKS+SCSIS`. `copy` copies a disk at one instant.

mod api;
mod server;
#[cfg(test)]
mod tests;
mod volumes;

use std::fs;
use std::io::{self, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::Scope;
use std::time::Duration;

use belay_guest::{Gone, Hardware, Kernel, Machine, Medium, Output};
use belay_twins::http::Request;

use api::Api;
use server::{Host as _, Server};
use volumes::Volumes;

/// The exit code of a call that reached no guest.
const UNREACHED: u8 = 125;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        [
            "serve",
            socket,
            address,
            directory,
            slots,
            memory,
            ref servers @ ..,
        ] => serve([socket, address, directory, slots, memory], servers),
        [verb @ ("boot" | "cut"), socket, name] => call(socket, &format!("{verb} {name} 0\n")),
        [
            verb @ ("plug" | "grow" | "unplug" | "copy"),
            socket,
            ref more @ ..,
        ] => call(socket, &format!("{verb} {}\n", more.join(" "))),
        ["run", socket, name, seconds] => io::read_to_string(io::stdin())
            .map_err(Into::into)
            .and_then(|script| call(socket, &format!("run {name} {seconds}\n{script}"))),
        ["secret"] => print(api::SECRET),
        _ => Err("see the head of tests/beds/guest/src/cloud/main.rs for the usage".into()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("belay-guest-cloud: {error}");
        ExitCode::from(UNREACHED)
    })
}

fn print(text: &str) -> Result<ExitCode> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.is_empty() && !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Sends a request to the operator's socket. The response is the exit code on a line, and a text.
fn call(socket: &str, request: &str) -> Result<ExitCode> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(request.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let response = io::read_to_string(stream)?;
    let (code, text) = response.split_once('\n').ok_or("no answer")?;
    print(text)?;
    Ok(ExitCode::from(code.parse::<u8>()?))
}

/// Serves until it is killed; its guests end with it.
fn serve(
    [socket, address, directory, slots, memory]: [&str; 5],
    servers: &[&str],
) -> Result<ExitCode> {
    let (blocks, scsis) = slots.split_once('+').unwrap_or((slots, "0"));
    let (blocks, scsis) = (blocks.parse()?, scsis.parse()?);
    let kernel = Kernel::newest().unwrap_or_else(Kernel::of_distribution);
    let mut named = Vec::new();
    for (at, server) in servers.iter().enumerate() {
        let [name, ip, more] = server.splitn(3, '=').collect::<Vec<_>>()[..] else {
            return Err(format!("{server}: must be NAME[/ID]=IP=ARGUMENTS").into());
        };
        let generated = format!("b0000000-0000-4000-8000-{at:012}");
        let (name, id) = name.split_once('/').unwrap_or((name, &generated));
        let hardware = Hardware {
            blocks,
            scsis,
            memory: memory.parse()?,
            more: more.split_whitespace().map(str::to_owned).collect(),
        };
        let machine = Machine::new(kernel.clone(), hardware);
        named.push((name, id.to_owned(), ip.parse::<IpAddr>()?, machine));
    }
    let servers = named.iter().map(|(name, id, address, machine)| {
        Server::new((name, id), *address, machine, (blocks, scsis))
    });
    let api = Api {
        volumes: Volumes::new(servers.collect(), Path::new(directory).to_owned()),
        url: format!("http://{address}"),
    };
    let listener = TcpListener::bind(address)?;
    let operator = UnixListener::bind(socket)?;
    let api = &api;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for stream in operator.incoming().flatten() {
                scope.spawn(move || report("the operator", obey(api, stream)));
            }
        });
        for stream in listener.incoming().flatten() {
            scope.spawn(move || report("a client", respond(scope, api, &stream)));
        }
    });
    Ok(ExitCode::SUCCESS)
}

fn report(who: &str, done: io::Result<()>) {
    if let Err(error) = done {
        eprintln!("belay-guest-cloud: {who}: {error}");
    }
}

/// Responds to all requests of a connection. Changes continue after the response.
fn respond<'scope, 'env, 'machine>(
    scope: &'scope Scope<'scope, 'env>,
    api: &'env Api<Server<'machine>>,
    stream: &TcpStream,
) -> io::Result<()> {
    let from = stream.peer_addr()?.ip();
    let mut reader = BufReader::new(stream);
    while let Some(request) = Request::read(&mut reader)? {
        let (response, work) = api.handle(&request, from);
        let (method, path) = (&request.method, &request.path);
        if method != "GET" || response.status >= 400 {
            eprintln!("{from}: {method} {path}: {}", response.status);
        }
        if let Some(work) = work {
            scope.spawn(move || api.volumes.perform(&work));
        }
        let mut stream = stream;
        response.write(&mut stream)?;
        if request.is_last() {
            break;
        }
    }
    Ok(())
}

/// Carries out a request of the operator.
fn obey(api: &Api<Server<'_>>, mut stream: UnixStream) -> io::Result<()> {
    let mut request = String::new();
    stream.read_to_string(&mut request)?;
    let (head, script) = request.split_once('\n').unwrap_or((&request, ""));
    let words: Vec<&str> = head.split(' ').collect();
    let named = |name: &str| {
        let mut servers = api.volumes.servers.iter();
        servers.find(|server| server.name() == name || server.id() == name)
    };
    let (code, text) = match words.get(1).and_then(|name| named(name)) {
        None => (i32::from(UNREACHED), format!("{head}: no such guest")),
        Some(server) => done(server, &words, script),
    };
    let code = u8::try_from(code).unwrap_or(UNREACHED);
    stream.write_all(format!("{code}\n{text}").as_bytes())
}

/// Returns the exit code and the output of a request for this guest.
fn done(server: &Server<'_>, words: &[&str], script: &str) -> (i32, String) {
    // The serial may be complete or truncated.
    let serial = |id| match server.has(id) {
        true => id,
        false => volumes::serial(id),
    };
    match *words {
        ["boot", ..] => server.boot(),
        ["cut", ..] => server.cut(),
        ["plug", _, id, file, ref model @ ..] => match fs::metadata(file) {
            Ok(about) => {
                let medium = Arc::new(Medium::new(Path::new(file), about.len()));
                let plugged = match *model {
                    [vendor, product] => {
                        let product = product.replace('_', " ");
                        server.plug_scsi((vendor, &product), id, &medium)
                    }
                    _ => server.plug(serial(id), &medium),
                };
                if let Err(why) = plugged {
                    return (1, why);
                }
            }
            Err(error) => return (1, format!("{file}: {error}")),
        },
        ["copy", _, id, file] => {
            if let Err(error) = server.copy(serial(id), Path::new(file)) {
                return (1, format!("{file}: {error}"));
            }
        }
        ["grow", _, id, bytes] => match bytes.parse() {
            Ok(bytes) => server.grow(serial(id), bytes),
            Err(error) => return (1, format!("{bytes}: {error}")),
        },
        ["unplug", _, id] => server.unplug(serial(id)),
        ["run", _, seconds] => {
            let within = Duration::from_secs(seconds.parse().unwrap_or(60));
            return match server.run(script, within) {
                Ok(Output { code, text }) => (code, text),
                Err(Gone) => (i32::from(UNREACHED), format!("{} is off", server.name())),
            };
        }
        _ => return (1, format!("{words:?}: no such request")),
    }
    (0, String::new())
}
