//! `esc doctor` on set-ups that are broken, each in one place: it finds that place, says what is wrong there and what to do.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::header;
use axum::routing::get;
use engine::{Engine, testing::TestStack};
use futures::{StreamExt as _, stream};
use kernel::Role;
use serde_json::{Value, json};
use service::{Common, Running};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::program::repository;

/// Whom the door knows, each with a tenant of its own.
const TOKENS: [&str; 3] = ["whole", "bare", "frozen"];
/// How long the doctor is asked again: its own patience with each part is short, and a busy machine may need more.
const WITHIN: Duration = Duration::from_secs(60);

/// What is asked of the doctor, in an environment of its own.
pub type Environment = Vec<(&'static str, String)>;

/// A set-up that is whole, but for services that don't run.
pub struct Whole {
    stack: TestStack,
    door: Running,
    url: String,
    files: tempfile::TempDir,
}

impl Whole {
    pub async fn new() -> Self {
        let stack = TestStack::new().await.unwrap();
        let files = tempfile::tempdir().unwrap();
        let tokens = files.path().join("tokens.json");
        let row = |name: &str| {
            let hash = hex::encode(Sha256::digest(name));
            json!({"name": name, "tenant": name, "roles": ["admin"], "sha256": hash})
        };
        std::fs::write(&tokens, Value::from(TOKENS.map(row).to_vec()).to_string()).unwrap();
        let config = ingress::Config { common: common(&stack, "ingress"), tokens, ..ingress::Config::default() };
        let mut door = service::spawn("ingress", config, ingress::run).unwrap();
        let url = format!("http://{}", door.listening().await.unwrap());
        let whole = Self { stack, door, url, files };
        let agents = whole.stack.engine(Role::Ingress).await.unwrap();
        let yaml = "{name: helper, model: 'scripted:x', instructions: Help.}";
        for tenant in ["whole", "frozen"] {
            agents.agents().put(&tenant.parse().unwrap(), yaml, "test").await.unwrap();
        }
        let scope = engine::FreezeScope::Tenant;
        agents.freezes().set(&"frozen".parse().unwrap(), &scope, true, "ann", Some("odd")).await.unwrap();
        whole
    }

    pub fn environment(&self) -> Environment {
        vec![
            ("ESC_NATS_URL", bus::testing::url()),
            ("ESC_DATABASE_URL", engine::testing::database_url()),
            ("ESC_REDIS_URL", engine::testing::redis_url()),
            ("ESC_NAMESPACE", self.stack.namespace().to_owned()),
            ("ESC_SCHEMA", self.stack.schema().to_owned()),
            ("ESC_URL", self.url.clone()),
            ("ESC_TOKEN", "whole".to_owned()),
        ]
    }

    pub async fn engine(&self, role: Role) -> Engine {
        self.stack.engine(role).await.unwrap()
    }

    /// The service that takes the decisions of people.
    pub async fn approval(&self) -> Running {
        let config = approval::Config { common: common(&self.stack, "approval"), ..approval::Config::default() };
        let mut running = service::spawn("approval", config, approval::run).unwrap();
        running.listening().await.expect("the service runs");
        running
    }

    pub async fn close(self) {
        self.door.stop().await.unwrap();
        self.stack.close().await.unwrap();
    }

    /// A folder with one file in it.
    fn folder(&self, name: &str, file: &str, text: &str) -> String {
        let path = self.files.path().join(name).join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self.files.path().join(name).display().to_string()
    }
}

fn common(stack: &TestStack, name: &'static str) -> Common {
    Common { log: "error".into(), ..service::testing::common(name, stack) }
}

/// What the doctor found, by the names of its checks.
async fn doctor(environment: Environment, words: Vec<String>) -> Vec<Value> {
    let asking = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_esc"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ESC_")) {
            command.env_remove(name);
        }
        // Nobody listens on the ports from 1 on, whoever has a stack on the usual ones.
        command.current_dir(repository()).envs(environment).args(["--json", "doctor", "--port-base", "1"]);
        command.args(words).output().unwrap()
    });
    let output = asking.await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{:?}", output.stderr));
    assert_ne!(output.status.code(), Some(0), "the other services don't run here");
    answer["checks"].as_array().unwrap().clone()
}

/// What the doctor finds, once it is as wanted, or was not for long.
async fn doctor_until(
    environment: Environment,
    words: Vec<String>,
    is_wanted: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    let end = Instant::now() + WITHIN;
    loop {
        let checks = doctor(environment.clone(), words.clone()).await;
        if is_wanted(&checks) || Instant::now() > end {
            return checks;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn has_state(checks: &[Value], name: &str, state: &str) -> bool {
    checks.iter().any(|check| check["name"] == name && check["state"] == state)
}

fn found<'a>(checks: &'a [Value], name: &str) -> &'a Value {
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check `{name}` in {checks:?}"))
}

/// A place where something answers that is not of ours: with this `Date`, if one is given.
async fn stranger(date: Option<&'static str>) -> String {
    let session = move || async move {
        let date = date.map(|date| [(header::DATE, date)]);
        (date, axum::Json(json!({"name": "x", "tenant": "x", "roles": ["viewer"], "items": [{}]})))
    };
    let router = Router::new().route("/v1/session", get(session)).fallback(|| async { "<html>Welcome</html>" });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{addr}")
}

/// A Redis that answers all but takes nothing.
async fn full_redis() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = vec![0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                    for command in text.split('*').skip(1) {
                        let full = command.contains("\r\nSET\r\n");
                        let answer = if full {
                            "-OOM command not allowed when used memory > 'maxmemory'.\r\n"
                        } else {
                            "+OK\r\n"
                        };
                        if stream.write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    addr
}

/// A broken set-up: what is changed, which check finds it in what state, what it says, and what it says to do.
struct Case<'a> {
    change: Environment,
    check: &'static str,
    state: &'static str,
    says: &'a str,
    remedy: &'static str,
}

impl Case<'_> {
    fn is_told(&self, checks: &[Value]) -> bool {
        let has = |check: &Value, name: &str, words: &str| check[name].as_str().unwrap_or_default().contains(words);
        has_state(checks, self.check, self.state)
            && has(found(checks, self.check), "detail", self.says)
            && has(found(checks, self.check), "remedy", self.remedy)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_found_and_said_with_its_remedy() {
    let whole = Whole::new().await;
    let fresh = bus::testing::namespace().to_string();
    let missing = format!("{fresh}_INBOUND");
    let bad_policies = {
        let schema = std::fs::read_to_string(repository().join("infra/policies/schema.cedarschema")).unwrap();
        whole.folder("policies", "schema.cedarschema", &schema);
        whole.folder("policies", "mine.cedar", "permit (principal action, resource);")
    };
    let bad_agents = whole.folder("agents-dir", "agents/mine.yaml", "name: mine\nmodle: x\n");
    let bad_tools = whole.folder("tools-dir", "tools/mine.yaml", "name: mine\neffect: gentle\n");
    let redis = full_redis().await;
    let (page, early) = (stranger(None).await, stranger(Some("Thu, 01 Jan 2015 00:00:00 GMT")).await);
    let case = |change: &[(&'static str, &str)], check, state, says, remedy| {
        let change = change.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Case { change, check, state, says, remedy }
    };
    let cases = [
        case(&[("ESC_NATS_URL", "nats://127.0.0.1:1")], "nats", "unreachable", "NATS", "infra/up"),
        case(&[("ESC_NAMESPACE", &fresh)], "streams", "wrong", &missing, "esc migrate"),
        case(
            &[("ESC_DATABASE_URL", "postgres://127.0.0.1:1/x")],
            "postgres",
            "unreachable",
            "connecting",
            "ESC_DATABASE_URL",
        ),
        case(
            &[("ESC_DATABASE_URL", &engine::testing::database_url().replace("postgres@", "nobody-of-ours@"))],
            "postgres",
            "unreachable",
            "nobody-of-ours",
            "user and password",
        ),
        case(&[("ESC_SCHEMA", "never_migrated")], "postgres", "wrong", "lacks 0001", "esc migrate"),
        case(&[("ESC_REDIS_URL", "redis://127.0.0.1:1/0")], "redis", "unreachable", "", "ESC_REDIS_URL"),
        case(&[("ESC_REDIS_URL", &format!("redis://{redis}/0"))], "redis", "wrong", "maxmemory", "more memory"),
        case(&[("ESC_TOKEN", "")], "token", "wrong", "ESC_TOKEN is not set", "esc tokens create"),
        case(&[("ESC_TOKEN", "nonsense")], "token", "wrong", "not known", ""),
        case(&[("ESC_TOKEN", "bare")], "agents", "wrong", "nothing can run", "esc agents apply"),
        case(&[("ESC_TOKEN", "frozen")], "freeze", "wrong", "frozen by ann: odd", "esc freeze tenant --off"),
        case(&[("ESC_URL", "http://127.0.0.1:1")], "ingress", "unreachable", "no answer", "infra/status"),
        case(&[("ESC_URL", &page)], "ingress", "wrong", "something else answers", "ESC_URL"),
        case(&[("ESC_URL", &early)], "the clock of the API", "wrong", "behind", "time server"),
        case(&[("ESC_POLICIES_DIR", &bad_policies)], "policies", "wrong", "mine.cedar", "mend"),
        case(&[("ESC_AGENTS_DIR", &bad_agents)], "agent files", "wrong", "modle", "esc agents apply"),
        case(&[("ESC_AGENTS_DIR", &bad_tools)], "tools", "wrong", "mine", "tool-executor"),
        case(&[("ESC_OTLP_ENDPOINT", "http://127.0.0.1:1")], "traces", "unreachable", "127.0.0.1:1", "collector"),
    ];
    let well = [
        "nats",
        "postgres",
        "the clock of Postgres",
        "redis",
        "policies",
        "tools",
        "agent files",
        "ingress",
        "token",
        "agents",
    ];
    let sound = doctor_until(whole.environment(), Vec::new(), |checks| {
        well.iter().all(|name| has_state(checks, name, "ok")) && has_state(checks, "planner", "unreachable")
    })
    .await;
    for name in well {
        assert_eq!(found(&sound, name)["state"], "ok", "{}", found(&sound, name));
    }
    assert_eq!(found(&sound, "planner")["state"], "unreachable", "it does not run");
    // A few at a time, so that they don't wait for each other's patience, and none runs out of its own because the processors are busy.
    let asked: Vec<_> = cases
        .iter()
        .map(|case| {
            let mut environment = whole.environment();
            environment.retain(|(name, _)| !case.change.iter().any(|(changed, _)| changed == name));
            environment.extend(case.change.clone());
            doctor_until(environment, Vec::new(), move |checks| case.is_told(checks))
        })
        .collect();
    let answers: Vec<_> = stream::iter(asked).buffered(4).collect().await;
    for (case, checks) in cases.iter().zip(answers) {
        let check = found(&checks, case.check);
        let said = |name: &str| check[name].as_str().unwrap_or_default().to_owned();
        assert_eq!(said("state"), case.state, "{:?}: {check}", case.change);
        assert!(said("detail").contains(case.says), "{:?}: {check}", case.change);
        assert!(said("remedy").contains(case.remedy), "{:?}: {check}", case.change);
    }
    whole.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_takes_nothing_is_told_by_its_service() {
    let whole = Whole::new().await;
    let objects = whole.files.path().join("objects");
    let mut config = artifact::Config { common: common(&whole.stack, "artifact"), ..artifact::Config::default() };
    config.common.artifacts_url = objects.display().to_string();
    let mut running = service::spawn("artifact", config, artifact::run).unwrap();
    let url = format!("http://{}", running.listening().await.unwrap());
    let words = vec!["--service".to_owned(), format!("artifact={url}")];
    let is_well = |checks: &[Value]| has_state(checks, "artifact", "ok");
    let checks = doctor_until(whole.environment(), words.clone(), is_well).await;
    assert_eq!(found(&checks, "artifact")["state"], "ok", "{}", found(&checks, "artifact"));
    replace_by_file(&objects);
    let names_them = |check: &Value| check["detail"].as_str().unwrap().contains("objects");
    let is_told = |checks: &[Value]| has_state(checks, "artifact", "wrong") && names_them(found(checks, "artifact"));
    let checks = doctor_until(whole.environment(), words, is_told).await;
    let check = found(&checks, "artifact");
    assert_eq!(check["state"], "wrong", "{check}");
    assert!(names_them(check), "{check}");
    running.stop().await.ok();
    whole.close().await;
}

/// So that nothing can be written there, whoever one is.
fn replace_by_file(folder: &Path) {
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::write(folder, "").unwrap();
}
