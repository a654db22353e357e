//! The codec of all generated services: prost's, with buffers for small messages. tonic's own have
//! 8 KiB for each request and again for each response, most of which have less than 1 KiB; of 64
//! calls at once, that is a megabyte. Larger messages get as much as they need.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// In bytes: most requests of the kubelet, twice, and most responses.
const BUFFER_BYTES: usize = 1 << 10;
/// As tonic's: a stream of messages is sent in parts of so many bytes.
const YIELD_BYTES: usize = 32 << 10;

/// Encodes `T`, decodes `U`.
#[derive(Clone, Debug)]
pub struct SmallCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = SizedEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> SizedEncoder<T> {
        SizedEncoder(ProstEncoder::new(settings()))
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstDecoder::new(settings())
    }
}

fn settings() -> BufferSettings {
    BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
}

/// Makes room for all of a message before it is encoded, so that a long list is not copied from
/// buffer to buffer while these grow.
#[derive(Clone, Debug)]
pub struct SizedEncoder<T>(ProstEncoder<T>);

impl<T: Message> Encoder for SizedEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.encoded_len());
        self.0.encode(item, buffer)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}
