//! What several tests need.

use std::time::Duration;

/// A connection of one's own to Redis: to look, or to break something.
pub async fn redis() -> redis::aio::MultiplexedConnection {
    engine::testing::redis().await.unwrap()
}

/// What `look` finds, as soon as it finds it.
pub async fn eventually<T, F: Future<Output = Option<T>>>(look: impl Fn() -> F) -> T {
    let search = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), search).await.expect("it never came")
}
