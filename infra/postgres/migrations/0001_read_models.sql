-- Read models: what an operator asks by SQL. Everything in a generation is derived from the journal and can be dropped
-- and projected again; the views `tidegate.<table>` always show the generation that is active.
--
-- Documents are `json`, not `jsonb`: they must come back as they were written. `jsonb` reorders keys, rewrites numbers
-- and refuses the character U+0000, which a job may well put into a message. Cast where you need its operators.

-- scope: shared

CREATE TABLE tidegate.generations (
    generation integer PRIMARY KEY,
    state text NOT NULL CHECK (state IN ('building', 'active', 'retired')),
    fold_version integer NOT NULL,
    tables integer NOT NULL DEFAULT 0,                    -- how many tables it has while it is whole
    created_at timestamptz NOT NULL DEFAULT now(),
    activated_at timestamptz,
    retired_at timestamptz
);
CREATE SEQUENCE tidegate.generation_numbers AS integer;  -- a number never comes back, so no reader mixes two
CREATE UNIQUE INDEX generations_one_active ON tidegate.generations (state) WHERE state = 'active';

-- One row for each generation whose tables are there. A position whose heartbeat is old belongs to a projector that is
-- away, so its lag grows with the clock even where it says that it had caught up.
CREATE FUNCTION tidegate.read_projection_status() RETURNS TABLE (
    generation integer, state text, fold_version integer, projector text, seq bigint, head_seq bigint,
    lag_frames bigint, lag_events bigint, lag_seconds double precision, events bigint,
    last_event_at timestamptz, caught_up_at timestamptz, seen_at timestamptz
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    known record;
BEGIN
    FOR known IN SELECT * FROM tidegate.generations AS g ORDER BY g.generation LOOP
        CONTINUE WHEN to_regclass(format('tg_%s.position', known.generation)) IS NULL;
        RETURN QUERY EXECUTE format(
            $sql$
            SELECT $1, $2, $3, p.projector, p.seq, p.head_seq,
                greatest(0, p.head_seq - p.seq),
                p.events_ahead,
                CASE WHEN p.seq >= p.head_seq AND now() - p.seen_at < interval '5 seconds' THEN 0
                    ELSE extract(epoch FROM greatest(interval '0', now() - p.caught_up_at))::double precision END,
                p.events, p.last_event_at, p.caught_up_at, p.seen_at
            FROM tg_%s.position AS p
            $sql$, known.generation
        ) USING known.generation, known.state, known.fold_version;
    END LOOP;
END
$$;
CREATE VIEW tidegate.projection_status AS SELECT * FROM tidegate.read_projection_status();

-- scope: generation

CREATE TABLE position (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    seq bigint NOT NULL DEFAULT 0,                        -- the frame up to which the rows tell
    events bigint NOT NULL DEFAULT 0,                     -- events in all frames up to there
    last_event_at timestamptz,
    head_seq bigint NOT NULL DEFAULT 0,                   -- the journal's end when it was last asked
    events_ahead bigint NOT NULL DEFAULT 0,               -- events read but not written, and frames not read yet
    caught_up_at timestamptz NOT NULL DEFAULT now(),      -- when seq was last the journal's end
    seen_at timestamptz NOT NULL DEFAULT now(),           -- heartbeat of the projector
    projector text NOT NULL DEFAULT '',
    journal text NOT NULL DEFAULT '',                     -- the id of the journal's first event: which history this is
    doc json NOT NULL DEFAULT '{}'                        -- counters and the leader
);
INSERT INTO position DEFAULT VALUES;

CREATE TABLE writers (
    service text NOT NULL,
    instance text NOT NULL,
    epoch bigint NOT NULL,
    writer_seq bigint NOT NULL,
    last_seq bigint NOT NULL,
    last_at_ns bigint NOT NULL,
    PRIMARY KEY (service, instance)
);

CREATE TABLE jobs (
    job_id text PRIMARY KEY,
    tenant text NOT NULL,
    submitter text NOT NULL,
    name text NOT NULL,
    type text NOT NULL,
    state text NOT NULL,
    priority integer NOT NULL,
    isolation text NOT NULL,
    gang_size integer NOT NULL,
    attempt integer NOT NULL,
    nodes text[] NOT NULL,
    phase text,
    step bigint,
    preemptions integer NOT NULL,
    resumed_step bigint,
    lost_steps bigint NOT NULL,
    cancel_requested boolean NOT NULL,
    reason text,
    submitted_at timestamptz NOT NULL,
    started_at timestamptz,
    ended_at timestamptz,
    submitted_seq bigint NOT NULL,
    ended_order bigint,                                   -- counts the jobs that ended, in the journal's order
    events bigint NOT NULL,                               -- how many events there are about the job
    spec_digest text NOT NULL,
    labels json NOT NULL,
    result json NOT NULL,
    spec json NOT NULL,
    doc json NOT NULL
);
CREATE INDEX jobs_by_submission ON jobs (submitted_seq DESC);
CREATE INDEX jobs_by_tenant ON jobs (tenant, submitted_seq DESC);
CREATE INDEX jobs_by_state ON jobs (state, submitted_seq DESC);
CREATE INDEX jobs_by_end ON jobs (ended_order DESC) WHERE ended_order IS NOT NULL;

CREATE TABLE attempts (
    job_id text NOT NULL,
    attempt integer NOT NULL,
    state text NOT NULL,
    nodes text[] NOT NULL,
    placed_at timestamptz NOT NULL,
    started_at timestamptz,
    ended_at timestamptz,
    outcome text,
    resumed_checkpoint text,
    resumed_step bigint,
    lost_steps bigint NOT NULL,
    doc json NOT NULL,
    PRIMARY KEY (job_id, attempt)
);
CREATE INDEX attempts_by_place ON attempts USING gin (nodes);

CREATE TABLE nodes (
    node text PRIMARY KEY,
    state text NOT NULL,
    incarnation bigint NOT NULL,
    cpu_millis bigint NOT NULL,
    memory_mib bigint NOT NULL,
    gpus integer NOT NULL,
    levels text[] NOT NULL,
    cpu_model text NOT NULL,
    isa text NOT NULL,
    joined_at timestamptz NOT NULL,
    doc json NOT NULL
);

CREATE TABLE allocations (
    node text NOT NULL,
    job_id text NOT NULL,
    attempt integer NOT NULL,
    rank integer NOT NULL,
    tenant text NOT NULL,
    sandbox text NOT NULL,
    cpu_millis bigint NOT NULL,
    memory_mib bigint NOT NULL,
    gpus integer NOT NULL,
    gpu_memory_mib bigint NOT NULL,
    PRIMARY KEY (node, job_id, attempt, rank)
);
CREATE INDEX allocations_by_job ON allocations (job_id, attempt);

CREATE TABLE checkpoints (
    job_id text NOT NULL,
    ordinal bigint NOT NULL,                              -- counts the job's checkpoints from 0
    checkpoint_id text NOT NULL,
    rank integer NOT NULL,
    attempt integer NOT NULL,
    step bigint NOT NULL,
    node text NOT NULL,
    tier text NOT NULL,
    status text NOT NULL,
    size_bytes bigint NOT NULL,
    saved_at timestamptz NOT NULL,
    doc json NOT NULL,
    PRIMARY KEY (job_id, ordinal)
);
CREATE INDEX checkpoints_by_id ON checkpoints (checkpoint_id);

CREATE TABLE events (
    seq bigint NOT NULL,
    index integer NOT NULL,
    id text NOT NULL,
    kind text NOT NULL,
    void boolean NOT NULL,                                -- it came too late to change anything
    at_ns bigint NOT NULL,
    at timestamptz NOT NULL GENERATED ALWAYS AS (to_timestamp(at_ns / 1e9)) STORED,
    tenant text,
    job_id text,
    attempt integer,
    rank integer,
    node text,
    service text NOT NULL,
    instance text NOT NULL,
    epoch bigint NOT NULL,
    writer_seq bigint NOT NULL,
    doc json NOT NULL,
    PRIMARY KEY (seq, index)
);
CREATE INDEX events_by_job ON events (job_id, seq, index) WHERE job_id IS NOT NULL;
CREATE INDEX events_by_kind ON events (kind, seq, index);
CREATE INDEX events_by_tenant ON events (tenant, seq, index) WHERE tenant IS NOT NULL;

-- The span of times in each run of frames: writers' clocks differ and a spool may bring facts hours late, so a time
-- finds its place in the journal's order only through these.
CREATE TABLE event_blocks (
    block bigint PRIMARY KEY,                             -- seq / 1024
    at_ns_min bigint NOT NULL,
    at_ns_max bigint NOT NULL
);
