//! Serves a twin of a cloud to programs in other languages, and to a cluster of guests.
//!
//! ```text
//! belay-twins [FLAG...] DROPLET[=NAME=IP]...   the twin of DigitalOcean, with these droplets
//! belay-twins --civo [FLAG...] NAME...         the twin of Civo, with instances of these names
//!   --delay-ms N               minimum duration of a change
//!   --address IP:PORT          serves there until it is killed; without it, serves on a free port
//!                              of loopback until its input ends, and prints the URL first
//!   --disks SOCKET DIRECTORY   keeps volumes as files in the directory, and plugs them into the
//!                              guest NAME by the operator's socket of belay-guest-cloud
//! only for DigitalOcean:
//!   --calls-a-minute N         maximum number of calls per minute, instead of 250
//!   --metadata IP:PORT         serves the metadata of the droplet that has the caller's IP
//! ```

use belay_twins::civo::{self, Civo};
use belay_twins::digitalocean::{self, DigitalOcean, metadata};
use belay_twins::http::{Request, Response};
use belay_twins::{Hypervisor, Model, Server, Service};
use std::io::{self, BufReader, Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

/// The regions of DigitalOcean; the droplets are in the first one.
const REGIONS: &[&str] = &["nyc1", "fra1"];

#[derive(Default)]
struct Settings {
    is_civo: bool,
    delay: Duration,
    calls: Option<usize>,
    address: Option<String>,
    metadata: Option<String>,
    disks: Option<(String, String)>,
    servers: Vec<String>,
}

struct Droplet {
    id: u64,
    /// The name and the address of the guest.
    guest: Option<(String, IpAddr)>,
}

fn main() -> ExitCode {
    let served = settings().and_then(|settings| match settings.is_civo {
        true => serve(settings.address.as_deref(), of_civo(&settings)),
        false => serve(settings.address.as_deref(), of_digitalocean(&settings)?),
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("belay-twins: {error}");
            ExitCode::FAILURE
        }
    }
}

fn settings() -> io::Result<Settings> {
    let mut settings = Settings::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut next = || {
            let value = words.next();
            value.ok_or_else(|| io::Error::other(format!("{word}: a value is missing")))
        };
        match word.as_str() {
            "--civo" => settings.is_civo = true,
            "--delay-ms" => settings.delay = Duration::from_millis(parsed(&next()?)?),
            "--calls-a-minute" => settings.calls = Some(parsed(&next()?)?),
            "--address" => settings.address = Some(next()?),
            "--metadata" => settings.metadata = Some(next()?),
            "--disks" => settings.disks = Some((next()?, next()?)),
            _ => settings.servers.push(word),
        }
    }
    Ok(settings)
}

impl Settings {
    fn hypervisor(&self, model: Model) -> Option<Hypervisor> {
        let (socket, directory) = self.disks.clone()?;
        Some(Hypervisor::new(socket.into(), directory.into(), model))
    }
}

fn named(word: &str) -> io::Result<Droplet> {
    let parts: Vec<&str> = word.split('=').collect();
    let guest = match parts[..] {
        [_, name, address] => Some((name.to_owned(), parsed(address)?)),
        _ => None,
    };
    let id = parsed(parts.first().copied().unwrap_or_default())?;
    Ok(Droplet { id, guest })
}

fn parsed<T: std::str::FromStr>(word: &str) -> io::Result<T>
where
    T::Err: std::fmt::Display,
{
    let parsed = word.parse();
    parsed.map_err(|error| io::Error::other(format!("{word:?}: {error}")))
}

fn of_civo(settings: &Settings) -> Civo {
    let mut cloud = Civo::new(settings.delay, settings.servers.len());
    if let Some(disks) = settings.hypervisor(civo::MODEL) {
        cloud = cloud.with_disks(disks);
    }
    let names = settings.servers.iter().map(String::as_str);
    cloud.twin().change().rename(names);
    cloud
}

fn of_digitalocean(settings: &Settings) -> io::Result<DigitalOcean> {
    let servers = settings.servers.iter();
    let droplets: Vec<_> = servers.map(|word| named(word)).collect::<io::Result<_>>()?;
    let ids: Vec<_> = droplets.iter().map(|droplet| droplet.id).collect();
    let mut cloud = DigitalOcean::new(REGIONS, &ids);
    cloud.settings().delay = settings.delay;
    if let Some(calls) = settings.calls {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
        cloud.limit((calls, minute), (calls.saturating_mul(60).max(5000), hour));
    }
    if let Some(disks) = settings.hypervisor(digitalocean::MODEL) {
        cloud = cloud.with_disks(disks);
    }
    for Droplet { id, guest } in &droplets {
        if let Some((name, _)) = guest {
            cloud.rename(*id, name);
        }
    }
    if let Some(address) = &settings.metadata {
        let listener = TcpListener::bind(address)?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Ignore errors: a client may close its connection at any time.
                drop(describe(&stream, &droplets));
            }
        });
    }
    Ok(cloud)
}

fn serve(address: Option<&str>, cloud: impl Service) -> io::Result<()> {
    let Some(address) = address else {
        let server = Server::start(cloud)?;
        let mut output = io::stdout();
        writeln!(output, "{}", server.url())?;
        output.flush()?;
        return io::stdin().read_to_end(&mut Vec::new()).map(drop);
    };
    let _server = Server::serve(TcpListener::bind(address)?, cloud)?;
    loop {
        std::thread::park();
    }
}

/// Serves the metadata of the droplets to the requests of a connection.
fn describe(stream: &TcpStream, droplets: &[Droplet]) -> io::Result<()> {
    let caller = stream.peer_addr()?.ip();
    let has_called = |droplet: &&Droplet| {
        let guest = droplet.guest.as_ref();
        guest.is_some_and(|(_, address)| *address == caller)
    };
    let droplet = droplets.iter().find(has_called);
    let region = REGIONS.first().copied().unwrap_or_default();
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = Request::read(&mut reader)? {
        let about = droplet.and_then(|droplet| metadata(droplet.id, region, &request.path));
        let response = Response {
            status: if about.is_some() { 200 } else { 404 },
            headers: Vec::new(),
            body: about.unwrap_or_default(),
        };
        let mut stream = stream;
        response.write(&mut stream)?;
        if request.is_last() {
            break;
        }
    }
    Ok(())
}
