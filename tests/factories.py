"""Rows for tests, as the application would have written them; what a test is not about is made up."""

import itertools
import json
from datetime import UTC, datetime, timedelta

from accounts.actors import Actor
from accounts.models import Environment
from audit.canonical import canonical, digest
from deployments.log_store import append_log
from deployments.models import (
    Deployment,
    Instance,
    Launch,
    LogStream,
    Plan,
    PortReservation,
    Rank,
    Revision,
    Run,
    RunStep,
)
from deployments.planning.spec import DeploymentSpec
from deployments.planning.spec_parse import parse_spec
from deployments.services.revisions import create_deployment
from hosts.models import Credential, Device, Host, HostFacts, HostWatch

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
GIB = 2**30
H200_BYTES = 150_754_820_096  # memory.total of an H200, recorded with nvidia-smi
BY = Actor(label="ada")
numbers = itertools.count(1)


def make_environment(name: str = "", **values) -> Environment:
    name = name or f"Environment {next(numbers)}"
    return Environment.objects.create(name=name, slug=name.lower().replace(" ", "-"), **values)


def make_credential(environment: Environment, name: str = "") -> Credential:
    return Credential.objects.create(
        environment=environment,
        name=name or f"key-{next(numbers)}",
        kind="key",
        sealed=b"sealed",
        fingerprint="SHA256:0f3V8hZp0X5Jt0m0Vb0Rkq6W1kQZJz3mQpVYdW3nY2c",
        created_at=NOW,
    )


def make_host(
    environment: Environment, name: str = "", *, gpus: int = 1, facts: bool = True, now=NOW, **values
) -> Host:
    """An enrolled host with `gpus` H200s (0: its CPU is the one device)."""
    number = next(numbers)
    host = Host.objects.create(
        environment=environment,
        name=name or f"gpu-{number}",
        credential=values.pop("credential", None) or make_credential(environment),
        created_at=now,
        **{
            "address": f"10.0.0.{number % 250}",
            "user": "vllm",
            "model_roots": ["/models"],
            "vllm_roots": ["/opt/vllm"],
            "state": Host.State.ENROLLED,
            "host_key_kind": "ssh-ed25519",
            "host_key": "AAAAC3NzaC1lZDI1NTE5AAAAIA",
            "host_key_fingerprint": "SHA256:7kTzFf1Rk5oXv5mQyQmJr8b5rYt2gkq3m1lq0m8G5bA",
            "machine_id": f"{number:032x}",
            "boot_id": f"00000000-0000-4000-8000-{number:012x}",
            "last_seen_at": now,
            **values,
        },
    )
    for index in range(gpus):
        make_device(host, index=index, now=now)
    if gpus == 0:
        make_device(host, uuid="cpu", kind="cpu", index=None, name="AMD EPYC 9354", memory_total=256 * GIB, now=now)
    if facts and host.enrolled:
        HostFacts.objects.create(host=host, taken_at=now, body=facts_body(host))
    return host


def make_device(host: Host, *, index: int | None = 0, now=NOW, used: int | None = 2 * GIB, **values) -> Device:
    total = values.get("memory_total", H200_BYTES)
    use = None
    if used is not None:
        use = {
            "total": total,
            "used": used,
            "free": total - used,
            "utilization": 37,
            "temperature_c": 54,
            "power_w": 310.5,
        }
    return Device.objects.create(
        host=host,
        index=index,
        use=use,
        use_at=now if used is not None else None,
        **{
            "uuid": f"GPU-{host.pk:08x}-0000-4000-8000-{index or 0:012x}",
            "kind": "gpu",
            "name": "NVIDIA H200",
            "memory_total": total,
            **values,
        },
    )


def facts_body(host: Host, **values) -> dict:
    """The body of the agent's `facts` (docs/agent-protocol.md) for a host made here."""
    devices = [
        {
            "uuid": d.uuid,
            "index": d.index,
            "name": d.name,
            "memory_total": d.memory_total,
            "memory_used": 2 * GIB,
            "memory_reserved": 600 * 2**20,
            "mig": False,
            "power_limit_w": 700.0,
            "compute_capability": "9.0",
        }
        for d in host.devices.filter(kind="gpu")
    ]
    gpus = {"source": "nvml", "driver": "580.95.05", "cuda": "13.0", "devices": devices}
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
        "vocab_size": 151936,
        "intermediate_size": 4864,
    }
    return {
        "machine_id": host.machine_id,
        "boot_id": host.boot_id,
        "hostname": host.name,
        "kernel": "6.1.0-28-amd64",
        "os": "Debian GNU/Linux 12 (bookworm)",
        "clock": "2026-03-01T12:00:00Z",
        "utc_offset_s": 3600,
        "uid": 1001,
        "user": "vllm",
        "python": "3.11.2",
        "cpu": {"count": 64, "model": "AMD EPYC 9354 32-Core Processor"},
        "memory": {"total": 256 * GIB, "available": 201 * GIB},
        "disks": [{"path": "/models", "total": 7000 * GIB, "free": 3100 * GIB, "filesystem": "ext4"}],
        "gpus": gpus if devices else {"source": "none", "reason": "libnvidia-ml.so.1 is not on this host."},
        "vllm": [
            {
                "python": "/opt/vllm/0.25.1/bin/python",
                "executable": "/opt/vllm/0.25.1/bin/vllm",
                "version": "0.25.1",
                "kind": "venv",
                "torch": "2.9.0",
            }
        ],
        "models": [
            {
                "path": "/models/qwen2.5-0.5b-instruct",
                "config": config,
                "config_error": None,
                "weight_bytes": 988_097_824,
                "weight_files": 1,
                "dtype_bytes": 2,
            }
        ],
        "session": {"kill_user_processes": False, "linger": True, "remove_ipc": False},
        "shm": {"total": 128 * GIB, "free": 127 * GIB},
        **values,
    }


def make_unheard(host: Host, *, since=NOW) -> HostWatch:
    return HostWatch.objects.create(
        host=host,
        reachable=False,
        since=since,
        problem={
            "code": "HOST_UNREACHABLE",
            "message": f"{host.address} did not answer (no route).",
            "next_step": "Check that the machine is on and that the network lets this server reach it.",
            "numbers": {},
        },
    )


def make_spec(host: Host, name: str = "", **values) -> DeploymentSpec:
    spec = parse_spec(
        {
            "name": name or f"chat-{next(numbers)}",
            "host": host.name,
            "model": "/models/qwen2.5-0.5b-instruct",
            "served_model_name": "qwen-chat",
            "env": {"NCCL_DEBUG": "INFO"},
            **values,
        }
    )
    assert isinstance(spec, DeploymentSpec), spec
    return spec


def make_deployment(host: Host, name: str = "", *, now=NOW, **values) -> Deployment:
    """A deployment with its first revision, in the host's environment."""
    spec = make_spec(host, name, **values)
    return create_deployment(environment=host.environment, spec=spec, by=BY, now=now).deployment


def make_plan(deployment: Deployment, host: Host, *, kind: str = "start", now=NOW, launches: int = 1, **values) -> Plan:
    """A plan row with the shape of a planned one; its launches are PLANNED rows."""
    revision: Revision = deployment.revisions.first()
    plan = Plan(
        environment=deployment.environment,
        deployment=deployment,
        revision=revision,
        host=host,
        kind=kind,
        preconditions=[{"code": "machine_id", "subject": host.name, "wanted": host.machine_id, "launch_id": None}],
        display={"notes": [], "memory": []},
        author="ada",
        created_at=now,
        expires_at=values.pop("expires_at", now + timedelta(hours=1)),
        **values,
    )
    plan.intent, plan.digest = b"", ""
    plan.save()
    rows = [
        make_launch(deployment, host, plan=plan, slot=slot, now=now)
        for slot in range(launches if kind == "start" else 0)
    ]
    body = canonical(
        {
            "kind": kind,
            "launches": [launch_intent(row) for row in rows],
            "stops": [],
            "order": {"mode": "pinned", "side_by_side": 1, "leader": None, "after": {}},
        },
        form=1,
    )
    plan.intent, plan.digest = body, digest(body)
    plan.save(update_fields=["intent", "digest"])
    return plan


def launch_intent(launch: Launch) -> dict:
    devices = [rank.device.uuid for rank in launch.ranks.select_related("device")]
    return {
        "launch_id": str(launch.pk),
        "instance": {"name": launch.instance.name, "slot": launch.instance.slot},
        "slot_key": f"{launch.deployment_id}-{launch.instance.slot}",
        "devices": devices,
        "address": launch.address,
        "port": launch.port,
        "argv": launch.argv,
        "env": {"NCCL_DEBUG": "INFO"},
        "secrets": {"HF_TOKEN": "hub token"},
        "reserved_bytes": dict.fromkeys(devices, 40 * GIB),
        "served_name": launch.served_name,
        "task": "generate",
        "model_path": "/models/qwen2.5-0.5b-instruct",
        "executable": "/opt/vllm/0.25.1/bin/vllm",
        "vllm_version": "0.25.1",
        "expected": {"max_model_len": None, "kv_tokens": 377_856},
    }


def make_launch(
    deployment: Deployment, host: Host, *, plan: Plan | None = None, slot: int = 0, now=NOW, **values
) -> Launch:
    """A launch in the given state (`state=`), on the host's device number `slot`."""
    plan = plan or make_plan(deployment, host, launches=0, state=Plan.State.TAKEN, now=now)
    instance, _created = Instance.objects.get_or_create(
        deployment=deployment, slot=slot, defaults={"name": f"{deployment.name}-{slot}"}
    )
    port = 8000 + slot
    argv = [
        "/opt/vllm/0.25.1/bin/vllm",
        "serve",
        "/models/qwen2.5-0.5b-instruct",
        "--served-model-name",
        "qwen-chat",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--kv-cache-memory-bytes",
        str(30 * GIB),
    ]
    started = {"launched_at": now} if values.get("state", "planned") != "planned" else {}
    launch = Launch.objects.create(
        environment=deployment.environment,
        deployment=deployment,
        instance=instance,
        revision=plan.revision,
        plan=plan,
        host=host,
        address="127.0.0.1",
        port=port,
        served_name="qwen-chat",
        argv=argv,
        created_at=now,
        **{**started, **values},
    )
    LogStream.objects.create(launch=launch)
    if launch.state not in ("failed", "stopped"):
        # A second live launch on the port is for the port's own tests; here the next free one will do.
        taken = set(PortReservation.objects.filter(host=host, until__isnull=True).values_list("port", flat=True))
        port = next(number for number in range(port, port + 1000) if number not in taken)
        PortReservation.objects.create(host=host, port=port, launch=launch, since=now)
    devices = list(host.devices.all())
    Rank.objects.create(launch=launch, host=host, device=devices[slot % len(devices)], address="127.0.0.1")
    return launch


def ready_values(device: Device, *, now=NOW, held: int = 38 * GIB, pid: int = 4711) -> dict:
    """Columns of a launch that is READY, for make_launch."""
    return {
        "state": "ready",
        "phase": "listening",
        "progress": {
            "phase": "listening",
            "percent": 100,
            "kv_tokens": 377_856,
            "model_loading_gib": 0.93,
            "kv_available_gib": 30.0,
            "vllm_version": "0.25.1",
            "init_engine_s": 11.2,
            "seen": [
                {"phase": phase, "label": phase, "at": (now + timedelta(seconds=seconds)).isoformat()}
                for phase, seconds in (
                    ("process", 9),
                    ("config", 11),
                    ("loading", 25),
                    ("kv_cache", 44),
                    ("listening", 57),
                )
            ],
        },
        "verdict": {
            "code": "READY",
            "sentence": "A token was generated by the model that was asked for.",
            "next_step": "",
            "numbers": {"ms": 41},
            "at": now.isoformat(),
            "probe": {"answer": {"ok": True, "text": "Hello", "tokens": 1, "ms": 41}},
        },
        "ready_at": now + timedelta(seconds=58),
        "observed_at": now,
        "pid": pid,
        "sid": pid,
        "measured": {device.uuid: held},
        "processes": [
            {
                "pid": pid,
                "start_time": 4000 + pid,
                "proof": "marker",
                "ppid": 1,
                "role": "api_server",
                "title": "vllm serve",
                "rss": 2 * GIB,
                "device_memory": {},
            },
            {
                "pid": pid + 90,
                "start_time": 4090 + pid,
                "proof": "marker",
                "ppid": pid,
                "role": "engine_core",
                "title": "VLLM::EngineCore",
                "rss": 3 * GIB,
                "device_memory": {device.uuid: held},
            },
        ],
    }


def failed_values(*, now=NOW) -> dict:
    return {
        "state": "failed",
        "phase": "profiled",
        "progress": {"phase": "profiled", "percent": 76},
        "ended_at": now,
        "exit_code": 1,
        "cause": {
            "code": "NO_MEMORY_FOR_KV_CACHE",
            "sentence": "No memory was left for the KV cache.",
            "next_step": "Lower the context length, or give the instance more memory.",
            "evidence": "ValueError: No available memory for the cache blocks.",
            "line": 88,
        },
    }


def orphaned_values(device: Device, *, now=NOW, held: int = 38 * GIB) -> dict:
    values = ready_values(device, now=now, held=held)
    return values | {"state": "orphaned", "processes": values["processes"][1:], "observed_at": now}


def make_run(plan: Plan, *, state: str = "running", now=NOW, **values) -> Run:
    run = Run.objects.create(
        environment=plan.environment,
        deployment=plan.deployment,
        plan=plan,
        state=state,
        requested_by="ada",
        requested_at=now,
        started_at=now,
        attempt=1,
        **values,
    )
    Plan.objects.filter(pk=plan.pk).update(state=Plan.State.TAKEN)
    for position, launch in enumerate(plan.launches.all(), start=1):
        RunStep.objects.create(
            run=run,
            position=position,
            name="launch",
            subject=launch.instance.name,
            state="done",
            started_at=now,
            ended_at=now + timedelta(seconds=2),
            detail={"launch_id": str(launch.pk)},
        )
    return run


def write_log(launch: Launch, lines: list[str], *, now=NOW) -> None:
    text = "".join(f"{line}\n" for line in lines)
    stream = LogStream.objects.get(launch=launch)
    size = len(text.encode())
    append_log(
        launch_id=launch.pk,
        offset=stream.next_offset,
        text=text,
        next_offset=stream.next_offset + size,
        now=now,
    )


def intent_of(plan: Plan) -> dict:
    return json.loads(bytes(plan.intent))
