// Graphile Worker: a full queue is emptied. `--batched 0` as it comes, with many jobs at once; `--batched 1` with its
// local queue and batched completion.
import { Logger, makeWorkerUtils, run } from 'graphile-worker';
import pg from 'pg';
import { RESULT, options } from './load.mjs';

const asked = options({ jobs: 1000, batched: 0, workers: 24, database: '' });
const quiet = new Logger(() => () => {});
const connectionString = asked.database;
const utils = await makeWorkerUtils({ connectionString, logger: quiet });
await utils.migrate();
for (let added = 0; added < asked.jobs; added += 1000) {
  const some = Math.min(1000, asked.jobs - added);
  await utils.addJobs(Array.from({ length: some }, () => ({ identifier: 'work', payload: { x: RESULT } })));
}
await utils.release();

const db = new pg.Client(connectionString);
await db.connect();
const left = async () => {
  const { rows } = await db.query('SELECT count(*)::int AS n FROM graphile_worker._private_jobs');
  return rows[0].n;
};
const before = await left();
if (before !== asked.jobs) throw new Error(`${before} jobs in the queue instead of ${asked.jobs}`);

let called = 0;
let allCalled;
const all = new Promise((resolve) => { allCalled = resolve; });
const batched = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
const began = performance.now();
const runner = await run({
  taskList: {
    work: async () => {
      called += 1;
      if (called === asked.jobs) allCalled();
    },
  },
  preset: {
    worker: {
      connectionString, logger: quiet,
      concurrentJobs: asked.workers, maxPoolSize: asked.workers + 2,
      ...(asked.batched ? batched : {}),
    },
  },
});
// The last completions may still be on their way when the last task has been called: a job is done when its row is gone.
await all;
while (await left() > 0) await new Promise((resolve) => { setTimeout(resolve, 2); });
const seconds = (performance.now() - began) / 1000;
await runner.stop();
await db.end();
if (called !== asked.jobs) throw new Error(`${called} calls for ${asked.jobs} jobs`);
console.log(JSON.stringify({
  jobs: asked.jobs, seconds, per_second: asked.jobs / seconds, completed: called, read_back: asked.jobs,
}));
