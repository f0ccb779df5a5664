//! Another service that the observer asks on the bus, with answers of the test's own.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use bus::{ServeOptions, Serving};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::common::World;

pub struct Desk {
    asked: Arc<Mutex<Vec<Value>>>,
    silent: Arc<AtomicBool>,
    stop: CancellationToken,
    serving: Serving,
}

impl Desk {
    /// Answers what is asked by this name.
    pub async fn open(
        world: &World,
        (service, verb): (&str, &str),
        answer: impl Fn(&Value) -> Value + Send + Sync + 'static,
    ) -> Self {
        let (asked, silent) = (Arc::<Mutex<Vec<Value>>>::default(), Arc::<AtomicBool>::default());
        let stop = CancellationToken::new();
        let (questions, quiet, end) = (asked.clone(), silent.clone(), stop.clone());
        let handler = move |question: Value| {
            let answer = answer(&question);
            questions.lock().unwrap().push(question);
            let (is_quiet, end) = (quiet.load(Ordering::SeqCst), end.clone());
            async move {
                if is_quiet {
                    end.cancelled().await;
                }
                Ok(answer)
            }
        };
        let bus = world.stack.bus();
        let serving = bus.serve_json(ServeOptions::new(service, verb), handler, stop.clone()).await.unwrap();
        bus.flush().await.unwrap();
        Self { asked, silent, stop, serving }
    }

    /// What it was asked so far.
    pub fn questions(&self) -> Vec<Value> {
        self.asked.lock().unwrap().clone()
    }

    /// While it is silent, nobody is answered.
    pub fn be_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::SeqCst);
    }

    pub async fn close(self) {
        self.stop.cancel();
        self.serving.join().await;
    }
}
