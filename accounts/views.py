"""Signing in and out; each is written to the audit trail, a refused sign-in too.

The trail lives in the app above this one, so the project's wiring hands `record_sign_in` over (fleetadmin/urls.py).
"""

from collections.abc import Callable

from django.contrib.auth.views import LoginView, LogoutView
from django.db import transaction

from accounts.actors import Actor, client_address
from accounts.forms import SignInForm

LONGEST_NAME_KEPT = 150


class SignIn(LoginView):
    template_name = "accounts/sign_in.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True
    record: Callable = None

    def form_valid(self, form):
        with transaction.atomic():
            response = super().form_valid(form)
            self.record(actor=self.actor(form), action="sign_in", user=form.get_user())
        return response

    def form_invalid(self, form):
        with transaction.atomic():
            self.record(actor=self.actor(form), action="sign_in_refused", user=None)
        return self.render_to_response(self.get_context_data(form=form), status=422)

    def actor(self, form) -> Actor:
        name = str(form.data.get("username", ""))[:LONGEST_NAME_KEPT]
        user = form.get_user()
        return Actor(
            label=name or "?",
            user_id=user.pk if user else None,
            address=client_address(self.request),
        )


class SignOut(LogoutView):
    http_method_names = ["post", "options"]
