"""What of the trail a user may read."""

from django.db.models import Q, QuerySet

from accounts.access import environments_with
from audit.models import Entry


def entries_for(user) -> QuerySet[Entry]:
    """Entries of the environments in which the user may read the trail; those of no environment with the right everywhere."""
    allowed = Q(environment_id__in=environments_with(user, "audit.view_entry").values("pk"))
    if user.has_perm("audit.view_entry"):
        allowed |= Q(environment_id__isnull=True)
    return Entry.objects.filter(allowed)
