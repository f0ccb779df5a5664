//! The rules by name: what holds of every log, whatever was crashed, repeated, delayed or lost while it was written.

macro_rules! rules {
    ($($(#[doc = $meaning:literal])+ $name:ident = $rule:literal;)*) => {
        $($(#[doc = $meaning])+ pub const $name: &str = $rule;)*

        /// All rules, with their meaning.
        pub const ALL: &[(&str, &str)] = &[$(($rule, concat!($($meaning),+))),*];
    };
}

rules! {
    /// The events of a run are numbered from 1 without a gap.
    GAPLESS = "log.gapless";
    /// Every event can be folded.
    FOLDS = "log.folds";
    /// Time within a run never goes back.
    TIME = "log.time";
    /// Nothing follows the end of a run.
    LAST = "log.last";
    /// A state that was stored after any event and read back goes on like one that never was.
    SNAPSHOT = "log.snapshot";

    /// A turn has at most one committed outcome.
    ONE_OUTCOME = "turns.one_outcome";
    /// Only the open turn is committed.
    OPEN_TURN = "turns.open";
    /// Turns are numbered from 1 without a gap.
    TURN_NUMBER = "turns.numbered";
    /// A turn saw no event that comes after it.
    BASED_ON = "turns.based_on";

    /// Whatever asks for a turn leads to one, unless the run ends.
    NO_LOST_WAKE = "wakes.none_lost";
    /// A run without a turn sleeps on something that can wake it.
    SLEEPS_ON = "wakes.sleeps_on_something";

    /// A run has one wait at a time.
    ONE_WAIT = "waits.one";
    /// A wait is satisfied, or expires, only as its conditions say.
    WAIT_HOLDS = "waits.as_they_say";
    /// An outside event meets an unmet condition of the registered wait that is about it.
    WANTED = "externals.wanted";
    /// A run has an outside event once, for one wait.
    CONSUMED_ONCE = "externals.once";
    /// An exclusive wait has its outside event for itself among exclusive waits.
    EXCLUSIVE = "externals.exclusive";
    /// A timer fires once, while it is set, and not before it is due.
    TIMER_SET = "timers.as_set";

    /// A call is requested once.
    REQUESTED_ONCE = "calls.requested_once";
    /// What happens to a call happens to an open one, and it ends once.
    ONE_END = "calls.one_end";
    /// An effect that may not be repeated starts once between two reconciliations that say it has not happened.
    STARTS_ONCE = "calls.starts_once";
    /// What could be seen outside is completed or failed only after its start is in the log.
    STARTED_FIRST = "calls.started_first";
    /// A call is denied only while nothing of it has happened.
    DENIED_UNSTARTED = "calls.denied_unstarted";
    /// Only a call in doubt is reconciled, and "not done" is believed only when the effect can't be under way any more.
    RECONCILED = "calls.reconciled";

    /// A call that is put off has a timer, and is due no sooner.
    PUT_OFF = "calls.put_off";
    /// What can be undone is undone when the run ends without success, and only then: newest first, each once.
    COMPENSATED = "calls.compensated";

    /// A question is decided once, while it is open and not after its time.
    DECIDED_ONCE = "approvals.decided_once";
    /// A yes is bound to what was shown, or to what the operator made of it.
    BOUND = "approvals.bound";
    /// A question that takes two people is granted by two different ones who agree to the same, and by no standing approval.
    TWO_PEOPLE = "approvals.two_people";
    /// A call that a person was asked about starts only with a yes, and exactly as it was granted.
    AS_GRANTED = "approvals.as_granted";

    /// A held run starts nothing.
    HELD = "control.held";
    /// An ending run starts nothing new.
    NO_NEW_WORK = "ending.no_new_work";
    /// An ending reaches every open call.
    REACHES_ALL = "ending.reaches_all";
    /// A run ends when nothing of it is open, and as it was said that it would.
    CLEAN_END = "ending.clean";

    /// A fork whose effects are simulated starts no call, and so does every run below it.
    SIMULATED = "forks.simulated";

    /// A child's id follows from its parent and the call, and each is started once.
    CHILD_ID = "children.id";
    /// No run uses, or hands on, tools that it may not use.
    CHILD_TOOLS = "children.tools";
    /// Children do not have children without end.
    CHILD_DEPTH = "children.depth";
    /// A parent and its children say the same of each other, and are held and ended together.
    FAMILY = "children.in_step";

    /// No turn opens beyond the limits, and no call is requested beyond them.
    BUDGET = "budget.kept";
    /// A limit that was reached ends the run, or stops it until an operator lets it go on.
    BUDGET_ENDS = "budget.ends";

    /// A run with checked criteria is complete only when all of them were looked into, by calls that ended well.
    ACCEPTANCE = "acceptance.checked";
    /// A summary leaves what the run stands on as it is.
    COMPACTION = "context.kept";

    /// What is derived is trusted no more than the least of what it comes from.
    TRUST = "trust.never_raised";

    /// In a quiet system nobody is left with something to do.
    SETTLED = "settled.nothing_left";
}
