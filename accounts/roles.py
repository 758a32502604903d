"""The roles that ship ready. Administrators may make more; these are only put there once, by a migration step."""

VIEW = [
    "accounts.view_environment",
    "hosts.view_host",
    "deployments.view_deployment",
    "deployments.read_log",
]
OPERATE = [
    *VIEW,
    "hosts.refresh_host",
    "hosts.sweep_host",
    "deployments.add_deployment",
    "deployments.change_deployment",
    "deployments.start_deployment",
    "deployments.stop_deployment",
    "deployments.see_environment_values",
]
ADMINISTER = [
    *OPERATE,
    "accounts.change_environment",
    "accounts.add_environment",
    "audit.view_entry",
    "hosts.add_host",
    "hosts.change_host",
    "hosts.delete_host",
    "hosts.view_credential",
    "hosts.add_credential",
    "hosts.delete_credential",
    "deployments.delete_deployment",
    "deployments.load_code",
    "deployments.force_cancel",
]

SHIPPED = {
    "viewer": ("Viewer", VIEW),
    "operator": ("Operator", OPERATE),
    "administrator": ("Administrator", ADMINISTER),
}
