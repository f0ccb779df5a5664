//! The shipped sets of rules, as data.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

/// What is used when a rule names no pack.
pub const DEFAULT_PACK: &str = "generic";

const SHIPPED: [(&str, &str); 6] = [
    ("generic", include_str!("../packs/generic.yaml")),
    ("cargo", include_str!("../packs/cargo.yaml")),
    ("pytest", include_str!("../packs/pytest.yaml")),
    ("npm", include_str!("../packs/npm.yaml")),
    ("go", include_str!("../packs/go.yaml")),
    ("gcc", include_str!("../packs/gcc.yaml")),
];

static PACKS: LazyLock<BTreeMap<&'static str, Pack>> = LazyLock::new(|| {
    let read = |(name, yaml): (&'static str, &str)| match serde_saphyr::from_str(yaml) {
        Ok(pack) => Some((name, pack)),
        Err(error) => {
            // A test reads them all, so this is a broken build at worst; the other packs still work.
            tracing::error!(pack = name, %error, "a shipped pack can't be read");
            None
        }
    };
    SHIPPED.into_iter().filter_map(read).collect()
});

/// A set of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Pack {
    /// Packs that it builds on.
    pub(crate) include: Vec<String>,
    pub(crate) failure: Vec<PackRule>,
    pub(crate) consequence: Vec<PackRule>,
    pub(crate) ignore: Vec<PackRule>,
    pub(crate) success: Vec<PackRule>,
    pub(crate) progress: Vec<PackRule>,
}

/// One rule of a pack; see the head of `packs/generic.yaml`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PackRule {
    #[serde(default)]
    pub(crate) id: String,
    pub(crate) pattern: String,
    #[serde(default)]
    pub(crate) any: Vec<String>,
    #[serde(default = "half")]
    pub(crate) score: u8,
    #[serde(default)]
    pub(crate) wakes: bool,
    #[serde(default)]
    pub(crate) before: u8,
    #[serde(default)]
    pub(crate) after: u8,
}

const fn half() -> u8 {
    50
}

/// The names of the shipped packs.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|(name, _)| *name)
}

/// The named packs and those that they include, each once, the included ones last. Unknown names are given back.
pub(crate) fn resolve(names: &[String]) -> (Vec<(&'static str, &'static Pack)>, Vec<String>) {
    let mut found: Vec<(&'static str, &'static Pack)> = Vec::new();
    let mut unknown = Vec::new();
    let mut wanted: Vec<String> = names.to_vec();
    let mut at = 0;
    while at < wanted.len() {
        let name = wanted[at].clone();
        at += 1;
        match PACKS.get_key_value(name.as_str()) {
            Some((known, _)) if found.iter().any(|(have, _)| have == known) => {}
            Some((known, pack)) => {
                found.push((known, pack));
                wanted.extend(pack.include.iter().cloned());
            }
            None => unknown.push(name),
        }
    }
    (found, unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_pack_reads() {
        for (name, yaml) in SHIPPED {
            let pack: Pack = serde_saphyr::from_str(yaml).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(pack.failure.iter().all(|rule| !rule.id.is_empty() && (1..=100).contains(&rule.score)), "{name}");
        }
    }

    #[test]
    fn includes_come_once_and_unknown_names_back() {
        let (found, unknown) = resolve(&["cargo".into(), "gcc".into(), "nope".into()]);
        assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["cargo", "gcc", "generic"]);
        assert_eq!(unknown, ["nope"]);
    }
}
