//! Configuration in layers.

use std::ffi::OsString;
use std::io::Write;

use serde::{Deserialize, Serialize};
use service::config::{Common, ConfigError, DEFAULTS, LogFormat, SERVICES, Secret, Settings};
use tempfile::NamedTempFile;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Config {
    #[serde(flatten)]
    common: Common,
    max_turns: u32,
    ratio: f64,
    strict: bool,
    label: String,
    hosts: Vec<String>,
    limit: Option<u32>,
    name: Option<String>,
    key: Secret<String>,
    retry: Retry,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Retry {
    tries: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            common: Common::for_service("planner"),
            max_turns: 10,
            ratio: 0.5,
            strict: false,
            label: "x".into(),
            hosts: vec!["a".into()],
            limit: None,
            name: None,
            key: "hidden".into(),
            retry: Retry { tries: 3 },
        }
    }
}

fn load_as(service: &str, args: &[&str], env: &[(&str, &str)]) -> Result<Settings<Config>, ConfigError> {
    let env = env.iter().map(|(key, value)| (OsString::from(key), OsString::from(value)));
    Settings::load(service, args, env)
}

fn load(args: &[&str], env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    load_as("planner", args, env).map(|settings| settings.value)
}

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

fn refused(args: &[&str], env: &[(&str, &str)]) -> String {
    let error = load(args, env).unwrap_err();
    assert_eq!(error.exit_code(), 64);
    error.to_string()
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    let documented = file(DEFAULTS);
    let settings = Settings::<Common>::load(
        "ingress",
        ["--config", path(&documented)],
        std::iter::empty::<(OsString, OsString)>(),
    )
    .unwrap();
    assert_eq!(settings.value, Common::default());
    let keys = serde_json::to_value(Common::default()).unwrap();
    for key in keys.as_object().unwrap().keys() {
        assert!(settings.origins.contains_key(key), "{key} is in defaults.toml");
    }
    for (name, port) in SERVICES {
        assert!(
            DEFAULTS.contains(&format!("{name} {port}")) || DEFAULTS.contains(&format!("{name}\n# {port}")),
            "{name}"
        );
        assert_eq!(Common::for_service(name).listen.port(), port);
    }
}

#[test]
fn nothing_given_is_the_default_with_the_services_own_port() {
    assert_eq!(load(&[], &[]).unwrap(), Config::default());
    let none = std::iter::empty::<(OsString, OsString)>;
    let derived = Settings::<Common>::load("observer", [""; 0], none()).unwrap();
    assert_eq!(derived.value.listen.port(), 8083);
}

#[test]
fn later_layers_win() {
    let file = file("max_turns = 1\nlabel = \"file\"\n[planner]\nmax_turns = 2\n[observer]\nsilence = 60\n");
    let args = ["--config", path(&file)];
    let turns = |args: &[&str], env: &[(&str, &str)]| load(args, env).unwrap().max_turns;
    assert_eq!(turns(&args, &[]), 2, "a service's own table over the top of the file");
    let general = ("ESC_MAX_TURNS", "3");
    let own = ("ESC_PLANNER__MAX_TURNS", "4");
    let other = ("ESC_OBSERVER__MAX_TURNS", "5");
    assert_eq!(turns(&args, &[general]), 3, "the environment over the file");
    assert_eq!(turns(&args, &[own, general, other]), 4, "a service's own variable over the general one");
    let flags = ["--config", path(&file), "--set", "max_turns=6"];
    assert_eq!(turns(&flags, &[own, general]), 6, "a flag over all");
    assert_eq!(turns(&[], &[("ESC_CONFIG", path(&file))]), 2, "the file named by the environment");
    assert_eq!(load(&args, &[general]).unwrap().label, "file", "each key by itself");
}

#[test]
fn a_service_with_a_hyphen_has_underscores_in_its_variables() {
    let env = [("ESC_TOOL_EXECUTOR__MAX_TURNS", "7"), ("ESC_MAX_TURNS", "3")];
    assert_eq!(load_as("tool-executor", &[], &env).unwrap().value.max_turns, 7);
}

#[test]
fn text_is_read_as_the_kind_the_key_needs() {
    let config = load(
        &["--set", "retry={\"tries\":9}", "--set", "listen=127.0.0.1:0"],
        &[
            ("ESC_RATIO", "0.25"),
            ("ESC_STRICT", "true"),
            ("ESC_LABEL", "17"),
            ("ESC_HOSTS", "a.example, b.example"),
            ("ESC_LIMIT", "5"),
            ("ESC_NAME", "18"),
            ("ESC_INTERNAL_TOKEN", "123"),
            ("ESC_LOG_FORMAT", "json"),
            ("ESC_TOKEN", "not one of ours"),
            ("PATH", "/bin"),
        ],
    )
    .unwrap();
    assert_eq!((config.ratio, config.strict, config.label.as_str()), (0.25, true, "17"));
    assert_eq!(config.hosts, ["a.example", "b.example"]);
    assert_eq!((config.limit, config.name.as_deref()), (Some(5), Some("18")));
    assert_eq!(config.common.internal_token.expose(), "123");
    assert_eq!(config.common.log_format, LogFormat::Json);
    assert_eq!(config.retry.tries, 9);
    assert_eq!(config.key.expose(), "hidden", "a secret default is not lost by masking");
    let json = load(&[], &[("ESC_HOSTS", "[\"c\"]")]).unwrap();
    assert_eq!(json.hosts, ["c"]);
}

#[test]
fn unknown_keys_are_named_with_a_remedy() {
    let typo = file("drain_second = 5\n");
    let error = refused(&["--config", path(&typo)], &[]);
    assert!(error.contains("`drain_second`") && error.contains("did you mean `drain_seconds`?"), "{error}");
    assert!(error.contains(path(&typo)), "{error}");
    let strange = file("[planner]\nwhatever_this_is = 5\n");
    let error = refused(&["--config", path(&strange)], &[]);
    assert!(error.contains("`whatever_this_is`") && error.contains("[planner]"), "{error}");
    assert!(error.contains("--help"), "{error}");
    let error = refused(&["--set", "max_turn=1"], &[]);
    assert!(error.contains("--set") && error.contains("`max_turns`"), "{error}");
    let nested = file("[retry]\ntries = 1\ntires = 2\n");
    assert!(refused(&["--config", path(&nested)], &[]).contains("tires"));
}

#[test]
fn bad_values_are_named_with_their_origin() {
    for (key, value) in [
        ("ESC_DRAIN_SECONDS", "soon"),
        ("ESC_DRAIN_SECONDS", "-1"),
        ("ESC_LISTEN", "8080"),
        ("ESC_OTLP_ENDPOINT", "collector:4317"),
        ("ESC_OTLP_ENDPOINT", "https://collector:4317"),
        ("ESC_OTLP_ENDPOINT", "http://collector:4318/v1/traces"),
        ("ESC_LOG", "info,bus=loud"),
        ("ESC_LOG_FORMAT", "xml"),
        ("ESC_NAMESPACE", "a.b"),
        ("ESC_NAMESPACE", "a_b"),
        ("ESC_SCHEMA", "public; drop table runs"),
        ("ESC_PLANNER__MAX_TURNS", "1.5"),
        ("ESC_STRICT", "perhaps"),
    ] {
        let error = refused(&[], &[(key, value)]);
        assert!(error.contains(key), "{error}");
    }
    let bad = file("listen = 8080\n");
    assert!(refused(&["--config", path(&bad)], &[]).contains("`listen`"));
}

#[test]
fn errors_repeat_no_secret() {
    for key in ["ESC_NATS_URL", "ESC_DATABASE_URL", "ESC_REDIS_URL"] {
        let error = refused(&[], &[(key, "mysql://user:pa55@host")]);
        assert!(error.contains("://[user:password@]host") && !error.contains("pa55"), "{error}");
    }
}

#[test]
fn files_that_cannot_be_read_are_said_so() {
    assert!(refused(&["--config", "/nowhere/esc.toml"], &[]).contains("/nowhere/esc.toml"));
    let broken = file("max_turns = 1\nlabel = \n");
    let error = refused(&["--config", path(&broken)], &[]);
    assert!(error.contains(path(&broken)) && error.contains("line 2"), "{error}");
}

#[test]
fn flags_that_make_no_sense_are_usage_errors() {
    for args in [&["--colour"][..], &["--set", "max_turns"], &["--config"], &["planner"]] {
        refused(args, &[]);
    }
}

#[test]
fn text_that_was_asked_for_is_no_error() {
    let shown = |args: &[&str]| match load(args, &[]).unwrap_err() {
        ConfigError::Shown(text) => text,
        other => panic!("{other}"),
    };
    assert_eq!(shown(&["--version"]).trim(), format!("planner {}", env!("CARGO_PKG_VERSION")));
    let help = shown(&["--help"]);
    for part in ["--print-config", "max_turns = 10", "drain_seconds = 20", "ESC_CONFIG"] {
        assert!(help.contains(part), "{part} in\n{help}");
    }
    assert!(!help.contains("hidden"), "{help}");
}

#[test]
fn the_printed_configuration_is_masked_and_can_be_read_again() {
    let env = [("ESC_NATS_URL", "nats://planner:pa55@host:4222"), ("ESC_INTERNAL_TOKEN", "t0ken"), ("ESC_LIMIT", "4")];
    let ConfigError::Shown(text) = load(&["--print-config", "--set", "label=a \"b\""], &env).unwrap_err() else {
        panic!("shown");
    };
    assert!(text.contains("nats_url = \"nats://planner:***@host:4222\"  # ESC_NATS_URL"), "{text}");
    assert!(text.contains("internal_token = \"***\"  # ESC_INTERNAL_TOKEN"), "{text}");
    assert!(text.contains("# name is not set"), "{text}");
    assert!(!text.contains("pa55") && !text.contains("t0ken") && !text.contains("hidden"), "{text}");
    let printed = file(&text);
    let again = load(&["--config", path(&printed)], &[]).unwrap();
    assert_eq!((again.label.as_str(), again.limit, again.retry.tries), ("a \"b\"", Some(4), 3));
}
