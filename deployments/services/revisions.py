"""Deployments and their revisions."""

import json
from datetime import datetime

from django.db import IntegrityError, transaction

from accounts.actors import Actor
from accounts.models import Environment
from audit.canonical import canonical, digest
from audit.record import record
from deployments.models import Deployment, Instance, Revision
from deployments.planning.spec import DeploymentSpec
from deployments.planning.spec_parse import parse_spec
from deployments.planning.spec_yaml import spec_to_mapping
from hosts.live import announce

SPEC_FORM = 1


class NameTaken(Exception):
    """A deployment of this name exists in the environment."""


def create_deployment(*, environment: Environment, spec: DeploymentSpec, by: Actor, now: datetime) -> Revision:
    """A deployment with its first revision. Raises NameTaken."""
    try:
        with transaction.atomic():
            deployment = Deployment.objects.create(environment=environment, name=spec.name, created_at=now)
            record(actor=by, action="deployment.create", subject=deployment)
            return add_revision(deployment=deployment, spec=spec, by=by, now=now)
    except IntegrityError as error:
        raise NameTaken(spec.name) from error


@transaction.atomic
def add_revision(*, deployment: Deployment, spec: DeploymentSpec, by: Actor, now: datetime) -> Revision:
    """The next revision; one equal to the newest is that one, not another."""
    Deployment.objects.select_for_update().get(pk=deployment.pk)
    body = canonical(spec_to_mapping(spec), form=SPEC_FORM)
    newest = deployment.revisions.first()
    if newest is not None and newest.digest == digest(body):
        return newest
    revision = Revision.objects.create(
        deployment=deployment,
        number=newest.number + 1 if newest else 1,
        spec=body,
        digest=digest(body),
        parent=newest,
        author=by.label,
        created_at=now,
    )
    for slot in range(spec.instances):
        Instance.objects.get_or_create(deployment=deployment, slot=slot, defaults={"name": f"{deployment.name}-{slot}"})
    record(
        actor=by,
        action="deployment.revise",
        subject=deployment,
        before={"revision": newest.number, "digest": newest.digest} if newest else None,
        after={"revision": revision.number, "digest": revision.digest, "spec": spec_to_mapping(spec)},
    )
    announce("fleet", f"deployment.{deployment.pk}")
    return revision


def spec_of(revision: Revision) -> DeploymentSpec:
    """The stored bytes as a spec. They were checked when they were written; a fault now is our mistake."""
    stored = json.loads(bytes(revision.spec))
    stored.pop("form")
    spec = parse_spec(stored)
    if not isinstance(spec, DeploymentSpec):
        raise TypeError(f"{revision} does not parse: {spec}")
    return spec
