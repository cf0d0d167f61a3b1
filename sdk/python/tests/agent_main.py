"""An agent process for tests: agent_main.py URL OUTSIDE sync|async TARGET… See `answer` for what it does."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time

from tenure import Agent, Calls, Finish, Turn, _points, call

URL, OUTSIDE, HOW, *TARGETS = sys.argv[1:]


def answer(turn: Turn) -> Calls | Finish:
    """One tool that leaves a line outside, then the end."""
    if turn.step == 1:
        return call("note", program="sh", args=["-c", f"echo {turn.id} >> {OUTSIDE}"])
    return Finish({"steps": turn.step})


def strikes_later(turn: Turn) -> bool:
    """This process is struck while a step runs, by the next renewal."""
    return (_points._armed or ("",))[0] == "in_renew" and not turn.lost


def sync(turn: Turn) -> Calls | Finish:
    while strikes_later(turn):
        time.sleep(0.02)
    return answer(turn)


async def in_loop(turn: Turn) -> Calls | Finish:
    while strikes_later(turn):
        await asyncio.sleep(0.02)
    return answer(turn)


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=f"%(asctime)s {os.getpid()} %(threadName)s %(message)s")
    agent = Agent(in_loop if HOW == "async" else sync, URL, targets=TARGETS)
    with agent._signals():
        agent.start()
        print("ready", flush=True)
        agent._draining.wait()
        agent.stop()


if __name__ == "__main__":
    main()
