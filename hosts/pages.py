"""What the pages of hosts show, gathered in a fixed number of queries."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.utils.translation import gettext as _

from accounts.templatetags.show import size
from hosts.access import hosts_for
from hosts.facts.model import FactsProblem
from hosts.facts.parse import parse_facts
from hosts.models import Device, Host, HostWatch
from hosts.problems import problem_of

CHART_SPAN = timedelta(minutes=30)
MOST_SAMPLES = 720
GIB = 2**30


def host_cards(user) -> list[dict]:
    """Every host the user may see, with devices and reachability; three queries for any number of them."""
    hosts = list(hosts_for(user).select_related("environment", "credential", "watch"))
    bars = device_rows(hosts)
    return [{"host": host, "devices": bars.get(host.pk, []), "trouble": trouble_of(host)} for host in hosts]


def device_rows(hosts: Iterable[Host]) -> dict[int, list[dict]]:
    """Per host the devices with what fills them: ours (as processes were last observed), others, free."""
    keys = [host.pk for host in hosts]
    ours = memory_of_launches(keys)
    rows: dict[int, list[dict]] = {}
    for device in Device.objects.filter(host__in=keys, present=True):
        rows.setdefault(device.host_id, []).append(device_row(device, ours.get(device.host_id, [])))
    return rows


def memory_of_launches(host_keys: list[int]) -> dict[int, list[dict]]:
    """Return the processes of launches on each host, as they were last observed."""
    found: dict[int, list[dict]] = {}
    # Through the relation's name: this app does not know the one above it.
    values = Host.objects.filter(pk__in=host_keys, launches__isnull=False).values_list("pk", "launches__processes")
    for key, processes in values.exclude(launches__state="stopped"):
        found.setdefault(key, []).extend(processes or [])
    return found


def held_bytes(processes: Iterable[dict], device: Device) -> int:
    """Return what these processes hold of the device; of the CPU's memory it is their resident size."""
    if device.kind == "cpu":
        return sum(process.get("rss") or 0 for process in processes)
    return sum((process.get("device_memory") or {}).get(device.uuid) or 0 for process in processes)


def device_row(device: Device, processes: list[dict]) -> dict:
    use = device.use or {}
    used, total = use.get("used"), use.get("total") or device.memory_total
    row = {"device": device, "use": use, "used": used, "total": total, "bar": None}
    if used is None or not total:
        return row
    ours = min(held_bytes(processes, device), used)
    row |= {"ours": ours, "foreign": used - ours, "free": max(0, total - used)}
    row["bar"] = memory_bar(total, [("ours", ours, _("ours")), ("foreign", used - ours, _("others"))])
    return row


def memory_bar(total: int, segments: list[tuple[str, int, str]]) -> dict:
    """Segments as percent of the width, as text: the drawing has no numbers of its own."""
    place, parts = 0.0, []
    for kind, count, label in segments:
        width = 100 * count / total
        parts.append({"kind": kind, "x": f"{place:.3f}", "width": f"{width:.3f}", "title": f"{label}: {size(count)}"})
        place += width
    words = ", ".join(part["title"] for part in parts)
    return {"parts": parts, "label": _("%(parts)s of %(total)s") % {"parts": words, "total": size(total)}}


def trouble_of(host: Host) -> dict | None:
    """Return what is wrong with the host itself: not heard, or its last failure. Not heard is not down."""
    watch = getattr(host, "watch", None)
    if watch is not None and watch.reachable is False:
        problem = watch.problem or {}
        return {
            "code": problem.get("code", "NOT_HEARD"),
            "message": problem.get("message") or _("The host does not answer."),
            "next_step": next_step_unheard(watch),
            "unheard": True,
        }
    return host.problem


def next_step_unheard(watch: HostWatch) -> str:
    """Return what to do, and whether anything happens by itself."""
    known = (watch.problem or {}).get("next_step", "")
    if not watch.waits_for_person:
        return known
    return f"{known} {_('It is not tried again by itself: press Refresh once this is settled.')}".strip()


def host_page(host: Host, *, now: datetime) -> dict:
    stored = host.facts.first()
    facts = parse_facts(stored.body) if stored else None
    unreadable = problem_of(facts) if isinstance(facts, FactsProblem) else None
    return {
        "host": host,
        "trouble": trouble_of(host),
        "stored": stored,
        "facts": None if unreadable else facts,
        "unreadable": unreadable,
        "devices": device_rows([host]).get(host.pk, []),
        "chart": memory_chart(host, now=now),
        "asking": host.asked_at is not None,
        "others": getattr(getattr(host, "watch", None), "others", None) or [],
    }


def memory_chart(host: Host, *, now: datetime) -> dict:
    """Return used memory per device over the last half hour, in GiB; a reading that was not taken is None."""
    rows = list(host.samples.filter(at__gte=now - CHART_SPAN).order_by("-at").values("at", "body")[:MOST_SAMPLES])
    rows.reverse()
    names = {device.uuid: device_label(device) for device in host.devices.all() if device.present}
    lines: dict[str, list] = {uuid: [] for uuid in names}
    for row in rows:
        used = {item.get("uuid"): item.get("used") for item in row["body"].get("devices", [])}
        for uuid, values in lines.items():
            values.append(None if used.get(uuid) is None else round(used[uuid] / GIB, 2))
    return {
        "times": [int(row["at"].timestamp()) for row in rows],
        "series": [{"label": names[uuid], "values": values} for uuid, values in lines.items()],
        "unit": "GiB",
    }


def device_label(device: Device) -> str:
    return device.name if device.index is None else f"{device.index} {device.name}"
