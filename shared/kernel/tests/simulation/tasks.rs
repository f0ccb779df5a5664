//! Handlers as tasks that are advanced one step at a time, and dropped in the middle when their process dies.
//!
//! A handler reads like the service's own: it awaits, and at every `await` anything else may happen first, or nothing ever
//! again.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use kernel::{RunId, RunState, Seq, Timestamp};

use crate::world::{Process, World, timestamp};

/// The roles that run as processes, and how many of each: enough to race with each other.
pub const INSTANCES: [(&str, i64); 9] = [
    ("ingress 1", 0),
    ("ingress 2", 700),
    ("planner 1", 0),
    ("planner 2", -900),
    ("executor 1", 0),
    ("executor 2", 900),
    ("observer", 300),
    ("scheduler", -600),
    ("approval", 0),
];

pub struct Sim {
    world: RefCell<World>,
    tasks: RefCell<Vec<Task>>,
    incarnations: [Cell<u32>; INSTANCES.len()],
}

pub struct Task {
    process: Process,
    what: &'static str,
    future: Pin<Box<dyn Future<Output = ()>>>,
}

/// What a handler holds: the world, seen from its process.
#[derive(Clone)]
pub struct Hand {
    sim: Rc<Sim>,
    pub process: Process,
}

impl Sim {
    pub fn new(world: World) -> Rc<Self> {
        let (world, tasks) = (RefCell::new(world), RefCell::default());
        Rc::new(Self { world, tasks, incarnations: Default::default() })
    }

    pub fn with<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        act(&mut self.world.borrow_mut())
    }

    /// A hand of the process that an instance is now.
    pub fn hand(self: &Rc<Self>, instance: usize) -> Hand {
        let incarnation = self.incarnations[instance].get();
        Hand { sim: Rc::clone(self), process: Process { instance, incarnation } }
    }

    pub fn tasks(&self) -> usize {
        self.tasks.borrow().len()
    }

    /// How many tasks are at this.
    pub fn count(&self, what: &str) -> usize {
        self.tasks.borrow().iter().filter(|task| task.what == what).count()
    }

    /// Advances a task by one step.
    pub fn advance(&self, number: usize) {
        if number >= self.tasks() {
            return;
        }
        let mut task = self.tasks.borrow_mut().remove(number);
        let pending = task.future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        if pending {
            // To the end of the line, so that the first is always the one that waits longest.
            self.tasks.borrow_mut().push(task);
        }
    }

    /// Ends a process between two steps, whatever it is at, and starts another in its place.
    pub fn crash(&self, instance: usize) {
        let dead = Process { instance, incarnation: self.incarnations[instance].get() };
        self.incarnations[instance].set(dead.incarnation + 1);
        let (died, alive): (Vec<_>, Vec<_>) = self.tasks.take().into_iter().partition(|task| task.process == dead);
        *self.tasks.borrow_mut() = alive;
        let what: Vec<_> = died.iter().map(|task| task.what).collect();
        drop(died);
        self.with(|world| {
            world.say(|| format!("{} dies at: {}", INSTANCES[instance].0, what.join(", ")));
            world.died(dead);
        });
    }

    /// Lets go of all tasks, which hold the simulation that holds them.
    pub fn close(&self) {
        drop(self.tasks.take());
    }
}

impl Hand {
    /// A point at which the process may die, or anything else may come first.
    pub async fn step(&self) {
        let mut stepped = false;
        poll_fn(move |_| if std::mem::replace(&mut stepped, true) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    pub fn with<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        self.sim.with(act)
    }

    /// Another task of the same process.
    pub fn spawn(&self, what: &'static str, future: impl Future<Output = ()> + 'static) {
        let task = Task { process: self.process, what, future: Box::pin(future) };
        self.sim.tasks.borrow_mut().push(task);
    }

    /// What this process takes for the time.
    pub fn clock(&self, world: &World) -> Timestamp {
        timestamp(world.now + INSTANCES[self.process.instance].1)
    }

    pub fn now(&self) -> Timestamp {
        self.with(|world| self.clock(world))
    }

    /// The run as the log has it.
    pub async fn load(&self, run: RunId) -> Option<Arc<RunState>> {
        self.step().await;
        self.with(|world| world.current(run))
    }

    /// The run at least as of an event: the snapshot will do, if what is looked for is in it. That nothing is to be done is
    /// for the log to say: its state may have nothing either.
    pub async fn load_at_least(
        &self,
        run: RunId,
        seq: Option<Seq>,
        enough: impl Fn(&RunState) -> bool,
    ) -> Option<Arc<RunState>> {
        self.step().await;
        let (snapshot, idle_on_log) =
            self.with(|world| (world.snapshots.get(&run).cloned(), world.protocol.idle_on_log));
        let snapshot = snapshot.filter(|state| seq.is_some_and(|seq| seq <= state.seq));
        match snapshot.filter(|state| enough(state) || !idle_on_log) {
            Some(state) => Some(state),
            None => self.load(run).await,
        }
    }

    /// Tries to take a lease.
    pub async fn acquire(&self, name: &str) -> bool {
        self.step().await;
        self.with(|world| world.acquire(name, self.process))
    }

    pub fn release(&self, name: &str) {
        self.with(|world| world.release(name, self.process));
    }

    /// A name that only this attempt has.
    pub fn attempt(&self) -> u64 {
        self.with(World::name)
    }
}
