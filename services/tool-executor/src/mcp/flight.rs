//! Calls under way on a connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rmcp::RoleClient;
use rmcp::model::{ProgressToken, RequestId};
use rmcp::service::RequestHandle;
use tokio::sync::watch;

use super::caller::{Answer, Caller, Form};
use super::ours::Ours;

/// A call under way.
#[derive(Clone)]
pub(super) struct Flight {
    pub token: ProgressToken,
    pub caller: Arc<dyn Caller>,
    /// How many questions to a person are open: its time stands still meanwhile.
    pub asking: watch::Sender<usize>,
}

/// A request that is under way. If it is dropped, the server is told that nobody waits any more.
pub(super) struct Departed {
    ours: Arc<Ours>,
    pub handle: Option<RequestHandle<RoleClient>>,
    id: RequestId,
}

impl Departed {
    pub fn new(ours: Arc<Ours>, handle: RequestHandle<RoleClient>, flight: Flight) -> Self {
        let id = handle.id.clone();
        ours.flights().insert(id.clone(), flight);
        ours.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { ours, handle: Some(handle), id }
    }

    pub async fn abandon(&mut self, reason: &'static str) {
        if let Some(handle) = self.handle.take()
            && let Err(error) = handle.cancel(Some(reason.to_owned())).await
        {
            tracing::debug!(server = self.ours.server.name, %error, "it could not be told that a call is given up");
        }
    }
}

impl Drop for Departed {
    fn drop(&mut self) {
        self.ours.flights().remove(&self.id);
        self.ours.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let (Some(handle), Ok(runtime)) = (self.handle.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(handle.cancel(Some("nobody waits for it any more".to_owned())));
        }
    }
}

impl Flight {
    /// Gets an answer, while the call's time stands still.
    pub async fn answer(&self, form: Form) -> Answer {
        struct Asking<'a>(&'a watch::Sender<usize>);
        impl Drop for Asking<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|open| *open -= 1);
            }
        }
        self.asking.send_modify(|open| *open += 1);
        let _asking = Asking(&self.asking);
        self.caller.answer(form).await
    }
}
