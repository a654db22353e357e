//! Uses the method CONNECT (RFC 9110, 9.3.6) to open a tunnel through a proxy to a service. Errors
//! contain neither the user nor the password of the proxy.

use super::proxies::Proxy;
use bytes::Bytes;
use http::header::{HOST, PROXY_AUTHORIZATION};
use http::{Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper::client::conn::http1::handshake;
use hyper::upgrade;
use hyper_util::rt::TokioIo;
use std::error::Error;
use tokio::net::TcpStream;

type BoxError = Box<dyn Error + Send + Sync>;

/// Opens a tunnel to `service` on an open connection to the proxy.
///
/// # Errors
/// Fails if the proxy refuses the tunnel, or does not respond in HTTP. If the proxy refuses, the
/// error contains the status of the response.
pub(super) async fn open(
    tcp: TokioIo<TcpStream>,
    proxy: &Proxy,
    service: &Uri,
) -> Result<TcpStream, BoxError> {
    let host = service.host().ok_or("a URL without a host")?;
    let to = format!("{host}:{}", service.port_u16().unwrap_or(443));
    let mut request = Request::connect(&to).header(HOST, &to);
    if let Some(authorization) = &proxy.authorization {
        request = request.header(PROXY_AUTHORIZATION, authorization);
    }
    let request = request.body(Empty::<Bytes>::new())?;
    let (mut sender, connection) = handshake(tcp).await?;
    let answer = async move {
        let answer = sender.send_request(request).await?;
        Ok::<_, hyper::Error>((answer.status(), upgrade::on(answer)))
    };
    // The result of the connection task can be ignored, because an error of the connection also
    // makes the response fail.
    let (answer, _) = tokio::join!(answer, connection.with_upgrades());
    let (status, upgraded) = answer.map_err(|error| format!("no answer to CONNECT: {error}"))?;
    if !status.is_success() {
        return Err(refusal(proxy, &to, status).into());
    }
    let parts = upgraded.await?.downcast::<TokioIo<TcpStream>>();
    match parts {
        Ok(parts) if parts.read_buf.is_empty() => Ok(parts.io.into_inner()),
        _ => Err("the proxy has sent data before the service could".into()),
    }
}

fn refusal(proxy: &Proxy, to: &str, status: StatusCode) -> String {
    let cure = match status {
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => super::needs_user(proxy),
        _ => "allow the host there, or exclude it with NO_PROXY".to_owned(),
    };
    format!("the proxy refuses a tunnel to {to}: {status}; {cure}")
}
