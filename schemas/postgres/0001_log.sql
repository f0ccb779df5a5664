-- The event log and what is derived from it. Names are unqualified: the schema comes from search_path.

-- One row a run, as it stands now. `seq` is what every commit compares and sets.
-- `attention` means that somebody should act now (a turn is open, or a call is requested): its partial index is on a column
-- that never changes, so that updates stay HOT as long as the flag does.
create table runs (
    run_id          uuid primary key,
    tenant          text not null,
    agent           text not null,
    agent_digest    text not null,
    objective       text not null,
    conversation_id uuid,
    metadata        json not null default '{}',
    sampled         boolean not null,
    created_at      timestamptz not null,
    updated_at      timestamptz not null,
    seq             bigint not null,
    status          text not null,
    rule            text,
    attention       boolean not null,
    turn_id         uuid,
    not_before      timestamptz,
    wake_kinds      text[] not null default '{}',
    waiting_since   timestamptz,
    turns           integer not null default 0,
    tool_calls      integer not null default 0,
    model_calls     integer not null default 0,
    input_tokens    bigint not null default 0,
    cached_tokens   bigint not null default 0,
    output_tokens   bigint not null default 0,
    cost_microusd   bigint not null default 0
) with (fillfactor = 50);
create index runs_listing on runs (tenant, created_at desc, run_id desc);
create index runs_attention on runs (run_id) where attention;

-- The log: the truth. Only ever inserted.
create table events (
    run_id  uuid not null,
    seq     bigint not null,
    tenant  text not null,
    type    text not null,
    version smallint not null,
    at      timestamptz not null,
    cause   json not null,
    data    json not null,
    primary key (run_id, seq)
);

-- Deliveries that were handled: the second time is acknowledged and does nothing.
create table inbox (
    run_id uuid not null,
    key    text not null,
    at     timestamptz not null default now(),
    primary key (run_id, key)
);
create index inbox_age on inbox using brin (at);

-- One row a commit whose events are not yet known to be published for good.
create table outbox (
    id       bigint generated always as identity primary key,
    at       timestamptz not null default now(),
    runs     uuid[] not null,
    from_seq bigint[] not null,
    to_seq   bigint[] not null,
    swept_at timestamptz
);

-- Whole states now and then, so that no load ever folds a long log.
create table checkpoints (
    run_id        uuid primary key,
    seq           bigint not null,
    state_version integer not null,
    state         json not null
);

-- The conditions of open registered waits, a row each.
create table waits (
    run_id       uuid not null,
    wait_id      uuid not null,
    leaf         integer not null,
    tenant       text not null,
    kind         text not null,
    resource_key text,
    event_type   text,
    filter       text,
    exclusive    boolean not null default false,
    due          timestamptz,
    deadline     timestamptz,
    why          text not null,
    since        timestamptz not null,
    primary key (run_id, wait_id, leaf)
);
create index waits_by_key on waits (tenant, resource_key) where kind = 'external';

create table timers (
    timer_id      uuid primary key,
    run_id        uuid not null,
    due           timestamptz not null,
    purpose       text not null,
    claimed_until timestamptz
);
create index timers_due on timers (due);
create index timers_by_run on timers (run_id);

-- Calls whose effect may be under way: what the reconciler looks at.
create table started_calls (
    call_id    uuid primary key,
    run_id     uuid not null,
    tenant     text not null,
    tool       text not null,
    activity   boolean not null,
    status     text not null,
    executor   text not null,
    started_at timestamptz not null
);

create table approvals (
    approval_id  uuid primary key,
    run_id       uuid not null,
    tenant       text not null,
    call_id      uuid,
    tool         text,
    question     text not null,
    arguments    json,
    binding      json not null,
    trust        text not null,
    reasons      json not null,
    state        text not null,
    requested_at timestamptz not null,
    expires_at   timestamptz not null,
    decided_at   timestamptz,
    decided_by   text,
    decision     text
);
create index approvals_open on approvals (expires_at) where state = 'open';
create index approvals_listing on approvals (tenant, requested_at desc);

create table artifacts (
    artifact_id uuid not null,
    version     integer not null,
    run_id      uuid not null,
    tenant      text not null,
    name        text not null,
    digest      text not null,
    bytes       bigint not null,
    media_type  text not null,
    trust       text not null,
    created_at  timestamptz not null,
    primary key (artifact_id, version)
);
create index artifacts_by_run on artifacts (run_id);

create view usage as
    select run_id, tenant, agent, created_at, turns, tool_calls, model_calls, input_tokens, cached_tokens, output_tokens,
           cost_microusd
    from runs;

-- Events from outside, once each: what waits and triggers are matched against.
create table external_events (
    position      bigint generated always as identity primary key,
    tenant        text not null,
    source        text not null,
    id            text not null,
    type          text not null,
    subject       text not null,
    resource_key  text not null,
    event         json not null,
    traceparent   text,
    received_at   timestamptz not null default now(),
    dispatched_at timestamptz,
    unique (tenant, source, id)
);
create index external_events_by_key on external_events (tenant, resource_key, position);
create index external_events_undispatched on external_events (position) where dispatched_at is null;

-- Agent definitions by content; `agent_heads` says which one new runs start with.
create table agents (
    tenant     text not null,
    name       text not null,
    digest     text not null,
    source     text not null,
    spec       json not null,
    created_at timestamptz not null default now(),
    primary key (tenant, name, digest)
);
create table agent_heads (
    tenant     text not null,
    name       text not null,
    digest     text not null,
    changed_at timestamptz not null default now(),
    changed_by text not null,
    primary key (tenant, name)
);

-- Requests that carried an Idempotency-Key, and the run that they made.
create table idempotency_keys (
    tenant     text not null,
    key        text not null,
    digest     text not null,
    run_id     uuid not null,
    created_at timestamptz not null default now(),
    primary key (tenant, key)
);

-- How far an observer has read the output of a call, and what it has in mind.
create table observer_checkpoints (
    call_id    uuid primary key,
    run_id     uuid not null,
    stream_seq bigint not null,
    state      json not null,
    updated_at timestamptz not null default now()
);

-- Archived pieces of raw output, by where they stand in their stream.
create table signal_segments (
    call_id     uuid not null,
    from_offset bigint not null,
    to_offset   bigint not null,
    from_line   bigint not null,
    to_line     bigint not null,
    run_id      uuid not null,
    tenant      text not null,
    object_key  text not null,
    stored_at   timestamptz not null default now(),
    primary key (call_id, from_offset)
);
