// The workload as a Restate service: five times a model step and a tool step, an approval, the end.
//
// A process of its own that Restate calls over HTTP/2. It tells its parent, the driver, by a message between the two
// processes where it listens and which approvals are asked.

// The SDK wants Node 22 for this; older ones do with a few lines.
Promise.withResolvers ??= function () {
  let resolve, reject;
  const promise = new this((yes, no) => ([resolve, reject] = [yes, no]));
  return { promise, resolve, reject };
};

const http2 = require("node:http2");
const restate = require("@restatedev/restate-sdk");

const STEPS = 5;

const agent = restate.service({
  name: "agent",
  handlers: {
    run: async (ctx, { run }) => {
      for (let turn = 1; turn <= STEPS; turn++) {
        const call = await ctx.run("model", () => ({ tool: "echo", text: `step ${turn} of ${run}` }));
        await ctx.run("tool", () => ({ text: call.text }));
      }
      const { id, promise } = ctx.awakeable();
      await ctx.run("ask", () => void process.send({ asked: run, id }));
      await promise;
      // Monotonic and the same in every process of a machine: the driver knows when it decided.
      const resumed = process.hrtime.bigint();
      return { summary: "Five steps, and the operator's yes.", resumed: resumed.toString() };
    },
  },
});

const server = http2.createServer(restate.createEndpointHandler({ services: [agent] }));
server.listen(0, "127.0.0.1", () => process.send({ port: server.address().port }));
process.on("disconnect", () => process.exit());
