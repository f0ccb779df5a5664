-- What outlives runs: what they remember, the documents that agents know, and the skills that runs have opened.

create table memories (
    memory_id  uuid primary key,
    tenant     text not null,
    scope      text not null,
    -- Name of the agent or of the user; empty for the tenant's own.
    owner      text not null,
    key        text not null,
    text       text not null,
    trust      text not null,
    source     text not null,
    revision   bigint not null default 1,
    -- The run and the turn that wrote it; none if a person did.
    run_id     uuid,
    turn_id    uuid,
    written_by text not null,
    written_at timestamptz not null,
    expires_at timestamptz,
    words      tsvector generated always as (
                   setweight(to_tsvector('pg_catalog.english', key), 'A') || to_tsvector('pg_catalog.english', text)) stored,
    unique (tenant, scope, owner, key)
);
create index memories_words on memories using gin (words);
create index memories_listing on memories (tenant, written_at desc, memory_id);
create index memories_expiry on memories (expires_at) where expires_at is not null;

-- What skills said when a run first opened them, by digest: a run keeps to that, whatever becomes of the folder.
create table skill_versions (
    digest   text primary key,
    name     text not null,
    files    json not null,
    seen_at  timestamptz not null default now()
);

create table skill_uses (
    run_id    uuid not null,
    skill     text not null,
    tenant    text not null,
    digest    text not null,
    opened_at timestamptz not null,
    primary key (run_id, skill)
);
create index skill_uses_by_tenant on skill_uses (tenant, skill);

-- The log says what is remembered; this keeps it, in the same commit. Who may write the event may do this and no more.
create function keep_for_later() returns trigger
language plpgsql volatile security definer as $$
declare
    said  constant json := new.data;
    place constant json := said -> 'place';
begin
    if new.type = 'memory.written' then
        delete from memories where expires_at < now();
        insert into memories (memory_id, tenant, scope, owner, key, text, trust, source, run_id, turn_id, written_by,
                              written_at, expires_at)
        values ((said ->> 'memory_id')::uuid, new.tenant, place ->> 'scope', coalesce(place ->> 'owner', ''),
                place ->> 'key', said #>> '{block,text}', said #>> '{block,trust}', said #>> '{block,source}', new.run_id,
                (said ->> 'turn_id')::uuid, 'run:' || new.run_id, new.at, (said ->> 'expires_at')::timestamptz)
        on conflict (memory_id) do update
        set text = excluded.text, trust = excluded.trust, source = excluded.source, revision = memories.revision + 1,
            run_id = excluded.run_id, turn_id = excluded.turn_id, written_by = excluded.written_by,
            written_at = excluded.written_at, expires_at = excluded.expires_at
        where memories.tenant = excluded.tenant;
    elsif new.type = 'memory.deleted' then
        delete from memories where memory_id = (said ->> 'memory_id')::uuid and tenant = new.tenant;
    else
        insert into skill_uses (run_id, skill, tenant, digest, opened_at)
        values (new.run_id, said #>> '{skill,name}', new.tenant, said #>> '{skill,digest}', new.at)
        on conflict do nothing;
    end if;
    return null;
end
$$;
do $$ begin
    execute format('alter function keep_for_later set search_path = %I, pg_temp', current_schema());
end $$;
create trigger keep_for_later after insert on events for each row
when (new.type in ('memory.written', 'memory.deleted', 'skill.opened'))
execute function keep_for_later();

create table knowledge_documents (
    document_id uuid primary key,
    tenant      text not null,
    collection  text not null,
    name        text not null,
    digest      text not null,
    media_type  text not null,
    bytes       bigint not null,
    chunks      integer not null,
    trust       text not null,
    added_by    text not null,
    added_at    timestamptz not null default now(),
    unique (tenant, collection, name)
);

create table knowledge_chunks (
    document_id uuid not null references knowledge_documents (document_id) on delete cascade,
    ordinal     integer not null,
    tenant      text not null,
    collection  text not null,
    heading     text not null,
    text        text not null,
    words       tsvector generated always as (
                    setweight(to_tsvector('pg_catalog.english', heading), 'A') || to_tsvector('pg_catalog.english', text))
                    stored,
    primary key (document_id, ordinal)
);
create index knowledge_chunks_words on knowledge_chunks using gin (words);
create index knowledge_chunks_by_collection on knowledge_chunks (tenant, collection);
