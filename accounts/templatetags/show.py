"""How values look on every page: sizes, ages, badges. What was not observed is a dash, never 0."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from accounts.access import environments_with

register = template.Library()
NOTHING = "–"  # noqa: RUF001  (the dash of tables, not a minus)
GIB = 2**30
MIB = 2**20
UNITS = [(2**40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (2**10, "KiB")]
# Ages in words: up to so many seconds, divided by, as.
AGES = [
    (90, 1, gettext_lazy("%d s ago")),
    (5400, 60, gettext_lazy("%d min ago")),
    (172_800, 3600, gettext_lazy("%d h ago")),
]
TONES = {"green": "good", "red": "bad", "yellow": "attention", "blue": "progress"}


@register.filter
def size(count: int | None) -> str:
    """Bytes as the largest unit that leaves a whole part, two decimals at most."""
    if count is None:
        return NOTHING
    for unit, name in UNITS:
        if abs(count) >= unit:
            return f"{count / unit:.2f}".rstrip("0").rstrip(".") + f" {name}"
    return f"{count} B"


@register.filter
def gib(count: int | None) -> str:
    return NOTHING if count is None else f"{count / GIB:.1f}"


@register.filter
def grouped(count: int | None) -> str:
    """Return a whole number with commas between thousands, as vLLM prints it."""
    return NOTHING if count is None else f"{count:,}"


@register.filter
def known(value) -> str:
    """Return the value, or a dash where it was not observed; 0 and False are observed."""
    if value is None or value == "":
        return NOTHING
    return {True: _("yes"), False: _("no")}[value] if isinstance(value, bool) else str(value)


@register.filter
def short(text: str) -> str:
    """Return the start of an id or a digest."""
    return str(text)[:12]


@register.filter
def figures(numbers: Mapping | None) -> list[tuple[str, str]]:
    """Return the numbers of a problem as (words, value); bytes become GiB."""
    return [(words(key), figure(key, value)) for key, value in (numbers or {}).items() if value not in (None, "", [])]


def words(key: str) -> str:
    return re.sub(r"_(bytes|s|ms)$", "", str(key)).replace("_", " ")


def figure(key: str, value: object) -> str:
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, int) and (str(key).endswith("bytes") or abs(value) >= 16 * MIB):
        # One unit for all that is compared, but not so large that something looks like nothing.
        return f"{value / GIB:.2f} GiB" if abs(value) >= GIB // 10 else size(value)
    if isinstance(value, int | float | Decimal):
        text = f"{value:.2f}".rstrip("0").rstrip(".") if not isinstance(value, int) else str(value)
        unit = str(key).rpartition("_")[2]
        return f"{text} {unit}" if unit in ("s", "ms") else f"{value:,}" if "tokens" in str(key) else text
    if isinstance(value, Mapping):
        return ", ".join(f"{words(name)} {figure(name, part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(figure(key, part) for part in value)
    return str(value)


@register.simple_tag(takes_context=True)
def age(context, moment: datetime | None) -> str:
    """`<time>` with the age in words; the exact time in UTC is its title."""
    if moment is None:
        return format_html('<span class="text-secondary">{}</span>', _("never"))
    now = context.get("now") or timezone.now()
    exact = moment.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{}" data-age>{}</time>',
        exact.strftime("%Y-%m-%dT%H:%M:%SZ"),
        exact.strftime("%Y-%m-%d %H:%M:%S UTC"),
        age_in_words((now - moment).total_seconds(), moment),
    )


def age_in_words(seconds: float, moment: datetime) -> str:
    if seconds < 2:
        return _("now")
    for limit, unit, text in AGES:
        if seconds < limit:
            return text % (seconds // unit)
    return moment.strftime("%Y-%m-%d")


@register.simple_tag
def exact_time(moment: datetime | None) -> str:
    """`<time>` with the time of day in UTC; the date is its title."""
    if moment is None:
        return NOTHING
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        moment.strftime("%Y-%m-%d %H:%M:%S UTC"),
        moment.strftime("%H:%M:%S"),
    )


@register.simple_tag
def duration(begin: datetime | None, end: datetime | None) -> str:
    """Seconds between two moments; a dash while one of them is missing."""
    if begin is None or end is None:
        return NOTHING
    seconds = (end - begin).total_seconds()
    return f"{seconds:.1f} s" if seconds < 120 else f"{int(seconds // 60)} min {int(seconds % 60)} s"


@register.inclusion_tag("_shared/badge.html")
def badge(label: str, tone: str = "neutral") -> dict:
    return {"label": label, "tone": TONES.get(tone, tone)}


@register.inclusion_tag("_shared/problem.html")
def problem(value: Mapping | None, title: str = "", level: str = "bad") -> dict:
    """Return a failure as data: code, message (or sentence), next_step, numbers."""
    return {"problem": value, "title": title, "level": level}


@register.simple_tag(takes_context=True)
def may(context, perm: str, obj=None) -> bool:
    """Whether this page's reader may do it, so that buttons they may not press are not there."""
    return context["request"].user.has_perm(perm, obj)


@register.simple_tag(takes_context=True)
def with_page(context, number: int) -> str:
    """Return this page's query with another page number."""
    query = context["request"].GET.copy()
    query["page"] = number
    return "?" + query.urlencode()


@register.simple_tag(takes_context=True)
def may_somewhere(context, perm: str) -> bool:
    """For links to pages about no single object."""
    return environments_with(context["request"].user, perm).exists()
