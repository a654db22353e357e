//! An API server with its etcd on the loopback interface, and a relay in front of it whose
//! connections a test can cut. Needs the programs of `tests/beds/kubernetes/build/build.sh`.

use belay_bed::patience::until;
use belay_bed::programs::{Running, program};
use belay_bed::scrape;
use belay_controller::kubernetes::{Access, Client};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// The token of an administrator.
const TOKEN: &str = "administrator-token";

/// A running API server.
pub(crate) struct Server {
    etcd: SocketAddr,
    peers: SocketAddr,
    api: SocketAddr,
    /// The address of the relay, which the client uses.
    relay: SocketAddr,
    /// Both ends of all connections that the relay has accepted.
    open: Arc<Mutex<Vec<TcpStream>>>,
    running_etcd: Mutex<Option<Running>>,
    running: Mutex<Option<Running>>,
    /// The files of the programs. The last field, since fields are dropped in order: the programs
    /// end before their files are removed.
    dir: TempDir,
}

impl Server {
    /// Starts etcd, an API server and the relay, and creates the definitions and the policies of
    /// the chart.
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let user = format!("{TOKEN},administrator,administrator,\"system:masters\"\n");
        fs::write(dir.path().join("tokens"), user).unwrap();
        fs::write(dir.path().join("token"), TOKEN).unwrap();
        let [etcd, peers, api] = [(); 3].map(|()| scrape::free_port().unwrap());
        let open = Arc::default();
        let relay = relay(api, &open);
        let server = Self {
            dir,
            etcd,
            peers,
            api,
            relay,
            open,
            running_etcd: Mutex::default(),
            running: Mutex::default(),
        };
        server.start_etcd();
        server.restart();
        server.kubectl(&["create", "--filename", &chart("")]);
        let established = ["wait", "--for=condition=Established", "crd", "--all"];
        server.kubectl(&established);
        server
    }

    fn start_etcd(&self) {
        let url = |address| format!("http://{address}");
        let running = run(
            "etcd",
            &self.dir.path().join("etcd.log"),
            &[
                (
                    "data-dir",
                    self.dir.path().join("etcd").display().to_string(),
                ),
                ("listen-client-urls", url(self.etcd)),
                ("advertise-client-urls", url(self.etcd)),
                ("listen-peer-urls", url(self.peers)),
                ("initial-advertise-peer-urls", url(self.peers)),
                ("initial-cluster", format!("default={}", url(self.peers))),
                ("unsafe-no-fsync", "true".to_owned()),
                ("log-level", "warn".to_owned()),
            ],
        );
        *self.running_etcd.lock().unwrap() = Some(running);
    }

    /// Copies the data of etcd, while neither etcd nor the API server runs.
    pub(crate) fn back_up(&self) {
        self.without_etcd(["etcd", "backup"]);
    }

    /// Replaces the data of etcd with the copy, as an operator does who restores a backup.
    pub(crate) fn restore(&self) {
        self.without_etcd(["backup", "etcd"]);
    }

    /// Copies a directory over another while neither etcd nor the API server runs.
    fn without_etcd(&self, [from, to]: [&str; 2]) {
        *self.running.lock().unwrap() = None;
        *self.running_etcd.lock().unwrap() = None;
        let [from, to] = [from, to].map(|name| self.dir.path().join(name));
        if to.exists() {
            fs::remove_dir_all(&to).unwrap();
        }
        let copied = Command::new("cp")
            .arg("--archive")
            .args([from, to])
            .status();
        assert!(copied.unwrap().success());
        self.start_etcd();
        self.restart();
    }

    /// Kills the API server, if it runs, and starts it. A new one knows only changes after its
    /// start.
    pub(crate) fn restart(&self) {
        *self.running.lock().unwrap() = None;
        let chain = certificate("server.pem").display().to_string();
        let key = certificate("server.key").display().to_string();
        let tokens = self.dir.path().join("tokens").display().to_string();
        let running = run(
            "kube-apiserver",
            &self.dir.path().join("api.log"),
            &[
                ("etcd-servers", format!("http://{}", self.etcd)),
                ("bind-address", self.api.ip().to_string()),
                ("advertise-address", self.api.ip().to_string()),
                ("secure-port", self.api.port().to_string()),
                ("endpoint-reconciler-type", "none".to_owned()),
                ("service-cluster-ip-range", "10.98.0.0/24".to_owned()),
                ("tls-cert-file", chain.clone()),
                ("tls-private-key-file", key.clone()),
                ("token-auth-file", tokens),
                ("authorization-mode", "RBAC".to_owned()),
                (
                    "service-account-issuer",
                    "https://kubernetes.default.svc".to_owned(),
                ),
                ("service-account-key-file", chain),
                ("service-account-signing-key-file", key),
                ("profiling", "false".to_owned()),
            ],
        );
        *self.running.lock().unwrap() = Some(running);
        until("the API server is ready", || {
            self.try_kubectl(&["get", "--raw", "/readyz"], "")
                .status
                .success()
        });
    }

    /// Returns a client that uses the relay.
    pub(crate) fn client(&self) -> Arc<Client> {
        Arc::new(Client::new(self.access()).unwrap())
    }

    /// Returns the access through the relay.
    pub(crate) fn access(&self) -> Access {
        Access {
            server: format!("https://{}", self.relay),
            token: self.dir.path().join("token"),
            authority: certificate("authority.pem"),
        }
    }

    /// Returns the host and the port of the relay.
    pub(crate) fn relay(&self) -> (String, String) {
        (self.relay.ip().to_string(), self.relay.port().to_string())
    }

    /// Deletes all volumes.
    pub(crate) fn clear(&self) {
        self.delete_object_only("localvolumes");
    }

    /// Deletes an object, or all objects of a kind, whose files remain: the message of the policy
    /// describes these steps.
    pub(crate) fn delete_object_only(&self, path: &str) {
        let binding = "validatingadmissionpolicybindings/belay-objects";
        self.kubectl(&["delete", binding]);
        let path = format!("/apis/belay.dev/v1alpha1/{path}");
        until("the binding has no effect", || {
            let done = self.try_kubectl(&["delete", "--raw", &path], "");
            done.status.success()
        });
        self.kubectl(&["apply", "--filename", &chart("policies.yaml")]);
    }

    /// Removes all versions but the current one from etcd.
    pub(crate) fn compact(&self) {
        let status = post(self.etcd, "/v3/maintenance/status", "{}");
        let revision = status.split(r#""revision":""#).nth(1).unwrap();
        let revision = revision.split('"').next().unwrap();
        let body = format!(r#"{{"revision": "{revision}"}}"#);
        post(self.etcd, "/v3/kv/compaction", &body);
    }

    /// Cuts all connections through the relay.
    pub(crate) fn cut(&self) {
        for end in &*self.open.lock().unwrap() {
            // The connection may have ended before.
            drop(end.shutdown(Shutdown::Both));
        }
    }

    /// Returns the number of connections that the relay has accepted.
    pub(crate) fn connections(&self) -> usize {
        self.open.lock().unwrap().len() / 2
    }

    /// Returns kubectl and its flags for the administrator.
    pub(crate) fn administrator(&self) -> Vec<String> {
        let kubectl = programs().join("kubectl").display().to_string();
        let authority = certificate("authority.pem").display().to_string();
        let flags = [
            format!("--server=https://{}", self.api),
            format!("--token={TOKEN}"),
            format!("--certificate-authority={authority}"),
        ];
        [kubectl].into_iter().chain(flags).collect()
    }

    /// Runs kubectl, and panics if it fails.
    pub(crate) fn kubectl(&self, words: &[&str]) -> String {
        self.kubectl_with(words, "")
    }

    /// Runs kubectl with this input, and panics if it fails.
    pub(crate) fn kubectl_with(&self, words: &[&str], input: &str) -> String {
        let done = self.try_kubectl(words, input);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "kubectl {words:?}: {errors}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// Runs kubectl with this input.
    pub(crate) fn try_kubectl(&self, words: &[&str], input: &str) -> Output {
        self.kubectl_as(TOKEN, words, input)
    }

    /// Runs kubectl with this token and input.
    pub(crate) fn kubectl_as(&self, token: &str, words: &[&str], input: &str) -> Output {
        let file = self.dir.path().join("input");
        fs::write(&file, input).unwrap();
        let mut kubectl = Command::new(programs().join("kubectl"));
        kubectl
            .args(["--server", &format!("https://{}", self.api)])
            .args(["--token", token, "--certificate-authority"])
            .arg(certificate("authority.pem"))
            .arg("--cache-dir")
            .arg(self.dir.path().join("cache"))
            .args(words)
            // Not the configuration of the user who runs the test.
            .env("KUBECONFIG", self.dir.path().join("none"))
            .stdin(Stdio::from(File::open(&file).unwrap()));
        kubectl.output().unwrap()
    }
}

/// Returns the path of a file with definitions or policies.
pub(crate) fn chart(file: &str) -> String {
    let objects = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart/objects");
    objects.join(file).display().to_string()
}

/// Returns the path of a file of the authority in `openstack_twin/tls/README.md`.
fn certificate(name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    tests.join("openstack_twin/tls").join(name)
}

fn programs() -> PathBuf {
    let programs = std::env::var_os("BELAY_KUBERNETES");
    PathBuf::from(programs.expect("BELAY_KUBERNETES: not set; run `make objects`"))
}

fn run(name: &str, log: &Path, flags: &[(&str, String)]) -> Running {
    let mut command = program([programs().join(name)]);
    command.args(
        flags
            .iter()
            .map(|(flag, value)| format!("--{flag}={value}")),
    );
    let log = File::create(log).unwrap();
    command.stdout(log.try_clone().unwrap()).stderr(log);
    Running::start(&mut command).unwrap()
}

/// Makes a call to etcd's JSON gateway.
fn post(to: SocketAddr, path: &str, body: &str) -> String {
    let length = body.len();
    let request =
        format!("POST {path} HTTP/1.0\r\nHost: {to}\r\nContent-Length: {length}\r\n\r\n{body}");
    let mut stream = TcpStream::connect(to).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 OK"), "{path}: {answer}");
    answer
}

/// Forwards connections until the process exits. Returns the address.
fn relay(to: SocketAddr, open: &Arc<Mutex<Vec<TcpStream>>>) -> SocketAddr {
    let listener = scrape::listen().unwrap();
    let address = listener.local_addr().unwrap();
    let open = Arc::clone(open);
    std::thread::spawn(move || {
        while let Ok((from, _)) = listener.accept() {
            let Ok(to) = TcpStream::connect(to) else {
                continue;
            };
            let pairs = [(&from, &to), (&to, &from)];
            for (from, to) in pairs.map(|(a, b)| (a.try_clone(), b.try_clone())) {
                let (mut from, mut to) = (from.unwrap(), to.unwrap());
                std::thread::spawn(move || {
                    // Either side may close at any time, and a test may cut both.
                    drop(std::io::copy(&mut from, &mut to));
                    drop(to.shutdown(Shutdown::Both));
                });
            }
            open.lock().unwrap().extend([from, to]);
        }
    });
    address
}
