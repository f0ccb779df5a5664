//! How many tokens a text takes: by the model's own tokenizer where that is public, by its length where it is not.
//!
//! OpenAI publishes its encodings; the `tiktoken` crate (4.1, pure Rust without `unsafe` and without a build script) counts with
//! them. Of the others that were looked at, `tiktoken-rs` splits with a backtracking regex and panics where that gives up,
//! `bpe-openai` builds 200,000-token automata at compile time, and `tokenizers` has no vocabulary of its own. The tables are
//! unpacked when the first run needs them, once in a process.
//!
//! Anthropic, Google and most others tell what they counted only afterwards. There a text is taken to have as many tokens for each
//! byte as the same agent's prompts to the same model had: see [`Densities`]. That is known to this process alone, and begins
//! anew with it.

use std::{
    collections::HashMap,
    sync::{Mutex, OnceLock, PoisonError},
};

use sha2::{Digest, Sha256};
use tiktoken::CoreBpe;

use crate::models::{Prompt, ToolDecl};

/// What a kibibyte of English or of code takes at least with every tokenizer in use, in thousandths of a token a byte. Text in
/// other scripts has more bytes to a character, and so is not undercounted by much.
const USUAL: u32 = 250;
/// What is believed of a provider's counts, in thousandths of a token a byte: below is no text, above is no tokenizer.
const BELIEVED: (u32, u32) = (125, 1000);
/// Bytes of a prompt from which on its density says something about the next one.
const TELLING_BYTES: usize = 4 * 1024;
/// Agents and models whose density is remembered.
const REMEMBERED: usize = 4096;
/// Texts from this length on are counted once and remembered by their digest.
const LONG_BYTES: usize = 2 * 1024;
/// Most texts that are remembered, 40 bytes each.
const LONG_TEXTS: usize = 4096;
/// Longest text that is counted in one piece: a longer one is cut at a blank if it has one, which costs no exactness.
const PIECE_BYTES: usize = 16 * 1024;
/// What is counted of a text at most; the rest is taken to be as dense.
const MOST_BYTES: usize = 256 * 1024;
/// What stands around the declaration of a tool: braces and keys, in tokens and in bytes.
const DECLARATION: (u64, usize) = (12, 48);

/// How the tokens of a model are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// By its own tokenizer.
    Own(Encoding),
    /// By length: so many thousandths of a token for each byte.
    ByLength(u32),
}

/// An encoding that OpenAI has published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Of GPT-4o and what came after it, the models that reason, and gpt-oss.
    O200k,
    /// Of GPT-4 and GPT-3.5.
    Cl100k,
}

/// Names of models that an encoding is known for: such a name, alone or with one of these characters behind it.
const KNOWN: [(Encoding, &str, &[&str]); 3] = [
    (Encoding::O200k, "-.", &["gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "gpt-oss", "chatgpt-4o"]),
    (Encoding::O200k, "-", &["o1", "o3", "o4", "codex-mini"]),
    (Encoding::Cl100k, "-", &["gpt-4", "gpt-3.5", "gpt-35-turbo"]),
];

/// The tables of an encoding, once they are unpacked.
struct Table {
    bpe: &'static CoreBpe,
    long: Mutex<HashMap<[u8; 32], u64>>,
}

impl Counter {
    /// For texts of nobody's, and where nothing better is known: a quarter of the bytes.
    pub const ESTIMATE: Self = Self::ByLength(USUAL);

    /// For a model as an agent's file names it, or as a provider does.
    #[must_use]
    pub fn of(model: &str) -> Self {
        let model = match model.split_once(':') {
            Some(("scripted" | "replay", _)) => return Self::ESTIMATE,
            // `record:<name>/<provider>:<model>`: what the recording is called says nothing.
            Some(("record", rest)) => rest.split_once('/').map_or(rest, |(_, model)| model),
            _ => model,
        };
        // `openrouter:openai/gpt-5-mini`, `ft:gpt-4o-mini:mine`, `ollama:gpt-oss:20b`.
        model.split([':', '/']).find_map(Encoding::named).map_or(Self::ESTIMATE, Self::Own)
    }

    /// The name of the encoding, for the manifest; none where texts are counted by length.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Own(encoding) => Some(encoding.name()),
            Self::ByLength(_) => None,
        }
    }

    /// Unpacks the tables, if there are any and nobody has: that takes a while and is nothing for a thread that others wait for.
    pub async fn ready(self) {
        let Self::Own(encoding) = self else { return };
        if encoding.cell().get().is_none()
            && let Err(error) = tokio::task::spawn_blocking(move || encoding.table().is_some()).await
        {
            // Then whoever counts first does it.
            tracing::warn!(%error, encoding = encoding.name(), "the tables of an encoding were not unpacked");
        }
    }

    /// The tokens of a text, rounded up.
    #[must_use]
    pub fn count(self, text: &str) -> u64 {
        match self {
            Self::ByLength(_) => self.of_bytes(text.len()),
            Self::Own(encoding) => encoding.count(text),
        }
    }

    /// The tokens of texts that stand one after the other.
    #[must_use]
    pub fn count_all(self, texts: &[&str]) -> u64 {
        match self {
            Self::ByLength(_) => self.of_bytes(texts.iter().map(|text| text.len()).sum()),
            Self::Own(encoding) => texts.iter().map(|text| encoding.count(text)).sum(),
        }
    }

    /// About how many tokens a text of this many bytes takes.
    #[must_use]
    pub fn of_bytes(self, bytes: usize) -> u64 {
        (bytes as u64).saturating_mul(self.density().into()).div_ceil(1000)
    }

    /// About how many bytes fit into that many tokens.
    #[must_use]
    pub fn bytes(self, tokens: u64) -> usize {
        usize::try_from(tokens.saturating_mul(1000) / u64::from(self.density())).unwrap_or(usize::MAX)
    }

    /// The tokens that the declarations of tools take. How a provider writes them down is not public: about.
    #[must_use]
    pub fn declarations(self, tools: &[ToolDecl]) -> u64 {
        match self {
            Self::ByLength(_) => self.of_bytes(bytes_of(tools)),
            Self::Own(_) => {
                let texts = |tool: &ToolDecl| [tool.name.clone(), tool.description.clone(), tool.schema.to_string()];
                let weigh = |tool| DECLARATION.0 + texts(tool).iter().map(|text| self.count(text)).sum::<u64>();
                tools.iter().map(weigh).sum()
            }
        }
    }

    /// Thousandths of a token for each byte: never none.
    const fn density(self) -> u32 {
        match self {
            Self::ByLength(density) if density > 0 => density,
            Self::ByLength(_) => 1,
            Self::Own(_) => USUAL,
        }
    }
}

/// The bytes that the declarations of tools take.
#[must_use]
pub fn bytes_of(tools: &[ToolDecl]) -> usize {
    let bytes =
        |tool: &ToolDecl| DECLARATION.1 + tool.name.len() + tool.description.len() + tool.schema.to_string().len();
    tools.iter().map(bytes).sum()
}

impl Encoding {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::O200k, Self::Cl100k];

    /// Its name, as OpenAI has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::O200k => "o200k_base",
            Self::Cl100k => "cl100k_base",
        }
    }

    /// The encoding of a model whose name begins so.
    fn named(model: &str) -> Option<Self> {
        let is = |name: &str, ends: &str| {
            model.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(|c| ends.contains(c)))
        };
        KNOWN.iter().find(|(_, ends, names)| names.iter().any(|name| is(name, ends))).map(|(encoding, ..)| *encoding)
    }

    fn cell(self) -> &'static OnceLock<Option<Table>> {
        static TABLES: [OnceLock<Option<Table>>; 2] = [OnceLock::new(), OnceLock::new()];
        match self {
            Self::O200k => &TABLES[0],
            Self::Cl100k => &TABLES[1],
        }
    }

    /// Its tables; none if the crate was built without them.
    fn table(self) -> Option<&'static Table> {
        let unpack = || Some(Table { bpe: tiktoken::get_encoding(self.name())?, long: Mutex::default() });
        self.cell().get_or_init(unpack).as_ref()
    }

    fn count(self, text: &str) -> u64 {
        let Some(table) = self.table() else { return Counter::ESTIMATE.of_bytes(text.len()) };
        if text.len() < LONG_BYTES { counted(table.bpe, text) } else { table.count_long(text) }
    }
}

impl Table {
    fn count_long(&self, text: &str) -> u64 {
        let digest: [u8; 32] = Sha256::digest(text).into();
        let long = || self.long.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = long().get(&digest) {
            return *count;
        }
        let head = &text[..text.floor_char_boundary(MOST_BYTES)];
        let of_head = pieces(head).map(|piece| counted(self.bpe, piece)).sum::<u64>();
        let count = scaled(of_head, text.len(), head.len());
        let mut long = long();
        if long.len() >= LONG_TEXTS {
            long.clear();
        }
        long.insert(digest, count);
        count
    }
}

fn counted(bpe: &CoreBpe, text: &str) -> u64 {
    bpe.count(text) as u64
}

/// `count` of a part, for all of it.
fn scaled(count: u64, all: usize, part: usize) -> u64 {
    if all == part || part == 0 {
        return count;
    }
    let whole = u128::from(count) * all as u128;
    u64::try_from(whole.div_ceil(part as u128)).unwrap_or(u64::MAX)
}

/// A text in pieces of a bounded length.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = if rest.len() <= PIECE_BYTES { rest.len() } else { cut(rest) };
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some(piece)
    })
}

/// Where a long text is cut: before its last blank in the second half of what may be counted at once, since no token reaches
/// across that from a word; else where it must be.
fn cut(text: &str) -> usize {
    let end = text.floor_char_boundary(PIECE_BYTES);
    let half = text.floor_char_boundary(PIECE_BYTES / 2);
    text[half..end].rfind(' ').map_or(end, |blank| half + blank)
}

/// What models whose tokenizers are not public were found to take for each byte, by agent and model.
#[derive(Debug, Default)]
pub struct Densities {
    of: Mutex<HashMap<(String, String), u32>>,
}

impl Densities {
    /// How to count for a model, and what this agent sends it.
    #[must_use]
    pub fn counter(&self, agent_digest: &str, model: &str) -> Counter {
        let counter = Counter::of(model);
        if counter != Counter::ESTIMATE || is_played(model) {
            return counter;
        }
        let key = (agent_digest.to_owned(), model.to_owned());
        self.known().get(&key).map_or(counter, |density| Counter::ByLength(*density))
    }

    /// The provider has counted so many tokens in a prompt. One count moves what is believed by a quarter.
    pub fn learn(&self, agent_digest: &str, model: &str, prompt: &Prompt, tokens: u64) {
        let bytes = prompt.system.len() + prompt.user.len() + bytes_of(&prompt.tools);
        if tokens == 0 || bytes < TELLING_BYTES || Counter::of(model) != Counter::ESTIMATE || is_played(model) {
            return;
        }
        let found = tokens.saturating_mul(1000) / bytes as u64;
        let found = u32::try_from(found).unwrap_or(u32::MAX).clamp(BELIEVED.0, BELIEVED.1);
        let mut known = self.known();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        let key = (agent_digest.to_owned(), model.to_owned());
        known.entry(key).and_modify(|density| *density = (*density * 3 + found) / 4).or_insert(found);
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), u32>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a model is played from a file: what it is shown must not depend on what was asked before.
fn is_played(model: &str) -> bool {
    matches!(model.split_once(':'), Some(("scripted" | "replay", _)))
}

#[cfg(test)]
mod tests;
