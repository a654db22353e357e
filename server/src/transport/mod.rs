//! The transport of the server: its socket, its connections, its HTTP pages. Knows calls only to
//! count them.

mod acceptor;
mod authority;
mod listener;
mod pages;
mod socket;
mod unsent;

pub(crate) use listener::Server;
pub use pages::Pages;
pub(crate) use pages::Shown;
pub use socket::Socket;
pub(crate) use socket::SocketFile;
