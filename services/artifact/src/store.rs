//! Content by its hash, in a folder or in a bucket. Bounded memory, whatever the size of the content.

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream::BoxStream};
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutPayload, WriteMultipart, aws::AmazonS3Builder,
    local::LocalFileSystem, path::Path, prefix::PrefixStore,
};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// Content up to this size is written in one piece; parts of larger content have this size (S3 takes none smaller).
const PART_BYTES: usize = 5 << 20;
/// Parts of one upload that are under way at once.
const PARTS_AT_ONCE: usize = 2;
/// Where uploads are until their hash is known.
const TEMPORARY: &str = "tmp";
/// Uploads that are older were left behind by a crash.
const ABANDONED_SECONDS: i64 = 24 * 3600;

/// The address of the store is none that can be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder can't be made.
    #[error("can't use the folder {} for artifacts: {source}. Set artifacts_url (ESC_ARTIFACTS_URL) to another", path.display())]
    Folder {
        /// As given.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The address has an unknown form.
    #[error("artifacts_url (ESC_ARTIFACTS_URL) is `{0}`: give a folder or s3://bucket/prefix")]
    Unknown(String),
    /// The store can't be set up, such as for want of credentials.
    #[error("can't set up the object store")]
    Store(#[from] object_store::Error),
}

/// Content that was not stored.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// More than is allowed.
    #[error("the content has more than {0} bytes")]
    TooLarge(u64),
    /// The sender broke off.
    #[error("the content broke off")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The store did not take it.
    #[error("the object store did not take it")]
    Store(#[from] object_store::Error),
}

/// Content that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// SHA-256, hex.
    pub digest: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// The object store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
}

impl Store {
    /// A folder, which is made if need be, or `s3://bucket/prefix` with the usual `AWS_*` variables.
    ///
    /// # Errors
    /// When the address can't be used.
    pub fn open(address: &str) -> Result<Self, OpenError> {
        let objects: Arc<dyn ObjectStore> = match address.split_once("://") {
            Some(("s3", rest)) => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                let bucket = AmazonS3Builder::from_env().with_bucket_name(bucket).build()?;
                Arc::new(PrefixStore::new(bucket, prefix.trim_matches('/')))
            }
            Some(("file", path)) => folder(path)?,
            Some(_) => return Err(OpenError::Unknown(address.to_owned())),
            None => folder(address)?,
        };
        Ok(Self { objects })
    }

    /// Any other object store, such as one in memory.
    #[must_use]
    pub fn of(objects: Arc<dyn ObjectStore>) -> Self {
        Self { objects }
    }

    /// Stores content under its hash. Memory stays bounded: what is large goes to a temporary place while it is hashed.
    ///
    /// # Errors
    /// When it is too large, breaks off, or the store does not take it; then nothing is left of it.
    pub async fn put<S, E>(&self, body: S, max: u64) -> Result<Stored, PutError>
    where
        S: Stream<Item = Result<Bytes, E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut body = std::pin::pin!(body);
        let mut hash = Sha256::new();
        let mut bytes = 0;
        let mut upload = Upload::default();
        while let Some(chunk) = body.next().await {
            let outcome = match chunk {
                Err(error) => Err(PutError::Body(error.into())),
                Ok(chunk) if bytes + chunk.len() as u64 > max => Err(PutError::TooLarge(max)),
                Ok(chunk) => {
                    bytes += chunk.len() as u64;
                    hash.update(&chunk);
                    upload.write(&*self.objects, chunk).await.map_err(Into::into)
                }
            };
            if let Err(error) = outcome {
                upload.abort().await;
                return Err(error);
            }
        }
        let digest = hex::encode(hash.finalize());
        upload.finish(&*self.objects, &content_key(&digest)).await?;
        Ok(Stored { digest, bytes })
    }

    /// The content of this hash, or a part of it.
    ///
    /// # Errors
    /// When it is not there.
    pub async fn get(
        &self,
        digest: &str,
        range: Option<std::ops::Range<u64>>,
    ) -> Result<BoxStream<'static, object_store::Result<Bytes>>, object_store::Error> {
        let options = GetOptions::new().with_range(range.map(GetRange::Bounded));
        Ok(self.objects.get_opts(&content_key(digest), options).await?.into_stream())
    }

    /// Stores an object under a key; writing the same again is harmless.
    ///
    /// # Errors
    /// When the store does not take it.
    pub async fn put_object(&self, key: &str, content: Bytes) -> Result<(), object_store::Error> {
        self.objects.put(&Path::from(key), PutPayload::from_bytes(content)).await.map(drop)
    }

    /// The whole object of this key.
    ///
    /// # Errors
    /// When it is not there.
    pub async fn get_object(&self, key: &str) -> Result<Bytes, object_store::Error> {
        self.objects.get(&Path::from(key)).await?.bytes().await
    }

    /// Removes the object of this key; one that is not there is removed already.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn remove_object(&self, key: &str) -> Result<(), object_store::Error> {
        match self.objects.delete(&Path::from(key)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the store answers.
    ///
    /// # Errors
    /// What it says if not.
    pub async fn ping(&self) -> Result<(), object_store::Error> {
        match self.objects.head(&Path::from("ping")).await {
            Ok(_) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes uploads that a crash left behind, and says how many.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn clean_up(&self) -> Result<usize, object_store::Error> {
        let before = jiff::Timestamp::now().as_second() - ABANDONED_SECONDS;
        let listed = self.objects.list(Some(&Path::from(TEMPORARY)));
        let old: Vec<_> = listed
            .try_filter(|object| std::future::ready(object.last_modified.timestamp() < before))
            .try_collect()
            .await?;
        for object in &old {
            self.objects.delete(&object.location).await?;
        }
        Ok(old.len())
    }
}

/// Files and the folders that they are in are synced: what is acknowledged survives a power cut.
fn folder(path: &str) -> Result<Arc<dyn ObjectStore>, OpenError> {
    std::fs::create_dir_all(path).map_err(|source| OpenError::Folder { path: path.into(), source })?;
    Ok(Arc::new(LocalFileSystem::new_with_prefix(path)?.with_fsync(true)))
}

fn content_key(digest: &str) -> Path {
    let head = digest.get(..2).unwrap_or_default();
    Path::from(format!("sha256/{head}/{digest}"))
}

/// Content on its way into the store.
#[derive(Default)]
struct Upload {
    head: Vec<Bytes>,
    head_bytes: usize,
    rest: Option<(Path, WriteMultipart)>,
}

impl Upload {
    async fn write(&mut self, objects: &dyn ObjectStore, chunk: Bytes) -> Result<(), object_store::Error> {
        if let Some((_, parts)) = &mut self.rest {
            parts.wait_for_capacity(PARTS_AT_ONCE).await?;
            parts.put(chunk);
            return Ok(());
        }
        self.head_bytes += chunk.len();
        self.head.push(chunk);
        if self.head_bytes > PART_BYTES {
            let path = Path::from(format!("{TEMPORARY}/{}", Uuid::now_v7().simple()));
            let mut parts = WriteMultipart::new_with_chunk_size(objects.put_multipart(&path).await?, PART_BYTES);
            self.head.drain(..).for_each(|chunk| parts.put(chunk));
            self.rest = Some((path, parts));
        }
        Ok(())
    }

    async fn finish(self, objects: &dyn ObjectStore, to: &Path) -> Result<(), object_store::Error> {
        let is_there = objects.head(to).await.is_ok();
        match self.rest {
            None if is_there => Ok(()),
            None => objects.put(to, PutPayload::from_iter(self.head)).await.map(drop),
            Some((path, parts)) => {
                parts.finish().await?;
                if is_there { objects.delete(&path).await } else { objects.rename(&path, to).await }
            }
        }
    }

    async fn abort(self) {
        if let Some((path, parts)) = self.rest
            && let Err(error) = parts.abort().await
        {
            tracing::warn!(%path, %error, "an upload that broke off was left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    fn body(sizes: &[usize]) -> impl Stream<Item = Result<Bytes, std::io::Error>> + use<> {
        let chunks: Vec<_> =
            sizes.iter().enumerate().map(|(at, size)| Ok(Bytes::from(vec![at as u8; *size]))).collect();
        futures::stream::iter(chunks)
    }

    async fn read(store: &Store, digest: &str, range: Option<std::ops::Range<u64>>) -> Vec<u8> {
        let chunks: Vec<Bytes> = store.get(digest, range).await.unwrap().try_collect().await.unwrap();
        chunks.concat()
    }

    fn stores() -> (tempfile::TempDir, [Store; 2]) {
        let folder = tempfile::tempdir().unwrap();
        let local = Store::open(folder.path().to_str().unwrap()).unwrap();
        (folder, [local, Store::of(Arc::new(InMemory::new()))])
    }

    #[tokio::test]
    async fn content_is_kept_by_its_hash() {
        let (_folder, stores) = stores();
        for store in stores {
            for sizes in [&[][..], &[3, 4], &[PART_BYTES, 1], &[PART_BYTES / 2, PART_BYTES, PART_BYTES, 7]] {
                let whole: Vec<u8> = sizes.iter().enumerate().flat_map(|(at, size)| vec![at as u8; *size]).collect();
                for _ in 0..2 {
                    let stored = store.put(body(sizes), u64::MAX).await.unwrap();
                    assert_eq!(stored.bytes, whole.len() as u64);
                    assert_eq!(stored.digest, hex::encode(Sha256::digest(&whole)));
                    assert!(read(&store, &stored.digest, None).await == whole);
                    if whole.len() > 5 {
                        assert_eq!(read(&store, &stored.digest, Some(2..5)).await, whole[2..5]);
                    }
                }
            }
            let left: Vec<_> = store.objects.list(Some(&Path::from(TEMPORARY))).try_collect().await.unwrap();
            assert!(left.is_empty(), "{left:?}");
            store.ping().await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_is_too_large_or_breaks_off_leaves_nothing() {
        let (_folder, stores) = stores();
        for store in stores {
            let sizes = [PART_BYTES, PART_BYTES, PART_BYTES];
            let error = store.put(body(&sizes), 12 << 20).await.unwrap_err();
            assert!(matches!(error, PutError::TooLarge(_)));
            let broken = body(&sizes).chain(futures::stream::iter([Err(std::io::Error::other("gone"))]));
            let error = store.put(broken, u64::MAX).await.unwrap_err();
            assert!(matches!(error, PutError::Body(_)));
            let left: Vec<_> = store.objects.list(None).try_collect().await.unwrap();
            assert!(left.is_empty(), "{left:?}");
        }
    }

    #[test]
    fn an_unknown_address_is_refused() {
        assert!(matches!(Store::open("ftp://x/y"), Err(OpenError::Unknown(_))));
        assert!(matches!(Store::open("/proc/nowhere/at/all"), Err(OpenError::Folder { .. })));
    }
}
