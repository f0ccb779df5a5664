//! API tokens.

use serde_json::{Value, json};

use crate::{
    api::Api,
    args::{TokenArgs, TokensCommand},
    error::CliError,
    out::Out,
    style::{Paint, clean},
    table::Table,
    views::{rows, text},
};

/// Does what was typed.
pub async fn run(api: &Api, command: &TokensCommand, out: &Out) -> Result<(), CliError> {
    match command {
        TokensCommand::Create(args) => create(api, args, out).await,
        TokensCommand::List { all, tenant } => list(api, *all, tenant.as_deref(), out).await,
        TokensCommand::Revoke { whose, tenant } => revoke(api, whose, tenant.as_deref(), out).await,
    }
}

async fn create(api: &Api, args: &TokenArgs, out: &Out) -> Result<(), CliError> {
    let body = json!({"name": args.name, "roles": args.role, "expires_in": args.expires, "tenant": args.tenant});
    let answer: Value = api.post("/v1/tokens", &body).await?;
    let style = out.style();
    out.say(style.paint(Paint::Bold, &clean(text(&answer, &["token"]))));
    let until = text(&answer, &["expires_at"]).chars().take(10).collect::<String>();
    let words = format!("the token of `{}`, shown this once; it ends on {until}", clean(&args.name));
    out.say(style.paint(Paint::Dim, &words));
    out.value(&answer);
    Ok(())
}

async fn list(api: &Api, all: bool, tenant: Option<&str>, out: &Out) -> Result<(), CliError> {
    let query = [("all", Some(all.to_string())), ("tenant", tenant.map(str::to_owned))];
    let answer: Value = api.get("/v1/tokens", &query).await?;
    let head = ["id", "name", "roles", "ends", "last used", "state"];
    let mut table = Table::new(head, "no tokens besides those of the token file: `esc tokens create NAME --role ROLE`");
    for token in rows(&answer) {
        let roles = token.get("roles").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let revoked = text(token, &["revoked_by"]);
        let day = |name: &str, most: usize| text(token, &[name]).chars().take(most).collect::<String>();
        let state = if revoked.is_empty() { "good".to_owned() } else { format!("revoked by {revoked}") };
        table.row([
            (Paint::Dim, text(token, &["token_id"]).to_owned()),
            (Paint::Bold, text(token, &["name"]).to_owned()),
            (Paint::Plain, roles.collect::<Vec<_>>().join(",")),
            (Paint::Plain, day("expires_at", 10)),
            (Paint::Plain, day("last_used_at", 13)),
            (if revoked.is_empty() { Paint::Good } else { Paint::Bad }, state),
        ]);
    }
    out.table(&answer, &table);
    Ok(())
}

async fn revoke(api: &Api, token: &str, tenant: Option<&str>, out: &Out) -> Result<(), CliError> {
    let query = tenant.map(|tenant| format!("?tenant={tenant}")).unwrap_or_default();
    let id = resolve(api, token, tenant).await?;
    let answer: Value = api.delete(&format!("/v1/tokens/{id}{query}")).await?;
    out.say(format!("{} {}", clean(text(&answer, &["name"])), out.style().paint(Paint::Bad, "revoked")));
    out.value(&answer);
    Ok(())
}

/// The id of a good token from its id or its name.
async fn resolve(api: &Api, token: &str, tenant: Option<&str>) -> Result<String, CliError> {
    if token.parse::<uuid::Uuid>().is_ok() {
        return Ok(token.to_owned());
    }
    let answer: Value = api.get("/v1/tokens", &[("tenant", tenant.map(str::to_owned))]).await?;
    let mut named = rows(&answer).iter().filter(|row| text(row, &["name"]) == token);
    named.next().map(|row| text(row, &["token_id"]).to_owned()).ok_or_else(|| {
        CliError::usage_with(
            format!("there is no token `{}`", clean(token)),
            "`esc tokens list` lists them; those of the token file are changed there",
        )
    })
}
