"""`python manage.py fleet VERB`: the operator's command. Acts as local:<user>, audited as such.

Exit codes: 0 done · 1 carried out without success · 2 refused, nothing was done · 3 not permitted · 4 --wait ran out,
the work goes on · 5 not found.
"""

import json
import sys

from django.core.exceptions import PermissionDenied
from django.core.management.base import BaseCommand, CommandError

from accounts.local import act_locally
from accounts.models import Environment
from deployments.commands.outcome import NOT_PERMITTED, Outcome, problem_lines
from deployments.commands.verbs import VERBS


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser):
        verbs = parser.add_subparsers(dest="verb", required=True)
        shared = {name: verbs.add_parser(name) for name in VERBS}
        for sub in shared.values():
            sub.add_argument("--json", action="store_true", help="print one JSON object")
            sub.add_argument("--environment", default="default")
            sub.add_argument("--timeout", type=float, default=600, help="seconds that --wait and enrol wait")
        for name in ("apply", "stop", "restart", "sweep", "cancel"):
            shared[name].add_argument("--wait", action="store_true", help="until the run has ended")
        for name in ("plan", "apply"):
            shared[name].add_argument("file", help="the deployment as YAML")
        for name in ("plan", "apply", "restart"):
            shared[name].add_argument("--allow-code-loading", action="store_true")
        for name in ("stop", "restart", "sweep", "cancel"):
            shared[name].add_argument("deployment")
        shared["cancel"].add_argument("--force", action="store_true", help="after a cancel: kill, and wait for nothing")
        shared["restart"].add_argument("--at-a-time", type=int, default=1, help="how many are replaced side by side")
        shared["refresh"].add_argument("host")
        shared["status"].add_argument("deployment", nargs="?")
        shared["logs"].add_argument("instance")
        shared["logs"].add_argument("--lines", type=int, default=200)
        self.add_enrol_arguments(shared["enrol"])

    def add_enrol_arguments(self, parser):
        parser.add_argument("name")
        parser.add_argument("--address", required=True)
        parser.add_argument("--port", type=int, default=22)
        parser.add_argument("--user", required=True)
        parser.add_argument("--key", help="file of the private key")
        parser.add_argument("--credential", help="name of a credential that is already there")
        parser.add_argument("--model-root", action="append", default=[], help="directory of models; may be repeated")
        parser.add_argument("--vllm-root", action="append", default=[], help="directory of vLLM; may be repeated")
        parser.add_argument("--state-root", help="the agent's directory on the host")
        parser.add_argument("--fingerprint", help="confirm the host key if it is this one")
        parser.add_argument("--trust", action="store_true", help="confirm whatever host key is shown: only in a lab")

    def handle(self, *, verb, **options):
        if verb == "enrol" and not (options["key"] or options["credential"]):
            raise CommandError("Give --key FILE or --credential NAME.")
        if not Environment.objects.filter(slug=options["environment"]).exists():
            raise CommandError(f"There is no environment {options['environment']}.")
        outcome = self.run_verb(verb, options)
        if options["json"]:
            self.stdout.write(json.dumps(outcome.body, indent=2, default=str))
        else:
            (self.stdout if outcome.code == 0 else self.stderr).write("\n".join(outcome.lines))
        sys.exit(outcome.code)

    def run_verb(self, verb: str, options) -> Outcome:
        perm, function = VERBS[verb]
        try:
            actor = act_locally(perm)
            if options.get("allow_code_loading"):
                act_locally("deployments.load_code")
            return function(options, actor)
        except PermissionDenied as denied:
            problem = {
                "code": "NOT_PERMITTED",
                "message": f"Local commands have a role without {denied}.",
                "next_step": "An administrator sets FLEETADMIN_LOCAL_ROLE.",
            }
            return Outcome(NOT_PERMITTED, {"refused": [problem]}, problem_lines(problem))
