//! Content by its hash, on a filesystem or S3.

use std::{fmt::Write as _, path::Path as FilePath, sync::Arc};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream::BoxStream};
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart, local::LocalFileSystem, path::Path};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// Content up to this size is stored in one piece; larger content flows through memory in parts.
const SMALL: usize = 1 << 20;
/// Parts of an upload that are under way at once.
const PARTS: usize = 4;

/// What can go wrong with content.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The address is none.
    #[error("ESC_ARTIFACTS_URL `{0}` is neither a folder nor an address such as s3://bucket/prefix")]
    Address(String),
    /// The folder can't be made.
    #[error("the folder `{folder}` for artifacts can't be made")]
    Folder {
        /// Which one.
        folder: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The object store did not do it.
    #[error("the object store failed at {operation}")]
    Store {
        /// What was tried.
        operation: &'static str,
        /// Why not.
        #[source]
        source: object_store::Error,
    },
    /// It is too large.
    #[error("the content has more than {0} bytes")]
    TooLarge(u64),
    /// Whoever sends it stopped.
    #[error("the content ended before its time: {0}")]
    Cut(String),
}

impl BlobError {
    /// Whether the content is not there at all.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Store { source: object_store::Error::NotFound { .. }, .. })
    }
}

fn failed(operation: &'static str) -> impl FnOnce(object_store::Error) -> BlobError {
    move |source| BlobError::Store { operation, source }
}

/// Stored content: its hash and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// SHA-256, hex.
    pub digest: String,
    /// Bytes.
    pub bytes: u64,
}

/// The store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Blobs {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    max_bytes: u64,
}

impl Blobs {
    /// Opens a folder, which is made if need be, or an object store with its settings from the environment (`AWS_*`).
    pub fn open(address: &str, max_bytes: u64) -> Result<Self, BlobError> {
        let remote = address.contains("://") && !address.starts_with("file://");
        let (store, prefix): (Arc<dyn ObjectStore>, Path) = if remote {
            let url = address.parse().map_err(|_| BlobError::Address(address.to_owned()))?;
            let settings = std::env::vars().map(|(key, value)| (key.to_ascii_lowercase(), value));
            let (store, prefix) = object_store::parse_url_opts(&url, settings).map_err(failed("opening it"))?;
            (Arc::from(store), prefix)
        } else {
            let folder = address.strip_prefix("file://").unwrap_or(address);
            std::fs::create_dir_all(FilePath::new(folder))
                .map_err(|source| BlobError::Folder { folder: folder.to_owned(), source })?;
            (Arc::new(LocalFileSystem::new_with_prefix(folder).map_err(failed("opening it"))?), Path::default())
        };
        Ok(Self { store, prefix, max_bytes })
    }

    fn at(&self, key: &str) -> Path {
        self.prefix.parts().chain(Path::from(key).parts()).collect()
    }

    fn of_digest(&self, digest: &str) -> Path {
        self.at(&format!("sha256/{}/{digest}", &digest[..2]))
    }

    /// Stores content under its hash. The same content again is stored once.
    pub async fn put<E: std::fmt::Display>(
        &self,
        mut content: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<Blob, BlobError> {
        let mut hasher = Sha256::new();
        let mut head = Vec::new();
        while let Some(chunk) = content.next().await {
            let chunk = chunk.map_err(|error| BlobError::Cut(error.to_string()))?;
            hasher.update(&chunk);
            head.extend_from_slice(&chunk);
            if head.len() as u64 > self.max_bytes {
                return Err(BlobError::TooLarge(self.max_bytes));
            }
            if head.len() > SMALL {
                return self.put_large(hasher, head, content).await;
            }
        }
        let blob = Blob { digest: hex(hasher), bytes: head.len() as u64 };
        let to = self.of_digest(&blob.digest);
        self.store.put(&to, PutPayload::from(head)).await.map_err(failed("storing content"))?;
        Ok(blob)
    }

    /// The hash is known only at the end: content goes to a place of its own first, and is moved when it is whole.
    async fn put_large<E: std::fmt::Display>(
        &self,
        hasher: Sha256,
        head: Vec<u8>,
        content: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<Blob, BlobError> {
        let part = self.at(&format!("incoming/{}", Uuid::now_v7().simple()));
        let upload = self.store.put_multipart(&part).await.map_err(failed("beginning an upload"))?;
        let mut writer = WriteMultipart::new(upload);
        let blob = match self.write(&mut writer, hasher, head, content).await {
            Ok(blob) => blob,
            Err(error) => {
                if let Err(left) = writer.abort().await {
                    tracing::warn!(error = &left as &dyn std::error::Error, "a broken upload was not removed");
                }
                return Err(error);
            }
        };
        writer.finish().await.map_err(failed("ending an upload"))?;
        self.store.rename(&part, &self.of_digest(&blob.digest)).await.map_err(failed("moving content"))?;
        Ok(blob)
    }

    async fn write<E: std::fmt::Display>(
        &self,
        writer: &mut WriteMultipart,
        mut hasher: Sha256,
        head: Vec<u8>,
        mut content: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<Blob, BlobError> {
        let mut bytes = head.len() as u64;
        writer.write(&head);
        drop(head);
        while let Some(chunk) = content.next().await {
            let chunk = chunk.map_err(|error| BlobError::Cut(error.to_string()))?;
            bytes += chunk.len() as u64;
            if bytes > self.max_bytes {
                return Err(BlobError::TooLarge(self.max_bytes));
            }
            hasher.update(&chunk);
            writer.wait_for_capacity(PARTS).await.map_err(failed("an upload"))?;
            writer.put(chunk);
        }
        Ok(Blob { digest: hex(hasher), bytes })
    }

    /// The content of this hash, as it comes.
    pub async fn get(&self, digest: &str) -> Result<BoxStream<'static, Result<Bytes, object_store::Error>>, BlobError> {
        let found = self.store.get(&self.of_digest(digest)).await.map_err(failed("reading content"))?;
        Ok(found.into_stream())
    }

    /// Stores a document under a key of its own.
    pub async fn put_at(&self, key: &str, content: Vec<u8>) -> Result<(), BlobError> {
        self.store.put(&self.at(key), PutPayload::from(content)).await.map_err(failed("storing a segment"))?;
        Ok(())
    }

    /// A document under a key of its own.
    pub async fn get_at(&self, key: &str) -> Result<Bytes, BlobError> {
        let found = self.store.get(&self.at(key)).await.map_err(failed("reading a segment"))?;
        found.bytes().await.map_err(failed("reading a segment"))
    }
}

fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{TryStreamExt, stream};

    use super::*;

    fn chunks(count: usize, size: usize) -> impl Stream<Item = Result<Bytes, Infallible>> + Unpin {
        stream::iter((0..count).map(move |number| Ok(Bytes::from(vec![u8::try_from(number % 251).unwrap(); size]))))
    }

    async fn read(blobs: &Blobs, digest: &str) -> Vec<u8> {
        let parts: Vec<Bytes> = blobs.get(digest).await.unwrap().try_collect().await.unwrap();
        parts.concat()
    }

    #[tokio::test]
    async fn content_comes_back_by_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().to_str().unwrap(), 1 << 30).unwrap();
        let small = blobs.put(stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"hello"))])).await.unwrap();
        assert_eq!(small.digest, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
        assert_eq!(read(&blobs, &small.digest).await, b"hello");

        let large = blobs.put(chunks(100, 100_000)).await.unwrap();
        assert_eq!(large.bytes, 10_000_000);
        assert_eq!(read(&blobs, &large.digest).await.len(), 10_000_000);
        assert_eq!(blobs.put(chunks(100, 100_000)).await.unwrap(), large, "the same again");
        assert!(blobs.get(&"0".repeat(64)).await.err().unwrap().is_missing());
    }

    #[tokio::test]
    async fn what_is_too_large_or_cut_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().to_str().unwrap(), 2_000_000).unwrap();
        assert!(matches!(blobs.put(chunks(30, 100_000)).await, Err(BlobError::TooLarge(_))));
        let cut = chunks(15, 100_000).map(|chunk| chunk.map_err(|never| match never {}));
        let cut = cut.chain(stream::iter([Err::<Bytes, _>("gone".to_owned())]));
        assert!(matches!(blobs.put(cut).await, Err(BlobError::Cut(_))));
        let left = std::fs::read_dir(folder.path().join("sha256"));
        assert!(left.is_err() || left.unwrap().count() == 0);
    }

    #[test]
    fn an_address_that_is_none_says_what_would_be_one() {
        let error = Blobs::open("ftp://x/y", 1).unwrap_err();
        assert!(matches!(error, BlobError::Address(_) | BlobError::Store { .. }), "{error}");
    }
}
