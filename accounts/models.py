"""Who may do what, where: environments, roles as lists of permissions, and their assignments."""

from django.conf import settings
from django.contrib.auth.models import Group, Permission
from django.db import models
from django.utils.translation import gettext_lazy as _


class Environment(models.Model):
    """The boundary of every right: each host and deployment lies in exactly one."""

    name = models.CharField(_("name"), max_length=60, unique=True)
    slug = models.SlugField(_("short name"), max_length=60, unique=True)
    protected = models.BooleanField(
        _("protected"),
        default=False,
        help_text=_("Arguments and variables that load code are refused here, whoever asks."),
    )

    class Meta:
        ordering = ["name"]
        verbose_name = _("environment")

    def __str__(self) -> str:
        return self.name

    @property
    def environment_id(self) -> int:
        """An environment lies in itself, so that rights on it are asked like any other."""
        return self.pk


class Role(models.Model):
    """A named list of permissions."""

    name = models.CharField(_("name"), max_length=60, unique=True)
    slug = models.SlugField(max_length=60, unique=True)
    permissions = models.ManyToManyField(Permission, blank=True)

    class Meta:
        ordering = ["name"]
        verbose_name = _("role")

    def __str__(self) -> str:
        return self.name


class RoleAssignment(models.Model):
    """A role given to one user or one group, in one environment or (environment empty) in all."""

    role = models.ForeignKey(Role, on_delete=models.CASCADE, related_name="assignments")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, blank=True, related_name="role_assignments"
    )
    group = models.ForeignKey(Group, on_delete=models.CASCADE, null=True, blank=True, related_name="role_assignments")
    environment = models.ForeignKey(
        Environment, on_delete=models.CASCADE, null=True, blank=True, related_name="role_assignments"
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="role_assignment_to_user_or_group",
                condition=models.Q(user__isnull=False, group__isnull=True)
                | models.Q(user__isnull=True, group__isnull=False),
            ),
            # One for each kind of empty column: a plain unique constraint takes two NULLs for different values.
            *(
                models.UniqueConstraint(
                    fields=["role", whom, *(["environment"] if somewhere else [])],
                    condition=models.Q(**{f"{whom}__isnull": False, "environment__isnull": not somewhere}),
                    name=f"role_once_per_{whom}_{'environment' if somewhere else 'everywhere'}",
                )
                for whom in ("user", "group")
                for somewhere in (True, False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.role} → {self.user or self.group} ({self.environment or '*'})"
