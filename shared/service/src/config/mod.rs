//! Configuration in layers: defaults < file < `ESC_<KEY>` < `ESC_<SERVICE>__<KEY>` < `--set`, checked key by key.
//!
//! A service's configuration is a plain struct that flattens [`Common`] in:
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use service::config::Common;
//!
//! #[derive(Clone, Default, Serialize, Deserialize)]
//! #[serde(default)]
//! pub struct Config {
//!     #[serde(flatten)]
//!     pub common: Common,
//!     /// Tries before a message is dead-lettered.
//!     pub max_deliver: u32,
//! }
//!
//! impl AsRef<Common> for Config {
//!     fn as_ref(&self) -> &Common {
//!         &self.common
//!     }
//! }
//!
//! let config: Config = service::load("planner", ["--set", "max_deliver=5"])?;
//! assert_eq!(config.max_deliver, 5);
//! # Ok::<(), service::ConfigError>(())
//! ```

mod common;
mod flags;
mod secret;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ::config::{Config as Reader, File, FileFormat};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use common::{Common, LogFormat, SERVICES};
pub use secret::Secret;

use crate::{EX_OK, EX_USAGE};
use flags::Flags;

/// The commented defaults of [`Common`], as shipped.
pub const DEFAULTS: &str = include_str!("../../defaults.toml");

/// Why there is no configuration to run with.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not a fault: the caller asked for this text (`--help`, `--version`, `--print-config`) instead of a run.
    #[error("{0}")]
    Shown(String),
    /// The flags make no sense; the text says which.
    #[error("{0}")]
    Flags(String),
    /// The file can't be read.
    #[error("can't read the configuration file {}: {source}. Name an existing file with --config or ESC_CONFIG", path.display())]
    Read {
        /// As given.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("the configuration file {} is not valid TOML: {message}", path.display())]
    Parse {
        /// As given.
        path: PathBuf,
        /// Where and what, from the parser.
        message: String,
    },
    /// A key that neither all services nor this one have.
    #[error("unknown key `{key}` in {origin}: {remedy}")]
    UnknownKey {
        /// As written.
        key: String,
        /// The file or flag it stands in.
        origin: String,
        /// What to do instead.
        remedy: String,
    },
    /// A value that its key can't take.
    #[error("invalid value for `{key}` in {origin}: {message}")]
    Invalid {
        /// The key, in lower snake case.
        key: String,
        /// The file, variable or flag the value comes from.
        origin: String,
        /// What was wrong with it.
        message: String,
    },
    /// The configuration type itself can't be turned into keys: a fault of the program, not of the operator.
    #[error("the configuration of {service} has no keys: {message}")]
    Type {
        /// Whose configuration.
        service: String,
        /// What serde said.
        message: String,
    },
}

impl ConfigError {
    /// The exit code that belongs to it: 0 if the caller only asked for text, else [`EX_USAGE`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Shown(_) => EX_OK,
            _ => EX_USAGE,
        }
    }
}

/// A configuration and where its values came from.
#[derive(Clone, Debug)]
pub struct Settings<T> {
    /// The configuration.
    pub value: T,
    /// By key, where a value other than the default came from.
    pub origins: BTreeMap<String, String>,
}

/// Loads the configuration of `service` from the arguments after the program's name, the environment and the file.
pub fn load<T>(service: &str, args: impl IntoIterator<Item = impl Into<OsString>>) -> Result<T, ConfigError>
where
    T: DeserializeOwned + Default + Serialize,
{
    Settings::load(service, args, std::env::vars_os()).map(|settings| settings.value)
}

impl<T: DeserializeOwned + Default + Serialize> Settings<T> {
    /// As [`load`], with the environment given.
    pub fn load(
        service: &str,
        args: impl IntoIterator<Item = impl Into<OsString>>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let mut layers = Layers::<T>::new(service)?;
        let flags = Flags::parse(service, args, || layers.print())?;
        // What isn't text can't be one of our keys or values.
        let env: BTreeMap<String, String> = env
            .into_iter()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let path = flags.config.or_else(|| env.get("ESC_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from));
        if let Some(path) = &path {
            layers.add_file(path)?;
        }
        layers.add_env(&env)?;
        for (key, value) in &flags.set {
            layers.require_known(key, "--set")?;
            layers.set_text(key, value, "--set")?;
        }
        if flags.print_config {
            return Err(ConfigError::Shown(layers.print()));
        }
        layers.finish()
    }
}

/// The layers applied so far, as a table of keys; every step leaves it valid.
struct Layers<'a, T> {
    service: &'a str,
    values: Map<String, Value>,
    origins: BTreeMap<String, String>,
    _type: std::marker::PhantomData<T>,
}

impl<'a, T: DeserializeOwned + Default + Serialize> Layers<'a, T> {
    fn new(service: &'a str) -> Result<Self, ConfigError> {
        let defaults = secret::revealed(|| serde_json::to_value(T::default()));
        let mut values = match defaults {
            Ok(Value::Object(values)) => values,
            Ok(_) => return Err(ConfigError::Type { service: service.into(), message: "not a struct".into() }),
            Err(error) => return Err(ConfigError::Type { service: service.into(), message: error.to_string() }),
        };
        // A derived `Default` knows no service name: it gets this service's own port here.
        let generic = Value::from(Common::default().listen.to_string());
        if values.get("listen") == Some(&generic) {
            values.insert("listen".into(), common::default_listen(service).to_string().into());
        }
        Ok(Self { service, values, origins: BTreeMap::new(), _type: std::marker::PhantomData })
    }

    /// Top-level keys first, then those of this service's own table.
    fn add_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let origin = format!("the file {}", path.display());
        let mut own = Map::new();
        for (key, value) in read_toml(path)? {
            let service = key.replace('_', "-");
            match value {
                Value::Object(table) if service == self.service => own = table,
                Value::Object(_) if SERVICES.iter().any(|(name, _)| *name == service) => {}
                value => self.set_known(&key, value, &origin)?,
            }
        }
        let origin = format!("{origin}, table [{}]", self.service);
        own.into_iter().try_for_each(|(key, value)| self.set_known(&key, value, &origin))
    }

    fn add_env(&mut self, env: &BTreeMap<String, String>) -> Result<(), ConfigError> {
        let own = format!("ESC_{}__", self.service.to_uppercase().replace('-', "_"));
        for prefix in ["ESC_", own.as_str()] {
            for (name, value) in env {
                let Some(key) = name.strip_prefix(prefix).map(str::to_lowercase) else { continue };
                if self.values.contains_key(&key) {
                    self.set_text(&key, value, name)?;
                }
            }
        }
        Ok(())
    }

    fn set_known(&mut self, key: &str, value: Value, origin: &str) -> Result<(), ConfigError> {
        self.require_known(key, origin)?;
        self.set_first(key, vec![value], origin)
    }

    /// Sets a value that came as text: the first of its readings that the key can take.
    fn set_text(&mut self, key: &str, text: &str, origin: &str) -> Result<(), ConfigError> {
        let as_is = Value::from(text);
        let parsed = serde_json::from_str::<Value>(text).ok();
        let list = Value::Array(text.split(',').map(|part| part.trim().into()).collect());
        let readings = match self.values.get(key) {
            // An optional key has null for its default: its kind is only known by trying.
            Some(Value::String(_) | Value::Null) | None => std::iter::once(as_is).chain(parsed).chain([list]).collect(),
            Some(_) => parsed.into_iter().chain([list, as_is]).collect(),
        };
        self.set_first(key, readings, origin)
    }

    fn set_first(&mut self, key: &str, readings: Vec<Value>, origin: &str) -> Result<(), ConfigError> {
        let mut first_error = None;
        for value in readings {
            let mut values = self.values.clone();
            values.insert(key.to_owned(), value);
            match T::deserialize(Value::Object(values.clone())) {
                Ok(_) => {
                    self.values = values;
                    self.origins.insert(key.to_owned(), origin.to_owned());
                    return Ok(());
                }
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        let message = first_error.map(|error| error.to_string()).unwrap_or_default();
        Err(ConfigError::Invalid { key: key.into(), origin: origin.into(), message })
    }

    fn require_known(&self, key: &str, origin: &str) -> Result<(), ConfigError> {
        if self.values.contains_key(key) {
            return Ok(());
        }
        let nearest = self.values.keys().map(|known| (distance(known, key), known)).min();
        let remedy = match nearest {
            Some((steps, known)) if steps <= 1 + key.len() / 4 => format!("did you mean `{known}`?"),
            _ => format!("remove it; `{} --help` lists the keys", self.service),
        };
        Err(ConfigError::UnknownKey { key: key.into(), origin: origin.into(), remedy })
    }

    /// The effective configuration as TOML, secrets masked, each value with its origin.
    fn print(&self) -> String {
        let masked =
            T::deserialize(Value::Object(self.values.clone())).ok().and_then(|value| serde_json::to_value(value).ok());
        let mut text = String::new();
        let mut tables = String::new();
        for (key, value) in masked.as_ref().and_then(Value::as_object).into_iter().flatten() {
            let origin = self.origins.get(key).map(|origin| format!("  # {origin}")).unwrap_or_default();
            match toml(value) {
                Some(value) => text += &format!("{key} = {value}{origin}\n"),
                None => tables += &format!("# {key} is not set\n"),
            }
        }
        text + &tables
    }

    fn finish(self) -> Result<Settings<T>, ConfigError> {
        let value = T::deserialize(Value::Object(self.values))
            .map_err(|error| ConfigError::Type { service: self.service.into(), message: error.to_string() })?;
        Ok(Settings { value, origins: self.origins })
    }
}

fn read_toml(path: &Path) -> Result<Map<String, Value>, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    Reader::builder()
        .add_source(File::from_str(&text, FileFormat::Toml))
        .build()
        .and_then(Reader::try_deserialize)
        .map_err(|error| ConfigError::Parse { path: path.into(), message: error.to_string() })
}

/// A value as TOML writes it on one line; `None` if there is none. JSON's scalars and arrays are TOML's.
fn toml(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Array(items) => Some(format!("[{}]", items.iter().filter_map(toml).collect::<Vec<_>>().join(", "))),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .filter_map(|(key, value)| Some(format!("{} = {}", Value::from(key.as_str()), toml(value)?)));
            Some(format!("{{ {} }}", fields.collect::<Vec<_>>().join(", ")))
        }
        scalar => Some(scalar.to_string()),
    }
}

/// Edits (insert, delete, replace) between two short words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
