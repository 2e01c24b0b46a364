-- Metrics: what telemetry said, summed up in windows of time, with the place in the stream that the rows tell up to.
-- Written by tidegate-metrics alone. Telemetry is not in the journal, so none of this can be projected again.

-- scope: shared

-- Readers sum the rows of a window up: each row is a part of it, written by one COPY. The service makes a partition for
-- each day (in UTC) before it writes there, and drops those that are past its retention.
CREATE TABLE tidegate.metric_windows (
    window_start timestamptz NOT NULL,                    -- windows last 10 s
    name text NOT NULL,                                   -- node.*, gpu.*, sandbox.*, process.*, report.*
    tenant text NOT NULL,                                 -- empty where the level has none
    job text NOT NULL,
    component text NOT NULL,                              -- of a GPU: gpu0, gpu1, ...
    node text NOT NULL,
    samples bigint NOT NULL,
    total double precision NOT NULL,                      -- of counters: what they grew by
    smallest double precision NOT NULL,
    largest double precision NOT NULL,
    newest double precision NOT NULL
) PARTITION BY RANGE (window_start);
CREATE INDEX metric_windows_by_job ON tidegate.metric_windows (job, name, window_start) WHERE job <> '';
CREATE INDEX metric_windows_by_node ON tidegate.metric_windows (node, name, window_start);

CREATE TABLE tidegate.telemetry_position (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    stream text NOT NULL DEFAULT '',                      -- when the stream was made: it is new after the bus started anew
    seq bigint NOT NULL DEFAULT 0,
    at_ns bigint NOT NULL DEFAULT 0,
    written_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO tidegate.telemetry_position DEFAULT VALUES;

-- The newest sample of each node: anything not above it is a late duplicate.
CREATE TABLE tidegate.telemetry_marks (
    node text PRIMARY KEY,
    incarnation bigint NOT NULL,
    seq bigint NOT NULL,
    written_at timestamptz NOT NULL DEFAULT now()
);

-- Counters, and the last number that each of their sources reported: so that they go on across restarts.
CREATE TABLE tidegate.metric_totals (
    name text NOT NULL,
    labels text NOT NULL,                                 -- JSON array of the label values, in the catalogue's order
    value double precision NOT NULL,
    at_ns bigint NOT NULL,
    PRIMARY KEY (name, labels)
);
CREATE TABLE tidegate.metric_sources (
    name text NOT NULL,
    source text NOT NULL,
    value double precision NOT NULL,
    at_ns bigint NOT NULL,
    PRIMARY KEY (name, source)
);
