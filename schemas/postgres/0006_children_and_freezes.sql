-- Child runs, and the kill switch.

-- The run that started a run as its child, and the agents above it.
alter table runs
    add column parent_id uuid,
    add column lineage   text[] not null default '{}';
create index runs_by_parent on runs (parent_id, created_at) where parent_id is not null;

-- Open children of runs: what is to be created, held, ended or settled is found here.
create table children (
    child_id   uuid primary key,
    run_id     uuid not null,
    call_id    uuid not null,
    started_at timestamptz not null
);
create index children_by_run on children (run_id);

-- Every change of the kill switch, and who made it. What counts of a scope is its newest row. `tenant` is `*` for the scope
-- `all`; the other scopes are `tenant`, `agent:<name>` and `tool:<name>`.
create table freezes (
    version bigint generated always as identity primary key,
    tenant  text not null,
    scope   text not null,
    is_on   boolean not null,
    by_whom text not null,
    reason  text,
    at      timestamptz not null default now()
);
create index freezes_by_scope on freezes (tenant, scope, version desc);

-- The scope that keeps a tool of these agents from starting; none if nothing does.
create function frozen_by(p_tenant text, p_agents text[], p_tool text) returns text
language sql stable
set enable_seqscan = off
as $$
    select s.scope
    from (values ('*', 'all'), (p_tenant, 'tenant'), (p_tenant, 'tool:' || p_tool)
          union all select p_tenant, 'agent:' || agent from unnest(p_agents) as a (agent)) as s (tenant, scope)
    where (select f.is_on from freezes f where f.tenant = s.tenant and f.scope = s.scope order by f.version desc limit 1)
    limit 1
$$;

-- The one write path of the log, as before; and what would start something in a frozen scope is kept out: outcome 3.
create function append(
    p_run uuid[], p_expected bigint[], p_seq bigint[], p_key text[],
    p_created json,
    p_status text[], p_rule text[], p_at bigint[], p_attention boolean[], p_turn uuid[], p_not_before bigint[],
    p_wake_kinds text[], p_turns integer[], p_tool_calls integer[], p_model_calls integer[], p_input_tokens bigint[],
    p_cached_tokens bigint[], p_output_tokens bigint[], p_cost bigint[],
    e_run uuid[], e_seq bigint[], e_tenant text[], e_type text[], e_version smallint[], e_at bigint[], e_cause text[],
    e_data text[],
    p_side json,
    p_published bigint[],
    p_expected_at bigint[],
    p_starts json
) returns table (o_run uuid, o_outcome smallint, o_outbox bigint)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_seen   uuid[];
    v_frozen uuid[] := '{}';
    v_won    uuid[];
    v_made   uuid[];
    v_outbox bigint;
    v_epoch  constant timestamptz := 'epoch';
    v_us     constant interval := '1 microsecond';
begin
    if p_published is not null then
        delete from outbox where id = any (p_published);
    end if;

    select coalesce(array_agg(i.run_id), '{}') into v_seen
    from unnest(p_run, p_key) as c (run, key) join inbox i on i.run_id = c.run and i.key = c.key;

    if p_starts is not null then
        -- Whoever changes a freeze waits for those who have begun to start something; who comes after that sees the change.
        perform pg_advisory_xact_lock_shared(hashtextextended(current_schema() || '/freezes', 0));
        select coalesce(array_agg(distinct s.run_id), '{}') into v_frozen
        from json_to_recordset(p_starts) as s (run_id uuid, tool text)
        cross join lateral (select r.tenant, r.agent, r.lineage from runs r where r.run_id = s.run_id limit 1) r
        where frozen_by(r.tenant, r.lineage || r.agent, s.tool) is not null;
    end if;

    with moved as (
        update runs r
        set seq = c.seq, status = c.status, rule = c.rule, updated_at = v_epoch + c.at * v_us, attention = c.attention,
            turn_id = c.turn, not_before = v_epoch + c.not_before * v_us, wake_kinds = string_to_array(c.wake_kinds, ','),
            waiting_since = case when c.status <> 'waiting' then null
                                 else coalesce(r.waiting_since, v_epoch + c.at * v_us) end,
            turns = c.turns, tool_calls = c.tool_calls, model_calls = c.model_calls, input_tokens = c.input_tokens,
            cached_tokens = c.cached_tokens, output_tokens = c.output_tokens, cost_microusd = c.cost
        from unnest(p_run, p_expected, p_seq, p_status, p_rule, p_at, p_attention, p_turn, p_not_before, p_wake_kinds,
                    p_turns, p_tool_calls, p_model_calls, p_input_tokens, p_cached_tokens, p_output_tokens, p_cost,
                    p_expected_at)
             as c (run, expected, seq, status, rule, at, attention, turn, not_before, wake_kinds,
                   turns, tool_calls, model_calls, input_tokens, cached_tokens, output_tokens, cost, expected_at)
        where r.run_id = c.run and r.seq = c.expected and c.expected > 0 and c.run <> all (v_seen) and c.run <> all (v_frozen)
          and (c.expected_at is null or r.updated_at = v_epoch + c.expected_at * v_us)
        returning r.run_id
    )
    select coalesce(array_agg(run_id), '{}') into v_won from moved;

    if p_created is not null then
        with made as (
            insert into runs (run_id, tenant, agent, agent_digest, objective, conversation_id, metadata, sampled, created_at,
                              updated_at, seq, status, rule, attention, turn_id, not_before, parent_id, lineage)
            select n.run_id, n.tenant, n.agent, n.agent_digest, n.objective, n.conversation_id, n.metadata, n.sampled,
                   v_epoch + c.at * v_us, v_epoch + c.at * v_us, c.seq, c.status, c.rule, c.attention, c.turn,
                   v_epoch + c.not_before * v_us, n.parent_id, coalesce(n.lineage, '{}')
            from json_to_recordset(p_created) as n (run_id uuid, tenant text, agent text, agent_digest text, objective text,
                                                    conversation_id uuid, metadata json, sampled boolean,
                                                    parent_id uuid, lineage text[])
            join unnest(p_run, p_seq, p_status, p_rule, p_at, p_attention, p_turn, p_not_before)
                 as c (run, seq, status, rule, at, attention, turn, not_before) on c.run = n.run_id
            where n.run_id <> all (v_seen)
            on conflict do nothing
            returning run_id
        )
        select coalesce(array_agg(run_id), '{}') into v_made from made;
        v_won := v_won || v_made;
    end if;

    if cardinality(v_won) > 0 then
        insert into inbox (run_id, key)
        select c.run, c.key from unnest(p_run, p_key) as c (run, key) where c.run = any (v_won);

        insert into events (run_id, seq, tenant, type, version, at, cause, data)
        select e.run, e.seq, e.tenant, e.type, e.version, v_epoch + e.at * v_us, e.cause::json, e.data::json
        from unnest(e_run, e_seq, e_tenant, e_type, e_version, e_at, e_cause, e_data)
             as e (run, seq, tenant, type, version, at, cause, data)
        where cardinality(v_won) = cardinality(p_run) or e.run = any (v_won);

        if p_side is not null then
            perform append_side(p_side, v_won);
        end if;

        insert into outbox (runs, from_seq, to_seq)
        select array_agg(c.run), array_agg(c.expected + 1), array_agg(c.seq)
        from unnest(p_run, p_expected, p_seq) as c (run, expected, seq) where c.run = any (v_won)
        returning id into v_outbox;
    end if;

    return query
        select c.run,
               (case when c.run = any (v_won) then 0 when c.run = any (v_seen) then 1
                     when c.run = any (v_frozen) then 3 else 2 end)::smallint,
               v_outbox
        from unnest(p_run) as c (run);
end
$$;

-- Services of the version before know of no freeze. Until they are replaced, only new services keep to it.
create or replace function append(
    p_run uuid[], p_expected bigint[], p_seq bigint[], p_key text[],
    p_created json,
    p_status text[], p_rule text[], p_at bigint[], p_attention boolean[], p_turn uuid[], p_not_before bigint[],
    p_wake_kinds text[], p_turns integer[], p_tool_calls integer[], p_model_calls integer[], p_input_tokens bigint[],
    p_cached_tokens bigint[], p_output_tokens bigint[], p_cost bigint[],
    e_run uuid[], e_seq bigint[], e_tenant text[], e_type text[], e_version smallint[], e_at bigint[], e_cause text[],
    e_data text[],
    p_side json,
    p_published bigint[],
    p_expected_at bigint[]
) returns table (o_run uuid, o_outcome smallint, o_outbox bigint)
language sql volatile as $$
    select * from append(p_run, p_expected, p_seq, p_key, p_created, p_status, p_rule, p_at, p_attention, p_turn,
                         p_not_before, p_wake_kinds, p_turns, p_tool_calls, p_model_calls, p_input_tokens, p_cached_tokens,
                         p_output_tokens, p_cost, e_run, e_seq, e_tenant, e_type, e_version, e_at, e_cause, e_data, p_side,
                         p_published, p_expected_at, null)
$$;

-- The rarer projections of the same commit: rows for and only for the runs in `won`.
create or replace function append_side(side json, won uuid[]) returns void
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    parts constant text[] := array(select json_object_keys(side));
begin
    if 'waits_gone' = any (parts) then
        delete from waits w using json_to_recordset(side -> 'waits_gone') as g (run_id uuid, wait_id uuid)
        where w.run_id = g.run_id and w.wait_id = g.wait_id and g.run_id = any (won);
    end if;

    if 'waits' = any (parts) then
        insert into waits (run_id, wait_id, leaf, tenant, kind, resource_key, event_type, filter, exclusive, due, deadline, why, since)
        select n.run_id, n.wait_id, n.leaf, n.tenant, n.kind, n.resource_key, n.event_type, n.filter, n.exclusive, n.due,
               n.deadline, n.why, n.since
        from json_to_recordset(side -> 'waits') as n (run_id uuid, wait_id uuid, leaf integer, tenant text, kind text,
             resource_key text, event_type text, filter text, exclusive boolean, due timestamptz, deadline timestamptz, why text,
             since timestamptz)
        where n.run_id = any (won)
        on conflict do nothing;
    end if;

    if 'timers_gone' = any (parts) then
        delete from timers t using json_to_recordset(side -> 'timers_gone') as g (run_id uuid, timer_id uuid)
        where t.timer_id = g.timer_id and g.run_id = any (won);
    end if;

    if 'timers' = any (parts) then
        insert into timers (timer_id, run_id, due, purpose)
        select n.timer_id, n.run_id, n.due, n.purpose
        from json_to_recordset(side -> 'timers') as n (timer_id uuid, run_id uuid, due timestamptz, purpose text)
        where n.run_id = any (won)
        on conflict do nothing;
    end if;

    if 'calls_gone' = any (parts) then
        delete from started_calls s using json_to_recordset(side -> 'calls_gone') as g (run_id uuid, call_id uuid)
        where s.call_id = g.call_id and g.run_id = any (won);
    end if;

    if 'calls' = any (parts) then
        insert into started_calls (call_id, run_id, tenant, tool, activity, status, executor, started_at)
        select n.call_id, n.run_id, n.tenant, n.tool, n.activity, n.status, n.executor, n.started_at
        from json_to_recordset(side -> 'calls') as n (call_id uuid, run_id uuid, tenant text, tool text, activity boolean,
             status text, executor text, started_at timestamptz)
        where n.run_id = any (won)
        on conflict (call_id) do update set status = excluded.status, executor = excluded.executor, started_at = excluded.started_at;
    end if;

    if 'approvals' = any (parts) then
        insert into approvals (approval_id, run_id, tenant, call_id, tool, question, arguments, binding, trust, reasons, state,
                               requested_at, expires_at)
        select n.approval_id, n.run_id, n.tenant, n.call_id, n.tool, n.question, n.arguments, n.binding, n.trust, n.reasons, 'open',
               n.requested_at, n.expires_at
        from json_to_recordset(side -> 'approvals') as n (approval_id uuid, run_id uuid, tenant text, call_id uuid, tool text,
             question text, arguments json, binding json, trust text, reasons json, requested_at timestamptz,
             expires_at timestamptz)
        where n.run_id = any (won)
        on conflict do nothing;
    end if;

    if 'decided' = any (parts) then
        update approvals a set state = d.state, decided_at = d.decided_at, decided_by = d.decided_by, decision = d.decision
        from json_to_recordset(side -> 'decided') as d (run_id uuid, approval_id uuid, state text, decided_at timestamptz,
             decided_by text, decision text)
        where a.approval_id = d.approval_id and d.run_id = any (won);
    end if;

    if 'children_gone' = any (parts) then
        delete from children c using json_to_recordset(side -> 'children_gone') as g (run_id uuid, child_id uuid)
        where c.child_id = g.child_id and g.run_id = any (won);
    end if;

    if 'children' = any (parts) then
        insert into children (child_id, run_id, call_id, started_at)
        select n.child_id, n.run_id, n.call_id, n.started_at
        from json_to_recordset(side -> 'children') as n (child_id uuid, run_id uuid, call_id uuid, started_at timestamptz)
        where n.run_id = any (won)
        on conflict do nothing;
    end if;

    if 'artifacts' = any (parts) then
        insert into artifacts (artifact_id, version, run_id, tenant, name, digest, bytes, media_type, trust, created_at)
        select n.artifact_id, n.version, n.run_id, n.tenant, n.name, n.digest, n.bytes, n.media_type, n.trust, n.created_at
        from json_to_recordset(side -> 'artifacts') as n (artifact_id uuid, version integer, run_id uuid, tenant text, name text,
             digest text, bytes bigint, media_type text, trust text, created_at timestamptz)
        where n.run_id = any (won)
        on conflict do nothing;
    end if;
end
$$;

-- Removes ended runs, as before, but no child whose parent has still to be told of its end.
create or replace function remove_ended_runs(p_after uuid, p_age interval, p_runs integer, p_rows integer)
    returns table (o_removed bigint, o_rows bigint, o_last uuid)
language plpgsql volatile security definer as $$
declare
    v_looked uuid[];
    v_gone   uuid[];
    v_going  uuid[];
    v_events bigint;
    v_inbox  bigint;
begin
    select coalesce(array_agg(page.run_id order by page.run_id), '{}') into v_looked
    from (select r.run_id from runs r where p_after is null or r.run_id > p_after order by r.run_id limit p_runs) page;

    v_gone := array(
        select r.run_id from runs r
        where r.run_id = any (v_looked) and r.status in ('completed', 'failed', 'cancelled') and r.updated_at < now() - p_age
          -- What it gives back is still to be told to its parent.
          and not exists (select from children c where c.child_id = r.run_id)
        order by r.run_id for update skip locked
    );
    insert into removed_runs (run_id) select unnest(v_gone) on conflict do nothing;
    delete from runs where run_id = any (v_gone);
    delete from checkpoints where run_id = any (v_gone);
    delete from waits where run_id = any (v_gone);
    delete from timers where run_id = any (v_gone);
    delete from started_calls where run_id = any (v_gone);
    delete from approvals where run_id = any (v_gone);
    delete from artifacts where run_id = any (v_gone);
    delete from observer_checkpoints where run_id = any (v_gone);
    delete from signal_segments where run_id = any (v_gone);

    v_going := array(select r.run_id from removed_runs r order by r.removed_at limit p_runs for update skip locked);
    delete from events where ctid = any (array(select e.ctid from events e where e.run_id = any (v_going) limit p_rows));
    get diagnostics v_events = row_count;
    delete from inbox where ctid = any (array(select i.ctid from inbox i where i.run_id = any (v_going) limit p_rows));
    get diagnostics v_inbox = row_count;
    if v_events < p_rows and v_inbox < p_rows then
        delete from removed_runs where run_id = any (v_going);
    end if;

    return query select coalesce(cardinality(v_gone), 0)::bigint, v_events + v_inbox,
                        case when cardinality(v_looked) < p_runs then null else v_looked[cardinality(v_looked)] end;
end
$$;
do $$ begin
    execute format('alter function remove_ended_runs set search_path = %I, pg_temp', current_schema());
end $$;
