// A client of osqueue's, on the libraries that osqueue's own is made of: connect-node and ws.
//
//   node client.mjs MODULES TRANSPORT URL calls          one of each call; prints what was answered
//   node client.mjs MODULES TRANSPORT URL storm          submits and works until its input ends; prints what it saw
//
// As osqueue's client does, a WebSocket takes host, port and user from the URL, and its path from an option: WS_PATH here.
//
// TRANSPORT is connect, connect-json, connect-h2, ws or rest.

import { createRequire } from "node:module";
import { once } from "node:events";

const [modules, transport, url, what] = process.argv.slice(2);
const require = createRequire(`${modules}/client.cjs`);

const TYPES = { string: 9, bytes: 12, int32: 5, int64: 3, message: 11 };

// queue.proto, as far as a client needs it.
const MESSAGES = {
  SubmitJobRequest: [["payload", 1, "bytes"], ["max_attempts", 2, "int32", "optional"], ["type", 3, "string"]],
  SubmitJobResponse: [["job_id", 1, "string"]],
  ClaimJobRequest: [["worker_id", 1, "string"], ["types", 2, "string", "repeated"]],
  ClaimJobResponse: [["job_id", 1, "string", "optional"], ["payload", 2, "bytes", "optional"], ["type", 3, "string"]],
  HeartbeatRequest: [["job_id", 1, "string"], ["worker_id", 2, "string"]],
  HeartbeatResponse: [],
  CompleteJobRequest: [["job_id", 1, "string"], ["worker_id", 2, "string"]],
  CompleteJobResponse: [],
  GetStatsRequest: [],
  GetStatsResponse: [["total", 1, "int32"], ["unclaimed", 2, "int32"], ["in_progress", 3, "int32"], ["broker_address", 4, "string"]],
  ListJobsRequest: [],
  JobInfo: [
    ["id", 1, "string"], ["status", 2, "string"], ["payload", 3, "bytes"], ["type", 4, "string"], ["worker_id", 5, "string"],
    ["created_at", 6, "int64"], ["attempts", 7, "int32"], ["max_attempts", 8, "int32"], ["heartbeat", 9, "int64"],
  ],
  ListJobsResponse: [
    ["jobs", 1, ".osqueue.v1.JobInfo", "repeated"], ["total", 2, "int32"], ["unclaimed", 3, "int32"], ["in_progress", 4, "int32"],
    ["completed_total", 5, "int32"], ["broker_address", 6, "string"],
  ],
};
const CALLS = ["SubmitJob", "ClaimJob", "Heartbeat", "CompleteJob", "GetStats", "ListJobs"];

function service() {
  const { create, createFileRegistry } = require("@bufbuild/protobuf");
  const { FileDescriptorProtoSchema, FileDescriptorSetSchema } = require("@bufbuild/protobuf/wkt");
  const messageType = Object.entries(MESSAGES).map(([name, fields]) => {
    const optional = fields.filter((field) => field[3] === "optional").map((field) => field[0]);
    return {
      name,
      field: fields.map(([name, number, type, kind]) => ({
        name,
        number,
        label: kind === "repeated" ? 3 : 1,
        type: TYPES[type] ?? TYPES.message,
        ...(TYPES[type] ? {} : { typeName: type }),
        jsonName: name.replace(/_(.)/g, (_, letter) => letter.toUpperCase()),
        ...(kind === "optional" ? { proto3Optional: true, oneofIndex: optional.indexOf(name) } : {}),
      })),
      oneofDecl: optional.map((name) => ({ name: `_${name}` })),
    };
  });
  const method = CALLS.map((name) => ({
    name, inputType: `.osqueue.v1.${name}Request`, outputType: `.osqueue.v1.${name}Response`,
  }));
  const file = create(FileDescriptorProtoSchema, {
    name: "queue.proto", package: "osqueue.v1", syntax: "proto3", messageType,
    service: [{ name: "QueueService", method }],
  });
  const set = create(FileDescriptorSetSchema, { file: [file] });
  return createFileRegistry(set).getService("osqueue.v1.QueueService");
}

function connect() {
  const { createClient } = require("@connectrpc/connect");
  const { createConnectTransport } = require("@connectrpc/connect-node");
  const options = {
    baseUrl: url,
    httpVersion: transport === "connect-h2" ? "2" : "1.1",
    useBinaryFormat: transport !== "connect-json",
    defaultTimeoutMs: 60_000,
  };
  const client = createClient(service(), createConnectTransport(options));
  const bytes = (value) => new TextEncoder().encode(JSON.stringify(value));
  const value = (bytes) => JSON.parse(new TextDecoder().decode(bytes));
  const failed = (error) => Promise.reject({ code: error.code ?? error.message, message: error.rawMessage ?? error.message });
  return {
    submit: (type, payload, maxAttempts) =>
      client.submitJob({ type, payload: bytes(payload), maxAttempts }).then((answer) => answer.jobId, failed),
    claim: (workerId, types) =>
      client.claimJob({ workerId, types }).then(
        ({ jobId, payload, type }) => (jobId ? { jobId, payload: value(payload), type } : null), failed),
    heartbeat: (jobId, workerId) => client.heartbeat({ jobId, workerId }).then(() => {}, failed),
    complete: (jobId, workerId) => client.completeJob({ jobId, workerId }).then(() => {}, failed),
    stats: () => client.getStats({}).then(({ total, unclaimed, inProgress }) => ({ total, unclaimed, inProgress }), failed),
    list: () =>
      client.listJobs({}).then(({ jobs, completedTotal }) => ({
        completedTotal,
        jobs: jobs.map((job) => ({
          id: job.id, status: job.status, type: job.type, payload: value(job.payload), workerId: job.workerId,
          attempts: job.attempts, maxAttempts: job.maxAttempts, heartbeat: Number(job.heartbeat), createdAt: Number(job.createdAt),
        })),
      }), failed),
    close: () => {},
  };
}

function ws() {
  const { WebSocket } = require("ws");
  let socket;
  let next = 1;
  const waiting = new Map();
  const open = async () => {
    if (socket?.readyState === WebSocket.OPEN) return socket;
    const place = new URL(url);
    place.protocol = "ws:";
    place.pathname = process.env.WS_PATH ?? "/v1/ws";
    const mine = new WebSocket(place.toString());
    mine.on("message", (text) => {
      const answer = JSON.parse(text);
      waiting.get(answer.id)?.(answer);
      waiting.delete(answer.id);
    });
    const lost = () => {
      for (const [id, tell] of waiting) tell({ ok: false, error: { _tag: "closed", message: "the socket closed" } }), waiting.delete(id);
    };
    mine.on("close", lost);
    await new Promise((done, failed) => {
      mine.once("open", done);
      mine.once("error", (error) => failed({ code: "connect", message: error.message }));
    });
    return (socket = mine);
  };
  const call = async (method, params) => {
    const open_ = await open();
    const id = `${next++}`;
    const answer = await new Promise((done) => {
      waiting.set(id, done);
      open_.send(JSON.stringify({ id, method, params }));
    });
    if (!answer.ok) throw { code: answer.error._tag, message: answer.error.message };
    return answer.result;
  };
  return {
    submit: (type, payload, maxAttempts) => call("submitJob", { type, payload, maxAttempts }).then((answer) => answer.jobId),
    claim: (workerId, types) => call("claimJob", { workerId, types }).then((answer) => (answer.jobId ? answer : null)),
    heartbeat: (jobId, workerId) => call("heartbeat", { jobId, workerId }),
    complete: (jobId, workerId) => call("completeJob", { jobId, workerId }),
    stats: () => call("getStats", {}).then(({ total, unclaimed, inProgress }) => ({ total, unclaimed, inProgress })),
    list: () => call("listJobs", {}),
    close: () => socket?.close(),
    raw: async (text) => {
      const open_ = await open();
      open_.send(text);
      const [answer] = await once(open_, "message");
      return JSON.parse(answer);
    },
  };
}

function rest() {
  const call = async (method, path, body) => {
    const response = await fetch(`${url}${path}`, {
      method, headers: { "content-type": "application/json" }, body: body && JSON.stringify(body),
    }).catch((error) => Promise.reject({ code: "connect", message: error.message }));
    const text = await response.text();
    if (!response.ok) {
      const { _tag, message } = JSON.parse(text);
      throw { code: _tag, message };
    }
    return text ? JSON.parse(text) : undefined;
  };
  return {
    submit: (type, payload, maxAttempts) => call("POST", "/v1/jobs", { type, payload, maxAttempts }).then((answer) => answer.jobId),
    claim: (workerId, types) => call("POST", "/v1/jobs/claim", { workerId, types }).then((answer) => (answer.jobId ? answer : null)),
    heartbeat: (jobId, workerId) => call("POST", `/v1/jobs/${jobId}/heartbeat`, { workerId }),
    complete: (jobId, workerId) => call("POST", `/v1/jobs/${jobId}/complete`, { workerId }),
    stats: () => call("GET", "/v1/stats").then(({ total, unclaimed, inProgress }) => ({ total, unclaimed, inProgress })),
    list: () => call("GET", "/v1/jobs"),
    close: () => {},
  };
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const error = (promise) => promise.then(() => null, (problem) => problem.code);

async function calls(client) {
  const seen = {};
  seen.id = await client.submit("img/resize", { n: [1, "ü"] }, 2);
  await client.submit("", null, 0);
  seen.none = await client.claim("w", ["other"]);
  seen.claimed = await client.claim("w", ["img/resize"]);
  seen.stats = await client.stats();
  const before = (await client.list()).jobs.find((job) => job.id === seen.id);
  await sleep(30);
  await client.heartbeat(seen.id, "w");
  const after = (await client.list()).jobs.find((job) => job.id === seen.id);
  seen.listed = { ...before, heartbeat: undefined, createdAt: undefined };
  seen.moved = after.heartbeat > before.heartbeat;
  seen.stranger = await error(client.complete(seen.id, "other"));
  seen.wrong = await error(client.heartbeat("../../v1", "w"));
  await client.complete(seen.id, "w");
  seen.again = await error(client.complete(seen.id, "w"));
  seen.untyped = (await client.claim("w", undefined))?.type ?? "";
  const list = await client.list();
  seen.completedTotal = list.completedTotal;
  seen.attempts = list.jobs[0].maxAttempts;
  const together = await Promise.all(Array.from({ length: 100 }, (_, n) => client.submit("many", n)));
  seen.together = new Set(together).size;
  if (client.raw) seen.broken = (await client.raw("{")).ok;
  return seen;
}

async function storm(client) {
  let stop = false;
  process.stdin.on("end", () => (stop = true)).resume();
  const seen = { submitted: [], refused: 0, claimed: [], completed: [], doubtful: [] };
  const submitting = async () => {
    while (!stop) {
      await client.submit("storm", seen.submitted.length).then((id) => seen.submitted.push(id), () => seen.refused++);
      await sleep(5);
    }
  };
  const working = async (worker) => {
    for (let idle = 0; !stop || idle < 3; ) {
      const job = await client.claim(worker, ["storm"]).catch(() => undefined);
      if (job === undefined) { await sleep(50); continue; }
      if (job === null) { idle++; await sleep(50); continue; }
      idle = 0;
      seen.claimed.push(job.jobId);
      await client.complete(job.jobId, worker).then(() => seen.completed.push(job.jobId), () => seen.doubtful.push(job.jobId));
    }
  };
  await Promise.all([submitting(), submitting(), working("w1"), working("w2"), working("w3")]);
  return seen;
}

const client = transport === "ws" ? ws() : transport === "rest" ? rest() : connect();
console.log(JSON.stringify(await (what === "storm" ? storm(client) : calls(client))));
client.close();
process.exit(0);
