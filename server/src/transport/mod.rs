//! The transport of the server: its socket, its connections, its HTTP pages. Knows calls only to
//! count them.

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
