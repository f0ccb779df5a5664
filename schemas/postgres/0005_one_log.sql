-- A commit compares the time of the last event with its number, and outside events about one thing are found in their order.

-- What came before an event about the same thing and is not dispatched yet.
create index external_events_under_way on external_events (tenant, resource_key, position) where dispatched_at is null;

-- The one write path of the log, as before, and a decision counts only if the run's last event is the one that it was made
-- on: the same number, and come at the same time. A server that was restored, or took over, may lack commits that were
-- confirmed, and others may have taken their numbers since.
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
    p_expected_at bigint[]
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
                    p_turns, p_tool_calls, p_model_calls, p_input_tokens, p_cached_tokens, p_output_tokens, p_cost,
                    p_expected_at)
             as c (run, expected, seq, status, rule, at, attention, turn, not_before, wake_kinds,
                   turns, tool_calls, model_calls, input_tokens, cached_tokens, output_tokens, cost, expected_at)
        where r.run_id = c.run and r.seq = c.expected and c.expected > 0 and c.run <> all (v_seen)
          and (c.expected_at is null or r.updated_at = v_epoch + c.expected_at * v_us)
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

-- Services of the version before compare the number alone.
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
language sql volatile as $$
    select * from append(p_run, p_expected, p_seq, p_key, p_created, p_status, p_rule, p_at, p_attention, p_turn,
                         p_not_before, p_wake_kinds, p_turns, p_tool_calls, p_model_calls, p_input_tokens, p_cached_tokens,
                         p_output_tokens, p_cost, e_run, e_seq, e_tenant, e_type, e_version, e_at, e_cause, e_data, p_side,
                         p_published, null)
$$;
