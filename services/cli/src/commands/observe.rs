//! Trying the rules of an observer on a log that is there already.

use std::{fs, io::Read, path::Path};

use kernel::{
    agent::{AgentSpec, ObserveRule},
    call::Observation,
};
use observer::{
    offline::{self, Concluded},
    packs::Packs,
    rules::{Limits, Rules},
    templates::Miner,
};
use serde_json::json;

use super::agents;
use crate::{
    args::ObserveArgs,
    error::CliError,
    out::Out,
    style::{Paint, clean, wrap},
    timeline::words::{count, many},
};

/// Says what the observer would conclude.
pub fn run(args: &ObserveArgs, out: &Out) -> Result<(), CliError> {
    let log = read(&args.file)?;
    let rules = rules(args)?;
    for problem in &rules.problems {
        out.say(out.style().paint(Paint::Bad, &clean(problem)));
    }
    let mut miner = Miner::default();
    for passing in &args.passing {
        offline::learn(&read(passing)?, &rules, &mut miner, &args.command);
    }
    let Concluded { observations, packs } = offline::observe_with(&log, &rules, &mut miner, &args.command, args.exit);
    observations.iter().for_each(|observation| show(observation, out));
    let findings = if args.findings { offline::findings(&log, &rules) } else { Vec::new() };
    for found in &findings {
        out.say(format!("{}: {}", clean(&found.place()), clean(&found.message)));
    }
    let lines = observations.last().map_or(0, |last| last.counts.lines);
    let wakes = observations.iter().filter(|observation| observation.decision.is_some()).count() as u64;
    out.say(format!(
        "{} of output, {}, {} that would wake the model; by the packs {}",
        many(lines, "line"),
        many(observations.len() as u64, "observation"),
        count(wakes),
        packs.join(", ")
    ));
    out.value(&json!({
        "lines": lines,
        "wakes": wakes,
        "packs": packs,
        "problems": rules.problems,
        "observations": observations,
        "findings": findings,
    }));
    if rules.problems.is_empty() { Ok(()) } else { Err(CliError::failed("some of the rules can't be used")) }
}

fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let mut log = Vec::new();
    let read =
        if path == Path::new("-") { std::io::stdin().read_to_end(&mut log).map(|_| log) } else { fs::read(path) };
    read.map_err(|error| CliError::usage(format!("can't read {}: {error}", path.display())))
}

fn rules(args: &ObserveArgs) -> Result<Rules, CliError> {
    let packs = match &args.packs {
        Some(folder) => Packs::with_folder(folder).map_err(|error| CliError::usage(error.to_string()))?,
        None => Packs::shipped().clone(),
    };
    if let Some(pack) = &args.pack {
        if !packs.has(pack) {
            let known = packs.names().collect::<Vec<_>>().join(", ");
            return Err(CliError::usage_with(
                format!("there is no pack `{}`", clean(pack)),
                format!("there are {known}"),
            ));
        }
        let rule = ObserveRule { packs: vec![pack.clone()], ..ObserveRule::default() };
        return Ok(Rules::compile_with(&rule, &packs, Limits::default()));
    }
    let agent: Option<AgentSpec> = args.agent.as_deref().map(agents::named).transpose()?;
    Ok(Rules::for_tool_with(agent.as_ref(), &args.tool, &packs, Limits::default()))
}

fn show(observation: &Observation, out: &Out) {
    let style = out.style();
    let paint = match (observation.decision.is_some(), observation.anomaly) {
        (true, true) => Paint::Bad,
        (true, false) => Paint::Warn,
        _ => Paint::Dim,
    };
    let phase = style.paint(paint, &format!("{:<10}", clean(&observation.phase)));
    for (index, line) in wrap(&clean(&observation.changed), style.width().saturating_sub(11)).iter().enumerate() {
        out.say(if index == 0 { format!("{phase} {line}") } else { format!("{:11}{line}", "") });
    }
    if let Some(decision) = &observation.decision {
        out.say(format!("{:11}{}", "", style.paint(paint, &format!("wakes the model: {}", clean(decision)))));
    }
    for evidence in &observation.evidence {
        let rule = style.paint(Paint::Dim, &format!("line {}, by {}", evidence.line, clean(&evidence.rule)));
        out.say(format!("{:11}{rule}", ""));
        for line in evidence.excerpt.lines() {
            out.say(format!("{:11}│ {}", "", clean(line)));
        }
    }
    if let Some(missing) = &observation.missing {
        out.say(format!("{:11}{}", "", style.paint(Paint::Warn, &format!("missing: {}", clean(missing)))));
    }
}
