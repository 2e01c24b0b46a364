"""What a tenant may ask for. Without a file every tenant may use every priority."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegate_gateway.submission.bounds import PRIORITY_MAX


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds of one tenant."""

    max_priority: int = PRIORITY_MAX


class Tenants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tenants file: `default` holds for whoever is not in `tenants`; without `default` others are refused."""

    tenants: dict[str, Tenant] = {}
    default: Tenant | None = None

    def of(self, name: str) -> Tenant | None:
        """Return the bounds of a tenant, None for one who may not submit."""
        return self.tenants.get(name, self.default)


EVERYBODY = Tenants(default=Tenant())


class TenantsFileError(Exception):
    """The tenants file cannot be used; says why."""


def load(path: Path | None) -> Tenants:
    """Read the tenants file. Raises TenantsFileError."""
    if path is None:
        return EVERYBODY
    try:
        tenants = msgspec.json.decode(path.read_bytes(), type=Tenants)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TenantsFileError(
            f"the tenants file cannot be used: {error}; "
            'accepted is {"tenants": {"lab-a": {"max_priority": 50}}, "default": {"max_priority": 10}}'
        ) from error
    for tenant in (*tenants.tenants.values(), *([tenants.default] if tenants.default else [])):
        if not 0 <= tenant.max_priority <= PRIORITY_MAX:
            raise TenantsFileError(f"max_priority {tenant.max_priority} is refused; 0 to {PRIORITY_MAX} is accepted")
    return tenants
