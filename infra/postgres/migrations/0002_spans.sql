-- Traces: spans, what the deriver remembers of each job, and how far spans were exported.

-- scope: shared

-- How far spans were handed to the OTLP endpoint: a place in the journal, the same for every generation, so that
-- projecting history again exports nothing again.
CREATE TABLE tidegate.span_export (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    seq bigint NOT NULL DEFAULT 0,
    ordinal integer NOT NULL DEFAULT 0,
    journal text NOT NULL DEFAULT '',                     -- the id of the journal's first event: which history this is
    exported bigint NOT NULL DEFAULT 0,                   -- spans acknowledged so far
    exported_at timestamptz
);
INSERT INTO tidegate.span_export DEFAULT VALUES;

-- scope: generation

CREATE TABLE spans (
    trace_id text NOT NULL,                               -- 32 hexadecimal digits
    span_id text NOT NULL,                                -- 16 hexadecimal digits
    parent_id text NOT NULL,                              -- empty for a root
    name text NOT NULL,
    service text NOT NULL,
    instance text NOT NULL,
    kind text NOT NULL,
    start_ns bigint NOT NULL,
    end_ns bigint NOT NULL,
    status text NOT NULL,
    message text NOT NULL,
    attributes jsonb NOT NULL,                            -- as OTLP writes them in JSON: a list of {key, value}
    links jsonb NOT NULL,
    tenant text NOT NULL,
    job_id text NOT NULL,                                 -- empty for a scheduling pass
    seq bigint NOT NULL,                                  -- the frame in which the span ended,
    ordinal integer NOT NULL,                             -- and its place among the spans of that frame
    PRIMARY KEY (trace_id, span_id)
);
CREATE INDEX spans_by_place ON spans (seq, ordinal);
CREATE INDEX spans_by_service ON spans (service, start_ns DESC);
CREATE INDEX spans_by_start ON spans (start_ns DESC);

CREATE TABLE span_names (
    service text NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    PRIMARY KEY (service, name, kind)
);

CREATE TABLE trace_state (
    job_id text PRIMARY KEY,
    doc bytea NOT NULL
);
