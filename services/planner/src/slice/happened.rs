//! What happened: the facts that no turn has seen yet, and excerpts of what went before.

use kernel::{
    Block, Seq, Timestamp, Trust, excerpt,
    state::{Entry, Fact, FactKind},
};

use super::{Part, View, standing::ago};

/// Shorter forms that a fact is cut to when room is short, in bytes; the last resort is its title alone.
const FACT_FORMS: [usize; 4] = [4096, 1024, 256, 0];
/// Most entries of history shown: the last few turns. What must outlive them belongs into the plan.
const MAX_ENTRIES: usize = 16;

/// History (none if there is none) and news, within `room` tokens; history within `history_room` at the least.
pub(super) fn parts(view: &View<'_>, room: u64, history_room: u64) -> (Option<Part>, Part) {
    let facts = news(view, room.saturating_sub(history_room));
    let left = room.saturating_sub(facts.tokens(view));
    (history(view, left), facts)
}

/// One thing that happened, once however often it did.
struct Item<'a> {
    seqs: Vec<Seq>,
    at: Timestamp,
    first_class: bool,
    title: &'a str,
    block: &'a Block,
}

fn items(facts: &std::collections::VecDeque<Fact>) -> Vec<Item<'_>> {
    let mut items: Vec<Item<'_>> = Vec::with_capacity(facts.len());
    for fact in facts {
        let same = items.iter_mut().find(|item| item.title == fact.title && *item.block == fact.block);
        match same {
            Some(item) => {
                item.seqs.push(fact.seq);
                item.at = fact.at;
            }
            None => items.push(Item {
                seqs: vec![fact.seq],
                at: fact.at,
                // What people said and what the run began with is never crowded out by output.
                first_class: matches!(fact.kind, FactKind::Input | FactKind::Message | FactKind::Decision),
                title: &fact.title,
                block: &fact.block,
            }),
        }
    }
    items
}

fn news(view: &View<'_>, room: u64) -> Part {
    let state = view.input.state;
    let items = items(&state.facts);
    let mut order: Vec<usize> = (0..items.len()).collect();
    // People first, then the newest.
    order.sort_by_key(|&index| (!items[index].first_class, std::cmp::Reverse(items[index].seqs.last().copied())));
    let mut shown: Vec<Option<String>> = items.iter().map(|_| None).collect();
    let (mut left, mut shortened, mut dropped) = (room.saturating_sub(40), 0, 0);
    for index in order {
        let fitting = FACT_FORMS.iter().enumerate().find_map(|(form, &max)| {
            // A form that cuts nothing off is the one before it.
            if form > 0 && items[index].block.text.len() <= max {
                return None;
            }
            let text = render(view, &items[index], max);
            let tokens = view.tokens(&text);
            (tokens <= left).then_some((form > 0, text, tokens))
        });
        match fitting {
            Some((is_short, text, tokens)) => {
                left -= tokens;
                shortened += usize::from(is_short);
                shown[index] = Some(text);
            }
            None => dropped += items[index].seqs.len(),
        }
    }
    let trust = Trust::join_all(items.iter().map(|item| item.block.trust));
    let seen = items.iter().zip(&shown).filter(|(_, text)| text.is_some()).flat_map(|(item, _)| item.seqs.clone());
    let mut part = Part::new("facts", "What just happened", shown.iter().flatten().cloned().collect(), trust);
    part.seqs = seen.collect();
    let missing = state.facts_omitted + dropped as u64;
    if missing > 0 {
        part.body.push_str(&format!("{missing} more facts are not shown; they stay in the log.\n"));
    }
    if items.is_empty() {
        part.body = "Nothing new: decide by what you know.\n".to_owned();
    }
    part.cut = (missing > 0 || shortened > 0).then(|| format!("{missing} not shown, {shortened} shortened: no room"));
    part.weighed(view)
}

fn render(view: &View<'_>, item: &Item<'_>, max: usize) -> String {
    let times = if item.seqs.len() > 1 { format!(" ({} times)", item.seqs.len()) } else { String::new() };
    let when = ago(item.at, view.input.now);
    let number = item.seqs.first().copied().unwrap_or_default();
    let text = if max == 0 { "[… cut …]".to_owned() } else { excerpt(&item.block.text, max) };
    let block = Block { text, trust: item.block.trust, source: item.block.source.clone() };
    format!("[{number}] {when}{times}, {}\n{}", item.block.trust.as_str(), view.boundary.block(item.title, &block))
}

fn history(view: &View<'_>, room: u64) -> Option<Part> {
    let entries = &view.input.state.history;
    let mut left = room.saturating_sub(40);
    let mut shown: Vec<(&Entry, String)> = Vec::new();
    for entry in entries.iter().rev().take(MAX_ENTRIES) {
        let when = ago(entry.at, view.input.now);
        let text = format!("[{}] {when}\n{}", entry.seq, view.boundary.block(&entry.title, &entry.block));
        let Some(rest) = left.checked_sub(view.tokens(&text)) else { break };
        left = rest;
        shown.push((entry, text));
    }
    shown.reverse();
    let trust = Trust::join_all(shown.iter().map(|(entry, _)| entry.block.trust));
    let body = shown.iter().map(|(_, text)| text.as_str()).collect();
    let mut part = Part::new("history", "What went before, in excerpts", body, trust);
    part.seqs = shown.iter().map(|(entry, _)| entry.seq).collect();
    let cut = entries.len() - shown.len();
    part.cut = (cut > 0).then(|| format!("{cut} older entries not shown"));
    (!shown.is_empty()).then(|| part.weighed(view))
}
