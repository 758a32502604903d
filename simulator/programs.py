"""What a simulated host can run: vLLM (the stand-in) and a few plain programs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.vllm.arguments import find_serve
from simulator.vllm.instance import Instance, Surroundings
from simulator.vllm.startup import Startup
from simulator.vllm.versions import choose_template

if TYPE_CHECKING:
    from hosts.agent.system import StartRequest
    from simulator.layout import Layout
    from simulator.machine import SimulatedProcess
    from simulator.spec import HostSpec, InstallationSpec

_background: set[asyncio.Task[None]] = set()


def start_program(
    *, spec: HostSpec, layout: Layout, around: Surroundings, request: StartRequest, leader: SimulatedProcess
) -> Instance | None:
    """Let `leader` live. In the event loop. The Instance where it is vLLM, None for other programs."""
    argv = list(request.argv)
    index = find_serve(argv)
    installation = _find_installation(spec, layout, argv) if index is not None else None
    if index is None or installation is None:
        task = asyncio.get_running_loop().create_task(_run_plain(around, argv, Path(request.log_path), leader))
        _background.add(task)
        task.add_done_callback(_background.discard)
        return None
    instance = Instance(
        around=around,
        api=leader,
        words=argv[index:],
        env=dict(request.env),
        log_path=Path(request.log_path),
        version=installation.version,
        python=str(layout.executable(installation).parent / "python"),
        template=choose_template(installation.version, has_gpu=bool(around.machine.gpus)),
    )
    instance.begin(Startup(instance).run)
    return instance


def _find_installation(spec: HostSpec, layout: Layout, argv: list[str]) -> InstallationSpec | None:
    for installation in spec.installations:
        executable = layout.executable(installation)
        if argv[0] in (str(executable), str(executable.parent / "python")):
            return installation
    return None


async def _run_plain(around: Surroundings, argv: list[str], log_path: Path, leader: SimulatedProcess) -> None:
    """`sleep N` sleeps, `true` and `false` end at once; anything else cannot run here: exit 127."""
    name = Path(argv[0]).name
    if name == "sleep" and len(argv) == 2:
        await asyncio.sleep(float(argv[1]))
        around.machine.finish(leader, exit_code=0)
        return
    codes = {"true": 0, "false": 1}
    if name not in codes:
        with log_path.open("a", encoding="utf-8") as log:
            log.write(f"{name}: a simulated host runs vLLM only\n")
    around.machine.finish(leader, exit_code=codes.get(name, 127))
