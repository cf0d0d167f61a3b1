"""What this process may act for, and until when. Pure: the clock is a parameter, nothing here waits or sends.

The rules (docs/worker-protocol.md, 3 to 9). A lease is counted from *before* the request that got it was sent: the server can
not have given it any earlier, and an answer that comes late is worth that much less. A tenth of it is the margin between looking
at the clock and acting. What lapsed is not acted for; if a later renewal still names it as held, the tenure never ended.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Iterable

from ._clock import Clock

MARGIN = 0.1
"""Share of the lease in which nothing is begun any more."""


@dataclass(frozen=True)
class Hold:
    """One call in the hands of this process."""

    call: str
    epoch: int


class Leases:
    """The lease of the session, and of each call under it. Safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._session: str | None = None
        self._lease = 0.0
        self._live_until = 0.0
        # Until when this process may act for it, and whether its end was noticed already.
        self._holds: dict[Hold, tuple[float, bool]] = {}

    @property
    def session(self) -> str | None:
        """The session, if there is one."""
        return self._session

    @property
    def lease(self) -> float:
        """How long a renewal lasts, in seconds."""
        return self._lease

    def opened(self, session: str, lease: float, sent: float) -> None:
        """A session was opened; the request had been sent then. Nothing of an earlier session is held."""
        with self._lock:
            self._session, self._lease, self._holds = session, lease, {}
            self._live_until = sent + lease * (1 - MARGIN)

    def claimed(self, hold: Hold, session: str, sent: float) -> bool:
        """A poll that was sent then has brought a call. False if it was asked by a session that is over by now."""
        with self._lock:
            if session != self._session:
                return False
            self._holds[hold] = (sent + self._lease * (1 - MARGIN), False)
            return True

    def dropped(self, hold: Hold) -> None:
        """It is not held any more: done, given back, or lost."""
        with self._lock:
            self._holds.pop(hold, None)

    def holds(self) -> list[Hold]:
        """Everything that a renewal has to name."""
        with self._lock:
            return list(self._holds)

    def renewed(self, session: str, lease: float, sent: float, named: Iterable[Hold], lost: Iterable[str]) -> list[Hold]:
        """A renewal that was sent then and named these has been answered. Returns what is lost."""
        gone, lost_calls = [], set(lost)
        with self._lock:
            if session != self._session:
                return []
            self._lease = lease
            self._live_until = max(self._live_until, sent + lease * (1 - MARGIN))
            for hold in named:
                # What was done, or given back and claimed again, while the renewal was under way is not what it spoke of.
                if hold not in self._holds:
                    continue
                if hold.call in lost_calls:
                    del self._holds[hold]
                    gone.append(hold)
                else:
                    until = max(self._holds[hold][0], sent + lease * (1 - MARGIN))
                    self._holds[hold] = (until, False)
        return gone

    def ended(self, session: str) -> list[Hold]:
        """The server says that this session is over. Returns everything that was held under it."""
        with self._lock:
            if session != self._session:
                return []
            gone, self._holds = list(self._holds), {}
            self._session, self._live_until = None, 0.0
            return gone

    def remaining(self, hold: Hold) -> float:
        """For how many seconds this process may still act for it; 0 or less: it may not."""
        with self._lock:
            until = self._holds.get(hold, (0.0, False))[0]
            return min(until, self._live_until) - self._clock()

    def may_act(self, hold: Hold) -> bool:
        """Right before anything outside is touched."""
        return self.remaining(hold) > 0

    def lapsed(self) -> list[Hold]:
        """What has lapsed and was not noticed yet: what runs for it has to stop. It is still named in renewals."""
        with self._lock:
            now = self._clock()
            return [h for h, (until, noticed) in self._holds.items() if not noticed and now >= min(until, self._live_until)]

    def noticed(self, hold: Hold) -> None:
        """What ran for it was told to stop; once is enough, until a renewal revives it."""
        with self._lock:
            if hold in self._holds:
                self._holds[hold] = (self._holds[hold][0], True)
