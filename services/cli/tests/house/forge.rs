//! A code host that counts merges.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Json, Router, extract::State, routing::get};
use serde_json::{Value, json};

/// The forge, and what it has seen.
pub struct Forge {
    /// Where it listens.
    pub address: SocketAddr,
    merges: Arc<AtomicUsize>,
}

impl Forge {
    /// Starts on a free port.
    pub async fn start() -> Self {
        let merges = Arc::new(AtomicUsize::new(0));
        let pull = "/repos/{owner}/{repository}/pulls/{number}";
        let routes = Router::new()
            .route(pull, get(read))
            .route(&format!("{pull}/merge"), get(read).put(merge))
            .with_state(Arc::clone(&merges));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { address, merges }
    }

    /// How often something was merged.
    pub fn merges(&self) -> usize {
        self.merges.load(Ordering::SeqCst)
    }
}

async fn read(State(merges): State<Arc<AtomicUsize>>) -> Json<Value> {
    Json(json!({ "merged": merges.load(Ordering::SeqCst) > 0 }))
}

async fn merge(State(merges): State<Arc<AtomicUsize>>) -> Json<Value> {
    merges.fetch_add(1, Ordering::SeqCst);
    Json(json!({ "merged": true }))
}
