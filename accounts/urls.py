from django.contrib.auth.decorators import login_not_required
from django.urls import path

from accounts import views


def routes(*, record_sign_in):
    """The app's routes, with the function that writes sign-ins to the trail."""
    sign_in = views.SignIn.as_view(record=staticmethod(record_sign_in))
    return (
        [
            path("sign-in/", login_not_required(sign_in), name="sign-in"),
            path("sign-out/", views.SignOut.as_view(), name="sign-out"),
        ],
        "accounts",
    )
