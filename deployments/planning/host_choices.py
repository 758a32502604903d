"""What of the host a plan uses.

The vLLM installation and the model directory, both below the roots an administrator set.
"""

from __future__ import annotations

import difflib
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deployments.planning import model_memory as memory
from deployments.planning.placement import ModelFigures
from deployments.planning.plan import HostRef, Note
from deployments.planning.refusals import Refusal, RefusalCode
from deployments.planning.spec import AUTO, DeploymentSpec
from hosts.facts.versions import VllmVersion, parse_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hosts.facts.model import HostFacts, ModelDirectory, VllmInstallation


@dataclass(frozen=True, kw_only=True)
class ChosenVllm:
    installation: VllmInstallation
    version: VllmVersion


def is_below(*, path: str, roots: Iterable[str]) -> bool:
    """Tell whether the path, with its ".." taken out, lies in a root. Links are resolved by the agent."""
    plain = posixpath.normpath(path)
    if not plain.startswith("/"):
        return False
    for root in roots:
        base = posixpath.normpath(root)
        if base.startswith("/") and (plain == base or plain.startswith(base.rstrip("/") + "/")):
            return True
    return False


def choose_vllm(*, spec: DeploymentSpec, host: HostRef, facts: HostFacts) -> ChosenVllm | Refusal:
    """Return the installation the spec names, or for "auto" the newest released one below the roots."""
    if spec.vllm != AUTO and not is_below(path=spec.vllm, roots=host.vllm_roots):
        return _outside(what="vLLM", path=spec.vllm, roots=host.vllm_roots)
    if not facts.vllm:
        return Refusal(
            code=RefusalCode.NO_VLLM,
            message=f"No vLLM was found on {host.name}.",
            next_step="Install vLLM in a virtual environment below one of the host's vLLM roots and refresh its facts.",
            numbers={"roots": list(host.vllm_roots)},
        )
    named = [item for item in facts.vllm if spec.vllm == AUTO or spec.vllm in _names(item)]
    if not named:
        return _not_found(spec=spec, facts=facts)
    allowed = [item for item in named if is_below(path=item.executable or item.python, roots=host.vllm_roots)]
    if not allowed:
        return _outside(what="vLLM", path=named[0].executable or named[0].python, roots=host.vllm_roots)
    known = [
        ChosenVllm(installation=item, version=version)
        for item in allowed
        if item.version is not None and (version := parse_version(item.version)) is not None
    ]
    if not known:
        return Refusal(
            code=RefusalCode.VLLM_VERSION_UNKNOWN,
            message=f"The version of the vLLM at {allowed[0].executable or allowed[0].python} is not known.",
            next_step="Refresh the host's facts; if it stays so, the installation is damaged: install it again.",
            numbers={"found": allowed[0].version},
        )
    # Released versions before development builds, then the newest; the path settles a tie so that the choice
    # is always the same.
    return max(known, key=lambda item: (item.version.is_final, item.version, item.installation.executable or ""))


def choose_model(
    *, spec: DeploymentSpec, host: HostRef, facts: HostFacts
) -> tuple[ModelDirectory | None, list[Refusal]]:
    """Return the model directory of the host's facts, with every reason why it cannot be used."""
    if not is_below(path=spec.model, roots=host.model_roots):
        return None, [_outside(what="model", path=spec.model, roots=host.model_roots)]
    wanted = posixpath.normpath(spec.model)
    found = next((item for item in facts.models if posixpath.normpath(item.path) == wanted), None)
    if found is None:
        near = difflib.get_close_matches(wanted, [item.path for item in facts.models], n=3)
        hint = f" Near it: {', '.join(near)}." if near else ""
        return None, [
            Refusal(
                code=RefusalCode.MODEL_MISSING,
                message=f"There is no model at {wanted} on {host.name}.",
                next_step=f"Copy the model there and refresh the host's facts, or choose one that is there.{hint}",
                numbers={"near": near},
            )
        ]
    return found, _judge_model(spec=spec, model=found)


def read_figures(*, spec: DeploymentSpec, model: ModelDirectory | None) -> tuple[ModelFigures, list[Note]]:
    """Work out what the model needs, and say what could not be known."""
    config = model.config if model and model.config is not None else {}
    kv_dtype = spec.extra_args.get("--kv-cache-dtype", "auto")
    shape = memory.kv_shape(
        config=config, dtype=spec.dtype, kv_cache_dtype=str(kv_dtype),
        tensor_parallel=spec.tensor_parallel, pipeline_parallel=spec.pipeline_parallel,
    )  # fmt: skip
    notes: list[Note] = []
    reason = shape.reason if isinstance(shape, memory.Unknown) else None
    if reason is not None and model is not None:
        notes.append(
            Note(
                code="KV_CACHE_UNKNOWN",
                message=f"How many tokens the KV cache will hold is not known: {reason}.",
                level="warning",
            )
        )
    weights = model.weight_bytes if model else None
    if not weights and _is_dummy(spec):
        estimate = memory.estimate_weight_bytes(config)
        weights = estimate if isinstance(estimate, int) else None
        notes.append(
            Note(
                code="DUMMY_WEIGHTS",
                message="It starts with random weights (--load-format dummy): for tests only.",
                level="warning",
            )
        )
    known = None if isinstance(shape, memory.Unknown) else shape
    return ModelFigures(weights=weights, shape=known, shape_reason=reason, config=config), notes


def _judge_model(*, spec: DeploymentSpec, model: ModelDirectory) -> list[Refusal]:
    if model.unreadable is not None:
        return [
            Refusal(
                code=RefusalCode.MODEL_UNREADABLE,
                message=f"The model at {model.path} cannot be read by the SSH user: {model.unreadable[:200]}.",
                next_step="Let that user read every file there (chmod -R a+rX), or copy the model again; then"
                " refresh the host's facts.",
            )
        ]
    if model.config is None:
        return [
            Refusal(
                code=RefusalCode.MODEL_CONFIG_UNREADABLE,
                message=f"The config.json of {model.path} cannot be read:"
                f" {(model.config_error or 'no reason given')[:200].rstrip('.')}.",
                next_step="Copy the model's config.json again and refresh the host's facts.",
            )
        ]
    refusals = []
    if not model.weight_bytes and not _is_dummy(spec):
        refusals.append(
            Refusal(
                code=RefusalCode.MODEL_WITHOUT_WEIGHTS,
                message=f"{model.path} has a config.json but no weight files.",
                next_step="Copy the model's .safetensors files there and refresh the host's facts.",
                numbers={"weight_files": model.weight_files},
            )
        )
    return refusals + _judge_heads(spec=spec, model=model) + _judge_context(spec=spec, model=model)


def _judge_heads(*, spec: DeploymentSpec, model: ModelDirectory) -> list[Refusal]:
    heads = memory.attention_heads(model.config or {})
    if heads is None or heads % spec.tensor_parallel == 0:
        return []
    fitting = [str(size) for size in range(1, heads + 1) if heads % size == 0 and size <= 64]
    return [
        Refusal(
            code=RefusalCode.TP_DOES_NOT_DIVIDE_HEADS,
            message=f"The model's {heads} attention heads cannot be split over tensor parallel {spec.tensor_parallel}.",
            next_step=f"Set tensor_parallel to one of {', '.join(fitting)}.",
            numbers={"heads": heads, "tensor_parallel": spec.tensor_parallel},
        )
    ]


def _judge_context(*, spec: DeploymentSpec, model: ModelDirectory) -> list[Refusal]:
    limit = memory.context_limit(model.config or {})
    stretched = spec.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1" or "--hf-overrides" in spec.extra_args
    if limit is None or spec.max_model_len is None or spec.max_model_len <= limit or stretched:
        return []
    return [
        Refusal(
            code=RefusalCode.CONTEXT_TOO_LONG,
            message=f"The context of {spec.max_model_len:,} tokens is longer than the model's own limit of {limit:,}.",
            next_step=f"Set max_model_len to {limit:,} or less, or leave it empty.",
            numbers={"wanted": spec.max_model_len, "limit": limit},
        )
    ]


def _is_dummy(spec: DeploymentSpec) -> bool:
    return spec.extra_args.get("--load-format") == "dummy"


def _names(item: VllmInstallation) -> set[str]:
    """Return the paths by which a spec may name an installation.

    Its command, its Python, its virtual environment.
    """
    names = {path for path in (item.executable, item.python) if path}
    names |= {
        posixpath.dirname(posixpath.dirname(path))
        for path in list(names)
        if posixpath.basename(posixpath.dirname(path)) == "bin"
    }
    return {posixpath.normpath(name) for name in names}


def _not_found(*, spec: DeploymentSpec, facts: HostFacts) -> Refusal:
    have: Sequence[str] = [
        f"{item.executable or item.python} ({item.version or 'version unknown'})" for item in facts.vllm[:8]
    ]
    return Refusal(
        code=RefusalCode.VLLM_NOT_FOUND,
        message=f"There is no vLLM at {spec.vllm} on the host.",
        next_step=f"Choose one that is there ({', '.join(have)}) or set vllm to auto.",
        numbers={"wanted": spec.vllm},
    )


def _outside(*, what: str, path: str, roots: Sequence[str]) -> Refusal:
    below = ", ".join(roots) if roots else "none is set"
    return Refusal(
        code=RefusalCode.PATH_OUTSIDE_ROOTS,
        message=f"{path} lies outside the {what} directories allowed on this host ({below}).",
        next_step=f"Choose a path below them, or have an administrator add a {what} root to the host.",
        numbers={"path": path, "roots": list(roots)},
    )
