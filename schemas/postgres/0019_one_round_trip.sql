-- What is done by the thousand costs one round trip.

-- Adds to the audit trail, one after the other, whoever adds: the position is drawn, and the entry becomes visible, under the lock.
create function add_to_audit(p_entries jsonb) returns void
language plpgsql volatile
as $$
begin
    perform pg_advisory_xact_lock(hashtextextended('/audit', 0));
    insert into audit (id, at, tenant, actor, roles, token_id, action, resource, outcome, address, forwarded, user_agent,
                       evidence)
    select e.id, e.at, e.tenant, e.actor, array(select jsonb_array_elements_text(e.roles)), e.token_id, e.action, e.resource,
           e.outcome, e.address, e.forwarded, e.user_agent, e.evidence
    from jsonb_to_recordset(p_entries) as e (id uuid, at timestamptz, tenant text, actor text, roles jsonb, token_id uuid,
         action text, resource text, outcome text, address text, forwarded text, user_agent text, evidence json)
    on conflict do nothing;
end
$$;

-- The one write path of the log, as `append` was, in one statement: starting a statement costs more than it does for a few rows.
-- Returns what became of each command in their order (0 committed, 1 handled before, 2 the run has moved on, 3 frozen), and
-- last the row of the outbox, or 0.
create function append_batch(
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
) returns bigint[]
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_frozen uuid[] := '{}';
    v_fates  bigint[];
    v_won    uuid[];
    v_epoch  constant timestamptz := 'epoch';
    v_us     constant interval := '1 microsecond';
begin
    if p_starts is not null then
        -- Whoever changes a freeze waits for those who have begun to start something; who comes after that sees the change.
        perform pg_advisory_xact_lock_shared(hashtextextended(current_schema() || '/freezes', 0));
        select coalesce(array_agg(distinct s.run_id), '{}') into v_frozen
        from json_to_recordset(p_starts) as s (run_id uuid, tool text)
        cross join lateral (select r.tenant, r.agent, r.lineage from runs r where r.run_id = s.run_id limit 1) r
        where frozen_by(r.tenant, r.lineage || r.agent, s.tool) is not null;
    end if;

    with c as materialized (
        select c.run, c.key, c.expected, c.expected_at, c.seq, c.status, c.rule, v_epoch + c.at * v_us as at, c.attention, c.turn,
               v_epoch + c.not_before * v_us as not_before, c.wake_kinds, c.turns, c.tool_calls, c.model_calls, c.input_tokens,
               c.cached_tokens, c.output_tokens, c.cost, c.nr
        from unnest(p_run, p_key, p_expected, p_expected_at, p_seq, p_status, p_rule, p_at, p_attention, p_turn, p_not_before,
                    p_wake_kinds, p_turns, p_tool_calls, p_model_calls, p_input_tokens, p_cached_tokens, p_output_tokens,
                    p_cost)
             with ordinality
             as c (run, key, expected, expected_at, seq, status, rule, at, attention, turn, not_before, wake_kinds, turns,
                   tool_calls, model_calls, input_tokens, cached_tokens, output_tokens, cost, nr)
    ),
    seen as materialized (
        select coalesce(array_agg(i.run_id), '{}') as runs from c join inbox i on i.run_id = c.run and i.key = c.key
    ),
    moved as (
        update runs r
        set seq = c.seq, status = c.status, rule = c.rule, updated_at = c.at, attention = c.attention, turn_id = c.turn,
            not_before = c.not_before, wake_kinds = string_to_array(c.wake_kinds, ','),
            waiting_since = case when c.status <> 'waiting' then null else coalesce(r.waiting_since, c.at) end,
            turns = c.turns, tool_calls = c.tool_calls, model_calls = c.model_calls, input_tokens = c.input_tokens,
            cached_tokens = c.cached_tokens, output_tokens = c.output_tokens, cost_microusd = c.cost
        from c
        where r.run_id = c.run and r.seq = c.expected and c.expected > 0
          and c.run <> all ((select runs from seen)::uuid[]) and c.run <> all (v_frozen)
          -- Two logs may have the same number of events; that the last came at the same time says that it is one log.
          and (c.expected_at is null or r.updated_at = v_epoch + c.expected_at * v_us)
        returning r.run_id
    ),
    made as (
        insert into runs (run_id, tenant, agent, agent_digest, objective, conversation_id, metadata, sampled, created_at,
                          updated_at, seq, status, rule, attention, turn_id, not_before, parent_id, lineage)
        select n.run_id, n.tenant, n.agent, n.agent_digest, n.objective, n.conversation_id, n.metadata, n.sampled,
               c.at, c.at, c.seq, c.status, c.rule, c.attention, c.turn, c.not_before, n.parent_id, coalesce(n.lineage, '{}')
        from json_to_recordset(p_created) as n (run_id uuid, tenant text, agent text, agent_digest text, objective text,
                                                conversation_id uuid, metadata json, sampled boolean, parent_id uuid,
                                                lineage text[])
        join c on c.run = n.run_id
        where n.run_id <> all ((select runs from seen)::uuid[])
        on conflict do nothing
        returning run_id
    ),
    won as materialized (
        select coalesce(array_agg(run_id), '{}') as runs from (select run_id from moved union all select run_id from made) w
    ),
    kept as (
        insert into inbox (run_id, key) select c.run, c.key from c where c.run = any ((select runs from won)::uuid[])
    ),
    logged as (
        insert into events (run_id, seq, tenant, type, version, at, cause, data)
        select e.run, e.seq, e.tenant, e.type, e.version, v_epoch + e.at * v_us, e.cause::json, e.data::json
        from unnest(e_run, e_seq, e_tenant, e_type, e_version, e_at, e_cause, e_data)
             as e (run, seq, tenant, type, version, at, cause, data)
        where (select cardinality(runs) from won) = cardinality(p_run) or e.run = any ((select runs from won)::uuid[])
    ),
    published as (delete from outbox where id = any (p_published)),
    unpublished as (
        insert into outbox (runs, from_seq, to_seq)
        select array_agg(c.run), array_agg(c.expected + 1), array_agg(c.seq)
        from c where c.run = any ((select runs from won)::uuid[]) having count(*) > 0
        returning id
    )
    select array_agg(case when c.run = any ((select runs from won)::uuid[]) then 0
                          when c.run = any ((select runs from seen)::uuid[]) then 1
                          when c.run = any (v_frozen) then 3 else 2 end order by c.nr)
               || coalesce((select id from unpublished), 0),
           (select runs from won)
    into v_fates, v_won
    from c;

    if p_side is not null and cardinality(v_won) > 0 then
        perform append_side(p_side, v_won);
    end if;
    return v_fates;
end
$$;
