"""What can be made to go wrong: with the next start of a vLLM, and with the way to a host."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

# Faults that fail_next() accepts; each is spent on the next start of a vLLM.
FAULTS = {
    "slow_load": "weights take ten times as long",
    "silent": "EngineCore takes its title and is never heard of again",
    "out_of_memory": "torch.OutOfMemoryError while the weights are loaded",
    "crash": "the process that holds the device dies of SIGSEGV after the weights",
    "hang": "comes up, /health answers 200, no request is ever answered",
    "port_taken": "somebody binds its port between the agent's look and vLLM's bind()",
    "rendezvous_taken": "DistNetworkError: another start took the port at which its workers meet (vLLM below 0.28)",
    "wrong_name": "serves its model under another name than was asked for",
    "killed_parent": "the API server is killed with SIGKILL as soon as it serves; EngineCore lives on",
    "deaf": "no process of it hears SIGTERM, at any stage",
    "disk_full": "[Errno 28] while what was compiled is written",
}


@dataclass
class Link:
    """The way to a host, as its SSH server plays it. Belongs to the fleet's event loop.

    `resets`: so many connections to come are reset before a word. `connects`: how many came in all. `silent_until`: in
    the loop's time; until then nothing is read or answered, and nothing is closed.
    """

    resets: int = 0
    connects: int = 0
    silent_until: float = 0.0

    def take_connection(self) -> bool:
        """Count a connection; False where it is to be reset."""
        self.connects += 1
        if self.resets <= 0:
            return True
        self.resets -= 1
        return False

    async def wait_while_silent(self) -> None:
        await asyncio.sleep(max(0.0, self.silent_until - asyncio.get_running_loop().time()))
