"""Sign-ins as entries of the trail."""

from accounts.actors import Actor
from audit.record import Subject, record


def record_sign_in(*, actor: Actor, action: str, user) -> None:
    """`user` is None for a refused sign-in: the name that was tried is kept as the actor's label."""
    subject = user if user is not None else Subject(kind="auth.user", key="", label=actor.label)
    record(actor=actor, action=action, subject=subject)
