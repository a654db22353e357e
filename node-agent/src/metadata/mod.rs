//! The identity of this node, which is its ID and its zone, as the cloud's metadata reports them.
//! The identity is read whenever a driver starts, and is never stored: if an image of the node's
//! disk were started as a different instance, the image would contain the wrong identity. This
//! module reads the sources and the JSON members that the caller names, and must not depend on a
//! particular cloud.

mod drive;
pub(crate) mod file;
mod http;
mod json;

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use belay_contract::drivers::{Metadata, MetadataSource};
use belay_server::call::Failure;
use belay_server::request::NodeId;
use tokio::time::timeout;

use crate::kernel::linux::Linux;
use crate::work;

/// Maximum size of the metadata document in bytes, far above the sum of Nova's limits for user
/// metadata, keys and devices.
const BYTES_MAX: usize = 512 << 10;
/// Maximum time to wait for one metadata source, in each attempt. A metadata service on the same
/// host responds within milliseconds, unless the service must query its cloud first.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The cloud's description of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    /// The node's ID.
    pub(crate) id: NodeId,
    /// The node's zone; `None` if the document has none.
    pub(crate) zone: Option<String>,
    /// The name of the metadata source, for the log.
    pub(crate) source: &'static str,
}

type Document = Result<Vec<u8>, String>;
type Reading = Pin<Box<dyn Future<Output = Result<Document, Failure>> + Send>>;

/// The metadata sources of one driver.
pub(crate) struct Sources {
    metadata: &'static Metadata,
    order: Vec<MetadataSource>,
    service: SocketAddr,
    kernel: Linux,
    /// The read of the config drive that is in progress on a thread, if any. The read may continue
    /// after an attempt has timed out; the next attempt then waits for the same read.
    reading: Option<Reading>,
}

impl Sources {
    /// Returns the sources, which are queried in the order of `order`. `service` is the address of
    /// the metadata service.
    pub(crate) fn new(
        metadata: &'static Metadata,
        order: Vec<MetadataSource>,
        service: SocketAddr,
        kernel: Linux,
    ) -> Self {
        Sources {
            metadata,
            order,
            service,
            kernel,
            reading: None,
        }
    }

    /// Queries the sources one after the other until one returns the node's ID and, if `needs_zone`
    /// is set, the node's zone. Waits at most [`ANSWER_MAX`] for each source.
    ///
    /// # Errors
    /// Returns a message with the reason why each source did not return the ID or the zone.
    pub(crate) async fn read(&mut self, needs_zone: bool) -> Result<Instance, String> {
        let mut reasons = Vec::new();
        for source in self.order.clone() {
            let (from, document) = match source {
                MetadataSource::ConfigDrive => (source.name().to_owned(), self.drive().await),
                MetadataSource::Service => {
                    let url = format!("http://{}/{}", self.service, self.metadata.document);
                    (format!("{} ({url})", source.name()), self.service().await)
                }
            };
            let found =
                document.and_then(|text| instance(self.metadata, source, &text, needs_zone));
            match found {
                Ok(instance) => {
                    self.reading = None;
                    return Ok(instance);
                }
                Err(why) => reasons.push(format!("{from}: {why}")),
            }
        }
        Err(reasons.join("; "))
    }

    async fn drive(&mut self) -> Document {
        let (kernel, metadata) = (self.kernel.clone(), self.metadata);
        let reading = self.reading.get_or_insert_with(|| {
            let (label, document) = (metadata.drive_label, metadata.document);
            Box::pin(work::apart(move || {
                drive::read(&kernel, label, document, BYTES_MAX)
            }))
        });
        let Ok(read) = timeout(ANSWER_MAX, reading.as_mut()).await else {
            let seconds = ANSWER_MAX.as_secs();
            return Err(format!("a disk has not answered for {seconds} s"));
        };
        self.reading = None;
        read.unwrap_or_else(|failure| Err(failure.message))
    }

    async fn service(&mut self) -> Document {
        let get = http::get(self.service, self.metadata.document, BYTES_MAX);
        match timeout(ANSWER_MAX, get).await {
            Ok(body) => body.map_err(|refused| refused.to_string()),
            Err(_) => Err(format!(
                "no complete response within {} s",
                ANSWER_MAX.as_secs()
            )),
        }
    }
}

/// Parses the document of a metadata source.
fn instance(
    metadata: &Metadata,
    source: MetadataSource,
    document: &[u8],
    needs_zone: bool,
) -> Result<Instance, String> {
    let members = json::members(document, [metadata.id, metadata.zone]);
    let [id, zone] = members.map_err(|bad| bad.to_string())?;
    let id = id.ok_or(format!("the document has no {}", metadata.id))?;
    let id = NodeId::new(&id).map_err(|failure| format!("{}: {failure}", metadata.id))?;
    let zone = zone.filter(|zone| !zone.is_empty());
    if zone.is_none() && needs_zone {
        let member = metadata.zone;
        return Err(format!(
            "the document has no {member}, which topology needs"
        ));
    }
    let source = source.name();
    Ok(Instance { id, zone, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_contract::drivers::OPENSTACK;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    fn read(document: &str) -> Result<Instance, String> {
        let metadata = OPENSTACK.metadata.unwrap();
        instance(
            metadata,
            MetadataSource::Service,
            document.as_bytes(),
            false,
        )
    }

    #[test]
    fn the_document_of_an_instance_has_its_id_and_zone() {
        let found = read(r#"{"uuid":"7f8b","availability_zone":"z 1","admin_pass":"x"}"#).unwrap();
        assert_eq!(
            (found.id.as_str(), found.zone.as_deref()),
            ("7f8b", Some("z 1"))
        );
        assert_eq!(found.source, "metadataService");
        assert_eq!(
            read(r#"{"uuid":"7f8b","availability_zone":""}"#)
                .unwrap()
                .zone,
            None
        );
    }

    /// Starts a metadata service that sends the next of these responses to each request.
    async fn service(responses: Vec<String>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            for response in responses {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    stream.read_buf(&mut request).await.unwrap();
                }
                // The client may have closed the connection after it has read enough.
                stream.write_all(response.as_bytes()).await.ok();
            }
        });
        address
    }

    async fn asked(at: SocketAddr) -> Result<Instance, String> {
        let metadata = OPENSTACK.metadata.unwrap();
        let order = vec![MetadataSource::Service; 2];
        let mut sources = Sources::new(metadata, order, at, Linux::for_helper());
        sources.read(false).await
    }

    #[tokio::test]
    async fn a_source_that_does_not_know_the_node_is_followed_by_the_next_one() {
        let unknown = "HTTP/1.1 404 Not Found\r\n\r\n";
        let padding = "x".repeat(300 << 10);
        let document = format!(r#"{{"uuid":"7f8b","padding":"{padding}"}}"#);
        let known = format!("HTTP/1.1 200 OK\r\n\r\n{document}");
        let at = service(vec![unknown.to_owned(), known]).await;
        let found = asked(at).await.unwrap();
        assert_eq!(
            (found.id.as_str(), found.source),
            ("7f8b", "metadataService")
        );

        let broken = "HTTP/1.1 503 Oh\r\n\r\n";
        let at = service(vec![unknown.to_owned(), broken.to_owned()]).await;
        let url = format!("http://{at}/{}", OPENSTACK.metadata.unwrap().document);
        let source = format!("metadataService ({url}): HTTP status");
        let expected = format!(
            "{source} 404: the service does not know this node, or does not have this document; \
             {source} 503: the service fails"
        );
        assert_eq!(asked(at).await, Err(expected));
    }

    #[test]
    fn a_document_without_a_zone_is_refused_only_if_a_zone_is_needed() {
        let metadata = OPENSTACK.metadata.unwrap();
        let document = br#"{"uuid":"7f8b"}"#;
        let read = |needed| instance(metadata, MetadataSource::ConfigDrive, document, needed);
        assert_eq!(read(false).unwrap().zone, None);
        assert!(read(true).unwrap_err().contains("no availability_zone"));
    }

    #[test]
    fn a_document_without_an_id_is_refused_with_the_members_name() {
        let long = format!(r#"{{"uuid":"{}"}}"#, "x".repeat(257));
        for (document, why) in [
            ("{}", "no uuid"),
            (r#"{"uuid":null}"#, "no uuid"),
            (r#"{"uuid":""}"#, "uuid: "),
            (&long, "uuid: "),
            ("<html>", "not valid JSON"),
        ] {
            let refused = read(document).unwrap_err();
            assert!(refused.contains(why), "{document}: {refused}");
        }
    }
}
