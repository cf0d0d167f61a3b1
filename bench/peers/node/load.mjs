// What the load generators share: a closed loop and its figures. The twin of ../rust/src/lib.rs.

/** Bytes that every step returns: as many as in Tenure's own suite. */
export const RESULT = 'x'.repeat(200);

/** `--name value` pairs. */
export function options(defaults) {
  const found = { ...defaults };
  const args = process.argv.slice(2);
  for (let i = 0; i < args.length; i += 2) {
    const name = args[i].replace(/^--/, '');
    if (!(name in defaults) || args[i + 1] === undefined) throw new Error(`do not understand ${args[i]}`);
    found[name] = typeof defaults[name] === 'number' ? Number(args[i + 1]) : args[i + 1];
  }
  return found;
}

/** What every program that runs the closed loop knows. */
export const LOAD = { steps: 1, concurrency: 1, seconds: 5, warmup: 1, database: '' };

/**
 * Each client starts one piece of work, waits until it is completed, and starts the next. The rate counts every
 * completion inside the window, wherever it began, so that slow work is not cut off at the edges.
 */
export async function load({ concurrency, seconds, warmup }, work) {
  const start = performance.now() + warmup * 1000;
  const end = start + seconds * 1000;
  const took = [];
  let all = 0;
  const client = async () => {
    for (;;) {
      const sent = performance.now();
      if (sent >= end) return;
      await work();
      all += 1;
      const done = performance.now();
      if (done >= start && done <= end) took.push(done - sent);
    }
  };
  await Promise.all(Array.from({ length: concurrency }, client));
  took.sort((a, b) => a - b);
  return { took, all };
}

/** One JSON line. `readBack` is how many the database says are completed. */
export function print({ steps, concurrency, seconds }, { took, all }, readBack) {
  const at = (share) => took[Math.round((took.length - 1) * share)] ?? null;
  console.log(JSON.stringify({
    steps, concurrency, seconds,
    per_second: took.length / seconds,
    p50_ms: at(0.5), p99_ms: at(0.99),
    completed: all, read_back: readBack,
  }));
}
