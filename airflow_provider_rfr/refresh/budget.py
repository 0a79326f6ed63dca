"""The request budget that all streams and tasks of an application share, and the signal that ends their round.

The driver holds the budget, and each task has an authenticated connection to it. Over this connection, a task asks for
a permit for each request if the rate is limited, and for the tokens of logins and OAuth2 grants, which the driver
obtains for all tasks. A few times a second, the task sends a heartbeat, which reports its idle threads. The answer says
how long to pause (a 429 slows down all tasks), and whether the round is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import Any, Protocol, TypeAlias

from airflow_provider_rfr.exceptions import ConfigurationError, ReadInterrupted
from airflow_provider_rfr.refresh.cluster import task_error
from airflow_provider_rfr.streams.core import ReadContext
from airflow_provider_rfr.streams.tokens import AccessToken, Credential, LatestToken, Reader, find_credential

HEARTBEAT_SECONDS = 0.2
_IDLE_SECONDS = 1.0
# Much longer than a heartbeat: on a busy machine some are late, and each suspected sleep costs a look at the ledger.
_SLEPT_SECONDS = 3.0
_TOKEN_POLL_SECONDS = 0.1
_TaskKey: TypeAlias = tuple[str, int]
"""Stream and number of a task."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A report of a task about its work.

    :ivar queued: partitions that none of its threads has begun
    :ivar idle: threads without work
    :ivar bytes: bytes of the records that it has read
    """

    stream: str
    task: int
    queued: int
    idle: int
    bytes: int = 0


class Budget(Protocol):
    """The interface by which a task uses the budget."""

    def reserve(self) -> float:
        """Take a permit for one request; return the seconds after which it is valid."""

    def paused(self) -> float:
        """Return the seconds for which no request may be sent."""

    def penalize(self, seconds: float) -> None:
        """Pause the requests of all tasks for so many seconds."""

    def heartbeat(self, heartbeat: Heartbeat) -> bool:
        """Report the task's state; return whether the round is over."""

    def is_ours(self) -> bool:
        """Tell whether no other attempt has taken the refresh over; asked after this process was suspended."""


class DriverBudget:
    """The budget in the driver, which also ends rounds early; thread-safe.

    A round ends early if a task has been idle for a second while another has partitions that it has not begun. It also
    ends early if all tasks of a stream ended a second ago: the stream can be published only after the round.

    :param requests_per_second: limit over all streams; None for no limit
    """

    def __init__(self, requests_per_second: float | None) -> None:
        self.requests_per_second = requests_per_second
        self._owners: dict[str, Callable[[], bool]] = {}
        self._lock = threading.Lock()
        self._next = 0.0
        self._blocked_until = 0.0
        self._idle_since: dict[_TaskKey, float] = {}
        self._queued: dict[_TaskKey, int] = {}
        self._running: set[_TaskKey] = set()
        self._ended: dict[str, float] = {}
        self._closed = threading.Event()

    def limit(self, requests_per_second: float) -> None:
        """Lower the limit to this rate. It holds for all streams, because those of a document share an API."""
        with self._lock:
            self.requests_per_second = min(requests_per_second, self.requests_per_second or requests_per_second)

    def add_stream(self, stream: str, is_ours: Callable[[], bool]) -> None:
        """Add a stream that is read in rounds.

        :param is_ours: tells by the stream's ledger whether this attempt still holds the refresh
        """
        self._owners[stream] = is_ours

    def is_ours(self, stream: str) -> bool:
        """Tell whether this attempt still holds the refresh of the stream."""
        return self._owners[stream]()

    def reserve(self) -> float:
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next, self._blocked_until)
            if self.requests_per_second:
                self._next = start + 1.0 / self.requests_per_second
            return start - now

    def paused(self) -> float:
        return max(0.0, self._blocked_until - time.monotonic())

    def penalize(self, seconds: float) -> None:
        with self._lock:
            self._blocked_until = max(self._blocked_until, time.monotonic() + seconds)

    def heartbeat(self, heartbeat: Heartbeat) -> bool:
        key = (heartbeat.stream, heartbeat.task)
        with self._lock:
            now = time.monotonic()
            self._queued[key] = heartbeat.queued
            if heartbeat.idle and not heartbeat.queued:
                self._idle_since.setdefault(key, now)
            else:
                self._idle_since.pop(key, None)
            # A task that has been idle for a while can get work from the others only in a new round.
            is_idle = any(now - since > _IDLE_SECONDS for since in self._idle_since.values())
            is_read = any(now - since > _IDLE_SECONDS for since in self._ended.values())
            if (is_idle and any(self._queued.values())) or (is_read and self._running):
                self._closed.set()
        return self._closed.is_set()

    def done(self, stream: str, task: int) -> None:
        """Record that the task has ended; its threads count as idle."""
        with self._lock:
            now = time.monotonic()
            self._queued[stream, task] = 0
            self._idle_since.setdefault((stream, task), now)
            self._running.discard((stream, task))
            if not any(name == stream for name, _ in self._running):
                self._ended.setdefault(stream, now)

    def open_round(self, tasks: Iterable[tuple[str, int]]) -> None:
        """Begin a round, and reset the state of the one before.

        :param tasks: stream and number of each task
        """
        with self._lock:
            self._idle_since.clear()
            self._queued.clear()
            self._ended.clear()
            self._running = set(tasks)
            self._closed.clear()
            if self.requests_per_second:
                # Give permits back: readers that the last round's end interrupted had reserved some, and sent nothing.
                self._next = min(self._next, time.monotonic() + 1.0 / self.requests_per_second)

    def close_round(self) -> None:
        """End the round for all tasks, at their next heartbeat."""
        self._closed.set()


class StreamBudget:
    """The budget for requests of one stream that the driver sends outside of rounds.

    :param is_ours: see :meth:`Budget.is_ours`
    """

    def __init__(self, budget: DriverBudget, is_ours: Callable[[], bool] = lambda: True) -> None:
        self.reserve = budget.reserve
        self.paused = budget.paused
        self.penalize = budget.penalize
        self.is_ours = is_ours

    def heartbeat(self, heartbeat: Heartbeat) -> bool:
        return False


class BudgetServer:
    """A server that gives executors access to a :class:`DriverBudget`.

    :param host: address at which executors reach the driver
    :param secret: key by which driver and executors authenticate each other
    :param bind: address on which the driver listens, if it is another one than ``host``
    """

    def __init__(self, budget: DriverBudget, host: str, secret: bytes, *, bind: str | None = None) -> None:
        self._budget = budget
        self._secret = secret
        self._closed = threading.Event()
        # The context of requests that obtain tokens, so that they keep the same rate.
        self._context = ReadContext(limiter=BudgetLimiter(StreamBudget(budget), stop := threading.Event()), stop=stop)
        # Without authkey: accept() would check it, and a peer that does not answer would block all others. Each peer
        # is checked in a thread of its own.
        self._listener = Listener((bind or host, 0), backlog=128)
        port = self._listener.address[1]
        self._address = (host, port)
        threading.Thread(target=self._accept, name="rfr-budget", daemon=True).start()

    @property
    def address(self) -> BudgetAddress:
        """Return the address of the budget for the tasks of a new round; it tells whether the rate is limited now."""
        return BudgetAddress(self._address, self._secret, self._budget.requests_per_second is not None)

    def close(self) -> None:
        """Accept no more connections, and stop requests that obtain tokens."""
        self._closed.set()
        self._context.stop.set()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                # The listener was closed; or a peer hung up before it was accepted, which must not end the service.
                if self._closed.wait(0.05):
                    return
                continue
            threading.Thread(target=self._serve, args=(connection,), name="rfr-budget-peer", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        calls: dict[str, Callable[..., Any]] = {
            name: getattr(self._budget, name) for name in ("reserve", "penalize", "is_ours")
        }
        task: _TaskKey | None = None
        try:
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            while True:
                name, *arguments = connection.recv()
                if name == "heartbeat":
                    task = arguments[0].stream, arguments[0].task
                    connection.send((self._budget.heartbeat(arguments[0]), self._budget.paused()))
                elif name == "token":
                    connection.send(self._token(*arguments))
                else:
                    connection.send(calls[name](*arguments))
        # AssertionError: before Python 3.12, multiprocessing refuses a peer's wrong challenge by an assert.
        except (EOFError, OSError, ValueError, AuthenticationError, AssertionError):
            if task is not None:
                self._budget.done(*task)
        finally:
            connection.close()

    def _token(self, key: str, refused: str | None) -> AccessToken | BaseException | None:
        """Return a credential's token, or the error of obtaining it as a value; None while it is being obtained."""
        credential = find_credential(key)
        if credential is None:
            return ConfigurationError(
                "authenticator",
                "the driver does not have it, because it built the stream differently than this task",
                "build the authenticators of the stream's class only from its config and secrets",
            )
        try:
            return credential.token_if_ready(refused, self._context)
        # Returned as a value: if it was raised here, it would end the connection, and with it the task's round.
        except Exception as error:  # noqa: BLE001 - the task raises it
            return task_error(error)


@dataclass(frozen=True, slots=True)
class BudgetAddress:
    """The address at which an executor reaches the driver's budget.

    :ivar address: host and port
    :ivar secret: key by which driver and executor authenticate each other
    :ivar limited: whether the rate is limited, so that every request needs a permit
    """

    address: Any
    secret: bytes = field(repr=False)
    limited: bool

    def connect(self, stream: str) -> _RemoteBudget:
        """Open a connection for a task of the stream.

        :raises OSError: the driver has ended
        """
        return _RemoteBudget(Client(self.address, authkey=self.secret), self.limited, stream)


class _RemoteBudget:
    """A client of the driver's budget; thread-safe. A lost connection counts as the end of the round."""

    def __init__(self, connection: Connection, limited: bool, stream: str) -> None:
        self._connection = connection
        self._limited = limited
        self._stream = stream
        self._lock = threading.Lock()
        self._blocked_until = 0.0
        self._tokens: dict[str, LatestToken] = {}

    def reserve(self) -> float:
        # Without a limit no call is needed: the last heartbeat brought the pause.
        return float(self._call("reserve")) if self._limited else self.paused()

    def paused(self) -> float:
        return max(0.0, self._blocked_until - time.monotonic())

    def penalize(self, seconds: float) -> None:
        # Set here first, so that the other threads of this process pause even if the driver's answer takes long.
        self._blocked_until = max(self._blocked_until, time.monotonic() + seconds)
        self._call("penalize", seconds)

    def heartbeat(self, heartbeat: Heartbeat) -> bool:
        try:
            over, paused = self._call("heartbeat", heartbeat)
        except (EOFError, OSError):
            return True
        # The driver sends a duration, because monotonic clocks of two machines can't be compared.
        self._blocked_until = time.monotonic() + paused
        return bool(over)

    def is_ours(self) -> bool:
        try:
            return bool(self._call("is_ours", self._stream))
        # The driver has ended, so nobody would commit what this task reads.
        except (EOFError, OSError):
            return False

    def token(self, credential: Credential, refused: str | None, context: Reader) -> AccessToken:
        """Return a token from the driver. Poll for it, so that other threads can use the connection meanwhile.

        :raises AuthenticationError: the driver can't obtain one
        :raises ReadInterrupted: the reader was stopped
        """

        def ask() -> AccessToken:
            while (answer := self._call("token", credential.key, refused)) is None:
                context.sleep(_TOKEN_POLL_SECONDS)
            if isinstance(answer, BaseException):
                raise answer
            assert isinstance(answer, AccessToken)
            return answer

        # Not the credential's own LatestToken, which may be the driver's. One thread asks, the others get its answer.
        return self._tokens.setdefault(credential.key, LatestToken()).get(refused, context, ask)

    def close(self) -> None:
        """Close the connection, which tells the driver that the task is done."""
        self._connection.close()

    def _call(self, name: str, *arguments: Any) -> Any:
        # One call at a time: answers have no request id, so only their order says to which call they belong.
        with self._lock:
            self._connection.send((name, *arguments))
            return self._connection.recv()


class SleepClock:
    """A detector of times in which this process was stopped or its machine suspended; thread-safe."""

    # Both clocks are needed: the monotonic clock runs while a process is stopped, and may stand still while the machine
    # is suspended. The wall clock runs then, but can be set back.

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = time.monotonic(), time.time()

    def slept(self) -> bool:
        """Tell whether more than three seconds passed since the last call.

        Call it a few times a second.
        """
        with self._lock:
            before, self._last = self._last, (time.monotonic(), time.time())
            return max(now - then for now, then in zip(self._last, before, strict=True)) > _SLEPT_SECONDS


class BudgetLimiter:
    """The limiter that streams call before each request.

    After a sleep, it first checks whether another attempt took the refresh over. Then further requests would be in
    vain, so it stops the readers.
    """

    def __init__(self, budget: Budget, stop: threading.Event) -> None:
        self._budget = budget
        self._stop = stop
        self._clock = SleepClock()
        self._looking = threading.Lock()

    def acquire(self) -> None:
        wait = self._budget.reserve()
        while wait > 0:
            if self._stop.wait(wait):
                raise ReadInterrupted("the round ended while a request waited for its turn")
            # A penalty that came meanwhile voids permits that were granted before it: new ones keep the rate after it.
            wait = self._budget.reserve() if self._budget.paused() > 0 else 0.0
        # Checked after the wait, right before the request: the process may have slept while it waited.
        self.look()
        if self._stop.is_set():
            raise ReadInterrupted("the round ended")

    def look(self) -> None:
        """Stop the readers if another attempt took over while this process slept; call it several times a second."""
        with self._looking:
            if self._clock.slept() and not self._budget.is_ours():
                self._stop.set()

    def penalize(self, seconds: float) -> None:
        self._budget.penalize(seconds)
