"""Launches as pages show them: which ones are current, what they hold, and what the log told."""

from datetime import datetime

from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deployments.access import launches_for, stream_to_read
from deployments.log_pages import log_page
from deployments.models import NEVER_ASKED, Launch
from deployments.planning.states import LaunchState

FIRST_LINES = 500
# Keys of `Launch.progress` worth a row, with their words and unit.
FIGURES = [
    ("vllm_version", gettext_lazy("vLLM"), ""),
    ("architecture", gettext_lazy("Architecture"), ""),
    ("max_model_len", gettext_lazy("Context length"), gettext_lazy("tokens")),
    ("model_loading_gib", gettext_lazy("Model memory"), "GiB"),
    ("model_loading_s", gettext_lazy("Loading took"), "s"),
    ("compile_s", gettext_lazy("Compiling took"), "s"),
    ("graphs_gib", gettext_lazy("CUDA graphs"), "GiB"),
    ("kv_available_gib", gettext_lazy("KV cache memory"), "GiB"),
    ("kv_tokens", gettext_lazy("KV cache"), gettext_lazy("tokens")),
    ("max_concurrency", gettext_lazy("Full-length requests at once"), ""),
    ("init_engine_s", gettext_lazy("Engine start took"), "s"),
]


def current_launches(user) -> QuerySet[Launch]:
    """Return the newest asked-for launch of every instance slot, and every orphaned one."""
    newest = Launch.objects.filter(instance=OuterRef("instance")).exclude(NEVER_ASKED).order_by("-created_at")
    chosen = Q(pk=Subquery(newest.values("pk")[:1])) | Q(state=LaunchState.ORPHANED)
    return launches_for(user).filter(chosen).exclude(NEVER_ASKED).defer("argv").order_by("instance__slot", "created_at")


def held_memory(launch: Launch) -> int | None:
    """Bytes of device memory its processes were last seen to hold; None where none was read."""
    readings = [
        count
        for process in launch.processes
        for count in (process.get("device_memory") or {}).values()
        if count is not None
    ]
    return sum(readings) if readings else None


def launch_trouble(launch: Launch) -> dict | None:
    """Return what is wrong with a launch, as a problem; None when nothing is."""
    if launch.state == LaunchState.ORPHANED:
        return orphan_problem(launch)
    if launch.state == LaunchState.FAILED:
        return launch.cause or {
            "code": "CAUSE_UNKNOWN",
            "message": _("It ended, and its log names no cause."),
        }
    if launch.state in (LaunchState.DEGRADED, LaunchState.UNVERIFIED):
        return launch.verdict
    return None


def orphan_problem(launch: Launch) -> dict:
    alive = [process for process in launch.processes if process.get("role") != "supervisor"]
    return {
        "code": "ORPHANED",
        "message": _("Its leader is gone and %(count)d of its processes still live.") % {"count": len(alive)},
        "next_step": _("Sweep them: only processes proven to belong to this launch are ended."),
        "numbers": {"held_bytes": held_memory(launch), "pids": [process.get("pid") for process in alive]},
    }


def figures_of(launch: Launch) -> list[tuple[str, str]]:
    rows = []
    for key, label, unit in FIGURES:
        value = (launch.progress or {}).get(key)
        if value is None:
            continue
        text = f"{value:,}" if isinstance(value, int) else str(value)
        rows.append((label, f"{text} {unit}".strip()))
    return rows


def verdict_of(launch: Launch) -> dict | None:
    """Return the last verification, its time read back."""
    if not launch.verdict:
        return None
    verdict = dict(launch.verdict)
    verdict["moment"] = moment_of(verdict.get("at"))
    verdict["answer"] = (verdict.get("probe") or {}).get("answer") or {}
    return verdict


def moment_of(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def instance_page(launch: Launch, user, *, first: int | None) -> dict:
    """Everything of one launch; its log's last lines only for those who may read them."""
    stream = stream_to_read(user, launch.pk)
    ranks = list(launch.ranks.select_related("device"))
    measured = [(rank.device, (launch.measured or {}).get(rank.device.uuid)) for rank in ranks]
    return {
        "launch": launch,
        "trouble": launch_trouble(launch),
        "figures": figures_of(launch),
        "verdict": verdict_of(launch),
        "ranks": ranks,
        "measured": [(device, count) for device, count in measured if count is not None],
        "events": list(launch.events.all()[:30]),
        "stream": stream,
        "log": first_lines(stream, first=first) if stream else None,
    }


def first_lines(stream, *, first: int | None) -> dict:
    """Return the page of log lines rendered by the server: from the asked line, else the newest."""
    begin = max(1, first) if first else max(1, stream.lines - FIRST_LINES + 1)
    page = log_page(stream, first=begin, limit=FIRST_LINES)
    page["first"] = begin
    page["older"] = max(1, begin - FIRST_LINES) if begin > 1 else None
    page["newer"] = page["next"] if page["next"] <= stream.lines else None
    return page
