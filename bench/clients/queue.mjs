// Puts load on one of the queues that are used from Node: pg-boss, graphile-worker, BullMQ and pgmq.
//
//   node queue.mjs PEER SECTION SPEC        SPEC is JSON; bench/benchmark/drivers.py says what is in it and what is answered
//
// Each peer is used as its documentation says for throughput, with its own client and its own worker. Packages are taken
// from the folder in BENCH_MODULES.

import { createRequire } from 'node:module'
import { readFileSync } from 'node:fs'
import readline from 'node:readline'

const require = createRequire(`${process.env.BENCH_MODULES}/`)
const [peer, section, text] = process.argv.slice(2)
const spec = JSON.parse(text)

const now = () => performance.now()
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()

/** Tells the harness how far this is, and waits for it. */
async function tell(message) {
  process.stdout.write(`${JSON.stringify(message)}\n`)
  await input.next()
}

// ---- the peers ------------------------------------------------------------------------------------------------------

/** At most so many connections to PostgreSQL: as many as callers, with some to spare below its limit of 200. */
const connections = () => Math.min(80, Math.max(16, spec.callers ?? 0))

async function pgBoss() {
  const { PgBoss } = require('pg-boss')
  // NOTIFY makes pick-up fast and submits slow, since PostgreSQL commits such transactions one after the other. It is an
  // option, off by default: used where jobs are waited for.
  const notify = ['pickup', 'open', 'idle'].includes(section)
  const boss = new PgBoss({ connectionString: spec.url, max: connections(), useListenNotify: notify, schedule: false })
  boss.on('error', (error) => console.error(error.message))
  await boss.start()
  if (!(await boss.getQueue(spec.queue))) await boss.createQueue(spec.queue, { notify })
  return {
    submit: (payload) => boss.send(spec.queue, payload),
    submitMany: (payloads) => boss.insert(spec.queue, payloads.map((data) => ({ data }))),
    // Batches for as long as there is more work.
    async work(concurrency, onJob, onDone) {
      const workers = Math.min(4, concurrency)
      const options = { batchSize: Math.ceil(concurrency / workers), localConcurrency: workers, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
      await boss.work(spec.queue, options, async (jobs) => {
        for (const job of jobs) onJob(job.data)
        onDone(jobs.length)
      })
      return () => boss.offWork(spec.queue, { wait: false })
    },
    close: () => boss.stop({ graceful: false, close: true }),
  }
}

async function graphileWorker() {
  const { makeWorkerUtils, run, Logger } = require('graphile-worker')
  const pg = require('pg')
  const pgPool = new pg.Pool({ connectionString: spec.url, max: connections() })
  pgPool.on('error', () => {})
  const logger = new Logger(() => () => {})
  const utils = await makeWorkerUtils({ pgPool, logger })
  await utils.migrate()
  return {
    submit: (payload) => utils.addJob(spec.queue, payload),
    submitMany: (payloads) => utils.addJobs(payloads.map((payload) => ({ identifier: spec.queue, payload }))),
    async work(concurrency, onJob, onDone) {
      const preset = { worker: { localQueue: { size: concurrency * 2 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } }
      const taskList = { [spec.queue]: (payload) => onJob(payload) }
      const runner = await run({ pgPool, logger, preset, concurrency, noHandleSignals: true, pollInterval: 2000, taskList })
      runner.events.on('job:complete', () => onDone(1))
      return () => runner.stop().catch(() => {})
    },
    close: async () => {
      await utils.release()
      await pgPool.end()
    },
  }
}

async function bullMq() {
  const { Queue, Worker } = require('bullmq')
  const [host, port] = spec.url.split(':')
  const connection = { host, port: Number(port), maxRetriesPerRequest: null }
  const queue = new Queue(spec.queue, { connection, defaultJobOptions: { removeOnComplete: true } })
  await queue.waitUntilReady()
  return {
    submit: (payload) => queue.add('job', payload),
    submitMany: (payloads) => queue.addBulk(payloads.map((data) => ({ name: 'job', data }))),
    async work(concurrency, onJob, onDone) {
      const worker = new Worker(spec.queue, async (job) => onJob(job.data), { connection, concurrency })
      worker.on('completed', () => onDone(1))
      worker.on('error', () => {})
      await worker.waitUntilReady()
      return () => worker.close(true)
    },
    close: () => queue.close(),
  }
}

async function pgmq() {
  const pg = require('pg')
  const pool = new pg.Pool({ connectionString: spec.url, max: connections() })
  pool.on('error', () => {})
  const there = await pool.query("SELECT 1 FROM pg_namespace WHERE nspname = 'pgmq'")
  if (there.rows.length === 0) await pool.query(readFileSync(spec.sql, 'utf8'))
  await pool.query('SELECT pgmq.create($1)', [spec.queue])
  const read = { name: 'read', text: 'SELECT msg_id, message FROM pgmq.read_with_poll($1, 30, $2, 5, 5)' }
  const drop = { name: 'drop', text: 'SELECT pgmq.delete($1, $2::bigint[])' }
  return {
    submit: (payload) => pool.query({ name: 'send', text: 'SELECT pgmq.send($1, $2::jsonb)', values: [spec.queue, payload] }),
    submitMany: (payloads) =>
      pool.query({ name: 'sends', text: 'SELECT pgmq.send_batch($1, $2::jsonb[])', values: [spec.queue, payloads.map((one) => JSON.stringify(one))] }),
    // It has no worker: four loops read batches, with its polling at 5 ms, and delete each batch in one call.
    async work(concurrency, onJob, onDone) {
      let stopped = false
      const loops = Math.min(4, concurrency)
      const loop = async () => {
        while (!stopped) {
          const { rows } = await pool.query({ ...read, values: [spec.queue, Math.ceil(concurrency / loops)] })
          if (rows.length === 0) continue
          for (const row of rows) onJob(row.message)
          await pool.query({ ...drop, values: [spec.queue, rows.map((row) => row.msg_id)] })
          onDone(rows.length)
        }
      }
      for (let number = 0; number < loops; number += 1) loop().catch((error) => stopped || console.error(error.message))
      return () => {
        stopped = true
      }
    },
    close: () => Promise.race([pool.end(), sleep(500)]),
  }
}

// ---- the work -------------------------------------------------------------------------------------------------------

const pad = 'x'.repeat(Math.max(0, spec.payload_bytes - 30))
const payload = () => ({ at: Math.round(now() * 1000), pad })

function quantiles(latencies, name) {
  if (latencies.length === 0) return {}
  const sorted = Float64Array.from(latencies).sort()
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]
  return { [`${name}p50_ms`]: at(0.5), [`${name}p99_ms`]: at(0.99) }
}

/** Submits jobs, as many as there is time for, and says how many. */
async function preload(queue, jobs) {
  const until = now() + spec.preload_seconds * 1000
  let [left, made] = [jobs, 0]
  const caller = async () => {
    while (left > 0 && now() < until) {
      const size = Math.min(1000, left)
      left -= size
      await queue.submitMany(Array.from({ length: size }, payload))
      made += size
    }
  }
  await Promise.all([caller(), caller(), caller(), caller()])
  return made
}

const sections = {
  async submit(queue) {
    await tell({ ready: true })
    const began = now()
    const until = began + spec.seconds * 1000
    const latencies = []
    let jobs = 0
    const caller = async () => {
      while (now() < until) {
        const sent = now()
        if (spec.batch > 1) await queue.submitMany(Array.from({ length: spec.batch }, payload))
        else await queue.submit(payload())
        latencies.push(now() - sent)
        jobs += spec.batch
      }
    }
    await Promise.all(Array.from({ length: spec.callers }, caller))
    await tell({ jobs, seconds: (now() - began) / 1000, ...quantiles(latencies, '') })
  },

  async preload(queue) {
    await tell({ ready: true })
    const began = now()
    const jobs = await preload(queue, spec.jobs)
    await tell({ jobs, seconds: (now() - began) / 1000 })
  },

  async workoff(queue) {
    const wanted = spec.preload > 0 ? await preload(queue, spec.preload) : Infinity
    await tell({ ready: true })
    const began = now()
    let done = 0
    let last = began
    let finish
    const finished = new Promise((resolve) => (finish = resolve))
    const stop = await queue.work(spec.concurrency, () => {}, (count) => {
      done += count
      last = now()
      if (done >= wanted) finish()
    })
    await Promise.race([finished, sleep(spec.seconds * 1000)])
    await tell({ jobs: done, seconds: (last - began) / 1000 })
    await stop()
  },

  async pickup(queue) {
    const latencies = []
    let arrived = () => {}
    const stop = await queue.work(16, (job) => {
      latencies.push(now() - job.at / 1000)
      arrived()
    }, () => {})
    await sleep(500)
    await tell({ ready: true })
    const began = now()
    let jobs = 0
    while (jobs < spec.samples && now() < began + spec.seconds * 1000) {
      const picked = new Promise((resolve) => (arrived = resolve))
      await queue.submit(payload())
      jobs += 1
      await Promise.race([picked, sleep(5000)])
      await sleep(spec.gap_ms)
    }
    await tell({ jobs, seconds: (now() - began) / 1000, ...quantiles(latencies, 'pick_up_') })
    await stop()
  },

  async open(queue) {
    const latencies = []
    const pickUps = []
    const stop = await queue.work(64, (job) => pickUps.push(now() - job.at / 1000), () => {})
    await sleep(500)
    await tell({ ready: true })
    const began = now()
    const until = began + spec.seconds * 1000
    const under_way = new Set()
    let made = 0
    while (now() < until) {
      const due = Math.floor(((now() - began) * spec.rate) / 1000)
      for (; made < due; made += 1) {
        const sent = now()
        const call = queue.submit(payload()).then(() => latencies.push(now() - sent))
        under_way.add(call)
        call.finally(() => under_way.delete(call))
      }
      await sleep(1)
    }
    await Promise.race([Promise.all(under_way), sleep(5000)])
    const seconds = (now() - began) / 1000
    for (const end = now() + 2000; pickUps.length < made && now() < end; ) await sleep(10)
    await tell({ jobs: latencies.length, asked: made, seconds, ...quantiles(latencies, ''), ...quantiles(pickUps, 'pick_up_') })
    await stop()
  },

  async churn(queue) {
    const done = [0, 0, 0, 0]
    let began = Infinity
    const stop = await queue.work(64, () => {}, (count) => {
      const quarter = Math.floor(((now() - began) / 1000 / spec.seconds) * 4)
      if (quarter >= 0 && quarter < 4) done[quarter] += count
    })
    await tell({ ready: true })
    began = now()
    const until = began + spec.seconds * 1000
    const caller = async () => {
      while (now() < until) await queue.submitMany(Array.from({ length: spec.batch }, payload))
    }
    await Promise.all(Array.from({ length: spec.callers }, caller))
    const per = spec.seconds / 4
    const jobs = done.reduce((sum, one) => sum + one, 0)
    await tell({ jobs, seconds: spec.seconds, first_per_second: done[0] / per, last_per_second: done[3] / per })
    await stop()
  },

  async idle(queue) {
    const stop = await queue.work(16, () => {}, () => {})
    await sleep(1000)
    await tell({ ready: true })
    await sleep(spec.seconds * 1000)
    await tell({ jobs: 0, seconds: spec.seconds })
    await stop()
  },
}

const peers = { 'pg-boss': pgBoss, 'graphile-worker': graphileWorker, bullmq: bullMq, pgmq }
const queue = await peers[peer]()
await sections[section](queue)
await Promise.race([queue.close(), sleep(1000)])
process.exit(0)
