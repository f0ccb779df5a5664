-- Starts that triggers hold back: the events that one run is given, until it starts.

-- `open` takes further events, `closed` starts as soon as it may, `started` has its run, whose id is this one's, `ended` has had it,
-- `dropped` needs none.
create table gatherings (
    gathering_id  uuid primary key,
    tenant        text not null,
    agent         text not null,
    -- The version of the agent whose trigger it is, which the run starts with.
    digest        text not null,
    place         integer not null,
    key           text not null,
    state         text not null,
    events        integer not null,
    opened_at     timestamptz not null,
    due           timestamptz not null,
    claimed_until timestamptz,
    started_at    timestamptz,
    note          text
);
create unique index gatherings_open on gatherings (tenant, agent, digest, place, key) where state = 'open';
create index gatherings_unstarted on gatherings (tenant, agent, place, key, opened_at, gathering_id) where state in ('open', 'closed');
create index gatherings_due on gatherings (due) where state in ('open', 'closed');
create index gatherings_started on gatherings (tenant, agent, place, key, started_at) where state in ('started', 'ended');
create index gatherings_age on gatherings using brin (opened_at);

-- Which event is in which: of one trigger in one only, however often it is handled.
create table gathered (
    tenant       text not null,
    agent        text not null,
    place        integer not null,
    position     bigint not null,
    gathering_id uuid not null references gatherings (gathering_id) on delete cascade,
    primary key (tenant, agent, place, position)
);
create index gathered_in on gathered (gathering_id, position);

-- Lists show what a run is to reach, also once an operator has changed that.
create function show_revision() returns trigger language plpgsql as $$
begin
    update runs set objective = left(new.data -> 'objective' ->> 'text', 400) where run_id = new.run_id;
    return null;
end
$$;
create trigger run_revised after insert on events for each row
    when (new.type = 'run.revised' and new.data -> 'objective' is not null)
    execute function show_revision();

-- The runs of a conversation, oldest first.
create index runs_by_conversation on runs (tenant, conversation_id, created_at, run_id) where conversation_id is not null;
