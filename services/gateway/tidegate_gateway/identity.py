"""Names of jobs: derived from tenant and idempotency key, so that a retried submission finds the job it made."""

from __future__ import annotations

import base64
import hashlib
import json
import re

from tidegate_gateway.view.projection import spec_digest

__all__ = ["JOB_ID", "job_id", "spec_digest"]

JOB_ID = re.compile(r"j-[a-z2-7]{16}")


def job_id(tenant: str, idempotency_key: str) -> str:
    """Return `j-` and 80 bits of a hash in base32: lower-case letters and digits, fit for subjects, paths and hosts."""
    named = json.dumps(["tidegate-job", tenant, idempotency_key]).encode()
    return "j-" + base64.b32encode(hashlib.sha256(named).digest()[:10]).decode().lower()
