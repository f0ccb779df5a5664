-- Entries of the audit trail wait for those of their own schema alone: a database may hold several.
create or replace function add_to_audit(p_entries jsonb) returns void
language plpgsql volatile
as $$
begin
    -- The lock that this function took before: while it is replaced, entries of both must not pass each other.
    perform pg_advisory_xact_lock_shared(hashtextextended('/audit', 0));
    perform pg_advisory_xact_lock(hashtextextended(current_schema() || '/audit', 0));
    insert into audit (id, at, tenant, actor, roles, token_id, action, resource, outcome, address, forwarded, user_agent,
                       evidence)
    select e.id, e.at, e.tenant, e.actor, array(select jsonb_array_elements_text(e.roles)), e.token_id, e.action, e.resource,
           e.outcome, e.address, e.forwarded, e.user_agent, e.evidence
    from jsonb_to_recordset(p_entries) as e (id uuid, at timestamptz, tenant text, actor text, roles jsonb, token_id uuid,
         action text, resource text, outcome text, address text, forwarded text, user_agent text, evidence json)
    on conflict do nothing;
end
$$;
