from django.contrib.auth.forms import AuthenticationForm


class SignInForm(AuthenticationForm):
    """Django's own, with the attributes a password manager and a phone keyboard want."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.fields["username"].widget.attrs.update({"class": "form-control", "autocapitalize": "none"})
        self.fields["password"].widget.attrs.update({"class": "form-control"})
