"""Several launches at a time, each in a thread of its own; which may begin is decided here, in one place.

    waiting ──(gates open, room)──> starting ──(gate passed)──> going on ──> ended
                                        └──────────────(ended)──────────────┘

A launch that passed its gate, or ended, opens the way for those behind it and leaves its room to the next.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deployments.execution.outcomes import Cancelled, Outcome, PreconditionFailed

Work = Callable[[str, Callable[[], None]], Outcome]
# Each holds one stream of the agent's channel and now and then a request beside it; the channel carries 64.
MOST_RUNNING = 32
# What one launch meets that the others would meet too, or that a person asked for.
ENDS = (PreconditionFailed, Cancelled)


class Interrupted(Exception):
    """Another launch of the run met an error that ends the run: leave where you are."""


@dataclass(frozen=True)
class News:
    """What a thread tells: its gate is passed (no outcome, no error), or it ended."""

    launch_id: str
    outcome: Outcome | None = None
    error: BaseException | None = None

    @property
    def ended(self) -> bool:
        return self.outcome is not None or self.error is not None


class SideBySide:
    """Runs `work(launch_id, pass_gate)` for every launch, in its order.

    `after`: for a launch, those that must have passed their gate or ended. `room`: how many may be before their gate at
    a time. `ends`: outcomes after which nothing more begins. `cancelled` is asked every `tick` seconds; then nothing
    more begins. `leave` is called at the end of each thread.
    """

    def __init__(
        self,
        *,
        work: Work,
        after: Mapping[str, Sequence[str]],
        room: int,
        cancelled: Callable[[], bool],
        tick: float,
        leave: Callable[[], None],
        ends: tuple[type[Outcome], ...] = ENDS,
    ) -> None:
        self.work = work
        self.after = after
        self.room = room
        self.cancelled = cancelled
        self.tick = tick
        self.leave = leave
        self.ends = ends
        self.news: queue.Queue[News] = queue.Queue()
        self.passed: set[str] = set()
        self.starting: set[str] = set()
        self.running: set[str] = set()
        self.outcomes: dict[str, Outcome] = {}
        self.error: BaseException | None = None

    def run(self, launch_ids: Sequence[str]) -> dict[str, Outcome]:
        """Outcomes by launch; those never begun are missing. Raises the first error of a thread once all have ended."""
        waiting = list(launch_ids)
        while waiting or self.running:
            if self.is_over():
                waiting.clear()
            for launch_id in self.may_begin(waiting):
                waiting.remove(launch_id)
                self.begin(launch_id)
            if self.running:
                self.listen()
        if self.error is not None:
            raise self.error
        return self.outcomes

    def is_over(self) -> bool:
        """Whether nothing more may begin. Asks in any case: the question also tells that this worker is alive."""
        if self.error is None:
            try:
                if self.cancelled():
                    return True
            except Exception as error:  # noqa: BLE001 (it is raised again once the threads have ended)
                self.error = error
        return self.error is not None or any(isinstance(outcome, self.ends) for outcome in self.outcomes.values())

    def may_begin(self, waiting: Sequence[str]) -> list[str]:
        free = max(0, min(self.room - len(self.starting), MOST_RUNNING - len(self.running)))
        open_ = [launch_id for launch_id in waiting if set(self.after.get(launch_id, ())) <= self.passed]
        return open_[:free]

    def begin(self, launch_id: str) -> None:
        self.starting.add(launch_id)
        self.running.add(launch_id)
        threading.Thread(target=self.carry_out, args=(launch_id,), name=f"launch {launch_id[:8]}", daemon=True).start()

    def carry_out(self, launch_id: str) -> None:
        try:
            outcome = self.work(launch_id, lambda: self.news.put(News(launch_id)))
        except BaseException as error:  # noqa: BLE001 (it is raised again by the thread that waits)
            news = News(launch_id, error=error)
        else:
            news = News(launch_id, outcome=outcome)
        try:
            self.leave()
        finally:
            self.news.put(news)

    def listen(self) -> None:
        """Wait for one piece of news, or for the next tick."""
        try:
            news = self.news.get(timeout=self.tick)
        except queue.Empty:
            return
        self.passed.add(news.launch_id)
        self.starting.discard(news.launch_id)
        if not news.ended:
            return
        self.running.discard(news.launch_id)
        if news.outcome is not None:
            self.outcomes[news.launch_id] = news.outcome
        elif self.error is None or isinstance(self.error, Interrupted):
            self.error = news.error


class Shared:
    """A listener that several threads use: one at a time, and none goes on once the run is broken."""

    def __init__(self, listener: Any, *, is_broken: Callable[[], bool]) -> None:
        self._listener = listener
        self._is_broken = is_broken
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        told = getattr(self._listener, name)

        def tell(*args: Any, **kwargs: Any) -> Any:
            with self._alone():
                return told(*args, **kwargs)

        return tell

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            if self._is_broken():
                raise Interrupted
            yield
