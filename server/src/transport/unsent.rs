//! The body of a response that knows when its bytes have been written to the socket. Does not know
//! its content.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A body that drops its `guard` when the last of its bytes has been written, or discarded because
/// the caller has disconnected. The HTTP/2 library takes all bytes from a body long before that.
pub(crate) struct Unsent<B, G> {
    body: B,
    /// The guard, shared with the bytes that have left the body. `None` if nothing waits for them.
    guard: Option<Arc<G>>,
}

/// Bytes with their share of the guard.
struct GuardedBytes<G> {
    bytes: Bytes,
    _guard: Arc<G>,
}

impl<B, G> Unsent<B, G> {
    /// Returns the body with this guard.
    pub(crate) fn new(body: B, guard: Option<G>) -> Self {
        Self {
            body,
            guard: guard.map(Arc::new),
        }
    }
}

impl<G> AsRef<[u8]> for GuardedBytes<G> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<B, G> Body for Unsent<B, G>
where
    B: Body<Data = Bytes> + Unpin,
    G: Send + Sync + 'static,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let Some(guard) = &self.guard else {
            return Poll::Ready(frame);
        };
        let guarded = |bytes| {
            Bytes::from_owner(GuardedBytes {
                bytes,
                _guard: Arc::clone(guard),
            })
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(guarded))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
