"""What the host itself says against a plan, and what its reader should know about the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deployments.planning.plan import HostRef, Note
from deployments.planning.refusals import Refusal, RefusalCode
from hosts.facts.model import CPU_DEVICE, HostFacts

if TYPE_CHECKING:
    from deployments.planning.host_choices import ChosenVllm
    from deployments.planning.spec import DeploymentSpec

# A plan is made from facts at most this old.
MAX_FACTS_AGE_S = 300


def judge_host(*, spec: DeploymentSpec, host: HostRef, facts: HostFacts, facts_age_s: int) -> list[Refusal]:
    reasons = []
    if spec.host != host.name:
        reasons.append(
            Refusal(
                code=RefusalCode.WRONG_HOST,
                message=f"The deployment is for {spec.host}, not for {host.name}.",
                next_step=f"Plan it on {spec.host}, or change the deployment's host.",
            )
        )
    if facts.machine_id != host.machine_id:
        reasons.append(
            Refusal(
                code=RefusalCode.HOST_CHANGED,
                message=f"The machine that answers as {host.name} is not the one that was enrolled.",
                next_step="Find out whether the host was reinstalled or replaced; if that is meant, enrol it again.",
                numbers={"wanted": host.machine_id, "found": facts.machine_id},
            )
        )
    if facts_age_s > MAX_FACTS_AGE_S:
        reasons.append(
            Refusal(
                code=RefusalCode.FACTS_TOO_OLD,
                message=f"What is known of {host.name} is {facts_age_s} seconds old; a plan needs it to be"
                f" {MAX_FACTS_AGE_S} at most.",
                next_step="Refresh the host's facts and plan again.",
                numbers={"age_s": facts_age_s, "limit_s": MAX_FACTS_AGE_S},
            )
        )
    if facts.session.kill_user_processes is True and facts.uid != 0:
        reasons.append(
            Refusal(
                code=RefusalCode.LOGOUT_KILLS,
                message=f"{host.name} ends a user's processes when the SSH session ends (logind's"
                " KillUserProcesses=yes).",
                next_step="Have root set KillUserProcesses=no, or"
                f" KillExcludeUsers={facts.user or 'the account'}, in /etc/systemd/logind.conf.",
            )
        )
    return reasons


def note_host(*, facts: HostFacts, vllm: ChosenVllm) -> list[Note]:
    notes = [Note(code="FACTS_WARNING", message=warning, level="warning") for warning in facts.warnings]
    on_cpu = any(device.uuid == CPU_DEVICE for device in facts.devices)
    if on_cpu and not vllm.version.is_cpu_build:
        notes.append(
            Note(
                code="NOT_A_CPU_BUILD",
                message=f"The host has no GPU, and vLLM {vllm.version} does not say that it is a build for the CPU.",
                level="warning",
            )
        )
    if facts.session.remove_ipc is True and facts.session.linger is not True and facts.uid != 0:
        notes.append(
            Note(
                code="IPC_REMOVED_AT_LOGOUT",
                message="The host removes a user's shared memory when the last session ends (logind's"
                " RemoveIPC=yes);"
                f" `loginctl enable-linger {facts.user or 'USER'}` prevents it.",
                level="warning",
            )
        )
    return notes
