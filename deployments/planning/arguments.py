"""From a spec to the exact command line and environment of one launch, and what cannot be had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deployments.planning.argument_classes import ArgumentClass, classify_argument, classify_variable
from deployments.planning.flags import REPLACEMENTS, Presence, base_flag, check_flag, flag_history
from deployments.planning.plan import Note
from deployments.planning.refusals import Refusal, RefusalCode
from deployments.planning.sizes import GIB
from hosts.facts.model import CPU_DEVICE, VllmInstallation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deployments.planning.spec import DeploymentSpec
    from hosts.facts.versions import VllmVersion

KV_BYTES_FLAG = "--kv-cache-memory-bytes"


@dataclass(frozen=True, kw_only=True)
class LaunchShape:
    """What the planner decided for one launch.

    `utilization` is text ("0.3"), a share of the GPU; None on "cpu". `kv_cache_bytes` is per device and
    pinned; None lets vLLM measure what is left of the share. `cache_root`: a directory of its own for what vLLM compiles;
    None shares the account's.
    """

    devices: tuple[str, ...]
    port: int
    utilization: str | None = None
    kv_cache_bytes: int | None = None
    cache_root: str | None = None

    @property
    def is_cpu(self) -> bool:
        return self.devices == (CPU_DEVICE,)


def build_argv(
    *, spec: DeploymentSpec, installation: VllmInstallation, version: VllmVersion, launch: LaunchShape
) -> list[str]:
    """Return the argument list of `vllm serve`.

    Each flag with a value is two elements, as it is shown and approved.
    """
    # Without the console script the same command line runs as a module (vLLM's cli.main, all sampled
    # versions).
    start = (
        [installation.executable]
        if installation.executable
        else [installation.python, "-m", "vllm.entrypoints.cli.main"]
    )
    argv = [*start, "serve", spec.model, "--host", spec.address, "--port", str(launch.port)]
    argv += ["--served-model-name", spec.served_model_name]
    argv += _task_arguments(spec=spec, version=version)
    if spec.tensor_parallel > 1:
        argv += ["--tensor-parallel-size", str(spec.tensor_parallel)]
    if spec.pipeline_parallel > 1:
        argv += ["--pipeline-parallel-size", str(spec.pipeline_parallel)]
    if spec.max_model_len is not None:
        argv += ["--max-model-len", str(spec.max_model_len)]
    if spec.max_num_seqs is not None:
        argv += ["--max-num-seqs", str(spec.max_num_seqs)]
    if spec.dtype != "auto":
        argv += ["--dtype", spec.dtype]
    if launch.utilization is not None and not launch.is_cpu:
        # Always said: the default changed from 0.9 to 0.92 between 0.19.1 and 0.20.2.
        argv += ["--gpu-memory-utilization", launch.utilization]
    if launch.kv_cache_bytes is not None and can_pin_kv_cache(version):
        argv += [KV_BYTES_FLAG, str(launch.kv_cache_bytes)]
    return argv + _extra_arguments(spec)


def build_environment(*, spec: DeploymentSpec, version: VllmVersion, launch: LaunchShape) -> dict[str, str]:
    """Return the variables of the plan, sorted. Secrets are not among them; the agent adds its own marks."""
    env = {
        **spec.env,
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_DISABLE_LOG_LOGO": "1",
    }
    if launch.cache_root is not None:
        env["VLLM_CACHE_ROOT"] = launch.cache_root
    if launch.is_cpu:
        if launch.kv_cache_bytes is not None and not can_pin_kv_cache(version):
            # Whole GiB only; rounded up, because 0 would mean "choose yourself".
            env["VLLM_CPU_KVCACHE_SPACE"] = str(-(-launch.kv_cache_bytes // GIB))
    else:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(launch.devices)
    return dict(sorted(env.items()))


def can_pin_kv_cache(version: VllmVersion) -> bool:
    return check_flag(flag=KV_BYTES_FLAG, version=version) is Presence.PRESENT


def shares_compile_cache(version: VllmVersion) -> bool:
    """Whether several starts may write one compile cache; before 0.12 they damaged it (vLLM issue 24601)."""
    return version.release[:2] >= (0, 12)


def check_arguments(
    *, spec: DeploymentSpec, version: VllmVersion | None, allow_code_loading: bool
) -> tuple[list[Refusal], list[Note]]:
    """Return every reason to refuse the extras, and what the approver should see.

    Without a version nothing is gated by it.
    """
    refusals: list[Refusal] = []
    notes: list[Note] = []
    for flag, value in spec.extra_args.items():
        found = classify_argument(flag=flag, value=value)
        if found.kind is ArgumentClass.OURS:
            refusals.append(_ours(what=flag, code=RefusalCode.ARGUMENT_OURS, reason=found.reason))
            continue
        if found.kind is ArgumentClass.CODE_LOADING:
            _judge_loading(
                refusals,
                notes,
                what=flag,
                code=RefusalCode.ARGUMENT_LOADS_CODE,
                reason=found.reason,
                allowed=allow_code_loading,
            )
        if version is not None:
            _judge_presence(refusals, notes, flag=flag, version=version)
    for name, is_secret in [*((name, False) for name in spec.env), *((name, True) for name in spec.secrets)]:
        found = classify_variable(name=name, is_secret=is_secret)
        if found.kind is ArgumentClass.OURS:
            refusals.append(_ours(what=name, code=RefusalCode.VARIABLE_OURS, reason=found.reason))
        elif found.kind is ArgumentClass.CODE_LOADING:
            _judge_loading(
                refusals,
                notes,
                what=name,
                code=RefusalCode.VARIABLE_LOADS_CODE,
                reason=found.reason,
                allowed=allow_code_loading,
            )
    return refusals, notes + _advice(spec)


def _ours(*, what: str, code: RefusalCode, reason: str) -> Refusal:
    return Refusal(
        code=code,
        message=f"{what} is set by the plan itself and cannot be given as an extra.",
        next_step=f"Remove it; {reason}.",
        numbers={"name": what},
    )


def _judge_loading(
    refusals: list[Refusal], notes: list[Note], *, what: str, code: RefusalCode, reason: str, allowed: bool
) -> None:
    if allowed:
        notes.append(Note(code=code, message=f"{what} {reason}.", level="warning"))
        return
    refusals.append(
        Refusal(
            code=code,
            message=f"{what} {reason}, which needs a permission of its own.",
            next_step="Remove it, or ask somebody with the permission for code-loading arguments in this environment.",
            numbers={"name": what},
        )
    )


def _judge_presence(refusals: list[Refusal], notes: list[Note], *, flag: str, version: VllmVersion) -> None:
    presence = check_flag(flag=flag, version=version)
    if presence is Presence.ABSENT:
        refusals.append(_absent(flag=flag, version=version))
    elif presence is Presence.UNKNOWN_FLAG:
        notes.append(
            Note(
                code="FLAG_NOT_IN_TABLE",
                message=f"{flag} is in no vLLM release from 0.6.6 to 0.33.0 that was looked at; if vLLM does"
                " not know it, the"
                " start fails after a few seconds.",
                level="warning",
            )
        )
    elif presence is Presence.UNSURE:
        notes.append(
            Note(
                code="FLAG_UNSURE",
                message=f"Whether vLLM {version} has {flag} is not known.",
                level="warning",
            )
        )


def _absent(*, flag: str, version: VllmVersion) -> Refusal:
    history = flag_history(flag)
    span = history.present_in
    where = f"{span[0]} to {span[-1]}" if len(span) > 1 else span[0] if span else "no release"
    replacement = REPLACEMENTS.get(base_flag(flag))
    # With no replacement known, the version that has it is the way out.
    step = f"Instead: {replacement}." if replacement else f"Remove it, or choose a vLLM that has it ({where})."
    return Refusal(
        code=RefusalCode.FLAG_UNKNOWN_IN_VERSION,
        message=f"vLLM {version} has no {flag}; releases {where} have it.",
        next_step=step,
        numbers={
            "flag": flag,
            "version": str(version),
            "first": span[0] if span else None,
            "last": span[-1] if span else None,
        },
    )


def _advice(spec: DeploymentSpec) -> list[Note]:
    notes = []
    if "--enable-log-requests" in spec.extra_args:
        notes.append(
            Note(
                code="PROMPTS_IN_LOG",
                message="--enable-log-requests writes every prompt to the log.",
                level="warning",
            )
        )
    if "--disable-log-stats" in spec.extra_args:
        notes.append(
            Note(
                code="NO_METRICS",
                message="--disable-log-stats takes most vLLM metrics away.",
                level="warning",
            )
        )
    if spec.env.get("CUDA_LAUNCH_BLOCKING") == "1":
        notes.append(
            Note(
                code="SLOW_DEBUG_MODE",
                message="CUDA_LAUNCH_BLOCKING=1 is for debugging; it makes every kernel wait.",
                level="warning",
            )
        )
    if spec.address not in ("127.0.0.1", "::1") and "VLLM_API_KEY" not in spec.secrets:
        notes.append(
            Note(
                code="OPEN_TO_NETWORK",
                message=f"It listens on {spec.address} without an API key: name a credential for VLLM_API_KEY.",
                level="warning",
            )
        )
    return notes


def _task_arguments(*, spec: DeploymentSpec, version: VllmVersion) -> list[str]:
    if spec.task == "generate":
        return []
    # --runner came between 0.10.0 and 0.10.2 and took over from --task, which was gone by 0.13.0.
    if check_flag(flag="--runner", version=version) is Presence.PRESENT:
        return ["--runner", "pooling"]
    return ["--task", spec.task]


def _extra_arguments(spec: DeploymentSpec) -> list[str]:
    argv: list[str] = []
    extras: Mapping[str, object] = spec.extra_args
    for flag, value in sorted(extras.items()):
        if value is True:
            argv.append(flag)
        elif isinstance(value, tuple):
            argv += [flag, *value]
        else:
            text = str(value)
            # argparse takes a value that begins with a dash for the next argument unless it is joined.
            argv += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return argv
