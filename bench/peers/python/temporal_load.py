"""Temporal's development server under load: worker and clients in this process.

A step is a local activity by default: Temporal's own advice for steps that are short, and several times as fast.
"""

import argparse
import asyncio
import json
import time
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

RESULT = "x" * 200  # as many bytes as in Tenure's own suite
SOON = timedelta(seconds=60)


@activity.defn
async def step(argument: str) -> str:
    return argument


@workflow.defn
class Work:
    @workflow.run
    async def run(self, steps: int, local: bool) -> int:
        start = workflow.execute_local_activity if local else workflow.execute_activity
        for _ in range(steps):
            await start(step, RESULT, start_to_close_timeout=SOON)
        return steps


async def load(client, asked):
    start = time.perf_counter() + asked.warmup
    end = start + asked.seconds
    took, count = [], 0

    async def one(number):
        nonlocal count
        nth = 0
        while (sent := time.perf_counter()) < end:
            nth += 1
            # execute_workflow returns what the server has recorded as the result.
            steps = await client.execute_workflow(
                Work.run, args=[asked.steps, asked.activities == "local"], id=f"job-{number}-{nth}", task_queue="bench"
            )
            assert steps == asked.steps, steps
            count += 1
            done = time.perf_counter()
            if start <= done <= end:
                took.append((done - sent) * 1000)

    await asyncio.gather(*(one(number) for number in range(asked.concurrency)))
    return sorted(took), count


async def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, kind, default in [("steps", int, 1), ("concurrency", int, 1), ("seconds", float, 5), ("warmup", float, 1)]:
        parser.add_argument(f"--{name}", type=kind, default=default)
    parser.add_argument("--server", required=True)
    parser.add_argument("--activities", choices=["local", "normal"], default="local")
    asked = parser.parse_args()
    client = await Client.connect(asked.server)
    # Without the sandbox, which imports this file anew for each workflow.
    runner = UnsandboxedWorkflowRunner()
    async with Worker(client, task_queue="bench", workflows=[Work], activities=[step], workflow_runner=runner):
        took, count = await load(client, asked)

    def at(share):
        return took[round((len(took) - 1) * share)] if took else None

    print(json.dumps({
        "steps": asked.steps, "concurrency": asked.concurrency, "seconds": asked.seconds,
        "per_second": len(took) / asked.seconds, "p50_ms": at(0.5), "p99_ms": at(0.99),
        "completed": count, "read_back": count,
    }))


if __name__ == "__main__":  # the worker looks into this file again
    asyncio.run(main())
