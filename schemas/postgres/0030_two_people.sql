-- The two-person rule: whether a question takes two people, and who was the first of them to say yes, to what.
alter table approvals
    add column two_people boolean not null default false,
    add column endorsed   json;

-- The rarer projections of the same commit, as before; with the first yes of two.
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
        insert into approvals (approval_id, run_id, tenant, call_id, tool, question, arguments, binding, trust, reasons, shown,
                               two_people, state, requested_at, expires_at)
        select n.approval_id, n.run_id, n.tenant, n.call_id, n.tool, n.question, n.arguments, n.binding, n.trust, n.reasons, n.shown,
               coalesce(n.two_people, false), 'open', n.requested_at, n.expires_at
        from json_to_recordset(side -> 'approvals') as n (approval_id uuid, run_id uuid, tenant text, call_id uuid, tool text,
             question text, arguments json, binding json, trust text, reasons json, shown json, two_people boolean,
             requested_at timestamptz, expires_at timestamptz)
        where n.run_id = any (won)
        on conflict do nothing;
    end if;

    if 'endorsed' = any (parts) then
        update approvals a set endorsed = d.endorsed
        from json_to_recordset(side -> 'endorsed') as d (run_id uuid, approval_id uuid, endorsed json)
        where a.approval_id = d.approval_id and d.run_id = any (won);
    end if;

    if 'decided' = any (parts) then
        update approvals a set state = d.state, decided_at = d.decided_at, decided_by = d.decided_by, decision = d.decision,
                               standing = d.standing
        from json_to_recordset(side -> 'decided') as d (run_id uuid, approval_id uuid, state text, decided_at timestamptz,
             decided_by text, decision text, standing uuid)
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
