//! The flags that every service has.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command, value_parser};

use super::{ConfigError, DEFAULTS};

/// What the command line said.
pub(super) struct Flags {
    /// `--config`.
    pub config: Option<PathBuf>,
    /// `--print-config`.
    pub print_config: bool,
    /// Every `--set key=value`, in order.
    pub set: Vec<(String, String)>,
}

impl Flags {
    /// Reads the arguments after the program's name. `keys` prints the keys of this service for `--help`.
    pub(super) fn parse(
        service: &str,
        args: impl IntoIterator<Item = impl Into<OsString>>,
        keys: impl FnOnce() -> String,
    ) -> Result<Self, ConfigError> {
        let args = std::iter::once(OsString::from(service)).chain(args.into_iter().map(Into::into));
        let mut matches = command(service, keys).try_get_matches_from(args).map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ConfigError::Shown(error.to_string()),
            _ => ConfigError::Flags(error.to_string()),
        })?;
        Ok(Self {
            config: matches.remove_one("config"),
            print_config: matches.get_flag("print-config"),
            set: matches.remove_many("set").into_iter().flatten().collect(),
        })
    }
}

fn command(service: &str, keys: impl FnOnce() -> String) -> Command {
    let help =
        format!("Keys of {service}, with their defaults:\n\n{}\nWhat the common ones mean:\n\n{DEFAULTS}", keys());
    Command::new("service")
        .bin_name(service)
        .display_name(service)
        .version(env!("CARGO_PKG_VERSION"))
        .about("A service of Escapement. All it needs to know comes from its configuration")
        .after_help(help)
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("TOML file with configuration [env: ESC_CONFIG]"),
        )
        .arg(
            Arg::new("set")
                .long("set")
                .value_name("KEY=VALUE")
                .action(ArgAction::Append)
                .value_parser(pair)
                .help("Set one key, over the file and the environment"),
        )
        .arg(
            Arg::new("print-config")
                .long("print-config")
                .action(ArgAction::SetTrue)
                .help("Print the effective configuration, passwords masked, and end"),
        )
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as drain_seconds=5".to_owned()),
    }
}
