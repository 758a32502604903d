"""Rights of the command line: whoever can run it here has the role the installation gives to local commands."""

import os
import pwd

from django.conf import settings
from django.contrib.auth.models import Permission
from django.core.exceptions import PermissionDenied

from accounts.actors import Actor, local_actor


def act_locally(perm: str) -> Actor:
    """The actor of a command that needs this permission. Raises PermissionDenied when the local role lacks it.

    The name is that of the process's uid: what LOGNAME says anybody can set.
    """
    app_label, _, codename = perm.partition(".")
    allowed = Permission.objects.filter(
        content_type__app_label=app_label, codename=codename, role__slug=settings.LOCAL_ROLE
    ).exists()
    if not allowed:
        raise PermissionDenied(perm)
    return local_actor(pwd.getpwuid(os.getuid()).pw_name)


def may_locally(perm: str) -> bool:
    try:
        act_locally(perm)
    except PermissionDenied:
        return False
    return True
