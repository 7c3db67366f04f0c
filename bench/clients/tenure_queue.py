"""Puts load on a broker with Tenure's Python client and worker: the same as queue.mjs, see there.

    python3 tenure_queue.py SECTION SPEC       with clients/python/src on PYTHONPATH
"""

import json
import sys
import threading
import time

from tenure import Client, Submission, Worker

section, spec = sys.argv[1], json.loads(sys.argv[2])
client = Client(f"http://{spec['url']}")
PAD = "x" * max(0, spec["payload_bytes"] - 30)


def tell(message):
    """Tells the harness how far this is, and waits for it."""
    print(json.dumps(message), flush=True)
    sys.stdin.readline()


def payload():
    return {"at": int(time.monotonic() * 1e6), "pad": PAD}


def quantiles(latencies, name=""):
    found = sorted(latencies)
    return {f"{name}{label}_ms": found[int(share * len(found))] * 1000 for share, label in ((0.5, "p50"), (0.99, "p99")) if found}


def submit_many(count):
    client.submit_many([Submission("bench", payload(), queue=spec["queue"]) for _ in range(count)])


def preload(jobs):
    """Submits jobs, as many as there is time for, and says how many."""
    until, made = time.monotonic() + spec["preload_seconds"], 0
    while made < jobs and time.monotonic() < until:
        size = min(1000, jobs - made)
        submit_many(size)
        made += size
    return made


def start_worker(concurrency, on_job, on_done):
    worker = Worker(client, queues=[spec["queue"]], concurrency=concurrency, poll=1.0, drain=0.2, on_completed=lambda task: on_done())
    worker.handles("bench")(lambda task: on_job(task.payload))
    threading.Thread(target=worker.run, daemon=True).start()


def submit():
    tell({"ready": True})
    began = time.monotonic()
    until, latencies = began + spec["seconds"], []

    def caller():
        while (sent := time.monotonic()) < until:
            if spec["batch"] > 1:
                submit_many(spec["batch"])
            else:
                client.submit("bench", payload(), queue=spec["queue"])
            latencies.append(time.monotonic() - sent)

    callers = [threading.Thread(target=caller) for _ in range(spec["callers"])]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    tell({"jobs": len(latencies) * spec["batch"], "seconds": time.monotonic() - began, **quantiles(latencies)})


def preload_only():
    tell({"ready": True})
    began = time.monotonic()
    jobs = preload(spec["jobs"])
    tell({"jobs": jobs, "seconds": time.monotonic() - began})


def workoff():
    wanted = preload(spec["preload"])
    tell({"ready": True})
    began, ends, over = time.monotonic(), [], threading.Event()

    def done():
        ends.append(time.monotonic())
        if len(ends) >= wanted:
            over.set()

    start_worker(spec["concurrency"], lambda job: None, done)
    over.wait(spec["seconds"])
    tell({"jobs": len(ends), "seconds": (ends[-1] if ends else time.monotonic()) - began})


def pickup():
    latencies, picked = [], threading.Semaphore(0)

    def arrived(job):
        latencies.append(time.monotonic() - job["at"] / 1e6)
        picked.release()

    start_worker(16, arrived, lambda: None)
    time.sleep(0.5)
    tell({"ready": True})
    began, jobs = time.monotonic(), 0
    while jobs < spec["samples"] and time.monotonic() < began + spec["seconds"]:
        client.submit("bench", payload(), queue=spec["queue"])
        jobs += 1
        picked.acquire(timeout=5)
        time.sleep(spec["gap_ms"] / 1000)
    tell({"jobs": jobs, "seconds": time.monotonic() - began, **quantiles(latencies, "pick_up_")})


def idle():
    start_worker(16, lambda job: None, lambda: None)
    time.sleep(1)
    tell({"ready": True})
    time.sleep(spec["seconds"])
    tell({"jobs": 0, "seconds": spec["seconds"]})


{"submit": submit, "preload": preload_only, "workoff": workoff, "pickup": pickup, "idle": idle}[section]()
