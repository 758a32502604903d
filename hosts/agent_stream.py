"""What waits for answers: a mailbox per request, and the iterator over a stream's events."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from hosts.agent_install import AgentRefused, Refusal
from hosts.ssh.errors import TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hosts.agent_lines import Answer
    from hosts.ssh.errors import SshError

MAILBOX_MAX = 32 * 1024 * 1024  # bytes of unread events


class Mailbox:
    """Answers to one request that nobody has taken yet.

    Bounded: a slow reader loses the stream, not the others'.
    """

    def __init__(self, request_id: str, verb: str) -> None:
        self.id = request_id
        self.verb = verb
        self.sent_at = time.monotonic()
        self._answers: deque[Answer] = deque()
        self._bytes = 0
        self._overrun = False
        self._error: SshError | None = None
        self._changed = threading.Condition()

    def put(self, answer: Answer) -> None:
        with self._changed:
            self._overrun = self._overrun or (self._bytes + answer.size > MAILBOX_MAX and not answer.is_last)
            if not self._overrun:
                self._answers.append(answer)
                self._bytes += answer.size
            self._changed.notify_all()

    def fail(self, error: SshError) -> None:
        """Let the next take after the answers that came raise `error`."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self, timeout: float | None) -> Answer | None:
        """Give the next answer, None after `timeout` seconds.

        Errors: what `fail` was told, AgentRefused on overrun.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._answers or self._error or self._overrun, _at_least_zero(timeout))
            if self._answers:
                answer = self._answers.popleft()
                self._bytes -= answer.size
                return answer
            if self._error is not None:
                raise self._error
            if self._overrun:
                raise AgentRefused.of(_overrun(self.verb))
            return None


class Stream:
    """Events of one request, in order. Iterate, then look at `result`; leave early by `cancel` or `close`."""

    def __init__(
        self,
        box: Mailbox,
        *,
        idle_timeout: float | None,
        cancel: Callable[[Mailbox], None],
        abandon: Callable[[Mailbox], None],
    ) -> None:
        self.result: dict[str, Any] | None = None
        self._box = box
        self._idle_timeout = idle_timeout
        self._cancel = cancel
        self._abandon = abandon
        self._ended = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> dict[str, Any]:
        if self._ended:
            raise StopIteration
        try:
            answer = self._box.take(self._idle_timeout)
        except BaseException:
            self.close()
            raise
        if answer is None:
            self.close()
            seconds = f"{self._idle_timeout:g}"
            raise TimedOut("NOTHING_RECEIVED", program=f"agent {self._box.verb}", seconds=seconds, address="the host")
        if answer.kind == "event":
            return answer.body
        self._end(answer)
        raise StopIteration

    def ticks(self, every: float) -> Iterator[dict[str, Any] | None]:
        """Give events as they come, and None whenever `every` seconds passed without one.

        For a reader that has to look at something else now and then. Ends and raises as iterating does.
        """
        while not self._ended:
            try:
                answer = self._box.take(every)
            except BaseException:
                self.close()
                raise
            if answer is None:
                yield None
            elif answer.kind == "event":
                yield answer.body
            else:
                self._end(answer)

    def _end(self, answer: Answer) -> None:
        self._ended = True
        if answer.kind == "refusal":
            raise AgentRefused.of(read_refusal(answer.body))
        self.result = answer.body

    def cancel(self) -> None:
        """Ask the agent to end it.

        Going on iterating gives what was under way, then `result` is {"cancelled": true}.
        """
        if not self._ended:
            self._cancel(self._box)

    def close(self) -> None:
        """Cancel and forget it; may be called twice, and after the end."""
        if not self._ended:
            self._ended = True
            self._abandon(self._box)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def read_refusal(body: dict[str, Any]) -> Refusal:
    """Give the refusal a host sent; what is missing or no text is replaced, never raised about."""
    numbers = body.get("numbers")
    return Refusal(
        code=str(body.get("code") or "AGENT_ERROR")[:100],
        message=str(body.get("message") or "The agent refused without a reason.")[:2000],
        next_step=str(body.get("next_step") or "Look at the log of this run.")[:2000],
        numbers=numbers if isinstance(numbers, dict) else {},
    )


def _at_least_zero(timeout: float | None) -> float | None:
    return None if timeout is None else max(0.0, timeout)


def _overrun(verb: str) -> Refusal:
    return Refusal(
        "STREAM_OVERRUN",
        f"Events of `{verb}` came faster than they were read, and {MAILBOX_MAX} bytes waited.",
        "Ask again from the last offset that was read.",
        {"limit": MAILBOX_MAX},
    )
