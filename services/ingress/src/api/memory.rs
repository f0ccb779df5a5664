//! `/v1/memory`, `/v1/knowledge` and `/v1/skills`: what outlives runs, for those who look after it.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::{delete as remove, get, put};
use engine::{Document, Knowledge, Memories, Memory, MemoryFilter, NewDocument, SkillUse, SkillVersions, chunks_of};
use kernel::memory::{MEMORY_BYTES, MEMORY_KEY_BYTES, MemoryPlace, MemoryScope};
use kernel::{Block, MemoryId, RunId, Timestamp, Trust};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::{IntoParams, ToSchema};

use super::runs::page_size;
use super::schema;
use crate::auth::{Operator, Viewer};
use crate::body::{JsonBody, Params, RawBody, Segments};
use crate::problem::Problem;

/// Most bytes of a document.
const DOCUMENT_BYTES: usize = 8 * 1024 * 1024;
/// Most bytes of the name of a document.
const NAME_BYTES: usize = 200;

/// What the handlers here use.
#[derive(Clone)]
pub(crate) struct MemoryApi {
    pub memories: Memories,
    pub knowledge: Knowledge,
    pub skills: SkillVersions,
}

pub(crate) fn router(api: MemoryApi) -> Router {
    Router::new()
        .route("/memory", get(list).put(keep))
        .route("/memory/{memory_id}", remove(forget))
        .route("/knowledge", get(documents))
        .route("/knowledge/{collection}/{name}", put(add).delete(drop_document))
        .route("/skills", get(skills))
        .with_state(api)
}

/// A memory.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MemoryView {
    /// Its id: always the same for its place.
    #[schema(value_type = uuid::Uuid)]
    memory_id: MemoryId,
    /// Who else sees it: `tenant`, `agent` or `user`.
    scope: &'static str,
    /// The agent or the user; empty for the tenant's own.
    owner: String,
    /// What it is about.
    key: String,
    /// What it says.
    text: String,
    /// How far that may be believed.
    #[schema(value_type = schema::Trust)]
    trust: Trust,
    /// How often its place was written.
    revision: u64,
    /// The run that wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    run_id: Option<RunId>,
    /// Who wrote it.
    written_by: String,
    /// When.
    written_at: Timestamp,
    /// When it is forgotten by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
}

impl From<Memory> for MemoryView {
    fn from(memory: Memory) -> Self {
        let Memory { memory_id, place, block, revision, run_id, written_by, written_at, expires_at } = memory;
        let MemoryPlace { scope, owner, key } = place;
        let Block { text, trust, .. } = block;
        let scope = scope.as_str();
        Self { memory_id, scope, owner, key, text, trust, revision, run_id, written_by, written_at, expires_at }
    }
}

/// A page of memories.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MemoryPage {
    /// The last written first.
    items: Vec<MemoryView>,
    /// Where the next page begins; none if this is the last.
    next_cursor: Option<String>,
}

/// Which memories.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MemoryParams {
    /// Only of this scope: `tenant`, `agent` or `user`.
    scope: Option<String>,
    /// Only of this agent or user.
    owner: Option<String>,
    /// Only those with these words.
    q: Option<String>,
    /// Most per page, 1 to 1000.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// List and search what is remembered
#[utoipa::path(
    get, path = "/v1/memory", tag = "memory", params(MemoryParams),
    responses((status = 200, description = "A page of memories, the last written first", body = MemoryPage)),
)]
pub(crate) async fn list(
    Viewer(principal): Viewer,
    State(api): State<MemoryApi>,
    Params(params): Params<MemoryParams>,
) -> Result<Json<MemoryPage>, Problem> {
    let limit = page_size(params.limit)?;
    let scope = params.scope.as_deref().map(scope_of).transpose()?;
    let before = params.cursor.as_deref().map(read_cursor).transpose()?;
    let clean = |text: Option<String>| text.map(|text| text.replace('\0', "")).filter(|text| !text.trim().is_empty());
    let filter = MemoryFilter { scope, owner: clean(params.owner), words: clean(params.q), before };
    let mut found = api.memories.list(&principal.tenant, &filter, limit + 1).await?;
    let is_more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let last = found.last().filter(|_| is_more);
    let next_cursor = last.map(|last| format!("{}.{}", last.written_at.as_microsecond(), last.memory_id));
    Ok(Json(MemoryPage { items: found.into_iter().map(MemoryView::from).collect(), next_cursor }))
}

fn scope_of(text: &str) -> Result<MemoryScope, Problem> {
    text.parse().map_err(|error: String| {
        Problem::bad_request("invalid_scope", error).field("scope").remedy("`tenant`, `agent` or `user`")
    })
}

fn read_cursor(text: &str) -> Result<(Timestamp, MemoryId), Problem> {
    let read = || {
        let (at, id) = text.split_once('.')?;
        Some((Timestamp::from_microsecond(at.parse().ok()?).ok()?, id.parse().ok()?))
    };
    read().ok_or_else(|| {
        Problem::bad_request("invalid_cursor", "`cursor` is not one that this call gave")
            .field("cursor")
            .remedy("give `next_cursor` of the page before as it is, or none")
    })
}

/// Something to be remembered.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeepRequest {
    /// Who sees it: `tenant`, `agent` or `user`.
    scope: String,
    /// The agent or the user; nothing for the tenant's own.
    #[serde(default)]
    owner: String,
    /// What it is about; what was kept under the same key is replaced.
    key: String,
    /// What is to be remembered.
    text: String,
    /// How far it may be believed: `trusted`, if you vouch for every word, or `untrusted`.
    #[serde(default = "untrusted")]
    #[schema(value_type = schema::Trust)]
    trust: Trust,
    /// When it is forgotten by itself.
    #[serde(default)]
    expires_at: Option<Timestamp>,
}

const fn untrusted() -> Trust {
    Trust::Untrusted
}

/// Keep a memory
#[utoipa::path(
    put, path = "/v1/memory", tag = "memory", request_body = KeepRequest,
    responses((status = 200, description = "It is remembered from now on", body = MemoryView)),
)]
pub(crate) async fn keep(
    Operator(principal): Operator,
    State(api): State<MemoryApi>,
    JsonBody(request): JsonBody<KeepRequest>,
) -> Result<Json<MemoryView>, Problem> {
    let scope = scope_of(&request.scope)?;
    let needs_owner = scope != MemoryScope::Tenant;
    if needs_owner == request.owner.trim().is_empty() || request.owner.len() > MEMORY_KEY_BYTES {
        let words = "`owner` names the agent or the user of a memory in these scopes, and nobody in the scope `tenant`";
        return Err(Problem::unprocessable("invalid_owner", words).field("owner"));
    }
    if request.key.trim().is_empty() || request.key.len() > MEMORY_KEY_BYTES {
        let words = format!("`key` says in 1 to {MEMORY_KEY_BYTES} bytes what it is about");
        return Err(Problem::unprocessable("invalid_key", words).field("key"));
    }
    if request.text.trim().is_empty() || request.text.len() > MEMORY_BYTES {
        return Err(
            Problem::unprocessable("invalid_text", format!("`text` has 1 to {MEMORY_BYTES} bytes")).field("text")
        );
    }
    let trust = believed(request.trust)?;
    let place = MemoryPlace { scope, owner: request.owner, key: request.key };
    let by = format!("operator:{}", principal.name);
    let block = Block::new(request.text, trust, by.clone());
    let kept = api.memories.put(&principal.tenant, &place, &block, &by, request.expires_at).await?;
    Ok(Json(kept.into()))
}

/// Whatever a person vouches for is data all the same.
fn believed(trust: Trust) -> Result<Trust, Problem> {
    if trust > Trust::Trusted {
        let words = "what is kept is data: it is `trusted`, if you vouch for every word of it, or `untrusted`";
        return Err(Problem::unprocessable("invalid_trust", words).field("trust"));
    }
    Ok(trust)
}

/// Forget a memory
#[utoipa::path(
    delete, path = "/v1/memory/{memory_id}", tag = "memory",
    params(("memory_id" = uuid::Uuid, Path, description = "Which memory")),
    responses((status = 204, description = "It is forgotten")),
)]
pub(crate) async fn forget(
    Operator(principal): Operator,
    State(api): State<MemoryApi>,
    Segments(memory): Segments<String>,
) -> Result<StatusCode, Problem> {
    let memory: MemoryId = memory.parse().map_err(|error: kernel::IdError| {
        Problem::bad_request("invalid_id", error).field("memory_id").remedy("`GET /v1/memory` lists them")
    })?;
    if api.memories.delete(&principal.tenant, memory).await? {
        tracing::info!(%memory, by = principal.name, "a memory was removed");
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(Problem::not_found("unknown_memory", format!("there is no memory {memory}")))
}

/// A document.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DocumentView {
    /// The collection that it is in.
    collection: String,
    /// Its name there.
    name: String,
    /// Digest of its content.
    digest: String,
    /// Its media type.
    media_type: String,
    /// Its size.
    bytes: u64,
    /// Passages that it was cut into.
    passages: u32,
    /// How far it may be believed.
    #[schema(value_type = schema::Trust)]
    trust: Trust,
    /// Who added it.
    added_by: String,
    /// When.
    added_at: Timestamp,
}

impl From<Document> for DocumentView {
    fn from(document: Document) -> Self {
        let Document { collection, name, digest, media_type, bytes, chunks, trust, added_by, added_at, .. } = document;
        Self { collection, name, digest, media_type, bytes, passages: chunks, trust, added_by, added_at }
    }
}

/// A page of documents.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DocumentPage {
    /// By collection and name.
    items: Vec<DocumentView>,
    /// Where the next page begins; none if this is the last.
    next_cursor: Option<String>,
}

/// Which documents.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DocumentParams {
    /// Only of this collection.
    collection: Option<String>,
    /// Most per page, 1 to 1000.
    #[param(minimum = 1, maximum = 1000, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// List what agents know
#[utoipa::path(
    get, path = "/v1/knowledge", tag = "memory", params(DocumentParams),
    responses((status = 200, description = "A page of documents, by collection and name", body = DocumentPage)),
)]
pub(crate) async fn documents(
    Viewer(principal): Viewer,
    State(api): State<MemoryApi>,
    Params(params): Params<DocumentParams>,
) -> Result<Json<DocumentPage>, Problem> {
    let limit = page_size(params.limit)?;
    let after = params.cursor.as_deref().map(|cursor| {
        cursor.split_once('/').filter(|_| !cursor.contains('\0')).ok_or_else(|| {
            Problem::bad_request("invalid_cursor", "`cursor` is not one that this call gave").field("cursor")
        })
    });
    let after = after.transpose()?;
    let collection = params.collection.as_deref().map(collection_of).transpose()?;
    let mut found = api.knowledge.list(&principal.tenant, collection, after, limit + 1).await?;
    let is_more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next_cursor = found.last().filter(|_| is_more).map(|last| format!("{}/{}", last.collection, last.name));
    Ok(Json(DocumentPage { items: found.into_iter().map(DocumentView::from).collect(), next_cursor }))
}

fn collection_of(name: &str) -> Result<&str, Problem> {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=63).contains(&name.len()) && name.bytes().all(legal) && !name.starts_with('-') {
        return Ok(name);
    }
    let words = "a collection is named by 1 to 63 of a-z, 0-9 and `-`, the first no `-`";
    Err(Problem::unprocessable("invalid_collection", words).field("collection"))
}

/// How far a document may be believed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AddParams {
    /// `trusted`, if you vouch for every word of it; else `untrusted`.
    #[serde(default = "untrusted")]
    #[param(value_type = schema::Trust)]
    trust: Trust,
}

/// Add a document
///
/// The body is its text: plain or Markdown. The same name again replaces it. Agents whose files name the collection under
/// `knowledge` are told of the passages that fit what they do, and may search it with the tool `knowledge.search`.
#[utoipa::path(
    put, path = "/v1/knowledge/{collection}/{name}", tag = "memory",
    params(
        ("collection" = String, Path, description = "Which collection"),
        ("name" = String, Path, description = "The name of the document"),
        AddParams,
    ),
    request_body(content = serde_json::Value, content_type = "text/markdown", description = "The text, as it is"),
    responses((status = 200, description = "It is known from now on", body = DocumentView)),
)]
pub(crate) async fn add(
    Operator(principal): Operator,
    State(api): State<MemoryApi>,
    Segments((collection, name)): Segments<(String, String)>,
    Params(params): Params<AddParams>,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Result<Json<DocumentView>, Problem> {
    collection_of(&collection)?;
    let trust = believed(params.trust)?;
    if name.is_empty() || name.len() > NAME_BYTES || name.chars().any(char::is_control) || name.contains('/') {
        let words = format!("a document is named by 1 to {NAME_BYTES} bytes without `/` and control characters");
        return Err(Problem::unprocessable("invalid_name", words).field("name"));
    }
    if body.len() > DOCUMENT_BYTES {
        let words =
            format!("{} bytes are more than the {DOCUMENT_BYTES} of a document: cut it into several", body.len());
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "document_too_large", words));
    }
    let text = std::str::from_utf8(&body).ok().filter(|text| !text.contains('\0')).ok_or_else(|| {
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_text", "the document is no text in UTF-8")
            .remedy("make it Markdown or plain text first")
    })?;
    let chunks = chunks_of(text);
    if chunks.is_empty() || chunks.len() > engine::MAX_CHUNKS {
        let words = format!("the document has {} passages, not 1 to {}", chunks.len(), engine::MAX_CHUNKS);
        return Err(
            Problem::unprocessable("invalid_document", words).remedy("send text, or cut it into several documents")
        );
    }
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let document = NewDocument {
        collection,
        name,
        digest: hex::encode(Sha256::digest(&body)),
        media_type: media_type.unwrap_or("text/plain").chars().take(127).collect(),
        bytes: body.len() as u64,
        trust,
        added_by: format!("operator:{}", principal.name),
        chunks,
    };
    let stored = api.knowledge.put(&principal.tenant, &document).await?;
    Ok(Json(stored.into()))
}

/// Remove a document
#[utoipa::path(
    delete, path = "/v1/knowledge/{collection}/{name}", tag = "memory",
    params(
        ("collection" = String, Path, description = "Which collection"),
        ("name" = String, Path, description = "The name of the document"),
    ),
    responses((status = 204, description = "It is not known any more")),
)]
pub(crate) async fn drop_document(
    Operator(principal): Operator,
    State(api): State<MemoryApi>,
    Segments((collection, name)): Segments<(String, String)>,
) -> Result<StatusCode, Problem> {
    let is_text = !collection.contains('\0') && !name.contains('\0');
    if is_text && api.knowledge.delete(&principal.tenant, &collection, &name).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(Problem::not_found("unknown_document", format!("there is no document `{name}` in `{collection}`")))
}

/// A version of a skill, and what became of the runs that opened it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SkillView {
    /// The skill.
    skill: String,
    /// Digest of its files as they were then.
    digest: String,
    /// Runs that opened it.
    runs: u64,
    /// Of those, runs that reached their objective.
    completed: u64,
    /// And runs that failed.
    failed: u64,
}

/// The skills that were opened.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SkillPage {
    /// By name, the most used version first.
    items: Vec<SkillView>,
}

/// Show which skills were of use
#[utoipa::path(
    get, path = "/v1/skills", tag = "memory",
    responses((status = 200, description = "What the tenant's runs opened, and how those ended", body = SkillPage)),
)]
pub(crate) async fn skills(
    Viewer(principal): Viewer,
    State(api): State<MemoryApi>,
) -> Result<Json<SkillPage>, Problem> {
    let view = |used: SkillUse| {
        let SkillUse { skill, digest, runs, completed, failed } = used;
        SkillView { skill, digest, runs, completed, failed }
    };
    let uses = api.skills.uses(&principal.tenant).await?;
    Ok(Json(SkillPage { items: uses.into_iter().map(view).collect() }))
}
