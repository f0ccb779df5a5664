-- Raw output and logs are kept in the object store, and rows say where. An object whose row is gone, or names another one, is
-- noted here until the artifact service has removed it: rows and objects can't go in one step.
create table abandoned_objects (
    object_key   text primary key,
    abandoned_at timestamptz not null default now()
);

create function abandon_objects() returns trigger
language plpgsql security definer as $$
begin
    insert into abandoned_objects (object_key) select g.object_key from gone g on conflict do nothing;
    return null;
end
$$;

-- Output that was delivered again and is kept in a longer piece.
create function abandon_replaced_object() returns trigger
language plpgsql security definer as $$
begin
    insert into abandoned_objects (object_key) values (old.object_key) on conflict do nothing;
    return null;
end
$$;

-- Whoever removes the rows need not know of this. The functions run as their owner, in this schema only.
do $$
declare
    v_name text;
begin
    foreach v_name in array array['abandon_objects', 'abandon_replaced_object'] loop
        execute format('alter function %I set search_path = %I, pg_temp', v_name, current_schema());
        execute format('revoke all on function %I from public', v_name);
    end loop;
end
$$;

create trigger signal_segments_gone after delete on signal_segments
    referencing old table as gone for each statement execute function abandon_objects();
create trigger service_segments_gone after delete on service_segments
    referencing old table as gone for each statement execute function abandon_objects();
create trigger signal_segments_replaced after update of object_key on signal_segments
    for each row when (old.object_key is distinct from new.object_key) execute function abandon_replaced_object();

create index service_segments_age on service_segments using brin (to_at);
