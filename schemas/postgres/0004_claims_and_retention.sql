-- Who may have an event that only one waiting run may have; lines of waits; forgetting.

-- The claim of an exclusive wait on an event. It is taken and looked at under the lock on (tenant, resource_key). It holds
-- while that condition still waits or once its run has the event; else it is void and anybody may take it over.
alter table external_events
    add column claimed_run  uuid,
    add column claimed_wait uuid,
    add column claimed_leaf integer,
    add column claimed_at   timestamptz;

-- The consumers of an event from outside.
create index events_by_external on events (((data -> 'external' ->> 'position')::bigint), run_id)
    where type = 'external.matched';

-- Waits for one resource in line, longest waiting first, so that a long line is read in pages.
create index waits_in_line on waits (tenant, resource_key, since, run_id, leaf) where kind = 'external';
drop index waits_by_key;

-- A claim writes a timer's row in place.
alter table timers set (fillfactor = 70);

create index external_events_age on external_events using brin (received_at);
create index idempotency_keys_age on idempotency_keys using brin (created_at);
create index approvals_by_run on approvals (run_id);
create index signal_segments_by_run on signal_segments (run_id);

-- Runs that were removed and whose log is still on its way out: a long log takes several steps.
create table removed_runs (
    run_id     uuid primary key,
    removed_at timestamptz not null default now()
);

-- Removes ended runs, and what is left of the logs of those removed before: the one way in which the log gets smaller. Of the
-- runs behind `p_after`, in order of their ids, `p_runs` are looked at; at most `p_rows` rows of logs and of handled deliveries
-- each are deleted. `o_last` is where the next call goes on; none after the last run.
--
-- A service may call this and still not delete from the log: it runs as its owner.
create function remove_ended_runs(p_after uuid, p_age interval, p_runs integer, p_rows integer)
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
revoke all on function remove_ended_runs from public;
-- Temporary tables of the caller come last: they must not stand in for the real ones.
do $$ begin
    execute format('alter function remove_ended_runs set search_path = %I, pg_temp', current_schema());
end $$;
