-- scope: generation

-- What operators asked for: of jobs and nodes beside them, of queues and maintenance windows in tables of their own.

ALTER TABLE jobs
    ADD COLUMN held boolean NOT NULL DEFAULT false,       -- not placed until somebody releases or resumes it
    ADD COLUMN suspend_requested boolean NOT NULL DEFAULT false,
    ADD COLUMN requeue_requested boolean NOT NULL DEFAULT false,
    ADD COLUMN asked_by text,                             -- who asked last for hold, release, suspend, resume or requeue
    ADD COLUMN asked_why text,
    ADD COLUMN progress_millis integer;                   -- what rank 0 reported last, in thousandths of the whole

ALTER TABLE nodes
    ADD COLUMN rack text NOT NULL DEFAULT '',
    ADD COLUMN switch text NOT NULL DEFAULT '',
    ADD COLUMN drain_deadline timestamptz,                -- by when its jobs shall be gone; null: it is not drained
    ADD COLUMN drained_by text,
    ADD COLUMN cordoned boolean NOT NULL DEFAULT false;   -- kept free by the scheduler, since it keeps failing jobs

ALTER TABLE allocations ADD COLUMN gpu_millis integer NOT NULL DEFAULT 0;

CREATE TABLE queues (
    tenant text PRIMARY KEY,
    weight integer NOT NULL,
    stopped boolean NOT NULL,
    guaranteed_cpu_millis bigint,
    guaranteed_memory_mib bigint,
    guaranteed_gpus bigint,
    ceiling_cpu_millis bigint,
    ceiling_memory_mib bigint,
    ceiling_gpus bigint,
    changed_by text NOT NULL,
    changed_why text NOT NULL,
    changed_at timestamptz NOT NULL,
    doc json NOT NULL
);

CREATE TABLE maintenance (
    name text PRIMARY KEY,
    nodes text[] NOT NULL,
    start_at timestamptz NOT NULL,
    end_at timestamptz NOT NULL,
    cancelled boolean NOT NULL,
    planned_by text NOT NULL,
    planned_why text NOT NULL,
    planned_at timestamptz NOT NULL,
    doc json NOT NULL
);
