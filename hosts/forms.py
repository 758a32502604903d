"""Shapes of what people type about hosts. Whether it holds, the services and the host find out."""

import re

from django import forms
from django.utils.translation import gettext_lazy as _

from accounts.access import environments_with
from hosts.access import credentials_for
from hosts.models import Credential

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,78}[A-Za-z0-9])?")
ADDRESS = re.compile(r"[A-Za-z0-9:._-]{1,255}(?:%[A-Za-z0-9]+)?")
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}\$?")
LONGEST_KEY = 20_000
ROOT_HELP = _("Absolute paths, one a line. Models and vLLM are looked for, and may be used, only below these.")


class PathList(forms.CharField):
    """Absolute paths, one a line, as a list."""

    widget = forms.Textarea(attrs={"rows": 3, "class": "code"})

    def to_python(self, value) -> list[str]:
        return [line.strip() for line in (value or "").splitlines() if line.strip()]

    def prepare_value(self, value) -> str:
        return value if isinstance(value, str) else "\n".join(value or [])

    def validate(self, value) -> None:
        super().validate(value)
        wrong = [line for line in value if not line.startswith("/") or "\x00" in line]
        if wrong:
            raise forms.ValidationError(_("Not an absolute path: %(paths)s."), params={"paths": ", ".join(wrong)})


class StyledForm(forms.Form):
    """Fields with the classes of the style sheet, and errors tied to their fields."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            style_widget(field.widget)


def style_widget(widget) -> None:
    if isinstance(widget, forms.CheckboxInput | forms.CheckboxSelectMultiple | forms.RadioSelect | forms.HiddenInput):
        return
    kind = "form-select" if isinstance(widget, forms.Select) else "form-control"
    widget.attrs["class"] = f"{kind} {widget.attrs.get('class', '')}".strip()


def check_shape(pattern: re.Pattern, value: str, message) -> str:
    if pattern.fullmatch(value) is None:
        raise forms.ValidationError(message)
    return value


class PathsForm(StyledForm):
    """What an administrator may change of an enrolled host."""

    model_roots = PathList(label=_("Model directories"), help_text=ROOT_HELP)
    vllm_roots = PathList(
        label=_("vLLM directories"), help_text=_("Virtual environments, or directories that hold some.")
    )
    state_root = forms.CharField(
        label=_("State directory"),
        required=False,
        max_length=255,
        help_text=_("On a local disk. Empty: ~/.fleetadmin"),
    )
    log_root = forms.CharField(
        label=_("Log directory"),
        required=False,
        max_length=255,
        help_text=_("Empty: below the state directory."),
    )
    interpreter = forms.CharField(
        label=_("Python on the host"),
        required=False,
        max_length=255,
        help_text=_("3.8 or newer. Empty: found by itself."),
    )


class HostForm(PathsForm):
    """A host to enrol. `credential` decides the environment together with the user's rights."""

    field_order = ["environment", "name", "address", "port", "user", "credential"]

    environment = forms.ModelChoiceField(label=_("Environment"), queryset=None, empty_label=None)
    name = forms.CharField(label=_("Name"), max_length=80, help_text=_("As the team calls it, such as gpu-07."))
    address = forms.CharField(label=_("Address"), max_length=255, help_text=_("A name or an IP address."))
    port = forms.IntegerField(label=_("SSH port"), min_value=1, max_value=65535, initial=22)
    user = forms.CharField(
        label=_("User"),
        max_length=64,
        help_text=_("An ordinary account; vLLM runs as this user. Root is not needed."),
    )
    credential = forms.ModelChoiceField(label=_("Credential"), queryset=None, empty_label=_("Choose one"))

    def __init__(self, *args, user, **kwargs):
        super().__init__(*args, **kwargs)
        self.fields["environment"].queryset = environments_with(user, "hosts.add_host")
        self.fields["credential"].queryset = credentials_for(user).exclude(kind=Credential.Kind.SECRET)
        few = list(self.fields["credential"].queryset[:2])
        if len(few) == 1:
            self.fields["credential"].initial = few[0]

    def clean_name(self):
        return check_shape(NAME, self.cleaned_data["name"], _("Letters, digits, dots, dashes and underscores."))

    def clean_address(self):
        return check_shape(ADDRESS, self.cleaned_data["address"], _("A host name or an IP address, without a port."))

    def clean_user(self):
        return check_shape(USER, self.cleaned_data["user"], _("The name of an account, such as vllm."))

    def clean(self):
        cleaned = super().clean()
        environment, credential = cleaned.get("environment"), cleaned.get("credential")
        if environment and credential and credential.environment_id != environment.pk:
            self.add_error("credential", _("This credential belongs to another environment."))
        return cleaned


class CredentialForm(StyledForm):
    """A key, a password, or a secret for an instance's environment. None is ever shown again."""

    NEEDED = {
        Credential.Kind.KEY: "private_key",
        Credential.Kind.PASSWORD: "password",
        Credential.Kind.SECRET: "value",
    }

    environment = forms.ModelChoiceField(label=_("Environment"), queryset=None, empty_label=None)
    name = forms.CharField(label=_("Name"), max_length=80)
    kind = forms.ChoiceField(label=_("Kind"), choices=Credential.Kind.choices, widget=forms.RadioSelect, initial="key")
    private_key = forms.CharField(
        label=_("Private key"),
        required=False,
        strip=False,
        max_length=LONGEST_KEY,
        widget=forms.Textarea(attrs={"rows": 6, "class": "code", "spellcheck": "false", "autocomplete": "off"}),
        help_text=_("OpenSSH format: Ed25519, ECDSA or RSA."),
    )
    passphrase = forms.CharField(
        label=_("Passphrase of the key"),
        required=False,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    password = forms.CharField(
        label=_("Password"),
        required=False,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text=_("Only for the kind “Password”. A key is better."),
    )

    value = forms.CharField(
        label=_("Value of the secret"),
        required=False,
        strip=False,
        max_length=LONGEST_KEY,
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
        help_text=_("Only for the kind “Secret for an instance”, such as a hub token."),
    )

    def __init__(self, *args, user, **kwargs):
        super().__init__(*args, **kwargs)
        self.fields["environment"].queryset = environments_with(user, "hosts.add_credential")

    def clean(self):
        cleaned = super().clean()
        needed = self.NEEDED.get(cleaned.get("kind"))
        if needed and not cleaned.get(needed):
            self.add_error(needed, _("This is needed for the chosen kind."))
        environment, name = cleaned.get("environment"), cleaned.get("name")
        if environment and name and Credential.objects.filter(environment=environment, name=name).exists():
            self.add_error("name", _("A credential of this name exists in this environment."))
        return cleaned
