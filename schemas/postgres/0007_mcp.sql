-- What MCP servers offer, as executors found it: the planner offers the tools from here.

-- Each version of each tool, from when it was seen until it was seen no more. A run is offered, of every tool, the oldest
-- version that was still good at the moment whose tools it is offered, so that nothing changes under it.
create table mcp_tools (
    name       text        not null,           -- `<server>.<tool>`
    server     text        not null,
    digest     text        not null,           -- of the declaration
    spec       json        not null,           -- the declaration; json, to keep the order of its keys
    valid_from timestamptz not null default clock_timestamp(),
    valid_to   timestamptz,                    -- none: as far as is known it is still so
    primary key (name, valid_from)
);
create unique index mcp_tools_now on mcp_tools (name) where valid_to is null;
create index mcp_tools_by_server on mcp_tools (server, name, valid_from);

-- Calls that became tasks of a server: they go on by themselves, and whoever takes the call up asks about them.
create table mcp_tasks (
    call_id uuid        primary key,
    run_id  uuid        not null,
    server  text        not null,
    task_id text        not null,
    since   timestamptz not null default now()
);
create index mcp_tasks_age on mcp_tasks (since);
