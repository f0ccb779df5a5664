-- Watched services: actions on them, what their logs say about those, how well they are, and where their logs are kept.
-- None of it belongs to a run.

-- Who did what to which service. What an action came to is told from these rows: `state` goes from `open` over `decided`, once
-- there is a conclusion, to `told`, once everybody who should know has it.
create table actions (
    action_id  uuid primary key,
    tenant     text not null,
    -- What makes it the same when it is recorded again, and what was said then.
    key        text not null,
    digest     text not null,
    service    text not null,
    action     json not null,
    -- The trace that its first lines turned out to belong to, if the action itself named none.
    adopted    text,
    opened_at  timestamptz not null default now(),
    state      text not null default 'open',
    conclusion json,
    decided_at timestamptz,
    told_at    timestamptz,
    unique (tenant, key)
);
create index actions_open on actions (opened_at, action_id) where state <> 'told';
create index actions_listing on actions (tenant, opened_at desc, action_id desc);

-- What was found about an open action in the log of one service.
create table action_slices (
    action_id  uuid not null,
    service    text not null,
    stream_seq bigint not null,
    state      json not null,
    primary key (action_id, service)
);

-- How far the log of a service was read, and what an observer has in mind of it.
create table service_checkpoints (
    tenant        text not null,
    service       text not null,
    partition     smallint not null,
    -- Streams that are lost begin anew, at 1.
    stream_made   bigint not null,
    stream_seq    bigint not null,
    state         json not null,
    updated_at    timestamptz not null default now(),
    primary key (tenant, service)
);
create index service_checkpoints_by_partition on service_checkpoints (partition);

-- Alarms: the last one of each rule of each agent for each service.
create table alerts (
    tenant     text not null,
    service    text not null,
    agent      text not null,
    rule       text not null,
    state      text not null,
    since      timestamptz not null,
    changed_at timestamptz not null,
    what       text not null,
    primary key (tenant, service, agent, rule)
);

-- Signals that are known to be missing. Nothing is dropped silently.
create table signal_gaps (
    tenant   text,
    service  text,
    from_at  timestamptz not null,
    to_at    timestamptz not null,
    -- At most so many: of messages that are gone nobody can say whose they were.
    messages bigint not null,
    why      text not null,
    noted_at timestamptz not null default now()
);
create index signal_gaps_by_time on signal_gaps (to_at);

-- Archived pieces of the logs of services: the messages `from_seq..=to_seq` of one service, stored by the bus between
-- `from_at` and `to_at`.
create table service_segments (
    tenant     text not null,
    service    text not null,
    from_seq   bigint not null,
    to_seq     bigint not null,
    from_at    timestamptz not null,
    to_at      timestamptz not null,
    records    bigint not null,
    bytes      bigint not null,
    object_key text not null,
    stored_at  timestamptz not null default now(),
    primary key (tenant, service, object_key)
);
create index service_segments_by_time on service_segments (tenant, service, to_at);
