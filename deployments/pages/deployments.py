"""Deployments as lists and pages show them."""

import difflib
import json
from collections import Counter

from django.db.models import OuterRef, Subquery
from django.utils.translation import gettext as _

from deployments.access import deployments_for
from deployments.models import Deployment, Launch, Revision
from deployments.pages.launches import current_launches
from deployments.pages.troubles import launch_troubles
from deployments.planning.spec import DeploymentSpec
from deployments.planning.spec_yaml import spec_to_yaml
from deployments.planning.states import LAUNCH_ACTIVE, LAUNCH_SERVING, RUN_ACTIVE, LaunchState
from deployments.services.revisions import spec_of

HIDDEN = "••••"
MOST_ROWS = 20
SEE_VALUES = "deployments.see_environment_values"


def deployment_rows(user, *, archived: bool = False) -> list[dict]:
    """Every deployment the user may see with its newest revision and launches: three queries."""
    deployments = list(deployments_for(user).filter(archived_at__isnull=not archived))
    newest = Revision.objects.filter(deployment=OuterRef("deployment")).order_by("-number").values("pk")[:1]
    revisions = {
        revision.deployment_id: revision
        for revision in Revision.objects.filter(deployment__in=deployments, pk=Subquery(newest))
    }
    launches: dict[int, list[Launch]] = {}
    for launch in current_launches(user):
        launches.setdefault(launch.deployment_id, []).append(launch)
    return [
        summary(deployment, revisions.get(deployment.pk), launches.get(deployment.pk, [])) for deployment in deployments
    ]


def summary(deployment: Deployment, revision: Revision | None, launches: list[Launch]) -> dict:
    spec = json.loads(bytes(revision.spec)) if revision else {}
    wanted = spec.get("instances", 0)
    counts = Counter(launch.state for launch in launches)
    live = [launch for launch in launches if LaunchState(launch.state) in LAUNCH_ACTIVE]
    label, tone = in_words(counts, wanted=wanted, live=len(live))
    return {
        "deployment": deployment,
        "revision": revision,
        "spec": spec,
        "launches": launches,
        "live": live,
        "label": label,
        "tone": tone,
        "counts": sorted(counts.items()),
        "outdated": bool(revision) and any(launch.revision_id != revision.pk for launch in live),
    }


def in_words(counts: Counter, *, wanted: int, live: int) -> tuple[str, str]:
    """One line for all instances, and its tone; what is wrong wins over what goes well."""
    ready = counts[LaunchState.READY]
    label = _("%(ready)d of %(wanted)d ready") % {"ready": ready, "wanted": wanted}
    if counts[LaunchState.FAILED] or counts[LaunchState.ORPHANED]:
        return label, "bad"
    if any(counts[state] for state in LAUNCH_SERVING - {LaunchState.READY}):
        return label, "attention"
    if counts[LaunchState.LAUNCHING] or counts[LaunchState.STARTING] or counts[LaunchState.STOPPING]:
        return label, "progress"
    if not live:
        return _("not running"), "neutral"
    return label, "good" if ready >= wanted else "attention"


def deployment_page(deployment: Deployment, user) -> dict:
    revisions = list(deployment.revisions.all()[:MOST_ROWS])
    newest = revisions[0] if revisions else None
    launches = list(current_launches(user).filter(deployment=deployment))
    page = summary(deployment, newest, launches)
    runs = list(deployment.runs.select_related("plan")[:MOST_ROWS])
    page |= {
        "launch_troubles": launch_troubles(launches),
        "orphans": [launch for launch in launches if launch.state == LaunchState.ORPHANED],
        "active_run": next((run for run in runs if run.state in RUN_ACTIVE), None),
        "runs": runs,
        "open_plan": deployment.plans.filter(state="open").first(),
        "revisions": [{"revision": revision, "yaml": shown_yaml(revision, user)} for revision in revisions],
        "past": list(
            deployment.launches.filter(ended_at__isnull=False, launched_at__isnull=False)
            .exclude(pk__in=[launch.pk for launch in launches])
            .select_related("instance", "revision")[:MOST_ROWS]
        ),
    }
    return page


def shown_spec(revision: Revision, user) -> DeploymentSpec:
    """Return the revision's spec; values of variables are dots for those who may not see them."""
    spec = spec_of(revision)
    if user.has_perm(SEE_VALUES, revision.deployment):
        return spec
    shown = {name: getattr(spec, name) for name in DeploymentSpec.__dataclass_fields__}
    return DeploymentSpec(**shown | {"env": dict.fromkeys(spec.env, HIDDEN)})


def shown_yaml(revision: Revision, user) -> str:
    return spec_to_yaml(shown_spec(revision, user))


def difference(before: Revision, after: Revision, user) -> list[tuple[str, str]]:
    """Lines of the two specs as (kind, text); kind is "added", "removed" or ""."""
    old, new = (shown_yaml(revision, user).splitlines() for revision in (before, after))
    kinds = {"+": "added", "-": "removed"}
    lines = difflib.unified_diff(old, new, lineterm="", n=1)
    return [(kinds.get(line[:1], ""), line) for line in lines if not line.startswith(("---", "+++", "@@"))]
