-- Schedules, and what became of each of their times.

-- `look_at` is when there is something to decide next; none if there never will be. Who decides locks the row for it, and so
-- does whoever changes the schedule: a decision is on the schedule as it was before a change or after it.
create table schedules (
    schedule_id      uuid primary key,
    tenant           text not null,
    name             text not null,
    spec             json not null,
    revision         bigint not null,
    -- The agent that made it; none if a person did.
    agent            text,
    made_by          text not null,
    trust            text not null,
    created_at       timestamptz not null,
    changed_at       timestamptz not null,
    changed_by       text not null,
    paused           boolean not null default false,
    -- Its times up to here are decided.
    considered_until timestamptz not null,
    look_at          timestamptz,
    unique (tenant, name)
);
create index schedules_due on schedules (look_at) where look_at is not null;
create index schedules_considered on schedules (considered_until);
create index schedules_by_agent on schedules (tenant, agent) where agent is not null;

-- A time of a schedule that was decided on, once each: the key is what keeps a time from being decided twice, whatever
-- clocks do. `waiting` becomes `starting` under the schedule's lock, and `started` or `published` when that has happened;
-- `ended` when the run is seen to have ended; `skipped`, `missed` and `failed` say why in `note`.
create table firings (
    schedule_id   uuid not null references schedules (schedule_id) on delete cascade,
    fire_at       timestamptz not null,
    due           timestamptz not null,
    kind          text not null,
    at_once       boolean not null default false,
    state         text not null,
    run_id        uuid,
    note          text,
    decided_at    timestamptz not null,
    claimed_until timestamptz,
    primary key (schedule_id, fire_at)
);
create index firings_open on firings (schedule_id) where state in ('waiting', 'starting', 'started');
create index firings_age on firings using brin (decided_at);

-- The tool-executor may make and remove what agents make, and nothing of people's.
alter table schedules enable row level security;
