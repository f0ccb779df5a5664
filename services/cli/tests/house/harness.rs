//! Seven services on a stack of their own.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use engine::testing::TestStack;
use reqwest::{StatusCode, header};
use serde_json::{Value, json};
use service::{Common, Running};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// The services, and how to reach them.
pub struct House {
    pub stack: TestStack,
    pub url: String,
    http: reqwest::Client,
    services: Vec<Running>,
    pub folder: tempfile::TempDir,
}

impl House {
    /// Starts all seven, with agents that know `forge`, exporting spans to `otlp`.
    pub async fn start(forge: SocketAddr, otlp: SocketAddr) -> Self {
        Self::prepared(forge, otlp, &[], |_| ()).await
    }

    /// The same, with agents that are there from the beginning, so that nobody hears of them late, and with what `prepare` does
    /// to the folder first: it has `agents` and `secrets` in it.
    pub async fn prepared(forge: SocketAddr, otlp: SocketAddr, agents: &[String], prepare: impl FnOnce(&Path)) -> Self {
        Self::built(forge, otlp, agents, &[], prepare).await
    }

    /// The same behind tokens, which are called like their holders: operators, the first one an admin. What is asked without naming
    /// one is asked by the first.
    pub async fn guarded(forge: SocketAddr, otlp: SocketAddr, holders: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        Self::built(forge, otlp, &[], holders, prepare).await
    }

    async fn built(
        forge: SocketAddr,
        otlp: SocketAddr,
        agents: &[String],
        holders: &[&str],
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let stack = TestStack::new().await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        write_agents(folder.path(), forge);
        write_project(folder.path());
        std::fs::create_dir_all(folder.path().join("secrets")).unwrap();
        prepare(folder.path());
        let ingress = stack.engine(kernel::Role::Ingress).await.unwrap();
        for yaml in agents {
            ingress.agents().put(&kernel::TenantId::default(), yaml, "test").await.unwrap();
        }
        let common = |name: &str| common(&stack, folder.path(), name, otlp);
        let mut services = Vec::new();

        let artifact = artifact::Config { common: common("artifact"), ..Default::default() };
        let mut artifact = service::spawn("artifact", artifact, artifact::run).unwrap();
        let address = artifact.listening().await.unwrap();
        services.push(artifact);
        let common = |name: &str| Common { artifact_url: format!("http://{address}"), ..common(name) };

        macro_rules! start {
            ($name:literal, $module:ident { $($field:ident: $value:expr),* }) => {
                let config = $module::Config { common: common($name), $($field: $value,)* ..Default::default() };
                services.push(service::spawn($name, config, $module::run).unwrap());
            };
        }
        start!("approval", approval {});
        start!("scheduler", scheduler {});
        // When an opinion comes late the rules' word stands, and that is not what is tried here.
        start!("observer", observer { opinion_seconds: 60 });
        start!(
            "tool-executor",
            tool_executor {
                checkout_root: folder.path().join("repositories"),
                secrets_dir: folder.path().join("secrets")
            }
        );
        start!("planner", planner {});
        let mode = if holders.is_empty() { ingress::AuthMode::Off } else { ingress::AuthMode::Required };
        start!("ingress", ingress { auth: mode, tokens: write_tokens(folder.path(), holders) });
        let url = format!("http://{}", services.last_mut().unwrap().listening().await.unwrap());
        for service in &services {
            until("a service is ready", || async { service.health().readiness().await.ready.then_some(()) }).await;
        }
        let first = holders.first().map(|holder| (header::AUTHORIZATION, format!("Bearer {holder}").parse().unwrap()));
        let http = reqwest::Client::builder().default_headers(first.into_iter().collect()).build().unwrap();
        Self { stack, url, http, services, folder }
    }

    /// Puts in an agent file of the repository, with one text in it in the place of another.
    pub async fn apply(&self, name: &str, from: &str, to: &str) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/agents/agents").join(format!("{name}.yaml"));
        let yaml = std::fs::read_to_string(file).unwrap();
        assert!(yaml.contains(from), "{from} in {yaml}");
        self.put_agent(name, yaml.replace(from, to)).await;
    }

    /// Puts in an agent.
    pub async fn put_agent(&self, name: &str, yaml: String) {
        let put = self.http.put(format!("{}/v1/agents/{name}", self.url)).header("content-type", "application/yaml");
        let answer = put.body(yaml).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    }

    /// Puts in a scenario.
    pub fn scenario(&self, name: &str, yaml: &str) {
        std::fs::write(self.folder.path().join(format!("agents/scenarios/{name}.yaml")), yaml).unwrap();
    }

    pub async fn get(&self, path: &str) -> Value {
        let answer = self.http.get(format!("{}{path}", self.url)).send().await.unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap());
        answer.json().await.unwrap()
    }

    pub async fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.http.post(format!("{}{path}", self.url)).json(body).send().await.unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap());
        answer.json().await.unwrap_or(json!(null))
    }

    /// Answers a question, as somebody else if one is named. If the service behind the door does not answer in time, the
    /// same is said again, which is harmless.
    pub async fn decide(&self, holder: Option<&str>, approval: &str, body: &Value) -> (StatusCode, Value) {
        let key = Uuid::now_v7().to_string();
        until("the question is answered", || async {
            let request = self.http.post(format!("{}/v1/approvals/{approval}", self.url)).json(body);
            let request = request.header("Idempotency-Key", &key);
            let request = if let Some(holder) = holder { request.bearer_auth(holder) } else { request };
            let answer = request.send().await.unwrap();
            let status = answer.status();
            let told = answer.json().await.unwrap();
            (status != StatusCode::SERVICE_UNAVAILABLE).then_some((status, told))
        })
        .await
    }

    /// Records an action on a service, and gives its id.
    pub async fn act(&self, service: &str, request_id: &str) -> String {
        let action = json!({ "service": service, "what": "POST /orders", "request_id": request_id });
        self.post("/v1/actions", &action).await["action_id"].as_str().unwrap().to_owned()
    }

    /// Sends lines of a service's log, as a collector does.
    pub async fn log(&self, service: &str, lines: &[&str]) {
        let records: Vec<_> = lines.iter().map(|line| json!({ "body": { "stringValue": line } })).collect();
        let logs =
            json!({ "resourceLogs": [{ "resource": resource(service), "scopeLogs": [{ "logRecords": records }] }] });
        self.post("/v1/logs", &logs).await;
    }

    /// All committed events of a run.
    pub async fn events(&self, run: &str) -> Vec<Value> {
        self.get(&format!("/v1/runs/{run}/events?limit=500")).await["items"].as_array().unwrap().clone()
    }

    /// Drains the services, so that all spans are out, and removes everything.
    pub async fn end(self) {
        for service in self.services.into_iter().rev() {
            service.stop().await.unwrap();
        }
        self.stack.close().await.unwrap();
        drop(self.folder);
    }
}

/// A resource of OTLP that is this service.
pub fn resource(service: &str) -> Value {
    json!({ "attributes": [{ "key": "service.name", "value": { "stringValue": service } }] })
}

fn common(stack: &TestStack, folder: &Path, name: &str, otlp: SocketAddr) -> Common {
    Common {
        otlp_endpoint: format!("http://{otlp}"),
        agents_dir: folder.join("agents"),
        policies_dir: Some(folder.join("policies")).filter(|own| own.is_dir()).unwrap_or_else(shipped_policies),
        workspaces: folder.join("workspaces"),
        artifacts_url: folder.join("artifacts").display().to_string(),
        internal_token: "a token between services".into(),
        ..service::testing::common(name, stack)
    }
}

/// The policies of the repository.
pub fn shipped_policies() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/policies")
}

fn write_tokens(folder: &Path, holders: &[&str]) -> PathBuf {
    let row = |(number, holder): (usize, &&str)| {
        let role = if number == 0 { "admin" } else { "operator" };
        let hash = hex::encode(Sha256::digest(holder));
        json!({ "name": holder, "tenant": "default", "roles": [role], "sha256": hash })
    };
    let path = folder.join("tokens.json");
    std::fs::write(&path, Value::from(holders.iter().enumerate().map(row).collect::<Vec<_>>()).to_string()).unwrap();
    path
}

/// The tools and scenarios of the repository, with the forge's address filled in: the environment belongs to all tests.
fn write_agents(folder: &Path, forge: SocketAddr) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/agents");
    for part in ["tools", "scenarios"] {
        let to = folder.join("agents").join(part);
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(from.join(part)).unwrap() {
            let entry = entry.unwrap();
            let text = std::fs::read_to_string(entry.path()).unwrap();
            let text = text.replace("{env:ESC_FORGE_URL}", &format!("http://{forge}"));
            std::fs::write(to.join(entry.file_name()), text).unwrap();
        }
    }
}

/// A project whose pipeline is quick, and fails until its rounding is mended.
fn write_project(folder: &Path) {
    let project = folder.join("repositories/shop");
    std::fs::create_dir_all(project.join("shop")).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/sample/shop/shop/pricing.py");
    std::fs::copy(source, project.join("shop/pricing.py")).unwrap();
    let pipeline = r#"#!/bin/sh
i=0
while [ $i -lt 2000 ]; do echo "[package] $i ok"; i=$((i+1)); done
if grep -q '+ 50) // 100' shop/pricing.py; then echo "test result: ok"; exit 0; fi
echo "FAIL: test_discount_rounds_half_up"
echo "AssertionError: 1695 != 1696"
echo "test result: FAILED. 1 failed"
exit 1
"#;
    let path = project.join("ci");
    std::fs::write(&path, pipeline).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

/// What `look` finds, as soon as it finds it.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let search = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(180), search).await.unwrap_or_else(|_| panic!("never: {what}"))
}
