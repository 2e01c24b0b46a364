"""Which devices, or which part of one, a member gets that asks for more than its floor.

First back what it lent itself, then what nobody holds, else what others lend. Whole devices are leased where one member
lends all of it. A share is one part of one device: of the one that the member has a part of already, else of the one
that it takes least from others of, and a device that is free as a whole is begun only where no part is left over. What
several lend of a device may be leased together, and what one lends of it by several.
"""

from __future__ import annotations

import msgspec
from tidegate_events.resources import Resources

from tidegate_scheduler.leasing import share_millis
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS, Devices, accepts
from tidegate_scheduler.policy.elastic.grants import Ledger
from tidegate_scheduler.policy.elastic.parts import Part, device_of, lent_by
from tidegate_scheduler.policy.elastic.physical import Need
from tidegate_scheduler.policy.elastic.terms import devices_of
from tidegate_scheduler.state import Member


class Offer(msgspec.Struct, frozen=True):
    """What a row has: its devices, what of them is lent, and how many whole ones may be begun; which models will do."""

    devices: Devices
    ledger: Ledger
    gpus: int
    models: tuple[str, ...]


class Picked(msgspec.Struct, frozen=True):
    """What a member gets of devices: back of what it lent, what nobody holds, and what others lend."""

    back: tuple[Part, ...] = ()
    own: tuple[Part, ...] = ()
    leased: tuple[Part, ...] = ()


def devices(parts: tuple[Part, ...]) -> tuple[int, ...]:
    """Return of which devices these are parts."""
    return tuple(device for device, _ in parts)


def pick(floor: Resources, member: Member, need: Need, offer: Offer) -> Picked | None:
    """Return what the member gets, None where there is too little."""
    if need.gpu_millis:
        return _share(member, need, need.gpu_millis - share_millis(floor, member), offer)
    return _whole(member, need, max(0, need.gpus - len(member.gpu_indices)), offer)


def _whole(member: Member, need: Need, missing: int, offer: Offer) -> Picked | None:
    if not missing:
        return Picked()
    room, ledger = offer.devices, offer.ledger
    back = member.lent_gpus[:missing]
    if not all(ledger.lends_whole(each) for each in back):
        return None
    one = Resources(gpus=1, gpu_memory_mib=need.gpu_memory_mib)
    free = room.at_hand(one, offer.models)[: max(0, offer.gpus)]
    own = tuple(gpu.index for gpu in free[: missing - len(back)])
    lent = [each for each in ledger.whole if ledger.lends_whole(each) and each not in member.lent_gpus]
    usable = [each for each in lent if each in room.all and accepts(room.all[each], one, offer.models)]
    leased = tuple(usable[: missing - len(back) - len(own)])
    if len(back) + len(own) + len(leased) < missing:
        return None
    return Picked(*(tuple((each, WHOLE_MILLIS) for each in those) for those in (back, own, leased)))


def _share(member: Member, need: Need, missing: int, offer: Offer) -> Picked | None:
    if missing <= 0:
        return Picked()
    room, best = offer.devices, list[tuple[tuple[int, bool, int, int], Picked]]()
    one = Resources(gpu_memory_mib=need.gpu_memory_mib)
    for device in device_of(member) or sorted(room.all):
        if device not in room.all or not accepts(room.all[device], one, offer.models):
            continue
        picked = _of_one(device, missing, member.lent_millis, offer)
        if picked is not None:
            begins = not (room.used_millis.get(device) or picked.leased)
            spare = offer.ledger.spare_of(room, device)
            best.append(((sum(millis for _, millis in picked.leased), begins, spare, device), picked))
    return min(best, key=lambda each: each[0])[1] if best else None


def _of_one(device: int, missing: int, lent_millis: int, offer: Offer) -> Picked | None:
    """Return the part of the device, None where there is too little of it."""
    room, lent = offer.devices, offer.ledger.lent.get(device, 0)
    back = min(missing, lent_millis)
    if back > offer.ledger.spare_of(room, device):
        return None
    lent -= back
    free = room.free_of(device) + min(0, lent)
    if device not in room.used_millis and offer.gpus <= 0:
        free = 0  # all of it is kept for somebody
    own = min(missing - back, max(0, free))
    leased = missing - back - own
    if leased > max(0, lent):
        return None
    return Picked(*(((device, millis),) if millis else () for millis in (back, own, leased)))


class Pool:
    """What there would be of a row's devices, were all handed back that members have beyond their floors."""

    def __init__(self, room: Devices, members: list[Member]) -> None:
        self._all = room.all
        self._whole = {gpu.index: None for gpu in room.free}
        self._parts = {index: room.free_of(index) for index in room.all}
        for member in members:
            extra = member.extra if member.extra is not None else Resources()
            if not (member.lent_millis or extra.gpu_millis):
                self._whole |= dict.fromkeys((*member.lent_gpus, *devices_of(member).extra))
            for index, millis in (*lent_by(member), *((each, extra.gpu_millis) for each in device_of(member))):
                self._parts[index] = self._parts.get(index, 0) + millis

    def take(self, floor: Resources, member: Member, need: Need, models: tuple[str, ...]) -> bool:
        """Take what the member needs beyond what it has; say whether there is so much."""
        one = Resources(gpu_memory_mib=need.gpu_memory_mib)
        if need.gpu_millis:
            missing = need.gpu_millis - share_millis(floor, member)
            among = device_of(member) or sorted(self._all)
            able = [each for each in among if self._accepts(each, one, models) and self._parts[each] >= missing]
            if missing > 0 and able:
                self._parts[min(able, key=self._parts.__getitem__)] -= missing
            return missing <= 0 or bool(able)
        missing = max(0, need.gpus - len(member.gpu_indices))
        usable = [each for each in self._whole if self._accepts(each, one, models)]
        for each in usable[:missing]:
            del self._whole[each]
        return missing <= len(usable)

    def _accepts(self, index: int, need: Resources, models: tuple[str, ...]) -> bool:
        return index in self._all and accepts(self._all[index], need, models)
