//! How bytes reach the server and leave it: its socket, its connections, its pages for people.
//! Knows calls only to count them.

mod acceptor;
mod authority;
mod listener;
mod pages;
mod socket;

pub(crate) use listener::Server;
pub(crate) use pages::Pages;
pub use socket::Socket;
pub(crate) use socket::SocketFile;
