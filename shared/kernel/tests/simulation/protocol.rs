//! What the engine and the services promise beside the kernel's rules, each as a switch: with it off, the simulation has to
//! notice.

macro_rules! protocol {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The rules of the engine and of the roles.
        #[derive(Clone, Copy, Debug)]
        pub struct Protocol { $($(#[$doc])* pub $name: bool,)* }

        impl Protocol {
            /// As it should be.
            pub const RIGHT: Self = Self { $($name: true),* };

            /// With each rule broken in turn, by its name.
            #[cfg(feature = "mutants")]
            pub fn broken() -> Vec<(&'static str, Self)> {
                vec![$((stringify!($name), Self { $name: false, ..Self::RIGHT })),*]
            }
        }
    };
}

protocol! {
    /// A delivery that was committed commits nothing more.
    inbox,
    /// The inbox remembers winners only.
    inbox_of_winners,
    /// A commit compares the seq that was decided on.
    compare_seq,
    /// And the time of that event, since another log may have the same seq.
    compare_time,
    /// A refusal is final only if it was decided on the log itself.
    refuse_on_log,
    /// That there is nothing to do is final only if the log itself says so.
    idle_on_log,
    /// A wait looks for earlier events in the transaction that registers it.
    look_back,
    /// And under the lock that events are recorded under.
    look_back_locked,
    /// An exclusive event belongs to the run whose commit took it.
    exclusive_claims,
    /// What was started and may not be repeated is looked into, never done again.
    doubt,
    /// An executor that was held up between a start and its effect lets it be.
    stall_guard,
    /// Commits that were not published are.
    sweep,
    /// Work that nobody is at is rung for.
    ring,
    /// Whoever dispatches an event brings those first that came before it and are still under way.
    oldest_first,
    /// What was recorded and not dispatched is.
    dispatch_sweep,
    /// Children are created, held, ended and settled as their parents are.
    tend_children,
    /// A process works on a call once at a time.
    claim_in_process,
    /// Content is stored before the turn that names it is committed.
    store_first,
    /// Policies are asked before an effect.
    ask_policy,
}
