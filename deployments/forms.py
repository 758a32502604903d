"""A deployment as a form and as YAML. Both only gather; `parse_spec` judges, so both are judged alike."""

import json
import re
import shlex
from collections.abc import Mapping

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deployments.planning.spec import DTYPES, TASKS, DeploymentSpec, Problem, Problems
from deployments.planning.spec_parse import parse_spec
from deployments.planning.spec_yaml import MAX_YAML, spec_from_yaml, spec_to_mapping
from hosts.forms import style_widget

PLACES = re.compile(r"[.\[]")
GATHERED = ("extra_args", "env", "secrets")


def number(label, help_text="", **attributes):
    widget = forms.NumberInput(attrs={"min": 1, **attributes})
    return forms.CharField(label=label, required=False, help_text=help_text, widget=widget)


class SpecForm(forms.Form):
    """Fields of the spec. After `is_valid()`, `spec` is the parsed spec; `mapping` is there in any case."""

    name = forms.CharField(label=gettext_lazy("Name"), help_text=gettext_lazy("Lower-case letters, digits and dashes."))
    model = forms.CharField(
        label=gettext_lazy("Model"),
        help_text=gettext_lazy("A directory on the host."),
        widget=forms.TextInput(attrs={"list": "models"}),
    )
    served_model_name = forms.CharField(
        label=gettext_lazy("Served model name"), help_text=gettext_lazy("What clients write into “model”.")
    )
    vllm = forms.CharField(
        label=gettext_lazy("vLLM"),
        required=False,
        initial="auto",
        help_text=gettext_lazy("“auto” takes the newest found on the host."),
        widget=forms.TextInput(attrs={"list": "installations"}),
    )
    task = forms.ChoiceField(label=gettext_lazy("Task"), choices=[(task, task) for task in TASKS], required=False)
    instances = number(gettext_lazy("Instances"))
    tensor_parallel = number(gettext_lazy("Tensor parallel"))
    pipeline_parallel = number(gettext_lazy("Pipeline parallel"))
    devices = forms.MultipleChoiceField(
        label=gettext_lazy("Devices"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=gettext_lazy("None chosen: the planner chooses."),
    )
    max_model_len = number(gettext_lazy("Context length"), gettext_lazy("Tokens. Empty: the model's own."))
    max_num_seqs = number(gettext_lazy("Sequences at once"), gettext_lazy("Empty: vLLM's default."))
    dtype = forms.ChoiceField(
        label=gettext_lazy("Data type"), choices=[(dtype, dtype) for dtype in DTYPES], required=False
    )
    kv_cache_memory_bytes = forms.CharField(
        label=gettext_lazy("KV cache"),
        required=False,
        help_text=gettext_lazy("Such as 40GiB. Empty: planned."),
    )
    gpu_memory_utilization = forms.CharField(
        label=gettext_lazy("GPU memory utilization"),
        required=False,
        help_text=gettext_lazy("Such as 0.3. Empty: planned."),
    )
    port = forms.CharField(label=gettext_lazy("Port"), required=False, initial="auto")
    address = forms.CharField(label=gettext_lazy("Address"), required=False, initial="127.0.0.1")
    extra_args = forms.CharField(
        label=gettext_lazy("Extra arguments"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 4, "class": "code", "placeholder": "--enable-prefix-caching"}),
        help_text=gettext_lazy("One a line, as on the command line."),
    )
    env = forms.CharField(
        label=gettext_lazy("Environment variables"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 4, "class": "code", "placeholder": "OMP_NUM_THREADS=8"}),
        help_text=gettext_lazy("NAME=value, one a line."),
    )
    secrets = forms.CharField(
        label=gettext_lazy("Secrets"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 2, "class": "code", "placeholder": "HF_TOKEN=name of a credential"}),
        help_text=gettext_lazy("NAME=name of a stored credential, one a line."),
    )
    notes = forms.CharField(label=gettext_lazy("Notes"), required=False, widget=forms.Textarea(attrs={"rows": 2}))

    spec: DeploymentSpec | None = None

    def __init__(
        self,
        *args,
        host,
        devices=(),
        fixed_name: str = "",
        kept_env: Mapping[str, str] | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.host = host
        self.fixed_name = fixed_name
        self.kept_env = kept_env or {}
        given = (
            self.data.getlist("devices")
            if self.is_bound and hasattr(self.data, "getlist")
            else self.initial.get("devices", [])
        )
        self.fields["devices"].choices = device_choices(devices, given=given)
        if fixed_name:
            self.fields["name"].disabled = True
            self.fields["name"].initial = fixed_name
        for field in self.fields.values():
            style_widget(field.widget)

    @property
    def mapping(self) -> dict:
        """What was typed, as `parse_spec` wants it; empty fields are left out."""
        values = {name: self.data.get(name, "").strip() for name in self.fields if name not in (*GATHERED, "devices")}
        values = {name: value for name, value in values.items() if value}
        values |= {"host": self.host.name, "name": self.fixed_name or values.get("name", "")}
        if chosen := self.data.getlist("devices"):
            values["devices"] = [int(item) if item.isdigit() else item for item in chosen]
        gathered = {
            "extra_args": read_arguments(self.data.get("extra_args", "")),
            "env": {**self.kept_env, **read_pairs(self.data.get("env", ""))},
            "secrets": read_pairs(self.data.get("secrets", "")),
        }
        return values | {name: value for name, value in gathered.items() if value}

    def clean(self):
        parsed = parse_spec(self.mapping)
        if isinstance(parsed, Problems):
            for problem in parsed.items:
                self.add_problem(problem)
        else:
            self.spec = parsed
        return self.cleaned_data

    def add_problem(self, problem: Problem) -> None:
        field = PLACES.split(problem.path, maxsplit=1)[0]
        # A required field left empty was already said by the field itself.
        if problem.code != "REQUIRED" or field not in self.errors:
            self.add_error(field if field in self.fields else None, problem.message)


class YamlForm(forms.Form):
    """The same as one document."""

    text = forms.CharField(
        label=gettext_lazy("Specification"),
        max_length=MAX_YAML,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 22, "class": "code", "spellcheck": "false"}),
    )
    spec: DeploymentSpec | None = None

    def __init__(self, *args, fixed_name: str = "", kept_env: Mapping[str, str] | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.fixed_name = fixed_name
        self.kept_env = kept_env or {}
        style_widget(self.fields["text"].widget)

    def clean_text(self):
        text = self.cleaned_data["text"]
        parsed = spec_from_yaml(text)
        if isinstance(parsed, DeploymentSpec):
            parsed = parse_spec({**spec_to_mapping(parsed), "env": {**self.kept_env, **parsed.env}})
        if isinstance(parsed, Problems):
            raise forms.ValidationError([said(problem) for problem in parsed.items])
        if self.fixed_name and parsed.name != self.fixed_name:
            raise forms.ValidationError(_("The name must stay %(name)s."), params={"name": self.fixed_name})
        self.spec = parsed
        return text


def said(problem: Problem) -> str:
    place = problem.path if problem.path and problem.path not in problem.message else ""
    return f"{place}: {problem.message}" if place else problem.message


def device_choices(devices, *, given) -> list[tuple[str, str]]:
    """Return the host's devices by uuid, and whatever else was chosen before."""
    known = [
        (device.uuid, str(device.name) if device.index is None else f"{device.index} · {device.name}")
        for device in devices
    ]
    shown = {uuid for uuid, _label in known}
    return known + [(str(item), str(item)) for item in given if str(item) not in shown]


def read_pairs(text: str) -> dict[str, str]:
    """Lines NAME=value; a line without = is a name without value, which the spec refuses by name."""
    pairs = {}
    for line in text.splitlines():
        if line.strip():
            name, _equals, value = line.strip().partition("=")
            pairs[name.strip()] = value
    return pairs


def read_arguments(text: str) -> dict[str, object]:
    """Lines such as `--flag`, `--flag value`, `--flag=value`; a JSON list gives several values."""
    arguments: dict[str, object] = {}
    for line in text.splitlines():
        flag, _space, value = line.strip().partition(" ")
        if "=" in flag:
            flag, _equals, value = line.strip().partition("=")
        if flag:
            arguments[flag] = read_value(value.strip())
    return arguments


def read_value(text: str) -> object:
    if not text:
        return True
    if text.startswith("["):
        try:
            items = json.loads(text)
        except ValueError:
            return text
        return items
    if text[:1] in "\"'":
        try:
            return " ".join(shlex.split(text))
        except ValueError:
            return text
    return text


def form_values(spec: DeploymentSpec) -> dict:
    """Return a spec as initial values of SpecForm."""
    values = {name: getattr(spec, name) for name in SpecForm.base_fields if name not in GATHERED}
    values["devices"] = [] if spec.devices == "auto" else [str(item) for item in spec.devices]
    values["extra_args"] = "\n".join(argument_line(flag, value) for flag, value in spec.extra_args.items())
    values["env"] = "\n".join(f"{name}={value}" for name, value in spec.env.items())
    values["secrets"] = "\n".join(f"{name}={value}" for name, value in spec.secrets.items())
    return values


def argument_line(flag: str, value) -> str:
    if value is True:
        return flag
    return f"{flag} {json.dumps(list(value)) if isinstance(value, tuple) else value}"
