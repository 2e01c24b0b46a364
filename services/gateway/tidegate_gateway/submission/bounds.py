"""The bounds and the forms of names in a job; docs/reference/job-spec.md states them for people."""

from __future__ import annotations

import re

YEAR_SECONDS = 365 * 24 * 3600

COMPONENTS_MAX = 32
REPLICAS_MAX = 1024
GANG_SIZE_MAX = 1024
PLACES_MAX = 2048
"""Members times components: their placement is one event, which must fit a frame of the journal."""
BORROWING_PLACES_MAX = 512
"""The same for a gang that borrows: it is granted a phase, or told to hand back, by one event each in one frame."""
PHASES_MAX = 16
COMMAND_WORDS_MAX = 512
COMMAND_WORD_CHARS_MAX = 16_384
ENTRIES_MAX = 256
PATHS_MAX = 32
PATH_CHARS_MAX = 1024
ENV_VALUE_CHARS_MAX = 16_384
LABEL_CHARS_MAX = 256
SPEC_BYTES_MAX = 128 * 1024
"""Of the canonical job: its order travels with many others in one message of the bus."""

CPU_MILLIS_MIN, CPU_MILLIS_MAX = 10, 1_024_000
MEMORY_MIB_MIN, MEMORY_MIB_MAX = 4, 16 * 1024 * 1024
GPUS_MAX = 64
GPU_MEMORY_MIB_MAX = 1024 * 1024
GPU_MILLIS_MIN, GPU_MILLIS_MAX = 1, 999
GPU_MODELS_MAX = 16
GPU_MODEL_CHARS_MAX = 128
PRIORITY_MAX = 100
GRACE_SECONDS_MAX = 24 * 3600
RESTART_SECONDS_MAX = 24 * 3600
HAND_BACK_SECONDS_MAX = 600
BACKOFF_SECONDS_MAX = 3600
ATTEMPTS_MAX = 100
STEPS_PER_SECOND_MAX = 1_000_000_000
THREADS_MAX = 1024
SEED_MAX = 2**53 - 1
"""JSON readers elsewhere keep whole numbers exact only up to here."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
SUBMITTER = re.compile(r"[^\x00-\x1f\x7f-\x9f\s](?:[^\x00-\x1f\x7f-\x9f]{0,126}[^\x00-\x1f\x7f-\x9f\s])?")
COMPONENT = re.compile(r"[a-z][a-z0-9_-]{0,31}")
PHASE = re.compile(r"[a-z][a-z0-9_-]{0,31}")
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,255}")
DIGEST = re.compile(r"[0-9a-f]{64}")
WORKDIR = re.compile(r"(?:[0-9a-f]{64})?")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
SECRET_NAME = re.compile(r"[a-z][a-z0-9]{0,23}(?:[._-][a-z0-9]{1,24}){0,7}")
GPU_MODEL = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
LABEL_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,128}")
GIT_COMMIT = re.compile(r"(?:[0-9a-f]{7,64})?")
CODE_DIGEST = re.compile(r"(?:[A-Za-z0-9:._-]{1,128})?")

IDEMPOTENCY_KEY_FORM = "1 to 128 visible ASCII characters"
SUBMITTER_FORM = "1 to 128 printable characters"
NAME_FORM = "1 to 63 of A-Z a-z 0-9 . _ -, the first a letter or digit"
COMPONENT_FORM = "1 to 32 of a-z 0-9 _ -, the first a letter"
ENV_NAME_FORM = "names of 1 to 128 of A-Z a-z 0-9 _, the first no digit"
GPU_MODEL_FORM = "a model of GPU as GET /v1/nodes names it, such as NVIDIA H200"
SECRET_FORM = (
    'the name of a secret in the tenant\'s store, as in {"API_TOKEN": "my-api-token"}: lower-case words joined by . _ -'
)

OWN_ENV_PREFIX = "TIDEGATE_"
OWN_ENV = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TRACEPARENT",
    }
)
SECRET_SUFFIXES = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY", "CREDENTIALS")
"""An environment variable that ends like this holds a secret, and the value of `env` would reach the journal."""
