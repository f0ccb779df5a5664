-- Conditions about outside events that can be found out by asking: the reconciler asks now and then, should an event be lost.
-- Their `due` is since when they may be asked about.
create index waits_verified on waits (run_id, wait_id, leaf) where kind = 'external' and due is not null;
