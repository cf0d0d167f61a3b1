// DBOS Transact: workflows started directly, in the process that runs them. Its queues add a poll of a second, so
// this is its fastest way to have a workflow done.
import { DBOS } from '@dbos-inc/dbos-sdk';
import pg from 'pg';
import { LOAD, RESULT, load, options, print } from './load.mjs';

const asked = options({ ...LOAD, pool: 10 });
DBOS.setConfig({
  name: 'bench',
  systemDatabaseUrl: asked.database,
  systemDatabasePoolSize: asked.pool,
  logLevel: 'error',
  runAdminServer: false,
});
const work = DBOS.registerWorkflow(async (steps) => {
  for (let i = 0; i < steps; i += 1) await DBOS.runStep(async () => RESULT, { name: 'step' });
  return steps;
}, { name: 'work' });
await DBOS.launch();
const figures = await load(asked, async () => {
  const steps = await work(asked.steps);
  if (steps !== asked.steps) throw new Error(`a workflow returned ${steps}`);
});
await DBOS.shutdown();
const db = new pg.Client(asked.database);
await db.connect();
const { rows } = await db.query("SELECT count(*)::int AS n FROM dbos.workflow_status WHERE status = 'SUCCESS'");
await db.end();
print(asked, figures, rows[0].n);
