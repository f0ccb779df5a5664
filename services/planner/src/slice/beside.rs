//! What a turn sees that does not come from its run: recalled memories, passages of documents, skills.

use kernel::{Block, Trust};

use super::{Part, View};

/// A section of such things.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// Its name in the manifest.
    pub name: &'static str,
    /// Its heading.
    pub heading: &'static str,
    /// The most of the room of the slice that it may take, in percent.
    pub share: u64,
    /// What is in it, what matters most first.
    pub items: Vec<BesideItem>,
    /// What was left out before, in words.
    pub left_out: Option<String>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BesideItem {
    /// In the runtime's own words, or as far to be believed as its text.
    pub title: String,
    /// What it says.
    pub block: Block,
    /// Where it can be found again, for the manifest; nothing for what is not evidence.
    pub source: String,
}

impl Beside {
    /// The least that anything in it may be believed.
    #[must_use]
    pub fn trust(&self) -> Trust {
        Trust::join_all(self.items.iter().map(|item| item.block.trust))
    }

    /// Every text of it that may come to stand in a fence.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> + Clone {
        self.items.iter().flat_map(|item| [item.title.as_str(), &item.block.text, &item.block.source])
    }

    /// As a part of the slice: as many items as there is room for, whole.
    pub(super) fn part(&self, view: &View<'_>, room: u64) -> Option<Part> {
        let mut left = room * self.share / 100;
        let mut part = Part::new(self.name, self.heading, String::new(), Trust::System);
        let mut shown = 0;
        for item in &self.items {
            let text = view.boundary.block(&item.title, &item.block);
            let Some(rest) = left.checked_sub(view.tokens(&text)) else { break };
            left = rest;
            part.body.push_str(&text);
            part.trust = part.trust.join(item.block.trust);
            part.sources.extend(Some(item.source.clone()).filter(|source| !source.is_empty()));
            shown += 1;
        }
        let no_room = (shown < self.items.len())
            .then(|| format!("{} of {} not shown: no room", self.items.len() - shown, self.items.len()));
        let cut: Vec<_> = no_room.into_iter().chain(self.left_out.clone()).collect();
        part.cut = (!cut.is_empty()).then(|| cut.join("; "));
        if let Some(words) = &part.cut {
            part.body.push_str(&format!("({words}.)\n"));
        }
        (!part.body.is_empty()).then(|| part.weighed(view))
    }
}
