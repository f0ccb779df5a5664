//! Calls of forks whose effects are simulated, and of runs below them: what is on record is given again, anything else stops
//! before it is done.

use engine::SubmitError;
use kernel::command::{Command, CompleteCall};

use crate::dispatch::{Dispatcher, Next};
use crate::registry::Refusal;
use crate::task::Task;

impl Dispatcher {
    /// Ends a call that could be seen outside without doing it.
    pub async fn simulate(&self, task: &Task) -> Result<Next, SubmitError> {
        match self.engine.forks().recorded(&task.state, &task.call).await? {
            Some(result) => {
                task.ended("recorded", None);
                self.record(task, Command::CompleteCall(CompleteCall { call_id: task.id(), result }), "end").await
            }
            None => {
                let words = "the effects of this run are simulated, and no result of such a call is on record: nothing was done";
                self.refuse(task, Refusal::new("simulated", words)).await
            }
        }
    }
}
