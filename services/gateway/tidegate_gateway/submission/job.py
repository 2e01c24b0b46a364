"""Reads a job from JSON: every field with its bounds, and the shorthand for a job of one component.

Judges the text alone; whether cluster, tenant and files fit is judged in `fit.py`. What is off is in `Draft.values`,
so that both find all problems in one go.
"""

from __future__ import annotations

import posixpath
from typing import Any

import msgspec
from tidegate_events.spec import (
    Component,
    JobSpec,
    PathBinding,
    PreemptionRule,
    RestartRule,
    SourceRecord,
    member_floor,
)

from tidegate_gateway.submission import bounds
from tidegate_gateway.submission.devices import check_devices
from tidegate_gateway.submission.lending import check_lending
from tidegate_gateway.submission.nodes import WHOLE_MILLIS
from tidegate_gateway.submission.problems import Problems, child, item
from tidegate_gateway.submission.resources import AMOUNT_HINTS, read_phases
from tidegate_gateway.submission.shape import (
    MISSING,
    Field,
    Keys,
    Reader,
    boolean,
    choice,
    integer,
    mapping,
    optional,
    record,
    sequence,
    text,
)

DEFAULT_TENANT = "default"
DEFAULT_SUBMITTER = "unknown"
DEFAULT_NAME = "job"


class Draft(msgspec.Struct, frozen=True):
    """What could be read. `spec` is there when the text had no problem; `values` always hold what was sound."""

    values: dict[str, Any]
    spec: JobSpec | None
    idempotency_key: str | None


def _refuse_own(name: str) -> tuple[str, str] | None:
    if name.startswith(bounds.OWN_ENV_PREFIX) or name in bounds.OWN_ENV:
        return "is set by Tidegate itself", f"a name that does not begin with {bounds.OWN_ENV_PREFIX}"
    return None


def _refuse_secret(name: str) -> tuple[str, str] | None:
    if any(name.upper() == suffix or name.upper().endswith("_" + suffix) for suffix in bounds.SECRET_SUFFIXES):
        return "looks like a secret, and env is written to the journal", f"secrets, which takes {bounds.SECRET_FORM}"
    return _refuse_own(name)


def _secret(value: Any, path: str, problems: Problems) -> Any:
    if isinstance(value, str) and len(value) <= 128 and bounds.SECRET_NAME.fullmatch(value):
        return value
    problems.add(path, "is not the name of a secret; a value is never taken", bounds.SECRET_FORM)
    return MISSING


def _inner_path(value: Any, path: str, problems: Problems) -> Any:
    accepted = "a path in the sandbox without `..`, such as /workspace/checkpoints"
    read = text(bounds.PATH_CHARS_MAX, accepted=accepted)(value, path, problems)
    if read is MISSING:
        return MISSING
    if not read or ".." in read.split("/") or posixpath.normpath(read) in (".", "/"):
        problems.add(path, "is not a directory that a job can have to itself", accepted)
        return MISSING
    return read


_ENV = mapping(
    Keys(bounds.ENV_NAME, bounds.ENV_NAME_FORM, _refuse_secret),
    text(bounds.ENV_VALUE_CHARS_MAX, accepted='text, such as "1"'),
    bounds.ENTRIES_MAX,
)
_SECRETS = mapping(Keys(bounds.ENV_NAME, bounds.ENV_NAME_FORM, _refuse_own), _secret, bounds.ENTRIES_MAX)
_COMMAND = sequence(
    text(bounds.COMMAND_WORD_CHARS_MAX), bounds.COMMAND_WORDS_MAX, count_min=1, of='words, as in ["python", "train.py"]'
)
_SECONDS = integer(1, bounds.YEAR_SECONDS, "seconds")
_NAME = text(63, pattern=bounds.NAME, accepted=bounds.NAME_FORM)

_RESTART = {
    "max_attempts": Field(integer(1, bounds.ATTEMPTS_MAX, "attempts")),
    "backoff_seconds": Field(integer(0, bounds.BACKOFF_SECONDS_MAX, "seconds")),
}
_PREEMPTION = {
    "grace_seconds": Field(integer(1, bounds.GRACE_SECONDS_MAX, "seconds")),
    "checkpoint_dir": Field(optional(_inner_path)),
    "restart_seconds": Field(integer(0, bounds.RESTART_SECONDS_MAX, "seconds")),
    "hand_back_seconds": Field(integer(1, bounds.HAND_BACK_SECONDS_MAX, "seconds")),
}
_BINDING = {
    "name": Field(_NAME, required=True),
    "source": Field(text(bounds.PATH_CHARS_MAX, accepted="an absolute path below an allowed root"), required=True),
}
_SOURCE = {
    "git_commit": Field(text(64, pattern=bounds.GIT_COMMIT, accepted="7 to 64 hexadecimal digits, or empty")),
    "dirty_diff_digest": Field(text(128, pattern=bounds.CODE_DIGEST, accepted="a digest, or empty")),
    "argv": Field(sequence(text(bounds.COMMAND_WORD_CHARS_MAX), bounds.COMMAND_WORDS_MAX, of="words")),
}
_COMPONENT = {
    "name": Field(text(32, pattern=bounds.COMPONENT, accepted=bounds.COMPONENT_FORM), required=True),
    "kind": Field(choice("simulator", "inference", "buffer", "learner", "main")),
    "command": Field(_COMMAND, required=True),
    "replicas": Field(integer(1, bounds.REPLICAS_MAX, "processes")),
    "resources": Field(read_phases, required=True),
    "env": Field(_ENV),
    "restart": Field(choice("never", "on_failure")),
    "replicas_max": Field(optional(integer(1, bounds.REPLICAS_MAX, "processes"))),
}
_HINTS = {
    **AMOUNT_HINTS,
    "cmd": "command",
    "args": "command",
    "entrypoint": "command",
    "timeout": "time_limit_seconds",
    "time_limit": "time_limit_seconds",
    "duration": "expected_seconds",
    "expected_duration": "expected_seconds",
    "steps_per_second": "target_steps_per_second",
    "target_rate": "target_steps_per_second",
    "grace": "grace_seconds",
    "grace_period": "grace_seconds",
    "user": "submitter",
    "retries": "restart",
    "gang": "gang_size",
    "environment": "env",
    "workers": "replicas",
    "count": "replicas",
    "isolation_level": "isolation",
    "level": "isolation",
    "git": "source",
    "gpu_model": "gpu_models",
    "gpu_type": "gpu_models",
    "topology": "communication",
    "rack": "widest_domain",
    "widest": "widest_domain",
    "max_replicas": "replicas_max",
    "docker": "image",
}


def _struct(kind: type[msgspec.Struct], fields: dict[str, Field]) -> Reader:
    """Return a reader of `kind` from an object with `fields`."""

    def read(value: Any, path: str, problems: Problems) -> Any:
        values = record(value, path, problems, fields, _HINTS)
        if (
            values is None
            or set(values) != set(value)
            or any(f.required and n not in values for n, f in fields.items())
        ):
            return MISSING
        return kind(**values)

    return read


def _component(value: Any, path: str, problems: Problems) -> Any:
    """Read a component; only the number of simulators may be scaled, and only upwards."""
    read = _STRUCT_OF_COMPONENT(value, path, problems)
    if read is MISSING or read.replicas_max is None:
        return read
    where = child(path, "replicas_max")
    if read.kind != "simulator":
        problems.add(where, f"is given for a component of kind {read.kind}", "replicas_max for simulators alone")
        return MISSING
    if read.replicas_max < read.replicas:
        problems.add(where, f"{read.replicas_max} is less than replicas, {read.replicas}", f"{read.replicas} or more")
        return MISSING
    return read


_STRUCT_OF_COMPONENT = _struct(Component, _COMPONENT)
_GPU_MODEL = text(bounds.GPU_MODEL_CHARS_MAX, pattern=bounds.GPU_MODEL, accepted=bounds.GPU_MODEL_FORM)
_JOB = {
    "name": Field(_NAME),
    "tenant": Field(text(63, pattern=bounds.TENANT, accepted="1 to 63 of A-Z a-z 0-9 _ -")),
    "submitter": Field(text(128, pattern=bounds.SUBMITTER, accepted=bounds.SUBMITTER_FORM)),
    "type": Field(choice("sampling", "learning", "mixed")),
    "image": Field(text(256, pattern=bounds.IMAGE, accepted="the name or digest of an image that a node offers")),
    "workdir": Field(text(64, pattern=bounds.WORKDIR, accepted="the sha256 of an uploaded blob: 64 of 0-9 a-f")),
    "env": Field(_ENV),
    "secrets": Field(_SECRETS),
    "components": Field(sequence(_component, bounds.COMPONENTS_MAX, count_min=1, of="components")),
    "command": Field(_COMMAND),
    "resources": Field(read_phases),
    "priority": Field(integer(0, bounds.PRIORITY_MAX, "priority")),
    "gang_size": Field(integer(1, bounds.GANG_SIZE_MAX, "members")),
    "communication": Field(choice("loose", "intensive")),
    "widest_domain": Field(choice("switch", "rack")),
    "locality_wait_seconds": Field(integer(0, bounds.YEAR_SECONDS, "seconds")),
    "gpu_models": Field(sequence(_GPU_MODEL, bounds.GPU_MODELS_MAX, of="models of GPUs")),
    "isolation": Field(choice("trusted", "guarded", "vm", "unisolated")),
    "expected_seconds": Field(optional(_SECONDS)),
    "time_limit_seconds": Field(optional(_SECONDS)),
    "target_steps_per_second": Field(optional(integer(1, bounds.STEPS_PER_SECOND_MAX, "steps per second"))),
    "restart": Field(_struct(RestartRule, _RESTART)),
    "preemption": Field(_struct(PreemptionRule, _PREEMPTION)),
    "phase_entry": Field(choice("told", "asked")),
    "borrows": Field(boolean),
    "determinism": Field(choice("relaxed", "strict")),
    "threads": Field(integer(1, bounds.THREADS_MAX, "threads")),
    "seed": Field(integer(0, bounds.SEED_MAX, "seed")),
    "inputs": Field(sequence(_struct(PathBinding, _BINDING), bounds.PATHS_MAX, of="paths")),
    "outputs": Field(sequence(_struct(PathBinding, _BINDING), bounds.PATHS_MAX, of="paths")),
    "labels": Field(
        mapping(Keys(bounds.LABEL_KEY, bounds.NAME_FORM + " and /"), text(bounds.LABEL_CHARS_MAX), bounds.ENTRIES_MAX)
    ),
    "source": Field(_struct(SourceRecord, _SOURCE)),
    "idempotency_key": Field(text(128, pattern=bounds.IDEMPOTENCY_KEY, accepted=bounds.IDEMPOTENCY_KEY_FORM)),
}


def read_job(value: Any, problems: Problems, *, submitter: str | None = None) -> Draft:
    """Return what could be read of a submitted job; `submitter` is used where the body names none."""
    read = record(value, "", problems, _JOB, _HINTS)
    if read is None:
        return Draft({}, None, None)
    key = read.pop("idempotency_key", None)
    read.setdefault("tenant", DEFAULT_TENANT)
    read.setdefault("submitter", submitter or DEFAULT_SUBMITTER)
    _take_shorthand(value, read, problems)
    _check_unique(value, problems)
    for field in ("components", "inputs", "outputs", "gpu_models"):
        # A list with an unreadable element would later be judged as if it were whole.
        if isinstance(value.get(field), list) and len(read.get(field, ())) != len(value[field]):
            read.pop(field, None)
    _check_gpus(read, problems)
    _check_locality(value, read, problems)
    check_lending(value, read, problems)
    check_devices(read, problems)
    read.setdefault("name", DEFAULT_NAME)
    if problems:
        return Draft(read, None, key)
    spec = JobSpec(**read)
    if (places := spec.gang_size * len(spec.components)) > bounds.PLACES_MAX:
        problems.add(
            "gang_size",
            f"{spec.gang_size} members of {len(spec.components)} components are {places} to place",
            f"at most {bounds.PLACES_MAX}, members times components",
        )
        return Draft(read, None, key)
    if (size := len(msgspec.json.encode(spec))) > bounds.SPEC_BYTES_MAX:
        problems.add("$", f"the job has {size} bytes", f"at most {bounds.SPEC_BYTES_MAX}; put data into the workdir")
        return Draft(read, None, key)
    return Draft(read, spec, key)


def _take_shorthand(value: dict[str, Any], read: dict[str, Any], problems: Problems) -> None:
    """Turn `command` and `resources` at the top into the component `main`."""
    short = [name for name in ("command", "resources") if name in value]
    command, resources = read.pop("command", None), read.pop("resources", None)
    if "components" in value:
        for name in short:
            problems.add(name, "stands beside components", "either components, or command and resources at the top")
        return
    if not short:
        problems.add("components", "is missing", "a list of components, or command and resources at the top")
        return
    for name in ("command", "resources"):
        if name not in value:
            problems.add(name, "is missing", "both command and resources, where there are no components")
    if command and resources:
        read["components"] = (Component(name="main", command=command, resources=resources),)


def _check_unique(value: dict[str, Any], problems: Problems) -> None:
    """Note names that come twice where each must be its own; looks at the text, so it also finds them beside errors."""
    for field in ("components", "inputs", "outputs"):
        elements = value.get(field)
        seen: set[str] = set()
        for index, element in enumerate(elements if isinstance(elements, list) else ()):
            name = element.get("name") if isinstance(element, dict) else None
            if not isinstance(name, str):
                continue
            if name in seen:
                problems.add(child(item(field, index), "name"), "the name is there twice", "a name of its own for each")
            seen.add(name)
    env, secrets = value.get("env"), value.get("secrets")
    if isinstance(env, dict) and isinstance(secrets, dict):
        for name in sorted(set(env) & set(secrets)):
            problems.add(child("secrets", name), "is in env as well", "each name once")


def _check_gpus(read: dict[str, Any], problems: Problems) -> None:
    """Note shares of a GPU that do not belong to one device, and models where there is no GPU."""
    components: tuple[Component, ...] = read.get("components", ())
    if not components:
        return
    ceilings = [phase.ceiling for component in components for phase in component.resources.values()]
    whole, share = any(amount.gpus for amount in ceilings), any(amount.gpu_millis for amount in ceilings)
    if whole and share:
        accepted = "either gpus, whole devices, or gpu_millis, a share of one, in the whole job"
        problems.add("components", "ask for whole GPUs and for a share of one", accepted)
    floor = member_floor(JobSpec(name="", tenant="", submitter="", components=components))
    if floor.gpu_millis > WHOLE_MILLIS:
        problems.add(
            "components",
            f"the shares of one member, summed over components and replicas, are gpu_millis {floor.gpu_millis}",
            f"{WHOLE_MILLIS} or less, for they are shares of one device; else gpus, whole devices",
        )
    if read.get("gpu_models") and not (whole or share):
        problems.add("gpu_models", "is given without GPUs", "gpus or gpu_millis in the resources of a component")


def _check_locality(value: dict[str, Any], read: dict[str, Any], problems: Problems) -> None:
    """Note a wait for one node, or a bound on how wide a gang may be, that nobody would keep."""
    if read.get("communication", value.get("communication", "loose")) != "loose":
        return
    accepted = "communication: intensive beside it"
    if read.get("locality_wait_seconds"):
        problems.add("locality_wait_seconds", "is given for a job whose communication is loose", accepted)
    if read.get("widest_domain", "switch") != "switch":
        problems.add("widest_domain", "is given for a job whose communication is loose", accepted)
