from django.urls import path

from deployments.views import deployments, editor, launches, plans, runs

app_name = "deployments"
urlpatterns = [
    path("", deployments.deployment_list, name="list"),
    path("new/", editor.deployment_new, name="new"),
    path("<int:pk>/", deployments.deployment_detail, name="detail"),
    path("<int:pk>/revise/", editor.deployment_revise, name="revise"),
    path("<int:pk>/archive/", deployments.deployment_archive, name="archive"),
    path("<int:pk>/restore/", deployments.deployment_restore, name="restore"),
    path("<int:pk>/plan/", plans.plan_start, name="plan"),
    path("<int:pk>/stop/", plans.plan_stop, name="stop"),
    path("<int:pk>/restart/", plans.plan_restart, name="restart"),
    path("<int:pk>/sweep/", plans.plan_sweep, name="sweep"),
    path("plans/<int:pk>/", plans.plan_detail, name="plan-detail"),
    path("plans/<int:pk>/run/", plans.plan_run, name="plan-run"),
    path("plans/<int:pk>/drop/", plans.plan_drop, name="plan-drop"),
    path("runs/<int:pk>/", runs.run_detail, name="run-detail"),
    path("runs/<int:pk>/cancel/", runs.run_cancel, name="run-cancel"),
    path("runs/<int:pk>/force/", runs.run_force, name="run-force"),
    path("instances/<uuid:pk>/", launches.instance, name="instance"),
    path("instances/<uuid:pk>/log/", launches.instance_log, name="instance-log"),
    path("instances/<uuid:pk>/lines/", launches.instance_lines, name="instance-lines"),
]
