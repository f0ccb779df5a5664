// Drives the workload on a Restate server: N runs at a time, each begun when the one before has ended; a tenth of the
// time to warm up, then S seconds to measure. The last line is one JSON object, as of `loadtest/run agent`.
//
// node driver.cjs --ingress URL --admin URL --concurrency N --seconds S

const { fork } = require("node:child_process");
const http = require("node:http");
const path = require("node:path");
const { parseArgs } = require("node:util");

const STEPS = 10;
const PATIENCE_MS = 60_000;

const { values: options } = parseArgs({
  options: {
    ingress: { type: "string" },
    admin: { type: "string" },
    concurrency: { type: "string", default: "16" },
    seconds: { type: "string", default: "10" },
  },
});

const agent = new http.Agent({ keepAlive: true, noDelay: true });
const approvals = new Map();

function post(url, body) {
  return new Promise((resolve, reject) => {
    const text = JSON.stringify(body);
    const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(text) };
    const request = http.request(url, { method: "POST", agent, headers, timeout: PATIENCE_MS }, (response) => {
      const parts = [];
      response.on("data", (part) => parts.push(part));
      response.on("error", reject);
      response.on("end", () => {
        const answer = Buffer.concat(parts).toString();
        if (response.statusCode >= 300) reject(new Error(`${url} answers ${response.statusCode}: ${answer}`));
        else resolve(answer ? JSON.parse(answer) : null);
      });
    });
    request.on("timeout", () => request.destroy(new Error(`${url} does not answer`)));
    request.on("error", reject);
    request.end(text);
  });
}

/** Starts the service; resolves with the process and its port. */
function startService() {
  const service = fork(path.join(__dirname, "service.cjs"));
  return new Promise((resolve, reject) => {
    service.on("exit", (code) => reject(new Error(`the service ended with ${code}`)));
    service.on("message", (message) => {
      if (message.port) resolve([service, message.port]);
      else approvals.get(message.asked)?.(message.id);
    });
  });
}

/** One run from its creation to its end. Resolves with the nanoseconds from the decision to the next step's begin. */
async function oneRun(run) {
  const asked = new Promise((resolve) => approvals.set(run, resolve));
  const ended = post(`${options.ingress}/agent/run`, { run });
  // Its failure is met below; until then nobody looks.
  ended.catch(() => {});
  const id = await Promise.race([asked, ended.then(() => Promise.reject(new Error("it ended without asking")))]);
  approvals.delete(run);
  const decided = process.hrtime.bigint();
  await post(`${options.ingress}/restate/awakeables/${id}/resolve`, { approve: true });
  return BigInt((await ended).resumed) - decided;
}

async function drive(driver, begin, end, tally) {
  for (let count = 0; process.hrtime.bigint() < end; count++) {
    const started = process.hrtime.bigint();
    try {
      const resume = await oneRun(`${process.pid}-${driver}-${count}`);
      const done = process.hrtime.bigint();
      if (done >= begin && done <= end) {
        tally.runs.push(Number(done - started) / 1e6);
        tally.resumes.push(Number(resume) / 1e6);
      }
    } catch (error) {
      console.error(`run ${driver}-${count}: ${error.message}`);
      tally.failures++;
    }
  }
}

function percentiles(values) {
  const sorted = values.sort((a, b) => a - b);
  const at = (share) => hundredth(sorted[Math.min(Math.floor(sorted.length * share), sorted.length - 1)] ?? null);
  return { p50: at(0.5), p99: at(0.99) };
}

function hundredth(figure) {
  return figure === null ? null : Math.round(figure * 100) / 100;
}

async function main() {
  const [concurrency, seconds] = [Number(options.concurrency), Number(options.seconds)];
  const [service, port] = await startService();
  await post(`${options.admin}/deployments`, { uri: `http://127.0.0.1:${port}`, force: true });
  const begin = process.hrtime.bigint() + BigInt(Math.round(seconds * 1e8));
  const end = begin + BigInt(Math.round(seconds * 1e9));
  const tally = { runs: [], resumes: [], failures: 0 };
  await Promise.all(Array.from({ length: concurrency }, (_, driver) => drive(driver, begin, end, tally)));
  service.removeAllListeners("exit");
  service.kill();
  const rate = tally.runs.length / seconds;
  console.log(
    JSON.stringify({
      scenario: "agent",
      concurrency,
      seconds,
      runs: tally.runs.length,
      failures: tally.failures,
      runs_per_s: hundredth(rate),
      steps_per_s: hundredth(rate * STEPS),
      run_ms: percentiles(tally.runs),
      resume_ms: percentiles(tally.resumes),
    }),
  );
}

main().then(
  () => process.exit(),
  (error) => {
    console.error(`driver: ${error.message}`);
    process.exit(1);
  },
);
