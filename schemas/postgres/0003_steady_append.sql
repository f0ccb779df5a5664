-- Appending costs the same however long the log is.
--
-- Plans are made once, when the tables may be empty or never analysed, and then joined the batch to the whole inbox by hashing
-- it. So within these functions a batch is looked up by index, whatever the statistics say, and a projection that has
-- nothing to add is not touched.
create or replace function append(
    p_run uuid[], p_expected bigint[], p_seq bigint[], p_key text[],
    p_created json,
    p_status text[], p_rule text[], p_at bigint[], p_attention boolean[], p_turn uuid[], p_not_before bigint[],
    p_wake_kinds text[], p_turns integer[], p_tool_calls integer[], p_model_calls integer[], p_input_tokens bigint[],
    p_cached_tokens bigint[], p_output_tokens bigint[], p_cost bigint[],
    e_run uuid[], e_seq bigint[], e_tenant text[], e_type text[], e_version smallint[], e_at bigint[], e_cause text[],
    e_data text[],
    p_side json,
    p_published bigint[]
) returns table (o_run uuid, o_outcome smallint, o_outbox bigint)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_seen   uuid[];
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

    with moved as (
        update runs r
        set seq = c.seq, status = c.status, rule = c.rule, updated_at = v_epoch + c.at * v_us, attention = c.attention,
            turn_id = c.turn, not_before = v_epoch + c.not_before * v_us, wake_kinds = string_to_array(c.wake_kinds, ','),
            waiting_since = case when c.status <> 'waiting' then null
                                 else coalesce(r.waiting_since, v_epoch + c.at * v_us) end,
            turns = c.turns, tool_calls = c.tool_calls, model_calls = c.model_calls, input_tokens = c.input_tokens,
            cached_tokens = c.cached_tokens, output_tokens = c.output_tokens, cost_microusd = c.cost
        from unnest(p_run, p_expected, p_seq, p_status, p_rule, p_at, p_attention, p_turn, p_not_before, p_wake_kinds,
                    p_turns, p_tool_calls, p_model_calls, p_input_tokens, p_cached_tokens, p_output_tokens, p_cost)
             as c (run, expected, seq, status, rule, at, attention, turn, not_before, wake_kinds,
                   turns, tool_calls, model_calls, input_tokens, cached_tokens, output_tokens, cost)
        where r.run_id = c.run and r.seq = c.expected and c.expected > 0 and c.run <> all (v_seen)
        returning r.run_id
    )
    select coalesce(array_agg(run_id), '{}') into v_won from moved;

    if p_created is not null then
        with made as (
            insert into runs (run_id, tenant, agent, agent_digest, objective, conversation_id, metadata, sampled, created_at,
                              updated_at, seq, status, rule, attention, turn_id, not_before)
            select n.run_id, n.tenant, n.agent, n.agent_digest, n.objective, n.conversation_id, n.metadata, n.sampled,
                   v_epoch + c.at * v_us, v_epoch + c.at * v_us, c.seq, c.status, c.rule, c.attention, c.turn,
                   v_epoch + c.not_before * v_us
            from json_to_recordset(p_created) as n (run_id uuid, tenant text, agent text, agent_digest text, objective text,
                                                    conversation_id uuid, metadata json, sampled boolean)
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
               (case when c.run = any (v_won) then 0 when c.run = any (v_seen) then 1 else 2 end)::smallint,
               v_outbox
        from unnest(p_run) as c (run);
end
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

-- While two versions of the services run side by side, each keeps checkpoints in its own shape.
alter table checkpoints drop constraint checkpoints_pkey, add primary key (run_id, state_version);
