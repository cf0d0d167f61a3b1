// A Restate service in its TypeScript SDK: a handler of so many `ctx.run` steps that do nothing. The same as
// ../rust/src/bin/restate-service.rs; the load comes from restate-load there.
import * as restate from '@restatedev/restate-sdk';
import { RESULT } from './load.mjs';

const bench = restate.service({
  name: 'Bench',
  handlers: {
    work: async (ctx, steps) => {
      for (let i = 0; i < steps; i += 1) await ctx.run('step', async () => RESULT);
      return steps;
    },
  },
});
restate.serve({ services: [bench], port: Number(process.argv[2]) });
