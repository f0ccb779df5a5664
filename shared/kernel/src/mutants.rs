//! Rules broken on purpose, one at a time: whoever checks the rules has to notice each.
//!
//! Only with the feature `mutants`, which no product has. Without it nothing is ever broken, and nothing of this is left in
//! the code.

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A rule that is broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(feature = "mutants"), allow(dead_code, reason = "the whole list is for those who break rules"))]
        pub enum Mutant { $($(#[$doc])* $name,)* }

        #[cfg(feature = "mutants")]
        impl Mutant {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

mutants! {
    /// An ended run takes commands.
    GoesOnAfterTheEnd,
    /// Time in a run follows the clocks of the services.
    TimeGoesBack,
    /// A number is left out.
    SkipsSeqs,
    /// The stored state lacks the wake.
    StoresNoWake,
    /// Any outcome is committed, whatever turn is open.
    CommitsAnyTurn,
    /// An outcome may be about events that the log does not have.
    SeesTheFuture,
    /// A message opens no turn.
    MessageWakesNobody,
    /// An answer opens no turn.
    AnswerWakesNobody,
    /// An observation that needs a decision opens no turn.
    ObservationWakesNobody,
    /// The last result opens no turn.
    ResultsWakeNobody,
    /// A turn takes along the wakes that came while it was under way.
    TurnSwallowsWakes,
    /// And the facts.
    TurnSwallowsFacts,
    /// A met wait is not satisfied.
    NeverSatisfied,
    /// The first of several conditions is enough where all are needed.
    AllIsAny,
    /// All conditions are needed where one is enough.
    AnyIsAll,
    /// The end of a call meets no wait.
    EndMeetsNoWait,
    /// A call that ended before it was waited for is waited for in vain.
    WaitsForTheEnded,
    /// A turn may leave a run with nothing that can wake it.
    SleepsOnNothing,
    /// A wait takes an event that the run had before.
    ConsumesAgain,
    /// A met condition is met again.
    MeetsAgain,
    /// What comes from outside is as trusted as it says.
    BelievesOutside,
    /// What a turn makes is as trusted as the planner says.
    BelievesThePlanner,
    /// A turn that saw untrusted data changes what the whole tenant remembers.
    PoisonsTheTenant,
    /// A timer fires before it is due.
    FiresEarly,
    /// A started call is started again, whatever it does.
    RepeatsBlindly,
    /// A call starts while a person is being asked.
    StartsUnapproved,
    /// A call starts with other arguments than were approved.
    StartsOtherwise,
    /// A held run starts calls.
    StartsWhileHeld,
    /// An ending run starts calls.
    StartsWhileEnding,
    /// An effect ends that never started.
    EndsUnstarted,
    /// A call that may have happened is denied.
    DeniesTheStarted,
    /// A call that ended stays open.
    EndsTwice,
    /// "Not done" is believed at once.
    BelievesTooEarly,
    /// "Not done" is believed of who looked before the effect had to be settled, and says so after.
    BelievesOldNews,
    /// A call that is known to be done stays open.
    FindsWithoutEnd,
    /// A decided question stays open.
    DecidesTwice,
    /// A yes counts after its time.
    DecidesTooLate,
    /// One person is enough where two have to agree.
    OnePersonIsEnough,
    /// One person is two where two have to agree.
    OnePersonTwice,
    /// The second of two people may agree to something else.
    SecondsAnything,
    /// A question expires before its time.
    ExpiresTooEarly,
    /// A yes is bound to something else than what was shown.
    BindsOtherwise,
    /// A call that a person refused stays open.
    NoLeavesCallOpen,
    /// Turns open beyond the limits.
    TurnsBeyondBudget,
    /// Calls are requested beyond the limits.
    CallsBeyondBudget,
    /// A reached limit ends nothing.
    BudgetEndsNothing,
    /// A run that nobody lets go on beyond its limit goes on.
    RefusalEndsNothing,
    /// A run with checked criteria is complete when its model says so.
    CompletesUnchecked,
    /// A criterion holds because somebody says so, whatever became of the call that looked into it.
    BelievesVerdicts,
    /// Whatever looks into a criterion is taken to have ended well.
    AllChecksEndWell,
    /// A summary may be about another run than it is.
    CompactsBlindly,
    /// A summary is as trusted as it says.
    BelievesSummaries,
    /// A run ends while effects are under way.
    EndsOverOpenCalls,
    /// An ending run leaves calls as they are of which nothing has happened.
    EndingSparesUnstarted,
    /// A run ends while children of it are open.
    EndsOverOpenChildren,
    /// An ending run leaves its children alone.
    EndSparesChildren,
    /// A held run leaves its children alone.
    HoldSparesChildren,
    /// A child is given what it asks for, whatever its parent has left.
    CarvesTooMuch,
    /// A parent spends what it has set aside for its children.
    SpendsWhatIsSetAside,
    /// What children spent is forgotten.
    ChildrenCostNothing,
    /// A child may be given more than its parent has set aside.
    ChildTakesMore,
    /// A child that was settled stays open.
    SettlesTwice,
    /// A child's answer is as trusted as it says.
    BelievesChildren,
    /// Children have tools that their parents have not.
    ChildHasMoreTools,
    /// Children have children without end.
    SpawnsTooDeep,
    /// An ended run leaves timers behind.
    LeavesTimers,
    /// An ended run leaves questions behind.
    LeavesQuestions,
    /// A call is put off, and nothing ever lets it go on.
    PutsOffForEver,
    /// Whoever lost a call puts it off while somebody else has started it.
    PutsOffAnothersStart,
    /// A run that fails leaves its effects as they are.
    EndsUncompensated,
}

#[cfg(feature = "mutants")]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule for this thread, or none.
#[cfg(feature = "mutants")]
pub fn break_rule(mutant: Option<Mutant>) {
    BROKEN.set(mutant);
}

/// Whether a rule is broken.
#[cfg(feature = "mutants")]
pub(crate) fn broken(mutant: Mutant) -> bool {
    BROKEN.get() == Some(mutant)
}

/// Whether a rule is broken: never.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn broken(_: Mutant) -> bool {
    false
}

/// For `skip_serializing_if`: whether the wake is left out of what is stored.
pub(crate) fn leaves_out<T>(value: &Option<T>) -> bool {
    value.is_none() || broken(Mutant::StoresNoWake)
}
