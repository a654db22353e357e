//! The transport of the server: its socket, its connections and its HTTP pages. The transport
//! counts calls, but does not depend on their meaning.

mod acceptor;
mod authority;
mod listener;
mod pages;
mod socket;

pub(crate) use listener::Server;
pub(crate) use pages::PageContent;
pub use pages::Pages;
pub use socket::Socket;
pub(crate) use socket::SocketFile;
