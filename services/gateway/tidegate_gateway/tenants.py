"""What a tenant may ask for, who acts for it, and who are operators. Without a file everybody may do everything.

Who asks is what a request says of itself: these rules keep people from mistakes, not from each other.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegate_gateway.submission.bounds import PRIORITY_MAX


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bounds of one tenant. `members` act for it, beside the operators; None: everybody does."""

    max_priority: int = PRIORITY_MAX
    members: tuple[str, ...] | None = None


class Tenants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tenants file: `default` holds for whoever is not in `tenants`; without `default` others are refused.

    `operators` may change queues, nodes and maintenance windows, and act for every tenant; None: everybody may.
    """

    tenants: dict[str, Tenant] = {}
    default: Tenant | None = None
    operators: tuple[str, ...] | None = None

    def of(self, name: str) -> Tenant | None:
        """Return the bounds of a tenant, None for one who may not submit."""
        return self.tenants.get(name, self.default)

    def is_operator(self, actor: str) -> bool:
        """Say whether somebody may act on what belongs to no tenant."""
        return self.operators is None or actor in self.operators

    def acts_for(self, actor: str, tenant: str) -> bool:
        """Say whether somebody may act on a tenant's jobs."""
        known = self.of(tenant)
        members: tuple[str, ...] | None = known.members if known is not None else ()
        return self.is_operator(actor) or members is None or actor in members


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
    named = [tenant for tenant in (*tenants.tenants.values(), tenants.default) if tenant is not None]
    for tenant in named:
        if not 0 <= tenant.max_priority <= PRIORITY_MAX:
            raise TenantsFileError(f"max_priority {tenant.max_priority} is refused; 0 to {PRIORITY_MAX} is accepted")
    if tenants.operators is None and any(tenant.members is not None for tenant in named):
        raise TenantsFileError(
            "members are named but no operators: everybody would then act for every tenant as an operator;"
            ' accepted is "operators": ["ada"] beside "tenants"'
        )
    return tenants
