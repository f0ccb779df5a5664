//! One schedule: a few runs, a while of anything that may happen in any order, then peace, in which all has to come to its
//! end.

use std::rc::Rc;

use kernel::{
    Block, Command, RunId, TenantId, Trust,
    acceptance::{ArtifactCheck, Check, CheckedCriterion, Criterion, ToolCheck},
    agent::ParallelWake,
    audit::Violation,
    budget::{AtLimit, Limits},
    call::Verdict,
    command::{AddMessage, ChangeBudget},
    event::RunCreated,
    units::Duration,
};

use crate::{
    bus::Exited,
    choice::Choices,
    door::short,
    model::{SUBJECTS, TOOLS, TYPES},
    protocol::Protocol,
    roles::{self, APPROVAL, INGRESS, SCHEDULER, approval, approval::Edit, ingress, scheduler, stray},
    tasks::{INSTANCES, Sim},
    world::World,
};

/// What came of a schedule.
pub struct Report {
    pub violations: Vec<Violation>,
    /// The choices that were made.
    pub made: Vec<u32>,
    pub trace: Vec<String>,
    pub events: usize,
}

/// Rounds of peace after which something is taken to go on for ever.
const PATIENCE: usize = 600;

/// Plays a schedule until something is wrong, or to its end.
pub fn play(protocol: Protocol, choices: Choices, traced: bool) -> Report {
    let schedule = Schedule { sim: Sim::new(World::new(protocol, choices, traced)) };
    schedule.trouble();
    schedule.peace();
    schedule.sim.close();
    schedule.sim.with(|world| Report {
        violations: std::mem::take(&mut world.violations),
        made: std::mem::replace(&mut world.choices, Choices::from_list(Vec::new())).into_made(),
        trace: world.trace.take().unwrap_or_default(),
        events: world.runs.values().map(|row| row.log.len()).sum(),
    })
}

struct Schedule {
    sim: Rc<Sim>,
}

impl Schedule {
    fn choose(&self, n: usize) -> usize {
        self.sim.with(|world| world.choices.below(n))
    }

    fn chance(&self, percent: usize) -> bool {
        self.sim.with(|world| world.choices.chance(percent))
    }

    fn is_broken(&self) -> bool {
        self.sim.with(|world| !world.violations.is_empty())
    }

    fn trouble(&self) {
        let runs = 3 + self.choose(6);
        for number in 0..runs {
            self.begin_run(number);
        }
        for _ in 0..150 + self.choose(600) {
            match self.sim.with(|world| world.choices.weighted(&[70, 8, 6, 4, 4, 4, 4])) {
                0 => self.work(),
                1 => self.tick(),
                2 => self.pass_time(),
                3 => self.person(),
                4 => self.outside_event(),
                5 => self.nature(),
                _ => self.fault(),
            }
            if self.is_broken() {
                return;
            }
        }
    }

    fn begin_run(&self, number: usize) {
        let run = RunId(uuid::Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001 + number as u128));
        let door = self.sim.hand(INGRESS[number % 2]);
        let created = self.sim.with(|world| created(&mut world.choices));
        let hold = self.chance(15).then(|| "the tenant is busy".to_owned());
        ingress::create(&door, run, created, hold);
    }

    /// A task goes on by one step, or a message is delivered.
    fn work(&self) {
        let tasks = self.sim.tasks();
        let messages = self.sim.with(|world| world.bus.deliverable(world.now));
        if tasks + messages == 0 {
            return self.pass_time();
        }
        match self.choose(tasks + messages) {
            number if number < tasks => self.sim.advance(number),
            number => self.deliver(number - tasks),
        }
    }

    fn deliver(&self, number: usize) {
        let message = self.sim.with(|world| world.bus.deliver(number, world.now));
        if let Some(message) = message {
            let reader = self.sim.with(|world| {
                let reader = world.choices.pick(&roles::readers(message.to));
                world.say(|| {
                    format!("{} is told of run {}: {:?}", INSTANCES[reader].0, short(message.run), message.body)
                });
                reader
            });
            roles::handle(&self.sim.hand(reader), message);
        }
    }

    fn tick(&self) {
        match self.choose(4) {
            0 | 1 => scheduler::tick(&self.sim.hand(SCHEDULER)),
            2 => approval::tick(&self.sim.hand(APPROVAL)),
            _ => ingress::tick(&self.sim.hand(INGRESS[0])),
        }
    }

    fn pass_time(&self) {
        self.sim.with(|world| {
            let scale = [50, 500, 3000, 15_000, 3_600_000][world.choices.weighted(&[50, 20, 20, 9, 1])];
            let millis = 1 + world.choices.below(scale);
            world.pass(i64::try_from(millis).unwrap());
        });
    }

    fn some_run(&self) -> Option<RunId> {
        self.sim.with(|world| {
            let alive: Vec<_> = world.runs.iter().filter(|(_, row)| !row.state.ended).map(|(run, _)| *run).collect();
            (!alive.is_empty()).then(|| world.choices.pick(&alive))
        })
    }

    /// Somebody presses a button.
    fn person(&self) {
        let Some(run) = self.some_run() else { return };
        let door = self.sim.hand(INGRESS[self.choose(2)]);
        match self.sim.with(|world| world.choices.weighted(&[4, 8, 2, 3, 1, 1, 1])) {
            0 => ingress::write(&door, run),
            1 => self.decide(run),
            2 => ingress::command(&door, run, &Command::Pause(ingress::ann())),
            3 => ingress::command(&door, run, &Command::Resume(ingress::ann())),
            4 => ingress::command(&door, run, &Command::Cancel(ingress::ann())),
            5 => ingress::command(&door, run, &ingress::vouch()),
            _ => {
                let limits = self.sim.with(|world| limits(&mut world.choices));
                ingress::command(&door, run, &Command::ChangeBudget(ChangeBudget { limits, by: "ann".into() }));
            }
        }
    }

    /// Yes, or no; sometimes yes twice, or no after yes; by one person or by two, about the same or about something else.
    fn decide(&self, run: RunId) {
        let questions: Vec<_> = self.sim.with(|world| world.runs[&run].state.approvals.keys().copied().collect());
        if questions.is_empty() {
            return;
        }
        let approval = questions[self.choose(questions.len())];
        let hand = self.sim.hand(APPROVAL);
        let presses: &[Verdict] = match self.choose(5) {
            0 | 1 => &[Verdict::Approve],
            2 => &[Verdict::Deny],
            3 => &[Verdict::Approve, Verdict::Approve],
            _ => &[Verdict::Approve, Verdict::Deny],
        };
        for verdict in presses {
            let person = self.choose(approval::PEOPLE.len());
            let edit = match self.sim.with(|world| world.choices.weighted(&[70, 20, 10])) {
                _ if *verdict == Verdict::Deny => Edit::None,
                0 => Edit::None,
                1 => Edit::Anew,
                _ => Edit::AsEndorsed,
            };
            approval::decide(&hand, run, approval, *verdict, person, edit);
        }
    }

    /// A new event from outside, or an old one once more.
    fn outside_event(&self) {
        let door = self.sim.hand(INGRESS[self.choose(2)]);
        let again = self.chance(20);
        let (name, subject, event_type) = self.sim.with(|world| {
            let known = world.externals.len();
            if again && known > 0 {
                let number = world.choices.below(known);
                let external = &world.externals[number];
                return (external.name, external.subject, external.event_type);
            }
            let (subject, event_type) = (world.choices.pick(&SUBJECTS), world.choices.pick(&TYPES));
            (world.name(), subject, event_type)
        });
        ingress::accept(&door, name, subject, event_type);
    }

    /// What goes on by itself: processes, requests on their way, policies.
    fn nature(&self) {
        self.sim.with(|world| {
            let running = world.outside.running();
            let on_their_way = world.outside.on_their_way();
            match world.choices.below(6) {
                0 | 1 if !running.is_empty() => {
                    let call = world.choices.pick(&running);
                    let failure = world.choices.chance(30);
                    world.outside.activities.get_mut(&call).unwrap().lines.push(failure);
                }
                2 | 3 if !running.is_empty() => {
                    let call = world.choices.pick(&running);
                    let exit = world.choices.pick(&[Exited::Well, Exited::Badly]);
                    world.outside.activities.get_mut(&call).unwrap().exit = Some(exit);
                }
                4 => world.policy += 1,
                _ if !on_their_way.is_empty() => {
                    let (run, call) = world.choices.pick(&on_their_way);
                    let lands = world.choices.chance(60);
                    world.settle_effect(run, call, lands);
                }
                _ => {}
            }
        });
    }

    fn fault(&self) {
        match self.sim.with(|world| world.choices.weighted(&[5, 2, 2, 2, 1, 1, 6, 1, 1])) {
            0 => self.sim.crash(self.choose(INSTANCES.len())),
            1 => self.disturb_lease(),
            2 => self.sim.with(|world| {
                world.say(|| "all snapshots are lost".to_owned());
                world.snapshots.clear();
            }),
            3 => self.stale_snapshot(),
            4 => self.snapshot_ahead(),
            5 => self.sim.with(|world| {
                world.say(|| "all streams are lost".to_owned());
                world.bus.lose_all();
            }),
            6 => {
                if let Some(run) = self.some_run() {
                    stray::submit(&self.sim.hand(INGRESS[0]), run);
                }
            }
            7 => self.stall(),
            // Everything at once, as when the machine goes down.
            _ => (0..INSTANCES.len()).for_each(|instance| self.sim.crash(instance)),
        }
    }

    /// A lease lapses while its holder lives, or outlives its holder.
    fn disturb_lease(&self) {
        let early = self.chance(70);
        self.sim.with(|world| {
            let names: Vec<_> = world.leases.keys().cloned().collect();
            if names.is_empty() {
                return;
            }
            let name = names[world.choices.below(names.len())].clone();
            world.say(|| format!("the lease {name} {}", if early { "lapses" } else { "will not lapse" }));
            if early {
                world.leases.remove(&name);
            } else if let Some(lease) = world.leases.get_mut(&name) {
                lease.expires = lease.expires.map(|_| world.now + 20_000);
            }
        });
    }

    /// Every process is held up for a while, and its leases lapse.
    fn stall(&self) {
        self.sim.with(|world| {
            world.say(|| "everybody is held up".to_owned());
            world.leases.clear();
            world.pass(15_000);
        });
    }

    fn stale_snapshot(&self) {
        let Some(run) = self.some_run() else { return };
        self.sim.with(|world| {
            if let Some(older) = world.runs[&run].older.clone() {
                world.say(|| format!("the snapshot of run {} is the last but one again", short(run)));
                world.snapshots.insert(run, older);
            }
        });
    }

    /// A snapshot of a log that was lost: a commit was acknowledged, and Postgres came back without it.
    fn snapshot_ahead(&self) {
        let Some(run) = self.some_run() else { return };
        self.sim.with(|world| {
            let state = world.runs[&run].state.clone();
            let block = Block::new("of another log", Trust::Operator, "operator:ann");
            let command = Command::AddMessage(AddMessage { block });
            // At a time that no other event has: two logs do not agree to the microsecond.
            let time = world.time().max(state.updated_at) + jiff::SignedDuration::from_micros(137);
            if let Ok(decision) = kernel::decide(run, Some(&state), &command, time) {
                world.say(|| format!("the snapshot of run {} is ahead of its log", short(run)));
                world.snapshots.insert(run, std::sync::Arc::new(decision.state));
            }
        });
    }

    /// No more faults: what is open is done, people let go on what they held, and everybody ends.
    fn peace(&self) {
        self.sim.with(|world| world.choices.calm_down());
        if self.is_broken() || !self.settle() {
            return;
        }
        self.sim.with(World::check_settled);
        if self.is_broken() {
            return;
        }
        let alive: Vec<_> =
            self.sim.with(|world| world.runs.iter().filter(|(_, row)| !row.state.ended).map(|(run, _)| *run).collect());
        for run in alive {
            ingress::command(&self.sim.hand(INGRESS[0]), run, &Command::Cancel(ingress::ann()));
        }
        if self.settle() {
            self.sim.with(World::check_over);
        }
    }

    /// Goes on until nobody has anything to do. Says whether it came to that.
    fn settle(&self) -> bool {
        let mut quiet = 0;
        for _ in 0..PATIENCE {
            let before = self.progress();
            scheduler::tick(&self.sim.hand(SCHEDULER));
            approval::tick(&self.sim.hand(APPROVAL));
            ingress::tick(&self.sim.hand(INGRESS[0]));
            self.sim.with(|world| world.outside.finish_activities());
            self.work_off();
            if self.is_broken() {
                return false;
            }
            quiet = if self.progress() == before { quiet + 1 } else { 0 };
            // Longer than any lease, retry or redelivery takes.
            if quiet > 20 {
                return true;
            }
            self.sim.with(|world| world.pass(2000));
        }
        self.sim.with(|world| {
            world.violated(RunId(uuid::Uuid::nil()), "world.comes_to_rest", "something goes on for ever");
        });
        false
    }

    /// Lets every task come to its end, and delivers what can be delivered now.
    fn work_off(&self) {
        let mut idle = false;
        while !self.is_broken() {
            if self.sim.tasks() > self.followers() {
                self.sim.advance(0);
            } else if self.sim.with(|world| world.bus.deliverable(world.now)) > 0 {
                self.deliver(0);
                idle = false;
            } else if idle {
                return;
            } else {
                // Followers have something to say now and then.
                (0..3 * self.sim.tasks()).for_each(|_| self.sim.advance(0));
                idle = true;
            }
        }
    }

    /// Tasks that go on as long as the process does that they follow.
    fn followers(&self) -> usize {
        self.sim.count("follow")
    }

    fn progress(&self) -> usize {
        self.sim.with(|world| world.runs.values().map(|row| row.log.len()).sum())
    }
}

pub fn limits(choices: &mut Choices) -> Limits {
    Limits {
        turns: choices.chance(60).then_some(2 + u32::try_from(choices.below(8)).unwrap()),
        tokens: choices.chance(20).then_some(100),
        cost_usd: None,
        wall: choices.chance(20).then_some(Duration::from_secs(90)),
        tool_calls: choices.chance(30).then_some(3),
        at_limit: choices.chance(30).then_some(AtLimit::Ask),
    }
}

/// Now and then something looks into whether a run is done: a tool, an artifact, another agent.
fn acceptance(choices: &mut Choices) -> Vec<Criterion> {
    let checked = |check| Criterion::Checked(CheckedCriterion { text: "it is".into(), check });
    let tool = || ToolCheck { tool: "read".into(), arguments: Default::default(), expect: None };
    let artifact = || ArtifactCheck { name: "notes".into(), expect: None };
    match choices.weighted(&[60, 20, 10, 10]) {
        0 => Vec::new(),
        1 => vec![Criterion::Words("well".into()), checked(Check::Tool(tool()))],
        2 => vec![checked(Check::Evaluator("helper".into())), checked(Check::Tool(tool()))],
        _ => vec![checked(Check::Artifact(artifact()))],
    }
}

fn created(choices: &mut Choices) -> RunCreated {
    let block = |text: &str| Block::new(text, Trust::Operator, "operator:ann");
    RunCreated {
        acceptance: acceptance(choices),
        limits: limits(choices),
        parallel_wake: choices.pick(&[ParallelWake::All, ParallelWake::FirstFailure]),
        debounce: Duration::from_millis(choices.pick(&[0, 0, 500])),
        sampled: true,
        tools: choices.chance(30).then(|| TOOLS.iter().take(7).map(|tool| tool.name.to_owned()).collect()),
        ..RunCreated::new(TenantId::default(), "tester", "digest", block("do it"), block("begin"))
    }
}
