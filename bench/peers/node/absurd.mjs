// absurd: tasks spawned and worked on in one process. The runner has applied its schema (absurdctl init).
import { Absurd } from 'absurd-sdk';
import pg from 'pg';
import { LOAD, RESULT, load, options, print } from './load.mjs';

const asked = options({ ...LOAD, pool: 10, poll: 0.005 });
const pool = new pg.Pool({ connectionString: asked.database, max: asked.pool });
const app = new Absurd({ db: pool, queueName: 'bench' });
await app.createQueue('bench');
app.registerTask({ name: 'work' }, async ({ steps }, ctx) => {
  for (let i = 0; i < steps; i += 1) await ctx.step('step', async () => RESULT);
  return steps;
});

// Its own way of waiting for a result polls from 50 ms up. The worker is in this process: we are told as soon as it
// has recorded the end of a task, which costs neither latency nor queries.
const waiting = new Map();
const ended = new Set();
const executeTask = app.executeTask.bind(app);
app.executeTask = async (task, ...rest) => {
  await executeTask(task, ...rest);
  const tell = waiting.get(task.task_id);
  if (tell) tell();
  else ended.add(task.task_id); // sooner than the answer to its spawn
};
const worker = await app.startWorker({ concurrency: asked.concurrency, pollInterval: asked.poll });
const figures = await load(asked, async () => {
  const { taskID } = await app.spawn('work', { steps: asked.steps });
  if (!ended.delete(taskID)) await new Promise((resolve) => waiting.set(taskID, resolve));
  waiting.delete(taskID);
});
await worker.close();
const { rows } = await pool.query("SELECT count(*)::int AS n FROM absurd.t_bench WHERE state = 'completed'");
await pool.end();
print(asked, figures, rows[0].n);
